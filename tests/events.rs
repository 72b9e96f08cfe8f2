//! What is told as it happens. What can go wrong: something is told that was not stored, or not told that was; a callback
//! that panics, blocks or calls back holds up the jobs; a payload gets into a log; a fault that lasts fills the log.

mod common;

use std::fmt::Write;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{
    Class, Context, Event, Filter, Happened, Job, Replay, Resolution, RetryPolicy, Runner, Schedule, Store, Verdicts,
};
use common::{run_sql, wait_until};
use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Metadata, Subscriber};

#[derive(Clone, Serialize, Deserialize)]
struct Post {
    name: String,
    #[serde(default)]
    secret: String,
}

impl Job for Post {
    const KIND: &'static str = "post";
    type Output = ();
    fn key(&self) -> String {
        self.name.clone()
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().jitter(0.0)
    }
}

fn post(name: &str) -> Post {
    Post { name: name.into(), secret: String::new() }
}

/// What a name begins with says how its job ends.
fn handle(job: Post, _: &Context) -> anyhow::Result<()> {
    let failed: anyhow::Result<()> = Err(anyhow::anyhow!("no stamp"));
    match job.name.split('/').next() {
        Some("dead") => failed.permanent(),
        Some("parked") => failed.park("auth"),
        Some("fails") => failed,
        Some("panics") => panic!("it broke"),
        _ => Ok(()),
    }
}

/// What a store has told, each as its name and its key, schedule or verb.
#[derive(Clone, Default)]
struct Ear(Arc<Mutex<Vec<Event>>>);

impl Ear {
    fn open(&self, folder: &TempStore) -> (Store, Arc<ManualClock>) {
        let clock = ManualClock::at("2026-05-30T12:00:00Z".parse().unwrap());
        let list = Arc::clone(&self.0);
        let builder = folder.builder().clock(clock.clone());
        (builder.on_event(move |event| list.lock().unwrap().push(event.clone())).open().unwrap(), clock)
    }

    fn heard(&self) -> Vec<String> {
        let line = |event: &Event| match (&event.what, event.what.job()) {
            (_, Some(job)) => format!("{} {}", event.what.name(), job.key),
            (Happened::Deed { verb, who, .. }, _) => format!("deed {verb} {who}"),
            (Happened::OccurrenceMade { schedule, jobs, .. }, _) => format!("occurrence_made {schedule} {jobs}"),
            (Happened::Missed { schedule, count, reason, .. }, _) => format!("missed {schedule} {count} {reason}"),
            (what, _) => what.name().to_owned(),
        };
        self.0.lock().unwrap().iter().map(line).collect()
    }
}

/// Closes the store, which tells the rest first.
fn rest(ear: &Ear, store: Store) -> Vec<String> {
    drop(store);
    ear.heard()
}

#[test]
fn all_that_happens_to_jobs_is_told_in_its_order() {
    let (folder, ear) = (TempStore::new().unwrap(), Ear::default());
    let (store, _) = ear.open(&folder);
    let ids: Vec<i64> =
        ["fine", "fails/1", "dead/1", "parked/1"].map(|name| store.enqueue(&post(name)).unwrap().id).to_vec();
    assert!(!store.enqueue(&post("fine")).unwrap().fresh);
    Drain::new(Runner::builder(&store).handle(handle)).unwrap().drain().unwrap();
    store.resolve(ids[3], Resolution::Dead, "Ada").unwrap();
    store.discard(ids[2], "Bob").unwrap();
    let heard = rest(&ear, store);
    let of = |key: &str| -> Vec<&str> {
        heard.iter().filter_map(|line| line.strip_suffix(key)).map(|line| line.trim_end()).collect()
    };
    assert_eq!(of(" fine"), ["enqueued", "started", "done"]);
    assert_eq!(of(" fails/1"), ["enqueued", "started", "failed"]);
    assert_eq!(of(" dead/1"), ["enqueued", "started", "failed", "dead", "cancelled"]);
    assert_eq!(of(" parked/1"), ["enqueued", "started", "parked", "dead"]);
    assert_eq!((of(" Ada"), of(" Bob")), (vec!["deed resolve"], vec!["deed discard"]));
    let events = ear.0.lock().unwrap();
    let retry = events.iter().find_map(|event| match &event.what {
        Happened::Failed { job, class, retry_at, attempt } if job.id == ids[1] => Some((*class, *retry_at, *attempt)),
        _ => None,
    });
    let Some((Class::Transient, Some(at), 1)) = retry else { panic!("{retry:?}") };
    assert!(at > "2026-05-30T12:00:00Z".parse::<chrono::DateTime<chrono::Utc>>().unwrap());
}

