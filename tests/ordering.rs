//! The jobs of an ordering key could overtake each other: by a retry, a crash, a second worker, a second process, another
//! kind or a plain INSERT; or one that is stuck could hold up those of other keys.

mod common;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{Context, DeadHead, Job, Resolution, RetryPolicy, Runner, State, Store, Verdicts};
use common::{Child, Log, ask, given, run_sql, tell, wait_until};
use serde::{Deserialize, Serialize};

/// The `n`th change of something.
#[derive(Clone, Serialize, Deserialize)]
struct Change {
    of: String,
    n: u32,
}

impl Job for Change {
    const KIND: &'static str = "change";
    type Output = u32;
    fn key(&self) -> String {
        format!("{}/{}", self.of, self.n)
    }
    fn ordering_key(&self) -> Option<String> {
        Some(self.of.clone())
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().max_attempts(3).base(Duration::from_millis(1)).jitter(0.0)
    }
}

/// Of the same lines, but one that is dead holds nobody up; and more urgent, which counts only between lines.
#[derive(Clone, Serialize, Deserialize)]
struct Hint {
    of: String,
    n: u32,
}

impl Job for Hint {
    const KIND: &'static str = "hint";
    const DEAD_HEAD: DeadHead = DeadHead::PassedOver;
    type Output = u32;
    fn key(&self) -> String {
        format!("{}/{}", self.of, self.n)
    }
    fn ordering_key(&self) -> Option<String> {
        Some(self.of.clone())
    }
    fn priority(&self) -> i32 {
        9
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().max_attempts(1)
    }
}

fn change(of: &str, n: u32) -> Change {
    Change { of: of.to_owned(), n }
}

fn hint(of: &str, n: u32) -> Hint {
    Hint { of: of.to_owned(), n }
}

/// What has run, in order, as `of/n`.
type Seen = std::sync::Arc<Mutex<Vec<String>>>;

/// A drain whose handlers ask `fails` what to do.
fn drain(store: &Store, seen: &Seen, fails: fn(&str, &Context) -> anyhow::Result<()>) -> Drain {
    let (first, second) = (seen.clone(), seen.clone());
    let changes = move |job: Change, cx: &Context| {
        fails(cx.key(), cx)?;
        first.lock().unwrap().push(job.key());
        Ok(job.n)
    };
    let hints = move |job: Hint, cx: &Context| {
        fails(cx.key(), cx)?;
        second.lock().unwrap().push(job.key());
        Ok(job.n)
    };
    Drain::new(Runner::builder(store).handle(changes).handle(hints)).unwrap()
}

fn never(_: &str, _: &Context) -> anyhow::Result<()> {
    Ok(())
}

fn seen(seen: &Seen) -> String {
    seen.lock().unwrap().join(" ")
}

#[test]
fn jobs_of_one_key_run_in_the_order_they_were_enqueued_in_whatever_their_kind_and_priority() {
    let folder = TempStore::new().unwrap();
    let (store, ran) = (folder.open().unwrap(), Seen::default());
    let drain = drain(&store, &ran, never);
    // In one transaction, or the first would be claimed before the others are there.
    let all = store.write(|tx| {
        let fresh = [
            store.enqueue_in(tx, &change("a", 1))?.is_fresh(),
            store.enqueue_in(tx, &hint("a", 2))?.is_fresh(),
            store.enqueue_in(tx, &change("a", 3))?.is_fresh(),
            store.enqueue_in(tx, &hint("b", 1))?.is_fresh(),
        ];
        Ok(fresh)
    });
    assert_eq!(all.unwrap(), [true; 4]);
    assert_eq!(drain.drain().unwrap(), 4);
    // Between the heads of lines priority counts.
    assert_eq!(seen(&ran), "b/1 a/1 a/2 a/3");
}

