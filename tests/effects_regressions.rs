//! Faults of effects that were found by trying to break them, and mended. Each test states what must stay true.

mod common;

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use birkez::testing::{Drain, TempStore};
use birkez::{
    Class, Context, DeadHead, Error, Job, JobName, Message, Relay, Resolution, RetryPolicy, Runner, State, Store,
    Verdicts,
};
use common::{ask, run_sql, wait_until};
use serde::{Deserialize, Serialize};

fn quick() -> RetryPolicy {
    RetryPolicy::default().base(Duration::ZERO).jitter(0.0).max_attempts(5)
}

/// Runs at most once; its key says what its handler does.
#[derive(Clone, Serialize, Deserialize)]
struct Text {
    what: String,
}

impl Job for Text {
    const KIND: &'static str = "text";
    const AT_MOST_ONCE: bool = true;
    type Output = u32;
    fn key(&self) -> String {
        self.what.clone()
    }
    fn retry() -> RetryPolicy {
        quick()
    }
}

/// In a line; a dead one is passed over.
#[derive(Clone, Serialize, Deserialize)]
struct Move {
    n: u32,
}

impl Job for Move {
    const KIND: &'static str = "move";
    const DEAD_HEAD: DeadHead = DeadHead::PassedOver;
    type Output = u32;
    fn key(&self) -> String {
        self.n.to_string()
    }
    fn ordering_key(&self) -> Option<String> {
        Some("line".to_owned())
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().max_attempts(1)
    }
    fn timeout() -> Option<Duration> {
        Some(Duration::from_millis(100))
    }
}

/// In the same line, and holds it when dead.
#[derive(Clone, Serialize, Deserialize)]
struct Hold {
    n: u32,
}

impl Job for Hold {
    const KIND: &'static str = "hold";
    type Output = u32;
    fn key(&self) -> String {
        self.n.to_string()
    }
    fn ordering_key(&self) -> Option<String> {
        Some("line".to_owned())
    }
}

/// In no line.
#[derive(Clone, Serialize, Deserialize)]
struct Work {
    n: u32,
}

impl Job for Work {
    const KIND: &'static str = "work";
    type Output = u32;
    fn key(&self) -> String {
        self.n.to_string()
    }
    fn retry() -> RetryPolicy {
        quick()
    }
}

fn folder() -> (TempStore, Store) {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    (folder, store)
}

fn run<J: Job>(store: &Store, f: impl Fn(J, &Context) -> anyhow::Result<J::Output> + Send + Sync + 'static) -> usize {
    Drain::new(Runner::builder(store).handle(f)).unwrap().drain().unwrap()
}

fn code<T>(result: &anyhow::Result<T>) -> &'static str {
    result.as_ref().err().map_or("ok", |error| error.downcast_ref::<Error>().map_or("?", Error::code))
}

#[test]
fn a_wait_that_somebody_asks_for_does_not_make_what_may_run_once_run_again() {
    let (_folder, store) = folder();
    let jobs = ["wait", "nothing sent, wait", "twice the same step"].map(|what| Text { what: what.to_owned() });
    let _ = store.enqueue_all(&jobs).unwrap();
    let starts = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&starts);
    let drain = Drain::new(Runner::builder(&store).handle(move |job: Text, cx: &Context| {
        noted.lock().unwrap().push(job.what.clone());
        let failed: anyhow::Result<u32> = Err(anyhow::anyhow!("503"));
        match job.what.as_str() {
            "wait" => failed.retry_after(Duration::from_millis(1)),
            "nothing sent, wait" => failed.transient().retry_after(Duration::from_millis(20)),
            _ => {
                cx.step("send", || Ok(1))?;
                cx.step("send", || Ok(2))
            }
        }
    }));
    let drain = drain.unwrap();
    for _ in 0..3 {
        drain.drain().unwrap();
        std::thread::sleep(Duration::from_millis(30));
    }
    let count = |what: &str| starts.lock().unwrap().iter().filter(|start| *start == what).count();
    assert_eq!((count("wait"), count("twice the same step")), (1, 1));
    assert!(count("nothing sent, wait") >= 3);
    for what in ["wait", "twice the same step"] {
        let job = store.find("text", what).unwrap().unwrap();
        assert_eq!(
            job.parked_for.as_deref(),
            Some("unknown_outcome"),
            "{what}: a person can still say that it was done"
        );
        store.resolve(job.id, Resolution::Done(7.into()), "a person").unwrap();
    }
}

