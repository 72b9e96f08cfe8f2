//! Schedules and what they make. What can go wrong: an occurrence is lost to a restart, made twice by two processes or by
//! a clock that was set back, or made for a past in which the schedule was another; a mapping that fails loses its
//! occurrence, or holds up every other schedule; a key that was taken goes unnoticed.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use birkez::calendar::CatchUp;
use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{Context, Job, Occurrence, Overlap, Runner, RunnerBuilder, Schedule, ScheduleInfo, Store};
use common::{ask, rows};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Post {
    key: String,
    minor: i64,
}

impl Job for Post {
    const KIND: &'static str = "post";
    type Output = ();
    fn key(&self) -> String {
        self.key.clone()
    }
}

fn post(key: impl Into<String>) -> Post {
    Post { key: key.into(), minor: 1 }
}

fn clock_at(text: &str) -> Arc<ManualClock> {
    ManualClock::at(text.parse().unwrap())
}

/// A store whose clock shows this time.
fn at(time: &str) -> (TempStore, Arc<ManualClock>, Store) {
    let (folder, clock) = (TempStore::new().unwrap(), clock_at(time));
    let store = folder.builder().clock(clock.clone()).open().unwrap();
    (folder, clock, store)
}

fn schedule(name: &str, cron: &str) -> Schedule {
    Schedule::cron(name, cron)
        .unwrap()
        .zone("Europe/Istanbul")
        .unwrap()
        .catch_up(CatchUp::each())
        .overlap(Overlap::Allow)
}

fn nightly() -> Schedule {
    schedule("nightly", "0 3 * * *")
}

/// Two cards close each night.
fn two_cards(at: &Occurrence) -> Vec<Post> {
    ["bonus", "miles"].map(|card| post(format!("{card}/{}", at.date()))).into()
}

/// Evaluates what is due, one after another as each run ends.
fn evaluate(builder: RunnerBuilder) {
    Drain::new(builder.handle(|_: Post, _: &Context| Ok(()))).unwrap().drain().unwrap();
}

fn keys(store: &Store) -> Vec<String> {
    let keys = rows(store.path(), "SELECT key FROM birkez_job ORDER BY id");
    keys.iter().map(|row| row.trim_start_matches("[Text(\"").trim_end_matches("\")]").to_owned()).collect()
}

fn occurrences(store: &Store, name: &str) -> Vec<String> {
    let made = store.occurrences(name, 1000).unwrap();
    made.into_iter().rev().map(|made| made.id).collect()
}

fn info(store: &Store, name: &str) -> ScheduleInfo {
    store.schedules().unwrap().into_iter().find(|schedule| schedule.name == name).unwrap()
}

#[test]
fn an_occurrence_makes_its_jobs_once_and_says_what_it_made() {
    let (_folder, clock, store) = at("2026-05-30T10:00:00Z");
    let builder = || Runner::builder(&store).schedule(nightly(), two_cards);
    evaluate(builder());
    assert_eq!((keys(&store).len(), info(&store, "nightly").mark.as_str()), (0, "2026-05-30T13:00:00"));
    // One millisecond before three o'clock in Istanbul, then three.
    clock.set("2026-05-30T23:59:59.999Z".parse().unwrap());
    evaluate(builder());
    assert_eq!(keys(&store).len(), 0);
    clock.advance(Duration::from_millis(1));
    for _ in 0..3 {
        evaluate(builder());
        assert_eq!(keys(&store), ["bonus/2026-05-31", "miles/2026-05-31"]);
    }
    let [made] = &store.occurrences("nightly", 10).unwrap()[..] else { panic!("one occurrence") };
    assert_eq!((made.id.as_str(), made.jobs, made.conflicts.len()), ("2026-05-31T03:00:00", 2, 0));
    assert_eq!((made.due_at, made.made_at), (clock.now(), clock.now()));
    assert_eq!(info(&store, "nightly").mark, made.id);
}

#[test]
fn a_mapping_is_told_its_occurrence_and_may_use_the_store() {
    let (_folder, clock, store) = at("2026-05-30T10:00:00Z");
    let inside = store.clone();
    let map = move |at: &Occurrence| {
        assert_eq!((at.schedule(), at.zone().to_string().as_str()), ("nightly", "Europe/Istanbul"));
        assert_eq!(
            (at.nominal().to_string(), at.date().to_string()),
            ("2026-05-31 03:00:00".into(), "2026-05-31".into())
        );
        assert_eq!((at.at().to_rfc3339(), at.id()), ("2026-05-31T00:00:00+00:00".into(), "2026-05-31T03:00:00"));
        let _ = inside.enqueue(&post("by the mapping")).unwrap();
        inside.find("post", "by the mapping").unwrap().map(|job| post(format!("after {}", job.id)))
    };
    let drain = Drain::new(Runner::builder(&store).schedule(nightly(), map)).unwrap();
    clock.set("2026-05-31T09:00:00Z".parse().unwrap());
    drain.drain().unwrap();
    assert_eq!(keys(&store), ["by the mapping", "after 1"]);
}

