//! Jobs that tell of deaths and of what did not run. What can go wrong: a death that nobody is told of, or twice, because a
//! process died in between; a notice of a notice, without end; a job that cannot hold what it is to tell.

mod common;

use std::sync::Arc;
use std::time::Duration;

use birkez::calendar::CatchUp;
use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{
    Class, Context, Death, Job, Missed, Occurrence, Replay, Resolution, RetryPolicy, Runner, RunnerBuilder, Schedule,
};
use birkez::{State, Store, Verdicts};
use common::{Child, Log, ask, given, role, rows, run_sql, tell, wait_until};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Post {
    name: String,
}

impl Job for Post {
    const KIND: &'static str = "post";
    type Output = ();
    fn key(&self) -> String {
        self.name.clone()
    }
    fn label(&self) -> Option<String> {
        Some(format!("the letter {}", self.name))
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().jitter(0.0).max_attempts(3).unlimited_total()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct TellDeath(Death);

impl Job for TellDeath {
    const KIND: &'static str = "tell-death";
    type Output = ();
    fn key(&self) -> String {
        self.0.key()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct TellMissed(Missed);

impl Job for TellMissed {
    const KIND: &'static str = "tell-missed";
    type Output = ();
    fn key(&self) -> String {
        self.0.key()
    }
}

/// What a name begins with says how its job ends.
fn post(job: Post, _: &Context) -> anyhow::Result<()> {
    let failed: anyhow::Result<()> = Err(anyhow::anyhow!("no stamp on {}", job.name));
    match job.name.split('/').next() {
        Some("dead") => failed.permanent(),
        Some("parked") => failed.park("auth"),
        Some("fails") => failed,
        _ => Ok(()),
    }
}

struct Desk {
    folder: TempStore,
    clock: Arc<ManualClock>,
    store: Store,
}

impl Desk {
    fn new() -> Desk {
        let folder = TempStore::new().unwrap();
        let clock = ManualClock::at("2026-05-30T12:00:00Z".parse().unwrap());
        let store = folder.builder().clock(clock.clone()).open().unwrap();
        Desk { folder, clock, store }
    }

    fn runner(&self) -> RunnerBuilder {
        Runner::builder(&self.store).handle(post)
    }

    fn post(&self, name: &str) -> i64 {
        self.store.enqueue(&Post { name: name.into() }).unwrap().id
    }

    fn deaths(&self) -> Vec<Death> {
        payloads(&self.store, "tell-death")
    }
}

fn payloads<T: serde::de::DeserializeOwned>(store: &Store, kind: &str) -> Vec<T> {
    let page = birkez::Page::first(500);
    let mut jobs = store.list(&birkez::Filter::all().kind(kind), page).unwrap();
    jobs.sort_by_key(|job| job.id);
    jobs.iter().map(|job| serde_json::from_str(&store.payload(job.id).unwrap().unwrap()).unwrap()).collect()
}

#[test]
fn a_death_is_told_once_with_what_is_to_be_known_of_it_and_a_failed_attempt_is_not() {
    let desk = Desk::new();
    let drain = Drain::new(desk.runner().on_dead::<TellDeath>()).unwrap();
    let job = desk.post("fails/1");
    desk.post("fine");
    for attempt in 1..=3 {
        drain.drain().unwrap();
        assert_eq!(desk.deaths().len(), usize::from(attempt == 3), "after attempt {attempt}");
        desk.clock.advance(Duration::from_secs(86_400));
    }
    let [death] = &desk.deaths()[..] else { panic!("one death") };
    assert_eq!((death.job, death.kind.as_str(), death.key.as_str(), death.attempts), (job, "post", "fails/1", 3));
    assert_eq!(death.label.as_deref(), Some("the letter fails/1"));
    assert_eq!((death.class, death.text.as_str()), (Some(Class::Transient), "no stamp on fails/1"));
    assert_eq!(death.at, desk.store.job(job).unwrap().unwrap().finished_at.unwrap());
    let told = desk.store.find("tell-death", &death.key()).unwrap().unwrap();
    assert_eq!(told.origin, Some(format!("death of job {job}")));
}

#[test]
fn whoever_handles_the_notice_gets_it_in_the_round_of_the_death() {
    let desk = Desk::new();
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let list = Arc::clone(&told);
    let handler = move |TellDeath(death): TellDeath, _: &Context| {
        list.lock().unwrap().push(death.key);
        Ok(())
    };
    let drain = Drain::new(desk.runner().handle(handler).on_dead::<TellDeath>()).unwrap();
    for name in ["dead/1", "dead/2", "parked/1"] {
        desk.post(name);
    }
    drain.drain().unwrap();
    assert_eq!(*told.lock().unwrap(), ["dead/1", "dead/2"]);
}

#[test]
fn a_threaded_runner_is_woken_by_the_notice() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let builder = Runner::builder(&store).look_every(None).handle(post).on_dead::<TellDeath>();
    let runner = builder.handle(|_: TellDeath, _: &Context| Ok(())).start().unwrap();
    let _ = store.enqueue(&Post { name: "dead/1".into() }).unwrap();
    wait_until("the notice is done", || {
        let counts = store.finished().unwrap();
        counts.contains(&("tell-death".to_owned(), State::Done, 1))
    });
    runner.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_death_by_a_persons_word_and_one_by_a_crash_are_told_too() {
    let desk = Desk::new();
    let drain = Drain::new(desk.runner().on_dead::<TellDeath>()).unwrap();
    let parked = desk.post("parked/1");
    drain.drain().unwrap();
    drop(drain);
    desk.store.resolve(parked, Resolution::Dead, "Ada").unwrap();
    // A suspect on its last attempt, charged in its claim, whose process is gone: its lease says that it is dead.
    let crashed = desk.post("fine");
    run_sql(
        desk.folder.path(),
        &format!(
            "UPDATE birkez_job SET attempts = 3 WHERE id = {crashed};
             INSERT INTO birkez_lease VALUES ({crashed}, 4711, 1, 3, 0, 2, 0)"
        ),
    );
    Drain::new(desk.runner().on_dead::<TellDeath>()).unwrap().drain().unwrap();
    let told: Vec<_> = desk.deaths().iter().map(|death| (death.job, death.class)).collect();
    assert_eq!(told, [(parked, Some(Class::Parked)), (crashed, Some(Class::Crashed))]);
}

#[test]
fn a_replayed_job_that_dies_again_is_told_again() {
    let desk = Desk::new();
    let drain = Drain::new(desk.runner().on_dead::<TellDeath>()).unwrap();
    let job = desk.post("dead/1");
    drain.drain().unwrap();
    desk.store.replay(job, Replay::new(), "Ada").unwrap();
    drain.drain().unwrap();
    let deaths = desk.deaths();
    assert_eq!(deaths.iter().map(|death| death.job).collect::<Vec<_>>(), [job, job]);
    assert!(deaths[0].token < deaths[1].token);
}

#[test]
fn the_death_of_a_notice_is_told_by_none() {
    let desk = Desk::new();
    let broken = |_: TellDeath, _: &Context| anyhow::Result::<()>::Err(anyhow::anyhow!("no mail server")).permanent();
    let broken_too = |_: TellMissed, _: &Context| anyhow::Result::<()>::Err(anyhow::anyhow!("none")).permanent();
    let builder = desk.runner().handle(broken).handle(broken_too).on_dead::<TellDeath>().on_missed::<TellMissed>();
    let drain = Drain::new(builder).unwrap();
    desk.post("dead/1");
    drain.drain().unwrap();
    assert_eq!(desk.deaths().len(), 1);
    assert_eq!(desk.store.stats().unwrap().total.dead, 2);
}

#[test]
fn a_program_that_starts_without_its_notices_ends_them() {
    let desk = Desk::new();
    drop(Drain::new(desk.runner().on_dead::<TellDeath>().on_missed::<TellMissed>()).unwrap());
    // A second runner of the same store does not end what the first has asked for.
    drop(Drain::new(desk.runner()).unwrap());
    let asked = || rows(desk.folder.path(), "SELECT what, kind FROM birkez_notice ORDER BY what");
    assert_eq!(asked(), ["[Text(\"dead\"), Text(\"tell-death\")]", "[Text(\"missed\"), Text(\"tell-missed\")]"]);
    let Desk { folder, store, .. } = &desk;
    // Another program's stays.
    run_sql(folder.path(), "INSERT INTO birkez_notice VALUES ('dead', 'tell-other', 1, 'other program')");
    let again = folder.open().unwrap();
    drop(Drain::new(Runner::builder(&again).handle(post)).unwrap());
    assert_eq!(asked().len(), 3, "while another process of the program is alive");
    let path = folder.path().to_owned();
    drop(again);
    let _ = store;
    let folder_kept = desk.folder;
    drop(desk.store);
    let later = folder_kept.open().unwrap();
    drop(Drain::new(Runner::builder(&later).handle(post).on_missed::<TellMissed>()).unwrap());
    let left = rows(&path, "SELECT what, kind FROM birkez_notice ORDER BY what");
    assert_eq!(left, ["[Text(\"dead\"), Text(\"tell-other\")]", "[Text(\"missed\"), Text(\"tell-missed\")]"]);
}

#[derive(Serialize, Deserialize)]
struct Narrow {
    job: i64,
}

impl Job for Narrow {
    const KIND: &'static str = "narrow";
    type Output = ();
    fn key(&self) -> String {
        self.job.to_string()
    }
}

#[derive(Serialize, Deserialize)]
#[serde(transparent)]
struct OtherKey(Death);

impl Job for OtherKey {
    const KIND: &'static str = "other-key";
    type Output = ();
    fn key(&self) -> String {
        self.0.job.to_string()
    }
}

#[test]
fn a_job_that_cannot_hold_a_death_is_refused_at_the_start() {
    let desk = Desk::new();
    let said = |error: birkez::Error| {
        let source = std::error::Error::source(&error).unwrap().to_string();
        (error.code(), error.to_string(), source)
    };
    let narrow = said(desk.runner().on_dead::<Narrow>().start().unwrap_err());
    assert_eq!((narrow.0, narrow.1.as_str()), ("NOTICE_INVALID", "the notices of kind `narrow` cannot be used"));
    assert!(narrow.2.contains("does not encode to what it was decoded from"), "{}", narrow.2);
    let key = said(desk.runner().on_dead::<OtherKey>().start().unwrap_err());
    assert!(key.2.contains("its key is `17` and not"), "{}", key.2);
    let miss = said(desk.runner().on_missed::<TellDeath>().start().unwrap_err());
    assert!(miss.2.contains("it does not decode"), "{}", miss.2);
    assert_eq!(ask::<i64>(desk.folder.path(), "SELECT count(*) FROM birkez_notice"), 0);
}

#[test]
fn occurrences_that_need_attention_are_told_once_a_record() {
    let desk = Desk::new();
    let builder = || {
        let nightly = Schedule::cron("nightly", "0 3 * * *").unwrap().catch_up(CatchUp::each_of_newest(2));
        let map = |at: &Occurrence| [Post { name: format!("fine/{}", at.id()) }];
        desk.runner().schedule(nightly, map).on_missed::<TellMissed>()
    };
    let drain = Drain::new(builder()).unwrap();
    drain.drain().unwrap();
    desk.clock.advance(Duration::from_secs(5 * 86_400));
    drain.drain().unwrap();
    drain.drain().unwrap();
    let told: Vec<Missed> = payloads(&desk.store, "tell-missed");
    let records = desk.store.missed("nightly", 10).unwrap();
    let [record] = &records[..] else { panic!("one record: {records:?}") };
    let [missed] = &told[..] else { panic!("told once: {told:?}") };
    assert_eq!((missed.schedule.as_str(), missed.reason.as_str(), missed.count), ("nightly", "over_max", record.count));
    assert_eq!((&missed.first, &missed.last, missed.at), (&record.first, &record.last, record.at));
}

#[test]
fn child_role() {
    match role().as_deref() {
        Some("work") => work(),
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

fn work() {
    let store = Store::open(given("FILE")).unwrap();
    let log = Log::beside(store.path());
    let handler = move |TellDeath(death): TellDeath, cx: &Context| {
        log.note(format!("told {}", death.job));
        cx.commit(|_| Ok(()))
    };
    // Long enough that the parent kills it in the middle.
    let slow = |job: Post, cx: &Context| {
        std::thread::sleep(Duration::from_millis(1));
        post(job, cx)
    };
    let runner =
        Runner::builder(&store).workers(2).handle(slow).handle(handler).on_dead::<TellDeath>().start().unwrap();
    tell("works");
    loop {
        std::thread::sleep(Duration::from_secs(1));
        std::hint::black_box(&runner);
    }
}

/// Killed with SIGKILL at moments that chance chooses: between death and notice there is no moment.
#[test]
fn each_death_is_told_by_exactly_one_job_whenever_the_process_is_killed() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let jobs: Vec<_> = (0..400).map(|n| Post { name: format!("{}/{n}", ["dead", "fine"][n % 2]) }).collect();
    store.enqueue_all(&jobs).unwrap();
    let file = [("FILE", folder.path())];
    let left = || ask::<i64>(folder.path(), "SELECT count(*) FROM birkez_job WHERE state < 2");
    let mut seed = 7_u64;
    for _ in 0..6 {
        let mut child = Child::start("work", &file);
        child.expect("works");
        seed = seed.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        std::thread::sleep(Duration::from_millis(seed >> 33 & 31));
        child.kill();
        let unpaired = "SELECT count(*) FROM birkez_job AS job WHERE state = 3 AND kind = 'post' AND
                        1 <> (SELECT count(*) FROM birkez_job AS told WHERE told.kind = 'tell-death'
                              AND json_extract(told.payload, '$.job') = job.id)";
        assert_eq!(ask::<i64>(folder.path(), unpaired), 0);
        assert_eq!(store.check_counts().unwrap(), []);
    }
    let mut child = Child::start("work", &file);
    child.expect("works");
    wait_until("all has ended", || left() == 0);
    child.kill();
    let counted = store.finished().unwrap();
    let of = |kind: &str, state| counted.iter().find(|(k, s, _)| k == kind && *s == state).map_or(0, |(_, _, n)| *n);
    assert_eq!((of("post", State::Dead), of("post", State::Done), of("tell-death", State::Done)), (200, 200, 200));
    assert!(Log::beside(folder.path()).count("told") >= 200);
}
