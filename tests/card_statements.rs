//! The example `card_statements`, run as a program on real files and killed for real.
//!
//! What can go wrong: a row lost or doubled by a kill; a wrong statement date or remainder; purchases that were changed
//! behind the ledger's back and go unnoticed, or half written; a bad row found only after others were written.

mod common;

#[path = "../examples/card_statements/book.rs"]
#[allow(dead_code, reason = "its own tests run here; the program uses the rest")]
mod book;
#[path = "../examples/card_statements/rules.rs"]
#[allow(dead_code, reason = "its own tests run here; the program uses the rest")]
mod rules;

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, SystemTime};

use birkez::rusqlite::Connection;
use birkez::rusqlite::types::Value as Cell;
use birkez::testing::TempStore;
use chrono::{Datelike, NaiveDate, TimeDelta};
use serde_json::Value;

use self::common::{PATIENCE, ask, rounds, wait_until};

const THROUGH: &str = "2026-11-30";
const HEADER: &str = "purchase_id,card_id,statement_day,purchase_date,merchant,total_minor,instalments,currency";

/// A folder of its own, with a database and purchases in it.
struct Desk {
    folder: TempStore,
}

impl Desk {
    fn new(purchases: &str) -> Desk {
        let desk = Desk { folder: TempStore::new().unwrap() };
        desk.write(purchases);
        desk
    }

    fn db(&self) -> &Path {
        self.folder.path()
    }

    fn csv(&self) -> PathBuf {
        self.db().with_file_name("purchases.csv")
    }

    fn write(&self, purchases: impl AsRef<[u8]>) {
        std::fs::write(self.csv(), purchases).unwrap();
    }

    fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.arg("--db").arg(self.db()).arg("--purchases").arg(self.csv()).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    fn run(&self, more: &[&str]) -> Output {
        self.command(more).output().unwrap()
    }

    /// Runs it to a good end; answers what it printed.
    #[track_caller]
    fn post(&self, more: &[&str]) -> String {
        let output = self.run(more);
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    }

    /// Runs it to a refusal that changes nothing in the file; answers what it said.
    #[track_caller]
    fn refused(&self, more: &[&str]) -> String {
        let before = self.db().exists().then(|| dump(self.db()));
        let output = self.run(more);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(self.db().exists().then(|| dump(self.db())), before, "a refused run wrote something");
        text(&output.stderr) + &text(&output.stdout)
    }

    fn ledger(&self) -> String {
        ledger(self.db())
    }
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

fn data(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read_to_string(path).unwrap().replace("\r\n", "\n")
}

fn given_purchases() -> String {
    data("purchases.csv")
}

/// The built example. `cargo test` has built it; a run of this file alone may find it missing or old.
fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| {
        let test = std::env::current_exe().unwrap();
        let profile = test.ancestors().nth(2).unwrap();
        let name = format!("card_statements{}", std::env::consts::EXE_SUFFIX);
        let program = profile.join("examples").join(name);
        let built = std::fs::metadata(&program).and_then(|found| found.modified()).ok();
        if built.is_none_or(|built| built < newest_source()) {
            let mut cargo = Command::new(env!("CARGO"));
            cargo.args(["build", "--example", "card_statements", "--target-dir"]).arg(profile.parent().unwrap());
            cargo.args(profile.ends_with("release").then_some("--release"));
            cargo.current_dir(env!("CARGO_MANIFEST_DIR"));
            assert!(cargo.status().unwrap().success(), "the example does not build");
        }
        program
    })
}

fn newest_source() -> SystemTime {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut folders = vec![root.join("src"), root.join("examples/card_statements")];
    let mut newest = SystemTime::UNIX_EPOCH;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(Result::unwrap) {
            match entry.file_type().unwrap().is_dir() {
                true => folders.push(entry.path()),
                false => newest = newest.max(entry.metadata().unwrap().modified().unwrap()),
            }
        }
    }
    newest
}

/// The ledger by plain SQL, as the given file has it.
fn ledger(db: &Path) -> String {
    let connection = Connection::open(db).unwrap();
    let ask = "SELECT card_id, statement_date, purchase_id, instalment, amount_minor, currency FROM ledger
               ORDER BY card_id, statement_date, purchase_id, instalment";
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer
        .write_record(["card_id", "statement_date", "purchase_id", "instalment", "amount_minor", "currency"])
        .unwrap();
    let mut statement = connection.prepare(ask).unwrap();
    let mut rows = statement.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let cell = |at| match row.get(at).unwrap() {
            Cell::Text(text) => text,
            Cell::Integer(number) => number.to_string(),
            other => panic!("{other:?} in the ledger"),
        };
        writer.write_record((0..6).map(cell)).unwrap();
    }
    String::from_utf8(writer.into_inner().unwrap()).unwrap()
}

/// Every row of every table. SQLite's own counter of ids is left out: a repeat that changes nothing may raise it.
fn dump(db: &Path) -> Vec<String> {
    let connection = Connection::open(db).unwrap();
    let ask = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'sqlite_sequence' ORDER BY name";
    let mut statement = connection.prepare(ask).unwrap();
    let tables: Vec<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let mut all = Vec::new();
    for table in tables {
        let mut statement = connection.prepare(&format!("SELECT * FROM \"{table}\"")).unwrap();
        let width = statement.column_count();
        let mut rows = statement.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let cells: Vec<Cell> = (0..width).map(|at| row.get(at).unwrap()).collect();
            all.push(format!("{table} {cells:?}"));
        }
    }
    all.sort();
    all
}

