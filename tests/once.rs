//! Running under a key here and now. What can go wrong: a repeat runs again, or is told something else than the first;
//! a failure or a crash blocks the key for good; an effect is undone because its output could not be kept; a runner takes
//! what belongs to callers, or the other way round.

mod common;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use birkez::testing::{Drain, TempStore};
use birkez::{Class, Context, Durability, Error, Job, RetryPolicy, Runner, Standing, State, Store, Verdicts};
use common::{Child, ask, given, rows, run_sql, tell, wait_within};
use serde::{Deserialize, Serialize, Serializer};

#[derive(Clone, Serialize, Deserialize)]
struct Close {
    month: String,
}

impl Job for Close {
    const KIND: &'static str = "close-month";
    type Output = String;
    fn key(&self) -> String {
        self.month.clone()
    }
    fn retry() -> RetryPolicy {
        // A backoff that no test waits out.
        RetryPolicy::default().max_attempts(3).base(Duration::from_secs(3600))
    }
}

fn close(month: &str) -> Close {
    Close { month: month.to_owned() }
}

/// A repeat that must not run anything.
fn repeat(store: &Store, month: &str) -> birkez::Result<String> {
    store.once(&close(month), |_cx| unreachable!("it must not run"))
}

fn job(store: &Store, month: &str) -> birkez::JobInfo {
    store.find(Close::KIND, month).unwrap().unwrap()
}

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("hold") => hold(),
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

/// In a child: runs under the key until it is killed, or told to end.
fn hold() {
    let store = Store::open(given("FILE")).unwrap();
    let result = store.once(&close("m"), |cx| {
        tell(format!("running {}", cx.attempt()));
        common::await_go();
        Ok("by the child".to_owned())
    });
    tell(format!("{result:?}"));
}

fn holding_child(path: &Path) -> Child {
    Child::start("hold", &[("FILE", path)])
}

#[test]
fn a_repeat_gets_the_stored_output_and_runs_nothing_also_after_a_restart() {
    let folder = TempStore::new().unwrap();
    for durability in [Durability::Full, Durability::Normal] {
        let month = format!("{durability:?}");
        let store = folder.builder().durability(durability).open().unwrap();
        let first = store.once(&close(&month), |cx| {
            assert_eq!((cx.kind(), cx.key(), cx.attempt()), (Close::KIND, month.as_str(), 1));
            assert!(!cx.is_cancelled());
            Ok("42 \"rows\"\n".to_owned())
        });
        assert_eq!(first.unwrap(), "42 \"rows\"\n");
        assert_eq!(repeat(&store, &month).unwrap(), "42 \"rows\"\n");
        drop(store);
        let store = folder.open().unwrap();
        assert_eq!(repeat(&store, &month).unwrap(), "42 \"rows\"\n");
        let met = store.enqueue(&close(&month)).unwrap();
        assert!(matches!(&met.standing, Standing::Done(Ok(output)) if output == "42 \"rows\"\n"), "{met:?}");
        assert_eq!((job(&store, &month).attempts, job(&store, &month).last_failure), (1, None));
    }
}

#[test]
fn other_content_and_unfit_names_are_refused_without_a_run() {
    #[derive(Serialize, Deserialize)]
    struct Other(i32);
    impl Job for Other {
        const KIND: &'static str = "other";
        type Output = i32;
        fn key(&self) -> String {
            if self.0 < 0 { String::new() } else { "k".into() }
        }
    }
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    assert_eq!(store.once(&Other(1), |_cx| Ok(1)).unwrap(), 1);
    for (content, code) in [(2, "KEY_REUSED"), (-1, "KEY_REQUIRED")] {
        let error = store.once(&Other(content), |_cx| unreachable!("it is refused")).unwrap_err();
        assert_eq!(error.code(), code);
    }
    assert_eq!(store.once(&Other(1), |_cx| unreachable!("it is done")).unwrap(), 1);
}

fn assert_in_progress(result: birkez::Result<String>, id: i64) {
    let error = result.unwrap_err();
    let Error::InProgress { kind, key, id: running } = &error else { panic!("{error:?}") };
    assert_eq!((kind.as_str(), key.as_str(), *running), (Close::KIND, "m", id));
    assert!(error.is_retryable());
}

