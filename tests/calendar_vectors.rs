//! The calendar against vectors that were computed elsewhere: a minute-by-minute walk, compared with cronsim,
//! croniter and croner. What can go wrong: day numbering, Vixie's rule for the day fields, short months, hours that
//! are skipped or repeated, a day that a zone skipped whole, texts that look like cron and are not.

use std::env;
use std::hint::black_box;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use birkez::calendar::{Calendar, CalendarFault, Due, Policy, ScheduleState, ShortMonths, Zone, plan};
use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

const VECTORS: &str = include_str!("vectors/cron_vectors.json");
const CLAMP_VECTORS: &str = include_str!("vectors/cron_clamp_vectors.json");
const EXPRESSIONS: &str = include_str!("vectors/cron_expressions.json");

struct Case {
    text: String,
    zone: Zone,
    after: DateTime<Utc>,
    next: Vec<String>,
    nominal: Vec<String>,
    kind: Option<String>,
    note: String,
}

fn cases(json: &str) -> Vec<Case> {
    let all: Vec<Value> = serde_json::from_str(json).unwrap();
    all.iter().map(case).collect()
}

fn case(case: &Value) -> Case {
    let text = |field: &str| case[field].as_str().map(str::to_owned);
    let list = |field: &str| {
        let items = case[field].as_array().into_iter().flatten();
        items.map(|item| item.as_str().unwrap().to_owned()).collect::<Vec<_>>()
    };
    Case {
        text: text("expr").unwrap(),
        zone: Zone::parse(&text("tz").unwrap()).unwrap(),
        after: text("after").unwrap().parse().unwrap(),
        next: list("next"),
        nominal: list("nominal"),
        kind: text("kind"),
        note: text("note").unwrap(),
    }
}

fn assert_case(case: &Case, calendar: &Calendar, zone: &Zone) {
    let due: Vec<Due> = calendar.upcoming(zone, case.after).take(case.next.len()).collect();
    let instants: Vec<String> = due.iter().map(|due| due.local().to_rfc3339()).collect();
    assert_eq!(instants, case.next, "{} in {zone}: {}", case.text, case.note);
    if let Some(kind) = &case.kind {
        assert_eq!(calendar.is_wall(), kind == "wall", "{}: {}", case.text, case.note);
    }
    if !case.nominal.is_empty() {
        let ids: Vec<String> = due.iter().map(Due::occurrence).collect();
        assert_eq!(ids, case.nominal, "{}: {}", case.text, case.note);
    }
    assert_eq!(calendar.next(zone, case.after), due.first().copied());
    assert_back_and_forth(calendar, zone, &due);
}

/// From a mark, the same occurrences come out oldest first, newest first, and by their ids.
fn assert_back_and_forth(calendar: &Calendar, zone: &Zone, due: &[Due]) {
    let (Some(first), Some(last)) = (due.first(), due.last()) else { return };
    let forth: Vec<Due> = calendar.due_oldest_first(zone, first.mark(), last.at).collect();
    let mut back: Vec<Due> = calendar.due_newest_first(zone, first.mark(), last.at).collect();
    back.reverse();
    assert_eq!(forth, back);
    assert!(forth.starts_with(&due[1..]), "{calendar}");
    for due in due {
        assert_eq!(calendar.find(zone, due.occurrence().parse().unwrap()), Some(*due));
    }
}

#[test]
fn all_vectors_come_out_forwards_backwards_and_by_id() {
    let cases = cases(VECTORS);
    assert_eq!(cases.len(), 130);
    for case in &cases {
        assert_case(case, &Calendar::cron(&case.text).unwrap(), &case.zone);
    }
}

#[test]
fn all_vectors_with_clamped_short_months_come_out() {
    let cases = cases(CLAMP_VECTORS);
    assert_eq!(cases.len(), 5);
    for case in &cases {
        let calendar = Calendar::cron(&case.text).unwrap().short_months(ShortMonths::LastDay).unwrap();
        assert_case(case, &calendar, &case.zone);
        assert_eq!(calendar, Calendar::cron_with(&case.text, ShortMonths::LastDay).unwrap());
    }
}

