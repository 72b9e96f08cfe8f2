//! A stop could hang on a handler that does not return, lose or charge what was claimed, start something new, or wait for
//! the very thread that asks for it.

mod common;

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use birkez::rusqlite::{Connection, TransactionBehavior};
use birkez::testing::TempStore;
use birkez::{Class, Context, Error, Job, JobInfo, Runner, State, Store};
use common::{ask, wait_until, wait_within};
use serde::{Deserialize, Serialize};

const GRACE: Duration = Duration::from_millis(300);
/// A stop returns within its grace and one second.
const LIMIT: Duration = Duration::from_millis(1_300);

#[derive(Serialize, Deserialize)]
struct Work {
    n: u32,
}

impl Job for Work {
    const KIND: &'static str = "work";
    type Output = u32;

    fn key(&self) -> String {
        self.n.to_string()
    }
}

/// Handlers that stay until they are let go, and what they have seen.
#[derive(Clone, Default)]
struct Staying {
    let_go: Arc<AtomicBool>,
    started: Arc<AtomicUsize>,
    ended: Arc<AtomicUsize>,
    /// What the last `is_cancelled` said, and what the last commit came to.
    seen: Arc<Mutex<Vec<(bool, &'static str)>>>,
}

impl Staying {
    /// Jobs below `first` are quick.
    fn start(&self, store: &Store, workers: usize, first: u32) -> Runner {
        let staying = self.clone();
        Runner::builder(store)
            .workers(workers)
            .grace(GRACE)
            .handle(move |job: Work, cx: &Context| {
                staying.started.fetch_add(1, Ordering::SeqCst);
                if job.n >= first {
                    staying.stay(cx);
                }
                staying.ended.fetch_add(1, Ordering::SeqCst);
                Ok(job.n)
            })
            .start()
            .unwrap()
    }

    fn stay(&self, cx: &Context) {
        while !self.let_go.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        let cancelled = cx.is_cancelled();
        let committed = match cx.commit(|_| Ok(77_u32)) {
            Ok(_) => "ok",
            Err(error) => error.downcast_ref::<Error>().map_or("?", Error::code),
        };
        self.seen.lock().unwrap().push((cancelled, committed));
    }

    fn started(&self) -> usize {
        self.started.load(Ordering::SeqCst)
    }

