//! Walks the matching times of a line over zone-free time, forwards and backwards.
//!
//! The walk itself is the crate `cron`'s. It is given explicit lists of numbers, in its own numbering (1 is Sunday),
//! and times that are called UTC but mean "what a clock on the wall shows"; zones and daylight saving are added by
//! the caller.

use std::str::FromStr;

use chrono::{DateTime, Datelike, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, Utc};

use super::ShortMonths;
use super::field::{Field, Fields, Set, Values};

/// The first and the last second walked: the years that the crate `cron` knows. Outside them it would panic or be
/// silent.
const FIRST: NaiveDateTime = midnight(1970, 1, 1);
const END: NaiveDateTime = midnight(2101, 1, 1);

const SECOND: TimeDelta = TimeDelta::seconds(1);

const fn midnight(year: i32, month: u32, day: u32) -> NaiveDateTime {
    match NaiveDate::from_ymd_opt(year, month, day) {
        Some(date) => NaiveDateTime::new(date, NaiveTime::MIN),
        None => NaiveDateTime::MIN,
    }
}

/// The times of a line. All arguments and results are whole seconds from 1970 to 2100.
pub(super) struct Walk {
    strands: Vec<Strand>,
}

impl Walk {
    /// `None` if no time ever matches.
    pub(super) fn new(fields: &Fields, short_months: ShortMonths) -> Option<Walk> {
        let strands = if fields.either_day() {
            let weekday = Fields { day: Values::any(Field::Day), ..*fields };
            let day = Fields { weekday: Values::any(Field::Weekday), ..*fields };
            vec![Strand::new(&day, short_months)?, Strand::new(&weekday, short_months)?]
        } else {
            vec![Strand::new(fields, short_months)?]
        };
        let walk = Walk { strands };
        // Weekdays, dates and leap years meet in every way there is within 28 years.
        walk.at_or_after(midnight(2024, 1, 1)).is_some().then_some(walk)
    }

    pub(super) fn at_or_after(&self, time: NaiveDateTime) -> Option<NaiveDateTime> {
        self.strands.iter().filter_map(|strand| strand.at_or_after(time)).min()
    }

    pub(super) fn at_or_before(&self, time: NaiveDateTime) -> Option<NaiveDateTime> {
        self.strands.iter().filter_map(|strand| strand.at_or_before(time)).max()
    }
}

/// One schedule of the crate `cron`, which ANDs the day fields; a line that ORs them has two.
struct Strand {
    schedule: cron::Schedule,
    /// Asked for each date found, where the days depend on the month's length.
    days: Option<Days>,
}

impl Strand {
    fn new(fields: &Fields, short_months: ShortMonths) -> Option<Strand> {
        let clamp =
            short_months == ShortMonths::LastDay && fields.day.set.reaches_beyond(28) && !fields.day.covers(Field::Day);
        let days = (clamp || fields.day.last).then_some(Days { wanted: fields.day.set, last: fields.day.last, clamp });
        let any_last = if days.is_some() { Set::range(28, 31, 1) } else { Set::default() };
        let line = [
            list(fields.second.set.iter()),
            list(fields.minute.set.iter()),
            list(fields.hour.set.iter()),
            list(fields.day.set.with(any_last).iter()),
            list(fields.month.set.iter()),
            list(fields.weekday.set.iter().map(|day| day % 7 + 1)),
        ];
        let schedule = cron::Schedule::from_str(&line.join(" ")).ok()?;
        Some(Strand { schedule, days })
    }

    fn at_or_after(&self, time: NaiveDateTime) -> Option<NaiveDateTime> {
        let mut from = time.max(FIRST);
        while from < END {
            let after: DateTime<Utc> = (from - SECOND).and_utc();
            let hit = self.schedule.after(&after).next()?.naive_utc();
            if self.accepts(hit.date()) {
                return Some(hit);
            }
            from = NaiveDateTime::new(hit.date(), NaiveTime::MIN) + TimeDelta::days(1);
        }
        None
    }

    fn at_or_before(&self, time: NaiveDateTime) -> Option<NaiveDateTime> {
        let mut before = (time.min(END - SECOND)) + SECOND;
        while before > FIRST {
            let hit = self.schedule.after(&before.and_utc()).next_back()?.naive_utc();
            if self.accepts(hit.date()) {
                return Some(hit);
            }
            before = NaiveDateTime::new(hit.date(), NaiveTime::MIN);
        }
        None
    }

    fn accepts(&self, date: NaiveDate) -> bool {
        self.days.as_ref().is_none_or(|days| days.accept(date))
    }
}

/// The wanted days of a month, where its last day may be one of them.
struct Days {
    wanted: Set,
    last: bool,
    clamp: bool,
}

impl Days {
    fn accept(&self, date: NaiveDate) -> bool {
        let day = date.day() as u8;
        let ends_month = date.succ_opt().is_none_or(|next| next.month() != date.month());
        let instead = self.last || (self.clamp && self.wanted.reaches_beyond(day));
        self.wanted.has(day) || (ends_month && instead)
    }
}

fn list(values: impl Iterator<Item = u8>) -> String {
    values.map(|value| value.to_string()).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::super::text;
    use super::*;

    fn walk(line: &str, short_months: ShortMonths) -> Option<Walk> {
        Walk::new(&text::read(line).unwrap().fields, short_months)
    }

    #[test]
    fn a_line_that_never_fires_is_known_by_the_whole_of_its_day_fields() {
        assert!(walk("0 0 30 2 *", ShortMonths::Skip).is_none());
        assert!(walk("0 0 31 4,6,9,11 ?", ShortMonths::Skip).is_none());
        assert!(walk("0 0 30 2 *", ShortMonths::LastDay).is_some());
        assert!(walk("0 0 31 2 1", ShortMonths::Skip).is_some(), "its Mondays fire");
        assert!(walk("0 0 29 2 */7", ShortMonths::Skip).is_some(), "29 February on a Sunday, every 28 years");
    }

    #[test]
    fn the_walk_is_silent_not_panicking_outside_its_years() {
        let walk = walk("* * * * * *", ShortMonths::Skip).unwrap();
        assert_eq!(walk.at_or_after(NaiveDateTime::MIN), Some(FIRST));
        assert_eq!(walk.at_or_after(NaiveDateTime::MAX), None);
        assert_eq!(walk.at_or_before(NaiveDateTime::MAX), Some(END - SECOND));
        assert_eq!(walk.at_or_before(NaiveDateTime::MIN), None);
        assert_eq!(walk.at_or_after(END - SECOND), Some(END - SECOND));
        assert_eq!(walk.at_or_before(FIRST), Some(FIRST));
    }
}