#[test]
fn a_retry_holds_its_line_back_and_no_other() {
    let folder = TempStore::new().unwrap();
    let clock = ManualClock::at("2026-03-01T12:00:00Z".parse().unwrap());
    let (store, ran) = (folder.builder().clock(clock.clone()).open().unwrap(), Seen::default());
    let drain = drain(&store, &ran, |key, cx| {
        anyhow::ensure!(key != "a/1" || cx.attempt() == 3, "not yet");
        Ok(())
    });
    let _ = store.enqueue_all(&[change("a", 1), change("a", 2), change("b", 1), change("b", 2)]).unwrap();
    drain.drain().unwrap();
    assert_eq!(seen(&ran), "b/1 b/2");
    let gate = |key: &str| ask::<i64>(store.path(), &format!("SELECT gate FROM birkez_job WHERE key = '{key}'"));
    assert_eq!((gate("a/1"), gate("a/2")), (0, 2));
    for _ in 0..2 {
        clock.advance(Duration::from_secs(60));
        drain.drain().unwrap();
    }
    assert_eq!(seen(&ran), "b/1 b/2 a/1 a/2");
}

#[test]
fn a_job_that_is_stored_for_later_holds_back_what_was_enqueued_after_it() {
    let folder = TempStore::new().unwrap();
    let clock = ManualClock::at("2026-03-01T12:00:00Z".parse().unwrap());
    let (store, ran) = (folder.builder().clock(clock.clone()).open().unwrap(), Seen::default());
    let drain = drain(&store, &ran, never);
    let later = clock.now().timestamp_millis() + 60_000;
    // A script's INSERT stands in its line too, from its own number on.
    run_sql(
        store.path(),
        &format!(
            r#"INSERT INTO birkez_job (kind, key, payload, ordering_key, run_at)
               VALUES ('change', 'a/1', '{{"of":"a","n":1}}', 'a', {later}), ('change', 'a/2', '{{"of":"a","n":2}}', 'a', 0)"#
        ),
    );
    let _ = store.enqueue(&change("a", 3)).unwrap();
    assert_eq!(drain.drain().unwrap(), 0, "{}", seen(&ran));
    clock.advance(Duration::from_secs(60));
    assert_eq!(drain.drain().unwrap(), 3);
    assert_eq!(seen(&ran), "a/1 a/2 a/3");
}

#[test]
fn a_parked_head_holds_its_line_until_it_is_resumed() {
    let folder = TempStore::new().unwrap();
    let (store, ran) = (folder.open().unwrap(), Seen::default());
    static PARKED: AtomicBool = AtomicBool::new(true);
    let drain = drain(&store, &ran, |key, _| {
        let waits = key == "a/1" && PARKED.load(Ordering::SeqCst);
        if waits { Err(anyhow::anyhow!("401")).park("auth") } else { Ok(()) }
    });
    let _ = store.enqueue_all(&[change("a", 1), change("a", 2), change("b", 1)]).unwrap();
    drain.drain().unwrap();
    assert_eq!(seen(&ran), "b/1");
    PARKED.store(false, Ordering::SeqCst);
    assert_eq!(store.resume("auth", "a person").unwrap(), 1);
    drain.drain().unwrap();
    assert_eq!(seen(&ran), "b/1 a/1 a/2");
}

#[test]
fn a_dead_head_holds_its_line_or_is_passed_over_as_its_kind_says() {
    let folder = TempStore::new().unwrap();
    let (store, ran) = (folder.open().unwrap(), Seen::default());
    let drain = drain(&store, &ran, |key, _| match key {
        "a/1" | "b/1" => Err(anyhow::anyhow!("no such account")).permanent(),
        _ => Ok(()),
    });
    let _ = store.enqueue(&change("a", 1)).unwrap();
    let _ = store.enqueue(&hint("a", 2)).unwrap();
    let _ = store.enqueue(&hint("b", 1)).unwrap();
    let _ = store.enqueue(&change("b", 2)).unwrap();
    drain.drain().unwrap();
    assert_eq!(seen(&ran), "b/2");
    assert_eq!(store.find("hint", "a/2").unwrap().unwrap().state, State::Waiting);
    // What comes to a line that is held stands behind, too.
    let _ = store.enqueue(&hint("a", 3)).unwrap();
    assert_eq!(drain.drain().unwrap(), 0);
}

