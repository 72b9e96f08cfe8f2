//! Faults that were found in what becomes of occurrences. What can go wrong: a definition that is changed while the clock is
//! wrong has years run again; of what a backlog holds some is dropped because it is on time; what was found on time becomes
//! late while it waits; a clock that is behind is never believed by a machine that is switched off each night; records that
//! do not add up.
//!
//! Runs in one thread on clocks that are moved by hand.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use birkez::calendar::{CatchUp, ShortMonths};
use birkez::testing::{Drain, TempStore};
use birkez::{
    Clock, Context, Job, KeptSchedule, Occurrence, Overlap, Runner, RunnerBuilder, Schedule, ScheduleInfo, Store,
    Verdicts,
};
use chrono::{DateTime, Utc};
use common::clocks::Clocks;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Tick {
    slot: String,
    lateness: u64,
    missed: u32,
}

impl Job for Tick {
    const KIND: &'static str = "tick";
    type Output = ();
    fn key(&self) -> String {
        self.slot.clone()
    }
}

struct Desk {
    folder: TempStore,
    clocks: Arc<Clocks>,
    store: Store,
    /// Handlers park instead of finishing while this is set.
    hold: Arc<AtomicBool>,
    /// Mappings fail while this is set.
    fails: Arc<AtomicBool>,
}

impl Desk {
    fn at(time: &str) -> Desk {
        let (folder, clocks) = (TempStore::new().unwrap(), Arc::new(Clocks::default()));
        clocks.wall.store(utc(time).timestamp_millis(), Ordering::Release);
        let store = open(&folder, &clocks);
        Desk { folder, clocks, store, hold: Arc::default(), fails: Arc::default() }
    }

    /// The process ends, and another starts.
    fn restart(&mut self) {
        self.store = open(&self.folder, &self.clocks);
    }

    fn set(&self, time: &str) {
        self.clocks.wall.store(utc(time).timestamp_millis(), Ordering::Release);
    }

    fn pass(&self, seconds: u64) {
        self.clocks.wall.fetch_add(seconds as i64 * 1_000, Ordering::AcqRel);
        self.clocks.monotonic.fetch_add(seconds, Ordering::AcqRel);
    }

    fn runner(&self) -> RunnerBuilder {
        let hold = Arc::clone(&self.hold);
        Runner::builder(&self.store).handle(move |_: Tick, _: &Context| match hold.load(Ordering::Acquire) {
            true => Err(anyhow::anyhow!("held")).park("hold"),
            false => Ok(()),
        })
    }

    fn drain(&self, schedule: Schedule) -> Drain {
        let fails = Arc::clone(&self.fails);
        let map = move |at: &Occurrence| {
            anyhow::ensure!(!fails.load(Ordering::Acquire), "not now");
            Ok([Tick { slot: at.id().to_owned(), lateness: at.lateness().as_secs(), missed: at.missed_count() }])
        };
        Drain::new(self.runner().try_schedule(schedule, map)).unwrap()
    }

    /// Looks at each of these times.
    fn look(&self, drain: &Drain, times: &[&str]) {
        for time in times {
            self.set(time);
            drain.drain().unwrap();
        }
    }

    /// Registers it at the first of these times, and looks at each.
    fn live(&self, schedule: Schedule, times: &[&str]) {
        self.set(times[0]);
        self.look(&self.drain(schedule), times);
    }

    fn release(&self, drain: &Drain) {
        self.hold.store(false, Ordering::Release);
        self.store.resume("hold", "a person").unwrap();
        drain.drain().unwrap();
    }

    /// Hour and minute of what was made, oldest first.
    fn made(&self) -> Vec<String> {
        self.ids().iter().map(|id| id[11..16].to_owned()).collect()
    }

    fn ids(&self) -> Vec<String> {
        self.store.occurrences("s", 100_000).unwrap().into_iter().rev().map(|made| made.id).collect()
    }