#[test]
fn a_restart_around_the_due_minute_neither_loses_nor_doubles_it() {
    // When the program stops and starts again, in seconds around three o'clock.
    for (stop, start) in [(-2, 3), (-10, -5), (-1, 0), (0, 1), (0, 0), (3, 90)] {
        let folder = TempStore::new().unwrap();
        let three = "2026-05-31T00:00:00Z".parse::<chrono::DateTime<chrono::Utc>>().unwrap();
        let clock = ManualClock::at(three - chrono::TimeDelta::hours(1));
        for second in [stop, start, 3600] {
            // A new store each time: nothing is remembered but what is in the file.
            let store = folder.builder().clock(clock.clone()).open().unwrap();
            let drain = Drain::new(Runner::builder(&store).schedule(nightly(), two_cards)).unwrap();
            drain.drain().unwrap();
            clock.set(three + chrono::TimeDelta::seconds(second));
            drain.drain().unwrap();
        }
        let store = folder.open().unwrap();
        assert_eq!(keys(&store), ["bonus/2026-05-31", "miles/2026-05-31"], "stop {stop}, start {start}");
    }
}

#[test]
fn what_came_due_while_nothing_ran_is_made_up_for_oldest_first() {
    let (_folder, clock, store) = at("2026-02-27T10:00:00Z");
    let builder = || Runner::builder(&store).schedule(nightly(), |at: &Occurrence| [post(at.id())]);
    evaluate(builder());
    clock.set("2026-03-02T12:00:00Z".parse().unwrap());
    evaluate(builder());
    let nights = ["2026-02-28T03:00:00", "2026-03-01T03:00:00", "2026-03-02T03:00:00"];
    assert_eq!((keys(&store), occurrences(&store, "nightly")), (nights.map(str::to_owned).into(), keys(&store)));
}

#[test]
fn a_clock_that_is_set_back_repeats_no_occurrence_and_waits_for_no_old_future() {
    let (_folder, clock, store) = at("2026-05-31T12:00:00Z");
    let drain =
        Drain::new(Runner::builder(&store).schedule(schedule("minutely", "* * * * *"), |at| [post(at.id())])).unwrap();
    drain.drain().unwrap();
    for (time, made) in [("12:03:00", 3), ("12:01:30", 3), ("12:03:30", 3), ("12:04:00", 4)] {
        clock.set(format!("2026-05-31T{time}Z").parse().unwrap());
        drain.drain().unwrap();
        assert_eq!(keys(&store).len(), made, "at {time}");
    }
}

#[test]
fn registering_again_keeps_the_mark_and_another_calendar_starts_from_now() {
    let (_folder, clock, store) = at("2026-05-30T10:00:00Z");
    let run = |text: &str| evaluate(Runner::builder(&store).schedule(schedule("s", text), |at| [post(at.id())]));
    run("0 3 * * *");
    clock.set("2026-05-31T10:00:00Z".parse().unwrap());
    run("0 3 * * *");
    assert_eq!(keys(&store), ["2026-05-31T03:00:00"], "the mark stood where the first left it");
    clock.set("2026-06-03T10:00:00Z".parse().unwrap());
    run("0 4 * * *");
    assert_eq!(keys(&store).len(), 1, "four o'clock of days on which it was three");
    clock.set("2026-06-04T10:00:00Z".parse().unwrap());
    run("0 4 * * *");
    assert_eq!(keys(&store)[1..], ["2026-06-04T04:00:00"]);
    assert_eq!(info(&store, "s").calendar, "0 4 * * *");
}