#[cfg(feature = "webhook")]
#[test]
fn a_receiver_that_asks_to_wait_gets_what_may_be_sent_once_only_once() {
    use common::receiver::{Answer, Receiver};

    #[derive(Serialize, Deserialize)]
    struct Post {}
    impl Job for Post {
        const KIND: &'static str = "post";
        const AT_MOST_ONCE: bool = true;
        type Output = u16;
        fn key(&self) -> String {
            "post".to_owned()
        }
    }
    let (_folder, store) = folder();
    let receiver = Receiver::start(|_| Answer::status(503).header("Retry-After", "1"));
    let webhook = birkez::Webhook::new(&receiver.url("/")).unwrap();
    let runner = Runner::builder(&store).relay::<Post>(webhook).start().unwrap();
    let post = store.enqueue(&Post {}).unwrap();
    wait_until("it is parked", || store.job(post.id).unwrap().unwrap().state == State::Parked);
    runner.stop(Duration::from_secs(5)).unwrap();
    assert_eq!(receiver.deliveries().len(), 1);
}

#[test]
fn a_dead_job_that_a_script_stored_lets_its_line_go_on_as_its_kind_says() {
    let (_folder, store) = folder();
    run_sql(
        store.path(),
        r#"INSERT INTO birkez_job (kind, key, payload, ordering_key) VALUES ('move', 'script', '{"n":0}', 'line')"#,
    );
    let _ = store.enqueue(&Move { n: 1 }).unwrap();
    let ran = run(&store, |job: Move, _| if job.n == 0 { Err(anyhow::anyhow!("no")).permanent() } else { Ok(job.n) });
    assert_eq!(ran, 2);
    assert_eq!(store.find("move", "1").unwrap().unwrap().state, State::Done);
}

#[test]
fn a_person_frees_a_line_that_a_dead_job_holds_and_whoever_waits_behind_says_so() {
    let (_folder, store) = folder();
    let dead = store.enqueue(&Hold { n: 0 }).unwrap().id;
    let behind = store.enqueue(&Hold { n: 1 }).unwrap().id;
    let handler = |job: Hold, _: &Context| if job.n == 0 { Err(anyhow::anyhow!("no")).permanent() } else { Ok(job.n) };
    let drain = Drain::new(Runner::builder(&store).handle(handler)).unwrap();
    drain.drain().unwrap();
    let waits = store.job(behind).unwrap().unwrap();
    assert_eq!((waits.state, waits.behind), (State::Waiting, Some(dead)));
    assert_eq!(store.blocked_keys().unwrap()[0].head.id, dead);
    assert!(store.pass_over(dead, "a person").unwrap() && !store.pass_over(dead, "a person").unwrap());
    assert!(!store.pass_over(behind, "a person").unwrap(), "it is not dead");
    assert_eq!(store.pass_over(99, "a person").unwrap_err().code(), "NO_SUCH_JOB");
    assert_eq!(drain.drain().unwrap(), 1);
    let job = |id| store.job(id).unwrap().unwrap();
    assert_eq!((job(dead).state, job(behind).state, job(behind).behind), (State::Dead, State::Done, None));
}

#[test]
fn the_next_in_a_line_does_not_start_beside_a_thread_that_was_given_up_on() {
    let (_folder, store) = folder();
    let log: Arc<Mutex<Vec<String>>> = Arc::default();
    let noted = Arc::clone(&log);
    let note = move |what: String| noted.lock().unwrap().push(what);
    let handler = move |job: Move, _: &Context| {
        note(format!("{} starts", job.n));
        if job.n == 0 {
            std::thread::sleep(Duration::from_millis(600));
        }
        note(format!("{} ends", job.n));
        Ok(job.n)
    };
    let _runner = Runner::builder(&store).workers(3).handle(handler).start().unwrap();
    let _ = store.enqueue_all(&[Move { n: 0 }, Move { n: 1 }]).unwrap();
    wait_until("the second is done", || store.find("move", "1").unwrap().unwrap().state == State::Done);
    assert_eq!(store.find("move", "0").unwrap().unwrap().state, State::Dead, "its time was over");
    assert_eq!(*log.lock().unwrap(), ["0 starts", "0 ends", "1 starts", "1 ends"]);
}

#[test]
fn the_last_progress_is_stored_with_the_end_whatever_that_is() {
    let (_folder, store) = folder();
    let _ = store.enqueue_all(&(0..4).map(|n| Work { n }).collect::<Vec<_>>()).unwrap();
    let say = |cx: &Context| (0..=10).try_for_each(|done| cx.progress(done, 10, "x"));
    run(&store, move |job: Work, cx| {
        say(cx)?;
        match job.n {
            0 => Ok(0),
            1 => cx.commit(|_| Ok(1)),
            2 => Err(anyhow::anyhow!("no")).permanent(),
            _ => panic!("in its middle"),
        }
    });
    let _ = store.once(&Work { n: 9 }, |cx| say(cx).map(|()| 9).map_err(Into::into)).unwrap();
    for key in ["0", "1", "2", "3", "9"] {
        let progress = store.find("work", key).unwrap().unwrap().progress.unwrap();
        assert_eq!((progress.done, progress.total), (10, 10), "{key}");
    }
}

