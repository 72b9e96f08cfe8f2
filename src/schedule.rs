//! Schedules: named calendars whose occurrences become jobs, each once.

mod behind;
mod dealt;
mod define;
mod explain;
mod kept;
mod look;
mod making;
mod planner;
mod requests;
mod row;
mod verbs;
mod write;

use std::fmt;
use std::time::Duration;

use chrono::{DateTime, NaiveDate, NaiveDateTime, Utc, Weekday};

pub use self::explain::{Fate, OccurrenceFate};
pub use self::kept::KeptSchedule;
pub(crate) use self::look::all_schedules;
pub(crate) use self::look::troubled;
pub use self::look::{MissedInfo, OccurrenceInfo, RequestInfo, ScheduleInfo};
pub(crate) use self::planner::{Entry, Planner};
use crate::calendar::{Calendar, CatchUp, Due, Policy, Run, ShortMonths, Zone};
use crate::error::{Error, Result};

/// A name, a calendar, a zone, and what to do about lateness.
///
/// Register it with [`RunnerBuilder::schedule`](crate::RunnerBuilder::schedule). It is stored under its name, with a mark
/// up to which its occurrences have been dealt with, so that none is lost or doubled by downtime, sleep, daylight saving,
/// travel or a corrected clock. The newest definition wins at once and keeps the mark; one whose calendar has changed
/// (in what it means, not in how it is written) does not fire for the past, and one record with the reason `changed` says
/// what it left. A new schedule starts from its first registration; nothing before that fires.
///
/// **Another zone is no other calendar.** The mark of a wall job is a time on the wall clock and stays what it is, so that no
/// date is done twice. After a change to a zone further west the schedule therefore rests until the new clock has come to
/// where the old one was, for a few hours or most of a day; to one further east, what the clock jumps over is caught up.
///
/// **A schedule that its program no longer registers** is kept and listed as orphaned
/// ([`ScheduleInfo::orphaned_at`]). Registered again, it goes on from its mark: what has come due since is caught up as
/// after downtime. Who does not want that pauses it first, or removes it
/// ([`Store::remove_schedule`](crate::Store::remove_schedule)).
///
/// **A clock that was set back** is not followed at once: what is on time runs, in case it never has, and nothing is caught
/// up, until the clock reaches the mark again or has been behind it for 48 hours in sum. [`ScheduleInfo::waits`] says so.
///
/// ```
/// use birkez::{Schedule, calendar::CatchUp};
/// let nightly = Schedule::cron("statements", "0 3 * * *")?.zone("Europe/Istanbul")?.catch_up(CatchUp::each());
/// assert_eq!(nightly.to_string(), "statements: 0 3 * * * (Europe/Istanbul)");
/// # Ok::<(), birkez::Error>(())
/// ```
#[derive(Clone, Debug)]
pub struct Schedule {
    pub(crate) name: String,
    pub(crate) calendar: Calendar,
    pub(crate) zone: Zone,
    pub(crate) policy: Policy,
    pub(crate) overlap: Overlap,
}

/// What happens to an occurrence that comes due while the last run is unfinished: one of its jobs is waiting, running or
/// parked.
///
/// That is not so of a backlog: what was found late under [`CatchUp::Each`], together with others, or was due already when
/// the one before it was made. It runs one after another and is never skipped for overlap. Under
/// [`Allow`](Overlap::Allow) only what is later than the grace by the time it runs waits so; the rest runs beside each
/// other.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Overlap {
    /// It does not run; it is recorded. The default.
    #[default]
    Skip,
    /// One waits until the last run is finished: the newest. The others are recorded. It keeps the lateness it had when it
    /// was found.
    QueueOne,
    /// It runs beside it.
    Allow,
}

impl Schedule {
    /// A schedule in the machine's own zone, followed when that changes, with cron's text: five fields, or six with
    /// seconds in front.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleInvalid`] with the field and the reason.
    pub fn cron(name: &str, text: &str) -> Result<Schedule> {
        Schedule::made(name, Calendar::cron(text))
    }

