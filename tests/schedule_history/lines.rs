//! Where a history takes place, and what its schedules should make, worked out without the crate's calendar: dates are walked one by one, and
//! instants in steps of a quarter of an hour, which every zone of the history is offset by.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use birkez::Schedule;
use birkez::calendar::{Calendar, CatchUp};
use chrono::{DateTime, Datelike, Days, NaiveDateTime, NaiveTime, TimeDelta, Timelike, Utc};
use chrono_tz::Tz;

const INSTANT: &str = "%Y-%m-%dT%H:%M:%SZ";
const QUARTER: TimeDelta = TimeDelta::minutes(15);

pub const ZONES: [Tz; 9] = [
    Tz::Europe__Istanbul,
    Tz::Europe__Berlin,
    Tz::America__New_York,
    Tz::America__Los_Angeles,
    Tz::Pacific__Kiritimati,
    Tz::Pacific__Pago_Pago,
    Tz::Asia__Kathmandu,
    Tz::Australia__Lord_Howe,
    Tz::UTC,
];

/// Days around which a zone of the history changes its clocks.
pub const CHANGES: [&str; 6] = [
    "2026-03-08T00:00:00Z",
    "2026-03-29T00:00:00Z",
    "2026-04-05T00:00:00Z",
    "2026-10-04T00:00:00Z",
    "2026-10-25T00:00:00Z",
    "2026-11-01T00:00:00Z",
];

/// A schedule of a history.
pub struct Line {
    pub name: &'static str,
    pub text: &'static str,
    pub catch_up: CatchUp,
    pub times: Times,
    pub home: Home,
}

/// When it should run.
#[derive(Clone, Copy)]
pub enum Times {
    /// Every day at these hours and minutes of the wall clock.
    Daily(&'static [(u32, u32)]),
    /// On the last day of the month.
    Monthly(u32, u32),
    /// Whenever the wall clock shows an hour and a minute that these divide.
    Steps(u32, u32),
    /// From its beginning on.
    Every(Duration),
}

/// Where it is defined.
#[derive(Clone, Copy, PartialEq)]
pub enum Home {
    Code,
    /// In code, with a mapping that fails now and then.
    FailingCode,
    File,
}

const NIGHTS: [(u32, u32); 15] = [
    (0, 0),
    (0, 20),
    (0, 59),
    (1, 0),
    (1, 20),
    (1, 59),
    (2, 0),
    (2, 20),
    (2, 59),
    (3, 0),
    (3, 20),
    (3, 59),
    (23, 0),
    (23, 20),
    (23, 59),
];

pub const LINES: [Line; 8] = [
    line("nightly", "30 2 * * *", CatchUp::Each { max: None }, Times::Daily(&[(2, 30)]), Home::Code),
    line(
        "failing",
        "15 1,13 * * *",
        CatchUp::Each { max: None },
        Times::Daily(&[(1, 15), (13, 15)]),
        Home::FailingCode,
    ),
    line("statement", "monthly 31 02:30", CatchUp::Each { max: None }, Times::Monthly(2, 30), Home::File),
    line("nights", "0,20,59 0-3,23 * * *", CatchUp::Latest, Times::Daily(&NIGHTS), Home::Code),
    line("heavy", "0 3 * * *", CatchUp::Skip, Times::Daily(&[(3, 0)]), Home::File),
    line("six-hourly", "0 */6 * * *", CatchUp::Each { max: None }, Times::Steps(6, 60), Home::Code),
    line("period", "every 25200s", CatchUp::Each { max: None }, Times::Every(Duration::from_secs(25_200)), Home::File),
    line("often", "*/30 */2 * * *", CatchUp::Latest, Times::Steps(2, 30), Home::File),
];

const fn line(name: &'static str, text: &'static str, catch_up: CatchUp, times: Times, home: Home) -> Line {
    Line { name, text, catch_up, times, home }
}

impl Line {
    pub fn schedule(&self, zone: Tz) -> Schedule {
        let calendar: Calendar = self.text.parse().unwrap();
        let overlap = match self.catch_up {
            // One that is on time may be skipped while the last runs, which here is a matter of which process is quicker.
            CatchUp::Each { .. } => birkez::Overlap::Allow,
            _ => birkez::Overlap::Skip,
        };
        let schedule = Schedule::new(self.name, calendar).unwrap().zone(zone.name()).unwrap();
        schedule.catch_up(self.catch_up).overlap(overlap)
    }

