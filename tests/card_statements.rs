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

#[path = "card_statements/changed.rs"]
mod changed;
#[path = "card_statements/desk.rs"]
mod desk;
#[path = "card_statements/input.rs"]
mod input;
#[path = "card_statements/refund.rs"]
mod refund;

use std::path::Path;
use std::time::{Duration, Instant};

use birkez::rusqlite::Connection;

use self::common::{PATIENCE, ask, rounds, wait_until};
use self::desk::{Desk, data, dump};

const THROUGH: &str = "2026-11-30";

/// Rows that were not posted by their own statement's job, in the night that it closed.
const MISPLACED: &str = "
SELECT count(*) FROM ledger LEFT JOIN posting USING (purchase_id, instalment) LEFT JOIN birkez_jobs AS job ON job.id = job_id
WHERE job.key IS NOT card_id || '/' || statement_date OR posted_at IS NOT statement_date || 'T00:00:00Z'";

#[test]
fn the_ledger_is_the_given_one_and_a_second_run_writes_nothing_and_says_so() {
    let desk = Desk::new(&data("purchases.csv"));
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
    assert_eq!(ask::<i64>(desk.db(), MISPLACED), 0, "rows whose job or time is not theirs");
}

#[test]
fn a_run_that_is_killed_at_any_moment_and_started_again_writes_each_row_once() {
    let kills = rounds("BIRKEZ_STATEMENT_KILLS", 20);
    let mut chance = chance();
    let mut moments = (1..=kills).map(|round| (round, chance.fork()));
    let halves = [moments.by_ref().take(kills as usize / 2).collect(), moments.collect::<Vec<_>>()];
    let partly: u32 = std::thread::scope(|scope| {
        let running =
            halves.map(|half: Vec<_>| scope.spawn(|| half.into_iter().map(killed_and_restarted).sum::<u32>()));
        running.into_iter().map(|half| half.join().unwrap()).sum()
    });
    println!("{partly} of {kills} kills found the ledger partly written");
    assert!(partly * 4 >= kills * 3, "only {partly} of {kills} kills found the ledger partly written");
}

/// One round; answers 1 if the kill found the ledger partly written.
fn killed_and_restarted((round, mut chance): (u32, fastrand::Rng)) -> u32 {
    let expected = data("ledger_through_2026-11-30.csv");
    let total = expected.lines().count() as i64 - 1;
    let desk = Desk::new(&data("purchases.csv"));
    // The row to wait for fits any machine's speed. Half of the kills follow at once, close behind a commit; the others
    // anywhere in what comes next.
    let (row, pause) = (chance.i64(0..total), chance.bool().then(|| Duration::from_micros(chance.u64(0..5_000))));
    let found = kill_at(&desk, row, pause);
    desk.post(&["--through", THROUGH]);
    assert!(desk.ledger() == expected, "round {round}, killed at row {found} of {total}: another ledger");
    check_once(desk.db(), total);
    assert_eq!(ask::<i64>(desk.db(), MISPLACED), 0, "round {round}: rows whose job or time is not theirs");
    u32::from(0 < found && found < total)
}

/// Random numbers whose seed is printed, and can be given.
fn chance() -> fastrand::Rng {
    let given = std::env::var("BIRKEZ_SEED").ok().and_then(|text| text.parse().ok());
    let seed = given.unwrap_or_else(|| fastrand::u64(..));
    println!("BIRKEZ_SEED={seed}");
    fastrand::Rng::with_seed(seed)
}

/// Kills a run some time after it has written `row` rows; answers how many are in the ledger then.
fn kill_at(desk: &Desk, row: i64, pause: Option<Duration>) -> i64 {
    let mut run = desk.command(&["--through", THROUGH]).spawn().unwrap();
    wait_until("the file is created", || desk.db().exists());
    let reader = Connection::open(desk.db()).unwrap();
    // There may be no table yet. The greatest rowid is read at once, where a count would walk all rows.
    let rows = || reader.query_row("SELECT max(rowid) FROM ledger", [], |row| row.get(0)).unwrap_or(0);
    let start = Instant::now();
    while rows() < row && run.try_wait().unwrap().is_none() {
        assert!(start.elapsed() < PATIENCE, "the run stands still");
        std::thread::sleep(Duration::from_micros(100));
    }
    pause.into_iter().for_each(std::thread::sleep);
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
    let shared = "SELECT count(*) FROM (SELECT 1 FROM ledger JOIN posting USING (purchase_id, instalment)
         GROUP BY card_id, statement_date HAVING count(DISTINCT job_id) > 1)";
    assert_eq!(ask::<i64>(db, shared), 0, "statements that two jobs wrote");
}

#[test]
fn two_runs_on_one_file_at_once_write_each_row_once() {
    let desk = Desk::new(&data("purchases.csv"));
    let runs: Vec<_> = (0..2).map(|_| desk.command(&["--through", THROUGH]).spawn().unwrap()).collect();
    for run in runs {
        let output = run.wait_with_output().unwrap();
        assert!(output.status.success(), "{output:?}");
    }
    assert_eq!(desk.ledger(), data("ledger_through_2026-11-30.csv"));
    check_once(desk.db(), 3069);
}
