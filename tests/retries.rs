//! What becomes of a job after a failure: too early a retry, an attempt that is charged though nothing was wrong with the
//! job, a text that cannot be stored, a deadline that ends a job which never failed.
//!
//! Time is a clock moved by hand, and `drain` runs what is due.

mod common;

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::anyhow;
use birkez::rusqlite::{Connection, TransactionBehavior};
use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{Class, Context, Job, JobInfo, RetryPolicy, Runner, State, Store, Verdicts, snooze};
use chrono::{DateTime, TimeDelta, Utc};
use common::{ask, wait_until};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Call {
    n: u32,
}

impl Job for Call {
    const KIND: &'static str = "call";
    type Output = u32;

    fn key(&self) -> String {
        self.n.to_string()
    }

    fn retry() -> RetryPolicy {
        RetryPolicy::default().max_attempts(4).total(Duration::from_secs(600))
    }
}

type Answer = Box<dyn FnMut(&Context) -> anyhow::Result<u32> + Send>;

/// A store under a clock of its own, with a handler that answers as it is told.
struct Bench {
    _folder: TempStore,
    clock: Arc<ManualClock>,
    store: Store,
    drain: Drain,
    answer: Arc<Mutex<Answer>>,
}

fn start_of_time() -> DateTime<Utc> {
    "2026-11-30T08:00:00Z".parse().unwrap()
}

impl Bench {
    fn new() -> Bench {
        let folder = TempStore::new().unwrap();
        let clock = ManualClock::at(start_of_time());
        let store = folder.builder().clock(clock.clone()).open().unwrap();
        let answer: Arc<Mutex<Answer>> = Arc::new(Mutex::new(Box::new(|_| Ok(1))));
        let asked = Arc::clone(&answer);
        let handler = move |_: Call, cx: &Context| (asked.lock().unwrap_or_else(PoisonError::into_inner))(cx);
        let drain = Drain::new(Runner::builder(&store).handle(handler)).unwrap();
        Bench { _folder: folder, clock, store, drain, answer }
    }

    /// A job, and what its handler answers from now on.
    fn enqueue(&self, answer: impl FnMut(&Context) -> anyhow::Result<u32> + Send + 'static) -> i64 {
        self.answers(answer);
        self.store.enqueue(&Call { n: 1 }).unwrap().id
    }

    fn answers(&self, answer: impl FnMut(&Context) -> anyhow::Result<u32> + Send + 'static) {
        *self.answer.lock().unwrap_or_else(PoisonError::into_inner) = Box::new(answer);
    }

    fn job(&self, id: i64) -> JobInfo {
        self.store.job(id).unwrap().unwrap()
    }

    fn drain(&self) -> usize {
        self.drain.drain().unwrap()
    }

    /// Seconds from now to the job's next attempt.
    fn waits(&self, id: i64) -> f64 {
        (self.job(id).run_at - self.clock.now()).as_seconds_f64()
    }

    /// Moves the clock to the job's next attempt and runs it; a millisecond earlier nothing runs.
    #[track_caller]
    fn run_when_due(&self, id: i64) {
        let due = self.job(id).run_at;
        self.clock.set(due - TimeDelta::milliseconds(1));
        assert_eq!(self.drain(), 0, "it ran early");
        self.clock.set(due);
        assert_eq!(self.drain(), 1, "it did not run when due");
    }
}

#[test]
fn a_failed_attempt_waits_for_its_backoff_and_the_last_one_is_the_end() {
    let bench = Bench::new();
    let mut said = 0;
    let id = bench.enqueue(move |cx| {
        said += 1;
        Err(anyhow!("line {said} is busy").context(format!("attempt {}", cx.attempt())))
    });
    assert_eq!(bench.drain(), 1);
    for (attempt, delay) in [(1, 5.0), (2, 15.0), (3, 45.0)] {
        let job = bench.job(id);
        assert_eq!((job.state, job.attempts), (State::Waiting, attempt));
        let waits = bench.waits(id);
        assert!(waits >= delay && waits <= delay * 1.2 + 0.001, "after attempt {attempt}: {waits} s");
        let failure = job.last_failure.unwrap();
        assert_eq!(
            (failure.class, failure.text),
            (Class::Transient, format!("attempt {attempt}: line {attempt} is busy"))
        );
        bench.run_when_due(id);
    }
    let job = bench.job(id);
    assert_eq!((job.state, job.attempts, job.finished_at), (State::Dead, 4, Some(bench.clock.now())));
    assert_eq!(job.last_failure.unwrap().class, Class::Transient);
    bench.clock.advance(Duration::from_secs(86_400));
    assert_eq!(bench.drain(), 0);
}

