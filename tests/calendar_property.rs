//! The calendar against a walk that knows nothing of it: minute by minute through UTC, asking the zone only for the
//! local time.
//!
//! What can go wrong: occurrences lost, doubled, out of order or an hour off around skipped and repeated hours;
//! walking back not being the reverse of walking on.
//!
//! `BIRKEZ_CASES` (default 10,000) and `BIRKEZ_SEED` change how much is tried, and what.

use std::collections::BTreeSet;
use std::env;
use std::ops::Range;

use birkez::calendar::{Calendar, Due, ShortMonths, Zone};
use chrono::{DateTime, Datelike, NaiveDate, Offset, TimeDelta, TimeZone, Utc};
use chrono_tz::Tz;
use fastrand::Rng;

const ZONES: &[&str] = &[
    "UTC",
    "Europe/Berlin",
    "Europe/Istanbul",
    "Europe/Dublin",
    "Europe/Lisbon",
    "Atlantic/Azores",
    "America/New_York",
    "America/St_Johns",
    "America/Santiago",
    "America/Caracas",
    "America/Havana",
    "Africa/Cairo",
    "Africa/Casablanca",
    "Asia/Kathmandu",
    "Asia/Tehran",
    "Asia/Gaza",
    "Asia/Pyongyang",
    "Australia/Lord_Howe",
    "Australia/Adelaide",
    "Antarctica/Troll",
    "Pacific/Apia",
    "Pacific/Chatham",
    "Pacific/Kiritimati",
    "Pacific/Kwajalein",
];

fn setting(name: &str, default: u64) -> u64 {
    env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

fn seed() -> u64 {
    setting("BIRKEZ_SEED", 20_261_025)
}

/// One field of a made-up line: how it is written, and what was meant.
struct Field {
    text: String,
    values: BTreeSet<i64>,
    star: bool,
}

fn star(min: i64, max: i64) -> Field {
    Field { text: "*".to_owned(), values: (min..=max).collect(), star: true }
}

/// Lists of numbers, ranges and steps; `favour` gives the numbers that are wanted more often than others.
fn field(rng: &mut Rng, min: i64, max: i64, favour: &[i64]) -> Field {
    let pick = |rng: &mut Rng| {
        if !favour.is_empty() && rng.u8(..10) < 7 { favour[rng.usize(..favour.len())] } else { rng.i64(min..=max) }
    };
    if rng.u8(..4) == 0 {
        let step = rng.i64(1..=max);
        return Field { text: format!("*/{step}"), values: (min..=max).step_by(step as usize).collect(), star: true };
    }
    let mut field = Field { text: String::new(), values: BTreeSet::new(), star: false };
    for place in 0..rng.u8(1..=3) {
        let separator = if place == 0 { "" } else { "," };
        let (from, step) = (pick(rng), rng.i64(1..=max));
        let to = rng.i64(from..=max);
        let (text, values) = match rng.u8(..6) {
            0 => (format!("{from}-{to}"), (from..=to).step_by(1)),
            1 => (format!("{from}-{to}/{step}"), (from..=to).step_by(step as usize)),
            2 => (format!("{from:02}/{step}"), (from..=max).step_by(step as usize)),
            _ => (from.to_string(), (from..=from).step_by(1)),
        };
        field.text = format!("{}{separator}{text}", field.text);
        field.values.extend(values);
    }
    field
}

fn weekday(rng: &mut Rng) -> Field {
    let names = ["sun", "Mon", "TUE", "wed", "Thu", "FRI", "sat"];
    let range = |text: &str, values: &[i64]| Field {
        text: text.to_owned(),
        values: values.iter().copied().collect(),
        star: false,
    };
    match rng.u8(..8) {
        0 => range("5-7", &[0, 5, 6]),
        1 => range("SAT-SUN", &[0, 6]),
        2 => range("7", &[0]),
        3 => range("mon-fri/2", &[1, 3, 5]),
        4 => Field { text: "?".to_owned(), ..star(0, 6) },
        5 => {
            let day = rng.usize(..7);
            range(names[day], &[day as i64])
        }
        _ => field(rng, 0, 6, &[]),
    }
}

/// A made-up line and what was meant by it.
struct Line {
    text: String,
    clamp: bool,
    second: Field,
    minute: Field,
    hour: Field,
    day: Field,
    last: bool,
    month: Field,
    weekday: Field,
}

impl Line {
    fn any(rng: &mut Rng) -> Line {
        let mostly_star =
            |rng: &mut Rng, min, max| if rng.u8(..10) < 7 { star(min, max) } else { field(rng, min, max, &[]) };
        let six = rng.u8(..4) == 0;
        let second = if six {
            field(rng, 0, 59, &[0])
        } else {
            Field { values: BTreeSet::from([0]), text: String::new(), star: false }
        };
        let minute = if rng.u8(..5) == 0 { star(0, 59) } else { field(rng, 0, 59, &[0, 30, 59]) };
        let hour = if rng.u8(..3) == 0 { star(0, 23) } else { field(rng, 0, 23, &[0, 1, 2, 3, 23]) };
        let month = mostly_star(rng, 1, 12);
        let weekday = if rng.u8(..10) < 6 { star(0, 6) } else { weekday(rng) };
        let mut day = if rng.u8(..10) < 5 { star(1, 31) } else { field(rng, 1, 31, &[1, 28, 29, 30, 31]) };
        let last = !day.star && rng.u8(..3) == 0;
        if last {
            day.text.push_str(if rng.bool() { ",L" } else { ",l" });
        }
        let parts = [&second.text, &minute.text, &hour.text, &day.text, &month.text, &weekday.text];
        let text = parts.map(String::as_str).join(" ").trim().to_owned();
        Line { text, clamp: rng.bool(), second, minute, hour, day, last, month, weekday }
    }

    fn is_wall(&self) -> bool {
        !(self.second.star || self.minute.star || self.hour.star)
    }

    fn matches_day(&self, date: NaiveDate) -> bool {
        let (year, month, day) = (date.year(), date.month(), i64::from(date.day()));
        let length =
            (28..=31).rev().find(|&day| NaiveDate::from_ymd_opt(year, month, day).is_some()).map_or(0, i64::from);
        let ends =
            day == length && (self.last || (self.clamp && self.day.values.iter().any(|&wanted| wanted > length)));
        let by_day = self.day.values.contains(&day) || ends;
        let by_weekday = self.weekday.values.contains(&i64::from(date.weekday().num_days_from_sunday()));
        let days = if self.day.star || self.weekday.star { by_day && by_weekday } else { by_day || by_weekday };
        self.month.values.contains(&i64::from(month)) && days
    }
}

/// Nominal time and instant, in seconds since 1970.
type Found = (i64, i64);

/// The walk. Times in minutes since 1970; `local` is what the wall clock shows.
struct Walk<'a> {
    line: &'a Line,
    zone: Tz,
    /// The day last asked about, and whether it matches.
    day: (i64, bool),
    /// Minutes known to have one offset, and that offset.
    known: (Range<i64>, i64),
}

