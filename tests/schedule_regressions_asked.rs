//! Faults that were found in what people ask of schedules and are told about them. What can go wrong: one occurrence that
//! cannot be mapped holds up a schedule and nobody can help it; a request that fails delays what is regular; answers and
//! views that say what is not so; one bad row that hides all schedules; a definition that can never work.
//!
//! Runs in one thread on a clock that is moved by hand.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use birkez::calendar::CatchUp;
use birkez::rusqlite::Connection;
use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{Context, Error, Job, KeptSchedule, Occurrence, RequestInfo, Runner, Schedule, ScheduleInfo, Store};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::json;

#[derive(Clone, Serialize, Deserialize)]
struct Tick {
    slot: String,
    serial: u32,
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
    clock: Arc<ManualClock>,
    store: Store,
    /// Which occurrences were mapped.
    mapped: Arc<Mutex<Vec<String>>>,
}

impl Desk {
    fn at(time: &str) -> Desk {
        let (folder, clock) = (TempStore::new().unwrap(), ManualClock::at(utc(time)));
        let store = folder.builder().clock(clock.clone()).open().unwrap();
        Desk { _folder: folder, clock, store, mapped: Arc::default() }
    }

    /// The mapping fails for what `poison` names.
    fn drain(&self, schedule: Schedule, poison: &'static str) -> Drain {
        let mapped = Arc::clone(&self.mapped);
        let map = move |at: &Occurrence| {
            mapped.lock().unwrap().push(at.id().to_owned());
            anyhow::ensure!(poison.is_empty() || !at.id().contains(poison), "poison");
            Ok([Tick { slot: at.id().to_owned(), serial: 1 }])
        };
        let builder = Runner::builder(&self.store).handle(|_: Tick, _: &Context| Ok(()));
        Drain::new(builder.try_schedule(schedule, map)).unwrap()
    }

    fn look(&self, drain: &Drain, times: &[&str]) {
        for time in times {
            self.clock.set(utc(time));
            drain.drain().unwrap();
        }
    }

    fn ask(&self, occurrence: Option<&str>) -> i64 {
        assert!(self.store.run_schedule("s", occurrence, "a test").unwrap());
        self.requests().remove(0).id
    }

    fn requests(&self) -> Vec<RequestInfo> {
        self.store.schedule_requests("s", 100).unwrap()
    }

    fn answer(&self) -> String {
        self.requests().remove(0).answer.unwrap()
    }

    fn info(&self) -> ScheduleInfo {
        self.store.schedules().unwrap().remove(0)
    }

    fn ids(&self) -> Vec<String> {
        self.store.occurrences("s", 10_000).unwrap().into_iter().map(|made| made.id).collect()
    }

    fn sql(&self, sql: &str) {
        assert_eq!(Connection::open(self.store.path()).unwrap().execute(sql, []).unwrap(), 1, "{sql}");
    }
}

fn utc(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn hourly(name: &str) -> Schedule {
    Schedule::cron(name, "0 * * * *").unwrap().zone("UTC").unwrap().catch_up(CatchUp::each())
}

fn kept(schedule: Schedule) -> KeptSchedule {
    KeptSchedule::new(schedule, "tick", &json!({"slot": "x", "serial": 1})).unwrap()
}

/// An error with its causes.
fn told(error: Error) -> String {
    anyhow::Error::from(error).chain().map(ToString::to_string).collect::<Vec<_>>().join(": ")
}

/// Issue 3: it was mapped again although it was marked as done, and failed again.
#[test]
fn marking_an_occurrence_as_done_frees_a_schedule_that_cannot_map_it() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let drain = desk.drain(hourly("s"), "T02");
    desk.look(&drain, &["2026-05-01T00:30:00Z", "2026-05-01T04:30:00Z"]);
    assert_eq!((desk.ids().len(), desk.info().error.as_deref()), (1, Some("poison")));
    assert!(desk.store.mark_occurrence_done("s", "2026-05-01T02:00:00Z", "a test").unwrap());
    drain.drain().unwrap();
    assert_eq!((desk.ids().len(), desk.info().error, desk.info().needs_attention), (4, None, false));
    let tries = desk.mapped.lock().unwrap().iter().filter(|id| id.contains("T02")).count();
    assert_eq!(tries, 1);
}

