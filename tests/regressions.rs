//! Faults that were found by trying to break the core (issue 2), each with the right value.

mod common;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use birkez::rusqlite::Connection;
use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{Context, Job, RetryPolicy, Runner, Schedule, Standing, State, Store};
use common::wait_until;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Piece {
    n: i128,
    high: bool,
}

impl Job for Piece {
    const KIND: &'static str = "piece";
    const FORMER_KINDS: &'static [&'static str] = &["piece"];
    type Output = ();
    fn key(&self) -> String {
        format!("{}{}", if self.high { "high" } else { "low" }, self.n)
    }
    fn priority(&self) -> i32 {
        if self.high { 10 } else { 0 }
    }
}

fn pieces(store: &Store, high: i128, low: i128) {
    let all: Vec<_> =
        (0..high).map(|n| Piece { n, high: true }).chain((0..low).map(|n| Piece { n, high: false })).collect();
    let _ = store.enqueue_all(&all).unwrap();
}

/// At which places among all starts the low ones were.
fn low_places(starts: &[bool]) -> Vec<usize> {
    starts.iter().enumerate().filter(|(_, high)| !**high).map(|(at, _)| at).collect()
}

#[test]
fn r2_a_low_priority_gets_a_turn_however_jobs_are_claimed_ahead() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    pieces(&store, 400, 5);
    let starts = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&starts);
    let runner = Runner::builder(&store).workers(1).handle(move |piece: Piece, _: &Context| {
        noted.lock().unwrap().push(piece.high);
        std::thread::sleep(Duration::from_millis(2));
        Ok(())
    });
    let runner = runner.start().unwrap();
    wait_until("all have run", || starts.lock().unwrap().len() == 405);
    runner.stop(Duration::from_secs(5)).unwrap();
    let places = low_places(&starts.lock().unwrap());
    // 16 in front of each, and what had been claimed ahead when its turn came.
    assert!(places[4] < 5 * 16 + 40, "{places:?}");
}

#[test]
fn r2_a_low_priority_gets_a_turn_in_a_drain_of_claims_in_doubling_numbers() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    pieces(&store, 2_000, 20);
    let starts = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&starts);
    let drain = Drain::new(Runner::builder(&store).handle(move |piece: Piece, _: &Context| {
        noted.lock().unwrap().push(piece.high);
        Ok(())
    }))
    .unwrap();
    drain.drain().unwrap();
    let places = low_places(&starts.lock().unwrap());
    assert!(places[19] < 1_000, "{places:?}");
}

#[derive(Serialize, Deserialize)]
struct Hang;

impl Job for Hang {
    const KIND: &'static str = "hang";
    type Output = ();
    fn key(&self) -> String {
        "one".into()
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().base(Duration::ZERO)
    }
    fn timeout() -> Option<Duration> {
        Some(Duration::from_millis(100))
    }
}

/// Lives as long as an attempt does.
struct Running<'a>(&'a AtomicUsize);