#[test]
fn every_failed_attempt_is_on_record_with_its_class_text_and_times() {
    let bench = Bench::new();
    let clock = Arc::clone(&bench.clock);
    let mut turn = 0;
    let id = bench.enqueue(move |_| {
        clock.advance(Duration::from_secs(3));
        turn += 1;
        match turn {
            1 => Err(anyhow!("timed out")),
            2 => panic!("index out of range"),
            3 => Err(anyhow!("slow down")).retry_after(Duration::from_secs(60)),
            _ => Ok(9),
        }
    });
    let mut starts = vec![bench.clock.now()];
    assert_eq!(bench.drain(), 1);
    for _ in 0..3 {
        starts.push(bench.job(id).run_at);
        bench.run_when_due(id);
    }
    let attempts = bench.store.attempts(id).unwrap();
    let told: Vec<_> =
        attempts.iter().map(|a| (a.number, a.failure.class, a.failure.text.as_str(), a.charged)).collect();
    let expected = [
        (1, Class::Transient, "timed out", true),
        (2, Class::Panic, "index out of range", true),
        (3, Class::Transient, "slow down", false),
    ];
    assert_eq!(told, expected);
    for (attempt, start) in attempts.iter().zip(starts) {
        assert_eq!((attempt.started_at, attempt.ended_at), (start, start + TimeDelta::seconds(3)));
    }
    let job = bench.job(id);
    assert_eq!((job.state, job.attempts), (State::Done, 3));
    assert_eq!(job.last_failure.unwrap().text, "slow down", "it can be seen what a done job went through");
}

#[test]
fn a_wait_that_a_server_asks_for_is_a_floor_and_costs_no_attempt() {
    let bench = Bench::new();
    let id = bench.enqueue(|_| Err(anyhow!("429")).retry_after(Duration::from_secs(30)));
    assert_eq!(bench.drain(), 1);
    for turn in 0..10 {
        let waits = bench.waits(id);
        assert!((30.0..=36.001).contains(&waits), "{waits}");
        assert_eq!((bench.job(id).state, bench.job(id).attempts), (State::Waiting, 0), "after {turn}");
        bench.run_when_due(id);
    }
    // The total time goes on: ten minutes after the first attempt it gives up, and says why.
    while bench.clock.now() < start_of_time() + TimeDelta::seconds(600) {
        assert_eq!(bench.job(id).state, State::Waiting, "before its total time is over");
        bench.run_when_due(id);
    }
    let job = bench.job(id);
    assert_eq!((job.state, job.attempts), (State::Dead, 0));
    assert_eq!(job.last_failure.unwrap().class, Class::Deadline);
    assert_eq!(bench.store.attempts(id).unwrap().last().unwrap().failure.class, Class::Transient);
}

#[test]
fn a_snooze_is_no_failure_and_its_time_does_not_count() {
    let bench = Bench::new();
    let id = bench.enqueue(|_| Err(snooze(Duration::from_secs(300))));
    assert_eq!(bench.drain(), 1);
    for _ in 0..20 {
        assert_eq!((bench.waits(id), bench.job(id).attempts), (300.0, 0));
        bench.run_when_due(id);
    }
    assert!(bench.store.attempts(id).unwrap().is_empty() && bench.job(id).last_failure.is_none());
    // Far beyond the total time by the clock, and yet a first failure is followed by a retry.
    bench.answers(|_| Err(anyhow!("no")));
    bench.run_when_due(id);
    assert_eq!((bench.job(id).state, bench.job(id).attempts), (State::Waiting, 1));
}

#[test]
fn a_parked_job_burns_nothing_until_it_is_resumed() {
    let bench = Bench::new();
    bench.answers(|_| Err(anyhow!("401")).park("auth:bank"));
    for n in 0..20 {
        let _ = bench.store.enqueue(&Call { n }).unwrap();
    }
    assert_eq!(bench.drain(), 20);
    bench.clock.advance(Duration::from_secs(7 * 86_400));
    assert_eq!(bench.drain(), 0, "it waits for a signal, not for a time");
    let job = bench.store.find("call", "7").unwrap().unwrap();
    assert_eq!((job.state, job.attempts, job.parked_for.as_deref()), (State::Parked, 0, Some("auth:bank")));
    assert_eq!(job.last_failure.unwrap().class, Class::Parked);

    assert_eq!(bench.store.resume("auth:other", "a person").unwrap(), 0);
    assert_eq!(bench.store.resume("auth:bank", "a person").unwrap(), 20);
    bench.answers(|_| Err(anyhow!("no")));
    assert_eq!(bench.drain(), 20);
    let job = bench.store.find("call", "7").unwrap().unwrap();
    assert_eq!((job.state, job.attempts), (State::Waiting, 1), "the total time counts from after the resume");
}

#[test]
fn a_permanent_failure_is_dead_at_once() {
    let bench = Bench::new();
    let id = bench.enqueue(|_| Err(anyhow!("no such card")).permanent());
    assert_eq!(bench.drain(), 1);
    let job = bench.job(id);
    let failure = job.last_failure.unwrap();
    assert_eq!((job.state, job.attempts, failure.class), (State::Dead, 1, Class::Permanent));
    assert_eq!(failure.text, "no such card");
    bench.clock.advance(Duration::from_secs(30 * 86_400));
    assert_eq!(bench.drain(), 0);
}