/// Issue 3: what stood in the file was mapped before that was noticed.
#[test]
fn what_stands_in_the_file_is_not_mapped_again() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let drain = desk.drain(hourly("s"), "");
    drain.drain().unwrap();
    assert!(desk.store.mark_occurrence_done("s", "2026-05-01T02:00:00Z", "a test").unwrap());
    desk.ask(Some("2026-05-01T03:00:00Z"));
    drain.drain().unwrap();
    let hours = ["01", "02", "03", "04"].map(|hour| format!("2026-05-01T{hour}:00:01Z"));
    desk.look(&drain, &hours.each_ref().map(String::as_str));
    let mapped = desk.mapped.lock().unwrap().clone();
    assert_eq!(mapped, ["2026-05-01T03:00:00Z", "2026-05-01T01:00:00Z", "2026-05-01T04:00:00Z"]);
}

/// Issue 3: a request that failed put the schedule on its backoff.
#[test]
fn a_request_that_fails_delays_nothing_that_is_regular() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let drain = desk.drain(hourly("s").catch_up(CatchUp::Skip), "2020");
    drain.drain().unwrap();
    desk.ask(Some("2020-01-01T02:00:00Z"));
    for _ in 0..6 * 360 {
        desk.clock.advance(Duration::from_secs(10));
        drain.drain().unwrap();
    }
    let made = desk.store.occurrences("s", 100).unwrap();
    assert_eq!((made.len(), desk.store.missed("s", 1).unwrap().len()), (6, 0));
    assert!(made.iter().all(|one| one.made_at - one.due_at < chrono::TimeDelta::seconds(10)), "{made:?}");
    let (shown, request) = (desk.info(), desk.requests().remove(0));
    assert_eq!((shown.error, shown.failures, shown.needs_attention), (None, 0, true));
    assert!(request.failures > 5 && request.try_at.is_some(), "{request:?}");
    assert_eq!((request.error.as_deref(), request.answer), (Some("poison"), None));
}

/// Issue 3: nothing could be done about such a request.
#[test]
fn a_request_that_fails_can_be_withdrawn_or_is_answered_once_its_occurrence_stands() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let drain = desk.drain(hourly("s"), "2020");
    let first = desk.ask(Some("2020-01-01T02:00:00Z"));
    desk.ask(Some("2020-01-01T03:00:00Z"));
    drain.drain().unwrap();
    assert_eq!(desk.requests().iter().map(|asked| asked.failures).collect::<Vec<_>>(), [1, 1]);
    assert!(desk.store.withdraw_request(first, "a test").unwrap());
    assert!(
        !desk.store.withdraw_request(first, "a test").unwrap() && !desk.store.withdraw_request(99, "a test").unwrap()
    );
    assert!(desk.store.mark_occurrence_done("s", "2020-01-01T03:00:00Z", "a test").unwrap());
    drain.drain().unwrap();
    let answers: Vec<_> = desk.requests().into_iter().map(|asked| asked.answer.unwrap()).collect();
    assert_eq!(answers, ["stood in the file already", "withdrawn"]);
    assert!(!desk.info().needs_attention);
}

/// Issue 3: it was mapped and failed for ever, though there was nothing left to do.
#[test]
fn a_request_is_answered_as_soon_as_its_occurrence_stands_in_the_file() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let drain = desk.drain(hourly("s"), "2020");
    desk.ask(Some("2020-01-01T02:00:00Z"));
    drain.drain().unwrap();
    assert!(desk.requests()[0].try_at.is_some());
    desk.sql(
        "INSERT INTO birkez_occurrence (schedule, occurrence, due_at, made_at, jobs)
         SELECT id, '2020-01-01T02:00:00Z', 0, 0, 0 FROM birkez_schedule",
    );
    drain.drain().unwrap();
    assert_eq!((desk.answer().as_str(), desk.mapped.lock().unwrap().len()), ("stood in the file already", 1));
}

