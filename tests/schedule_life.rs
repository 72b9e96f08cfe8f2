//! What becomes of occurrences that nobody was there for, of runs that last too long, and of what people ask of a schedule.
//!
//! Runs in one thread on a clock that is moved by hand; a second store on the same file stands for a second process. One test
//! has a real one, on the machine's clock.

mod common;

use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use birkez::calendar::CatchUp;
use birkez::rusqlite::Connection;
use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{
    Context, Job, KeptSchedule, Occurrence, Overlap, Runner, RunnerBuilder, Schedule, State, Store, Verdicts,
};
use chrono::{DateTime, Utc};
use common::{Child, Log, given, tell, wait_within};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Tick {
    slot: String,
    lateness_ms: u64,
    missed: u32,
}

impl Job for Tick {
    const KIND: &'static str = "tick";
    type Output = ();
    fn key(&self) -> String {
        self.slot.clone()
    }
    fn fingerprint(&self) -> Option<serde_json::Value> {
        Some(self.slot.clone().into())
    }
}

fn tick(at: &Occurrence) -> Option<Tick> {
    let lateness_ms = at.lateness().as_millis() as u64;
    Some(Tick { slot: at.id().to_owned(), lateness_ms, missed: at.missed_count() })
}

struct Desk {
    folder: TempStore,
    clock: Arc<ManualClock>,
    /// Handlers park instead of finishing while this is set.
    hold: Arc<AtomicBool>,
}

impl Desk {
    fn at(time: &str) -> Desk {
        Desk { folder: TempStore::new().unwrap(), clock: ManualClock::at(utc(time)), hold: Arc::default() }
    }

    fn store(&self) -> Store {
        self.folder.builder().clock(self.clock.clone()).open().unwrap()
    }

    fn runner(&self, store: &Store) -> RunnerBuilder {
        let hold = Arc::clone(&self.hold);
        Runner::builder(store).handle(move |_: Tick, _: &Context| match hold.load(Ordering::Acquire) {
            true => Err(anyhow::anyhow!("held")).park("hold"),
            false => Ok(()),
        })
    }

    fn drain(&self, store: &Store, schedule: Schedule) -> Drain {
        Drain::new(self.runner(store).schedule(schedule, tick)).unwrap()
    }

    /// Lets the clock run to a time, minute by minute, with an evaluation at each.
    fn run_to(&self, time: &str, drain: &Drain) {
        while self.clock.now() < utc(time) {
            self.clock.advance(Duration::from_secs(60));
            drain.drain().unwrap();
        }
    }

    fn made(&self) -> Vec<String> {
        let file = Connection::open(self.folder.path()).unwrap();
        let mut ask = file.prepare("SELECT key FROM birkez_job ORDER BY id").unwrap();
        ask.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
    }

    fn missed(&self, store: &Store, name: &str) -> Vec<(String, String, u32, String)> {
        let missed = store.missed(name, 100).unwrap().into_iter().rev();
        missed.map(|gap| (gap.first, gap.last, gap.count, gap.reason)).collect()
    }
}

fn utc(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn hourly() -> Schedule {
    Schedule::cron("hourly", "0 * * * *").unwrap().zone("UTC").unwrap()
}

fn gap(first: &str, last: &str, count: u32, reason: &str) -> (String, String, u32, String) {
    (first.to_owned(), last.to_owned(), count, reason.to_owned())
}

#[test]
fn after_an_absence_each_policy_runs_and_records_what_it_says() {
    let (h1, h4, h5) = ("2026-05-01T01:00:00Z", "2026-05-01T04:00:00Z", "2026-05-01T05:00:00Z");
    let all = ["2026-05-01T01:00:00Z", "2026-05-01T02:00:00Z", "2026-05-01T03:00:00Z", h4, h5];
    for (policy, ran, records, attention) in [
        (CatchUp::Latest, &all[4..], vec![gap(h1, h4, 4, "newer")], false),
        (CatchUp::Skip, &all[5..], vec![gap(h1, h5, 5, "skipped")], false),
        (CatchUp::each(), &all[..], vec![], false),
        (CatchUp::each_of_newest(3), &all[2..], vec![gap(h1, "2026-05-01T02:00:00Z", 2, "over_max")], true),
    ] {
        let desk = Desk::at("2026-05-01T00:30:00Z");
        let store = desk.store();
        let drain = desk.drain(&store, hourly().catch_up(policy));
        drain.drain().unwrap();
        desk.clock.set(utc("2026-05-01T05:30:00Z"));
        drain.drain().unwrap();
        assert_eq!(desk.made(), ran, "{policy:?}");
        assert_eq!(desk.missed(&store, "hourly"), records, "{policy:?}");
        assert_eq!(store.schedules().unwrap()[0].needs_attention, attention, "{policy:?}");
        // And no more than that, however often it is looked at.
        drain.drain().unwrap();
        assert_eq!(desk.made().len(), ran.len(), "{policy:?}");
    }
}

#[test]
fn a_run_is_told_how_late_it_is_and_what_it_stands_for() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let store = desk.store();
    let drain = desk.drain(&store, hourly());
    drain.drain().unwrap();
    desk.clock.set(utc("2026-05-01T05:30:00Z"));
    drain.drain().unwrap();
    let file = Connection::open(desk.folder.path()).unwrap();
    let payload: String = file.query_row("SELECT payload FROM birkez_job", [], |row| row.get(0)).unwrap();
    let told: Tick = serde_json::from_str(&payload).unwrap();
    assert_eq!((told.lateness_ms, told.missed), (30 * 60 * 1000, 4));
}

