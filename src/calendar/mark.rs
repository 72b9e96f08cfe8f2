//! How far a schedule has been evaluated, in the same terms as its occurrence ids.

use std::cmp::Ordering;
use std::fmt;
use std::str::FromStr;

use chrono::{DateTime, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, Timelike, Utc};

use super::error::Excerpt;

const WALL: &str = "%Y-%m-%dT%H:%M:%S";
const INTERVAL: &str = "%Y-%m-%dT%H:%M:%SZ";

/// A point on the line along which a schedule's occurrences lie: nominal local time for wall jobs, UTC for interval
/// jobs.
///
/// Its text is that of an occurrence id: `2026-03-29T02:30:00`, or `2026-10-25T00:15:00Z`. Only marks of the same
/// kind have an order.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mark {
    /// A time on the wall clock, without a zone.
    Wall(NaiveDateTime),
    /// An instant.
    Interval(DateTime<Utc>),
}

impl Mark {
    /// The later of two marks; this one if they are of different kinds.
    #[must_use]
    pub fn later(self, other: Mark) -> Mark {
        if self < other { other } else { self }
    }

    /// The mark one second earlier.
    pub(super) fn second_before(self) -> Mark {
        match self {
            Mark::Wall(time) => Mark::Wall(within_years(time) - TimeDelta::seconds(1)),
            Mark::Interval(at) => Mark::Interval((within_years(at.naive_utc()) - TimeDelta::seconds(1)).and_utc()),
        }
    }

    /// How much later than `other` this is; zero if it is not, or if they are of different kinds.
    pub(super) fn ahead_of(self, other: Mark) -> TimeDelta {
        let ahead = match (self, other) {
            (Mark::Wall(this), Mark::Wall(other)) => this - other,
            (Mark::Interval(this), Mark::Interval(other)) => this - other,
            _ => TimeDelta::zero(),
        };
        ahead.max(TimeDelta::zero())
    }
}

impl PartialOrd for Mark {
    fn partial_cmp(&self, other: &Mark) -> Option<Ordering> {
        match (self, other) {
            (Mark::Wall(this), Mark::Wall(other)) => Some(this.cmp(other)),
            (Mark::Interval(this), Mark::Interval(other)) => Some(this.cmp(other)),
            _ => None,
        }
    }
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Mark::Wall(time) => write!(f, "{}", time.format(WALL)),
            Mark::Interval(at) => write!(f, "{}", at.format(INTERVAL)),
        }
    }
}

impl FromStr for Mark {
    type Err = MarkError;

    fn from_str(text: &str) -> Result<Mark, MarkError> {
        let wall = || NaiveDateTime::parse_from_str(text, WALL).map(Mark::Wall);
        let interval = |_| NaiveDateTime::parse_from_str(text, INTERVAL).map(|at| Mark::Interval(at.and_utc()));
        let canonical = |mark: &Mark| mark.to_string() == text;
        wall().or_else(interval).ok().filter(canonical).ok_or_else(|| MarkError(Excerpt::new(text)))
    }
}

/// A text that is no occurrence id.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0} is no occurrence id; wanted is 2026-03-29T02:30:00 (wall clock) or 2026-10-25T00:15:00Z (instant)")]
pub struct MarkError(Excerpt);

/// A time without its fraction of a second, moved to the nearest year that calendars know if it lies outside them
/// (1970 to 2100), with room on both sides for an offset or a second more.
pub(super) fn within_years(time: NaiveDateTime) -> NaiveDateTime {
    let edge = |year, month, day| NaiveDate::from_ymd_opt(year, month, day).map(|date| date.and_time(NaiveTime::MIN));
    let floor = time.with_nanosecond(0).unwrap_or(time);
    match (edge(1969, 12, 20), edge(2101, 1, 12)) {
        (Some(first), Some(last)) => floor.clamp(first, last),
        _ => floor,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_reads_back_from_its_text() {
        for text in ["2026-03-29T02:30:00", "2026-10-25T00:15:00Z"] {
            assert_eq!(text.parse::<Mark>().unwrap().to_string(), text);
        }
        for text in [
            "",
            "2026-03-29",
            "2026-03-29T02:30",
            "2026-3-29T02:30:00",
            "2026-03-29T02:30:00+01:00",
            " 2026-03-29T02:30:00",
        ] {
            assert!(text.parse::<Mark>().is_err(), "{text}");
        }
    }

    #[test]
    fn marks_have_an_order_within_their_kind_only() {
        let [early, late, instant]: [Mark; 3] =
            ["2026-03-29T02:30:00", "2026-03-29T02:30:01", "2026-03-29T02:30:01Z"].map(|text| text.parse().unwrap());
        assert!(early < late && early.later(late) == late);
        assert!(early.partial_cmp(&instant).is_none() && early.later(instant) == early);
    }
}