/// Issue 3: "ran" was the answer to everything.
#[test]
fn an_answer_says_what_came_of_the_request() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let by_date = kept(hourly("s")).key_template("{schedule}/{date}").unwrap();
    desk.store.set_schedule(&by_date).unwrap();
    let drain = Drain::new(Runner::builder(&desk.store).handle(|_: Tick, _: &Context| Ok(()))).unwrap();
    for (occurrence, answer) in [
        (None, "ran"),
        (None, "its job existed already"),
        (Some("2026-05-02T01:00:00Z"), "ran"),
        (Some("2026-05-02T01:00:00Z"), "stood in the file already"),
        (Some("2026-05-02T01:30:00Z"), "it has no occurrence `2026-05-02T01:30:00Z`"),
    ] {
        desk.ask(occurrence);
        drain.drain().unwrap();
        assert_eq!(desk.answer(), answer, "{occurrence:?}");
    }
    let date = "2026-04-30".parse().unwrap();
    assert!(desk.store.backfill_schedule("s", date, date, "a test").unwrap());
    drain.drain().unwrap();
    assert_eq!(desk.answer(), "made 24; 23 of their jobs existed already");
}

/// Issue 3: `asked-1` is above every date, as text.
#[test]
fn the_newest_by_time_is_shown_first_whatever_its_id() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let drain = desk.drain(hourly("s"), "");
    desk.ask(None);
    desk.look(&drain, &["2026-05-01T00:31:00Z", "2026-05-01T01:00:01Z", "2026-05-01T02:00:01Z"]);
    assert_eq!(desk.ids(), ["2026-05-01T02:00:00Z", "2026-05-01T01:00:00Z", "asked-1"]);
    assert_eq!(desk.info().last_success.map(|(id, _)| id).as_deref(), Some("2026-05-01T02:00:00Z"));
}

/// Issue 3: both named what had been marked as done.
#[test]
fn last_run_and_next_name_only_what_runs() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let drain = desk.drain(hourly("s"), "");
    drain.drain().unwrap();
    assert!(desk.store.mark_occurrence_done("s", "2026-05-01T01:00:00Z", "a test").unwrap());
    assert_eq!(desk.info().next, Some(utc("2026-05-01T02:00:00Z")));
    desk.look(&drain, &["2026-05-01T01:00:01Z"]);
    assert_eq!((desk.info().last_run, desk.info().mark.as_str()), (None, "2026-05-01T01:00:00Z"));
    // With the clock before its birth it waits for that, not for an hour of the year 2000.
    desk.clock.set(utc("2000-01-01T00:00:00Z"));
    assert!(desk.info().next.is_some_and(|next| next > utc("2026-05-01T00:30:00Z")), "{:?}", desk.info());
}

/// Issue 3: keys with other content were noted where nobody looks.
#[test]
fn a_conflict_needs_attention_until_it_is_acknowledged_and_the_next_one_again() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    for hour in [1, 3] {
        let _ = desk.store.enqueue(&Tick { slot: format!("2026-05-01T0{hour}:00:00Z"), serial: 9 }).unwrap();
    }
    let drain = desk.drain(hourly("s"), "");
    drain.drain().unwrap();
    assert!(
        !desk.store.acknowledge_schedule("s", "a test").unwrap()
            && !desk.store.acknowledge_schedule("none", "a test").unwrap()
    );
    for (time, attention) in [("01:00:01", true), ("02:00:01", false), ("03:00:01", true)] {
        desk.look(&drain, &[&format!("2026-05-01T{time}Z")]);
        assert_eq!(desk.info().needs_attention, attention, "{time}");
        assert_eq!(desk.store.acknowledge_schedule("s", "a test").unwrap(), attention, "{time}");
        assert!(!desk.info().needs_attention, "{time}");
    }
    assert_eq!(desk.store.occurrences("s", 1).unwrap()[0].conflicts.len(), 1, "it stays on record");
}

/// Issue 3: once it needed a person, it needed one for ever.
#[test]
fn what_was_dropped_or_fails_or_is_orphaned_can_be_acknowledged() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let newest = || hourly("s").catch_up(CatchUp::each_of_newest(1));
    let drain = desk.drain(newest(), "T09");
    desk.look(&drain, &["2026-05-01T00:30:00Z", "2026-05-01T04:30:00Z"]);
    let calm = |what: &str| {
        assert!(desk.info().needs_attention, "{what}");
        assert!(desk.store.acknowledge_schedule("s", "a test").unwrap(), "{what}");
        assert!(!desk.info().needs_attention, "{what}");
    };
    calm("over the maximum");
    assert!(!desk.store.missed("s", 1).unwrap()[0].needs_attention);
    desk.look(&drain, &["2026-05-01T08:30:00Z"]);
    calm("over it again");
    desk.look(&drain, &["2026-05-01T09:00:01Z"]);
    calm("a failure");
    desk.look(&drain, &["2026-05-01T09:20:01Z"]);
    assert!(desk.info().failures > 1 && !desk.info().needs_attention, "the same failure");
    assert!(desk.store.mark_occurrence_done("s", "2026-05-01T09:00:00Z", "a test").unwrap());
    desk.look(&drain, &["2026-05-01T10:00:01Z"]);
    assert_eq!(desk.info().error, None);
    desk.sql("UPDATE birkez_schedule SET orphaned_at = 1");
    calm("nobody registers it");
}

