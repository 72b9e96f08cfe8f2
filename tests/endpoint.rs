//! The example `endpoint`, run as a program, asked over HTTP and killed for real.
//!
//! What can go wrong: a repeat that sells a second time, or is answered otherwise than the first; a kill that loses a sale
//! that was answered, or leaves a key that can never be used again; an error in another shape.

mod common;

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{ChildStdin, Command, Stdio};
use std::sync::Mutex;
use std::time::{Duration, Instant};

use birkez::Store;
use birkez::testing::TempStore;
use serde_json::{Value, json};

use self::common::example::example;
use self::common::{PATIENCE, ask, rounds, run_sql, wait_until};

const SALE: &str = r#"{"card":"card-01","minor":4500}"#;
const OTHER: &str = r#"{"card":"card-01","minor":4501}"#;
const NO_CARD: &str = r#"{"card":"card-99","minor":4500}"#;

/// The endpoint in a process of its own; killed with SIGKILL when this is dropped.
struct Panel {
    process: std::process::Child,
    stdin: Option<ChildStdin>,
    said: BufReader<std::process::ChildStdout>,
    address: String,
}

impl Panel {
    fn start(db: &Path, slow: u32) -> Panel {
        let mut command = Command::new(example("endpoint"));
        command.arg("--db").arg(db).args(["--slow", &slow.to_string()]).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().unwrap();
        let (stdin, mut said) = (process.stdin.take(), BufReader::new(process.stdout.take().unwrap()));
        let mut line = String::new();
        said.read_line(&mut line).unwrap();
        let address = line.trim().strip_prefix("listening on http://").expect(&line).to_owned();
        Panel { process, stdin, said, address }
    }

    fn sell(&self, key: &str, body: &str) -> Option<Answer> {
        send(&self.address, &post(key, body))
    }