#[test]
fn what_is_older_than_the_longest_age_never_runs() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let store = desk.store();
    let schedule = hourly().catch_up(CatchUp::each()).max_age(Duration::from_secs(2 * 3600));
    let drain = desk.drain(&store, schedule);
    drain.drain().unwrap();
    desk.clock.set(utc("2026-05-01T05:30:00Z"));
    drain.drain().unwrap();
    assert_eq!(desk.made(), ["2026-05-01T04:00:00Z", "2026-05-01T05:00:00Z"]);
    assert_eq!(desk.missed(&store, "hourly"), [gap("2026-05-01T01:00:00Z", "2026-05-01T03:00:00Z", 3, "too_old")]);
}

#[test]
fn a_run_that_lasts_keeps_the_next_from_starting_unless_overlap_is_allowed() {
    for (overlap, while_held, after, records) in
        [(Overlap::Skip, 1, 1, 4), (Overlap::QueueOne, 1, 2, 3), (Overlap::Allow, 5, 5, 0)]
    {
        let desk = Desk::at("2026-05-01T00:59:30Z");
        let store = desk.store();
        let every = Schedule::cron("often", "* * * * *").unwrap().zone("UTC").unwrap().overlap(overlap);
        let drain = desk.drain(&store, every);
        desk.hold.store(true, Ordering::Release);
        desk.run_to("2026-05-01T01:04:30Z", &drain);
        assert_eq!(desk.made().len(), while_held, "{overlap:?}");
        desk.hold.store(false, Ordering::Release);
        store.resume("hold", "a person").unwrap();
        drain.drain().unwrap();
        drain.drain().unwrap();
        assert_eq!(desk.made().len(), after, "{overlap:?}");
        let skipped: u32 = store.missed("often", 100).unwrap().iter().map(|gap| gap.count).sum();
        assert_eq!(skipped, records, "{overlap:?}");
        if overlap == Overlap::QueueOne {
            assert_eq!(desk.made()[1], "2026-05-01T01:04:00Z", "the newest has waited");
        }
    }
}

#[test]
fn what_is_caught_up_one_by_one_is_never_skipped_for_overlap() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let store = desk.store();
    let drain = desk.drain(&store, hourly().catch_up(CatchUp::each()));
    drain.drain().unwrap();
    desk.hold.store(true, Ordering::Release);
    desk.clock.set(utc("2026-05-01T04:30:00Z"));
    drain.drain().unwrap();
    assert_eq!(desk.made(), ["2026-05-01T01:00:00Z"], "the second waits for the first");
    desk.hold.store(false, Ordering::Release);
    store.resume("hold", "a person").unwrap();
    for _ in 0..4 {
        drain.drain().unwrap();
    }
    assert_eq!(desk.made().len(), 4);
    assert_eq!(desk.missed(&store, "hourly"), []);
}

#[test]
fn a_pause_survives_a_restart_and_what_came_due_meanwhile_does_not_run() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let store = desk.store();
    drop(desk.drain(&store, hourly()));
    assert!(store.pause_schedule("hourly", "the office").unwrap());
    assert!(!store.pause_schedule("hourly", "again").unwrap());
    drop(store);
    let store = desk.store();
    let drain = desk.drain(&store, hourly().catch_up(CatchUp::each()));
    desk.run_to("2026-05-01T03:10:00Z", &drain);
    assert_eq!(desk.made(), [""; 0]);
    let shown = store.schedules().unwrap().remove(0);
    assert_eq!((shown.paused_by.as_deref(), shown.next), (Some("the office"), None));
    assert!(store.resume_schedule("hourly", "a test").unwrap());
    desk.run_to("2026-05-01T04:10:00Z", &drain);
    assert_eq!(desk.made(), ["2026-05-01T04:00:00Z"]);
    assert_eq!(desk.missed(&store, "hourly"), [gap("2026-05-01T01:00:00Z", "2026-05-01T03:00:00Z", 3, "paused")]);
}