/// Issue 3: one cell of another type hid all schedules and stopped them.
#[test]
fn a_row_that_cannot_be_read_breaks_itself_alone_and_is_mended_by_setting_it() {
    for column in ["mark = 'x'", "born = 'x'", "mark = x'ff'", "payload = x'ff00'", "anchor = 'abc'", "kind = x'ff'"] {
        let desk = Desk::at("2026-05-01T00:30:00Z");
        for name in ["bad", "good"] {
            desk.store.set_schedule(&kept(hourly(name))).unwrap();
        }
        desk.sql(&format!("UPDATE birkez_schedule SET {column} WHERE name = 'bad'"));
        let drain = Drain::new(Runner::builder(&desk.store).handle(|_: Tick, _: &Context| Ok(()))).unwrap();
        desk.look(&drain, &["2026-05-01T01:00:01Z"]);
        let shown = desk.store.schedules().unwrap();
        assert!(shown[0].error.is_some() && shown[0].needs_attention, "{column}: {:?}", shown[0]);
        assert_eq!((shown[1].error.as_ref(), shown[1].last_run.is_some()), (None, true), "{column}");
        desk.store.set_schedule(&kept(hourly("bad"))).unwrap();
        desk.look(&drain, &["2026-05-01T02:00:01Z"]);
        let shown = desk.store.schedules().unwrap().remove(0);
        assert_eq!((shown.error.as_ref(), shown.last_run.as_deref()), (None, Some("2026-05-01T02:00:00Z")), "{column}");
    }
}

/// Issue 3: what could never be enqueued was found out at the first occurrence.
#[test]
fn a_kept_schedule_that_can_never_work_is_refused_when_it_is_set() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let template = |text: &str| desk.store.set_schedule(&kept(hourly("s")).key_template(text).unwrap());
    assert_eq!(template("\0{nominal}").unwrap_err().code(), "KEY_INVALID");
    assert_eq!(template(&format!("{}{{at}}", "y".repeat(500))).unwrap_err().code(), "KEY_TOO_LONG");
    let huge = KeptSchedule::new(hourly("s"), "tick", &json!("x".repeat(5_000_000))).unwrap();
    assert_eq!(desk.store.set_schedule(&huge).unwrap_err().code(), "PAYLOAD_TOO_LARGE");
    assert!(desk.store.schedules().unwrap().is_empty());
    assert!(template(&format!("{}{{at}}", "y".repeat(400))).is_ok());
}

/// Issue 3: the errors spoke of registering a schedule.
#[test]
fn an_error_names_the_occurrence_that_there_is_not() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    desk.store.set_schedule(&kept(hourly("s"))).unwrap();
    let errors = [
        desk.store.mark_occurrence_done("s", "2026-05-01T02:30:00Z", "a test").unwrap_err(),
        desk.store.mark_occurrence_done("s", "today", "a test").unwrap_err(),
        desk.store.run_schedule("s", Some("2026-05-01T02:00"), "a test").unwrap_err(),
        desk.store.run_schedule("s", Some("a\nb"), "a test").unwrap_err(),
    ];
    let ids = ["2026-05-01T02:30:00Z", "today", "2026-05-01T02:00", r"a\nb"];
    for (error, id) in errors.into_iter().zip(ids) {
        assert_eq!(error.code(), "SCHEDULE_INVALID");
        let text = told(error);
        assert!(text.starts_with(&format!("schedule `s` has no occurrence `{id}`: ")), "{text}");
    }
    assert!(desk.requests().is_empty());
}