impl Walk<'_> {
    fn new(line: &Line, zone: Tz) -> Walk<'_> {
        Walk { line, zone, day: (i64::MIN, false), known: (0..0, 0) }
    }

    fn offset(&self, minute: i64) -> i64 {
        let at = DateTime::from_timestamp(minute * 60, 0).unwrap().naive_utc();
        i64::from(self.zone.offset_from_utc_datetime(&at).fix().local_minus_utc()) / 60
    }

    /// No zone ever changed its clock twice within a quarter of an hour, so minutes are asked for singly only where
    /// the two ends of one differ.
    fn local(&mut self, minute: i64) -> i64 {
        if !self.known.0.contains(&minute) {
            let (offset, end) = (self.offset(minute), minute + 14);
            let same = self.offset(end) == offset;
            self.known = (minute..if same { end } else { minute } + 1, offset);
        }
        minute + self.known.1
    }

    fn matches(&mut self, local: i64) -> bool {
        let (day, minute) = (local.div_euclid(1440), local.rem_euclid(1440));
        let Line { minute: minutes, hour: hours, .. } = self.line;
        if !minutes.values.contains(&(minute % 60)) || !hours.values.contains(&(minute / 60)) {
            return false;
        }
        if self.day.0 != day {
            let date = DateTime::from_timestamp(day * 86_400, 0).unwrap().date_naive();
            self.day = (day, self.line.matches_day(date));
        }
        self.day.1
    }

    /// Up to `want` occurrences after second `start` and before second `end`.
    fn run(&mut self, start: i64, end: i64, want: usize) -> Vec<Found> {
        let wall = self.line.is_wall();
        let mut found: Vec<Found> = Vec::new();
        let begin = start.div_euclid(60) - if wall { 27 * 60 } else { 0 };
        let mut highest = self.local(begin) - 1;
        for minute in begin..end.div_euclid(60) {
            let local = self.local(minute);
            for skipped in highest + 1..local {
                if wall && self.matches(skipped) {
                    found.extend(self.line.second.values.iter().map(|second| (skipped * 60 + second, minute * 60)));
                }
            }
            if (!wall || local > highest) && self.matches(local) {
                let seconds = self.line.second.values.iter();
                found.extend(seconds.map(|second| (local * 60 + second, minute * 60 + second)));
            }
            highest = highest.max(local);
            if minute * 60 <= start + 60 {
                found.retain(|found| found.1 > start);
            } else if found.len() >= want {
                break;
            }
        }
        found.truncate(want);
        found
    }
}

