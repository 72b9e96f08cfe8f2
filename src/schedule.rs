//! Schedules: named calendars whose occurrences become jobs, each once.

mod look;
mod planner;

use std::fmt;

use chrono::{DateTime, NaiveDate, NaiveDateTime, Utc};

pub use self::look::{OccurrenceInfo, ScheduleInfo};
pub(crate) use self::planner::{Entry, Planner};
use crate::calendar::{Calendar, Due, Zone};
use crate::error::{Error, Result};

/// A name, a calendar and a zone.
///
/// Register it with [`RunnerBuilder::schedule`](crate::RunnerBuilder::schedule). It is stored under its name, with a mark
/// up to which its occurrences have been dealt with; those that came due while no runner was there are made up for one
/// after another, oldest first. A new schedule starts from its first registration.
///
/// ```
/// use birkez::Schedule;
/// let nightly = Schedule::cron("statements", "0 3 * * *")?.zone("Europe/Istanbul")?;
/// assert_eq!(nightly.to_string(), "statements: 0 3 * * * (Europe/Istanbul)");
/// # Ok::<(), birkez::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    pub(crate) name: String,
    pub(crate) calendar: Calendar,
    pub(crate) zone: Zone,
}

impl Schedule {
    /// A schedule in the machine's own zone, followed when that changes, with cron's text: five fields, or six with
    /// seconds in front.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleInvalid`] with the field and the reason.
    pub fn cron(name: &str, text: &str) -> Result<Schedule> {
        let calendar = Calendar::cron(text).map_err(|error| invalid(name, error))?;
        Schedule::new(name, calendar)
    }

    /// A schedule in the machine's own zone, with any calendar.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleInvalid`] if the name is empty, longer than 128 bytes or holds a control character.
    pub fn new(name: &str, calendar: Calendar) -> Result<Schedule> {
        if name.is_empty() || name.len() > 128 || name.chars().any(char::is_control) {
            return Err(invalid(name, std::io::Error::other("a name is 1 to 128 bytes without control characters")));
        }
        Ok(Schedule { name: name.to_owned(), calendar, zone: Zone::Local })
    }

    /// The zone that its times are meant in: an IANA name, or `local` (the default).
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleInvalid`] if there is no such zone.
    pub fn zone(mut self, name: &str) -> Result<Schedule> {
        self.zone = Zone::parse(name).map_err(|error| invalid(&self.name, error))?;
        Ok(self)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.name, self.calendar, self.zone)
    }
}

fn invalid(name: &str, source: impl std::error::Error + Send + Sync + 'static) -> Error {
    Error::ScheduleInvalid { name: name.escape_debug().to_string(), source: Box::new(source) }
}

/// One time that a schedule comes due: what its mapping function makes jobs of.
#[derive(Clone, Debug)]
pub struct Occurrence {
    schedule: String,
    zone: Zone,
    due: Due,
}

impl Occurrence {
    /// Name of the schedule.
    pub fn schedule(&self) -> &str {
        &self.schedule
    }

    /// The time on the wall clock that the calendar asked for.
    pub fn nominal(&self) -> NaiveDateTime {
        self.due.nominal
    }

    /// The nominal date: what a key is made of. An occurrence that is made up for days later still has its own.
    pub fn date(&self) -> NaiveDate {
        self.due.date()
    }

    /// The instant it is due.
    pub fn at(&self) -> DateTime<Utc> {
        self.due.at
    }

    /// The zone that its times are meant in.
    pub fn zone(&self) -> Zone {
        self.zone
    }

    /// Its id, unique with the schedule: `2026-03-29T02:30:00`.
    pub fn id(&self) -> String {
        self.due.occurrence()
    }
}
