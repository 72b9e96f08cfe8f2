//! The calendar against a walk that knows nothing of it: minute by minute through UTC, asking the zone only for the
//! local time.
//!
//! What can go wrong: occurrences lost, doubled, out of order or an hour off around skipped and repeated hours;
//! walking back not being the reverse of walking on; a history of sleep, travel and wrong clocks that loses a run or
//! runs one twice.
//!
//! `BIRKEZ_CASES` (default 10,000), `BIRKEZ_HISTORIES` (default 3) and `BIRKEZ_SEED` change how much is tried, and
//! what.

use std::collections::BTreeSet;
use std::env;
use std::time::Duration;

use birkez::calendar::{Calendar, CatchUp, Clock, Due, Mark, Plan, Policy, ScheduleState, ShortMonths, Zone, plan};
use chrono::{DateTime, Datelike, NaiveDate, NaiveDateTime, Offset, TimeDelta, TimeZone, Utc};
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
}

impl Walk<'_> {
    fn local(&self, minute: i64) -> i64 {
        let at = DateTime::from_timestamp(minute * 60, 0).unwrap().naive_utc();
        minute + i64::from(self.zone.offset_from_utc_datetime(&at).fix().local_minus_utc()) / 60
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
            found.retain(|found| found.1 > start);
            if found.len() >= want {
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
        0..6 => 400,
        6..80 => 30,
        _ => 3,
    };
    let end = start - start.rem_euclid(60) + days * 86_400;
    let expected = Walk { line: &line, zone, day: (i64::MIN, false) }.run(start, end, 8);

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

/// A machine that sleeps, travels and has its clock set wrong, for ten months.
struct History {
    rng: Rng,
    zone: Zone,
    /// What the clock shows less what it should.
    error: TimeDelta,
    behind_since: Option<DateTime<Utc>>,
    state: ScheduleState,
    ran: BTreeSet<String>,
    missed: Vec<(Mark, Mark)>,
    /// Runs that were planned again because the clock showed their time again.
    stopped_by_key: usize,
}

impl History {
    fn policy(catch_up: CatchUp) -> Policy {
        Policy { catch_up, batch: 50, ..Policy::default() }
    }

    fn evaluate(&mut self, calendar: &Calendar, truth: DateTime<Utc>, policy: &Policy) {
        loop {
            let now = truth + self.error;
            let behind_for = self.behind_since.map(|since| truth - since).unwrap_or_default();
            self.state.behind_for = behind_for.to_std().unwrap_or(Duration::ZERO);
            let plan = plan(calendar, &self.zone, &self.state, now, policy);
            self.behind_since = (plan.clock == Clock::Behind).then(|| self.behind_since.unwrap_or(truth));
            self.assert_plan(&plan, now);
            self.state = self.state.after(&plan);
            if !plan.more {
                return;
            }
        }
    }

    fn assert_plan(&mut self, plan: &Plan, now: DateTime<Utc>) {
        let highest = |mark: Mark, high: Option<Mark>| high.map_or(mark, |high| high.later(mark));
        assert!(highest(plan.mark, plan.high) >= highest(self.state.mark, self.state.high), "the highest mark fell");
        for run in &plan.runs {
            assert!(run.due.at <= now && run.due.mark() > self.state.created, "{run:?} at {now}");
            if !self.ran.insert(run.due.occurrence()) {
                let again = plan.clock != Clock::Steady || self.state.high.is_some();
                assert!(again, "{} planned twice at {now} without cause", run.due.occurrence());
                self.stopped_by_key += 1;
            }
        }
        self.missed.extend(plan.missed.iter().map(|gap| (gap.from.mark(), gap.to.mark())));
    }

    /// Time passes; sometimes the machine sleeps, travels, loses its clock or has it put right.
    fn live(&mut self, truth: DateTime<Utc>) -> DateTime<Utc> {
        let rng = &mut self.rng;
        if rng.u16(..200) == 0 {
            let zones = [
                "Europe/Istanbul",
                "Europe/Berlin",
                "America/New_York",
                "America/Los_Angeles",
                "Pacific/Kiritimati",
                "Pacific/Pago_Pago",
                "Asia/Kathmandu",
                "Australia/Lord_Howe",
                "UTC",
            ];
            self.zone = Zone::parse(zones[rng.usize(..zones.len())]).unwrap();
        }
        let right = self.error.is_zero();
        match rng.u16(..600) {
            0 if right => self.error = "2000-01-01T00:00:00Z".parse::<DateTime<Utc>>().unwrap() - truth,
            1 if right => self.error = TimeDelta::minutes(rng.i64(-40 * 1440..-1)),
            2 if right => self.error = TimeDelta::minutes(rng.i64(1..9 * 1440)),
            3..30 => self.error = TimeDelta::zero(),
            _ => {}
        }
        let asleep = if rng.u8(..50) == 0 { rng.i64(1..4 * 86_400) } else { 0 };
        truth + TimeDelta::seconds(asleep + rng.i64(1..2_400))
    }
}

fn relive(calendar: &Calendar, catch_up: CatchUp, seed: u64) -> (History, DateTime<Utc>) {
    let mut truth: DateTime<Utc> = "2026-02-10T09:17:31Z".parse().unwrap();
    let zone = Zone::parse("Europe/Istanbul").unwrap();
    let state = ScheduleState::new(calendar.mark_at(&zone, truth));
    let mut history = History {
        rng: Rng::with_seed(seed),
        zone,
        error: TimeDelta::zero(),
        behind_since: None,
        state,
        ran: BTreeSet::new(),
        missed: Vec::new(),
        stopped_by_key: 0,
    };
    let policy = History::policy(catch_up);
    let end = truth + TimeDelta::days(300);
    while truth < end {
        truth = history.live(truth);
        history.evaluate(calendar, truth, &policy);
    }
    // Beyond all that a clock set forward can have reached, by the right time.
    history.error = TimeDelta::zero();
    truth += TimeDelta::days(12);
    history.evaluate(calendar, truth, &policy);
    (history, truth)
}

/// All marks a history should have dealt with. Wall marks have no zone, and these interval calendars match in every
/// zone at once, so UTC can be asked for all of them.
fn all_marks(calendar: &Calendar, history: &History) -> Vec<Mark> {
    let last = match history.state.mark {
        Mark::Wall(time) => time.and_utc(),
        Mark::Interval(at) => at,
    };
    calendar.due_oldest_first(&Zone::UTC, history.state.created, last).map(|due| due.mark()).collect()
}

fn reliving(check: impl Fn(&Calendar, &str, u64)) {
    for number in 0..setting("BIRKEZ_HISTORIES", 3) {
        let seed = seed() + number;
        for text in ["30 2 * * *", "0,20,59 0-3,23 * * *", "monthly 31 02:30", "*/15 * * * *", "every 4000s"] {
            let calendar: Calendar = text.parse().unwrap();
            check(&calendar, text, seed);
        }
    }
}

#[test]
fn ten_months_of_sleep_travel_and_wrong_clocks_run_each_occurrence_once_under_each() {
    reliving(|calendar, text, seed| {
        let (history, truth) = relive(calendar, CatchUp::each(), seed);
        let missing: Vec<String> = all_marks(calendar, &history)
            .iter()
            .map(Mark::to_string)
            .filter(|mark| !history.ran.contains(mark))
            .collect();
        assert!(
            missing.is_empty(),
            "seed {seed}, `{text}` to {truth}: lost {} from {:?} on",
            missing.len(),
            missing[0]
        );
        assert!(history.missed.is_empty(), "seed {seed}, `{text}`");
    });
}

#[test]
fn ten_months_of_sleep_travel_and_wrong_clocks_run_or_record_each_occurrence_under_latest() {
    reliving(|calendar, text, seed| {
        let (history, _) = relive(calendar, CatchUp::Latest, seed);
        let recorded = |mark: &Mark| history.missed.iter().any(|(from, to)| from <= mark && mark <= to);
        let ran = |mark: &Mark| history.ran.contains(&mark.to_string());
        for mark in all_marks(calendar, &history) {
            assert!(ran(&mark) || recorded(&mark), "seed {seed}, `{text}`: {mark} neither ran nor was recorded");
        }
    });
}

#[test]
fn a_machine_that_starts_in_the_year_2000_runs_nothing_from_before_the_schedule() {
    let zone = Zone::parse("Europe/Berlin").unwrap();
    let calendar = Calendar::cron("* * * * *").unwrap();
    let created: NaiveDateTime = "2026-05-01T00:00:00".parse().unwrap();
    let mut state = ScheduleState::new(calendar.mark_at(&zone, created.and_utc()));
    state.behind_for = Duration::from_secs(1_000_000);
    let reset: DateTime<Utc> = "2000-01-01T00:00:00Z".parse().unwrap();
    for hours in 0..200 {
        let plan = plan(&calendar, &zone, &state, reset + TimeDelta::hours(hours), &Policy::default());
        assert!(plan.runs.is_empty() && plan.missed.is_empty());
        state = state.after(&plan);
    }
    assert_eq!(state.high, Some(state.created));
}