    /// As [`cron`](Schedule::cron), with a rule for months that are too short for the line's days.
    ///
    /// # Errors
    ///
    /// As [`cron`](Schedule::cron); under [`ShortMonths::LastDay`] only what never fires with that rule is refused.
    pub fn cron_with(name: &str, text: &str, short_months: ShortMonths) -> Result<Schedule> {
        Schedule::made(name, Calendar::cron_with(text, short_months))
    }

    /// Every day at a time such as `03:00`.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleInvalid`] if the time is none.
    pub fn daily(name: &str, time: &str) -> Result<Schedule> {
        Schedule::made(name, Calendar::daily(time))
    }

    /// Every week on a day at a time such as `09:00`.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleInvalid`] if the time is none.
    pub fn weekly(name: &str, day: Weekday, time: &str) -> Result<Schedule> {
        Schedule::made(name, Calendar::weekly(day, time))
    }

    /// Every month on a day, 1 to 31, at a time such as `09:00`. A month that is too short has its last day, unless
    /// [`Calendar::short_months`] says otherwise.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleInvalid`] if the day or the time is none.
    pub fn monthly(name: &str, day: u32, time: &str) -> Result<Schedule> {
        Schedule::made(name, Calendar::monthly(day, time))
    }

    /// Every so often, counted from its first registration. Whole seconds, from one second to 366 days.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleInvalid`] if the period is out of range.
    pub fn every(name: &str, period: Duration) -> Result<Schedule> {
        Schedule::made(name, Calendar::every(period))
    }

    /// A schedule in the machine's own zone, with any calendar.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleInvalid`] if the name is empty, longer than 128 bytes or holds a control character.
    pub fn new(name: &str, calendar: Calendar) -> Result<Schedule> {
        check_name(name)?;
        let (policy, overlap) = (Policy::default(), Overlap::default());
        Ok(Schedule { name: name.to_owned(), calendar, zone: Zone::Local, policy, overlap })
    }

    fn made<E>(name: &str, calendar: std::result::Result<Calendar, E>) -> Result<Schedule>
    where
        E: std::error::Error + Send + Sync + 'static,
    {
        Schedule::new(name, calendar.map_err(|error| invalid(name, error))?)
    }

    /// The zone that its times are meant in: an IANA name, or `local` (the default), the machine's own, which is UTC where
    /// the machine does not know its `TZ` ([`Zone::warning`]). What a change of zone means: see [`Schedule`].
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleInvalid`] if there is no such zone.
    pub fn zone(mut self, name: &str) -> Result<Schedule> {
        self.zone = Zone::parse(name).map_err(|error| invalid(&self.name, error))?;
        Ok(self)
    }

    /// What becomes of occurrences that were missed. Defaults to [`CatchUp::Latest`].
    #[must_use]
    pub fn catch_up(mut self, catch_up: CatchUp) -> Schedule {
        self.policy.catch_up = catch_up;
        self
    }

    /// How late an occurrence may be found without counting as missed. Defaults to 5 minutes. What was found in time and
    /// then had to wait, for the last run or for a mapping that fails, does not become late by that.
    #[must_use]
    pub fn grace(mut self, time: Duration) -> Schedule {
        self.policy.grace = time;
        self
    }

    /// Occurrences found later than this never run; they are recorded. Defaults to no limit.
    #[must_use]
    pub fn max_age(mut self, time: Duration) -> Schedule {
        self.policy.max_age = Some(time);
        self
    }

    /// What happens while the last run is unfinished. Defaults to [`Overlap::Skip`].
    #[must_use]
    pub fn overlap(mut self, overlap: Overlap) -> Schedule {
        self.overlap = overlap;
        self
    }

    /// Its calendar.
    pub fn calendar(&self) -> &Calendar {
        &self.calendar
    }

    /// Its occurrences strictly after `after`, in order: a preview. [`Calendar::warnings`] tells of likely mistakes.
    ///
    /// ```
    /// # use birkez::Schedule;
    /// let monthly = Schedule::monthly("statement", 31, "09:00")?.zone("Europe/Istanbul")?;
    /// let next: Vec<_> = monthly.upcoming("2026-01-31T12:00:00Z".parse().unwrap()).take(2).map(|due| due.date()).collect();
    /// assert_eq!(next.iter().map(ToString::to_string).collect::<Vec<_>>(), ["2026-02-28", "2026-03-31"]);
    /// # Ok::<(), birkez::Error>(())
    /// ```
    pub fn upcoming(&self, after: DateTime<Utc>) -> impl Iterator<Item = Due> + use<'_> {
        self.calendar.upcoming(&self.zone, after)
    }
}