#[test]
fn a_step_is_known_by_its_own_key_in_the_threads_that_it_starts() {
    let (_folder, store) = folder();
    let _ = store.enqueue(&Work { n: 1 }).unwrap();
    let done = run(&store, |_: Work, cx| {
        let (mut inside, mut beside) = (String::new(), String::new());
        cx.step("call", || {
            beside = cx.idempotency_key();
            inside = std::thread::scope(|scope| scope.spawn(|| cx.idempotency_key()).join().unwrap());
            Ok(())
        })?;
        assert!(inside == beside && inside != cx.idempotency_key());
        Ok(1)
    });
    assert_eq!((done, store.find("work", "1").unwrap().unwrap().state), (1, State::Done));
}

#[test]
fn a_handler_whose_own_thread_is_in_no_step_has_the_jobs_key_whatever_its_threads_do() {
    let (_folder, store) = folder();
    let _ = store.enqueue(&Work { n: 1 }).unwrap();
    run(&store, |_: Work, cx| {
        let jobs = cx.idempotency_key();
        let (inside, go_on) = (std::sync::Barrier::new(2), std::sync::Barrier::new(2));
        std::thread::scope(|scope| {
            let beside = scope.spawn(|| {
                cx.step("beside", || {
                    inside.wait();
                    go_on.wait();
                    Ok(cx.idempotency_key())
                })
            });
            inside.wait();
            assert_eq!(cx.idempotency_key(), jobs);
            go_on.wait();
            assert_ne!(beside.join().unwrap().unwrap(), jobs);
        });
        Ok(1)
    });
    assert_eq!(store.find("work", "1").unwrap().unwrap().state, State::Done);
}

#[test]
fn a_step_whose_output_cannot_be_stored_ends_the_job_when_its_time_runs_out_too() {
    let (_folder, store) = folder();
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let handler = move |_: Move, cx: &Context| {
        let _ = cx.step("nan", || Ok(f64::from(counted.fetch_add(1, Ordering::SeqCst)) * f64::NAN));
        std::thread::sleep(Duration::from_millis(300));
        Ok(1)
    };
    let _runner = Runner::builder(&store).workers(1).handle(handler).start().unwrap();
    let id = store.enqueue(&Move { n: 1 }).unwrap().id;
    wait_until("it has ended", || store.job(id).unwrap().unwrap().state == State::Dead);
    let failure = store.job(id).unwrap().unwrap().last_failure.unwrap();
    assert_eq!(failure.class, Class::Permanent, "{}", failure.text);
}

#[test]
fn a_step_whose_output_cannot_be_stored_ends_the_job_whatever_the_handler_makes_of_the_error() {
    let folder = TempStore::new().unwrap();
    let store = folder.builder().payload_limit(64).open().unwrap();
    let runs = Arc::new(AtomicU32::new(0));
    let counted = Arc::clone(&runs);
    let _ = store.enqueue_all(&(0..4).map(|n| Work { n }).collect::<Vec<_>>()).unwrap();
    let drain = Drain::new(Runner::builder(&store).handle(move |job: Work, cx: &Context| {
        counted.fetch_add(1, Ordering::SeqCst);
        if job.n == 3 {
            // Stored, it would be null, and no number any more.
            let _: f64 = cx.step("nan", || Ok(f64::NAN))?;
        }
        let stored = cx.step("big", || Ok("x".repeat(100)));
        match job.n {
            0 => stored.map_err(|error| anyhow::anyhow!("the step failed: {error}"))?,
            1 => stored.transient()?,
            _ => stored.retry_after(Duration::from_millis(1))?,
        };
        Ok(1)
    }));
    let drain = drain.unwrap();
    for _ in 0..3 {
        drain.drain().unwrap();
    }
    assert_eq!(runs.load(Ordering::SeqCst), 4);
    for key in ["0", "1", "2", "3"] {
        let job = store.find("work", key).unwrap().unwrap();
        let failure = job.last_failure.unwrap();
        assert_eq!((job.state, failure.class), (State::Dead, Class::Permanent), "{key}");
        let step = if key == "3" { "`nan`" } else { "`big`" };
        assert!(failure.text.contains(step), "{}", failure.text);
    }
}

