//! When: cron lines and plainer calendars, the zones they hang in, and what to do about occurrences that were missed.
//!
//! Everything here is pure: no clock is read, no database is touched. An instant goes in, occurrences come out:
//!
//! ```
//! use birkez::calendar::{Calendar, Zone};
//!
//! let calendar = Calendar::cron("30 2 * * *")?;
//! let berlin = Zone::parse("Europe/Berlin")?;
//! let evening = "2026-03-28T20:00:00Z".parse()?;
//! let due = calendar.next(&berlin, evening).expect("it fires every day");
//!
//! // 02:30 does not exist on that Sunday; it keeps its name and runs at the jump.
//! assert_eq!(due.occurrence(), "2026-03-29T02:30:00");
//! assert_eq!(due.local().to_rfc3339(), "2026-03-29T03:00:00+02:00");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
//!
//! A calendar whose times of day are named (`30 2 * * *`, `daily`) is a **wall job**: each nominal local time is one
//! occurrence, whatever daylight saving does to it. One whose second, minute or hour field begins with `*`, and
//! [`Calendar::every`], is an **interval job**: real time passes between its occurrences.

mod dealt;
mod due;
mod error;
mod field;
mod form;
mod mark;
mod plan;
mod policy;
mod rule;
mod text;
mod walk;
mod warning;
mod zone;

use std::fmt;
use std::iter;
use std::str::FromStr;
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, NaiveDate, NaiveTime, TimeDelta, Utc, Weekday};

pub(crate) use self::dealt::Dealt;
pub use self::due::Due;
pub use self::error::{CalendarError, CalendarFault, Excerpt};
pub use self::field::Field;
pub use self::mark::{Mark, MarkError};
pub(crate) use self::plan::{BELIEVED_AFTER, clock, left_out, plan_around, window};
pub use self::plan::{Clock, Found, Plan, Run, ScheduleState, plan};
pub use self::policy::{CatchUp, Count, Missed, MissedReason, Policy};
pub use self::warning::Warning;
pub use self::zone::{Zone, ZoneError};

use self::form::Form;
use self::rule::Rule;
use self::walk::Walk;

/// When a schedule fires: a cron line, or one of the plainer forms.
///
/// Its `Display` is one canonical text, from which `FromStr` makes it again: the cron line with single spaces, or
/// `daily 03:00`, `weekly mon 09:00`, `monthly 31 09:00`, `every 900s`; then `(last-day)` or `(skip)` if short months
/// are not treated in the form's usual way. Two calendars are equal when their texts are.
#[derive(Clone)]
pub struct Calendar {
    form: Form,
    short_months: ShortMonths,
    rule: Rule,
}

/// What a day from 29 to 31 means in a month that has no such day.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ShortMonths {
    /// It falls on the month's last day; several of them there are one. The default of [`Calendar::monthly`].
    LastDay,
    /// It is left out in that month. The default of cron lines, as in every cron.
    Skip,
}

impl Calendar {
    /// A cron line: minute, hour, day, month, weekday; or 6 fields with the second first; or `@yearly`, `@annually`,
    /// `@monthly`, `@weekly`, `@daily`, `@midnight`, `@hourly`. At most 512 bytes.
    ///
    /// Numbers are Unix cron's (0 and 7 are Sunday), names are three letters in any case. A field is a list of `*`,
    /// `a` or `a-b`, each with or without a step `/n`; a day or weekday may be `?` (the same as `*`), a day may be
    /// `L`, the last of the month. Where both day fields are restricted a day needs to match only one of them, unless
    /// one begins with `*` (Vixie cron's rule).
    ///
    /// # Errors
    ///
    /// [`CalendarError`] names the field and the reason. A line that never fires (30 February) is refused too.
    pub fn cron(text: &str) -> Result<Calendar, CalendarError> {
        let form = Form::cron(text)?;
        Calendar::new(text, ShortMonths::Skip, form)
    }

    /// A cron line whose days 29 to 31 are treated as `short_months` says; `LastDay` makes `0 9 31 2 *` a line that
    /// fires.
    ///
    /// # Errors
    ///
    /// As [`cron`](Calendar::cron).
    pub fn cron_with(text: &str, short_months: ShortMonths) -> Result<Calendar, CalendarError> {
        let form = Form::cron(text)?;
        Calendar::new(text, short_months, form)
    }

    /// Every day at a time of the wall clock, `HH:MM` or `HH:MM:SS`.
    ///
    /// # Errors
    ///
    /// [`CalendarFault::TimeOfDay`].
    pub fn daily(time: &str) -> Result<Calendar, CalendarError> {
        Calendar::usual(Form::daily(time)?)
    }