#[test]
fn another_zone_repeats_no_date_that_is_done() {
    let (_folder, clock, store) = at("2026-05-30T10:00:00Z");
    let run = |zone: &str| {
        let schedule = Schedule::cron("s", "0 8 * * *")
            .unwrap()
            .zone(zone)
            .unwrap()
            .catch_up(CatchUp::each())
            .overlap(Overlap::Allow);
        evaluate(Runner::builder(&store).schedule(schedule, |at| [post(at.id())]));
    };
    run("Asia/Tokyo");
    clock.set("2026-05-30T23:00:00Z".parse().unwrap());
    run("Asia/Tokyo");
    assert_eq!(keys(&store), ["2026-05-31T08:00:00"]);
    // Eight o'clock in Paris on the day whose eight o'clock in Tokyo is done.
    clock.set("2026-05-31T07:00:00Z".parse().unwrap());
    run("Europe/Paris");
    assert_eq!(keys(&store).len(), 1);
    clock.set("2026-06-01T06:00:00Z".parse().unwrap());
    run("Europe/Paris");
    assert_eq!(keys(&store)[1..], ["2026-06-01T08:00:00"]);
    // Nor does it lose one that came due while nothing ran.
    clock.set("2026-06-02T09:00:00Z".parse().unwrap());
    run("Europe/London");
    assert_eq!(keys(&store)[2..], ["2026-06-02T08:00:00"]);
}

#[test]
fn only_the_newest_definition_of_a_name_makes_anything() {
    let (_folder, clock, store) = at("2026-05-30T10:00:00Z");
    let drain = |text, mark: &'static str| {
        let map = move |at: &Occurrence| [post(format!("{mark} {}", at.id()))];
        Drain::new(Runner::builder(&store).schedule(schedule("s", text), map)).unwrap()
    };
    let old = drain("0 3 * * *", "old");
    let new = drain("0 4 * * *", "new");
    clock.set("2026-05-31T10:00:00Z".parse().unwrap());
    for _ in 0..2 {
        old.drain().unwrap();
        new.drain().unwrap();
    }
    assert_eq!(keys(&store), ["new 2026-05-31T04:00:00"]);
}

#[test]
fn a_mapping_that_fails_leaves_the_mark_is_shown_and_is_tried_again_while_others_go_on() {
    let (_folder, clock, store) = at("2026-05-30T10:00:00Z");
    let (works, tries) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicUsize::new(0)));
    let (is_working, count) = (Arc::clone(&works), Arc::clone(&tries));
    let failing = move |at: &Occurrence| {
        count.fetch_add(1, Ordering::SeqCst);
        anyhow::ensure!(is_working.load(Ordering::SeqCst), "no cards\u{1b}[31m file");
        Ok([post(at.id())])
    };
    let builder = Runner::builder(&store)
        .handle(|_: Post, _: &Context| Ok(()))
        .try_schedule(schedule("a-failing", "0 3 * * *"), failing)
        .schedule(schedule("b-panicking", "0 3 * * *"), |_| -> [Post; 1] { panic!("index out of bounds") })
        .schedule(schedule("c-unfit", "0 3 * * *"), |_| [post("")])
        .schedule(schedule("d-well", "0 3 * * *"), |at| [post(format!("well {}", at.id()))]);
    let drain = Drain::new(builder).unwrap();
    clock.set("2026-05-31T01:00:00Z".parse().unwrap());
    drain.drain().unwrap();
    drain.drain().unwrap();
    assert_eq!(keys(&store), ["well 2026-05-31T03:00:00"]);
    assert_eq!(tries.load(Ordering::SeqCst), 1, "its next try has a time");
    for (name, text) in [
        ("a-failing", "no cards\\u{1b}[31m file"),
        ("b-panicking", "its mapping function panicked: index out of bounds"),
        ("c-unfit", "a job of kind `post` has an empty key: a key is taken from the work itself"),
    ] {
        let shown = info(&store, name);
        assert_eq!((shown.error.as_deref(), shown.failures), (Some(text), 1), "{name}");
        assert_eq!(shown.mark, "2026-05-30T13:00:00", "{name}");
        let wait = shown.try_at.unwrap() - clock.now();
        assert!((5_000..=6_000).contains(&wait.num_milliseconds()), "{name}: {wait}");
        assert_eq!(occurrences(&store, name).len(), 0);
    }
    clock.advance(Duration::from_secs(7));
    drain.drain().unwrap();
    assert_eq!((tries.load(Ordering::SeqCst), info(&store, "a-failing").failures), (2, 2));
    works.store(true, Ordering::SeqCst);
    // A day has passed: the one that failed is made first, and then that day's.
    clock.set("2026-06-01T01:00:00Z".parse().unwrap());
    drain.drain().unwrap();
    let shown = info(&store, "a-failing");
    assert_eq!((shown.error, shown.failures, shown.try_at), (None, 0, None));
    assert_eq!(occurrences(&store, "a-failing"), ["2026-05-31T03:00:00", "2026-06-01T03:00:00"]);
}

