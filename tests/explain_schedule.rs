//! My nightly job did not run: why? What never became a job leaves no job to ask, so the answer comes from the schedule,
//! its records, and the history of who was there. What can go wrong: no answer, a wrong one, or a shrug.

mod common;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use birkez::calendar::CatchUp;
use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{
    Context, Deed, DeedPage, Fate, Job, KeptSchedule, Occurrence, OccurrenceFate, Overlap, Runner, RunnerBuilder,
    Schedule, Store, Verdicts,
};
use chrono::{DateTime, Utc};
use common::run_sql;
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

    /// What is told of a day, which never is a shrug; codes are those of the JSON.
    #[track_caller]
    fn explain(&self, store: &Store, date: &str) -> Vec<OccurrenceFate> {
        let told = store.explain_schedule("s", date.parse().unwrap()).unwrap();
        assert!(!told.is_empty());
        for one in &told {
            let text = one.to_string();
            assert!(!text.contains("unknown") && !text.contains("None"), "{text}");
            assert_eq!(serde_json::to_value(&one.fate).unwrap()["code"], one.fate.code());
        }
        told
    }

    #[track_caller]
    fn assert_told(&self, store: &Store, date: &str, expected: &[&str]) {
        let told: Vec<_> = self.explain(store, date).iter().map(ToString::to_string).collect();
        assert_eq!(told, expected);
    }
}

