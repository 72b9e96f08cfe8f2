//! What may run at most once could run again by itself: after a kill, a timeout, a stop, a frozen process; or it could be
//! lost without anybody being asked.

mod common;

use std::path::{Path, PathBuf};
use std::time::Duration;

use birkez::testing::{Drain, TempStore};
use birkez::{
    Class, Context, Durability, Error, Job, Resolution, RetryPolicy, Runner, Standing, State, Store, Verdicts,
};
use common::{Child, Log, ask, given, signal, tell, wait_until};
use serde::{Deserialize, Serialize};

/// How a notification's handler ends.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
enum End {
    Well,
    Fail,
    FailBefore,
    Refuse,
    Panic,
    Hang,
}

#[derive(Clone, Serialize, Deserialize)]
struct Notify {
    n: u32,
    end: End,
}

impl Job for Notify {
    const KIND: &'static str = "notify";
    const AT_MOST_ONCE: bool = true;
    type Output = String;
    fn key(&self) -> String {
        format!("{:?}-{}", self.end, self.n)
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().base(Duration::ZERO).jitter(0.0).max_attempts(3)
    }
    fn timeout() -> Option<Duration> {
        Some(Duration::from_millis(300))
    }
}

fn notify(n: u32, end: End) -> Notify {
    Notify { n, end }
}

fn handler(log: Log) -> impl Fn(Notify, &Context) -> anyhow::Result<String> + Send + Sync {
    move |job, cx| {
        log.note(format!("start {}", cx.key()));
        let failed: anyhow::Result<String> = Err(anyhow::anyhow!("it broke off"));
        match job.end {
            End::Well => Ok("sent".to_owned()),
            End::Fail => failed,
            End::FailBefore => failed.transient(),
            End::Refuse => failed.permanent(),
            End::Panic => panic!("it broke off"),
            End::Hang => {
                tell("hangs");
                std::thread::sleep(Duration::from_secs(120));
                failed
            }
        }
    }
}

fn folder() -> (TempStore, Store, Log) {
    let folder = TempStore::new().unwrap();
    let store = folder.builder().lease(Duration::from_millis(600)).open().unwrap();
    let log = Log::beside(folder.path());
    (folder, store, log)
}

#[track_caller]
fn assert_unknown(store: &Store, key: &str, record: Option<Class>) -> i64 {
    let job = store.find("notify", key).unwrap().unwrap();
    assert_eq!((job.state, job.parked_for.as_deref()), (State::Parked, Some("unknown_outcome")), "{key}");
    assert_eq!(job.last_failure.unwrap().class, Class::UnknownOutcome, "{key}");
    assert_eq!(job.attempts, 0, "{key}");
    let attempts = store.attempts(job.id).unwrap();
    if let Some(class) = record {
        assert_eq!(attempts.last().unwrap().failure.class, class, "{key}");
    }
    job.id
}

#[test]
fn what_ends_without_a_word_waits_for_a_person_and_what_says_so_is_retried() {
    let (_folder, store, log) = folder();
    let drain = Drain::new(Runner::builder(&store).handle(handler(log.clone()))).unwrap();
    for end in [End::Well, End::Fail, End::FailBefore, End::Refuse, End::Panic] {
        let _ = store.enqueue(&notify(1, end)).unwrap();
    }
    drain.drain().unwrap();
    let state = |key: &str| store.find("notify", key).unwrap().unwrap().state;
    assert_eq!((state("Well-1"), log.count("start Well")), (State::Done, 1));
    assert_unknown(&store, "Fail-1", Some(Class::Transient));
    assert_unknown(&store, "Panic-1", Some(Class::Panic));
    assert_eq!((state("FailBefore-1"), log.count("start FailBefore")), (State::Dead, 3));
    assert_eq!((state("Refuse-1"), log.count("start Refuse")), (State::Dead, 1));
    assert_eq!(drain.drain().unwrap(), 0, "nothing of it runs again");
    let Standing::Parked { reason } = store.enqueue(&notify(1, End::Fail)).unwrap().standing else { panic!("parked") };
    assert_eq!(reason, "unknown_outcome");
}

