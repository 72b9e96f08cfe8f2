//! Code of the app runs inside birkez's transactions and beside the app's own. A call made there could wait for itself for
//! ever; a closure could end the transaction it was given, panic in it, or never come back, and take the store with it.

mod common;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use birkez::rusqlite::{Connection, Transaction, TransactionBehavior};
use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{Context, Error, Job, Occurrence, RetryPolicy, Runner, Schedule, State, Store};
use chrono::{DateTime, Utc};
use common::{ask, run_sql, wait_until, wait_within};
use serde::{Deserialize, Serialize};

const DEADLINE: Duration = Duration::from_millis(200);
/// A stop of a runner returns within its grace and one second; everything else within the deadline.
const GRACE: Duration = Duration::from_millis(100);
const LIMIT: Duration = Duration::from_millis(1_100);

#[derive(Serialize, Deserialize)]
struct Work {
    name: String,
}

impl Job for Work {
    const KIND: &'static str = "work";
    type Output = u32;

    fn key(&self) -> String {
        self.name.clone()
    }

    fn retry() -> RetryPolicy {
        RetryPolicy::default().base(Duration::ZERO)
    }
}

fn work(name: &str) -> Work {
    Work { name: name.to_owned() }
}

fn open(path: &Path) -> Store {
    Store::builder(path).busy_deadline(DEADLINE).open().unwrap()
}

fn folder() -> (TempStore, Store) {
    let folder = TempStore::new().unwrap();
    let store = open(folder.path());
    run_sql(folder.path(), "CREATE TABLE effect (key TEXT)");
    (folder, store)
}

/// Another kind, so that the runners that are started and stopped inside have no part in the rest.
#[derive(Serialize, Deserialize)]
struct Other;

impl Job for Other {
    const KIND: &'static str = "other";
    type Output = u32;

    fn key(&self) -> String {
        "other".to_owned()
    }
}

fn runner(store: &Store) -> birkez::Result<Runner> {
    Runner::builder(store).workers(1).grace(GRACE).handle(|_: Other, _: &Context| Ok(1)).start()
}

/// What a call came to: `ok`, or the error's code and message.
type Told = (&'static str, String);

fn told<T>(result: birkez::Result<T>) -> Told {
    result.map_or_else(|error| (error.code(), error.to_string()), |_| ("ok", String::new()))
}

/// Every writing call there is. Runners that are ended inside are started outside.
struct Calls {
    store: Store,
    /// Of the same file, without a part in the first one's transactions, and not registered as an owner.
    stranger: Store,
    to_stop: Mutex<Option<Runner>>,
    to_drop: Mutex<Option<Runner>>,
}

impl Calls {
    fn new(store: &Store) -> Calls {
        Calls {
            store: store.clone(),
            stranger: open(store.path()),
            to_stop: Mutex::new(Some(runner(store).unwrap())),
            to_drop: Mutex::new(Some(runner(store).unwrap())),
        }
    }

    /// Makes them all, each within its deadline; answers what each came to.
    fn make(&self, place: &str) -> Vec<(&'static str, Told)> {
        let store = &self.store;
        let key = |call: &str| work(&format!("{place}/{call}"));
        let mut made = Vec::new();
        let mut timed = |call: &'static str, make: &mut dyn FnMut() -> Told| {
            let started = Instant::now();
            let told = make();
            let took = started.elapsed();
            assert!(took < LIMIT + DEADLINE, "{call} in {place} took {took:?}: {told:?}");
            made.push((call, told));
        };
        timed("enqueue", &mut || told(store.enqueue(&key("enqueue"))));
        timed("enqueue_all", &mut || told(store.enqueue_all(&[key("all-1"), key("all-2")])));
        timed("once", &mut || told(store.once(&key("once"), |_| Ok(1))));
        timed("write", &mut || told(store.write(|tx| Ok(tx.execute("INSERT INTO effect VALUES ('write')", [])?))));
        timed("resume", &mut || told(store.resume("nothing", "a person")));
        timed("open", &mut || told(Store::builder(store.path()).busy_deadline(DEADLINE).open()));
        timed("start", &mut || told(runner(store)));
        timed("stop", &mut || told(self.to_stop.lock().unwrap().take().unwrap().stop(GRACE)));
        timed("drop", &mut || {
            drop(self.to_drop.lock().unwrap().take());
            ("ok", String::new())
        });
        timed("stranger enqueue", &mut || told(self.stranger.enqueue(&key("stranger"))));
        timed("stranger start", &mut || told(runner(&self.stranger)));
        timed("look", &mut || told(store.find("work", "nothing")));
        made
    }
}

