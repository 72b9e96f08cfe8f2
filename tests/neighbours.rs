//! Other connections live on the same file: the app's own, another process's, a viewer that somebody left open. They could
//! meet "database is locked" because of birkez, or birkez could turn their locks into failures of jobs.

mod common;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{PoisonError, RwLock};
use std::time::{Duration, Instant};

use birkez::rusqlite::{Connection, TransactionBehavior};
use birkez::testing::TempStore;
use birkez::{Context, Job, Runner, Store};
use common::{Child, ask, given, run_sql, tell, wait_until};
use serde::{Deserialize, Serialize};

/// Held by the one test that measures time, against the others of this file.
static QUIET: RwLock<()> = RwLock::new(());

#[derive(Serialize, Deserialize)]
struct Work {
    n: u32,
}

impl Job for Work {
    const KIND: &'static str = "work";
    type Output = ();

    fn key(&self) -> String {
        self.n.to_string()
    }
}

fn folder() -> (TempStore, Store) {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    run_sql(folder.path(), "CREATE TABLE effect (n INTEGER)");
    (folder, store)
}

/// Every other job ends with `cx.commit`.
fn start_runner(store: &Store) -> Runner {
    let handler = |job: Work, cx: &Context| match job.n % 2 {
        0 => cx.commit(|tx| {
            tx.execute("INSERT INTO effect VALUES (?1)", [job.n])?;
            Ok(())
        }),
        _ => Ok(()),
    };
    Runner::builder(store).workers(4).handle(handler).start().unwrap()
}

fn enqueue(store: &Store, numbers: std::ops::Range<u32>) {
    let jobs: Vec<_> = numbers.map(|n| Work { n }).collect();
    let _ = store.enqueue_all(&jobs).unwrap();
}

#[track_caller]
fn assert_all_done_without_a_failure(folder: &TempStore, jobs: u32) {
    let count = |sql: &str| ask::<u32>(folder.path(), sql);
    wait_until("all are done", || count("SELECT count(*) FROM birkez_job WHERE state = 2") == jobs);
    assert_eq!(count("SELECT max(attempts) FROM birkez_job"), 1);
    assert_eq!(count("SELECT count(*) FROM birkez_attempt"), 0);
    assert_eq!(count("SELECT count(*) FROM effect"), jobs.div_ceil(2));
}

/// How long each write of an app takes, made every 20 ms with rusqlite's default settings.
fn host_writes(path: &Path) -> Vec<Duration> {
    let host = Connection::open(path).unwrap();
    let write = |n: u32| {
        let started = Instant::now();
        host.execute("INSERT INTO host VALUES (?1)", [n]).expect("the app never meets a lock");
        let took = started.elapsed();
        std::thread::sleep(Duration::from_millis(20).saturating_sub(took));
        took
    };
    (0..common::rounds("BIRKEZ_HOST_WRITES", 200)).map(write).collect()
}

#[test]
fn an_apps_connection_beside_a_full_drain_meets_no_lock_and_no_long_wait() {
    let _quiet = QUIET.write().unwrap_or_else(PoisonError::into_inner);
    let (folder, store) = folder();
    run_sql(folder.path(), "CREATE TABLE host (n INTEGER)");
    (0..20).for_each(|n| enqueue(&store, n * 1_000..(n + 1) * 1_000));
    let _runner = start_runner(&store);
    let done = || -> i64 { store.finished().unwrap().iter().map(|(_, _, n)| n).sum() };
    wait_until("the drain is on", || done() > 100);
    let over = AtomicBool::new(false);
    let (waits, jobs) = std::thread::scope(|scope| {
        let feed = scope.spawn(|| {
            let mut n = 20_000;
            // Kept full, so that the drain never ends.
            while !over.load(Ordering::SeqCst) {
                if i64::from(n) - done() < 10_000 {
                    enqueue(&store, n..n + 50);
                    n += 50;
                }
                std::thread::sleep(Duration::from_millis(1));
            }
            n
        });
        let waits = host_writes(folder.path());
        over.store(true, Ordering::SeqCst);
        (waits, feed.join().unwrap())
    });
    let left = i64::from(jobs) - done();
    assert!(left > 100, "the drain had dried up: {left}");
    assert_short(waits, done());
}

#[track_caller]
fn assert_short(mut waits: Vec<Duration>, jobs: i64) {
    waits.sort_unstable();
    let at = |percent: usize| waits[(waits.len() - 1) * percent / 100];
    println!("{} writes beside {jobs} jobs: p50 {:?}, p99 {:?}, longest {:?}", waits.len(), at(50), at(99), at(100));
    assert!(at(99) < Duration::from_millis(100), "p99 {:?}", at(99));
}