    fn told(&self, id: &str) -> Tick {
        let file = birkez::rusqlite::Connection::open(self.store.path()).unwrap();
        let sql = "SELECT payload FROM birkez_job WHERE key = ?1";
        let payload: String = file.query_row(sql, [id], |row| row.get(0)).unwrap();
        serde_json::from_str(&payload).unwrap()
    }

    /// Each record, oldest first: `01:00-03:00 3 newer`.
    fn records(&self) -> Vec<String> {
        let missed = self.store.missed("s", 1_000).unwrap().into_iter().rev();
        missed.map(|gap| format!("{}-{} {} {}", &gap.first[11..16], &gap.last[11..16], gap.count, gap.reason)).collect()
    }

    fn info(&self) -> ScheduleInfo {
        self.store.schedules().unwrap().remove(0)
    }
}

fn open(folder: &TempStore, clocks: &Arc<Clocks>) -> Store {
    let clock: Arc<dyn Clock> = Arc::clone(clocks) as _;
    folder.builder().clock(clock).open().unwrap()
}

fn utc(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn cron(text: &str) -> Schedule {
    Schedule::cron("s", text).unwrap().zone("UTC").unwrap()
}

fn daily(time: &str) -> Schedule {
    Schedule::daily("s", time).unwrap().zone("UTC").unwrap().catch_up(CatchUp::each())
}

/// Issue 3: with the clock in the year 2000 the mark followed it, and when it was right again 26 years ran.
#[test]
fn a_definition_changed_while_the_clock_is_back_moves_neither_mark_nor_birth_back() {
    let kinds: [&dyn Fn() -> Schedule; 3] =
        [&|| daily("03:30"), &|| cron("30 * * * *").catch_up(CatchUp::each()), &|| {
            Schedule::every("s", Duration::from_secs(3_600)).unwrap().zone("UTC").unwrap().catch_up(CatchUp::each())
        }];
    for changed in kinds {
        let desk = Desk::at("2026-05-01T12:00:00Z");
        desk.live(daily("03:00"), &["2026-05-01T12:00:00Z", "2026-05-03T12:10:00Z"]);
        desk.live(changed(), &["2000-01-01T00:30:30Z", "2000-01-01T00:31:00Z"]);
        assert!(*desk.info().mark >= *"2026-05-03T03:00:00", "{:?}", desk.info());
        assert_eq!(desk.ids().len(), 2, "nothing fires for a time before the schedule existed");
        desk.live(changed(), &["2026-05-03T12:10:30Z"]);
        // What the new calendar has between the mark and now, and nothing of the time before.
        assert!(desk.ids().iter().all(|id| **id > *"2026-05-02"), "{:?}", desk.ids());
        assert!(desk.ids().len() <= 2 + 10, "{:?}", desk.ids());
    }
}

/// Issue 3: a clock that was years ahead at the change may not put the schedule's birth there.
#[test]
fn a_definition_changed_while_the_clock_is_ahead_runs_again_once_the_clock_is_right() {
    let desk = Desk::at("2026-05-01T12:00:00Z");
    desk.live(daily("03:00"), &["2026-05-01T12:00:00Z"]);
    desk.live(daily("04:00"), &["2030-01-01T00:00:00Z"]);
    let drain = desk.drain(daily("04:00"));
    desk.look(&drain, &["2026-05-02T04:00:01Z", "2026-05-03T04:00:01Z"]);
    assert_eq!(desk.ids(), ["2026-05-02T04:00:00", "2026-05-03T04:00:00"]);
}

/// Issue 3: the first of a backlog that was within the grace was skipped, because the one before it was running.
#[test]
fn each_of_a_backlog_runs_one_after_another_also_where_some_are_on_time() {
    for (asleep, expected) in [(3, 3), (60, 60)] {
        let desk = Desk::at("2026-05-01T00:00:30Z");
        let drain = desk.drain(cron("* * * * *").catch_up(CatchUp::each()));
        drain.drain().unwrap();
        desk.pass(60 * asleep);
        drain.drain().unwrap();
        assert_eq!((desk.made().len(), desk.records()), (expected, vec![]));
    }
    // Another comes due while the backlog is worked off, on time.
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let drain = desk.drain(cron("0 * * * *").catch_up(CatchUp::each()));
    drain.drain().unwrap();
    desk.hold.store(true, Ordering::Release);
    desk.look(&drain, &["2026-05-01T02:30:00Z", "2026-05-01T03:00:01Z"]);
    assert_eq!(desk.made(), ["01:00"]);
    desk.release(&drain);
    assert_eq!((desk.made().len(), desk.records()), (3, vec![]));
}

/// Issue 3: a last run that has outlived an absence stood in the way of what was found together on time.
#[test]
fn what_is_found_together_on_time_waits_for_a_last_run_that_lasts() {
    let desk = Desk::at("2026-05-01T00:59:30Z");
    let drain = desk.drain(cron("* * * * *").catch_up(CatchUp::each()));
    drain.drain().unwrap();
    desk.hold.store(true, Ordering::Release);
    desk.look(&drain, &["2026-05-01T01:00:00Z", "2026-05-01T01:03:10Z"]);
    assert_eq!((desk.made(), desk.records()), (vec!["01:00".to_owned()], vec![]));
    desk.release(&drain);
    assert_eq!(desk.made(), ["01:00", "01:01", "01:02", "01:03"]);
    // One that comes alone, and finds a run that began before it was due, is skipped.
    desk.hold.store(true, Ordering::Release);
    desk.look(&drain, &["2026-05-01T01:04:00Z", "2026-05-01T01:05:00Z"]);
    assert_eq!(desk.records(), ["01:05-01:05 1 overlap"]);
}

/// Issue 3: of several found on time the oldest ran and the newer were dropped.
#[test]
fn latest_runs_the_newest_of_those_found_together_on_time() {
    let desk = Desk::at("2026-05-01T00:00:30Z");
    let drain = desk.drain(cron("* * * * *"));
    drain.drain().unwrap();
    desk.look(&drain, &["2026-05-01T00:04:10Z"]);
    assert_eq!((desk.made(), desk.records()), (vec!["00:04".into()], vec!["00:01-00:03 3 newer".to_owned()]));
    assert_eq!(desk.told("2026-05-01T00:04:00Z").missed, 3);
}

/// Issue 3: eight hours a day were never 48 in a row.
#[test]
fn a_clock_that_is_behind_is_believed_after_48_hours_in_sum_over_restarts() {
    let mut desk = Desk::at("2026-05-01T06:00:00Z");
    let look = |desk: &Desk, hours: u64| {
        let drain = desk.drain(daily("03:00"));
        for _ in 0..2 * hours {
            drain.drain().unwrap();
            desk.pass(1_800);
        }
        drain.drain().unwrap();
    };
    look(&desk, 1);
    desk.set("2026-11-04T06:00:00Z");
    look(&desk, 1);
    let mut waits = Vec::new();
    for day in 4..14 {
        desk.restart();
        desk.set(&format!("2026-05-{day:02}T06:00:00Z"));
        look(&desk, 8);
        waits.push(desk.info().clock_behind_for);
    }
    let hours: Vec<_> = waits.iter().map(|waited| waited.map(|waited| waited.as_secs() / 3_600)).collect();
    assert_eq!(hours[..5], [8, 16, 24, 32, 40].map(Some), "{hours:?}");
    assert_eq!(hours[6..], [None; 4], "{hours:?}");
    assert!(desk.info().mark.starts_with("2026-05-13"), "{:?}", desk.info());
    let file = birkez::rusqlite::Connection::open(desk.store.path()).unwrap();
    let behind: i64 = file.query_row("SELECT behind_ms FROM birkez_schedule", [], |row| row.get(0)).unwrap();
    assert_eq!(behind, 0, "it begins anew when the clock is behind again");
}

/// Issue 3: nothing said why nothing ran.
#[test]
fn a_schedule_that_waits_for_the_clock_says_so() {
    let desk = Desk::at("2026-05-01T06:00:00Z");
    let drain = desk.drain(daily("03:00"));
    desk.look(&drain, &["2026-05-01T06:00:00Z", "2026-05-20T06:00:00Z"]);
    assert_eq!((desk.info().waits, desk.info().clock_behind_for), (None, None));
    desk.set("2026-05-02T06:00:00Z");
    drain.drain().unwrap();
    desk.pass(25 * 60);
    drain.drain().unwrap();
    let shown = desk.info();
    assert!(
        shown.waits.is_some_and(|text| text.contains("behind the mark 2026-05-20T03:00:00") && text.contains("25 min"))
    );
    desk.set("2026-05-20T07:00:00Z");
    assert_eq!(desk.info().waits, None);
}

/// Issue 3: a pause of a minute dropped what had been missed before it.
#[test]
fn a_pause_drops_only_what_came_due_within_it() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    drop(desk.drain(cron("0 * * * *").catch_up(CatchUp::each())));
    desk.set("2026-05-01T03:30:00Z");
    assert!(desk.store.pause_schedule("s", "me").unwrap());
    desk.set("2026-05-01T05:30:00Z");
    assert!(desk.store.resume_schedule("s", "a test").unwrap());
    let drain = desk.drain(cron("0 * * * *").catch_up(CatchUp::each()));
    desk.look(&drain, &["2026-05-01T05:31:00Z", "2026-05-01T06:00:01Z"]);
    assert_eq!(desk.made(), ["01:00", "02:00", "03:00", "06:00"]);
    assert_eq!(desk.records(), ["04:00-05:00 2 paused"]);
}