#[test]
fn every_invalid_text_is_refused_with_one_line_that_says_why() {
    let all: Value = serde_json::from_str(EXPRESSIONS).unwrap();
    let invalid = all["invalid"].as_array().unwrap();
    assert!(invalid.len() >= 83);
    for case in invalid {
        let (text, why) = (case["expr"].as_str().unwrap(), &case["why"]);
        let error = Calendar::cron(text).expect_err(&format!("{text:?}: {why}"));
        assert!(text.parse::<Calendar>().is_err(), "{text:?}: {why}");
        let line = error.to_string();
        assert!(line.chars().all(|c| !c.is_control()) && line.len() < 400, "{line}");
        let whole = matches!(
            error.fault(),
            CalendarFault::Empty
                | CalendarFault::FieldCount { .. }
                | CalendarFault::Shorthand
                | CalendarFault::TooLong { .. }
                | CalendarFault::Character { .. }
        );
        assert!(error.field().is_some() || whole, "{line}");
    }
}

#[test]
fn every_odd_but_valid_text_is_accepted() {
    let all: Value = serde_json::from_str(EXPRESSIONS).unwrap();
    let valid = all["valid_weird"].as_array().unwrap();
    assert_eq!(valid.len(), 19);
    for case in valid {
        let calendar = Calendar::cron(case["expr"].as_str().unwrap()).unwrap();
        assert!(calendar.next(&Zone::UTC, DateTime::UNIX_EPOCH).is_some());
        assert_eq!(calendar.to_string().parse::<Calendar>().unwrap(), calendar);
    }
}

#[test]
fn the_plain_forms_are_the_cron_lines_they_stand_for() {
    let start: DateTime<Utc> = "2026-01-30T12:00:00Z".parse().unwrap();
    let ids = |calendar: &Calendar| -> Vec<String> {
        calendar.upcoming(&Zone::UTC, start).take(30).map(|due| due.occurrence()).collect()
    };
    let cron = |text, short_months| Calendar::cron_with(text, short_months).unwrap();
    let last_day = ShortMonths::LastDay;
    assert_eq!(ids(&Calendar::daily("3:00").unwrap()), ids(&cron("0 3 * * *", last_day)));
    assert_eq!(ids(&Calendar::weekly(chrono::Weekday::Mon, "09:00:05").unwrap()), ids(&cron("5 0 9 * * 1", last_day)));
    assert_eq!(ids(&Calendar::weekly(chrono::Weekday::Sun, "09:00").unwrap()), ids(&cron("0 9 * * 7", last_day)));
    assert_eq!(ids(&Calendar::monthly(31, "09:00").unwrap()), ids(&cron("0 9 31 * *", last_day)));
    let skipping = Calendar::monthly(31, "09:00").unwrap().short_months(ShortMonths::Skip).unwrap();
    assert_eq!(ids(&skipping), ids(&cron("0 9 31 * *", ShortMonths::Skip)));
}

#[test]
fn every_calendar_reads_back_from_its_text() {
    for text in [
        "0 9 31 * *",
        "0 9 31 2 * (last-day)",
        "@daily",
        "daily 03:00",
        "weekly mon 09:00:30",
        "weekly sun 00:00",
        "monthly 31 09:00",
        "monthly 31 09:00 (skip)",
        "every 900s",
    ] {
        assert_eq!(text.parse::<Calendar>().unwrap().to_string(), text);
    }
    for text in [
        "daily",
        "daily 24:00",
        "daily 03:00:5",
        "daily 03:0",
        "weekly 1 09:00",
        "monthly 32 09:00",
        "every 0s",
        "every 5",
        "daily 03:00 (never)",
        "0 9 31 2 *",
    ] {
        assert!(text.parse::<Calendar>().is_err(), "{text}");
    }
    assert_ne!("0 9 31 * *".parse::<Calendar>().unwrap(), "0 9 31 * * (last-day)".parse().unwrap());
}