#[test]
fn a_timeout_and_a_stop_whose_grace_runs_out_leave_it_to_a_person() {
    let (_folder, store, log) = folder();
    let runner = Runner::builder(&store).workers(1).handle(handler(log.clone())).start().unwrap();
    let _ = store.enqueue(&notify(1, End::Hang)).unwrap();
    wait_until("its time is over", || store.find("notify", "Hang-1").unwrap().unwrap().state == State::Parked);
    assert_unknown(&store, "Hang-1", Some(Class::Timeout));
    let _ = store.enqueue(&notify(2, End::Hang)).unwrap();
    drop(runner);
    let (_folder, store, log) = folder();
    let runner = Runner::builder(&store).workers(1).handle(handler(log.clone())).start().unwrap();
    let _ = store.enqueue(&notify(3, End::Hang)).unwrap();
    wait_until("it has started", || log.count("start Hang-3") == 1);
    runner.stop(Duration::from_millis(50)).unwrap();
    assert_unknown(&store, "Hang-3", Some(Class::Interrupted));
}

#[test]
fn nothing_is_claimed_ahead_and_a_stop_gives_back_what_has_not_started() {
    let (_folder, store, log) = folder();
    let jobs: Vec<_> = (0..50).map(|n| notify(n, End::Well)).collect();
    let runner = Runner::builder(&store).workers(2).handle(handler(log.clone())).start().unwrap();
    let _ = store.enqueue_all(&jobs).unwrap();
    let most = std::cell::Cell::new(0);
    wait_until("all are done", || {
        most.set(most.get().max(ask::<u32>(store.path(), "SELECT count(*) FROM birkez_lease")));
        log.count("start") == 50
    });
    // Two that run, and two whose end is on its way to the file.
    assert!(most.get() <= 4, "{} leases for two workers", most.get());
    runner.stop(Duration::from_secs(5)).unwrap();
    assert_eq!(ask::<u32>(store.path(), "SELECT count(*) FROM birkez_job WHERE state = 2"), 50);
}

#[test]
fn a_store_that_does_not_sync_each_commit_claims_them_all_the_same() {
    let folder = TempStore::new().unwrap();
    let store = folder.builder().durability(Durability::Normal).open().unwrap();
    let log = Log::beside(folder.path());
    let drain = Drain::new(Runner::builder(&store).handle(handler(log.clone()))).unwrap();
    let _ = store.enqueue(&notify(1, End::Well)).unwrap();
    assert_eq!(drain.drain().unwrap(), 1);
    drop(drain);
    let _runner = Runner::builder(&store).workers(2).handle(handler(log.clone())).start().unwrap();
    let jobs: Vec<_> = (2..20).map(|n| notify(n, End::Well)).collect();
    let _ = store.enqueue_all(&jobs).unwrap();
    wait_until("all are done", || ask::<u32>(store.path(), "SELECT count(*) FROM birkez_job WHERE state = 2") == 19);
}

#[test]
fn a_persons_decision_counts_once() {
    let (_folder, store, log) = folder();
    let drain = Drain::new(Runner::builder(&store).handle(handler(log.clone()))).unwrap();
    for n in 1..=3 {
        let _ = store.enqueue(&notify(n, End::Fail)).unwrap();
    }
    drain.drain().unwrap();
    let id = |n: u32| store.find("notify", &format!("Fail-{n}")).unwrap().unwrap().id;
    assert_eq!(store.resume("unknown_outcome", "a person").unwrap_err().code(), "MUST_RESOLVE");
    store.resolve(id(1), Resolution::done(&"sent").unwrap(), "a person").unwrap();
    store.resolve(id(2), Resolution::Dead, "a person").unwrap();
    store.resolve(id(3), Resolution::Retry, "a person").unwrap();
    for (n, again) in [(1, Resolution::Retry), (2, Resolution::done(&"sent").unwrap()), (3, Resolution::Dead)] {
        let error = store.resolve(id(n), again, "a person").unwrap_err();
        assert_eq!(error.code(), "WRONG_STATE", "{error}");
    }
    assert_eq!(store.resolve(99, Resolution::Retry, "a person").unwrap_err().code(), "NO_SUCH_JOB");
    let Standing::Done(output) = store.enqueue(&notify(1, End::Fail)).unwrap().standing else { panic!("done") };
    assert_eq!(output.unwrap(), "sent");
    drain.drain().unwrap();
    assert_eq!(log.count("start Fail-3"), 2, "it ran once more, by a person's word");
    assert_unknown(&store, "Fail-3", Some(Class::Transient));
    store.resolve(id(3), Resolution::Retry, "a person").unwrap();
    let counted = store.finished().unwrap();
    assert_eq!(counted, [("notify".to_owned(), State::Done, 1), ("notify".to_owned(), State::Dead, 1)]);
}