    pub fn runs_each(&self) -> bool {
        matches!(self.catch_up, CatchUp::Each { .. })
    }

    pub fn is_wall(&self) -> bool {
        matches!(self.times, Times::Daily(_) | Times::Monthly(..))
    }

    /// The ids of a wall job after one local time and up to another.
    pub fn nominals(&self, after: NaiveDateTime, upto: NaiveDateTime) -> BTreeSet<String> {
        let mut found = BTreeSet::new();
        let mut date = after.date();
        while date <= upto.date() {
            let tomorrow = date + Days::new(1);
            let times: &[(u32, u32)] = match &self.times {
                Times::Daily(times) => times,
                Times::Monthly(hour, minute) if tomorrow.month() != date.month() => &[(*hour, *minute)],
                _ => &[],
            };
            let at =
                times.iter().map(|&(hour, minute)| date.and_time(NaiveTime::from_hms_opt(hour, minute, 0).unwrap()));
            let within = at.filter(|&at| at > after && at <= upto);
            found.extend(within.map(|at| at.format("%Y-%m-%dT%H:%M:%S").to_string()));
            date = tomorrow;
        }
        found
    }

    /// The ids of an interval job after one instant and up to another, as a clock in this zone shows them.
    pub fn instants(
        &self,
        born: DateTime<Utc>,
        zone: Tz,
        after: DateTime<Utc>,
        upto: DateTime<Utc>,
    ) -> BTreeSet<String> {
        let (from, step) = match self.times {
            Times::Every(period) => (born, TimeDelta::from_std(period).unwrap()),
            _ => (DateTime::UNIX_EPOCH, QUARTER),
        };
        let steps = (after - from).num_seconds().div_euclid(step.num_seconds()) + 1;
        let mut at = from + step * i32::try_from(steps).unwrap();
        let mut found = BTreeSet::new();
        while at <= upto {
            if at > born && self.matches(zone, at) {
                found.insert(at.format(INSTANT).to_string());
            }
            at += step;
        }
        found
    }

    fn matches(&self, zone: Tz, at: DateTime<Utc>) -> bool {
        let local = at.with_timezone(&zone);
        match self.times {
            Times::Steps(hours, minutes) => {
                local.hour().is_multiple_of(hours) && local.minute().is_multiple_of(minutes)
            }
            _ => true,
        }
    }
}

/// What an interval job should have made, gathered as a history goes on: at each instant the zone counts in which it was
/// first evaluated.
pub struct Instants {
    born: DateTime<Utc>,
    highest: DateTime<Utc>,
    zone: Tz,
    pub expected: BTreeSet<String>,
    /// What another zone has between the last occurrence and the moment it took over.
    between: BTreeSet<String>,
    /// The latest time that a clock has shown in each zone while it had shown a later one before.
    again: BTreeMap<&'static str, (Tz, DateTime<Utc>)>,
}

impl Instants {
    pub fn new(born: DateTime<Utc>, zone: Tz) -> Instants {
        let (expected, between) = (BTreeSet::new(), BTreeSet::new());
        Instants { born, highest: born, zone, expected, between, again: BTreeMap::new() }
    }

    pub fn evaluated(&mut self, line: &Line, zone: Tz, now: DateTime<Utc>) {
        if now <= self.highest {
            let latest = &mut self.again.entry(zone.name()).or_insert((zone, now)).1;
            *latest = now.max(*latest);
            return;
        }
        if zone != self.zone {
            let last = self.highest - TimeDelta::days(1);
            self.between.extend(line.instants(self.born, zone, last, self.highest));
        }
        self.expected.extend(line.instants(self.born, zone, self.highest, now));
        (self.highest, self.zone) = (now, zone);
    }

    /// Whether it may run though it is not expected: in another zone the hours that have been here have other instants.
    pub fn allows(&self, line: &Line, id: &str) -> bool {
        let at = NaiveDateTime::parse_from_str(id, INSTANT).unwrap().and_utc();
        let mut again = self.again.values();
        self.between.contains(id) || again.any(|&(zone, latest)| at <= latest && line.matches(zone, at))
    }
}