#[test]
fn a_persons_decision_moves_the_line_up() {
    let folder = TempStore::new().unwrap();
    let (store, ran) = (folder.open().unwrap(), Seen::default());
    let drain = drain(&store, &ran, |key, _| match key.ends_with("/1") {
        true => Err(anyhow::anyhow!("asked")).park("person"),
        false => Ok(()),
    });
    for of in ["done", "dead", "retry"] {
        let _ = store.enqueue_all(&[change(of, 1), change(of, 2)]).unwrap();
    }
    drain.drain().unwrap();
    assert_eq!(seen(&ran), "");
    let id = |of: &str| store.find("change", &format!("{of}/1")).unwrap().unwrap().id;
    store.resolve(id("done"), Resolution::done(&1).unwrap(), "a person").unwrap();
    store.resolve(id("dead"), Resolution::Dead, "a person").unwrap();
    store.resolve(id("retry"), Resolution::Retry, "a person").unwrap();
    drain.drain().unwrap();
    assert_eq!(seen(&ran), "done/2", "a dead one of this kind holds its line, one that is tried again is parked again");
}

#[test]
fn once_stands_in_no_line() {
    let folder = TempStore::new().unwrap();
    let (store, ran) = (folder.open().unwrap(), Seen::default());
    let drain = drain(&store, &ran, never);
    let _ = store.enqueue(&change("a", 1)).unwrap();
    assert_eq!(store.once(&change("a", 2), |_| Ok(2)).unwrap(), 2);
    assert!(store.once(&change("a", 3), |_| anyhow::bail!("not now")).is_err());
    let _ = store.enqueue(&change("a", 4)).unwrap();
    assert_eq!(drain.drain().unwrap(), 2);
    assert_eq!(seen(&ran), "a/1 a/4");
}

/// The newest state of something; `at` is the sender's time stamp.
#[derive(Clone, Serialize, Deserialize)]
struct Update {
    of: String,
    at: i64,
    event: u32,
}

impl Job for Update {
    const KIND: &'static str = "update";
    type Output = u32;
    fn key(&self) -> String {
        self.event.to_string()
    }
    fn ordering_key(&self) -> Option<String> {
        Some(self.of.clone())
    }
    fn version(&self) -> Option<i64> {
        Some(self.at)
    }
}

#[test]
fn what_is_older_than_what_has_been_done_is_not_applied_and_says_so() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let ran = std::sync::Arc::new(Mutex::new(Vec::new()));
    let noted = ran.clone();
    let handler = move |job: Update, _: &Context| {
        noted.lock().unwrap().push(job.event);
        Ok(job.event)
    };
    let drain = Drain::new(Runner::builder(&store).handle(handler)).unwrap();
    let update = |event, at| Update { of: "subscription".to_owned(), at, event };
    // Delivered out of order, and one of them twice; the third has the newest one's time.
    for (event, at) in [(2, 66), (1, 65), (2, 66), (3, 66), (4, 70)] {
        let _ = store.enqueue(&update(event, at)).unwrap();
    }
    drain.drain().unwrap();
    assert_eq!(*ran.lock().unwrap(), [2, 3, 4]);
    let old = store.find("update", "1").unwrap().unwrap();
    assert_eq!((old.state, old.attempts), (State::Cancelled, 0));
    let failure = old.last_failure.unwrap();
    assert_eq!(failure.class, birkez::Class::Superseded, "{}", failure.text);
    assert!(store.finished().unwrap().contains(&("update".to_owned(), State::Cancelled, 1)));
}

