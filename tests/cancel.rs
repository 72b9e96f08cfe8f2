//! Calling jobs off. What can go wrong: it runs all the same, comes back at the next start or after a crash, or a job that
//! was done is said to be cancelled; its line stands still; the counts lie.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use birkez::testing::{Drain, TempStore};
use birkez::{Class, Context, Error, Filter, Job, Runner, State, Store, Verdicts};
use common::{Child, ask, counts_equal_the_rows, given, run_sql, tell, wait_until};
use serde::{Deserialize, Serialize};

/// What it does stands in its name.
#[derive(Serialize, Deserialize)]
struct Work {
    name: String,
}

impl Job for Work {
    const KIND: &'static str = "work";
    type Output = ();
    fn key(&self) -> String {
        self.name.clone()
    }
    fn ordering_key(&self) -> Option<String> {
        self.name.starts_with("line/").then(|| "line".to_owned())
    }
}

/// Once started, it is never run again by itself.
#[derive(Serialize, Deserialize)]
struct Text(String);

impl Job for Text {
    const KIND: &'static str = "text";
    const AT_MOST_ONCE: bool = true;
    type Output = ();
    fn key(&self) -> String {
        self.0.clone()
    }
}

fn enqueue(store: &Store, name: &str) -> i64 {
    store.enqueue(&Work { name: name.into() }).unwrap().id
}

fn state(store: &Store, id: i64) -> State {
    store.job(id).unwrap().unwrap().state
}

/// Runs until it is told to stop, and then ends as its name says.
fn until_stopped(work: Work, cx: &Context) -> anyhow::Result<()> {
    cx.progress(0, 1, "begun")?;
    while !cx.is_cancelled() {
        std::thread::sleep(Duration::from_millis(1));
    }
    match work.name.as_str() {
        "done" => cx.commit(|_| Ok(())),
        "permanent" => Err(anyhow::anyhow!("asked to stop")).permanent(),
        "parks" => Err(anyhow::anyhow!("asked to stop")).park("auth"),
        "panics" => panic!("asked to stop"),
        _ => anyhow::bail!("asked to stop"),
    }
}

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("run") => {
            let store = Store::builder(given("FILE")).lease(Duration::from_secs(1)).open().unwrap();
            let handler = |work: Work, cx: &Context| {
                tell(&work.name);
                if work.name == "stays" {
                    std::thread::sleep(common::PATIENCE);
                }
                until_stopped(work, cx)
            };
            let _runner = Runner::builder(&store).workers(4).handle(handler).start().unwrap();
            std::thread::sleep(common::PATIENCE);
        }
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

#[test]
fn a_waiting_job_that_is_cancelled_never_runs_and_gives_its_payload_back() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let id = enqueue(&store, "letter");
    let called_off = store.cancel(id, "Ada").unwrap();
    assert_eq!(called_off[0].payload.as_deref(), Some(r#"{"name":"letter"}"#));
    assert_eq!((called_off[0].was, state(&store, id)), (State::Waiting, State::Cancelled));
    let drain = Drain::new(Runner::builder(&store).handle(|_: Work, _: &Context| Ok(()))).unwrap();
    assert_eq!(drain.drain().unwrap(), 0);
    // The key stays known: a repeat is a repeat.
    assert!(!store.enqueue(&Work { name: "letter".into() }).unwrap().fresh);
    assert_eq!(store.deeds_of(id).unwrap()[0].deed.verb, "cancel");
    assert!(matches!(store.cancel(id, "Ada"), Err(Error::WrongState { state: State::Cancelled, .. })));
    counts_equal_the_rows(folder.path());
}

#[test]
fn whatever_waits_behind_a_cancelled_head_moves_up() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let [first, second, third] = ["line/1", "line/2", "line/3"].map(|name| enqueue(&store, name));
    store.cancel(first, "Ada").unwrap();
    store.cancel(third, "Ada").unwrap();
    let drain = Drain::new(Runner::builder(&store).handle(|_: Work, _: &Context| Ok(()))).unwrap();
    assert_eq!(drain.drain().unwrap(), 1);
    assert_eq!(state(&store, second), State::Done);
}

#[test]
fn a_running_job_that_is_asked_to_stop_ends_as_cancelled_however_it_fails_and_as_done_if_it_is_done() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let runner = Runner::builder(&store).workers(6).handle(until_stopped).start().unwrap();
    let names = ["fails", "permanent", "parks", "panics", "done"];
    let ids = names.map(|name| enqueue(&store, name));
    // What is claimed and has not begun would not be asked, but called off.
    let has_begun = |id: i64| store.job(id).unwrap().unwrap().progress.is_some();
    wait_until("all have begun", || ids.iter().all(|&id| has_begun(id)));
    let asked = store.cancel(Filter::all().kind("work"), "Ada").unwrap();
    assert!(asked.len() == 5 && asked.iter().all(|job| job.was == State::Running && job.payload.is_none()));
    assert!(store.cancel(Filter::all().kind("work"), "Ada").unwrap().is_empty(), "asked once");
    wait_until("all have ended", || ids.iter().all(|&id| state(&store, id) != State::Running));
    for (name, id) in names.iter().zip(ids) {
        let expected = if *name == "done" { State::Done } else { State::Cancelled };
        assert_eq!(state(&store, id), expected, "{name}");
    }
    runner.stop(Duration::from_secs(5)).unwrap();
    counts_equal_the_rows(folder.path());
    assert_eq!(ask::<i64>(folder.path(), "SELECT count(*) FROM birkez_lease"), 0);
}

