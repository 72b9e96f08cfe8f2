//! What the test files share: waiting for a condition, and child processes that can be talked to and killed.
//!
//! A child is the test binary itself, started with a role. Each file that uses children has one entry for them:
//!
//! ```ignore
//! #[test]
//! fn child_role() {
//!     match common::role().as_deref() {
//!         Some("enqueue") => …,
//!         Some(other) => panic!("no role {other}"),
//!         None => {}
//!     }
//! }
//! ```
#![allow(dead_code, reason = "each test file uses a part of it")]

pub mod app;
pub mod clocks;
pub mod copies;
pub mod example;
pub mod receiver;

use std::ffi::OsStr;
use std::fmt::Display;
use std::fs::OpenOptions;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{ChildStdin, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use birkez::rusqlite::types::{FromSql, Value};
use birkez::rusqlite::{Connection, Row};

const ROLE: &str = "BIRKEZ_TEST_ROLE";
/// What the test binary is told to run in a child.
const CHILD: [&str; 4] = ["child_role", "--exact", "--nocapture", "--test-threads=1"];
/// Marks what a child says among what the test harness prints.
const MARK: char = '@';
/// A condition or a child that takes longer than this never comes.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// Waits until `condition` holds; panics with `what` if it does not within [`PATIENCE`].
#[track_caller]
pub fn wait_until(what: &str, condition: impl FnMut() -> bool) {
    let took = wait_within(PATIENCE, condition);
    assert!(took.is_some(), "waited {PATIENCE:?} in vain: {what}");
}

/// Waits until `condition` holds, for at most `limit`; answers how long that took.
pub fn wait_within(limit: Duration, mut condition: impl FnMut() -> bool) -> Option<Duration> {
    let start = Instant::now();
    while !condition() {
        if start.elapsed() > limit {
            return None;
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    Some(start.elapsed())
}

/// A count that long runs raise by an environment variable.
pub fn rounds(variable: &str, default: u32) -> u32 {
    std::env::var(variable).ok().and_then(|text| text.parse().ok()).unwrap_or(default)
}

/// What really happened, in order: a file that any number of threads and processes append lines to.
#[derive(Clone, Debug)]
pub struct Log(PathBuf);

impl Log {
    /// The log beside a database file.
    pub fn beside(database: &Path) -> Log {
        Log(database.with_extension("log"))
    }

    /// Appends a line, whole or not at all.
    pub fn note(&self, line: impl Display) {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0).unwrap();
        file.write_all(format!("{line}\n").as_bytes()).unwrap();
    }

    /// All lines so far.
    pub fn lines(&self) -> Vec<String> {
        std::fs::read_to_string(&self.0).unwrap_or_default().lines().map(str::to_owned).collect()
    }

    /// How many lines begin with `start`.
    pub fn count(&self, start: &str) -> usize {
        self.lines().iter().filter(|line| line.starts_with(start)).count()
    }
}

/// One value, asked of the file with plain SQL on a connection of its own.
#[track_caller]
pub fn ask<T: FromSql>(database: &Path, sql: &str) -> T {
    let asked = Connection::open(database).and_then(|connection| connection.query_row(sql, [], |row| row.get(0)));
    asked.unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// All rows of a question asked with plain SQL, each written out with its types.
#[track_caller]
pub fn rows(database: &Path, sql: &str) -> Vec<String> {
    let connection = Connection::open(database).unwrap();
    let mut statement = connection.prepare(sql).unwrap_or_else(|error| panic!("{sql}: {error}"));
    let columns = statement.column_count();
    let write = |row: &Row<'_>| {
        let values: Result<Vec<Value>, _> = (0..columns).map(|at| row.get(at)).collect();
        Ok(format!("{:?}", values?))
    };
    statement.query_map([], write).unwrap().collect::<Result<_, _>>().unwrap()
}

/// The finished jobs that are counted are those that are there.
#[track_caller]
pub fn counts_equal_the_rows(path: &Path) {
    let differ = "SELECT count(*) FROM (
        SELECT kind, state, count(*) AS n FROM birkez_job WHERE state > 1 GROUP BY kind, state
        EXCEPT SELECT kind, state, n FROM birkez_count WHERE n <> 0)";
    assert_eq!(ask::<i64>(path, differ), 0, "the counts differ from the rows");
    let more = "SELECT count(*) FROM (
        SELECT kind, state, n FROM birkez_count WHERE n <> 0
        EXCEPT SELECT kind, state, count(*) AS n FROM birkez_job WHERE state > 1 GROUP BY kind, state)";
    assert_eq!(ask::<i64>(path, more), 0, "the counts differ from the rows");
}