impl fmt::Display for Schedule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {} ({})", self.name, self.calendar, self.zone)
    }
}

fn check_name(name: &str) -> Result<()> {
    if name.is_empty() || name.len() > 128 || name.chars().any(char::is_control) {
        return Err(invalid(name, reason("a name is 1 to 128 bytes without control characters")));
    }
    Ok(())
}

fn invalid(name: &str, source: impl std::error::Error + Send + Sync + 'static) -> Error {
    refused(name, "cannot be registered", source)
}

fn refused(name: &str, verdict: impl Into<String>, source: impl std::error::Error + Send + Sync + 'static) -> Error {
    let (name, verdict) = (name.escape_debug().to_string(), verdict.into());
    Error::ScheduleInvalid { name, verdict, source: Box::new(source) }
}

fn no_occurrence(name: &str, id: &str, source: impl std::error::Error + Send + Sync + 'static) -> Error {
    let id: String = id.chars().take(60).flat_map(char::escape_debug).collect();
    refused(name, format!("has no occurrence `{id}`"), source)
}

fn reason(text: &str) -> std::io::Error {
    std::io::Error::other(text.to_owned())
}

/// One time that a schedule comes due: what its mapping function makes jobs of.
#[derive(Clone, Debug)]
pub struct Occurrence {
    schedule: String,
    zone: Zone,
    run: Run,
    id: String,
}

impl Occurrence {
    /// Name of the schedule.
    pub fn schedule(&self) -> &str {
        &self.schedule
    }

    /// The time on the wall clock that the calendar asked for.
    pub fn nominal(&self) -> NaiveDateTime {
        self.run.due.nominal
    }

    /// The nominal date: what a key is made of. An occurrence that is made up for days later still has its own.
    pub fn date(&self) -> NaiveDate {
        self.run.due.date()
    }

    /// The instant it is due.
    pub fn at(&self) -> DateTime<Utc> {
        self.run.due.at
    }

    /// The zone that its times are meant in.
    pub fn zone(&self) -> Zone {
        self.zone
    }

    /// How long after its instant it was found. How long it has waited since, for the last run or for a mapping that failed,
    /// does not count.
    pub fn lateness(&self) -> Duration {
        self.run.lateness
    }

    /// How many occurrences that did not run this one stands for beside its own; 1,001 stands for any number above 1,000.
    pub fn missed_count(&self) -> u32 {
        self.run.missed_count.get()
    }

    /// The nominal time of the oldest of those.
    pub fn missed_since(&self) -> Option<NaiveDateTime> {
        self.run.missed_since.map(|due| due.nominal)
    }

    /// Its id, unique with the schedule: `2026-03-29T02:30:00` for wall jobs, `2026-10-25T00:15:00Z` for interval jobs. One
    /// that [`Store::run_schedule`](crate::Store::run_schedule) asked for without naming an occurrence is `asked-17`, after
    /// the number of the request.
    pub fn id(&self) -> &str {
        &self.id
    }
}