fn utc(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn tick(at: &Occurrence) -> Option<Tick> {
    Some(Tick { slot: at.id().to_owned() })
}

fn nightly() -> Schedule {
    Schedule::daily("s", "03:00").unwrap().zone("UTC").unwrap()
}

const ON_TIME: &str = "2026-05-02T03:00:30Z";

#[test]
fn what_ran_says_when_and_which_jobs_and_where_they_are() {
    let desk = Desk::at("2026-05-01T12:00:00Z");
    let store = desk.store();
    let drain = desk.drain(&store, nightly());
    desk.clock.set(utc(ON_TIME));
    desk.hold.store(true, Ordering::Release);
    drain.drain().unwrap();
    let text = "s 2026-05-02T03:00:00 ran at 2026-05-02 03:00:30 UTC: job 1 (parked)";
    desk.assert_told(&store, "2026-05-02", &[text]);
}

#[test]
fn what_nobody_was_there_for_says_between_which_times() {
    let desk = Desk::at("2026-05-01T12:00:00Z");
    let store = desk.store();
    drop(desk.drain(&store, nightly()));
    drop(store);
    desk.clock.set(utc("2026-05-02T09:00:00Z"));
    let store = desk.store();
    let text = "s 2026-05-02T03:00:00 meets no runner: none has it since 2026-05-01 12:00:00 UTC";
    desk.assert_told(&store, "2026-05-02", &[text]);
    // It comes back two days later: one run stands for both nights.
    desk.clock.set(utc("2026-05-03T10:00:00Z"));
    desk.drain(&store, nightly()).drain().unwrap();
    let nobody = "met no runner: none had it between 2026-05-01 12:00:00 UTC and 2026-05-03 10:00:00 UTC";
    let newer = "did not run, since a newer one ran in its place: 2026-05-03T03:00:00";
    desk.assert_told(&store, "2026-05-02", &[&format!("s 2026-05-02T03:00:00 {nobody}; it {newer}")]);
    let late = "ran at 2026-05-03 10:00:00 UTC, 7 h 0 min late: job 1 (done)";
    desk.assert_told(&store, "2026-05-03", &[&format!("s 2026-05-03T03:00:00 {late}; it {nobody}")]);
}

#[test]
fn a_machine_that_slept_is_told_from_one_that_was_off() {
    let desk = Desk::at("2026-05-01T12:00:00Z");
    let store = desk.store();
    let drain = desk.drain(&store, nightly().catch_up(CatchUp::Skip));
    desk.clock.set(utc("2026-05-02T09:00:00Z"));
    drain.drain().unwrap();
    let text = "s 2026-05-02T03:00:00 was found only at 2026-05-02 09:00:00 UTC, though a runner was there: the machine \
                slept or was busy; it did not run, since missed ones are skipped (recorded at 2026-05-02 09:00:00 UTC)";
    desk.assert_told(&store, "2026-05-02", &[text]);
}

#[test]
fn each_rule_of_the_policy_says_that_it_was_that() {
    for (schedule, code) in [
        (nightly().catch_up(CatchUp::Skip), "skipped"),
        (nightly().catch_up(CatchUp::each_of_newest(1)), "over_max"),
        (nightly().max_age(Duration::from_secs(3_600)), "too_old"),
        (nightly(), "newer"),
    ] {
        let desk = Desk::at("2026-05-01T12:00:00Z");
        let store = desk.store();
        let drain = desk.drain(&store, schedule);
        desk.clock.set(utc("2026-05-03T09:00:00Z"));
        drain.drain().unwrap();
        let [told] = &desk.explain(&store, "2026-05-02")[..] else { panic!("one answer") };
        assert_eq!((told.fate.code(), told.others[0].code()), ("asleep", code), "{told}");
    }
}

#[test]
fn what_met_an_unfinished_run_says_which_and_its_jobs() {
    for (overlap, then) in [(Overlap::Skip, "overlap"), (Overlap::QueueOne, "unfinished")] {
        let desk = Desk::at("2026-05-01T12:00:00Z");
        let store = desk.store();
        let drain = desk.drain(&store, nightly().overlap(overlap));
        desk.hold.store(true, Ordering::Release);
        desk.clock.set(utc(ON_TIME));
        drain.drain().unwrap();
        desk.clock.set(utc("2026-05-03T03:00:30Z"));
        drain.drain().unwrap();
        let [told] = &desk.explain(&store, "2026-05-03")[..] else { panic!("one answer") };
        assert_eq!(told.fate.code(), then);
        let text = told.to_string();
        assert!(text.contains("2026-05-02T03:00:00") && text.contains("job 1") && text.contains("parked"), "{text}");
    }
}

#[test]
fn a_pause_says_by_whom_while_it_lasts_and_afterwards() {
    let desk = Desk::at("2026-05-01T12:00:00Z");
    let store = desk.store();
    let drain = desk.drain(&store, nightly());
    let deed = Deed::by("Ada").because("the bank is closed");
    assert!(store.pause_schedule("s", &deed).unwrap());
    desk.clock.set(utc(ON_TIME));
    drain.drain().unwrap();
    let held = "is held by the schedule's pause since 2026-05-01 12:00:00 UTC by Ada because the bank is closed";
    desk.assert_told(&store, "2026-05-02", &[&format!("s 2026-05-02T03:00:00 {held}")]);
    desk.clock.set(utc("2026-05-02T12:00:00Z"));
    assert!(store.resume_schedule("s", "Ben").unwrap());
    drain.drain().unwrap();
    let was = "did not run, as the schedule was paused";
    let by_ada = "from 2026-05-01 12:00:00 UTC by Ada because the bank is closed";
    desk.assert_told(&store, "2026-05-02", &[&format!("s 2026-05-02T03:00:00 {was} {by_ada}")]);
    // A pause that no deed speaks of, as by a restore, is not put down to whoever paused it before.
    let paused = "UPDATE birkez_schedule SET paused_at = 1777766400000, paused_by = 'restored'";
    run_sql(desk.folder.path(), paused);
    desk.clock.set(utc("2026-05-03T12:00:00Z"));
    assert!(store.resume_schedule("s", "Ben").unwrap());
    desk.assert_told(&store, "2026-05-03", &[&format!("s 2026-05-03T03:00:00 {was}")]);
}

#[test]
fn a_changed_calendar_says_that_it_was_changed() {
    let desk = Desk::at("2026-05-01T12:00:00Z");
    let store = desk.store();
    drop(desk.drain(&store, nightly()));
    desk.clock.set(utc("2026-05-02T09:00:00Z"));
    let hourly = Schedule::cron("s", "0 3,4 * * *").unwrap().zone("UTC").unwrap();
    desk.drain(&store, hourly).drain().unwrap();
    let told = desk.explain(&store, "2026-05-02");
    let codes: Vec<_> = told.iter().map(|told| told.fate.code()).collect();
    assert_eq!(codes, ["changed", "passed"], "{told:?}");
}

#[test]
fn what_people_asked_for_or_called_done_says_so() {
    let desk = Desk::at("2026-05-01T12:00:00Z");
    let store = desk.store();
    let drain = desk.drain(&store, nightly());
    drop(drain);
    assert!(store.run_schedule("s", Some("2026-05-02T03:00:00"), "Ada").unwrap());
    let date = "2026-04-28".parse().unwrap();
    assert!(store.backfill_schedule("s", date, date, Deed::by("Ada").because("of the audit")).unwrap());
    assert!(store.mark_occurrence_done("s", "2026-05-03T03:00:00", Deed::by("Ada").because("by hand")).unwrap());
    desk.clock.set(utc("2026-05-02T03:00:10Z"));
    let told = desk.explain(&store, "2026-05-02");
    assert_eq!((told[0].fate.code(), told[0].others[0].code()), ("nobody_there", "asked"), "{}", told[0]);
    let drain = desk.drain(&store, nightly());
    assert!(store.run_schedule("s", None, "Ada").unwrap());
    drain.drain().unwrap();
    let ran = "ran at 2026-05-02 03:00:10 UTC, since somebody asked for it";
    let asked = [format!("s 2026-05-02T03:00:00 {ran}: job 1 (done)"), format!("s asked-3 {ran}: job 3 (done)")];
    desk.assert_told(&store, "2026-05-02", &asked.each_ref().map(String::as_str));
    let back = "s 2026-04-28T03:00:00 ran at 2026-05-02 03:00:10 UTC, back-filled: job 2 (done)";
    desk.assert_told(&store, "2026-04-28", &[back]);
    let done = "s 2026-05-03T03:00:00 was marked as done at 2026-05-01 12:00:00 UTC by Ada because by hand";
    desk.assert_told(&store, "2026-05-03", &[done]);
}

#[test]
fn a_mapping_that_fails_says_why_and_when_it_is_tried_again() {
    let desk = Desk::at("2026-05-01T12:00:00Z");
    let store = desk.store();
    let fails = |_: &Occurrence| -> anyhow::Result<Option<Tick>> { anyhow::bail!("the card list cannot be read") };
    let drain = Drain::new(desk.runner(&store).try_schedule(nightly(), fails)).unwrap();
    desk.clock.set(utc(ON_TIME));
    drain.drain().unwrap();
    let [told] = &desk.explain(&store, "2026-05-02")[..] else { panic!("one answer") };
    assert!(matches!(&told.fate, Fate::Failing { failures: 1, try_at: Some(_), .. }), "{told}");
    assert!(told.to_string().contains("the card list cannot be read"), "{told}");
}

#[test]
fn what_no_program_registers_any_more_says_so() {
    let desk = Desk::at("2026-05-01T12:00:00Z");
    let store = desk.store();
    drop(desk.drain(&store, nightly()));
    drop(store);
    let store = desk.store();
    let _other = Drain::new(desk.runner(&store)).unwrap();
    desk.clock.set(utc(ON_TIME));
    let [told] = &desk.explain(&store, "2026-05-02")[..] else { panic!("one answer") };
    assert_eq!((told.fate.code(), told.others[0].code()), ("orphaned", "nobody_there"), "{told}");
}

#[test]
fn a_kept_schedule_needs_whoever_handles_its_kind() {
    let desk = Desk::at("2026-05-01T12:00:00Z");
    let store = desk.store();
    store.set_schedule(&KeptSchedule::new(nightly(), "tick", &serde_json::json!({ "slot": "kept" })).unwrap()).unwrap();
    desk.clock.set(utc(ON_TIME));
    desk.assert_told(&store, "2026-05-02", &["s 2026-05-02T03:00:00 meets no runner: none has had it yet"]);
    let drain = Drain::new(desk.runner(&store)).unwrap();
    desk.assert_told(&store, "2026-05-02", &["s 2026-05-02T03:00:00 is due and about to run"]);
    desk.clock.advance(Duration::from_secs(120));
    assert_eq!(desk.explain(&store, "2026-05-02")[0].fate.code(), "overdue", "it had its time");
    drain.drain().unwrap();
    assert_eq!(desk.explain(&store, "2026-05-02")[0].fate.code(), "ran");
}

#[test]
fn a_definition_that_cannot_be_read_says_which_part() {
    let desk = Desk::at("2026-05-01T12:00:00Z");
    let store = desk.store();
    let _drain = desk.drain(&store, nightly());
    run_sql(desk.folder.path(), "UPDATE birkez_schedule SET zone = 'Mars/Base'");
    let [told] = &desk.explain(&store, "2026-05-02")[..] else { panic!("one answer") };
    assert!(matches!(&told.fate, Fate::Broken { text } if text.contains("Mars/Base")), "{told}");
}

#[test]
fn a_clock_that_was_set_back_says_so() {
    let desk = Desk::at("2026-05-10T12:00:00Z");
    let store = desk.store();
    let drain = desk.drain(&store, nightly());
    desk.clock.set(utc("2026-05-11T03:00:30Z"));
    drain.drain().unwrap();
    // Behind the mark by days: nothing is caught up.
    run_sql(desk.folder.path(), "UPDATE birkez_schedule SET mark = '2026-05-20T03:00:00'");
    desk.clock.set(utc("2026-05-12T09:00:00Z"));
    let [told] = &desk.explain(&store, "2026-05-12")[..] else { panic!("one answer") };
    assert!(matches!(&told.fate, Fate::ClockBehind { text } if text.contains("after 48 h it is believed")), "{told}");
}

#[test]
fn a_day_without_an_occurrence_says_when_the_next_is() {
    let desk = Desk::at("2026-05-01T12:00:00Z");
    let store = desk.store();
    let weekly = Schedule::weekly("s", chrono::Weekday::Mon, "03:00").unwrap().zone("UTC").unwrap();
    let _drain = desk.drain(&store, weekly);
    desk.assert_told(&store, "2026-05-02", &["s is not due that day; next at 2026-05-04 03:00:00 UTC"]);
    desk.assert_told(&store, "2026-05-04", &["s 2026-05-04T03:00:00 is due at 2026-05-04 03:00:00 UTC"]);
    let before = "s 2026-04-27T03:00:00 is from before the schedule, which began at 2026-05-01T12:00:00";
    desk.assert_told(&store, "2026-04-27", &[before]);
    let error = store.explain_schedule("nowhere", "2026-05-02".parse().unwrap()).unwrap_err();
    assert_eq!((error.code(), error.to_string().as_str()), ("NO_SUCH_SCHEDULE", "there is no schedule `nowhere`"));
}

#[test]
fn what_is_done_to_schedules_stands_in_the_record_of_deeds() {
    let desk = Desk::at("2026-05-01T12:00:00Z");
    let store = desk.store();
    drop(desk.drain(&store, nightly()));
    let date = "2026-04-28".parse().unwrap();
    assert!(store.pause_schedule("s", "Ada").unwrap() && !store.pause_schedule("s", "Ben").unwrap());
    assert!(store.resume_schedule("s", "Ada").unwrap() && !store.resume_schedule("s", "Ben").unwrap());
    assert!(store.run_schedule("s", None, "Ada").unwrap() && !store.run_schedule("none", None, "Ben").unwrap());
    assert!(store.withdraw_request(1, "Ada").unwrap() && !store.withdraw_request(1, "Ben").unwrap());
    assert!(store.backfill_schedule("s", date, date, "Ada").unwrap());
    assert!(store.mark_occurrence_done("s", "2026-05-02T03:00:00", "Ada").unwrap());
    assert!(!store.acknowledge_schedule("s", "Ben").unwrap());
    run_sql(desk.folder.path(), "UPDATE birkez_schedule SET error = 'x'");
    assert!(store.acknowledge_schedule("s", "Ada").unwrap());
    assert!(store.remove_schedule("s", "Ada").unwrap() && !store.remove_schedule("s", "Ben").unwrap());
    let deeds = store.deeds(DeedPage { below: None, limit: 99 }).unwrap();
    let verbs: Vec<_> = deeds.iter().rev().map(|deed| deed.verb.as_str()).collect();
    let expected = [
        "pause schedule",
        "resume schedule",
        "run schedule",
        "withdraw request",
        "back-fill schedule",
        "mark occurrence done",
        "acknowledge schedule",
        "remove schedule",
    ];
    assert_eq!(verbs, expected);
    let named: BTreeSet<_> = deeds.iter().map(|deed| (deed.who.as_str(), deed.subject.as_deref())).collect();
    assert_eq!(named.into_iter().collect::<Vec<_>>(), [("Ada", Some("schedule s"))]);
    assert_eq!(deeds[3].detail.as_deref(), Some("{\"first\":\"2026-04-28\",\"last\":\"2026-04-28\"}"));
}