    /// Every week on a day, at a time of the wall clock.
    ///
    /// # Errors
    ///
    /// [`CalendarFault::TimeOfDay`].
    pub fn weekly(day: Weekday, time: &str) -> Result<Calendar, CalendarError> {
        Calendar::usual(Form::weekly(day, time)?)
    }

    /// Every month on a day from 1 to 31, at a time of the wall clock. In a month without that day it is the last
    /// day, unless [`short_months`](Calendar::short_months) says otherwise.
    ///
    /// # Errors
    ///
    /// [`CalendarFault::DayOfMonth`], [`CalendarFault::TimeOfDay`].
    pub fn monthly(day: u32, time: &str) -> Result<Calendar, CalendarError> {
        Calendar::usual(Form::monthly(day, time)?)
    }

    /// One occurrence each `period`, counted in real time from [`anchored`](Calendar::anchored); from
    /// 1970-01-01T00:00:00Z if that is never said. A run that starts late does not move those after it.
    ///
    /// # Errors
    ///
    /// [`CalendarFault::Period`] unless it is a whole number of seconds, from 1 second to 366 days.
    pub fn every(period: Duration) -> Result<Calendar, CalendarError> {
        Calendar::usual(Form::every(period)?)
    }

    /// Counts the periods of [`every`](Calendar::every) from this instant (its fraction of a second is dropped).
    /// Changes no other calendar. The anchor belongs to the schedule's state, so it is no part of the text or of
    /// equality.
    #[must_use]
    pub fn anchored(mut self, at: DateTime<Utc>) -> Calendar {
        if let Rule::Every { anchor, .. } = &mut self.rule {
            *anchor = mark::within_years(at.naive_utc());
        }
        self
    }

    /// Says what days 29 to 31 mean in shorter months. Defaults to `LastDay` for [`monthly`](Calendar::monthly),
    /// `Skip` for cron lines; the other forms have no days of the month, and it changes nothing.
    ///
    /// # Errors
    ///
    /// [`CalendarFault::NeverFires`] if with `Skip` nothing is left.
    pub fn short_months(self, short_months: ShortMonths) -> Result<Calendar, CalendarError> {
        if !self.form.has_month_days() {
            return Ok(self);
        }
        let text = self.form.to_string();
        Calendar::new(&text, short_months, self.form)
    }

    fn usual(form: Form) -> Result<Calendar, CalendarError> {
        let text = form.to_string();
        Calendar::new(&text, form.short_months(), form)
    }

    fn new(text: &str, short_months: ShortMonths, form: Form) -> Result<Calendar, CalendarError> {
        let never = || CalendarError::new(text, Some(Field::Day), CalendarFault::NeverFires);
        let rule = match form.fields() {
            Err(period) => Rule::Every { period, anchor: DateTime::UNIX_EPOCH.naive_utc() },
            Ok(fields) => {
                let walk = Arc::new(Walk::new(&fields, short_months).ok_or_else(never)?);
                if fields.is_wall() { Rule::Wall(walk) } else { Rule::Interval(walk) }
            }
        };
        let short_months = if form.has_month_days() { short_months } else { form.short_months() };
        Ok(Calendar { form, short_months, rule })
    }

    /// Whether its occurrences are nominal times of the wall clock (true) or instants (false).
    pub fn is_wall(&self) -> bool {
        matches!(self.rule, Rule::Wall(_))
    }

    /// The first occurrence strictly after an instant; `None` after the year 2100.
    ///
    /// Asked within the second pass of a repeated hour, it never answers with a wall job's occurrence of the first.
    pub fn next(&self, zone: &Zone, after: DateTime<Utc>) -> Option<Due> {
        self.rule.first_after(zone, self.rule.reading(zone, after))
    }

