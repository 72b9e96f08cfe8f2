//! Lines that are understood, but perhaps not as they were meant.

use std::fmt;

use super::ShortMonths;
use super::field::{Field, Fields};

/// A likely mistake in a calendar that is valid. Its `Display` is one line that says what will happen.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Warning {
    /// A day from 29 to 31 that some of the chosen months do not have.
    ShortMonths {
        /// The day. Each has a warning of its own.
        day: u8,
        /// The months without it, 1 to 12.
        months: Vec<u8>,
    },
    /// Both day fields are restricted, so that a day needs to match only one.
    EitherDay,
    /// As [`EitherDay`](Warning::EitherDay), but one of the fields names every day, so that the other means nothing.
    EveryDay {
        /// The field that names every day.
        full: Field,
    },
    /// It fires every second.
    EverySecond,
    /// Six fields that look like a line of five with a star too many.
    ExtraStar {
        /// The second at which it fires.
        second: u8,
        /// The minute at which it fires.
        minute: u8,
    },
    /// Every hour is written out instead of `*`: it is a wall job, so that what daylight saving skips runs all at
    /// once.
    EveryHour,
}

pub(super) fn warnings(fields: &Fields, short_months: ShortMonths) -> Vec<Warning> {
    let found = [
        both_days(fields),
        fields.second.covers(Field::Second).then_some(Warning::EverySecond),
        extra_star(fields),
        (fields.is_wall() && fields.hour.covers(Field::Hour)).then_some(Warning::EveryHour),
    ];
    missing_days(fields, short_months).chain(found.into_iter().flatten()).collect()
}

/// Days are not reported that a run of days leads up to from the 28th or before (`28-31`): the month's end is then
/// seen to.
fn missing_days(fields: &Fields, short_months: ShortMonths) -> impl Iterator<Item = Warning> {
    let (days, months) = (fields.day.set, fields.month.set);
    let seen_to = short_months == ShortMonths::LastDay || fields.day.last || fields.day.star;
    let lonely = move |day: &u8| days.has(*day) && !(28..*day).all(|before| days.has(before));
    let length = |month| match month {
        2 => 28,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    (29..=31).filter(move |day| !seen_to && lonely(day)).filter_map(move |day| {
        let months: Vec<u8> = months.iter().filter(|&month| length(month) < day).collect();
        (!months.is_empty()).then_some(Warning::ShortMonths { day, months })
    })
}

fn both_days(fields: &Fields) -> Option<Warning> {
    if !fields.either_day() {
        return None;
    }
    Some(if fields.day.covers(Field::Day) {
        Warning::EveryDay { full: Field::Day }
    } else if fields.weekday.covers(Field::Weekday) {
        Warning::EveryDay { full: Field::Weekday }
    } else {
        Warning::EitherDay
    })
}

/// `30 2 * * * *` reads as 02:30 with a star too many. `0 0 * * * *` is left alone: that is how six fields say
/// "hourly".
fn extra_star(fields: &Fields) -> Option<Warning> {
    let (second, minute) = (fields.second.single()?, fields.minute.single()?);
    let like_a_time = minute <= Field::Hour.max() && (second, minute) != (0, 0);
    let stars = fields.hour.star && fields.hour.covers(Field::Hour) && fields.weekday.star;
    (fields.six && stars && like_a_time).then_some(Warning::ExtraStar { second, minute })
}

impl fmt::Display for Warning {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Warning::ShortMonths { day, months } => write!(
                f,
                "day {day} is left out in {}; write L for the last day, or choose that short months use their last day",
                Months(*day, months)
            ),
            Warning::EitherDay => {
                f.write_str("day and weekday are both given: it fires on days that match either of them, not both")
            }
            Warning::EveryDay { full } => {
                let other = if *full == Field::Day { Field::Weekday } else { Field::Day };
                write!(f, "the {full} field names every day, so the {other} field changes nothing; did you mean *?")
            }
            Warning::EverySecond => f.write_str("it fires every second"),
            Warning::ExtraStar { second, minute } => write!(
                f,
                "6 fields begin with the second: it fires every hour at minute {minute}, second {second}; \
                 for {minute:02}:{second:02} once a day leave one star away"
            ),
            Warning::EveryHour => f.write_str(
                "every hour is named without *: what daylight saving skips runs all at once, and a repeated hour once",
            ),
        }
    }
}

struct Months<'a>(u8, &'a [u8]);

impl fmt::Display for Months<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = |month: &u8| {
            let name = Field::Month.name_of(*month).unwrap_or_default();
            let (first, rest) = name.split_at(name.len().min(1));
            let leap = if *month == 2 && self.0 == 29 { " (except in leap years)" } else { "" };
            format!("{}{rest}{leap}", first.to_ascii_uppercase())
        };
        f.write_str(&self.1.iter().map(name).collect::<Vec<_>>().join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::super::{Calendar, ShortMonths};

    fn warnings(line: &str) -> Vec<String> {
        Calendar::cron(line).unwrap().warnings().iter().map(ToString::to_string).collect()
    }

    #[test]
    fn likely_mistakes_are_pointed_out() {
        assert!(warnings("0 0 31 * *")[0].starts_with("day 31 is left out in Feb, Apr, Jun, Sep, Nov;"));
        assert!(warnings("0 0 15,29 * *")[0].starts_with("day 29 is left out in Feb (except in leap years);"));
        let starts: Vec<_> =
            warnings("0 0 29-31 * *").iter().map(|text| text.split(';').next().unwrap().to_owned()).collect();
        let (feb, all) = ("Feb (except in leap years)", "Feb, Apr, Jun, Sep, Nov");
        let left_out = |day, months| format!("day {day} is left out in {months}");
        assert_eq!(starts, [left_out(29, feb), left_out(30, "Feb"), left_out(31, all)]);
        assert!(warnings("0 0 13 * FRI")[0].contains("either"));
        assert!(warnings("0 0 1-31 * MON")[0].contains("weekday field changes nothing"));
        assert_eq!(warnings("* * * * * *"), ["it fires every second"]);
        assert!(warnings("30 2 * * * *")[0].contains("for 02:30 once a day"));
        assert!(warnings("0-59 0-23 * * *")[0].contains("all at once"));
    }

    #[test]
    fn usual_lines_get_no_warning() {
        for line in [
            "0 3 * * *",
            "*/15 * * * *",
            "0 0 L * *",
            "0 0 31,L * *",
            "0 0 28-31 * *",
            "0 0 31 1 *",
            "0 0 * * * *",
            "@weekly",
        ] {
            assert!(warnings(line).is_empty(), "{line}: {:?}", warnings(line));
        }
        let clamped = Calendar::cron_with("0 9 31 * *", ShortMonths::LastDay).unwrap();
        assert!(clamped.warnings().is_empty() && Calendar::monthly(31, "09:00").unwrap().warnings().is_empty());
    }
}