/// Codes by call, in the order of [`Calls::make`].
fn codes(made: &[(&'static str, Told)]) -> Vec<(&'static str, &'static str)> {
    made.iter().map(|(call, (code, _))| (*call, *code)).collect()
}

#[track_caller]
fn assert_refused_inside(made: &[(&'static str, Told)]) {
    let expected = [
        ("enqueue", "INSIDE_TRANSACTION"),
        ("enqueue_all", "INSIDE_TRANSACTION"),
        ("once", "INSIDE_TRANSACTION"),
        ("write", "INSIDE_TRANSACTION"),
        ("resume", "INSIDE_TRANSACTION"),
        ("open", "ok"),
        ("start", "INSIDE_TRANSACTION"),
        ("stop", "INSIDE_TRANSACTION"),
        ("drop", "ok"),
        ("stranger enqueue", "BUSY"),
        ("stranger start", "BUSY"),
        ("look", "ok"),
    ];
    assert_eq!(codes(made), expected);
    for (call, (_, message)) in made.iter().filter(|(call, _)| call.contains("enqueue")) {
        assert!(message.contains("enqueue_in"), "{call}: {message}");
    }
}

#[track_caller]
fn assert_all_work(made: &[(&'static str, Told)]) {
    assert!(made.iter().all(|(_, (code, _))| *code == "ok"), "{made:?}");
}

/// `enqueue_in` is the call that works inside.
fn enqueue_in(store: &Store, tx: &Transaction<'_>, name: &str) -> anyhow::Result<()> {
    anyhow::ensure!(store.enqueue_in(tx, &work(name))?.is_fresh());
    Ok(())
}

fn exists(store: &Store, name: &str) -> bool {
    store.find("work", name).unwrap().is_some()
}

#[test]
fn every_call_inside_store_write_refuses_at_once_or_works() {
    let (_folder, store) = folder();
    let calls = Calls::new(&store);
    let made = store.write(|tx| {
        let made = calls.make("write");
        enqueue_in(&store, tx, "in-write")?;
        Ok(made)
    });
    assert_refused_inside(&made.unwrap());
    assert!(exists(&store, "in-write") && !exists(&store, "write/enqueue"));
    // Both runners have been asked to end, by the stop that was refused too.
    let _ = store.enqueue(&Other).unwrap();
    let ran = || store.find("other", "other").unwrap().unwrap().state != State::Waiting;
    assert!(wait_within(Duration::from_millis(200), ran).is_none());
    assert_all_work(&Calls::new(&store).make("afterwards"));
}

#[test]
fn every_call_inside_a_commit_refuses_at_once_or_works() {
    let (_folder, store) = folder();
    let (calls, heard) = (Calls::new(&store), Arc::new(Mutex::new(Vec::new())));
    let noted = Arc::clone(&heard);
    let _ = store.enqueue(&work("job")).unwrap();
    let handler = move |job: Work, cx: &Context| {
        cx.commit(|tx| {
            if job.name == "job" {
                let nested = cx.commit(|_| Ok(2_u32)).unwrap_err();
                assert_eq!(nested.downcast_ref::<Error>().map(Error::code), Some("INSIDE_TRANSACTION"));
                *noted.lock().unwrap() = calls.make("commit");
                enqueue_in(cx.store(), tx, "in-commit")?;
            }
            Ok(1)
        })
    };
    let runner = Runner::builder(&store).workers(2).handle(handler).start().unwrap();
    wait_until("what it enqueued inside is done", || {
        store.find("work", "in-commit").unwrap().is_some_and(|job| job.state == State::Done)
    });
    assert_refused_inside(&heard.lock().unwrap());
    let job = store.find("work", "job").unwrap().unwrap();
    assert_eq!((job.state, job.attempts), (State::Done, 1));
    runner.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn every_call_inside_the_closure_of_once_works_and_inside_its_commit_refuses() {
    let (_folder, store) = folder();
    let inside = Calls::new(&store);
    let outcome = store.once(&work("outer"), |cx| {
        assert_all_work(&inside.make("once"));
        let itself = store.once(&work("outer"), |_| Ok(9)).unwrap_err();
        assert_eq!(itself.code(), "IN_PROGRESS");
        let deeper = Calls::new(&store);
        cx.commit(|tx| {
            assert_refused_inside(&deeper.make("commit in once"));
            enqueue_in(&store, tx, "in-once")?;
            Ok(5)
        })
    });
    assert_eq!(outcome.unwrap(), 5);
    assert!(exists(&store, "in-once") && exists(&store, "once/enqueue"));
}

#[test]
fn every_call_inside_a_schedules_mapping_works() {
    let folder = TempStore::new().unwrap();
    let clock = ManualClock::at("2026-11-30T02:59:00Z".parse::<DateTime<Utc>>().unwrap());
    let store = folder.builder().busy_deadline(DEADLINE).clock(clock.clone()).open().unwrap();
    run_sql(folder.path(), "CREATE TABLE effect (key TEXT)");
    let (calls, heard) = (Calls::new(&store), Arc::new(Mutex::new(Vec::new())));
    let noted = Arc::clone(&heard);
    let map = move |_: &Occurrence| {
        *noted.lock().unwrap() = calls.make("mapping");
        vec![work("mapped")]
    };
    let nightly = Schedule::cron("nightly", "0 3 * * *").unwrap().zone("UTC").unwrap();
    let builder = Runner::builder(&store).handle(|_: Work, _: &Context| Ok(1)).schedule(nightly, map);
    let drain = Drain::new(builder).unwrap();
    clock.advance(Duration::from_secs(60));
    assert!(drain.drain().unwrap() >= 4);
    assert_all_work(&heard.lock().unwrap());
    assert_eq!(store.find("work", "mapped").unwrap().unwrap().state, State::Done);
}

#[test]
fn a_mapping_that_ends_its_own_runner_does_not_wait_for_itself() {
    for (n, end) in [(1, (|runner| drop(runner.stop(GRACE))) as fn(Runner)), (2, drop)] {
        let (_folder, store) = folder();
        let slot: Arc<Mutex<Option<Runner>>> = Arc::default();
        let (took, shared) = (Arc::new(Mutex::new(None)), Arc::clone(&slot));
        let noted = Arc::clone(&took);
        let map = move |_: &Occurrence| {
            if let Some(runner) = shared.lock().unwrap().take() {
                let started = Instant::now();
                end(runner);
                *noted.lock().unwrap() = Some(started.elapsed());
            }
            Vec::<Work>::new()
        };
        let often = Schedule::cron("often", "* * * * * *").unwrap();
        let runner = Runner::builder(&store).grace(GRACE).schedule(often, map).start().unwrap();
        *slot.lock().unwrap() = Some(runner);
        wait_until("the mapping has ended its runner", || took.lock().unwrap().is_some());
        let took = took.lock().unwrap().unwrap();
        assert!(took < LIMIT, "case {n}: {took:?}");
    }
}

#[test]
fn every_call_beside_a_hosts_own_write_transaction_works_or_is_busy_in_time() {
    let (folder, store) = folder();
    let calls = Calls::new(&store);
    let mut host = Connection::open(folder.path()).unwrap();
    let tx = host.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let made = calls.make("host");
    let expected = [
        ("enqueue", "BUSY"),
        ("enqueue_all", "BUSY"),
        ("once", "BUSY"),
        ("write", "BUSY"),
        // There is nothing to release, so nothing to write.
        ("resume", "ok"),
        ("open", "ok"),
        ("start", "ok"),
        ("stop", "ok"),
        ("drop", "ok"),
        ("stranger enqueue", "BUSY"),
        ("stranger start", "BUSY"),
        ("look", "ok"),
    ];
    assert_eq!(codes(&made), expected);
    for (call, (code, message)) in &made {
        assert!(*code == "ok" || message.contains("enqueue_in"), "{call}: {message}");
    }
    enqueue_in(&store, &tx, "in-host").unwrap();
    tx.execute("INSERT INTO effect VALUES ('host')", []).unwrap();
    tx.commit().unwrap();
    assert!(exists(&store, "in-host") && !exists(&store, "host/enqueue"));
    assert_all_work(&Calls::new(&store).make("afterwards"));
}

#[test]
fn a_commit_inside_the_handlers_own_write_transaction_is_busy_in_time_and_costs_no_attempt() {
    let (folder, store) = folder();
    let beside = |cx: &Context| {
        let mut host = Connection::open(folder.path())?;
        let tx = host.transaction_with_behavior(TransactionBehavior::Immediate)?;
        let started = Instant::now();
        let result = cx.commit(|_| Ok(1));
        assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
        drop(tx);
        result
    };
    let failed = store.once(&work("beside"), beside).unwrap_err();
    assert!(failed.is_retryable() && failed.to_string().contains("writer lock"), "{failed}");
    let job = store.find("work", "beside").unwrap().unwrap();
    assert_eq!((job.state, job.attempts), (State::Waiting, 0));
    assert_eq!(store.once(&work("beside"), |_| Ok(2)).unwrap(), 2);
}

#[test]
fn opening_a_fresh_store_beside_a_hosts_own_write_transaction_is_busy_in_time() {
    let folder = TempStore::new().unwrap();
    let mut host = Connection::open(folder.path()).unwrap();
    host.execute_batch("PRAGMA journal_mode = WAL; CREATE TABLE app (n INTEGER)").unwrap();
    let tx = host.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let started = Instant::now();
    let busy = folder.builder().busy_deadline(DEADLINE).open().unwrap_err();
    assert!(started.elapsed() < LIMIT, "{:?}", started.elapsed());
    assert_eq!(busy.code(), "BUSY", "{busy}");
    drop(tx);
    open(folder.path());
}

/// Ways to end a transaction that is not one's own.
const ENDINGS: [&str; 5] = ["COMMIT", "END", "ROLLBACK", "COMMIT; BEGIN", "ROLLBACK; BEGIN IMMEDIATE"];

fn end_it(tx: &Transaction<'_>, how: &str, key: &str) -> anyhow::Result<u32> {
    tx.execute("INSERT INTO effect VALUES (?1)", [key])?;
    tx.execute_batch(how)?;
    Ok(1)
}

#[test]
fn a_closure_that_ends_its_transaction_is_told_so_and_the_store_goes_on() {
    for how in ENDINGS {
        let (folder, store) = folder();
        let ended = store.write(|tx| end_it(tx, how, "write")).unwrap_err();
        assert_eq!(ended.code(), "TRANSACTION_ENDED", "{how}: {ended}");
        assert!(store.enqueue(&work("after")).unwrap().fresh, "{how}");
        let failed = store.write(|tx| -> anyhow::Result<()> {
            end_it(tx, how, "write")?;
            anyhow::bail!("and fails")
        });
        let failed = failed.unwrap_err();
        assert_eq!(failed.code(), "TRANSACTION_ENDED", "{how}: {failed}");

        let handler = move |job: Work, cx: &Context| {
            let first = cx.attempt() == 1;
            let result = cx.commit(|tx| if first { end_it(tx, how, &job.name) } else { Ok(2) });
            if first {
                let code = result.as_ref().unwrap_err().downcast_ref::<Error>().map(Error::code);
                assert_eq!(code, Some("TRANSACTION_ENDED"), "{how}");
            }
            result
        };
        let drain = Drain::new(Runner::builder(&store).handle(handler)).unwrap();
        assert_eq!(drain.drain().unwrap(), 2, "{how}: the attempt has failed, and the next is free to do it right");
        let job = store.find("work", "after").unwrap().unwrap();
        assert_eq!((job.state, job.attempts), (State::Done, 2), "{how}");
        assert_eq!(ask::<String>(folder.path(), "SELECT result FROM birkez_job"), "2", "{how}");
        let lost = how == "ROLLBACK" || how.starts_with("ROLLBACK;");
        let kept: u32 = ask(folder.path(), "SELECT count(*) FROM effect");
        assert_eq!(kept, if lost { 0 } else { 3 }, "{how}: what a closure commits itself is its own");
    }
}

#[test]
fn a_closure_may_use_savepoints_of_its_own() {
    let (folder, store) = folder();
    let nested = store.write(|tx| {
        tx.execute_batch("SAVEPOINT mine; INSERT INTO effect VALUES ('gone'); ROLLBACK TO mine; RELEASE mine;")?;
        Ok(tx.execute_batch("SAVEPOINT left_open; INSERT INTO effect VALUES ('kept')")?)
    });
    nested.unwrap();
    assert_eq!(ask::<String>(folder.path(), "SELECT group_concat(key) FROM effect"), "kept");
}

#[test]
fn a_closure_that_panics_loses_its_own_writes_and_nobody_elses() {
    let (folder, store) = folder();
    std::thread::scope(|scope| {
        let panicking = scope.spawn(|| {
            for _ in 0..50 {
                let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
                    store.write(|tx| -> anyhow::Result<()> {
                        tx.execute("INSERT INTO effect VALUES ('panicked')", [])?;
                        std::panic::resume_unwind(Box::new("on purpose"))
                    })
                }));
                assert!(panic.is_err(), "the panic is the caller's");
            }
        });
        for thread in 0..2 {
            let store = &store;
            scope.spawn(move || (0..100).for_each(|n| drop(store.enqueue(&work(&format!("{thread}-{n}"))).unwrap())));
        }
        panicking.join().unwrap();
    });
    assert_eq!(ask::<u32>(folder.path(), "SELECT count(*) FROM birkez_job"), 200);
    assert_eq!(ask::<u32>(folder.path(), "SELECT count(*) FROM effect"), 0);
}

const ENDLESS: &str = "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n) SELECT max(i) FROM n";

fn endless(tx: &Transaction<'_>) -> anyhow::Result<u32> {
    tx.execute("INSERT INTO effect VALUES ('endless')", [])?;
    Ok(tx.query_row(ENDLESS, [], |row| row.get(0))?)
}

/// Runs an endless query with `call`; it must be interrupted after about five seconds.
#[track_caller]
fn assert_interrupted(call: impl FnOnce(&Store) -> Option<&'static str>) {
    let folder = TempStore::new().unwrap();
    // Others wait for as long as the lock is held, and then go on.
    let store = folder.open().unwrap();
    run_sql(folder.path(), "CREATE TABLE effect (key TEXT)");
    let started = Instant::now();
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            wait_until("the closure runs", || started.elapsed() > Duration::from_secs(1));
            store.enqueue(&work("waiting")).map(|enqueued| enqueued.fresh)
        });
        assert_eq!(call(&store), Some("INTERRUPTED"));
        let took = started.elapsed();
        assert!(took > Duration::from_millis(4_900) && took < Duration::from_secs(8), "{took:?}");
        assert!(waiting.join().unwrap().unwrap());
    });
    assert_eq!(ask::<u32>(folder.path(), "SELECT count(*) FROM effect"), 0, "a part of it was stored");
    store.write(|tx| Ok(tx.execute_batch("INSERT INTO effect VALUES ('after')")?)).unwrap();
}

#[test]
fn an_endless_query_in_store_write_is_interrupted() {
    assert_interrupted(|store| store.write(endless).err().map(|error| error.code()));
}

#[test]
fn an_endless_query_in_a_commit_is_interrupted() {
    assert_interrupted(|store| {
        let mut code = None;
        let _ = store.once(&work("endless"), |cx| {
            let result = cx.commit(endless);
            code = result.as_ref().err().and_then(|error| error.downcast_ref::<Error>()).map(Error::code);
            result
        });
        code
    });
}