#[test]
fn a_job_in_another_process_is_told_to_stop_and_one_that_is_killed_before_it_obeys_does_not_run_again() {
    let folder = TempStore::new().unwrap();
    let store = folder.builder().lease(Duration::from_secs(1)).open().unwrap();
    let obeys = enqueue(&store, "obeys");
    let mut child = Child::start("run", &[("FILE", folder.path())]);
    child.expect("obeys");
    let asked = Instant::now();
    store.cancel(obeys, "Ada").unwrap();
    wait_until("it has stopped", || state(&store, obeys) == State::Cancelled);
    assert!(asked.elapsed() < Duration::from_secs(10), "{:?}", asked.elapsed());
    let stays = enqueue(&store, "stays");
    child.expect("stays");
    store.cancel(stays, "Ada").unwrap();
    child.kill();
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let handler = move |_: Work, _: &Context| {
        count.fetch_add(1, Ordering::AcqRel);
        Ok(())
    };
    let runner = Runner::builder(&store).handle(handler).start().unwrap();
    wait_until("it is taken back", || state(&store, stays) == State::Cancelled);
    runner.stop(Duration::from_secs(5)).unwrap();
    assert_eq!(ran.load(Ordering::Acquire), 0);
    counts_equal_the_rows(folder.path());
}

#[test]
fn what_was_claimed_ahead_and_has_not_started_is_cancelled_without_a_start() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let id = enqueue(&store, "claimed");
    // As a process claims it that dies before its start.
    run_sql(
        folder.path(),
        "INSERT INTO birkez_lease (job_id, runner, token, attempt, since, on_crash) VALUES (1, 99, 1, 1, 1, 0)",
    );
    assert_eq!(store.cancel(id, "Ada").unwrap()[0].was, State::Running);
    let drain = Drain::new(Runner::builder(&store).handle(|_: Work, _: &Context| Ok(()))).unwrap();
    assert_eq!(drain.drain().unwrap(), 0);
    assert_eq!(state(&store, id), State::Cancelled);
    counts_equal_the_rows(folder.path());
}

#[test]
fn a_job_that_runs_at_most_once_and_does_not_say_how_far_it_came_is_parked_though_it_was_asked_to_stop() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let handler = |_: Text, cx: &Context| {
        while !cx.is_cancelled() {
            std::thread::sleep(Duration::from_millis(1));
        }
        anyhow::bail!("in its middle")
    };
    let runner = Runner::builder(&store).handle(handler).start().unwrap();
    let id = store.enqueue(&Text("7".into())).unwrap().id;
    wait_until("it runs", || state(&store, id) == State::Running);
    store.cancel(id, "Ada").unwrap();
    wait_until("it has ended", || state(&store, id) != State::Running);
    let job = store.job(id).unwrap().unwrap();
    assert_eq!(job.parked_for.as_deref(), Some("unknown_outcome"));
    // And is not called off either before somebody has looked.
    assert!(matches!(store.cancel(id, "Ada"), Err(Error::MustResolve)));
    assert!(store.cancel(Filter::all().kind("text"), "Ada").unwrap().is_empty());
    drop(runner);
}

#[test]
fn a_caller_whose_job_is_cancelled_is_told_to_stop_and_answered_so() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let other = store.clone();
    let answer = store.once(&Work { name: "now".into() }, |cx| {
        let id = cx.job_id();
        std::thread::scope(|scope| scope.spawn(move || other.cancel(id, "Ada").unwrap()).join().unwrap());
        wait_until("it is told", || cx.is_cancelled());
        anyhow::bail!("stopped")
    });
    assert!(matches!(answer, Err(Error::Cancelled { .. })), "{answer:?}");
    let again = store.once(&Work { name: "now".into() }, |_| Ok(()));
    assert!(matches!(again, Err(Error::Cancelled { .. })), "{again:?}");
}

#[test]
fn a_parked_job_can_be_cancelled_and_its_failure_stays_on_record() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let id = enqueue(&store, "parks");
    let handler = |_: Work, _: &Context| Err::<(), _>(anyhow::anyhow!("401")).park("auth");
    Drain::new(Runner::builder(&store).handle(handler)).unwrap().drain().unwrap();
    assert_eq!(store.cancel(id, "Ada").unwrap()[0].was, State::Parked);
    let job = store.job(id).unwrap().unwrap();
    assert_eq!((job.state, job.parked_for), (State::Cancelled, None));
    assert_eq!(job.last_failure.unwrap().class, Class::Parked);
    counts_equal_the_rows(folder.path());
}