#[test]
fn what_was_not_stored_is_not_told() {
    let (folder, ear) = (TempStore::new().unwrap(), Ear::default());
    let (store, _) = ear.open(&folder);
    let refused = store.write(|tx| {
        let _ = store.enqueue_in(tx, &post("undone"))?;
        anyhow::bail!("after all not") as anyhow::Result<()>
    });
    assert_eq!(refused.unwrap_err().code(), "CLOSURE_FAILED");
    store.write(|tx| Ok(store.enqueue_in(tx, &post("stored")).map(|_| ())?)).unwrap();
    let other = Post { secret: "other".into(), ..post("stored") };
    assert_eq!(store.enqueue_all([&post("first"), &other]).unwrap_err().code(), "KEY_REUSED");
    run_sql(folder.path(), "CREATE TRIGGER refuse BEFORE UPDATE ON birkez_job BEGIN SELECT RAISE(ABORT, 'no'); END");
    let _ = store.enqueue(&post("unwritten")).unwrap();
    Drain::new(Runner::builder(&store).handle(handle)).unwrap().drain().unwrap();
    let told = rest(&ear, store);
    let told: Vec<_> = told.iter().filter(|line| !line.starts_with("started")).collect();
    let expected = ["enqueued stored", "enqueued unwritten", "result_refused stored", "result_refused unwritten"];
    assert_eq!(told, expected);
}

#[test]
fn a_callback_that_panics_harms_nobody_and_is_called_again() {
    let folder = TempStore::new().unwrap();
    let calls = Arc::new(Mutex::new(0));
    let counted = Arc::clone(&calls);
    let store = folder
        .builder()
        .on_event(move |_| {
            *counted.lock().unwrap() += 1;
            panic!("a broken callback")
        })
        .open();
    let store = store.unwrap();
    let _ = store.enqueue(&post("a")).unwrap();
    let _ = store.enqueue(&post("b")).unwrap();
    Drain::new(Runner::builder(&store).handle(handle)).unwrap().drain().unwrap();
    assert_eq!(store.stats().unwrap().total.done, 2);
    drop(store);
    assert_eq!(calls.lock().map_or_else(|poisoned| *poisoned.into_inner(), |calls| *calls), 6);
}

#[test]
fn a_callback_may_enqueue_and_block_while_jobs_go_on() {
    let folder = TempStore::new().unwrap();
    let held: Arc<Mutex<Option<Store>>> = Arc::default();
    let (inside, gate) = (Arc::clone(&held), Arc::new(Mutex::new(())));
    let closed = gate.lock().unwrap();
    let waits = Arc::clone(&gate);
    let on_event = move |event: &Event| {
        if let (Happened::Dead { job, .. }, Some(store)) = (&event.what, inside.lock().unwrap().clone()) {
            let _blocked = waits.lock();
            let _ = store.enqueue(&post(&format!("after {}", job.id))).unwrap();
        }
    };
    let store = folder.builder().on_event(on_event).open().unwrap();
    *held.lock().unwrap() = Some(store.clone());
    let runner = Runner::builder(&store).workers(2).handle(handle).start().unwrap();
    let dead = store.enqueue(&post("dead/1")).unwrap().id;
    for n in 0..50 {
        let _ = store.enqueue(&post(&n.to_string())).unwrap();
    }
    wait_until("all are done beside a callback that blocks", || store.stats().unwrap().total.done == 50);
    drop(closed);
    wait_until("its job is done", || store.find("post", &format!("after {dead}")).unwrap().is_some());
    *held.lock().unwrap() = None;
    runner.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn runners_schedules_and_lost_leases_are_told() {
    let (folder, ear) = (TempStore::new().unwrap(), Ear::default());
    let (store, clock) = ear.open(&folder);
    let nightly = || Schedule::cron("nightly", "0 3 * * *").unwrap().catch_up(birkez::calendar::CatchUp::Skip);
    let builder = || Runner::builder(&store).handle(handle).schedule(nightly(), |at| [post(at.id())]);
    drop(Drain::new(builder()).unwrap());
    clock.advance(Duration::from_secs(4 * 86_400));
    let lost = store.enqueue(&post("lost")).unwrap().id;
    run_sql(folder.path(), &format!("INSERT INTO birkez_lease VALUES ({lost}, 4711, 1, 1, 0, 0, 0)"));
    let drain = Drain::new(builder()).unwrap();
    drain.drain().unwrap();
    clock.set("2026-06-04T03:00:10Z".parse().unwrap());
    drain.drain().unwrap();
    drop(drain);
    let runner = Runner::builder(&store).handle(handle).start().unwrap();
    runner.stop(Duration::from_secs(5)).unwrap();
    let heard = rest(&ear, store);
    for line in
        ["missed nightly 4 skipped", "occurrence_made nightly 1", "lease_lost lost", "runner_started", "runner_stopped"]
    {
        assert_eq!(heard.iter().filter(|told| *told == line).count(), 1, "{line} in {heard:#?}");
    }
}

#[test]
fn a_fault_of_the_file_is_told_when_it_begins_and_when_it_ends() {
    let folder = TempStore::new().unwrap();
    let ear = Ear::default();
    let list = Arc::clone(&ear.0);
    let builder = folder.builder().busy_deadline(Duration::from_millis(20));
    let store = builder.on_event(move |event| list.lock().unwrap().push(event.clone())).open().unwrap();
    let gate = Arc::new(Mutex::new(()));
    let (closed, waits) = (gate.lock().unwrap(), Arc::clone(&gate));
    let handler = move |_: Post, _: &Context| {
        drop(waits.lock());
        Ok(())
    };
    let runner = Runner::builder(&store).workers(1).handle(handler).start().unwrap();
    let _ = store.enqueue(&post("a")).unwrap();
    wait_until("it runs", || runner.running() == 1);
    let other = birkez::rusqlite::Connection::open(folder.path()).unwrap();
    other.busy_timeout(Duration::from_secs(10)).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    // Its end is to be written, and cannot.
    drop(closed);
    wait_until("the fault is told", || ear.heard().contains(&"fault_begun".to_owned()));
    // Long enough for several more tries.
    std::thread::sleep(Duration::from_millis(200));
    other.execute_batch("COMMIT").unwrap();
    wait_until("its end is told", || ear.heard().contains(&"fault_ended".to_owned()));
    let told = ear.heard();
    assert_eq!(told.iter().filter(|line| line.starts_with("fault")).count(), 2, "{told:?}");
    runner.stop(Duration::from_secs(5)).unwrap();
}

/// Everything that is said at any level, written out.
#[derive(Clone, Default)]
struct Scribe(Arc<Mutex<String>>);

struct Line<'a>(&'a mut String);

