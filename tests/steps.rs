//! A step could run twice though its output is stored, answer with somebody else's output, or be known outside under
//! another key the second time.

mod common;

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use birkez::testing::{Drain, TempStore};
use birkez::{Class, Context, Error, Job, RetryPolicy, Runner, State, Store};
use common::{Child, Log, ask, given, run_sql, tell, wait_until};
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
struct Order {
    n: u32,
}

impl Job for Order {
    const KIND: &'static str = "order";
    type Output = u32;
    fn key(&self) -> String {
        self.n.to_string()
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().base(Duration::ZERO).jitter(0.0)
    }
}

/// Known outside under its own key.
#[derive(Clone, Serialize, Deserialize)]
struct Invoice {
    number: String,
}

impl Job for Invoice {
    const KIND: &'static str = "invoice";
    const KEY_AS_IS: bool = true;
    type Output = u32;
    fn key(&self) -> String {
        self.number.clone()
    }
}

fn run<J: Job>(store: &Store, f: impl Fn(J, &Context) -> anyhow::Result<J::Output> + Send + Sync + 'static) -> usize {
    Drain::new(Runner::builder(store).handle(f)).unwrap().drain().unwrap()
}

fn order(store: &Store, n: u32) -> i64 {
    store.enqueue(&Order { n }).unwrap().id
}

/// The error of the library that a handler's call came to.
fn code<T>(result: &anyhow::Result<T>) -> &'static str {
    result.as_ref().err().map_or("ok", |error| error.downcast_ref::<Error>().map_or("?", Error::code))
}

#[test]
fn a_step_whose_output_is_stored_is_not_run_again_and_a_failed_one_is() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let id = order(&store, 1);
    let runs = Arc::new([const { AtomicU32::new(0) }; 2]);
    let counted = Arc::clone(&runs);
    let attempts = run(&store, move |_: Order, cx| {
        let charged: u32 = cx.step("charge", || Ok(40 + counted[0].fetch_add(1, Ordering::SeqCst)))?;
        let sent: u32 = cx.step("send", || {
            anyhow::ensure!(counted[1].fetch_add(1, Ordering::SeqCst) == 2, "no route");
            Ok(2)
        })?;
        Ok(charged + sent)
    });
    assert_eq!(attempts, 3);
    assert_eq!([runs[0].load(Ordering::SeqCst), runs[1].load(Ordering::SeqCst)], [1, 3]);
    assert_eq!(ask::<String>(store.path(), "SELECT result FROM birkez_job"), "42");
    let steps = store.steps(id).unwrap();
    assert_eq!(
        steps.iter().map(|step| (&*step.name, &*step.output)).collect::<Vec<_>>(),
        [("charge", "40"), ("send", "2")]
    );
}

#[test]
fn a_name_is_one_step_of_one_job() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    order(&store, 1);
    order(&store, 2);
    run(&store, |job: Order, cx| {
        assert_eq!(cx.step("same", || Ok(job.n))?, job.n, "another job's step of that name is another");
        assert_eq!(code(&cx.step("same", || Ok(0))), "STEP_REPEATED");
        for name in ["", "a\nb", &"x".repeat(129)] {
            assert_eq!(code(&cx.step(name, || Ok(0))), "STEP_INVALID", "{name:?}");
        }
        // One that failed may be tried again in the same attempt.
        assert!(cx.step("flaky", || -> anyhow::Result<()> { anyhow::bail!("once") }).is_err());
        cx.step("flaky", || Ok(()))?;
        Ok(job.n)
    });
    assert_eq!(ask::<u32>(store.path(), "SELECT count(*) FROM birkez_job WHERE state = 2"), 2);
    // A handler that lets such an error through cannot be mended by a repeat.
    order(&store, 3);
    assert_eq!(run(&store, |_: Order, cx| cx.step("", || Ok(1))), 1);
    let dead = store.find("order", "3").unwrap().unwrap();
    assert_eq!((dead.state, dead.last_failure.unwrap().class), (State::Dead, Class::Permanent));
}