#[test]
fn a_restart_with_a_mended_mapping_makes_what_failed_at_once() {
    let (_folder, clock, store) = at("2026-05-30T10:00:00Z");
    let register = |works: bool| {
        let map = move |at: &Occurrence| works.then(|| two_cards(at)).ok_or_else(|| anyhow::anyhow!("no cards file"));
        Drain::new(Runner::builder(&store).try_schedule(nightly(), map)).unwrap()
    };
    let failing = register(false);
    clock.set("2026-05-31T10:00:00Z".parse().unwrap());
    failing.drain().unwrap();
    assert_eq!(info(&store, "nightly").failures, 1);
    register(true).drain().unwrap();
    assert_eq!(keys(&store), ["bonus/2026-05-31", "miles/2026-05-31"]);
}

#[test]
fn a_key_with_other_content_is_recorded_on_the_occurrence_and_the_mark_moves_on() {
    let (_folder, clock, store) = at("2026-05-30T10:00:00Z");
    let _ = store.enqueue(&Post { minor: 99, ..post("bonus/2026-05-31") }).unwrap();
    let _ = store.enqueue(&post("miles/2026-05-31")).unwrap();
    let runner = Runner::builder(&store).handle(|_: Post, _: &Context| Ok(()));
    let drain = Drain::new(runner.schedule(nightly(), |at| {
        let twin = Post { minor: 2, ..post(format!("new/{}", at.date())) };
        two_cards(at).into_iter().chain([post(format!("new/{}", at.date())), twin]).collect::<Vec<_>>()
    }));
    let drain = drain.unwrap();
    clock.set("2026-06-01T10:00:00Z".parse().unwrap());
    drain.drain().unwrap();
    let made = store.occurrences("nightly", 10).unwrap();
    let [second, first] = &made[..] else { panic!("{made:?}") };
    assert_eq!((first.id.as_str(), first.jobs), ("2026-05-31T03:00:00", 4));
    assert_eq!(first.conflicts, ["post bonus/2026-05-31", "post new/2026-05-31"]);
    assert_eq!(second.conflicts, ["post new/2026-06-01"]);
    let minor: i64 = ask(store.path(), "SELECT payload ->> 'minor' FROM birkez_job WHERE key = 'bonus/2026-05-31'");
    assert_eq!((minor, keys(&store).len()), (99, 6));
    assert_eq!(info(&store, "nightly").mark, "2026-06-01T03:00:00");
}

#[test]
fn a_runner_makes_what_comes_due_on_the_machines_clock_and_runs_it() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let each_second = Schedule::cron("each-second", "* * * * * *").unwrap();
    let runner = Runner::builder(&store)
        .workers(1)
        .handle(|_: Post, _cx: &Context| Ok(()))
        .schedule(each_second, |at: &Occurrence| [post(at.id())]);
    let runner = runner.start().unwrap();
    let done = "SELECT count(*) FROM birkez_job WHERE state = 2";
    common::wait_until("three seconds have made their jobs", || ask::<i64>(store.path(), done) >= 3);
    runner.stop(Duration::from_secs(5)).unwrap();
    for made in store.occurrences("each-second", 10).unwrap() {
        let late = (made.made_at - made.due_at).num_milliseconds();
        assert!((0..1_000).contains(&late), "made {late} ms after it was due: {made:?}");
        assert_eq!(store.find("post", &made.id).unwrap().map(|job| job.key), Some(made.id));
    }
}

#[test]
fn a_schedule_that_cannot_be_understood_is_refused_with_the_reason() {
    let invalid = |result: birkez::Result<Schedule>| {
        let error = result.unwrap_err();
        assert_eq!(error.code(), "SCHEDULE_INVALID");
        let cause = std::error::Error::source(&error).unwrap().to_string();
        format!("{error}: {cause}")
    };
    let nowhere = Schedule::cron("s", "0 3 * * *").unwrap().zone("Europe/Istambul");
    for (refused, word) in [
        (Schedule::cron("s", "61 3 * * *"), "minute"),
        (Schedule::cron("s", "0 3 30 2 *"), "no such day"),
        (Schedule::cron("", "0 3 * * *"), "1 to 128 bytes"),
        (nowhere, "Europe/Istambul"),
    ] {
        let text = invalid(refused);
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let twice = Runner::builder(&store).schedule(nightly(), two_cards).schedule(nightly(), two_cards);
    let error = Drain::new(twice).unwrap_err();
    assert_eq!(error.code(), "SCHEDULE_INVALID");
    assert!(store.schedules().unwrap().is_empty());
}