#[test]
fn once_of_such_a_kind_is_run_by_one_caller_only() {
    let (_folder, store, _log) = folder();
    let error = store.once(&notify(1, End::Well), |_| anyhow::bail!("it broke off")).unwrap_err();
    let Error::Failed { class, retryable, .. } = error else { panic!("{error}") };
    assert_eq!((&*class, retryable), ("unknown_outcome", false));
    let id = assert_unknown(&store, "Well-1", None);
    let again = store.once(&notify(1, End::Well), |_| unreachable!("it must not run")).unwrap_err();
    assert_eq!(again.code(), "PARKED");
    store.resolve(id, Resolution::Retry, "a person").unwrap();
    assert_eq!(store.once(&notify(1, End::Well), |_| Ok("sent".to_owned())).unwrap(), "sent");
}

fn start_child(path: &Path) -> Child {
    let mut child = Child::start("work", &[("DB", path)]);
    child.expect("ready");
    child
}

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("work") => {
            let path = PathBuf::from(given("DB"));
            let store = Store::builder(&path).lease(Duration::from_millis(600)).open().unwrap();
            let hang = handler(Log::beside(&path));
            let _running = Runner::builder(&store).workers(2).handle(hang).start().unwrap();
            tell("ready");
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

#[test]
fn killed_in_its_middle_it_is_not_started_again_and_stands_in_the_list() {
    let (folder, store, log) = folder();
    for n in 1..=3 {
        let child = start_child(folder.path());
        let _ = store.enqueue(&notify(n, End::Hang)).unwrap();
        wait_until("it has started", || log.count(&format!("start Hang-{n}")) == 1);
        child.kill();
    }
    let _runner = Runner::builder(&store).handle(handler(log.clone())).start().unwrap();
    wait_until("all are found", || ask::<u32>(folder.path(), "SELECT count(*) FROM birkez_job WHERE state = 1") == 3);
    let _ = store.enqueue(&notify(4, End::Well)).unwrap();
    wait_until("others run", || store.find("notify", "Well-4").unwrap().unwrap().state == State::Done);
    for n in 1..=3 {
        assert_unknown(&store, &format!("Hang-{n}"), None);
        assert_eq!(log.count(&format!("start Hang-{n}")), 1);
    }
}

#[test]
fn frozen_beyond_its_lease_it_is_parked_and_its_late_result_is_refused() {
    let (folder, store, log) = folder();
    let away = start_child(folder.path());
    let _ = store.enqueue(&notify(1, End::Hang)).unwrap();
    wait_until("it has started", || log.count("start Hang-1") == 1);
    signal(away.id(), "STOP");
    let _runner = Runner::builder(&store).handle(handler(log.clone())).start().unwrap();
    wait_until("it is found", || store.find("notify", "Hang-1").unwrap().unwrap().state == State::Parked);
    signal(away.id(), "CONT");
    // It is of use again, and what it had has not run anywhere else.
    let _ = store.enqueue(&notify(2, End::Well)).unwrap();
    wait_until("work goes on", || store.find("notify", "Well-2").unwrap().unwrap().state == State::Done);
    assert_unknown(&store, "Hang-1", None);
    assert_eq!(log.count("start Hang-1"), 1);
}