    fn let_go(&self) {
        self.let_go.store(true, Ordering::SeqCst);
    }
}

fn folder() -> (TempStore, Store) {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    (folder, store)
}

fn enqueue(store: &Store, n: u32) -> i64 {
    store.enqueue(&Work { n }).unwrap().id
}

fn job(store: &Store, id: i64) -> JobInfo {
    store.job(id).unwrap().unwrap()
}

#[test]
fn a_stop_lets_what_runs_finish_and_starts_nothing_new() {
    let (_folder, store) = folder();
    let staying = Staying::default();
    let runner = staying.start(&store, 2, 0);
    let running = enqueue(&store, 1);
    wait_until("it runs", || staying.started() == 1);
    // One worker is free: what comes now would start at once.
    let stopping = std::thread::spawn(move || runner.stop(Duration::from_secs(20)));
    let asked = wait_within(Duration::from_millis(300), || stopping.is_finished());
    assert!(asked.is_none(), "it did not wait for what runs");
    let later = enqueue(&store, 2);
    assert!(wait_within(Duration::from_millis(200), || staying.started() > 1).is_none(), "a stopping runner claimed");
    staying.let_go();
    let released = Instant::now();
    stopping.join().unwrap().unwrap();
    assert!(released.elapsed() < Duration::from_secs(1), "it stays longer than it has to: {:?}", released.elapsed());
    assert_eq!(*staying.seen.lock().unwrap(), [(false, "ok")]);
    assert_eq!(job(&store, running).state, State::Done);
    assert_eq!((job(&store, later).state, job(&store, later).attempts), (State::Waiting, 0));
}

#[test]
fn what_outlasts_the_grace_is_told_and_released_uncharged_and_on_record() {
    let (folder, store) = folder();
    let staying = Staying::default();
    let runner = staying.start(&store, 2, 0);
    let ids = [1, 2].map(|n| enqueue(&store, n));
    wait_until("both run", || staying.started() == 2);
    let asked = Instant::now();
    runner.stop(GRACE).unwrap();
    let took = asked.elapsed();
    assert!(took >= GRACE && took < LIMIT, "{took:?}");

    for id in ids {
        let job = job(&store, id);
        assert_eq!((job.state, job.attempts), (State::Waiting, 0));
        let [attempt] = &store.attempts(id).unwrap()[..] else { panic!("not on record") };
        assert_eq!((attempt.failure.class, attempt.charged, attempt.number), (Class::Interrupted, false, 1));
        assert!(attempt.ended_at - attempt.started_at >= chrono::Duration::from_std(GRACE).unwrap());
    }
    assert_eq!(ask::<u32>(folder.path(), "SELECT count(*) FROM birkez_lease"), 0);

    staying.let_go();
    wait_until("the handlers come back", || staying.ended.load(Ordering::SeqCst) == 2);
    assert_eq!(*staying.seen.lock().unwrap(), [(true, "LEASE_LOST"); 2], "they were told, and refused");
    // A write of the same store carries along whatever else it would have to write.
    enqueue(&store, 3);
    ids.iter().for_each(|&id| assert_eq!(job(&store, id).state, State::Waiting, "a late result was taken"));

    let again = Staying::default();
    let runner = again.start(&store, 2, u32::MAX);
    wait_until("a new runner does them", || ids.iter().all(|&id| job(&store, id).state == State::Done));
    runner.stop(GRACE).unwrap();
    assert_eq!(job(&store, ids[0]).attempts, 1, "the interruption was free");
}

#[test]
fn what_was_claimed_and_not_started_is_given_back_without_a_trace() {
    let (folder, store) = folder();
    let staying = Staying::default();
    let quick: Vec<_> = (0..400).map(|n| Work { n }).collect();
    let _ = store.enqueue_all(&quick).unwrap();
    let runner = staying.start(&store, 1, 500);
    wait_until("the kind is known to be quick", || staying.started() == 400);
    let more: Vec<_> = (400..700).map(|n| Work { n }).collect();
    let _ = store.enqueue_all(&more).unwrap();
    wait_until("the worker is in one of them", || staying.started() == 501);
    wait_until("some are claimed ahead", || ask::<u32>(folder.path(), "SELECT count(*) FROM birkez_lease") > 1);
    runner.stop(GRACE).unwrap();
    assert_eq!(staying.started(), 501);
    let count = |sql: &str| ask::<u32>(folder.path(), sql);
    assert_eq!(count("SELECT count(*) FROM birkez_lease"), 0);
    assert_eq!(count("SELECT count(*) FROM birkez_job WHERE state = 0 AND attempts = 0 AND gate = 1"), 200);
    assert_eq!(count("SELECT count(*) FROM birkez_attempt"), 1, "only the one that ran has anything on record");
    assert_eq!(count("SELECT count(*) FROM birkez_job WHERE suspect IS NOT NULL"), 0);
    staying.let_go();
}

/// Starts a runner, stops it in the middle, and looks at what it has left: often, since a claim, a start, an end and a stop
/// meet in one moment only now and then.
fn stop_again_and_again(folder: &TempStore, store: &Store, staying: &Staying) {
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut chance = fastrand::Rng::with_seed(seed);
    let count = |sql: &str| ask::<u32>(folder.path(), sql) as usize;
    let mut enqueued: u32 = 0;
    for round in 0..common::rounds("BIRKEZ_STOP_ROUNDS", 100) {
        let from = staying.started();
        if (enqueued as usize) < from + 1_000 {
            let more: Vec<_> = (enqueued..enqueued + 2_000).map(|n| Work { n }).collect();
            let _ = store.enqueue_all(&more).unwrap();
            enqueued += 2_000;
        }
        let runner = staying.start(store, 4, u32::MAX);
        let until = from + chance.usize(1..100);
        wait_until("it is in the middle", || staying.started() >= until);
        runner.stop(Duration::from_secs(5)).unwrap();
        let started = staying.started();
        assert_eq!(count("SELECT count(*) FROM birkez_lease"), 0, "round {round}: a claim was left behind");
        assert_eq!(count("SELECT count(*) FROM birkez_job WHERE state = 2"), started, "round {round}");
    }
}

#[test]
fn a_stop_in_the_middle_of_thousands_loses_no_ending_and_starts_nothing_afterwards() {
    let (folder, store) = folder();
    let staying = Staying::default();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        // Callers claim for idle workers too, in the transactions that store their jobs.
        scope.spawn(|| {
            for n in (0..u32::MAX).rev().take_while(|_| !over.load(Ordering::SeqCst)) {
                enqueue(&store, n);
                std::thread::sleep(Duration::from_micros(300));
            }
        });
        let stopped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            stop_again_and_again(&folder, &store, &staying);
        }));
        over.store(true, Ordering::SeqCst);
        stopped.unwrap_or_else(|panic| std::panic::resume_unwind(panic));
    });
    let count = |sql: &str| ask::<u32>(folder.path(), sql) as usize;
    assert_eq!(staying.started(), count("SELECT count(*) FROM birkez_job WHERE state = 2"), "one started late");
    assert_eq!(count("SELECT count(*) FROM birkez_attempt"), 0);
}

