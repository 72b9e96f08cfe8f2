//! Drives the endpoint as a page with a bad line would: the same sale 20 times at once, and again after a kill.

use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, ensure};
use birkez::rusqlite::Connection;
use birkez::testing::TempStore;

const SALE: &str = r#"{"card":"card-01","minor":4500}"#;

/// A status and a body.
type Answer = (u16, String);

/// The endpoint in a process of its own; killed when this is dropped.
struct Panel {
    process: Child,
    address: String,
}

impl Panel {
    fn start(db: &Path, slow: u32) -> anyhow::Result<Panel> {
        let mut command = Command::new(std::env::current_exe()?);
        command.arg("--db").arg(db).args(["--slow", &slow.to_string()]);
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
        let mut line = String::new();
        BufReader::new(process.stdout.take().context("it has no output")?).read_line(&mut line)?;
        let address = line.trim().strip_prefix("listening on http://").context("it does not listen")?.to_owned();
        Ok(Panel { process, address })
    }

    /// As a page should: while the answer is "not yet", the same again, under the same key.
    fn post_until_answered(&self, key: &str, body: &str) -> anyhow::Result<Answer> {
        let start = Instant::now();
        loop {
            let answer = post(&self.address, key, body)?;
            if !matches!(answer.0, 409 | 503) {
                return Ok(answer);
            }
            ensure!(start.elapsed() < Duration::from_secs(30), "no answer but {answer:?}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }
}

impl Drop for Panel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

/// Sends a sale. An error means that there was no answer, or half of one: whether it was sold is unknown.
fn post(address: &str, key: &str, body: &str) -> io::Result<Answer> {
    let mut stream = TcpStream::connect(address)?;
    let length = body.len();
    let head = "POST /sales HTTP/1.1\r\nhost: panel";
    write!(stream, "{head}\r\nidempotency-key: {key}\r\ncontent-length: {length}\r\n\r\n{body}")?;
    let mut text = String::new();
    stream.read_to_string(&mut text)?;
    let status = text.split(' ').nth(1).and_then(|status| status.parse().ok());
    let body = text.split_once("\r\n\r\n").map(|(_, body)| body.to_owned());
    status.zip(body).ok_or(ErrorKind::UnexpectedEof.into())
}

pub fn run() -> anyhow::Result<()> {
    let folder = TempStore::new()?;
    let db = folder.path();
    let panel = Panel::start(db, 100)?;

    let answers = std::thread::scope(|scope| {
        let sent: Vec<_> = (0..20).map(|_| scope.spawn(|| panel.post_until_answered("form-1", SALE))).collect();
        sent.into_iter().map(|one| one.join().expect("a request does not panic")).collect::<anyhow::Result<Vec<_>>>()
    })?;
    let first = answers[0].clone();
    ensure!(first.0 == 201 && answers.iter().all(|answer| *answer == first), "the answers differ: {answers:?}");
    println!("Sent 20 times at once, answered 20 times: {} {}", first.0, first.1.trim());

    for (what, key, body, expected) in [
        ("Other content under the key", "form-1", r#"{"card":"card-01","minor":1}"#, (422, "KEY_REUSED")),
        ("A card that is not there", "form-2", r#"{"card":"card-99","minor":4500}"#, (422, "DEAD")),
        ("The same again", "form-2", r#"{"card":"card-99","minor":4500}"#, (422, "DEAD")),
        ("An empty key", "", SALE, (400, "KEY_REQUIRED")),
    ] {
        let (status, body) = post(&panel.address, key, body)?;
        ensure!((status, body.contains(expected.1)) == (expected.0, true), "{what}: {status} {body}");
        println!("{what}: {status} {}", expected.1);
    }
    drop(panel);

    killed_in_the_middle(db)?;
    let rows: (i64, i64) =
        Connection::open(db)?
            .query_row("SELECT count(*), count(DISTINCT key) FROM sale", [], |row| Ok((row.get(0)?, row.get(1)?)))?;
    ensure!(rows == (2, 2), "{} sales of {} keys", rows.0, rows.1);
    println!("Checked: 2 keys were sold under, 2 sales are in the table.");
    Ok(())
}

/// The process is killed while it is making a sale: the page gets no answer, and sends the sale again.
fn killed_in_the_middle(db: &Path) -> anyhow::Result<()> {
    let panel = Panel::start(db, 60_000)?;
    let address = panel.address.clone();
    let asked = std::thread::spawn(move || post(&address, "form-3", SALE));
    let look = Connection::open(db)?;
    let running = "SELECT count(*) FROM birkez_jobs WHERE key = 'form-3' AND state = 'running'";
    while look.query_row(running, [], |row| row.get::<_, i64>(0))? == 0 {
        ensure!(!asked.is_finished(), "it was to be in its middle");
        std::thread::sleep(Duration::from_millis(2));
    }
    drop(panel);
    ensure!(asked.join().is_ok_and(|answer| answer.is_err()), "a process that was killed has answered");

    let (status, body) = Panel::start(db, 0)?.post_until_answered("form-3", SALE)?;
    ensure!(status == 201, "after the kill: {status} {body}");
    println!("Killed in the middle of a sale, started again and sent again: {status} {}", body.trim());
    Ok(())
}