#[test]
fn while_it_runs_another_thread_is_told_so_at_once() {
    let folder = TempStore::new().unwrap();
    let (first, second) = (folder.open().unwrap(), folder.open().unwrap());
    let ((begun, has_begun), (end, may_end)) = (channel(), channel());
    std::thread::scope(|scope| {
        let running = scope.spawn(|| {
            first.once(&close("m"), move |cx| {
                begun.send(cx.job_id()).unwrap();
                may_end.recv().unwrap();
                Ok("first".into())
            })
        });
        let id = has_begun.recv().unwrap();
        let start = Instant::now();
        // The same store, and another on the same file: two owners.
        assert_in_progress(repeat(&first, "m"), id);
        assert_in_progress(repeat(&second, "m"), id);
        assert!(matches!(second.enqueue(&close("m")).unwrap().standing, Standing::Running));
        assert!(start.elapsed() < Duration::from_secs(5), "nobody waits for the end");
        end.send(()).unwrap();
        assert_eq!(running.join().unwrap().unwrap(), "first");
    });
    assert_eq!(repeat(&second, "m").unwrap(), "first");
}

#[test]
fn while_it_runs_in_another_process_a_caller_is_told_so() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let mut child = holding_child(folder.path());
    child.expect("running 1");
    for _ in 0..3 {
        assert_in_progress(repeat(&store, "m"), job(&store, "m").id);
    }
    child.go();
    child.expect(r#"Ok("by the child")"#);
    child.finish();
    assert_eq!(repeat(&store, "m").unwrap(), "by the child");
}

#[test]
fn one_whose_process_was_killed_runs_again_at_the_next_call() {
    let folder = TempStore::new().unwrap();
    // A lease far longer than the test: it is the lock that tells.
    let store = folder.builder().lease(Duration::from_secs(300)).open().unwrap();
    for _ in 0..2 {
        let mut child = holding_child(folder.path());
        child.expect("running 1");
        child.kill();
        assert_eq!(job(&store, "m").state, State::Running, "nobody has looked yet");
    }
    let took = wait_within(Duration::from_secs(2), || {
        let again = store.once(&close("m"), |cx| Ok(format!("attempt {}", cx.attempt())));
        again.inspect_err(|error| assert_eq!(error.code(), "IN_PROGRESS")).is_ok()
    });
    assert!(took.is_some(), "it is still held after two seconds");
    // The first crash is on nobody's account, since a claim does not charge; the second was a suspect's.
    assert_eq!(repeat(&store, "m").unwrap(), "attempt 2");
    let classes: Vec<_> =
        store.attempts(job(&store, "m").id).unwrap().iter().map(|a| (a.failure.class, a.charged)).collect();
    assert_eq!(classes, [(Class::Crashed, true)]);
}

#[test]
fn one_that_kills_its_process_again_and_again_ends_dead() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let mut starts = 0;
    loop {
        let mut child = holding_child(folder.path());
        let said = child.hear().unwrap();
        if said.contains("Dead") {
            assert!(said.contains("crashed"), "{said}");
            break;
        }
        starts += 1;
        assert!(starts <= 4, "three attempts and the uncharged first");
        child.kill();
    }
    assert_eq!(starts, 4);
    let error = repeat(&store, "m").unwrap_err();
    assert_eq!(error.code(), "DEAD");
    assert_eq!(job(&store, "m").last_failure.unwrap().class, Class::Crashed);
}

#[test]
fn a_failure_is_on_record_and_the_next_call_may_run_at_once_until_the_attempts_are_spent() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    for attempt in 1..=3 {
        let error =
            store.once(&close("m"), |_cx| Err(anyhow::anyhow!("disk {attempt}").context("closing"))).unwrap_err();
        let Error::Failed { class, text, attempt: number, retryable, .. } = &error else { panic!("{error:?}") };
        assert_eq!((class.as_str(), *number, *retryable), ("transient", attempt, attempt < 3));
        assert_eq!(text, &format!("closing: disk {attempt}"));
        assert_eq!(error.is_retryable(), attempt < 3);
    }
    for _ in 0..2 {
        let error = repeat(&store, "m").unwrap_err();
        let Error::Dead { class, text, .. } = &error else { panic!("{error:?}") };
        assert_eq!((class.as_str(), text.as_str()), ("transient", "closing: disk 3"));
        assert!(!error.is_retryable());
    }
    let attempts = store.attempts(job(&store, "m").id).unwrap();
    let texts: Vec<_> = attempts.iter().map(|attempt| (attempt.number, attempt.failure.text.as_str())).collect();
    assert_eq!(texts, [(1, "closing: disk 1"), (2, "closing: disk 2"), (3, "closing: disk 3")]);
    assert!(attempts.iter().all(|attempt| attempt.charged && attempt.started_at <= attempt.ended_at));
}