/// Issue 3: what had queued was gone after a pause.
#[test]
fn a_run_that_queues_survives_a_pause() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let drain = desk.drain(cron("0 * * * *").overlap(Overlap::QueueOne));
    drain.drain().unwrap();
    desk.hold.store(true, Ordering::Release);
    desk.look(&drain, &["2026-05-01T01:00:00Z", "2026-05-01T02:00:00Z"]);
    assert!(desk.store.pause_schedule("s", "me").unwrap());
    desk.look(&drain, &["2026-05-01T03:10:00Z"]);
    assert!(desk.store.resume_schedule("s", "a test").unwrap());
    desk.release(&drain);
    assert_eq!(
        (desk.made(), desk.records()),
        (vec!["01:00".into(), "02:00".into()], vec!["03:00-03:00 1 paused".to_owned()])
    );
}

/// Issue 3: a queue longer than the grace turned what had been on time into something missed.
#[test]
fn what_queues_keeps_that_it_was_on_time_under_every_policy() {
    for catch_up in [CatchUp::Latest, CatchUp::each(), CatchUp::Skip] {
        let desk = Desk::at("2026-05-01T00:30:00Z");
        let old = Duration::from_secs(600);
        let drain = desk.drain(cron("0 * * * *").overlap(Overlap::QueueOne).catch_up(catch_up).max_age(old));
        drain.drain().unwrap();
        desk.hold.store(true, Ordering::Release);
        desk.look(&drain, &["2026-05-01T01:00:01Z", "2026-05-01T02:00:01Z", "2026-05-01T02:20:00Z"]);
        desk.release(&drain);
        assert_eq!((desk.made(), desk.records()), (vec!["01:00".into(), "02:00".into()], vec![]), "{catch_up:?}");
        assert_eq!(desk.told("2026-05-01T02:00:00Z").lateness, 1, "{catch_up:?}");
        // The newest has waited; the others are one record.
        desk.hold.store(true, Ordering::Release);
        let times: Vec<_> = (3..8).map(|hour| format!("2026-05-01T0{hour}:00:01Z")).collect();
        desk.look(&drain, &times.iter().map(String::as_str).collect::<Vec<_>>());
        desk.release(&drain);
        assert_eq!(desk.made()[2..], ["03:00", "07:00"], "{catch_up:?}");
        let reason = if catch_up == CatchUp::Latest { "newer" } else { "overlap" };
        assert_eq!(desk.records(), [format!("04:00-06:00 3 {reason}")], "{catch_up:?}");
    }
}