#[test]
fn the_total_time_decides_only_after_a_failure_and_never_instead_of_an_attempt() {
    for succeeds in [true, false] {
        let bench = Bench::new();
        let id = bench.enqueue(|_| Err(anyhow!("no")));
        assert_eq!(bench.drain(), 1);
        // The program was not there for a year.
        bench.clock.advance(Duration::from_secs(365 * 86_400));
        assert_eq!(bench.job(id).state, State::Waiting);
        bench.answers(move |_| if succeeds { Ok(1) } else { Err(anyhow!("no again")) });
        assert_eq!(bench.drain(), 1, "it was ended without an attempt");
        let job = bench.job(id);
        if succeeds {
            assert_eq!((job.state, job.attempts), (State::Done, 2));
        } else {
            assert_eq!((job.state, job.last_failure.unwrap().class), (State::Dead, Class::Deadline));
            let last = bench.store.attempts(id).unwrap().pop().unwrap();
            assert_eq!((last.failure.class, last.failure.text.as_str()), (Class::Transient, "no again"));
        }
    }
}

#[test]
fn a_clock_that_is_set_back_makes_no_retry_early() {
    let bench = Bench::new();
    let id = bench.enqueue(|_| Err(anyhow!("no")));
    assert_eq!(bench.drain(), 1);
    bench.clock.set(start_of_time() - TimeDelta::days(1));
    assert_eq!(bench.drain(), 0);
    bench.clock.set(bench.job(id).run_at);
    assert_eq!(bench.drain(), 1);
}

#[test]
fn no_error_text_can_keep_a_failure_from_being_stored() {
    let texts = [
        "a\0b".to_owned(),
        "x".repeat(5 << 20),
        "😀".repeat(100_000),
        "\u{1b}[31mred\u{7}\u{8}\r\u{9b}".to_owned(),
        "user\u{202e}gnp.exe \u{2066}x\u{2069}".to_owned(),
        String::new(),
        "'; DROP TABLE birkez_job; --".to_owned(),
        "line one\nline\ttwo".to_owned(),
        "\0".repeat(3_000),
    ];
    for (turn, text) in texts.iter().flat_map(|text| [(false, text), (true, text)]) {
        let bench = Bench::new();
        let said = text.clone();
        let id = bench.enqueue(move |_| if turn { panic!("{said}") } else { Err(anyhow!("{said}")) });
        assert_eq!(bench.drain(), 1);
        let job = bench.job(id);
        let start: String = text.chars().take(20).collect();
        assert_eq!((job.state, job.attempts), (State::Waiting, 1), "{start:?}");
        let kept = job.last_failure.unwrap().text;
        assert_eq!(kept, bench.store.attempts(id).unwrap()[0].failure.text);
        assert!(kept.len() <= 4096, "{start:?}: {} bytes", kept.len());
        assert_eq!(kept.ends_with("(cut)"), text.len() > 4096 || text.starts_with("\0\0"), "{start:?}");
        let harmful = |c: char| c.is_control() && c != '\n' && c != '\t' || ('\u{202a}'..='\u{2069}').contains(&c);
        assert!(!kept.contains(harmful), "{kept:?}");
        if !text.contains(harmful) && text.len() <= 4096 {
            assert_eq!(kept, *text);
        }
        bench.answers(|_| Ok(1));
        bench.run_when_due(id);
        assert_eq!(bench.job(id).state, State::Done);
    }
}

/// Holds the writer lock of the file.
fn hold_lock(path: &Path, f: impl FnOnce()) {
    let mut other = Connection::open(path).unwrap();
    let held = other.transaction_with_behavior(TransactionBehavior::Immediate).unwrap();
    f();
    drop(held);
}

#[test]
fn a_job_whose_commit_met_a_locked_file_is_tried_again_uncharged() {
    let folder = TempStore::new().unwrap();
    let store = folder.builder().busy_deadline(Duration::from_millis(200)).open().unwrap();
    let failures = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&failures);
    let (started, is_started) = std::sync::mpsc::channel();
    let (locked, is_locked) = std::sync::mpsc::channel();
    let is_locked = Mutex::new(is_locked);
    let handler = move |_: Call, cx: &Context| {
        let _ = started.send(());
        let _ = is_locked.lock().unwrap().recv();
        let result = cx.commit(|_| Ok(1_u32));
        if let Err(error) = &result {
            seen.lock().unwrap().push(error.downcast_ref::<birkez::Error>().map(birkez::Error::code));
        }
        result
    };
    let _runner = Runner::builder(&store).workers(1).handle(handler).start().unwrap();
    let id = store.enqueue(&Call { n: 1 }).unwrap().id;
    is_started.recv().unwrap();
    hold_lock(folder.path(), || {
        locked.send(()).unwrap();
        wait_until("its commit has been refused", || !failures.lock().unwrap().is_empty());
        std::thread::sleep(Duration::from_millis(300));
    });
    drop(locked);
    wait_until("it is done", || store.job(id).unwrap().unwrap().state == State::Done);
    assert_eq!(*failures.lock().unwrap(), [Some("BUSY")]);
    assert_eq!(store.job(id).unwrap().unwrap().attempts, 1, "the locked file was charged to the job");
    let charged = "SELECT count(*) FROM birkez_attempt WHERE charged = 1";
    assert_eq!(ask::<u32>(folder.path(), charged), 0);
}