#[test]
fn the_ledger_is_the_given_one_and_a_second_run_writes_nothing_and_says_so() {
    let desk = Desk::new(&given_purchases());
    let said = desk.post(&["--through", THROUGH]);
    assert!(said.starts_with("Posted 3,069 rows in 276 statements through 2026-11-30"), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
    assert_eq!(desk.ledger(), data("ledger_through_2026-11-30.csv"));

    let before = dump(desk.db());
    for through in [THROUGH, "2026-11-01", "2024-01-01"] {
        let said = desk.post(&["--through", through]);
        assert!(said.starts_with("Nothing to write: every statement through 2026-11-30 is posted"), "{said}");
        assert_eq!(dump(desk.db()), before, "a second run wrote something");
    }
    let wrong = "SELECT count(*) FROM ledger LEFT JOIN posting USING (purchase_id, instalment)
                 LEFT JOIN birkez_jobs AS job ON job.id = job_id
                 WHERE job.key IS NOT card_id || '/' || statement_date OR posted_at NOT LIKE statement_date || 'T00:00:00Z'";
    assert_eq!(ask::<i64>(desk.db(), wrong), 0, "rows whose job or time is not theirs");
}

#[test]
fn a_run_that_is_killed_at_any_moment_and_started_again_writes_each_row_once() {
    let seed =
        std::env::var("BIRKEZ_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    let kills = rounds("BIRKEZ_STATEMENT_KILLS", 20);
    println!("seed {seed}");
    let mut chance = fastrand::Rng::with_seed(seed);
    let (purchases, expected) = (given_purchases(), data("ledger_through_2026-11-30.csv"));
    let total = expected.lines().count() as i64 - 1;
    let mut partly = 0;
    for round in 1..=kills {
        let desk = Desk::new(&purchases);
        // The row to wait for fits any machine's speed; the pause after it lets the kill fall anywhere in what follows.
        let (row, pause) = (chance.i64(0..total), Duration::from_micros(chance.u64(0..5_000)));
        let found = kill_at(&desk, row, pause);
        partly += u32::from(0 < found && found < total);
        desk.post(&["--through", THROUGH]);
        assert!(desk.ledger() == expected, "round {round}, killed at row {found} of {total}: another ledger");
        check_once(desk.db(), total);
    }
    println!("{partly} of {kills} kills found the ledger partly written");
    assert!(partly * 4 >= kills * 3, "only {partly} of {kills} kills found the ledger partly written");
}

/// Kills a run some time after it has written `row` rows; answers how many are in the ledger then.
fn kill_at(desk: &Desk, row: i64, pause: Duration) -> i64 {
    let mut run = desk.command(&["--through", THROUGH]).spawn().unwrap();
    wait_until("the file is created", || desk.db().exists());
    let mut reader = None;
    let mut rows = || {
        let reader = reader.get_or_insert_with(|| Connection::open(desk.db()).unwrap());
        reader.query_row("SELECT count(*) FROM ledger", [], |row| row.get(0)).unwrap_or(0)
    };
    let start = std::time::Instant::now();
    while rows() < row && run.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < PATIENCE, "the run stands still");
        std::thread::sleep(Duration::from_micros(200));
    }
    std::thread::sleep(pause);
    run.kill().unwrap();
    run.wait().unwrap();
    rows()
}

/// Each statement was posted by one job and in one go, and no job ever failed: had a row been written twice, the ledger's
/// own constraint would have failed one.
#[track_caller]
fn check_once(db: &Path, total: i64) {
    let failed = "SELECT count(*) FROM birkez_attempt WHERE class NOT IN ('crashed', 'interrupted')";
    assert_eq!(ask::<i64>(db, failed), 0, "attempts that failed");
    assert_eq!(ask::<i64>(db, "SELECT count(*) FROM birkez_jobs WHERE state <> 'done'"), 0, "jobs that are not done");
    assert_eq!(ask::<i64>(db, "SELECT sum(result) FROM birkez_jobs"), total, "rows that the jobs say they wrote");
    assert_eq!(ask::<i64>(db, "SELECT count(*) FROM posting"), total);
    let shared =
        "SELECT count(*) FROM (SELECT card_id, statement_date FROM ledger JOIN posting USING (purchase_id, instalment)
                  GROUP BY card_id, statement_date HAVING count(DISTINCT job_id) > 1)";
    assert_eq!(ask::<i64>(db, shared), 0, "statements that two jobs wrote");
}

#[test]
fn two_runs_on_one_file_at_once_write_each_row_once() {
    let desk = Desk::new(&given_purchases());
    let runs: Vec<_> = (0..2).map(|_| desk.command(&["--through", THROUGH]).spawn().unwrap()).collect();
    for run in runs {
        let output = run.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(desk.ledger(), data("ledger_through_2026-11-30.csv"));
    check_once(desk.db(), 3069);
}