/// Issue 3: while a mapping failed its occurrence became too late to run, and those after it were never found.
#[test]
fn what_comes_due_while_a_mapping_fails_is_on_time_when_it_works_again() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let drain = desk.drain(cron("*/10 * * * *").catch_up(CatchUp::Skip));
    drain.drain().unwrap();
    desk.fails.store(true, Ordering::Release);
    for _ in 0..6 * 60 {
        desk.pass(10);
        drain.drain().unwrap();
    }
    assert!(desk.info().failures > 3, "{:?}", desk.info());
    desk.fails.store(false, Ordering::Release);
    for _ in 0..180 {
        desk.pass(30);
        drain.drain().unwrap();
    }
    let expected = ["00:40", "00:50", "01:00", "01:10", "01:20", "01:30"];
    assert_eq!((&desk.made()[..6], desk.records()), (&expected.map(str::to_owned)[..], vec![]));
    assert_eq!(desk.made().len(), 6 + 9);
}

/// Issue 3: what a failing mapping had kept was taken for what had queued behind a run.
#[test]
fn what_a_failing_mapping_has_kept_all_runs_though_only_one_may_queue() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let drain = desk.drain(cron("0 * * * *").overlap(Overlap::QueueOne).catch_up(CatchUp::each()));
    drain.drain().unwrap();
    desk.look(&drain, &["2026-05-01T01:00:01Z"]);
    desk.fails.store(true, Ordering::Release);
    desk.look(&drain, &["2026-05-01T02:00:01Z", "2026-05-01T03:00:01Z", "2026-05-01T04:00:01Z"]);
    desk.fails.store(false, Ordering::Release);
    desk.look(&drain, &["2026-05-01T05:30:00Z"]);
    assert_eq!((desk.made().len(), desk.records()), (5, vec![]));
}