#[test]
fn dropping_a_runner_stops_it_with_the_configured_grace() {
    let (_folder, store) = folder();
    let staying = Staying::default();
    let runner = staying.start(&store, 1, 0);
    let id = enqueue(&store, 1);
    wait_until("it runs", || staying.started() == 1);
    let dropped = Instant::now();
    drop(runner);
    assert!(dropped.elapsed() >= GRACE && dropped.elapsed() < LIMIT, "{:?}", dropped.elapsed());
    assert_eq!(store.attempts(id).unwrap()[0].failure.class, Class::Interrupted);
    staying.let_go();
}

/// Stops (or drops) the runner from the handler of one of its own jobs; answers how long the handler was held up.
fn end_from_inside(store: &Store, end: fn(Runner)) -> Duration {
    let slot: Arc<Mutex<Option<Runner>>> = Arc::default();
    let (took, shared) = (Arc::new(Mutex::new(None)), Arc::clone(&slot));
    let inside = Arc::clone(&took);
    let runner = Runner::builder(store)
        .workers(1)
        .handle(move |job: Work, _: &Context| {
            let runner = loop {
                if let Some(runner) = shared.lock().unwrap().take() {
                    break runner;
                }
                std::thread::yield_now();
            };
            let asked = Instant::now();
            end(runner);
            *inside.lock().unwrap() = Some(asked.elapsed());
            Ok(job.n)
        })
        .start()
        .unwrap();
    *slot.lock().unwrap() = Some(runner);
    wait_until("the handler has ended its runner", || took.lock().unwrap().is_some());
    took.lock().unwrap().unwrap()
}

#[test]
fn a_worker_that_stops_or_drops_its_own_runner_only_asks_and_its_job_is_done() {
    let ends: [fn(Runner); 2] = [|runner| runner.stop(Duration::from_secs(30)).unwrap(), drop];
    let (_folder, store) = folder();
    // Often, since its job's end and its runner's meet in one moment.
    for n in 0..common::rounds("BIRKEZ_STOP_ROUNDS", 100) {
        let id = enqueue(&store, n);
        let took = end_from_inside(&store, ends[n as usize % 2]);
        assert!(took < Duration::from_millis(500), "it waited for itself: {took:?}");
        wait_until("its own job is done", || job(&store, id).state == State::Done);
    }
    let later = enqueue(&store, u32::MAX);
    assert!(wait_within(Duration::from_millis(200), || job(&store, later).state != State::Waiting).is_none());
}

#[test]
fn a_stop_returns_in_time_when_the_file_cannot_be_written() {
    let (folder, store) = folder();
    let staying = Staying::default();
    let runner = staying.start(&store, 1, 0);
    let id = enqueue(&store, 1);
    wait_until("it runs", || staying.started() == 1);
    let mut other = Connection::open(folder.path()).unwrap();
    let held = other.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    let asked = Instant::now();
    let stopped = runner.stop(GRACE).unwrap_err();
    assert!(asked.elapsed() < LIMIT, "{:?}", asked.elapsed());
    assert_eq!(stopped.code(), "BUSY", "{stopped}");
    drop(held);
    staying.let_go();
    // What could not be written is not lost: it is, by this process or by whoever finds it gone.
    let _again = Staying::default().start(&store, 1, u32::MAX);
    wait_until("it comes to its end", || job(&store, id).state == State::Done);
}

#[test]
fn a_store_that_is_dropped_signs_off_and_leaves_no_lock_behind() {
    let (folder, store) = folder();
    let staying = Staying::default();
    let runner = staying.start(&store, 1, u32::MAX);
    let id = enqueue(&store, 1);
    wait_until("it is done", || job(&store, id).state == State::Done);
    let locks = folder.path().with_file_name("test.db-birkez.d");
    assert!(locks.is_dir());
    runner.stop(GRACE).unwrap();
    drop(store);
    // Threads that have just ended may still hold a clone for a moment.
    wait_until("the owner has signed off", || {
        ask::<u32>(folder.path(), "SELECT count(*) FROM birkez_runner WHERE ending = 'stopped'") == 1
    });
    wait_until("its lock is gone", || !locks.exists());
}

#[test]
fn a_job_whose_thread_comes_back_after_the_stop_runs_soon_in_the_next_runner() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let staying = Staying::default();
    let first = staying.start(&store, 1, 0);
    let id = store.enqueue(&Work { n: 1 }).unwrap().id;
    wait_until("it runs", || staying.started() == 1);
    first.stop(GRACE).unwrap();
    let second = Staying::default();
    second.let_go();
    let runner = second.start(&store, 1, 0);
    // It has looked by then, and must not run what runs in this process.
    assert!(wait_within(Duration::from_millis(700), || second.started() > 0).is_none());
    staying.let_go();
    let done = || store.job(id).unwrap().unwrap().state == State::Done;
    assert!(wait_within(Duration::from_secs(5), done).is_some(), "it was forgotten");
    runner.stop(GRACE).unwrap();
}
