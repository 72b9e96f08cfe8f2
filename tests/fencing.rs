//! Somebody who was away too long could finish a job that is no longer theirs, and a slow but living worker could lose
//! its job to a second run.
//!
//! Leases are short here. Processes are stopped and woken with real signals; what each did is read from a log outside the
//! database.

mod common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use birkez::rusqlite::{Connection, TransactionBehavior};
use birkez::testing::TempStore;
use birkez::{Context, Error, Job, Runner, State, Store};
use common::{Child, Log, ask, given, run_sql, signal, tell, wait_until, wait_within};
use serde::{Deserialize, Serialize};

/// Ends with `cx.commit`.
#[derive(Serialize, Deserialize)]
struct Pay {
    n: u32,
}

impl Job for Pay {
    const KIND: &'static str = "pay";
    type Output = String;

    fn key(&self) -> String {
        format!("pay-{}", self.n)
    }
}

/// Ends by returning.
#[derive(Serialize, Deserialize)]
struct Count {
    n: u32,
}

impl Job for Count {
    const KIND: &'static str = "count";
    type Output = String;

    fn key(&self) -> String {
        format!("count-{}", self.n)
    }
}

/// Belongs to callers of `once`.
#[derive(Serialize, Deserialize)]
struct Close;

impl Job for Close {
    const KIND: &'static str = "close";
    type Output = String;

    fn key(&self) -> String {
        "close".to_owned()
    }
}

fn open(path: &Path, lease: Duration) -> Store {
    Store::builder(path).lease(lease).open().unwrap()
}

fn folder(lease: Duration) -> (TempStore, Store, Log) {
    let folder = TempStore::new().unwrap();
    let store = open(folder.path(), lease);
    run_sql(folder.path(), "CREATE TABLE effect (key TEXT, who TEXT)");
    let log = Log::beside(folder.path());
    (folder, store, log)
}

fn start(role: &str, path: &Path, lease: Duration) -> Child {
    let mut child = Child::start(role, &[("DB", path.to_str().unwrap()), ("LEASE", &lease.as_millis().to_string())]);
    child.expect("ready");
    child
}

/// A runner that works for `who`: it notes its starts, waits with `hold`, and notes what its ends came to.
fn start_runner(store: &Store, log: &Log, who: &'static str, hold: fn(&Log, &Context)) -> Runner {
    let (paying, counting) = (log.clone(), log.clone());
    Runner::builder(store)
        .workers(3)
        .handle(move |_: Pay, cx: &Context| {
            paying.note(format!("{who} starts {}", cx.key()));
            hold(&paying, cx);
            let result = cx.commit(|tx| {
                tx.execute("INSERT INTO effect VALUES (?1, ?2)", [cx.key(), who])?;
                Ok(who.to_owned())
            });
            let code = result.as_ref().err().map(|error| error.downcast_ref::<Error>().map_or("?", Error::code));
            let cancelled = cx.is_cancelled();
            paying.note(format!("{who} commits {}: {}, cancelled {cancelled}", cx.key(), code.unwrap_or("ok")));
            result
        })
        .handle(move |_: Count, cx: &Context| {
            counting.note(format!("{who} starts {}", cx.key()));
            hold(&counting, cx);
            counting.note(format!("{who} returns {}", cx.key()));
            Ok(who.to_owned())
        })
        .start()
        .unwrap()
}

/// Until the parent says so.
fn until_told(log: &Log, _: &Context) {
    wait_until("the parent lets the handlers go on", || log.count("go on") > 0);
}

fn not_at_all(_: &Log, _: &Context) {}

/// Stops a process at a moment when it does not hold the writer lock, which nobody could take from it.
fn freeze(child: &Child, path: &Path) {
    let mut probe = Connection::open(path).unwrap();
    probe.busy_timeout(Duration::from_millis(300)).unwrap();
    loop {
        signal(child.id(), "STOP");
        if probe.transaction_with_behavior(TransactionBehavior::Immediate).is_ok() {
            return;
        }
        signal(child.id(), "CONT");
        std::thread::sleep(Duration::from_millis(3));
    }
}

fn output_of(path: &Path, key: &str) -> String {
    ask(path, &format!("SELECT result FROM birkez_job WHERE key = '{key}' AND state = 2"))
}

fn is_done(store: &Store, kind: &str, key: &str) -> bool {
    store.find(kind, key).unwrap().is_some_and(|job| job.state == State::Done)
}