#[test]
fn what_a_person_calls_done_counts_as_done_for_older_versions() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let handler = |job: Update, _: &Context| match job.event {
        1 => Err(anyhow::anyhow!("asked")).park("person"),
        event => Ok(event),
    };
    let drain = Drain::new(Runner::builder(&store).handle(handler)).unwrap();
    let update = |event, at| Update { of: "subscription".to_owned(), at, event };
    let newest = store.enqueue(&update(1, 9)).unwrap().id;
    drain.drain().unwrap();
    store.resolve(newest, Resolution::done(&1).unwrap(), "a person").unwrap();
    let _ = store.enqueue_all(&[update(2, 3), update(3, 9)]).unwrap();
    assert_eq!(drain.drain().unwrap(), 1, "behind the old one, in the same drain");
    let state = |key: &str| store.find("update", key).unwrap().unwrap().state;
    assert_eq!((state("2"), state("3")), (State::Cancelled, State::Done));
}

#[test]
fn what_comes_after_one_that_is_called_off_does_not_wait_for_another_look() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let drain = Drain::new(Runner::builder(&store).handle(|job: Update, _: &Context| Ok(job.event))).unwrap();
    let update = |of: &str, event, at| Update { of: of.to_owned(), at, event };
    let _ = store.enqueue(&update("one", 1, 9)).unwrap();
    drain.drain().unwrap();
    // From elsewhere, so that all is claimed in a look; nobody stands behind the old one.
    let _ = folder.open().unwrap().enqueue_all(&[update("one", 2, 3), update("other", 3, 1)]).unwrap();
    assert_eq!(drain.drain().unwrap(), 1);
    let state = |key: &str| store.find("update", key).unwrap().unwrap().state;
    assert_eq!((state("2"), state("3")), (State::Cancelled, State::Done));
}

#[test]
fn what_stands_behind_many_old_versions_runs_at_once() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let (ran, seen) = std::sync::mpsc::channel();
    let handler = move |job: Update, _: &Context| {
        ran.send(job.event)?;
        Ok(job.event)
    };
    let _runner = Runner::builder(&store).look_every(None).handle(handler).start().unwrap();
    let update = |event, at| Update { of: "subscription".to_owned(), at, event };
    let _ = store.enqueue(&update(1, 100)).unwrap();
    let wait = Duration::from_secs(10);
    assert_eq!(seen.recv_timeout(wait), Ok(1));
    wait_until("it is done", || store.find("update", "1").unwrap().unwrap().state == State::Done);
    let old: Vec<_> = (2..800).map(|event| update(event, 50)).chain([update(800, 200)]).collect();
    let _ = store.enqueue_all(&old).unwrap();
    assert_eq!(seen.recv_timeout(wait), Ok(800));
    assert_eq!(ask::<u32>(store.path(), "SELECT count(*) FROM birkez_job WHERE state = 4"), 798);
    assert_eq!(ask::<u32>(store.path(), "SELECT n FROM birkez_count WHERE state = 4"), 798);
}

#[test]
fn a_line_that_does_not_move_is_listed_with_its_head_and_the_reason() {
    let folder = TempStore::new().unwrap();
    let clock = ManualClock::at("2026-03-01T12:00:00Z".parse().unwrap());
    let (store, ran) = (folder.builder().clock(clock.clone()).open().unwrap(), Seen::default());
    let drain = drain(&store, &ran, |key, _| match key {
        "dead/1" => Err(anyhow::anyhow!("no such account")).permanent(),
        "parked/1" => Err(anyhow::anyhow!("401")).park("auth"),
        "retried/1" => anyhow::bail!("no route"),
        _ => Ok(()),
    });
    let jobs: Vec<_> =
        ["dead", "parked", "retried", "free"].iter().flat_map(|of| [change(of, 1), change(of, 2)]).collect();
    let _ = store.enqueue_all(&jobs).unwrap();
    // Nobody waits behind it.
    let _ = store.enqueue(&change("alone", 1)).unwrap();
    clock.advance(Duration::from_secs(1));
    drain.drain().unwrap();
    let held = store.blocked_keys().unwrap();
    let told: Vec<_> =
        held.iter().map(|line| format!("{} {} {}", line.ordering_key, line.head.key, line.why)).collect();
    let wanted = [
        "dead dead/1 is dead (permanent: no such account)",
        "parked parked/1 is parked for auth",
        "retried retried/1 is tried again at",
    ];
    assert_eq!(told.len(), wanted.len(), "{told:?}");
    for (told, wanted) in told.iter().zip(wanted) {
        assert!(told.starts_with(wanted), "{told}");
    }
    assert!(held.iter().all(|line| line.since == Some(clock.now())), "{held:?}");
}