#[test]
fn a_slot_that_was_run_early_or_marked_done_does_not_come_again() {
    let desk = Desk::at("2026-05-29T12:00:00Z");
    let store = desk.store();
    let monthly = Schedule::monthly("card", 4, "09:00").unwrap().zone("Europe/Istanbul").unwrap();
    let drain = desk.drain(&store, monthly);
    drain.drain().unwrap();
    assert!(store.run_schedule("card", Some("2026-06-04T09:00:00"), "a test").unwrap());
    assert!(store.run_schedule("card", Some("2026-06-04T09:00:00"), "a test").unwrap());
    assert!(store.run_schedule("card", Some("2026-06-05T09:00:00"), "a test").unwrap());
    assert!(store.mark_occurrence_done("card", "2026-07-04T09:00:00", "a test").unwrap());
    assert!(!store.mark_occurrence_done("card", "2026-07-04T09:00:00", "a test").unwrap());
    assert_eq!(
        store.mark_occurrence_done("card", "2026-07-05T09:00:00", "a test").unwrap_err().code(),
        "SCHEDULE_INVALID"
    );
    drain.drain().unwrap();
    assert_eq!(desk.made(), ["2026-06-04T09:00:00"]);
    let answers = store.schedule_requests("card", 10).unwrap();
    assert!(answers[0].answer.as_ref().unwrap().contains("no occurrence"), "{answers:?}");
    for month in ["2026-06-04T10:00:00Z", "2026-07-04T10:00:00Z", "2026-08-04T10:00:00Z"] {
        desk.clock.set(utc(month));
        drain.drain().unwrap();
    }
    assert_eq!(desk.made(), ["2026-06-04T09:00:00", "2026-08-04T09:00:00"]);
}

#[test]
fn a_run_asked_for_without_a_slot_takes_none() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let store = desk.store();
    let drain = desk.drain(&store, hourly());
    drain.drain().unwrap();
    assert!(store.run_schedule("hourly", None, "a test").unwrap());
    assert!(!store.run_schedule("nowhere", None, "a test").unwrap());
    drain.drain().unwrap();
    desk.run_to("2026-05-01T01:05:00Z", &drain);
    assert_eq!(desk.made(), ["asked-1", "2026-05-01T01:00:00Z"]);
}

#[test]
fn a_back_fill_makes_what_is_missing_of_its_dates_under_the_same_ids() {
    let desk = Desk::at("2026-05-10T12:00:00Z");
    let store = desk.store();
    let daily = Schedule::daily("daily", "03:00").unwrap().zone("UTC").unwrap();
    let drain = desk.drain(&store, daily);
    drain.drain().unwrap();
    let date = |text: &str| text.parse().unwrap();
    for _ in 0..2 {
        assert!(store.backfill_schedule("daily", date("2026-05-08"), date("2026-05-12"), "a test").unwrap());
        drain.drain().unwrap();
    }
    assert_eq!(desk.made(), ["2026-05-08T03:00:00", "2026-05-09T03:00:00", "2026-05-10T03:00:00"]);
    assert_eq!(store.schedule_requests("daily", 1).unwrap()[0].answer.as_deref(), Some("made 0"));
    // What has come due since runs once, though the dates were asked for.
    desk.clock.set(utc("2026-05-11T03:01:00Z"));
    drain.drain().unwrap();
    assert_eq!(desk.made().len(), 4);
}

#[test]
fn a_schedule_kept_in_the_file_runs_without_a_function_in_any_process_that_handles_its_kind() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let (app, other) = (desk.store(), desk.store());
    let payload = serde_json::json!({"slot": "x", "lateness_ms": 0, "missed": 0});
    let kept = KeptSchedule::new(hourly(), "tick", &payload).unwrap();
    app.set_schedule(&kept).unwrap();
    let drain = Drain::new(desk.runner(&other)).unwrap();
    desk.run_to("2026-05-01T02:10:00Z", &drain);
    assert_eq!(desk.made(), ["hourly/2026-05-01T01:00:00Z", "hourly/2026-05-01T02:00:00Z"]);
    assert!(app.find("tick", "hourly/2026-05-01T02:00:00Z").unwrap().is_some_and(|job| job.state == State::Done));

    // The newest definition wins at once, and does not fire for the past.
    let half = Schedule::cron("hourly", "30 * * * *").unwrap().zone("UTC").unwrap();
    app.set_schedule(&KeptSchedule::new(half, "tick", &payload).unwrap().key_template("t {at}").unwrap()).unwrap();
    drain.drain().unwrap();
    desk.run_to("2026-05-01T02:40:00Z", &drain);
    assert_eq!(desk.made()[2..], ["t 2026-05-01T02:30:00Z"]);
    assert!(app.remove_schedule("hourly", "a test").unwrap());
    desk.run_to("2026-05-01T04:00:00Z", &drain);
    assert_eq!(desk.made().len(), 3);
}