#[test]
fn one_that_failed_first_and_then_succeeds_is_done() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    assert!(store.once(&close("m"), |_cx| anyhow::bail!("no")).is_err());
    assert_eq!(store.once(&close("m"), |cx| Ok(cx.attempt().to_string())).unwrap(), "2");
    assert_eq!(repeat(&store, "m").unwrap(), "2");
}

#[test]
fn a_permanent_failure_is_the_last() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let error = store.once(&close("m"), |_cx| Err(anyhow::anyhow!("no such month")).permanent()).unwrap_err();
    assert!(matches!(&error, Error::Failed { class, retryable: false, .. } if class == "permanent"), "{error:?}");
    let error = repeat(&store, "m").unwrap_err();
    assert!(
        matches!(&error, Error::Dead { class, text, .. } if class == "permanent" && text == "no such month"),
        "{error:?}"
    );
}

#[test]
fn a_parked_one_says_what_it_waits_for_and_costs_no_attempt() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let error = store.once(&close("m"), |_cx| Err(anyhow::anyhow!("401")).park("auth:bank")).unwrap_err();
    assert!(matches!(&error, Error::Failed { class, retryable: false, .. } if class == "parked"), "{error:?}");
    let error = repeat(&store, "m").unwrap_err();
    assert!(matches!(&error, Error::Parked { reason, .. } if reason == "auth:bank"), "{error:?}");
    assert_eq!(error.code(), "PARKED");
    let parked = job(&store, "m");
    assert_eq!((parked.state, parked.attempts, parked.for_callers), (State::Parked, 0, true));
    // Released, it is still the callers'.
    assert_eq!(store.resume("auth:bank", "a person").unwrap(), 1);
    let drain = Drain::new(Runner::builder(&store).handle(|_: Close, _cx: &Context| Ok("by a runner".into()))).unwrap();
    assert_eq!(drain.drain().unwrap(), 0);
    assert_eq!(store.once(&close("m"), |cx| Ok(format!("attempt {}", cx.attempt()))).unwrap(), "attempt 1");
}

#[test]
fn one_that_was_called_off_says_so() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    assert!(store.once(&close("m"), |_cx| anyhow::bail!("no")).is_err());
    run_sql(store.path(), "UPDATE birkez_job SET state = 4, gate = NULL, finished_at = 1");
    assert_eq!(repeat(&store, "m").unwrap_err().code(), "CANCELLED");
}

#[test]
fn a_wait_that_a_server_asked_for_costs_no_attempt_and_is_the_callers_to_keep() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    for _ in 0..5 {
        let busy = |_cx: &Context| Err(anyhow::anyhow!("429")).retry_after(Duration::from_secs(600));
        let error = store.once(&close("m"), busy).unwrap_err();
        assert!(matches!(&error, Error::Failed { attempt: 1, retryable: true, .. }), "{error:?}");
    }
    assert_eq!(store.once(&close("m"), |_cx| Ok("at last".into())).unwrap(), "at last");
}

#[test]
fn a_panic_is_on_record_and_goes_on_to_the_caller() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let run = || store.once(&close("m"), |_cx| panic!("out of paper"));
    let panic = std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).unwrap_err();
    assert_eq!(panic.downcast_ref::<&str>(), Some(&"out of paper"));
    let attempts = store.attempts(job(&store, "m").id).unwrap();
    assert_eq!(attempts.len(), 1);
    assert_eq!((attempts[0].failure.class, attempts[0].charged), (Class::Panic, true));
    assert_eq!(attempts[0].failure.text, "out of paper");
    assert_eq!(store.once(&close("m"), |_cx| Ok("again".into())).unwrap(), "again");
}