#[test]
fn no_text_makes_the_calendar_panic_and_what_is_read_reads_back_the_same() {
    let pieces =
        ["*", "*/", "/", "-", ",", "L", "l", "?", "0", "5", "7", "29", "31", "60", "255", "256", "sun", "FRI", "feb"];
    let odd =
        [" ", " ", " ", " ", "\t", "\n", "@daily", "every 9s", "daily 03:00", "(skip)", " (last-day)", "é", "\0", ":"];
    let mut rng = fastrand::Rng::with_seed(1);
    let mut read = 0;
    for _ in 0..30_000 {
        let mut text = String::new();
        for _ in 0..rng.usize(1..14) {
            let from: &[&str] = if rng.bool() { &pieces } else { &odd };
            text.push_str(from[rng.usize(..from.len())]);
        }
        let tidy = if rng.bool() { text.replace(char::is_control, " 1 ") } else { text };
        let Ok(calendar) = tidy.parse::<Calendar>() else { continue };
        read += 1;
        assert_eq!(calendar.to_string().parse::<Calendar>().as_ref(), Ok(&calendar), "{tidy:?}");
        assert!(calendar.next(&Zone::UTC, DateTime::UNIX_EPOCH).is_some(), "{tidy:?}");
        calendar.warnings().iter().for_each(|warning| assert!(!warning.to_string().contains('\n')));
    }
    assert!(read > 100, "only {read} texts were read");
}

/// The least of many measurements, so that a busy machine does not fail it.
#[test]
fn what_a_year_off_missed_is_found_within_a_millisecond_and_the_next_within_ten_microseconds() {
    let (berlin, now) =
        (Zone::parse("Europe/Berlin").unwrap(), "2026-10-01T12:34:56Z".parse::<DateTime<Utc>>().unwrap());
    // Without optimisation only the order of magnitude is looked at.
    let slack = if cfg!(debug_assertions) { 40 } else { 1 };
    let least = |work: &dyn Fn()| {
        let times = (0..100).map(|_| {
            let start = Instant::now();
            work();
            start.elapsed()
        });
        times.min().unwrap()
    };
    for text in ["* * * * *", "0-59 0-23 * * *", "0 0 L * *", "30 2 1-7 * MON"] {
        let calendar = Calendar::cron(text).unwrap();
        let state = ScheduleState::new(calendar.mark_at(&berlin, now - TimeDelta::days(365)));
        let missed = least(&|| _ = black_box(plan(&calendar, &berlin, &state, now, &Policy::default())));
        assert!(missed < Duration::from_millis(slack), "{text}: {missed:?}");
        let next = least(&|| _ = black_box(calendar.next(&berlin, now)));
        assert!(next < Duration::from_micros(10 * slack), "{text}: {next:?}");
    }
}

#[test]
fn short_months_decide_whether_a_line_ever_fires() {
    assert!(Calendar::cron("0 9 31 2 *").is_err());
    let february = Calendar::cron_with("0 9 31 2 *", ShortMonths::LastDay).unwrap();
    let next = february.next(&Zone::UTC, "2028-01-01T00:00:00Z".parse().unwrap()).unwrap();
    assert_eq!(next.occurrence(), "2028-02-29T09:00:00");
    assert!(february.short_months(ShortMonths::Skip).is_err());
    assert!(Calendar::cron_with("0 9 1 0 *", ShortMonths::LastDay).is_err());
}

#[test]
fn a_clamped_day_counts_as_the_day_field_beside_a_weekday() {
    let either = Calendar::cron_with("0 9 31 * FRI", ShortMonths::LastDay).unwrap();
    let days: Vec<String> = either
        .upcoming(&Zone::UTC, "2026-02-19T12:00:00Z".parse().unwrap())
        .take(4)
        .map(|due| due.date().to_string())
        .collect();
    assert_eq!(days, ["2026-02-20", "2026-02-27", "2026-02-28", "2026-03-06"]);
}