/// Statements for the file, on a connection of its own.
#[track_caller]
pub fn run_sql(database: &Path, sql: &str) {
    let ran = Connection::open(database).and_then(|connection| connection.execute_batch(sql));
    ran.unwrap_or_else(|error| panic!("{sql}: {error}"));
}

/// Sends a signal by its name, such as `STOP`.
pub fn signal(process: u32, name: &str) {
    let sent = Command::new("kill").arg(format!("-{name}")).arg(process.to_string()).status().unwrap();
    assert!(sent.success(), "kill -{name} {process}: {sent}");
}

/// The role this process was started in, if it is a child.
pub fn role() -> Option<String> {
    std::env::var(ROLE).ok()
}

/// A command that starts this test binary in `role` as its last arguments say, such as a shell with a limit.
pub fn as_child<V: AsRef<OsStr>>(mut command: Command, role: &str, variables: &[(&str, V)]) -> Command {
    command.arg(std::env::current_exe().unwrap()).args(CHILD);
    command.env(ROLE, role).envs(variables.iter().map(|(name, value)| (name, value)));
    command
}

/// In a child: a variable it was given.
#[track_caller]
pub fn given(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("the child was not given {name}"))
}

/// In a child: says a line to the parent.
pub fn tell(text: impl std::fmt::Display) {
    // The harness leaves its own line open.
    println!("\n{MARK}{text}");
}

/// In a child: waits until the parent says [`Child::go`]. A parent that is gone ends the child.
pub fn await_go() {
    let mut line = String::new();
    if std::io::stdin().read_line(&mut line).unwrap_or(0) == 0 {
        std::process::exit(3);
    }
}

/// A child process; killed when this is dropped.
pub struct Child {
    process: std::process::Child,
    lines: Receiver<String>,
    stdin: Option<ChildStdin>,
}

impl Child {
    /// Starts this test binary in `role`, with variables that it reads with [`given`].
    pub fn start<V: AsRef<OsStr>>(role: &str, variables: &[(&str, V)]) -> Child {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(CHILD).env(ROLE, role).envs(variables.iter().map(|(name, value)| (name, value)));
        Child::run(command)
    }

    /// Starts a command whose lines are heard and whose input is held.
    pub fn run(mut command: Command) -> Child {
        let mut process = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
        let stdin = process.stdin.take();
        let stdout = BufReader::new(process.stdout.take().unwrap());
        let (send, lines) = channel();
        std::thread::spawn(move || {
            for line in stdout.lines().map_while(Result::ok) {
                let said = line.find(MARK).map(|at| line[at + MARK.len_utf8()..].to_owned());
                if said.is_some_and(|said| send.send(said).is_err()) {
                    break;
                }
            }
        });
        Child { process, lines, stdin }
    }

    /// The next line it says; `None` when it has ended.
    #[track_caller]
    pub fn hear(&mut self) -> Option<String> {
        match self.lines.recv_timeout(PATIENCE) {
            Ok(line) => Some(line),
            Err(RecvTimeoutError::Disconnected) => None,
            Err(RecvTimeoutError::Timeout) => panic!("the child has said nothing for {PATIENCE:?}"),
        }
    }

    /// Hears this line next.
    #[track_caller]
    pub fn expect(&mut self, line: &str) {
        assert_eq!(self.hear().as_deref(), Some(line), "what the child said next");
    }

    /// Lets a child go on that waits in [`await_go`].
    pub fn go(&mut self) {
        let stdin = self.stdin.as_mut().unwrap();
        stdin.write_all(b"\n").and_then(|()| stdin.flush()).unwrap();
    }

    /// Its process number.
    pub fn id(&self) -> u32 {
        self.process.id()
    }

    /// Whether it has ended.
    pub fn has_ended(&mut self) -> bool {
        self.process.try_wait().unwrap().is_some()
    }

    /// Ends it with SIGKILL and waits until it is gone; answers what it had said and was not heard.
    pub fn kill(mut self) -> Vec<String> {
        let _ = self.process.kill();
        self.process.wait().unwrap();
        self.lines.iter().collect()
    }

    /// Waits for its end, which must be a success; answers what it had said and was not heard.
    #[track_caller]
    pub fn finish(mut self) -> Vec<String> {
        let mut rest = Vec::new();
        while let Some(line) = self.hear() {
            rest.push(line);
        }
        let status = self.process.wait().unwrap();
        assert!(status.success(), "the child ended with {status}, last said {:?}", rest.last());
        rest
    }
}

impl Drop for Child {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