impl<'a> Running<'a> {
    fn begin(now: &'a AtomicUsize, most: &AtomicUsize) -> Running<'a> {
        most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
        Running(now)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}

#[test]
fn r2_no_runner_of_a_process_retries_a_job_while_an_attempt_of_it_still_runs_in_another() {
    let folder = TempStore::new().unwrap();
    let (one, other) = (folder.open().unwrap(), folder.open().unwrap());
    let (now, most, starts) =
        (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let start = |store: &Store| {
        let (now, most, starts) = (Arc::clone(&now), Arc::clone(&most), Arc::clone(&starts));
        let handler = move |_: Hang, _: &Context| {
            starts.fetch_add(1, Ordering::SeqCst);
            let _running = Running::begin(&now, &most);
            std::thread::sleep(Duration::from_millis(400));
            Ok(())
        };
        Runner::builder(store).workers(2).grace(Duration::ZERO).handle(handler).start().unwrap()
    };
    let runners = [start(&one), start(&one), start(&other)];
    let _ = one.enqueue(&Hang).unwrap();
    wait_until("it was retried", || starts.load(Ordering::SeqCst) >= 4);
    assert_eq!(most.load(Ordering::SeqCst), 1);
    drop(runners);
}

#[derive(Serialize, Deserialize)]
struct Stuck(u32);

impl Job for Stuck {
    const KIND: &'static str = "stuck";
    type Output = ();
    fn key(&self) -> String {
        self.0.to_string()
    }
    fn timeout() -> Option<Duration> {
        Some(Duration::from_millis(150))
    }
}

#[test]
fn r2_no_more_threads_are_given_up_than_there_are_workers() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let over = Arc::new(AtomicBool::new(false));
    let wait = Arc::clone(&over);
    let handler = move |_: Stuck, _: &Context| {
        while !wait.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    };
    let runner = Runner::builder(&store).workers(4).handle(handler).start().unwrap();
    for n in 0..12 {
        let _ = store.enqueue(&Stuck(n)).unwrap();
        std::thread::sleep(Duration::from_millis(40));
    }
    wait_until("they hang", || runner.given_up() == 4);
    assert_eq!(runner.closed_kinds(), ["stuck"]);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!((runner.given_up(), runner.running()), (4, 0));
    over.store(true, Ordering::SeqCst);
    wait_until("the kind opens and the rest is done", || {
        store.finished().unwrap().iter().any(|(_, state, n)| *state == State::Done && *n >= 8)
    });
    runner.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn r2_what_has_held_the_writer_lock_for_over_five_seconds_is_not_stored() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    store.write(|tx| Ok(tx.execute_batch("CREATE TABLE note (n)")?)).unwrap();
    let late = store.write(|tx| {
        tx.execute("INSERT INTO note VALUES (1)", [])?;
        std::thread::sleep(Duration::from_millis(5_100));
        Ok(tx.execute("INSERT INTO note VALUES (2)", [])?)
    });
    assert_eq!(late.unwrap_err().code(), "INTERRUPTED");
    let file = Connection::open(folder.path()).unwrap();
    assert_eq!(file.query_row("SELECT count(*) FROM note", [], |row| row.get::<_, i64>(0)).unwrap(), 0);
    store.write(|tx| Ok(tx.execute("INSERT INTO note VALUES (3)", [])?)).unwrap();
}

#[test]
fn r2_whole_numbers_beyond_64_bits_are_told_apart() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();

    #[derive(Serialize, Deserialize)]
    struct Wide(i128);
    impl Job for Wide {
        const KIND: &'static str = "wide";
        type Output = ();
        fn key(&self) -> String {
            "w".into()
        }
    }
    assert!(store.enqueue(&Wide(i128::MAX)).unwrap().fresh);
    assert!(!store.enqueue(&Wide(i128::MAX)).unwrap().fresh);
    assert_eq!(store.enqueue(&Wide(i128::MAX - 1)).unwrap_err().code(), "KEY_REUSED");
}

/// Panics when it is dropped, and when it is shown.
struct Bomb;

impl Drop for Bomb {
    fn drop(&mut self) {
        if !std::thread::panicking() {
            panic!("the bomb's drop");
        }
    }
}

impl std::fmt::Debug for Bomb {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("the bomb's debug")
    }
}

#[derive(Debug)]
struct Unshowable;

impl std::fmt::Display for Unshowable {
    fn fmt(&self, _: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        panic!("the error's display")
    }
}

impl std::error::Error for Unshowable {}