#[test]
fn a_key_template_that_cannot_tell_occurrences_apart_is_refused() {
    let kept = || KeptSchedule::new(hourly(), "tick", &serde_json::json!(null)).unwrap();
    for bad in ["", "fixed", "{schedule}", "{nominal", "{nominal}{year}", "{}"] {
        assert!(kept().key_template(bad).is_err(), "{bad}");
    }
    for good in ["{nominal}", "{schedule} {date}", "x{at}y"] {
        assert!(kept().key_template(good).is_ok(), "{good}");
    }
}

#[test]
fn what_cannot_be_understood_breaks_one_schedule_visibly_and_no_other() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let store = desk.store();
    for name in ["a", "b"] {
        let schedule = Schedule::cron(name, "0 * * * *").unwrap().zone("UTC").unwrap();
        store
            .set_schedule(
                &KeptSchedule::new(schedule, "tick", &serde_json::json!({"slot": name, "lateness_ms": 0, "missed": 0}))
                    .unwrap(),
            )
            .unwrap();
    }
    let file = Connection::open(desk.folder.path()).unwrap();
    file.execute("UPDATE birkez_schedule SET zone = 'FLE Standard Time' WHERE name = 'a'", []).unwrap();
    let drain = Drain::new(desk.runner(&store)).unwrap();
    desk.run_to("2026-05-01T01:10:00Z", &drain);
    assert_eq!(desk.made(), ["b/2026-05-01T01:00:00Z"]);
    let shown = store.schedules().unwrap();
    assert!(shown[0].error.as_ref().is_some_and(|error| error.contains("zone")), "{:?}", shown[0]);
    assert!(shown[0].needs_attention && !shown[1].needs_attention);
}

#[test]
fn a_dead_occurrence_does_not_stop_its_schedule_and_the_last_success_stays_visible() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let store = desk.store();
    let fail = Arc::new(AtomicBool::new(false));
    let failing = Arc::clone(&fail);
    let runner = Runner::builder(&store).handle(move |_: Tick, _: &Context| match failing.load(Ordering::Acquire) {
        true => Err(anyhow::anyhow!("no")).permanent(),
        false => Ok(()),
    });
    let drain = Drain::new(runner.schedule(hourly(), tick)).unwrap();
    desk.run_to("2026-05-01T01:01:00Z", &drain);
    fail.store(true, Ordering::Release);
    desk.run_to("2026-05-01T03:01:00Z", &drain);
    let shown = store.schedules().unwrap().remove(0);
    assert_eq!(shown.last_run.as_deref(), Some("2026-05-01T03:00:00Z"));
    assert_eq!(shown.last_success.map(|(id, _)| id).as_deref(), Some("2026-05-01T01:00:00Z"));
    fail.store(false, Ordering::Release);
    desk.run_to("2026-05-01T04:01:00Z", &drain);
    let shown = store.schedules().unwrap().remove(0);
    assert_eq!(shown.last_success.map(|(id, _)| id).as_deref(), Some("2026-05-01T04:00:00Z"));
}

#[test]
fn a_schedule_that_its_program_no_longer_registers_stays_and_is_listed_as_orphaned() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let store = desk.store();
    drop(desk.drain(&store, hourly()));
    drop(store);
    let store = desk.store();
    let other = Schedule::daily("daily", "03:00").unwrap();
    drop(desk.drain(&store, other));
    let shown = store.schedules().unwrap();
    assert_eq!(shown.iter().map(|one| one.orphaned_at.is_some()).collect::<Vec<_>>(), [false, true]);
    assert_eq!((shown[1].name.as_str(), shown[1].next), ("hourly", None));
    drop(store);
    // Registered again, it goes on from its mark.
    desk.clock.set(utc("2026-05-01T02:30:00Z"));
    let store = desk.store();
    let drain = desk.drain(&store, hourly());
    drain.drain().unwrap();
    assert_eq!(desk.made(), ["2026-05-01T02:00:00Z"]);
    assert!(store.schedules().unwrap()[1].orphaned_at.is_none());
}