/// Seconds at which the zone's clock changes, 1975 to 2060.
fn changes(zone: Tz) -> Vec<i64> {
    let offset = |at: i64| zone.offset_from_utc_datetime(&DateTime::from_timestamp(at, 0).unwrap().naive_utc()).fix();
    let (first, day) = (5 * 365 * 86_400, 86_400);
    let days = (0..85 * 365).map(|number| first + number * day);
    let changing = days.filter(|&at| offset(at) != offset(at + day));
    changing
        .map(|at| {
            let (mut before, mut after) = (at, at + day);
            while after - before > 1 {
                let middle = (before + after) / 2;
                if offset(middle) == offset(at) { before = middle } else { after = middle }
            }
            after
        })
        .collect()
}

fn start(rng: &mut Rng, changes: &[i64]) -> (i64, u32) {
    let nanos = if rng.u8(..4) == 0 { rng.u32(..1_000_000_000) } else { 0 };
    let anywhere = rng.i64(5 * 365 * 86_400..120 * 365 * 86_400);
    if changes.is_empty() || rng.u8(..10) < 2 {
        return (anywhere, nanos);
    }
    let change = changes[rng.usize(..changes.len())];
    let away = match rng.u8(..4) {
        0 => rng.i64(-2..=2),
        1 => rng.i64(-7_200..=7_200),
        _ => rng.i64(-50 * 3600..=30 * 3600),
    };
    (change + away, nanos)
}

fn assert_case(rng: &mut Rng, zone: Tz, changes: &[i64], label: &str) -> bool {
    let line = Line::any(rng);
    let short_months = if line.clamp { ShortMonths::LastDay } else { ShortMonths::Skip };
    let (start, nanos) = start(rng, changes);
    let Ok(calendar) = Calendar::cron_with(&line.text, short_months) else {
        assert!(never_fires(&line), "{label}: {} was refused", line.text);
        return false;
    };
    assert_eq!(calendar.is_wall(), line.is_wall(), "{label}: {}", line.text);
    let days = match rng.u16(..1000) {
        0..4 => 400,
        4..60 => 30,
        _ => 3,
    };
    let end = start - start.rem_euclid(60) + days * 86_400;
    let expected = Walk::new(&line, zone).run(start, end, 8);

    let after = DateTime::from_timestamp(start, nanos).unwrap();
    let zone = Zone::Named(zone);
    let due: Vec<Due> = calendar.upcoming(&zone, after).take(8).take_while(|due| due.at.timestamp() < end).collect();
    let found: Vec<Found> = due.iter().map(|due| (due.nominal.and_utc().timestamp(), due.at.timestamp())).collect();
    assert_eq!(found, expected, "{label}: `{}` {short_months:?} in {zone} after {after}", line.text);
    assert_consistent(&calendar, &zone, after, &due, label);
    true
}

/// Whether no day of a long time matches. A line is refused only then.
fn never_fires(line: &Line) -> bool {
    let first = NaiveDate::from_ymd_opt(2024, 1, 1).unwrap();
    !first.iter_days().take(28 * 366).any(|date| line.matches_day(date))
}

/// What the walk found, `next`, the marks and the way back all say the same.
fn assert_consistent(calendar: &Calendar, zone: &Zone, after: DateTime<Utc>, due: &[Due], label: &str) {
    let case = || format!("{label}: `{calendar}` in {zone} after {after}");
    assert_eq!(calendar.next(zone, after).filter(|_| !due.is_empty()), due.first().copied(), "{}", case());
    let Some(last) = due.last() else { return };
    let mark = calendar.mark_at(zone, after);
    let forth: Vec<Due> = calendar.due_oldest_first(zone, mark, last.at).collect();
    let mut back: Vec<Due> = calendar.due_newest_first(zone, mark, last.at).collect();
    back.reverse();
    assert_eq!(back, forth, "{}", case());
    assert!(forth.starts_with(due) || due.starts_with(&forth), "{}", case());
    let early: Vec<Due> = calendar.due_oldest_first(zone, mark, last.at - TimeDelta::nanoseconds(1)).collect();
    assert!(early.iter().all(|due| due.at < last.at), "{}", case());
    assert_eq!(calendar.find(zone, last.mark()), Some(*last), "{}", case());
}

fn compare(share: u64, parts: u64) {
    let (cases, seed) = (setting("BIRKEZ_CASES", 10_000) / parts, seed() + share);
    println!("{cases} cases, BIRKEZ_SEED={seed} for this part alone");
    let zones: Vec<(Tz, Vec<i64>)> =
        ZONES.iter().map(|name| name.parse().unwrap()).map(|zone| (zone, changes(zone))).collect();
    let mut rng = Rng::with_seed(seed);
    let mut compared = 0;
    while compared < cases {
        let (zone, changes) = &zones[rng.usize(..zones.len())];
        let label = format!("seed {seed}, case {compared}");
        compared += u64::from(assert_case(&mut rng, *zone, changes, &label));
    }
}

#[test]
fn occurrences_are_those_of_a_walk_through_every_minute_first_half() {
    compare(0, 2);
}

#[test]
fn occurrences_are_those_of_a_walk_through_every_minute_second_half() {
    compare(1, 2);
}