/// Issue 3: those that had run when they were asked for were counted as missed.
#[test]
fn what_stands_in_the_file_is_neither_recorded_nor_counted() {
    for catch_up in [CatchUp::Latest, CatchUp::each_of_newest(1)] {
        let desk = Desk::at("2026-05-01T00:30:00Z");
        let drain = desk.drain(cron("0 * * * *").catch_up(catch_up));
        drain.drain().unwrap();
        for hour in 1..5 {
            assert!(desk.store.run_schedule("s", Some(&format!("2026-05-01T0{hour}:00:00Z")), "a test").unwrap());
        }
        drain.drain().unwrap();
        desk.look(&drain, &["2026-05-01T05:30:00Z"]);
        assert_eq!((desk.made().len(), desk.records()), (5, vec![]), "{catch_up:?}");
        assert_eq!(desk.told("2026-05-01T05:00:00Z").missed, 0);
        assert!(!desk.info().needs_attention);
    }
}

/// Issue 3: what a change left behind vanished without a trace.
#[test]
fn a_changed_calendar_leaves_one_record_of_what_it_drops() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let drain = desk.drain(cron("0 * * * *").catch_up(CatchUp::each()));
    desk.look(&drain, &["2026-05-01T01:00:01Z"]);
    assert!(desk.store.run_schedule("s", Some("2026-05-01T02:00:00Z"), "a test").unwrap());
    desk.look(&drain, &["2026-05-01T01:00:02Z"]);
    desk.live(cron("5 * * * *").catch_up(CatchUp::each()), &["2026-05-01T04:03:00Z", "2026-05-01T04:05:01Z"]);
    assert_eq!(desk.made(), ["01:00", "02:00", "04:05"]);
    assert_eq!(desk.records(), ["03:00-04:00 2 changed"]);
}