#[test]
fn a_lock_that_another_process_holds_for_three_seconds_fails_no_call_and_no_job() {
    let _shared = QUIET.read().unwrap_or_else(PoisonError::into_inner);
    let (folder, store) = folder();
    let _runner = start_runner(&store);
    enqueue(&store, 0..2_000);
    wait_until("it is in the middle of them", || ask::<u32>(folder.path(), "SELECT count(*) FROM effect") > 50);
    let mut other = Child::start("lock", &[("DB", folder.path())]);
    other.expect("locked");
    let started = Instant::now();
    std::thread::scope(|scope| {
        for n in 2_000..2_010 {
            let store = &store;
            scope.spawn(move || enqueue(store, n..n + 1));
        }
    });
    assert!(started.elapsed() > Duration::from_secs(1), "the file was not locked");
    assert_all_done_without_a_failure(&folder, 2_010);
    other.finish();
}

#[test]
fn a_reader_that_never_ends_its_transaction_holds_nobody_up() {
    let _shared = QUIET.read().unwrap_or_else(PoisonError::into_inner);
    let (folder, store) = folder();
    let mut viewer = Connection::open(folder.path()).unwrap();
    let open = viewer.transaction_with_behavior(TransactionBehavior::Deferred).unwrap();
    let seen =
        |open: &Connection| -> u32 { open.query_row("SELECT count(*) FROM birkez_job", [], |row| row.get(0)).unwrap() };
    assert_eq!(seen(&open), 0);
    let _runner = start_runner(&store);
    enqueue(&store, 0..1_000);
    assert_all_done_without_a_failure(&folder, 1_000);
    assert_eq!(seen(&open), 0, "it was not in one transaction all along");
}

#[test]
fn a_writer_that_is_killed_in_its_transaction_leaves_nothing_behind() {
    let _shared = QUIET.read().unwrap_or_else(PoisonError::into_inner);
    let (folder, store) = folder();
    let _runner = start_runner(&store);
    enqueue(&store, 0..1_000);
    for round in 1..=3 {
        let mut other = Child::start("lock", &[("DB", folder.path())]);
        other.expect("locked");
        let started = Instant::now();
        other.kill();
        enqueue(&store, round * 1_000..(round + 1) * 1_000);
        assert!(started.elapsed() < Duration::from_secs(2), "its lock outlived it: {:?}", started.elapsed());
    }
    assert_all_done_without_a_failure(&folder, 4_000);
    assert_eq!(ask::<u32>(folder.path(), "SELECT count(*) FROM effect WHERE n < 0"), 0, "its rows were stored");
    assert_eq!(ask::<String>(folder.path(), "PRAGMA integrity_check"), "ok");
}

#[test]
fn a_caller_is_told_busy_in_time_and_workers_go_on_by_themselves_after_a_long_lock() {
    let _shared = QUIET.read().unwrap_or_else(PoisonError::into_inner);
    let folder = TempStore::new().unwrap();
    let store = folder.builder().busy_deadline(Duration::from_millis(300)).open().unwrap();
    run_sql(folder.path(), "CREATE TABLE effect (n INTEGER)");
    let _runner = start_runner(&store);
    enqueue(&store, 0..300);
    let mut host = Connection::open(folder.path()).unwrap();
    let held = host.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    for n in 1_000..1_004 {
        let asked = Instant::now();
        let busy = store.enqueue(&Work { n }).unwrap_err();
        assert_eq!((busy.code(), busy.is_retryable()), ("BUSY", true), "{busy}");
        let took = asked.elapsed();
        assert!(took >= Duration::from_millis(250) && took < Duration::from_millis(800), "{took:?}");
    }
    let count = |sql: &str| ask::<u32>(folder.path(), sql);
    let done = || count("SELECT count(*) FROM birkez_job WHERE state = 2");
    let before = done();
    drop(held);
    let freed = Instant::now();
    enqueue(&store, 300..400);
    wait_until("the workers go on", || done() > before);
    assert!(freed.elapsed() < Duration::from_secs(4), "{:?}", freed.elapsed());
    wait_until("all are done", || done() == 400);
    assert_eq!(count("SELECT count(*) FROM birkez_attempt WHERE charged = 1"), 0, "the lock was charged to a job");
    assert_eq!(count("SELECT count(*) FROM effect"), 200);
}

#[test]
fn child_role() {
    let Some(role) = common::role() else { return };
    assert_eq!(role, "lock");
    let mut connection = Connection::open(PathBuf::from(given("DB"))).unwrap();
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    for n in 1..=1_000 {
        tx.execute("INSERT INTO effect VALUES (-?1)", [n]).unwrap();
    }
    tell("locked");
    std::thread::sleep(Duration::from_secs(3));
    tx.rollback().unwrap();
}