#[test]
fn r2_a_panic_outside_the_handler_costs_the_attempt_and_not_the_worker() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let handler = |piece: Piece, _: &Context| match piece.n {
        0 => std::panic::panic_any(Bomb),
        1 => Err(anyhow::Error::new(Unshowable)),
        _ => Ok(()),
    };
    let runner = Runner::builder(&store).workers(1).handle(handler).start().unwrap();
    pieces(&store, 3, 0);
    wait_until("the last is done", || store.find("piece", "high2").unwrap().unwrap().state == State::Done);
    for key in ["high0", "high1"] {
        let job = store.find("piece", key).unwrap().unwrap();
        assert_eq!((job.state, job.attempts), (State::Waiting, 1), "{job:?}");
    }
    runner.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn r2_once_puts_an_attempt_on_record_whatever_panics_after_it() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let piece = Piece { n: 7, high: false };
    let failed = store.once(&piece, |_| Err(anyhow::Error::new(Unshowable))).unwrap_err();
    assert_eq!(failed.code(), "FAILED");
    assert!(catch_unwind(AssertUnwindSafe(|| store.once(&piece, |_| panic!("now")))).is_err());
    assert_eq!(store.find("piece", "low7").unwrap().unwrap().attempts, 2);
    store.once(&piece, |_| Ok(())).unwrap();
}

#[derive(Serialize)]
struct Unreadable;

impl<'de> Deserialize<'de> for Unreadable {
    fn deserialize<D: serde::Deserializer<'de>>(_: D) -> Result<Self, D::Error> {
        panic!("the output's deserialiser")
    }
}

#[test]
fn r2_an_output_whose_deserialiser_panics_is_unreadable() {
    #[derive(Serialize, Deserialize)]
    struct Make;
    impl Job for Make {
        const KIND: &'static str = "make";
        type Output = Unreadable;
        fn key(&self) -> String {
            "m".into()
        }
    }
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    store.once(&Make, |_| Ok(Unreadable)).unwrap();
    assert_eq!(store.once(&Make, |_| unreachable!("it is done")).err().unwrap().code(), "RESULT_UNREADABLE");
    let Standing::Done(Err(error)) = store.enqueue(&Make).unwrap().standing else { panic!("it is done") };
    assert_eq!(error.code(), "RESULT_UNREADABLE");
}

#[test]
fn r2_a_clock_that_is_set_forward_wakes_the_calendar_of_a_running_runner() {
    let folder = TempStore::new().unwrap();
    let clock = ManualClock::at("2026-05-01T00:30:00Z".parse().unwrap());
    let store = folder.builder().clock(clock.clone()).open().unwrap();
    let hourly = Schedule::cron("hourly", "0 * * * *").unwrap().zone("UTC").unwrap();
    let runner = Runner::builder(&store)
        .handle(|_: Piece, _: &Context| Ok(()))
        .schedule(hourly, |_| Some(Piece { n: 1, high: false }))
        .start()
        .unwrap();
    clock.advance(Duration::from_secs(3600));
    let looked = common::wait_within(Duration::from_secs(10), || store.find("piece", "low1").unwrap().is_some());
    assert!(looked.is_some());
    runner.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn r2_the_longest_settings_are_as_good_as_for_ever() {
    let folder = TempStore::new().unwrap();
    let store = folder.builder().busy_deadline(Duration::MAX).lease(Duration::MAX).open().unwrap();
    let runner = Runner::builder(&store).grace(Duration::MAX).look_every(Some(Duration::MAX));
    let runner = runner.handle(|_: Piece, _: &Context| Ok(())).start().unwrap();
    pieces(&store, 1, 0);
    wait_until("it is done", || store.find("piece", "high0").unwrap().unwrap().state == State::Done);
    drop(runner);
}

#[test]
fn r2_a_transaction_of_another_file_is_named_as_such() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let mut other = Connection::open_in_memory().unwrap();
    let tx = other.transaction().unwrap();
    let error = store.enqueue_in(&tx, &Piece { n: 1, high: false }).unwrap_err();
    assert_eq!(error.code(), "OTHER_FILE");
}

#[test]
fn r2_an_error_as_json_tells_its_cause() {
    let error = Store::open("/nowhere/at/all.db").unwrap_err();
    let json = serde_json::to_value(&error).unwrap();
    assert!(json["message"].as_str().unwrap().contains("No such file"), "{json}");
}