/// Issue 3: a back-fill of a hundred years filled the file.
#[test]
fn a_back_fill_is_limited_and_makes_the_oldest_first() {
    let desk = Desk::at("2026-05-01T12:30:00Z");
    let drain = desk.drain(hourly("s"), "");
    drain.drain().unwrap();
    let date = |text: &str| text.parse().unwrap();
    let error = desk.store.backfill_schedule("s", date("2025-01-01"), date("2026-12-31"), "a test").unwrap_err();
    let text = told(error);
    assert!(text.contains("cannot be back-filled") && text.contains("more than 10000 occurrences"), "{text}");
    assert!(desk.requests().is_empty());
    assert!(desk.store.backfill_schedule("s", date("2026-04-29"), date("2026-12-31"), "a test").unwrap());
    drain.drain().unwrap();
    assert_eq!(desk.answer(), "made 61");
    let mapped = desk.mapped.lock().unwrap().clone();
    assert!(mapped.is_sorted() && mapped[0] == "2026-04-29T00:00:00Z", "{mapped:?}");
}

/// First, last, how many, and why, of each record, oldest first.
fn records(desk: &Desk) -> Vec<String> {
    let told =
        |gap: &birkez::MissedInfo| format!("{}-{} {} {}", &gap.first[11..13], &gap.last[11..13], gap.count, gap.reason);
    desk.store.missed("s", 100).unwrap().iter().rev().map(told).collect()
}

/// Issue 3: with a longest age, what the newest run stands for was neither run nor recorded.
#[test]
fn what_is_too_old_and_what_is_stood_for_are_two_records_and_no_occurrence_is_lost() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let told = Arc::new(Mutex::new(Vec::new()));
    let noted = Arc::clone(&told);
    let map = move |at: &Occurrence| {
        noted.lock().unwrap().push((at.id()[11..13].to_owned(), at.missed_count()));
        [Tick { slot: at.id().to_owned(), serial: 1 }]
    };
    let schedule = hourly("s").catch_up(CatchUp::Latest).max_age(Duration::from_secs(3 * 3_600));
    let builder = Runner::builder(&desk.store).handle(|_: Tick, _: &Context| Ok(()));
    let drain = Drain::new(builder.schedule(schedule, map)).unwrap();
    desk.look(&drain, &["2026-05-01T00:30:00Z", "2026-05-01T10:30:00Z"]);
    assert_eq!(*told.lock().unwrap(), [("10".to_owned(), 2)]);
    assert_eq!(records(&desk), ["01-07 7 too_old", "08-09 2 newer"]);
}

/// Issue 3: what had been recorded while an older one waited was recorded again when the policy changed.
#[test]
fn a_changed_policy_records_nothing_twice() {
    let desk = Desk::at("2026-05-01T00:30:00Z");
    let skip = |grace| hourly("s").catch_up(CatchUp::Skip).grace(Duration::from_secs(grace));
    let drain = desk.drain(skip(300), "T01");
    desk.look(&drain, &["2026-05-01T00:30:00Z", "2026-05-01T01:00:05Z", "2026-05-01T03:30:00Z"]);
    assert_eq!(records(&desk), ["02-03 2 skipped"]);
    drop(drain);
    let drain = desk.drain(skip(301), "");
    desk.look(&drain, &["2026-05-01T03:30:01Z", "2026-05-01T03:40:00Z"]);
    assert_eq!(records(&desk), ["02-03 2 skipped", "01-01 1 skipped"]);
}

/// Issue 3: a clock that was set back by two seconds ran what a pause had dropped.
#[test]
fn what_a_pause_has_dropped_does_not_run_when_the_clock_is_set_back_a_little() {
    let desk = Desk::at("2026-05-01T04:30:00Z");
    let drain = desk.drain(hourly("s"), "");
    drain.drain().unwrap();
    assert!(desk.store.pause_schedule("s", "a test").unwrap());
    desk.clock.set(utc("2026-05-01T05:02:00Z"));
    assert!(desk.store.resume_schedule("s", "a test").unwrap());
    desk.look(&drain, &["2026-05-01T05:02:00Z", "2026-05-01T05:01:58Z", "2026-05-01T06:00:00Z"]);
    assert_eq!(desk.ids(), ["2026-05-01T06:00:00Z"]);
    assert_eq!(records(&desk), ["05-05 1 paused"]);
}