#[test]
fn an_output_that_no_longer_decodes_is_an_error_and_not_a_second_run() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let id = order(&store, 1);
    run(&store, |_: Order, cx| {
        if cx.attempt() == 1 {
            let _ = cx.step("charge", || Ok("ch_17".to_owned()))?;
            anyhow::bail!("after the step");
        }
        // A newer program asks for another type.
        cx.step("charge", || -> anyhow::Result<u32> { panic!("it must not run again") })
    });
    let job = store.job(id).unwrap().unwrap();
    let failure = job.last_failure.unwrap();
    assert_eq!((job.state, failure.class), (State::Dead, Class::Undecodable), "{}", failure.text);
    assert!(failure.text.contains("`charge`") && failure.text.contains("not run again"), "{}", failure.text);
}

#[test]
fn an_output_that_cannot_be_stored_ends_the_job_since_a_repeat_would_run_the_step_again() {
    let folder = TempStore::new().unwrap();
    let store = folder.builder().payload_limit(64).open().unwrap();
    let id = order(&store, 1);
    let runs = run(&store, |_: Order, cx| {
        let _ = cx.step("charge", || Ok("x".repeat(65)))?;
        Ok(1)
    });
    let job = store.job(id).unwrap().unwrap();
    assert_eq!((runs, job.state), (1, State::Dead));
    let text = job.last_failure.unwrap().text;
    assert!(text.contains("`charge`") && text.contains("too_large"), "{text}");
}

#[test]
fn after_commit_and_inside_a_transaction_there_are_no_steps() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    order(&store, 1);
    run(&store, |_: Order, cx| {
        let never = || -> anyhow::Result<()> { panic!("it must not run") };
        cx.commit(|_tx| {
            assert_eq!(code(&cx.step("inside", never)), "INSIDE_TRANSACTION");
            Ok(1_u32)
        })?;
        assert_eq!(code(&cx.step("after", never)), "ALREADY_SETTLED");
        assert_eq!(code(&cx.transaction(|_| Ok(()))), "ALREADY_SETTLED");
        assert_eq!(cx.progress(1, 1, "").unwrap_err().code(), "ALREADY_SETTLED");
        assert_eq!(cx.enqueue(&Order { n: 9 }).unwrap_err().code(), "ALREADY_SETTLED");
        Ok(1)
    });
    assert_eq!(ask::<u32>(store.path(), "SELECT count(*) FROM birkez_job WHERE state = 2"), 1);
}

/// The idempotency keys that a job's handler saw: its own, and those of two steps, one within the other.
fn keys_of<J: Job<Output = u32>>(store: &Store, job: &J) -> Vec<String> {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    let _ = store.enqueue(job).unwrap();
    run(store, move |_: J, cx| {
        let mut keys = vec![cx.idempotency_key()];
        cx.step("outer", || {
            keys.push(cx.idempotency_key());
            let inner = cx.step("inner", || Ok(cx.idempotency_key()))?;
            keys.push(inner);
            keys.push(cx.idempotency_key());
            Ok(())
        })?;
        keys.push(cx.idempotency_key());
        *noted.lock().unwrap() = keys;
        Ok(1)
    });
    std::mem::take(&mut *seen.lock().unwrap())
}

#[test]
fn inside_a_step_the_idempotency_key_is_the_steps_own() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let keys = keys_of(&store, &Order { n: 1 });
    assert_eq!((&keys[0], &keys[1]), (&keys[4], &keys[3]));
    assert!(keys[0] != keys[1] && keys[1] != keys[2] && keys.iter().all(|key| key.len() == 32), "{keys:?}");
    let plain = keys_of(&store, &Invoice { number: "2026-17".into() });
    assert_eq!((&*plain[0], &*plain[4]), ("2026-17", "2026-17"));
    assert!(plain[1..4].iter().all(|key| key.len() == 32) && plain[1] != plain[2], "{plain:?}");
}