#[test]
fn rows_and_completion_are_one_and_what_follows_cannot_undo_them() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    run_sql(store.path(), "CREATE TABLE ledger (month TEXT)");
    let post = |cx: &Context, month: &str| {
        cx.commit(|tx| {
            tx.execute("INSERT INTO ledger VALUES (?1)", [month])?;
            Ok(format!("posted {month}"))
        })
    };
    assert_eq!(store.once(&close("a"), |cx| post(cx, "a")).unwrap(), "posted a");
    // Done is done, whatever the closure returns afterwards.
    assert_eq!(
        store
            .once(&close("b"), |cx| {
                post(cx, "b")?;
                anyhow::bail!("mail was down")
            })
            .unwrap(),
        "posted b"
    );
    let run = || {
        store.once(&close("c"), |cx| {
            post(cx, "c")?;
            panic!("after the commit")
        })
    };
    assert!(std::panic::catch_unwind(std::panic::AssertUnwindSafe(run)).is_err());
    // A commit that fails leaves nothing.
    let failing = |cx: &Context| {
        cx.commit(|tx| {
            tx.execute("INSERT INTO ledger VALUES ('d')", [])?;
            anyhow::bail!("no account")
        })
    };
    assert_eq!(store.once(&close("d"), failing).unwrap_err().code(), "FAILED");
    for month in ["a", "b", "c"] {
        assert_eq!(repeat(&store, month).unwrap(), format!("posted {month}"));
    }
    assert_eq!(rows(store.path(), "SELECT group_concat(month, '') FROM ledger"), [r#"[Text("abc")]"#]);
}

/// An output that cannot be written as JSON.
#[derive(Debug, Deserialize)]
struct Stubborn;

impl Serialize for Stubborn {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        Err(serde::ser::Error::custom("will not be written"))
    }
}

#[derive(Debug, Deserialize)]
struct Explosive;

impl Serialize for Explosive {
    fn serialize<S: Serializer>(&self, _: S) -> Result<S::Ok, S::Error> {
        panic!("in the serialiser")
    }
}

/// One kind as several programs see it.
#[derive(Serialize, Deserialize)]
struct Seen<T>(String, std::marker::PhantomData<T>);

impl<T: Serialize + serde::de::DeserializeOwned + Send + 'static> Job for Seen<T> {
    const KIND: &'static str = "seen";
    type Output = T;
    fn key(&self) -> String {
        self.0.clone()
    }
}

fn seen<T>(key: &str) -> Seen<T> {
    Seen(key.to_owned(), std::marker::PhantomData)
}

/// The effect stands: the job is done, and each repeat says why there is no output.
fn assert_gone<T>(store: &Store, key: &str, note: &str)
where
    T: Serialize + serde::de::DeserializeOwned + Send + std::fmt::Debug + 'static,
{
    for _ in 0..2 {
        let error = store.once(&seen::<T>(key), |_cx| unreachable!("it is done")).unwrap_err();
        assert!(matches!(&error, Error::ResultGone { note: why, .. } if why == note), "{error:?}");
        assert_eq!((error.code(), error.is_retryable()), ("RESULT_GONE", false));
        assert!(error.to_string().contains(note), "{error}");
    }
    let met = store.enqueue(&seen::<T>(key)).unwrap();
    assert!(matches!(&met.standing, Standing::Done(Err(Error::ResultGone { .. }))), "{met:?}");
    assert_eq!(store.find("seen", key).unwrap().unwrap().state, State::Done);
}

#[test]
fn an_output_that_cannot_be_kept_never_undoes_the_effect() {
    let folder = TempStore::new().unwrap();
    let store = folder.builder().payload_limit(1024).open().unwrap();
    let large = "x".repeat(1023);
    assert_eq!(store.once(&seen::<String>("large"), |_cx| Ok(large.clone())).unwrap(), large);
    assert_gone::<String>(&store, "large", "too_large");
    let fits = "x".repeat(1022);
    assert_eq!(store.once(&seen::<String>("fits"), |_cx| Ok(fits.clone())).unwrap(), fits);
    assert_eq!(store.once(&seen::<String>("fits"), |_cx| unreachable!("it is done")).unwrap(), fits);
    assert!(store.once(&seen::<Stubborn>("stubborn"), |_cx| Ok(Stubborn)).is_ok());
    assert_gone::<Stubborn>(&store, "stubborn", "unserialisable");
    assert!(store.once(&seen::<Explosive>("explosive"), |cx| cx.commit(|_tx| Ok(Explosive))).is_ok());
    assert_gone::<Explosive>(&store, "explosive", "unserialisable");
    run_sql(store.path(), "UPDATE birkez_job SET result = NULL, result_note = 'retired' WHERE key = 'fits'");
    assert_gone::<String>(&store, "fits", "retired");
}

