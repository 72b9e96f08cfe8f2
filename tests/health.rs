//! What needs attention. What can go wrong: all looks well since the queue is empty, while nobody has evaluated the
//! schedule for weeks; a pause that everybody has forgotten; a need that names nothing that one could act on.

mod common;

use std::sync::Arc;
use std::time::Duration;

use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{Context, Filter, Health, Job, Occurrence, RetryPolicy, Runner, RunnerBuilder, Schedule, Store, Verdicts};
use common::{ask, run_sql};
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
    fn retry() -> RetryPolicy {
        RetryPolicy::default().jitter(0.0)
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

    fn post(&self, name: &str) -> i64 {
        self.store.enqueue(&Post { name: name.into() }).unwrap().id
    }

    fn runner(&self) -> RunnerBuilder {
        let handler = |post: Post, _: &Context| {
            let failed: anyhow::Result<()> = Err(anyhow::anyhow!("no stamp"));
            match post.name.split('/').next() {
                Some("dead") => failed.permanent(),
                Some("parked") => failed.park("auth:bank"),
                _ => Ok(()),
            }
        };
        Runner::builder(&self.store).handle(handler)
    }

    fn nightly(&self) -> RunnerBuilder {
        let map = |at: &Occurrence| [Post { name: format!("fine/{}", at.id()) }];
        self.runner().schedule(Schedule::cron("nightly", "0 3 * * *").unwrap(), map)
    }

    /// A runner that lives and handles the kind, as one of another process.
    fn other_runner(&self) {
        let now = self.clock.now().timestamp_millis();
        run_sql(
            self.folder.path(),
            &format!(
                "DELETE FROM birkez_runner WHERE id = 900; DELETE FROM birkez_presence WHERE runner = 900;
                 INSERT INTO birkez_runner (id, uuid, has_lock, host, pid, program, lease_ms, started_at, heard_at)
                 VALUES (900, 'u', 0, 'h', 1, 'p', 30000, {now}, {now});
                 INSERT INTO birkez_presence (runner, what, name, since) VALUES (900, 'kind', 'post', {now})"
            ),
        );
    }

    fn health(&self) -> Health {
        self.store.health().unwrap()
    }

    fn codes(&self) -> Vec<&'static str> {
        self.health().needs.iter().map(|need| need.code).collect()
    }

    fn text(&self, code: &str) -> String {
        let health = self.health();
        let need = health.needs.iter().find(|need| need.code == code);
        need.unwrap_or_else(|| panic!("no {code} in {health}")).text.clone()
    }
}

#[test]
fn a_store_with_nothing_to_do_is_fine() {
    let desk = Desk::new();
    assert!(desk.health().is_fine());
    desk.post("fine");
    Drain::new(desk.runner()).unwrap().drain().unwrap();
    assert_eq!((desk.codes(), desk.health().to_string().as_str()), (vec![], "fine\n"));
}

/// The queue is empty and nothing has failed: nobody evaluates the schedule any more.
#[test]
fn a_schedule_that_nobody_evaluates_is_named_with_its_last_success() {
    let desk = Desk::new();
    let drain = Drain::new(desk.nightly()).unwrap();
    drain.drain().unwrap();
    let health = desk.health();
    assert!(health.is_fine() && health.schedules[0].last_success.is_none(), "{health}");
    desk.clock.set("2026-05-31T03:00:00Z".parse().unwrap());
    drain.drain().unwrap();
    assert!(desk.health().is_fine(), "{}", desk.health());
    let (occurrence, at) = desk.health().schedules[0].last_success.clone().unwrap();
    assert_eq!((occurrence.as_str(), at), ("2026-05-31T03:00:00", desk.clock.now()));
    drop(drain);
    desk.clock.set("2026-06-01T03:04:00Z".parse().unwrap());
    assert!(desk.health().is_fine(), "due for four minutes only: {}", desk.health());
    desk.clock.set("2026-06-20T12:00:00Z".parse().unwrap());
    assert_eq!(desk.store.stats().unwrap().total.waiting(), 0);
    assert_eq!(desk.codes(), ["no_runner", "schedule_late"]);
    assert_eq!(
        desk.text("schedule_late"),
        "schedule nightly was due at 2026-06-01 03:00:00Z and has not run; \
         its last success was 2026-05-31T03:00:00, at 2026-05-31 03:00:00Z"
    );
    assert!(desk.health().schedules[0].needs_attention);
    Drain::new(desk.nightly()).unwrap().drain().unwrap();
    assert!(!desk.codes().contains(&"schedule_late"), "{}", desk.health());
}