#[test]
fn periods_are_counted_from_their_anchor_whatever_the_zone_does() {
    let anchor = "2026-10-25T00:10:00.750Z".parse().unwrap();
    let calendar = Calendar::every(Duration::from_secs(40 * 60)).unwrap().anchored(anchor);
    let berlin = Zone::parse("Europe/Berlin").unwrap();
    let ids: Vec<String> = calendar.upcoming(&berlin, anchor).take(3).map(|due| due.occurrence()).collect();
    assert_eq!(ids, ["2026-10-25T00:50:00Z", "2026-10-25T01:30:00Z", "2026-10-25T02:10:00Z"]);
    assert_eq!(calendar.next(&berlin, anchor).unwrap().nominal.to_string(), "2026-10-25 02:50:00");
}

#[test]
fn a_back_fill_has_the_occurrences_of_its_local_dates_and_no_others() {
    let berlin = Zone::parse("Europe/Berlin").unwrap();
    let count = |text: &str, first: &str, last: &str| {
        let calendar = Calendar::cron(text).unwrap();
        calendar.on_dates(&berlin, first.parse().unwrap(), last.parse().unwrap()).count()
    };
    assert_eq!(count("0 * * * *", "2026-10-25", "2026-10-25"), 25);
    assert_eq!(count("0 * * * *", "2026-03-29", "2026-03-29"), 23);
    assert_eq!(count("30 2 * * *", "2026-03-28", "2026-03-30"), 3);
    assert_eq!(count("0 0 * * *", "2026-03-28", "2026-03-27"), 0);
    assert_eq!(count("0 0 1 1 *", "1900-01-01", "1971-01-01"), 2);
}

#[test]
fn no_instant_makes_the_calendar_panic() {
    let edges = ["1969-12-31T23:59:59Z", "1970-01-01T00:00:00Z", "2100-12-31T23:59:59Z", "2101-01-01T00:00:00Z"];
    let edges = edges.iter().map(|at| at.parse().unwrap());
    let calendars = ["* * * * * *", "30 2 29 2 *", "*/30 2 L * 5", "every 1s", "every 31622400s", "monthly 31 09:00"];
    for at in edges.chain([DateTime::<Utc>::MIN_UTC, DateTime::<Utc>::MAX_UTC]) {
        for calendar in calendars.iter().map(|text| text.parse::<Calendar>().unwrap()) {
            for zone in ["UTC", "Pacific/Kiritimati", "Pacific/Apia", "local"].map(|name| Zone::parse(name).unwrap()) {
                let mark = calendar.mark_at(&zone, at);
                let _ = calendar.next(&zone, at);
                let _ = calendar.due_newest_first(&zone, mark, DateTime::<Utc>::MAX_UTC).next();
                let _ = calendar.due_oldest_first(&zone, mark, DateTime::<Utc>::MIN_UTC).next();
                let _ = calendar.find(&zone, mark);
            }
        }
    }
    let far = Calendar::daily("03:00").unwrap().next(&Zone::UTC, DateTime::<Utc>::MAX_UTC);
    assert_eq!(far, None);
}

/// The machine's zone is set by the environment of a process, so each zone is tried in a process of its own.
#[test]
fn the_machines_own_zone_gives_what_the_zone_of_that_name_gives() {
    if let Ok(name) = env::var("BIRKEZ_TEST_LOCAL") {
        let own = cases(VECTORS).into_iter().filter(|case| case.zone.to_string() == name);
        own.for_each(|case| assert_case(&case, &Calendar::cron(&case.text).unwrap(), &Zone::Local));
        return;
    }
    for name in [
        "Europe/Berlin",
        "America/New_York",
        "Australia/Lord_Howe",
        "Pacific/Apia",
        "Europe/Istanbul",
        "America/Santiago",
        "Africa/Cairo",
    ] {
        if !Path::new("/usr/share/zoneinfo").join(name).exists() {
            println!("{name}: this machine has no zone data, not tried");
            continue;
        }
        let this = "the_machines_own_zone_gives_what_the_zone_of_that_name_gives";
        let mut child = Command::new(env::current_exe().unwrap());
        child.args(["--exact", this]).env("TZ", name).env("BIRKEZ_TEST_LOCAL", name);
        let output = child.output().unwrap();
        assert!(output.status.success(), "{name}: {}", String::from_utf8_lossy(&output.stdout));
    }
}