    /// As a page should: until there is an answer that stays.
    #[track_caller]
    fn sell_patiently(&self, key: &str, body: &str) -> Answer {
        let start = Instant::now();
        loop {
            let answer = self.sell(key, body).expect("an answer");
            if !matches!(answer.status, 409 | 503) {
                return answer;
            }
            assert!(start.elapsed() < PATIENCE, "no answer but {answer:?}");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Panel {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}

#[derive(Clone, Debug, PartialEq)]
struct Answer {
    status: u16,
    headers: HashMap<String, String>,
    body: String,
}

impl Answer {
    fn json(&self) -> Value {
        serde_json::from_str(&self.body).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }
}

fn post(key: &str, body: &str) -> Vec<u8> {
    request("POST /sales", &format!("Idempotency-Key: {key}\r\n"), body.as_bytes())
}

fn request(line: &str, headers: &str, body: &[u8]) -> Vec<u8> {
    let head = format!("{line} HTTP/1.1\r\nHost: panel\r\nContent-Length: {}\r\n{headers}\r\n", body.len());
    [head.as_bytes(), body].concat()
}

/// `None` if the connection ended without a whole answer.
fn send(address: &str, request: &[u8]) -> Option<Answer> {
    let mut stream = TcpStream::connect(address).ok()?;
    stream.set_read_timeout(Some(PATIENCE)).unwrap();
    stream.write_all(request).ok()?;
    let mut text = Vec::new();
    let read = stream.read_to_end(&mut text);
    let text = String::from_utf8(text).unwrap();
    let (head, body) = text.split_once("\r\n\r\n")?;
    let mut lines = head.lines();
    let status = lines.next()?.split(' ').nth(1)?.parse().ok()?;
    let headers: HashMap<_, _> =
        lines.map(|line| line.split_once(": ").unwrap()).map(|(a, b)| (a.to_owned(), b.to_owned())).collect();
    let whole = headers["content-length"].parse::<usize>().unwrap() == body.len();
    assert!(read.is_ok() || !whole, "a whole answer, and then {read:?}");
    whole.then(|| Answer { status, body: body.to_owned(), headers })
}

/// The answer is an error in the one shape, with this status and code.
#[track_caller]
fn is_error(answer: &Answer, status: u16, code: &str) {
    let json = answer.json();
    assert_eq!((answer.status, &json["code"]), (status, &json!(code)), "{answer:?}");
    let names: Vec<_> = json.as_object().unwrap().keys().map(String::as_str).collect();
    assert_eq!(names, ["code", "key", "kind", "message", "retryable"], "{answer:?}");
    assert!(json["message"].as_str().is_some_and(|text| !text.is_empty()), "{answer:?}");
    assert_eq!(answer.headers["content-type"], "application/json");
    assert_eq!(answer.headers.contains_key("retry-after"), json["retryable"] == true, "{answer:?}");
}

fn sales(db: &Path) -> i64 {
    ask(db, "SELECT count(*) FROM sale")
}

fn wait_until_running(db: &Path, key: &str) {
    let running = format!("SELECT count(*) FROM birkez_jobs WHERE key = '{key}' AND state = 'running'");
    wait_until("the sale is in its middle", || ask::<i64>(db, &running) == 1);
}

#[test]
fn twenty_parallel_duplicates_have_one_effect_and_one_answer() {
    let folder = TempStore::new().unwrap();
    let panel = Panel::start(folder.path(), 200);
    let not_yet = Mutex::new(Vec::new());
    let buyer = || {
        loop {
            let answer = panel.sell("form-1", SALE).expect("an answer");
            if answer.status != 409 {
                return answer;
            }
            std::thread::sleep(Duration::from_secs(answer.headers["retry-after"].parse().unwrap()));
            not_yet.lock().unwrap().push(answer);
        }
    };
    let answers: Vec<Answer> = std::thread::scope(|scope| {
        let buyers: Vec<_> = (0..20).map(|_| scope.spawn(buyer)).collect();
        buyers.into_iter().map(|buyer| buyer.join().unwrap()).collect()
    });
    assert_eq!((answers.len(), answers[0].status), (20, 201), "{:?}", answers[0]);
    assert!(answers.iter().all(|answer| *answer == answers[0]), "{answers:?}");
    assert_eq!(sales(folder.path()), 1);
    assert_eq!((&answers[0].json()["sale"], &answers[0].json()["minor"]), (&json!(1), &json!(4500)));
    let not_yet = not_yet.into_inner().unwrap();
    assert!(!not_yet.is_empty(), "no two of them met");
    not_yet.iter().for_each(|answer| is_error(answer, 409, "IN_PROGRESS"));
}

#[test]
fn while_a_sale_is_at_work_a_repeat_is_told_to_come_again_and_other_content_is_refused() {
    let folder = TempStore::new().unwrap();
    let panel = Panel::start(folder.path(), 500);
    std::thread::scope(|scope| {
        let first = scope.spawn(|| panel.sell("form-1", SALE).unwrap());
        wait_until_running(folder.path(), "form-1");
        let again = panel.sell("form-1", SALE).unwrap();
        is_error(&again, 409, "IN_PROGRESS");
        assert_eq!((&again.json()["kind"], &again.json()["key"]), (&json!("sale"), &json!("form-1")));
        is_error(&panel.sell("form-1", OTHER).unwrap(), 422, "KEY_REUSED");
        assert!(!first.is_finished(), "the sale was not at work any more");
        let first = first.join().unwrap();
        assert_eq!(first.status, 201);
        assert_eq!(panel.sell("form-1", SALE).unwrap(), first);
        is_error(&panel.sell("form-1", OTHER).unwrap(), 422, "KEY_REUSED");
    });
    assert_eq!(sales(folder.path()), 1);
}

#[test]
fn killed_in_the_middle_of_a_sale_and_sent_again_it_is_sold_once() {
    let folder = TempStore::new().unwrap();
    let panel = Panel::start(folder.path(), 60_000);
    let address = panel.address.clone();
    let asked = std::thread::spawn(move || send(&address, &post("form-1", SALE)));
    wait_until_running(folder.path(), "form-1");
    drop(panel);
    assert_eq!(asked.join().unwrap(), None, "a process that was killed has answered");
    assert_eq!(sales(folder.path()), 0);

    let panel = Panel::start(folder.path(), 0);
    is_error(&panel.sell("form-1", OTHER).unwrap(), 422, "KEY_REUSED");
    let answer = panel.sell("form-1", SALE).unwrap();
    assert_eq!(answer.status, 201, "the first repeat finds that the process is gone: {answer:?}");
    assert_eq!(panel.sell("form-1", SALE).unwrap(), answer);
    assert_eq!(sales(folder.path()), 1);
}

#[test]
fn killed_at_any_moment_no_answered_sale_is_lost_and_none_is_doubled() {
    let seed = std::env::var("BIRKEZ_SEED").ok().and_then(|text| text.parse().ok());
    let seed = seed.unwrap_or_else(|| fastrand::u64(..));
    println!("BIRKEZ_SEED={seed}");
    let mut chance = fastrand::Rng::with_seed(seed);
    let (rounds, mut cut) = (rounds("BIRKEZ_ENDPOINT_KILLS", 10), 0);
    let folder = TempStore::new().unwrap();
    for round in 0..rounds {
        let panel = Panel::start(folder.path(), 1);
        let address = panel.address.clone();
        let keys: Vec<String> = (0..8).map(|n| format!("{round}/{n}")).collect();
        // Each key twice, and each until there is no answer any more.
        let before: Vec<(&str, Answer)> = std::thread::scope(|scope| {
            let address = &address;
            let ask = |key| scope.spawn(move || Some((key, send(address, &post(key, SALE))?)));
            let asked: Vec<_> = keys.iter().chain(&keys).map(|key| ask(key)).collect();
            std::thread::sleep(Duration::from_micros(chance.u64(0..40_000)));
            drop(panel);
            asked.into_iter().filter_map(|one| one.join().unwrap()).collect()
        });
        let sold: Vec<_> = before.into_iter().filter(|(_, answer)| answer.status == 201).collect();
        cut += u32::from(sold.len() < keys.len());

        let panel = Panel::start(folder.path(), 1);
        let after: HashMap<&str, Answer> =
            keys.iter().map(|key| (key.as_str(), panel.sell_patiently(key, SALE))).collect();
        assert!(after.values().all(|answer| answer.status == 201), "round {round}: {after:?}");
        for (key, answer) in sold {
            assert_eq!(after[key], answer, "round {round}: {key} is answered otherwise than before the kill");
        }
        assert_eq!(sales(folder.path()), i64::from(round + 1) * 8, "round {round}");
    }
    println!("{cut} of {rounds} kills cut sales off");
    assert!(cut > 0, "no kill came in time");
}

#[test]
fn a_sale_that_was_refused_for_good_is_refused_in_the_same_words_for_ever() {
    let folder = TempStore::new().unwrap();
    let panel = Panel::start(folder.path(), 0);
    let first = panel.sell("form-1", NO_CARD).unwrap();
    is_error(&first, 422, "DEAD");
    assert!(first.json()["message"].as_str().unwrap().contains("there is no card \"card-99\""), "{first:?}");
    assert_eq!(panel.sell("form-1", NO_CARD).unwrap(), first);
    is_error(&panel.sell("form-1", SALE).unwrap(), 422, "KEY_REUSED");
    drop(panel);
    // What made it fail is mended; under this key it stays refused, and under another it is sold.
    run_sql(folder.path(), "INSERT INTO card VALUES ('card-99')");
    let panel = Panel::start(folder.path(), 0);
    assert_eq!(panel.sell("form-1", NO_CARD).unwrap(), first);
    assert_eq!(panel.sell("form-2", NO_CARD).unwrap().status, 201);
    assert_eq!(ask::<i64>(folder.path(), "SELECT count(*) FROM birkez_attempt"), 1, "it was tried again");
    assert_eq!(sales(folder.path()), 1);
}

#[test]
fn what_may_go_away_by_itself_is_no_end_and_the_repeat_sells() {
    let folder = TempStore::new().unwrap();
    let panel = Panel::start(folder.path(), 0);
    run_sql(folder.path(), "ALTER TABLE sale RENAME TO away");
    for _ in 0..2 {
        is_error(&panel.sell("form-1", SALE).unwrap(), 503, "FAILED");
    }
    run_sql(folder.path(), "ALTER TABLE away RENAME TO sale");
    assert_eq!(panel.sell("form-1", SALE).unwrap().status, 201);
    assert_eq!(sales(folder.path()), 1);
}

#[test]
fn each_request_that_cannot_be_one_is_refused_in_the_one_shape() {
    let folder = TempStore::new().unwrap();
    let panel = Panel::start(folder.path(), 0);
    let (key, long) = ("Idempotency-Key: form-1\r\n", "x".repeat(513));
    let big = format!(r#"{{"card":"{}","minor":1}}"#, "x".repeat(64 * 1024));
    let with = |key: &str| request("POST /sales", key, SALE.as_bytes());
    let body = |body: &[u8]| request("POST /sales", key, body);
    for (request, status, code) in [
        (with(""), 400, "KEY_REQUIRED"),
        (with("Idempotency-Key:\r\n"), 400, "KEY_REQUIRED"),
        (with(&format!("Idempotency-Key: {long}\r\n")), 400, "KEY_TOO_LONG"),
        (with("Idempotency-Key: förm\r\n"), 400, "KEY_INVALID"),
        (with(&format!("{key}{key}")), 400, "KEY_INVALID"),
        (body(b""), 400, "BODY_INVALID"),
        (body(b"card=card-01"), 400, "BODY_INVALID"),
        (body(b"{\"card\":\"card-01\",\"minor\":4500"), 400, "BODY_INVALID"),
        (body(b"[\"card-01\",4500.5]"), 400, "BODY_INVALID"),
        (body(br#"{"card":"card-01"}"#), 400, "BODY_INVALID"),
        (body(br#"{"card":"card-01","minor":"4500"}"#), 400, "BODY_INVALID"),
        (body(br#"{"card":"card-01","minor":0}"#), 400, "BODY_INVALID"),
        (body(br#"{"card":"card-01","minor":-1}"#), 400, "BODY_INVALID"),
        (body(br#"{"card":"card-01","minor":9223372036854775808}"#), 400, "BODY_INVALID"),
        (body(br#"{"card":"card-01","minor":1,"tip":1}"#), 400, "BODY_INVALID"),
        (body(b"{\"card\":\"\xff\",\"minor\":1}"), 400, "BODY_INVALID"),
        (body(big.as_bytes()), 413, "BODY_TOO_LARGE"),
        (request("GET /sales", key, b""), 405, "METHOD"),
        (request("POST /sale", key, SALE.as_bytes()), 404, "NOT_FOUND"),
    ] {
        let answer =
            send(&panel.address, &request).unwrap_or_else(|| panic!("no answer, where {status} {code} was due"));
        is_error(&answer, status, code);
    }
    assert_eq!(ask::<i64>(folder.path(), "SELECT count(*) FROM birkez_job"), 0, "a refused request left a job");
    // The longest key, and one that means something to somebody.
    for key in [&long[..512], "a b\"c'd;--/%00"] {
        assert_eq!(panel.sell(key, SALE).unwrap().status, 201);
    }
    assert_eq!(sales(folder.path()), 2);
}

#[test]
fn at_the_end_of_its_input_it_answers_what_is_at_work_and_signs_off() {
    let folder = TempStore::new().unwrap();
    let mut panel = Panel::start(folder.path(), 300);
    let address = panel.address.clone();
    let asked = std::thread::spawn(move || send(&address, &post("form-1", SALE)));
    wait_until_running(folder.path(), "form-1");
    drop(panel.stdin.take());
    assert_eq!(asked.join().unwrap().map(|answer| answer.status), Some(201));
    assert!(panel.process.wait().unwrap().success());
    let mut said = String::new();
    panel.said.read_to_string(&mut said).unwrap();
    assert_eq!(said, "stopped\n");
    let signed_off = "SELECT count(*) FROM birkez_runner WHERE ending = 'stopped'";
    assert_eq!(ask::<i64>(folder.path(), signed_off), 1, "it left without signing off");
    let store = Store::open(folder.path()).unwrap();
    assert_eq!(store.find("sale", "form-1").unwrap().unwrap().state, birkez::State::Done);
}

#[test]
fn it_drives_itself_and_finds_nothing_wrong() {
    let output = Command::new(example("endpoint")).arg("--drive").output().unwrap();
    assert!(output.status.success(), "{output:?}");
    let said = String::from_utf8(output.stdout).unwrap();
    assert!(said.starts_with("Sent 20 times at once, answered 20 times: 201 {"), "{said}");
    assert!(said.ends_with("Checked: 2 keys were sold under, 2 sales are in the table.\n"), "{said}");
}