/// Issue 3: `MON` for `mon` dropped what was missed.
#[test]
fn another_spelling_of_the_same_calendar_is_no_change() {
    for (one, other) in [
        ("0 0 * * mon-sun", "0 0 * * MON-SUN"),
        ("0 0 * * mon-sun", "0 0 * * *"),
        ("@daily", "0 0 * * *"),
        ("00 0 * * *", "0  0 * * *"),
        ("0 0 * * 1-7", "daily 00:00"),
        ("0 0 0 * * *", "0 0 1-31 1-12 ?"),
    ] {
        let desk = Desk::at("2026-05-01T00:30:00Z");
        let schedule = |text: &str| {
            let calendar = text.parse().unwrap();
            Schedule::new("s", calendar).unwrap().zone("UTC").unwrap().catch_up(CatchUp::each())
        };
        let tick = |at: &Occurrence| [Tick { slot: at.id().to_owned(), lateness: 0, missed: 0 }];
        let old = Drain::new(Runner::builder(&desk.store).schedule(schedule(one), tick)).unwrap();
        desk.live(schedule(other), &["2026-05-04T00:30:00Z"]);
        assert_eq!((desk.ids().len(), desk.records()), (3, vec![]), "{one} and {other}");
        // Nor is a process out of date that spells it in the old way.
        desk.look(&old, &["2026-05-05T00:00:01Z"]);
        assert_eq!(desk.ids().len(), 4, "{one} and {other}");
    }
}

/// Issue 3: lines that look alike and are not.
#[test]
fn another_calendar_is_a_change_however_little_differs() {
    let last_day = Schedule::cron_with("s", "0 0 31 * *", ShortMonths::LastDay).unwrap().zone("UTC").unwrap();
    for (one, other) in [
        (cron("0 0 13 * mon-sun"), cron("0 0 13 * *")),
        (cron("0 * * * *"), cron("0 0-23 * * *")),
        (cron("0 0 31 * *"), last_day),
        (daily("00:00"), cron("0 0 * * 1-5")),
    ] {
        let desk = Desk::at("2026-05-01T00:30:00Z");
        drop(desk.drain(one));
        desk.set("2026-05-01T00:45:00Z");
        drop(desk.drain(other.clone()));
        assert!(desk.info().mark.starts_with("2026-05-01T00:45:00"), "{other}: {:?}", desk.info());
    }
}

/// Issue 3: kept schedules were set by apps that start with a wrong clock.
#[test]
fn a_schedule_kept_in_the_file_keeps_its_mark_when_it_is_set_with_the_clock_back() {
    let desk = Desk::at("2026-05-01T12:00:00Z");
    let payload = serde_json::json!({"slot": "x", "lateness": 0, "missed": 0});
    let set = |time: &str| desk.store.set_schedule(&KeptSchedule::new(daily(time), "tick", &payload).unwrap()).unwrap();
    set("03:00");
    let drain = Drain::new(desk.runner()).unwrap();
    desk.look(&drain, &["2026-05-01T12:00:00Z", "2026-05-05T12:00:00Z"]);
    desk.set("2026-05-03T12:00:00Z");
    set("03:30");
    desk.look(&drain, &["2026-05-03T12:01:00Z", "2026-05-05T12:10:00Z"]);
    let ids = desk.ids();
    assert_eq!((ids.len(), ids[4].as_str()), (5, "2026-05-05T03:30:00"), "{ids:?}");
}

/// Issue 3: a maximum counted the whole backlog anew for each run.
#[test]
fn a_maximum_is_cut_once_and_what_remains_all_runs() {
    let desk = Desk::at("2026-05-01T00:00:30Z");
    let drain = desk.drain(cron("* * * * *").catch_up(CatchUp::each_of_newest(20)));
    drain.drain().unwrap();
    desk.pass(365 * 86_400);
    drain.drain().unwrap();
    // The newest 20 of those that were late, and those that were on time.
    assert_eq!(desk.made().len(), 20 + 5);
    let records = desk.records();
    assert!(records.len() == 1 && records[0].ends_with(" 1001 over_max"), "{records:?}");
}