    /// All occurrences strictly after an instant, in order, to the year 2100.
    pub fn upcoming<'a>(&'a self, zone: &Zone, after: DateTime<Utc>) -> impl Iterator<Item = Due> + use<'a> {
        self.following(*zone, self.rule.reading(zone, after))
    }

    /// The mark of a schedule that has been evaluated up to `now`.
    pub fn mark_at(&self, zone: &Zone, now: DateTime<Utc>) -> Mark {
        self.rule.reading(zone, now)
    }

    /// The occurrences after `mark` that are due at `now`, oldest first. Each costs its own step, those not taken
    /// nothing.
    pub fn due_oldest_first<'a>(
        &'a self,
        zone: &Zone,
        mark: Mark,
        now: DateTime<Utc>,
    ) -> impl Iterator<Item = Due> + use<'a> {
        self.rising(*zone, self.rule.own(zone, mark), self.rule.reading(zone, now))
    }

    /// The occurrences after `mark` that are due at `now`, newest first. Each costs its own step, those not taken
    /// nothing.
    pub fn due_newest_first<'a>(
        &'a self,
        zone: &Zone,
        mark: Mark,
        now: DateTime<Utc>,
    ) -> impl Iterator<Item = Due> + use<'a> {
        self.falling(*zone, self.rule.own(zone, mark), self.rule.reading(zone, now))
    }

    /// The occurrences of the local dates `first` to `last` (both included), oldest first: what a back-fill runs.
    pub fn on_dates<'a>(
        &'a self,
        zone: &Zone,
        first: NaiveDate,
        last: NaiveDate,
    ) -> impl Iterator<Item = Due> + use<'a> {
        let start = self.rule.own(zone, Mark::Wall(first.and_time(NaiveTime::MIN))).second_before();
        // A clock change at midnight can bring an interval job's last date back for up to a day.
        let beyond = last.checked_add_signed(TimeDelta::days(2)).unwrap_or(last);
        self.following(*zone, start)
            .take_while(move |due| due.date() <= beyond)
            .filter(move |due| (first..=last).contains(&due.date()))
    }

    /// The occurrence with this id, if the calendar has it.
    pub fn find(&self, zone: &Zone, id: Mark) -> Option<Due> {
        self.rule.last_upto(zone, id).filter(|due| due.mark() == id)
    }

    /// Likely mistakes: texts that are understood, but perhaps not as they were meant.
    pub fn warnings(&self) -> Vec<Warning> {
        self.form.fields().map_or_else(|_| Vec::new(), |fields| warning::warnings(&fields, self.short_months))
    }

    /// The occurrences after a mark, in order.
    pub(crate) fn after<'a>(&'a self, zone: &Zone, mark: Mark) -> impl Iterator<Item = Due> + use<'a> {
        self.following(*zone, mark)
    }

    /// A mark of a schedule that was another calendar in another zone, as one of this: it stays what it is, unless the
    /// kind is another; then it is carried over by its instant.
    pub(crate) fn carry_over(&self, zone: &Zone, mark: Mark, old_zone: &Zone) -> Mark {
        match (self.is_wall(), mark) {
            (false, Mark::Wall(time)) => Mark::Interval(old_zone.reaches(mark::within_years(time)).and_utc()),
            _ => self.rule.own(zone, mark),
        }
    }

    /// Whether both have the same occurrences, however they are written.
    pub(crate) fn means(&self, other: &Calendar) -> bool {
        match (self.form.fields(), other.form.fields()) {
            (Ok(this), Ok(that)) => this.meaning(self.short_months) == that.meaning(other.short_months),
            (Err(this), Err(that)) => this == that,
            _ => false,
        }
    }

    fn following(&self, zone: Zone, mark: Mark) -> impl Iterator<Item = Due> {
        let first = self.rule.first_after(&zone, mark);
        iter::successors(first, move |due| self.rule.first_after(&zone, due.mark()))
    }

    fn rising(&self, zone: Zone, after: Mark, upto: Mark) -> impl Iterator<Item = Due> {
        self.following(zone, after).take_while(move |due| due.mark() <= upto)
    }

    fn falling(&self, zone: Zone, after: Mark, upto: Mark) -> impl Iterator<Item = Due> {
        let newest = self.rule.last_upto(&zone, upto);
        let older = move |due: &Due| self.rule.last_upto(&zone, due.mark().second_before());
        iter::successors(newest, older).take_while(move |due| due.mark() > after)
    }
}

impl PartialEq for Calendar {
    fn eq(&self, other: &Calendar) -> bool {
        self.form == other.form && self.short_months == other.short_months
    }
}

impl Eq for Calendar {}

impl fmt::Debug for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Calendar({self})")
    }
}

impl fmt::Display for Calendar {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.form.fmt(f)?;
        match self.short_months {
            usual if usual == self.form.short_months() => Ok(()),
            ShortMonths::LastDay => f.write_str(" (last-day)"),
            ShortMonths::Skip => f.write_str(" (skip)"),
        }
    }
}

impl FromStr for Calendar {
    type Err = CalendarError;

    fn from_str(text: &str) -> Result<Calendar, CalendarError> {
        let suffix = |suffix, short_months| Some((text.strip_suffix(suffix)?, short_months));
        let given = suffix(" (last-day)", ShortMonths::LastDay).or_else(|| suffix(" (skip)", ShortMonths::Skip));
        match given {
            Some((form, short_months)) => Calendar::new(text, short_months, form.parse()?),
            None => {
                let form: Form = text.parse()?;
                Calendar::new(text, form.short_months(), form)
            }
        }
    }
}