#[test]
fn a_worker_that_was_away_past_its_lease_changes_nothing_and_is_told() {
    let lease = Duration::from_millis(600);
    let (folder, store, log) = folder(lease);
    let path = folder.path();
    let away = start("away", path, lease);
    let _ = store.enqueue(&Pay { n: 1 }).unwrap();
    let _ = store.enqueue(&Count { n: 1 }).unwrap();
    wait_until("the other process has all three", || log.count("away starts") == 3);
    let here = start_runner(&store, &log, "here", not_at_all);

    freeze(&away, path);
    let once = wait_within(common::PATIENCE, || store.once(&Close, |_| Ok("here".to_owned())).is_ok());
    println!("once took over after {once:?}");
    wait_until("both are done here", || is_done(&store, "pay", "pay-1") && is_done(&store, "count", "count-1"));
    assert!(log.count("away commits") + log.count("away returns") == 0, "it did go on");
    log.note("go on");
    signal(away.id(), "CONT");

    wait_until("it has come to its ends", || log.count("away commits") + log.count("away returns") == 2);
    assert_eq!(log.count("away commits pay-1: LEASE_LOST, cancelled true"), 1, "{:?}", log.lines());
    wait_until("its once is answered", || log.count("away once") == 1);
    assert_eq!(log.count("away once LEASE_LOST"), 1, "{:?}", log.lines());

    // It is a worker like any other again, and what it wrote last is in the file.
    here.stop(Duration::from_secs(1)).unwrap();
    let _ = store.enqueue(&Pay { n: 2 }).unwrap();
    wait_until("it works again", || is_done(&store, "pay", "pay-2"));
    assert_eq!(log.count("away commits pay-2: ok"), 1);
    for key in ["pay-1", "count-1", "close"] {
        assert_eq!(output_of(path, key), "\"here\"", "{key}");
        let claims: i64 = ask(path, &format!("SELECT claims FROM birkez_job WHERE key = '{key}'"));
        assert!(claims >= 3, "{key}: a token is never given out twice, so the second claim's is above the first's");
    }
    assert_eq!(ask::<String>(path, "SELECT group_concat(key || ' ' || who) FROM effect"), "pay-1 here,pay-2 away");
}

#[test]
fn a_job_far_longer_than_its_lease_is_never_taken_from_a_living_process() {
    let lease = Duration::from_millis(300);
    let (folder, store, log) = folder(lease);
    let busy = start("busy", folder.path(), lease);
    // Two that leave the processors to nobody, and one that sleeps.
    for n in 1..=2 {
        let _ = store.enqueue(&Pay { n }).unwrap();
    }
    let _ = store.enqueue(&Count { n: 1 }).unwrap();
    wait_until("the other process has them", || log.count("busy starts") == 3);
    let started = Instant::now();
    let _here = start_runner(&store, &log, "here", not_at_all);
    wait_until("they are done", || log.count("busy commits") == 2 && log.count("busy returns") == 1);
    assert!(started.elapsed() > lease * 8, "this showed nothing: {:?}", started.elapsed());
    assert_eq!(log.count("here starts"), 0);
    assert_eq!(log.count("busy commits pay-1: ok, cancelled false"), 1, "{:?}", log.lines());
    assert_eq!(log.count("busy starts"), 3);
    wait_until("all is written", || is_done(&store, "count", "count-1"));
    assert_eq!(ask::<u32>(folder.path(), "SELECT count(*) FROM birkez_attempt"), 0);
    drop(busy);
}