#[test]
fn what_writes_after_the_commit_is_told_that_and_not_that_its_lease_was_lost() {
    let (_folder, store) = folder();
    let _ = store.enqueue(&Work { n: 1 }).unwrap();
    run(&store, |_: Work, cx| {
        let step = cx.step("commits", || cx.commit(|_| Ok(1_u32)));
        assert_eq!(code(&step), "ALREADY_SETTLED");
        let inside = cx.store().write(|tx| Ok(cx.enqueue_in(tx, &Work { n: 2 }).map(drop)));
        assert_eq!(inside?.unwrap_err().code(), "ALREADY_SETTLED");
        assert!(!cx.is_cancelled(), "nothing was lost");
        Ok(1)
    });
    assert_eq!(ask::<u32>(store.path(), "SELECT count(*) FROM birkez_job WHERE state = 2"), 1);
}

#[test]
fn a_transaction_that_has_ended_stores_nothing_and_a_wait_for_it_is_told() {
    let (folder, store) = folder();
    let app = birkez::rusqlite::Connection::open(folder.path()).unwrap();
    app.busy_timeout(Duration::from_millis(120)).unwrap();
    let tx = app.unchecked_transaction().unwrap();
    tx.execute_batch("COMMIT").unwrap();
    assert_eq!(store.enqueue_in(&tx, &Work { n: 1 }).unwrap_err().code(), "TRANSACTION_ENDED");
    drop(tx);
    let writer = birkez::rusqlite::Connection::open(folder.path()).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let tx = app.unchecked_transaction().unwrap();
    let started = Instant::now();
    let error = store.enqueue_in(&tx, &Work { n: 1 }).unwrap_err();
    let waited = started.elapsed().as_millis();
    assert!(matches!(error, Error::Busy { waited_ms, .. } if (100..=waited).contains(&waited_ms.into())), "{error}");
    drop((tx, writer));
    assert_eq!(ask::<u32>(folder.path(), "SELECT count(*) FROM birkez_job"), 0);
}

#[test]
fn a_repeat_that_names_another_job_to_correct_is_a_reused_key() {
    #[derive(Serialize, Deserialize)]
    struct Undo {
        of: u32,
    }
    impl Job for Undo {
        const KIND: &'static str = "undo";
        type Output = ();
        fn key(&self) -> String {
            "undo".to_owned()
        }
        fn fingerprint(&self) -> Option<serde_json::Value> {
            Some("without what it is of".into())
        }
        fn corrects(&self) -> Option<JobName> {
            Some(JobName::new("work", self.of.to_string()))
        }
    }
    let (_folder, store) = folder();
    let _ = store.enqueue_all(&[Work { n: 1 }, Work { n: 2 }]).unwrap();
    assert!(store.enqueue(&Undo { of: 1 }).unwrap().fresh);
    assert!(!store.enqueue(&Undo { of: 1 }).unwrap().fresh);
    for of in [2, 3] {
        assert_eq!(store.enqueue(&Undo { of }).unwrap_err().code(), "KEY_REUSED", "{of}");
    }
}

/// Counts what it is given.
struct Counting(Arc<AtomicU32>);

impl Relay for Counting {
    type Receipt = u32;
    fn publish(&self, _: &Message<'_>, _: &Context) -> anyhow::Result<u32> {
        Ok(self.0.fetch_add(1, Ordering::SeqCst))
    }
}

#[test]
fn a_payload_that_is_no_json_does_not_leave_the_machine() {
    let (_folder, store) = folder();
    run_sql(store.path(), "INSERT INTO birkez_job (kind, key, payload) VALUES ('work', 'script', 'hello')");
    let published = Arc::new(AtomicU32::new(0));
    let relay = Counting(Arc::clone(&published));
    Drain::new(Runner::builder(&store).relay::<Work>(relay)).unwrap().drain().unwrap();
    let job = store.find("work", "script").unwrap().unwrap();
    assert_eq!((published.load(Ordering::SeqCst), job.state), (0, State::Dead));
    assert_eq!(job.last_failure.unwrap().class, Class::Undecodable);
}

#[test]
fn an_answer_says_whether_a_job_belongs_to_callers_and_a_decision_keeps_to_the_limit() {
    let folder = TempStore::new().unwrap();
    let store = folder.builder().payload_limit(64).open().unwrap();
    assert!(store.once(&Work { n: 1 }, |_| Err(anyhow::anyhow!("asked")).park("person")).is_err());
    let met = store.enqueue(&Work { n: 1 }).unwrap();
    assert!(met.for_callers && !store.enqueue(&Work { n: 2 }).unwrap().for_callers);
    let large = Resolution::done(&"x".repeat(100)).unwrap();
    assert_eq!(store.resolve(met.id, large, "a person").unwrap_err().code(), "PAYLOAD_TOO_LARGE");
    store.resolve(met.id, Resolution::done(&7).unwrap(), "a person").unwrap();
    assert_eq!(store.once(&Work { n: 1 }, |_| unreachable!("it is done")).unwrap(), 7);
}