#[test]
fn a_clock_set_back_repeats_nothing_and_stops_nothing() {
    let desk = Desk::at("2026-05-01T14:59:30Z");
    let store = desk.store();
    let every = Schedule::cron("often", "* * * * *").unwrap().zone("UTC").unwrap();
    let drain = desk.drain(&store, every);
    desk.run_to("2026-05-01T17:00:30Z", &drain);
    let before = desk.made();
    desk.clock.set(utc("2026-05-01T15:01:30Z"));
    desk.run_to("2026-05-01T15:05:30Z", &drain);
    assert_eq!(desk.made(), before, "those minutes have run");
    desk.run_to("2026-05-01T17:02:30Z", &drain);
    let mut made = desk.made();
    assert_eq!(made.len(), before.len() + 2);
    made.dedup();
    assert_eq!(made.len(), before.len() + 2, "no slot twice");
}

#[test]
fn ten_years_forward_are_one_run_and_a_record_and_cost_next_to_nothing() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let store = desk.store();
    let every = Schedule::cron("often", "* * * * *").unwrap().zone("UTC").unwrap();
    let drain = desk.drain(&store, every);
    drain.drain().unwrap();
    desk.clock.set(utc("2036-05-01T00:30:30Z"));
    drain.drain().unwrap();
    assert_eq!(desk.made(), ["2036-05-01T00:30:00Z"]);
    let records = store.missed("often", 10).unwrap();
    assert_eq!((records.len(), records[0].count), (1, 1001));
}

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("run") => run_until_told(given("FILE").as_ref()),
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

/// In a child: a running runner that notes what it does.
fn run_until_told(file: &Path) {
    let (store, log) = (Store::open(file).unwrap(), Log::beside(file));
    let noting = move |tick: Tick, _: &Context| {
        log.note(tick.slot);
        Ok(())
    };
    let yearly = Schedule::cron("yearly", "@yearly").unwrap();
    // So seldom that what is asked first falls between the runner's first evaluation and its first look at the file.
    let builder = Runner::builder(&store).look_every(Some(Duration::from_millis(300)));
    let runner = builder.handle(noting).schedule(yearly, tick).start().unwrap();
    tell("running");
    common::await_go();
    runner.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_running_process_sees_within_a_second_what_another_changes_pauses_and_asks_for() {
    let folder = TempStore::new().unwrap();
    let (store, log) = (folder.open().unwrap(), Log::beside(folder.path()));
    let mut child = Child::start("run", &[("FILE", folder.path())]);
    child.expect("running");
    // The quickest of three: the machine may be busy for longer than the process needs.
    let quickest = |what: &str, act: &dyn Fn() -> Duration| {
        let took = [(); 3].map(|()| act());
        assert!(took.iter().min().unwrap() < &Duration::from_secs(1), "{what}: {took:?}");
        // What goes unnoticed is found when the runner looks by itself, once a minute.
        assert!(took.iter().max().unwrap() < &Duration::from_secs(15), "{what}: {took:?}");
    };
    let seen = |condition: &dyn Fn() -> bool| wait_within(common::PATIENCE, condition).unwrap();
    quickest("asking for a run", &|| {
        let before = log.count("asked-");
        assert!(store.run_schedule("yearly", None, "a test").unwrap());
        seen(&|| log.count("asked-") > before)
    });
    let set = |line: &str| {
        let schedule = Schedule::cron("kept", line).unwrap().zone("UTC").unwrap();
        let payload = serde_json::json!({"slot": "kept", "lateness_ms": 0, "missed": 0});
        store.set_schedule(&KeptSchedule::new(schedule, "tick", &payload).unwrap()).unwrap();
    };
    quickest("changing a schedule", &|| {
        set("@yearly");
        let before = log.count("kept");
        set("* * * * * *");
        let took = seen(&|| log.count("kept") > before);
        // It was due within a second by itself.
        took.saturating_sub(Duration::from_secs(1))
    });
    let made = || store.occurrences("kept", 1_000).unwrap().len();
    assert!(store.pause_schedule("kept", "the other process").unwrap());
    let before = made();
    assert_eq!(wait_within(Duration::from_millis(2_500), || made() > before), None, "it makes none while it is paused");
    assert!(store.resume_schedule("kept", "a test").unwrap());
    seen(&|| made() > before);
    child.go();
    drop(child.finish());
}