const KEYS: u32 = 60;
const JOBS: u32 = 10;

fn name(of: u32) -> String {
    format!("line-{of}")
}

/// Fails one in seven attempts, and kills its process at one in a hundred and twenty.
fn start(path: &Path, log: Log) -> (Store, Runner) {
    let store = Store::builder(path).lease(Duration::from_secs(1)).open().unwrap();
    let handler = move |job: Change, cx: &Context| {
        match fastrand::u32(..120) {
            0 => std::process::abort(),
            1..18 => anyhow::bail!("by chance"),
            _ => {}
        }
        log.note(format!("{} {} {}", job.of, job.n, std::process::id()));
        cx.commit(|tx| {
            tx.execute("INSERT INTO effect (line, n) VALUES (?1, ?2)", (&job.of, job.n))?;
            Ok(job.n)
        })
    };
    let runner = Runner::builder(&store).workers(4).handle(handler).start().unwrap();
    (store, runner)
}

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("work") => {
            let path = given("DB");
            let _running = start(Path::new(&path), Log::beside(Path::new(&path)));
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
fn the_order_of_effects_is_the_order_of_enqueueing_with_failures_and_kills_in_two_processes() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    run_sql(folder.path(), "CREATE TABLE effect (at INTEGER PRIMARY KEY AUTOINCREMENT, line TEXT, n INTEGER)");
    let (keys, jobs) = (common::rounds("BIRKEZ_LINES", KEYS), common::rounds("BIRKEZ_LINE_JOBS", JOBS));
    for n in 0..jobs {
        let round: Vec<_> = (0..keys).map(|of| change(&name(of), n)).collect();
        let _ = store.enqueue_all(&round).unwrap();
    }
    let begin = || Child::start("work", &[("DB", folder.path())]);
    let mut workers = [begin(), begin()];
    // By chance one dies of three failures: a person lets it run again.
    let mut killed = 0;
    wait_until("all are done", || {
        for worker in &mut workers {
            if worker.has_ended() {
                killed += 1;
                *worker = begin();
            }
        }
        run_sql(
            folder.path(),
            "UPDATE birkez_job SET state = 0, gate = 0, run_at = 0, attempts = 0, finished_at = NULL WHERE state = 3",
        );
        ask::<u32>(folder.path(), "SELECT count(*) FROM birkez_job WHERE state = 2") == keys * jobs
    });
    println!("{} effects, {killed} processes died", keys * jobs);
    let mut order: BTreeMap<String, Vec<u32>> = BTreeMap::new();
    let file = birkez::rusqlite::Connection::open(folder.path()).unwrap();
    let mut effects = file.prepare("SELECT line, n FROM effect ORDER BY at").unwrap();
    for effect in effects.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap() {
        let (line, n) = effect.unwrap();
        order.entry(line).or_default().push(n);
    }
    let wanted: Vec<u32> = (0..jobs).collect();
    assert_eq!(order.len() as u32, keys);
    for (line, effects) in order {
        assert_eq!(effects, wanted, "{line}");
    }
}
