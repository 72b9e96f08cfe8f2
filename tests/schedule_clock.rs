//! Schedules and clocks that were wrong for a time. What can go wrong: an occurrence that is looked at again and again
//! because the mark stays, runs that a believed clock passes over, a failure that a clock far ahead has put off for days,
//! records of what did run, a schedule that takes a removed one's occurrences for its own.
//!
//! Runs in one thread on clocks that are moved by hand.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};

use birkez::calendar::CatchUp;
use birkez::testing::{Drain, TempStore};
use birkez::{Clock, Context, Job, Occurrence, Overlap, Runner, Schedule, Store, Verdicts};
use chrono::{DateTime, Utc};
use common::clocks::Clocks;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Tick {
    slot: String,
}

impl Job for Tick {
    const KIND: &'static str = "tick";
    type Output = ();
    fn key(&self) -> String {
        self.slot.clone()
    }
}

struct Desk {
    _folder: TempStore,
    clocks: Arc<Clocks>,
    store: Store,
    hold: Arc<AtomicBool>,
    fails: Arc<AtomicBool>,
}

impl Desk {
    fn at(time: &str) -> Desk {
        let folder = TempStore::new().unwrap();
        let clocks =
            Arc::new(Clocks { wall: AtomicI64::new(utc(time).timestamp_millis()), monotonic: AtomicU64::new(0) });
        let shared: Arc<dyn Clock> = Arc::clone(&clocks) as _;
        let store = folder.builder().clock(shared).open().unwrap();
        Desk { _folder: folder, clocks, store, hold: Arc::default(), fails: Arc::default() }
    }

    fn set(&self, time: &str) {
        self.clocks.wall.store(utc(time).timestamp_millis(), Ordering::Release);
    }

    /// Whole hours go by in which nobody looks.
    fn hours(&self, hours: u32) {
        self.clocks.wall.fetch_add(i64::from(hours) * 3_600_000, Ordering::AcqRel);
        self.clocks.monotonic.fetch_add(u64::from(hours) * 3_600, Ordering::AcqRel);
    }

    fn drain(&self, schedule: Schedule) -> Drain {
        let (hold, fails) = (Arc::clone(&self.hold), Arc::clone(&self.fails));
        let builder =
            Runner::builder(&self.store).handle(move |_: Tick, _: &Context| match hold.load(Ordering::Acquire) {
                true => Err(anyhow::anyhow!("held")).park("hold"),
                false => Ok(()),
            });
        let map = move |at: &Occurrence| {
            anyhow::ensure!(!fails.load(Ordering::Acquire), "not now");
            Ok([Tick { slot: at.id().to_owned() }])
        };
        Drain::new(builder.try_schedule(schedule, map)).unwrap()
    }

    fn made(&self, name: &str) -> Vec<String> {
        self.store.occurrences(name, 1_000).unwrap().into_iter().rev().map(|made| made.id).collect()
    }

    fn records(&self, name: &str) -> Vec<(String, u32, String)> {
        let missed = self.store.missed(name, 1_000).unwrap().into_iter().rev();
        missed.map(|gap| (gap.first, gap.count, gap.reason)).collect()
    }
}

fn utc(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn schedule(text: &str) -> Schedule {
    Schedule::cron("s", text).unwrap().zone("UTC").unwrap()
}

#[test]
fn behind_the_mark_an_occurrence_is_skipped_for_overlap_once() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let drain = desk.drain(schedule("0 * * * *"));
    drain.drain().unwrap();
    // Far ahead: the newest runs for all, and is not finished when the clock is put right.
    desk.hold.store(true, Ordering::Release);
    desk.set("2026-05-04T00:30:00Z");
    drain.drain().unwrap();
    assert_eq!(desk.made("s"), ["2026-05-04T00:00:00Z"]);
    desk.set("2026-05-01T01:00:30Z");
    for _ in 0..5 {
        drain.drain().unwrap();
    }
    let records = desk.records("s");
    assert_eq!(records.len(), 2, "{records:?}");
    assert_eq!(records[1], ("2026-05-01T01:00:00Z".to_owned(), 1, "overlap".to_owned()));
    desk.hold.store(false, Ordering::Release);
    desk.store.resume("hold", "a person").unwrap();
    drain.drain().unwrap();
    desk.set("2026-05-01T02:00:30Z");
    drain.drain().unwrap();
    assert_eq!(desk.made("s"), ["2026-05-01T02:00:00Z", "2026-05-04T00:00:00Z"]);
}

#[test]
fn two_that_are_on_time_both_run_though_the_clock_is_believed_at_that_moment() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let newest = desk.drain(schedule("0,1 * * * *").overlap(Overlap::Allow));
    newest.drain().unwrap();
    desk.set("2026-06-01T00:30:00Z");
    newest.drain().unwrap();
    drop(newest);
    // Of those that are found together on time the default runs the newest only.
    let drain = desk.drain(schedule("0,1 * * * *").overlap(Overlap::Allow).catch_up(CatchUp::each()));
    desk.set("2026-05-01T00:31:30Z");
    drain.drain().unwrap();
    desk.hours(49);
    desk.set("2026-05-03T01:01:30Z");
    drain.drain().unwrap();
    assert_eq!(desk.made("s"), ["2026-05-03T01:00:00Z", "2026-05-03T01:01:00Z", "2026-06-01T00:01:00Z"]);
    assert_eq!(desk.store.schedules().unwrap()[0].mark, "2026-05-03T01:01:30Z", "it is believed");
}