impl Visit for Line<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(self.0, " {field}={value:?}");
    }
}

impl Subscriber for Scribe {
    fn enabled(&self, _: &Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &Attributes<'_>) -> Id {
        let mut text = self.0.lock().unwrap();
        let _ = write!(text, "\nspan {}", span.metadata().name());
        span.record(&mut Line(&mut text));
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, values: &Record<'_>) {
        values.record(&mut Line(&mut self.0.lock().unwrap()));
    }

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut text = self.0.lock().unwrap();
        let _ = write!(text, "\n{}", event.metadata().level());
        event.record(&mut Line(&mut text));
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

const SECRET: &str = "hunter2-4929";

#[test]
fn no_payload_gets_into_the_log_at_any_level() {
    let (folder, ear) = (TempStore::new().unwrap(), Ear::default());
    let scribe = Scribe::default();
    tracing::subscriber::with_default(scribe.clone(), || {
        let (store, clock) = ear.open(&folder);
        let secret = |name: &str| Post { name: name.into(), secret: SECRET.into() };
        for name in ["fine", "fails/1", "dead/1", "parked/1", "panics/1"] {
            let _ = store.enqueue(&secret(name)).unwrap();
        }
        let sql = format!("INSERT INTO birkez_job (kind, key, payload) VALUES ('post', 'odd', '{{\"name\":17,\"secret\":\"{SECRET}\"}}'),
                           ('post', 'other', '\"{SECRET}\"')");
        run_sql(folder.path(), &sql);
        let drain = Drain::new(Runner::builder(&store).handle(handle)).unwrap();
        for _ in 0..3 {
            drain.drain().unwrap();
            clock.advance(Duration::from_secs(86_400));
        }
        store.release(Filter::parked_for("auth"), "Ada").unwrap();
        store.replay(Filter::dead(), Replay::new().everything(), "Ada").unwrap();
        drain.drain().unwrap();
        store.discard(Filter::dead(), "Ada").unwrap();
        let conflict = store.enqueue(&Post { secret: format!("{SECRET}!"), ..secret("fine") });
        assert_eq!(conflict.unwrap_err().code(), "KEY_REUSED");
        let _ = store.once(&secret("mine"), |_| anyhow::bail!("no"));
        drain.drain().unwrap();
        store.health().unwrap();
        drop(drain);
        drop(store);
    });
    let said = scribe.0.lock().unwrap().clone();
    assert!(!said.contains(SECRET), "{said}");
    let told = format!("{:?}", ear.0.lock().unwrap());
    assert!(!told.contains(SECRET), "{told}");
    for part in
        ["span birkez.attempt job=1 kind=\"post\" attempt=1", "event=\"dead\"", "event=\"done\"", "key=\"panics/1\""]
    {
        assert!(said.contains(part), "no {part} in {said}");
    }
}

/// Each row that cannot be dealt with is met at every look.
#[test]
fn a_fault_that_lasts_is_logged_once() {
    let folder = TempStore::new().unwrap();
    let scribe = Scribe::default();
    tracing::subscriber::with_default(scribe.clone(), || {
        let store = folder.open().unwrap();
        run_sql(
            folder.path(),
            "CREATE TRIGGER refuse BEFORE UPDATE ON birkez_job BEGIN SELECT RAISE(ABORT, 'a trigger of the test'); END",
        );
        let _ = store.enqueue(&post("never")).unwrap();
        for _ in 0..40 {
            Drain::new(Runner::builder(&store).handle(handle)).unwrap().drain().unwrap();
        }
    });
    let said = scribe.0.lock().unwrap().clone();
    let faults = said.lines().filter(|line| line.contains("a trigger of the test")).count();
    assert_eq!(faults, 1, "{said}");
}