#[test]
fn an_output_that_no_longer_decodes_is_named_and_nothing_runs_again() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    assert_eq!(store.once(&seen::<String>("a"), |_cx| Ok("12".into())).unwrap(), "12");
    let error = store.once(&seen::<i64>("a"), |_cx| unreachable!("it is done")).unwrap_err();
    assert_eq!((error.code(), error.job(), error.is_retryable()), ("RESULT_UNREADABLE", Some(("seen", "a")), false));
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("expected i64"));
    let met = store.enqueue(&seen::<i64>("a")).unwrap();
    assert!(matches!(&met.standing, Standing::Done(Err(Error::ResultUnreadable { .. }))), "{met:?}");
    assert_eq!(store.once(&seen::<String>("a"), |_cx| unreachable!("it is done")).unwrap(), "12");
}

#[test]
fn no_runner_claims_what_belongs_to_callers_whatever_became_of_it() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    assert!(store.once(&close("failed"), |_cx| anyhow::bail!("no")).is_err());
    let mut child = holding_child(folder.path());
    child.expect("running 1");
    child.kill();
    let runs = AtomicUsize::new(0);
    let runs: &'static AtomicUsize = Box::leak(Box::new(runs));
    let handler = move |_: Close, _cx: &Context| {
        runs.fetch_add(1, Ordering::SeqCst);
        Ok("by a runner".to_owned())
    };
    let runner = Runner::builder(&store).workers(2).handle(handler).start().unwrap();
    // The runner takes back what the dead process held, and an enqueue makes it look: still it is not its own.
    common::wait_until("the dead process is found", || job(&store, "m").state == State::Waiting);
    assert!(matches!(store.enqueue(&close("failed")).unwrap().standing, Standing::Waiting { attempts: 1, .. }));
    let _ = store.enqueue(&close("enqueued")).unwrap();
    common::wait_until("the runner's own job is done", || job(&store, "enqueued").state == State::Done);
    runner.stop(Duration::from_secs(5)).unwrap();
    let drain = Drain::new(Runner::builder(&store).handle(handler)).unwrap();
    assert_eq!(drain.drain().unwrap(), 0);
    assert_eq!(runs.load(Ordering::SeqCst), 1);
    for month in ["failed", "m"] {
        assert!(job(&store, month).for_callers, "{:?}", job(&store, month));
        assert_eq!(store.once(&close(month), |_cx| Ok("by a caller".into())).unwrap(), "by a caller");
    }
}

#[test]
fn what_was_enqueued_for_runners_is_answered_and_not_run() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let id = store.enqueue(&close("m")).unwrap().id;
    let error = repeat(&store, "m").unwrap_err();
    assert_eq!((error.code(), error.existing()), ("NOT_FOR_CALLERS", Some(State::Waiting)));
    assert!(error.to_string().contains(&id.to_string()) && !error.is_retryable(), "{error}");
    let handler = |_: Close, cx: &Context| {
        assert_in_progress(repeat(cx.store(), "m"), cx.job_id());
        Ok("by a runner".to_owned())
    };
    assert_eq!(Drain::new(Runner::builder(&store).handle(handler)).unwrap().drain().unwrap(), 1);
    assert_eq!(repeat(&store, "m").unwrap(), "by a runner");
}

#[test]
fn a_store_that_was_dropped_and_a_file_that_went_on_leave_no_lease_behind() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    assert_eq!(store.once(&close("m"), |_cx| Ok("x".into())).unwrap(), "x");
    let path: PathBuf = store.path().to_owned();
    drop(store);
    assert_eq!(ask::<i64>(&path, "SELECT count(*) FROM birkez_lease"), 0);
    assert_eq!(ask::<String>(&path, "SELECT group_concat(ending) FROM birkez_runner"), "stopped");
    let mut locks = path.into_os_string();
    locks.push("-birkez.d");
    assert!(!Path::new(&locks).exists(), "its lock file is gone, and the folder with it");
}