#[test]
fn a_writer_that_holds_the_lock_for_most_of_each_lease_costs_nobody_a_lease() {
    let lease = Duration::from_secs(1);
    let (folder, store, log) = folder(lease);
    let _away = start("away", folder.path(), lease);
    let _ = store.enqueue(&Pay { n: 1 }).unwrap();
    wait_until("the other process has it", || log.count("away starts pay-1") == 1);
    let holder: i64 =
        ask(folder.path(), "SELECT runner FROM birkez_lease JOIN birkez_job ON id = job_id WHERE kind = 'pay'");
    // Many that watch, each at its own moments.
    let watchers: Vec<_> = (0..10)
        .map(|_| {
            std::thread::sleep(Duration::from_millis(100));
            start_runner(&open(folder.path(), lease), &log, "here", not_at_all)
        })
        .collect();
    let mut writer = Connection::open(folder.path()).unwrap();
    let beat = format!("SELECT beat FROM birkez_runner WHERE id = {holder}");
    let gone = "SELECT count(*) FROM birkez_runner WHERE ending = 'gone'";
    for hold in 1..=6 {
        let last: i64 = ask(folder.path(), &beat);
        wait_until("it beats", || ask::<i64>(folder.path(), &beat) > last || ask::<u32>(folder.path(), gone) > 0);
        assert_eq!(ask::<u32>(folder.path(), gone), 0, "it was declared gone after hold {hold}");
        // Just before the next beat would come: the worst moment for it.
        std::thread::sleep(lease / 3 - Duration::from_millis(40));
        let held = writer.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
        std::thread::sleep(lease * 4 / 5);
        drop(held);
    }
    log.note("go on");
    wait_until("it is done", || is_done(&store, "pay", "pay-1"));
    assert_eq!(log.count("here starts"), 0, "{:?}", log.lines());
    wait_until("it has said so", || log.count("away commits pay-1: ok, cancelled false") == 1);
    assert_eq!(ask::<u32>(folder.path(), gone), 0);
    drop(watchers);
}

#[test]
fn a_writer_that_holds_the_lock_for_two_leases_doubles_no_effect() {
    let lease = Duration::from_millis(600);
    let (folder, store, log) = folder(lease);
    let away = start("away", folder.path(), lease);
    let _here = start_runner(&store, &log, "here", not_at_all);
    for n in 1..=3 {
        let _ = store.enqueue(&Pay { n }).unwrap();
    }
    wait_until("all have been started", || log.count("away starts pay") + log.count("here starts pay") >= 3);
    let mut writer = Connection::open(folder.path()).unwrap();
    let held = writer.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    std::thread::sleep(lease * 2);
    log.note("go on");
    drop(held);
    for n in 1..=3 {
        wait_until("it is done", || is_done(&store, "pay", &format!("pay-{n}")));
    }
    assert_eq!(ask::<u32>(folder.path(), "SELECT count(*) FROM effect"), 3);
    assert_eq!(ask::<u32>(folder.path(), "SELECT count(DISTINCT key) FROM effect"), 3);
    drop(away);
}

#[test]
fn a_living_process_whose_runner_row_was_deleted_by_hand_is_told_and_writes_nothing() {
    let lease = Duration::from_millis(600);
    let (folder, store, log) = folder(lease);
    let away = start("away", folder.path(), lease);
    let _ = store.enqueue(&Pay { n: 1 }).unwrap();
    wait_until("the other process has it", || log.count("away starts pay-1") == 1);
    let _here = start_runner(&store, &log, "here", not_at_all);
    run_sql(folder.path(), "DELETE FROM birkez_runner WHERE id IN (SELECT runner FROM birkez_lease)");
    wait_until("it runs here", || is_done(&store, "pay", "pay-1"));
    log.note("go on");
    wait_until("it comes to its end there", || log.count("away commits pay-1") == 1);
    assert_eq!(log.count("away commits pay-1: LEASE_LOST, cancelled true"), 1, "{:?}", log.lines());
    assert_eq!(ask::<String>(folder.path(), "SELECT group_concat(who) FROM effect"), "here");
    drop(away);
}

#[test]
fn child_role() {
    let Some(role) = common::role() else { return };
    let path = PathBuf::from(given("DB"));
    let store = open(&path, Duration::from_millis(given("LEASE").parse().unwrap()));
    let log = Log::beside(&path);
    match role.as_str() {
        "away" => {
            let _runner = start_runner(&store, &log, "away", until_told);
            tell("ready");
            let closed = store.once(&Close, |cx| {
                log.note(format!("away starts {}", cx.key()));
                until_told(&log, cx);
                Ok("away".to_owned())
            });
            log.note(format!("away once {}", closed.as_ref().map_or_else(Error::code, |_| "ok")));
            common::await_go();
        }
        "busy" => {
            let _runner = start_runner(&store, &log, "busy", |_, cx| {
                let long = Duration::from_millis(2_700);
                let started = Instant::now();
                if cx.kind() == Count::KIND {
                    std::thread::sleep(long);
                }
                while started.elapsed() < long {
                    std::hint::spin_loop();
                }
            });
            tell("ready");
            common::await_go();
        }
        other => panic!("no role {other}"),
    }
}