#[test]
fn a_schedule_that_cannot_make_its_jobs_is_paused_or_was_left_behind_says_so() {
    let desk = Desk::new();
    let failing = |_: &Occurrence| -> anyhow::Result<[Post; 1]> { anyhow::bail!("no list of cards") };
    let builder = desk.runner().try_schedule(Schedule::cron("nightly", "0 3 * * *").unwrap(), failing);
    let drain = Drain::new(builder).unwrap();
    drain.drain().unwrap();
    desk.clock.set("2026-05-31T03:01:00Z".parse().unwrap());
    drain.drain().unwrap();
    assert_eq!(desk.codes(), ["schedule_failed"]);
    assert!(desk.text("schedule_failed").contains("no list of cards; it has never succeeded"));
    desk.store.acknowledge_schedule("nightly", "Ada").unwrap();
    assert!(desk.health().is_fine(), "{}", desk.health());
    desk.store.pause_schedule("nightly", "Ada").unwrap();
    assert!(desk.health().is_fine());
    desk.clock.advance(Duration::from_secs(25 * 3_600));
    assert_eq!(desk.codes(), ["schedule_paused"]);
    assert!(desk.text("schedule_paused").contains("is paused by Ada since 2026-05-31 03:01:00Z"));
    run_sql(
        desk.folder.path(),
        "UPDATE birkez_schedule SET orphaned_at = 0, orphan_acknowledged = 0, paused_at = NULL",
    );
    assert!(desk.codes().contains(&"schedule_orphaned"), "{}", desk.health());
}

#[test]
fn occurrences_that_were_missed_and_need_a_person_are_counted() {
    let desk = Desk::new();
    let map = |at: &Occurrence| [Post { name: format!("fine/{}", at.id()) }];
    let each = birkez::calendar::CatchUp::each_of_newest(2);
    let drain = Drain::new(desk.runner().schedule(Schedule::cron("nightly", "0 3 * * *").unwrap().catch_up(each), map));
    let drain = drain.unwrap();
    drain.drain().unwrap();
    desk.clock.advance(Duration::from_secs(5 * 86_400));
    drain.drain().unwrap();
    assert_eq!(desk.codes(), ["schedule_missed"]);
    assert!(
        desk.text("schedule_missed")
            .starts_with("schedule nightly has missed 3 occurrences, the newest 2026-06-02T03:00:00")
    );
    assert_eq!(desk.store.stats().unwrap().missed, 3);
    desk.store.acknowledge_schedule("nightly", "Ada").unwrap();
    assert!(desk.health().is_fine(), "{}", desk.health());
}

#[test]
fn dead_and_parked_jobs_need_attention_until_somebody_has_dealt_with_them() {
    let desk = Desk::new();
    for name in ["dead/1", "dead/2", "parked/1", "parked/2"] {
        desk.post(name);
        desk.clock.advance(Duration::from_secs(1));
        Drain::new(desk.runner()).unwrap().drain().unwrap();
    }
    desk.other_runner();
    assert_eq!(desk.codes(), ["dead", "parked"]);
    assert_eq!(
        desk.text("dead"),
        "2 jobs are dead; the newest is post dead/2 (job 2) (permanent) at 2026-05-30 12:00:02Z"
    );
    assert_eq!(desk.text("parked"), "2 jobs are parked for auth:bank");
    run_sql(desk.folder.path(), "UPDATE birkez_job SET reason = 'unknown_outcome' WHERE key = 'parked/2'");
    assert_eq!(desk.codes(), ["dead", "parked", "unknown_outcome"]);
    desk.store.discard(Filter::dead(), "Ada").unwrap();
    assert_eq!(desk.codes(), ["parked", "unknown_outcome"]);
}

#[test]
fn work_that_nobody_takes_up_needs_attention() {
    let desk = Desk::new();
    desk.post("fine");
    assert_eq!(desk.codes(), ["unhandled", "no_runner"], "at once: nobody is there");
    desk.other_runner();
    assert!(desk.health().is_fine(), "{}", desk.health());
    desk.clock.advance(Duration::from_secs(360));
    desk.other_runner();
    assert_eq!(desk.codes(), ["late"]);
    assert_eq!(desk.text("late"), "the oldest ready job of kind post could have run 6 minutes ago");
    run_sql(desk.folder.path(), "UPDATE birkez_presence SET name = 'other'");
    assert_eq!(desk.codes(), ["unhandled", "late"]);
}

#[test]
fn a_pause_that_was_forgotten_is_named_with_who_and_how_many() {
    let desk = Desk::new();
    let now = desk.clock.now().timestamp_millis();
    run_sql(
        desk.folder.path(),
        &format!("INSERT INTO birkez_pause VALUES ('queue', 'default', {now}, 'Ada', 'the bank is closed')"),
    );
    desk.clock.advance(Duration::from_secs(25 * 3_600));
    assert!(desk.health().is_fine(), "nothing waits because of it");
    desk.post("fine");
    desk.post("fine/2");
    desk.other_runner();
    assert_eq!(desk.codes(), ["paused"]);
    assert_eq!(
        desk.text("paused"),
        "queue default is paused by Ada since 2026-05-30 12:00:00Z (the bank is closed), and 2 jobs are waiting"
    );
}

#[test]
fn a_log_that_cannot_be_taken_in_needs_attention() {
    let desk = Desk::new();
    assert_eq!(ask::<i64>(desk.folder.path(), "SELECT 1"), 1);
    let reader = birkez::rusqlite::Connection::open(desk.folder.path()).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM birkez_job").unwrap();
    desk.store
        .write(|tx| Ok(tx.execute_batch("CREATE TABLE big (x BLOB); INSERT INTO big VALUES (zeroblob(70000000))")?))
        .unwrap();
    assert_eq!(desk.codes(), ["big_wal"]);
    drop(reader);
}