#[test]
fn a_clock_that_is_believed_and_put_right_records_nothing_a_second_time() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let drain = desk.drain(schedule("0 * * * *").catch_up(CatchUp::each()));
    drain.drain().unwrap();
    desk.set("2026-05-01T05:30:00Z");
    drain.drain().unwrap();
    assert_eq!(desk.made("s").len(), 5);
    desk.set("2000-01-01T00:00:00Z");
    drain.drain().unwrap();
    desk.hours(49);
    drain.drain().unwrap();
    drop(drain);
    // Put right by hand, an hour slow: what was done is neither done again nor called missed.
    let newest_two = desk.drain(schedule("0 * * * *").catch_up(CatchUp::each_of_newest(2)));
    desk.set("2026-05-01T04:30:00Z");
    newest_two.drain().unwrap();
    desk.set("2026-05-01T07:30:00Z");
    newest_two.drain().unwrap();
    assert_eq!(desk.made("s").len(), 7);
    assert_eq!(desk.records("s"), []);
    assert!(!desk.store.schedules().unwrap()[0].needs_attention);
}

#[test]
fn a_failure_noted_by_a_clock_that_was_ahead_is_not_waited_for() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let drain = desk.drain(schedule("0 * * * *"));
    drain.drain().unwrap();
    desk.fails.store(true, Ordering::Release);
    desk.set("2027-05-01T00:30:00Z");
    drain.drain().unwrap();
    assert_eq!(desk.store.schedules().unwrap()[0].failures, 1);
    desk.fails.store(false, Ordering::Release);
    desk.set("2026-05-01T01:00:30Z");
    drain.drain().unwrap();
    assert_eq!(desk.made("s"), ["2026-05-01T01:00:00Z"]);
}

/// Issue 3: what a failing mapping had kept for hours would have run all at once.
#[test]
fn what_a_failing_mapping_has_kept_for_long_runs_one_after_another_even_where_overlap_is_allowed() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let drain = desk.drain(schedule("0 * * * *").overlap(Overlap::Allow).catch_up(CatchUp::each()));
    drain.drain().unwrap();
    desk.fails.store(true, Ordering::Release);
    for hour in 1..5 {
        desk.set(&format!("2026-05-01T0{hour}:00:01Z"));
        drain.drain().unwrap();
    }
    desk.fails.store(false, Ordering::Release);
    desk.hold.store(true, Ordering::Release);
    desk.set("2026-05-01T05:30:00Z");
    drain.drain().unwrap();
    assert_eq!(desk.made("s"), ["2026-05-01T01:00:00Z"]);
    desk.hold.store(false, Ordering::Release);
    desk.store.resume("hold", "a person").unwrap();
    drain.drain().unwrap();
    assert_eq!((desk.made("s").len(), desk.records("s")), (5, vec![]));
}

/// Issue 3: what was skipped beside one that waits is recorded once, before it runs and after.
#[test]
fn what_is_missed_beside_a_run_that_waits_is_recorded_once() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let drain = desk.drain(schedule("0 * * * *").overlap(Overlap::QueueOne).catch_up(CatchUp::Skip));
    drain.drain().unwrap();
    desk.hold.store(true, Ordering::Release);
    for time in ["01:00:01", "02:00:01", "05:30:00", "05:31:00"] {
        desk.set(&format!("2026-05-01T{time}Z"));
        drain.drain().unwrap();
    }
    let skipped = ("2026-05-01T03:00:00Z".to_owned(), 3, "skipped".to_owned());
    assert_eq!((desk.made("s").len(), desk.records("s")), (1, vec![skipped.clone()]));
    desk.hold.store(false, Ordering::Release);
    desk.store.resume("hold", "a person").unwrap();
    for _ in 0..3 {
        drain.drain().unwrap();
    }
    assert_eq!(desk.made("s"), ["2026-05-01T01:00:00Z", "2026-05-01T02:00:00Z"]);
    desk.set("2026-05-01T06:00:01Z");
    drain.drain().unwrap();
    assert_eq!((desk.made("s").len(), desk.records("s")), (3, vec![skipped]));
}

#[test]
fn a_new_schedule_does_not_take_what_a_removed_one_has_made_for_its_own() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let drain = desk.drain(schedule("0 * * * *"));
    desk.set("2026-05-01T01:00:30Z");
    drain.drain().unwrap();
    assert!(desk.store.run_schedule("s", Some("2026-05-01T03:00:00Z"), "a test").unwrap());
    drain.drain().unwrap();
    assert_eq!(desk.made("s").len(), 2);
    assert!(desk.store.remove_schedule("s", "a test").unwrap());
    let other = Schedule::cron("other", "0 * * * *").unwrap().zone("UTC").unwrap();
    let other = Drain::new(
        Runner::builder(&desk.store).schedule(other, |at: &Occurrence| [Tick { slot: format!("other {}", at.id()) }]),
    );
    let other = other.unwrap();
    assert_eq!(desk.made("other"), [""; 0]);
    desk.set("2026-05-01T03:00:30Z");
    other.drain().unwrap();
    assert_eq!(desk.made("other"), ["2026-05-01T03:00:00Z"]);
    assert_eq!(
        desk.store.find("tick", "other 2026-05-01T03:00:00Z").unwrap().map(|job| job.kind).as_deref(),
        Some("tick")
    );
}