#[test]
fn a_secret_makes_keys_that_nobody_guesses_and_a_changed_one_changes_no_stored_key() {
    let folder = TempStore::new().unwrap();
    let plain = folder.open().unwrap();
    let _ = plain.enqueue(&Order { n: 1 }).unwrap();
    let with = |secret: &str| folder.builder().idempotency_secret(secret).open().unwrap();
    let (first, second) = (with("first"), with("second"));
    let _ = first.enqueue(&Order { n: 2 }).unwrap();
    let stored = |n: u32| first.find("order", &n.to_string()).unwrap().unwrap().idempotency_key.unwrap();
    let before = [stored(1), stored(2)];
    assert_eq!(keys_of(&second, &Order { n: 3 })[0], stored(3));
    assert_eq!([stored(1), stored(2)], before, "a repeat or a run with another secret changes nothing");
    let other = TempStore::new().unwrap();
    let elsewhere = |secret: &str| other.builder().idempotency_secret(secret).open().unwrap();
    let _ = elsewhere("first").enqueue(&Order { n: 2 }).unwrap();
    let _ = elsewhere("").enqueue(&Order { n: 1 }).unwrap();
    let there = |n: u32| elsewhere("").find("order", &n.to_string()).unwrap().unwrap().idempotency_key.unwrap();
    assert_eq!([there(1), there(2)], before, "it follows from secret, kind and key alone");
}

#[test]
fn a_row_that_a_script_stored_has_its_key_from_its_first_claim_on() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    run_sql(store.path(), r#"INSERT INTO birkez_job (kind, key, payload) VALUES ('order', '7', '{"n":7}')"#);
    assert_eq!(store.find("order", "7").unwrap().unwrap().idempotency_key, None);
    let seen = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&seen);
    run(&store, move |_: Order, cx| {
        noted.lock().unwrap().push(cx.idempotency_key());
        anyhow::ensure!(cx.attempt() == 2, "once more");
        Ok(1)
    });
    let stored = store.find("order", "7").unwrap().unwrap().idempotency_key.unwrap();
    assert_eq!(*seen.lock().unwrap(), [stored.clone(), stored]);
}

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("work") => {
            let path = std::path::PathBuf::from(given("DB"));
            let (store, log) = (Store::open(&path).unwrap(), Log::beside(&path));
            let _running =
                Runner::builder(&store).handle(move |job: Order, cx| charge(&job, cx, &log)).start().unwrap();
            tell("ready");
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

/// Dies in the middle of its step in the first process, and between its steps in the second.
fn charge(job: &Order, cx: &Context, log: &Log) -> anyhow::Result<u32> {
    cx.step("charge", || {
        log.note(format!("charge {}", cx.idempotency_key()));
        if log.count("charge") == 1 {
            std::process::abort();
        }
        Ok(())
    })?;
    if log.count("between") == 0 {
        log.note("between");
        std::process::abort();
    }
    cx.step("send", || {
        log.note(format!("send {}", cx.idempotency_key()));
        Ok(())
    })?;
    Ok(job.n)
}

#[test]
fn killed_in_its_middle_a_step_runs_again_under_the_same_key_and_killed_after_it_it_does_not() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let log = Log::beside(folder.path());
    order(&store, 1);
    let mut died = 0;
    let mut worker = Child::start("work", &[("DB", folder.path())]);
    wait_until("it is done", || {
        if worker.has_ended() {
            died += 1;
            worker = Child::start("work", &[("DB", folder.path())]);
        }
        store.find("order", "1").unwrap().unwrap().state == State::Done
    });
    let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in log.lines() {
        let (step, key) = line.split_once(' ').unwrap_or((&line, ""));
        keys.entry(step.to_owned()).or_default().push(key.to_owned());
    }
    assert_eq!(died, 2);
    assert_eq!((keys["charge"].len(), keys["send"].len()), (2, 1), "{keys:?}");
    assert_eq!(keys["charge"][0], keys["charge"][1]);
}
