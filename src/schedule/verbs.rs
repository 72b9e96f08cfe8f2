//! What a person or an app does with schedules.

use std::time::Duration;

use chrono::NaiveDate;
use rusqlite::{OptionalExtension, params};

use super::dealt::between;
use super::define::define;
use super::kept::KeptSchedule;
use super::requests::MOST;
use super::row::ScheduleRow;
use super::write::{Gap, record};
use super::{Schedule, no_occurrence, reason, refused};
use crate::act::{Deed, record as record_deed};
use crate::calendar::{Mark, MissedReason, left_out};
use crate::error::{Error, Result};
use crate::job::instant;
use crate::pen::{Act, Group, Mode, OpResult};
use crate::sql;
use crate::store::Store;

const SET: Act = Act { name: "set_schedule", instead: "the same after the transaction" };
const CHANGE: Act = Act { name: "changing a schedule", instead: "the same after the transaction" };
const ATOMIC: Mode = Mode { atomic: true, synced: false, follows: false };

impl Store {
    /// Adds a schedule that is kept in the file, or changes the one of this name. The mark is kept; one whose calendar
    /// has changed does not fire for the past: one record with the reason `changed` says what it left. Another spelling of
    /// the same calendar is no change.
    ///
    /// # Errors
    ///
    /// What could never be enqueued is refused: a payload over the store's limit
    /// ([`Error::PayloadTooLarge`]), a key that would be too long ([`Error::KeyTooLong`]) or hold a NUL
    /// ([`Error::KeyInvalid`]). Those of writing the file.
    pub fn set_schedule(&self, kept: &KeptSchedule) -> Result<()> {
        kept.check(&self.inner.terms)?;
        if let Some(text) = kept.schedule.zone.warning() {
            tracing::warn!(schedule = kept.schedule.name, text, "a schedule in the machine's own zone");
        }
        let kept = kept.clone();
        self.inner.pen.write(SET, ATOMIC, move |group| define(group, &kept.schedule, Some(&kept)))
    }

    /// Removes a schedule. What it has made stays; a program that still registers it makes a new one, from then on.
    /// False if there is none.
    ///
    /// # Errors
    ///
    /// Those of writing the file.
    pub fn remove_schedule(&self, name: &str, deed: impl Into<Deed>) -> Result<bool> {
        let verb = Verb::new("remove schedule", deed);
        self.change(name, verb, |group, row| Ok(group.statement(sql::REMOVE_SCHEDULE)?.execute([&row.name])?))
    }

    /// Pauses a schedule until further notice; the deed says who, for those who wonder later. False if there is none, or
    /// it is paused.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// use birkez::Deed;
    /// store.pause_schedule("nightly", Deed::by("Ada").because("the bank is closed this week"))?;
    /// // and later:
    /// store.resume_schedule("nightly", "Ada")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of writing the file.
    pub fn pause_schedule(&self, name: &str, deed: impl Into<Deed>) -> Result<bool> {
        let verb = Verb::new("pause schedule", deed);
        let by = verb.deed.who().to_owned();
        self.change(name, verb, move |group, row| {
            Ok(group.statement(sql::PAUSE_SCHEDULE)?.execute(params![row.name, group.now, by])?)
        })
    }

    /// Ends a pause. What came due within it does not run; one record says so. What had come due before and waits still
    /// follows the schedule's policy. False if there is none, or it is not paused.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleInvalid`] if its stored definition cannot be read; those of writing the file.
    pub fn resume_schedule(&self, name: &str, deed: impl Into<Deed>) -> Result<bool> {
        self.change(name, Verb::new("resume schedule", deed), |group, row| {
            let Some(paused_at) = row.paused_at else { return Ok(0) };
            let broken = |text: String| refused(&row.name, "cannot be resumed", reason(&text));
            let Schedule { calendar, zone, .. } = row.definition().map_err(broken)?;
            let state = row.state(Duration::ZERO).map_err(broken)?;
            let own = |mark| calendar.carry_over(&zone, mark, &zone);
            let (mark, now) = (own(state.mark), calendar.mark_at(&zone, instant(group.now)));
            let paused = mark.later(calendar.mark_at(&zone, instant(paused_at)));
            let dealt = between(group.tx(), row.id, (mark, now), &[])?;
            let left = |within| left_out(&dealt, &calendar, &zone, within, MissedReason::Paused);
            if let Some(missed) = left((paused, now)) {
                record(group, row.id, &[Gap::of(&missed)])?;
            }
            // Where something has waited since before, the record alone keeps the rest from running.
            let waits = left((mark, paused)).is_some();
            let mark = if waits { mark } else { mark.later(now) };
            let high = state.high.map(own).filter(|high| *high > mark).map(|high| high.to_string());
            Ok(group.statement(sql::RESUME_SCHEDULE)?.execute(params![row.name, mark.to_string(), high])?)
        })
    }

    /// Asks for a run now: of the occurrence with this id, which then does not run again at its time, or of one of its own.
    /// It is carried out by a process that registered the schedule, or handles its kind, at once if that runs. False if
    /// there is no such schedule.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleInvalid`] if the text is no occurrence id; those of writing the file.
    pub fn run_schedule(&self, name: &str, occurrence: Option<&str>, deed: impl Into<Deed>) -> Result<bool> {
        if let Some(id) = occurrence {
            id.parse::<Mark>().map_err(|error| no_occurrence(name, id, error))?;
        }
        let occurrence = occurrence.map(str::to_owned);
        let verb = Verb::new("run schedule", deed).about(serde_json::json!({ "occurrence": occurrence }));
        self.change(name, verb, move |group, row| {
            Ok(group.statement(sql::ASK)?.execute(params![row.name, "run", occurrence, None::<&str>, group.now])?)
        })
    }

    /// Asks for every occurrence of the local dates `first` to `last`, both included, that is due and was not made yet,
    /// also those from before the schedule existed, oldest first. They have the same ids as if they had run in time. At
    /// most 10,000 occurrences a request. Carried out as [`run_schedule`](Store::run_schedule).
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleInvalid`] if the dates have more than 10,000 occurrences; those of writing the file.
    pub fn backfill_schedule(
        &self,
        name: &str,
        first: NaiveDate,
        last: NaiveDate,
        deed: impl Into<Deed>,
    ) -> Result<bool> {
        let now = instant(self.inner.clock.wall());
        // What cannot be read is no concern of the request: it waits until it can.
        if let Some(Ok(Schedule { calendar, zone, .. })) = self.schedule_row(name)?.map(|row| row.definition())
            && calendar.on_dates(&zone, first, last).take_while(|due| due.at <= now).nth(MOST).is_some()
        {
            let text = format!("{first} to {last} have more than {MOST} occurrences; ask for fewer dates at a time");
            return Err(refused(name, "cannot be back-filled", reason(&text)));
        }
        let verb = Verb::new("back-fill schedule", deed).about(serde_json::json!({ "first": first, "last": last }));
        self.change(name, verb, move |group, row| {
            let (first, last) = (first.to_string(), last.to_string());
            Ok(group.statement(sql::ASK)?.execute(params![row.name, "backfill", first, last, group.now])?)
        })
    }

    /// Takes a request back that has not been carried out ([`RequestInfo::id`](crate::RequestInfo::id)). What a back-fill
    /// has made by then stays. False if there is none, or it is done.
    ///
    /// # Errors
    ///
    /// Those of writing the file.
    pub fn withdraw_request(&self, id: i64, deed: impl Into<Deed>) -> Result<bool> {
        let verb = Verb::new("withdraw request", deed).about(serde_json::json!({ "request": id }));
        self.inner.pen.write(CHANGE, ATOMIC, move |group| {
            if group.statement(sql::ANSWER)?.execute(params![id, group.now, "withdrawn"])? == 0 {
                return Ok(false);
            }
            let of = |row: &rusqlite::Row<'_>| row.get(0);
            let name: Option<String> = group.statement(sql::REQUEST_OF)?.query_row([id], of).optional()?;
            verb.record(group, name.as_deref().unwrap_or("that was removed"))?;
            group.calendar = true;
            Ok(true)
        })
    }

    /// Notes an occurrence as done, so that it does not run. One whose mapping fails no longer holds up the others then.
    /// False if there is no such schedule, or the occurrence was made before.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleInvalid`] if the schedule has no such occurrence; those of writing the file.
    pub fn mark_occurrence_done(&self, name: &str, occurrence: &str, deed: impl Into<Deed>) -> Result<bool> {
        let id = occurrence.to_owned();
        let verb = Verb::new("mark occurrence done", deed).about(serde_json::json!({ "occurrence": id }));
        self.change(name, verb, move |group, row| {
            let verdict = "cannot mark an occurrence as done";
            let schedule = row.definition().map_err(|text| refused(&row.name, verdict, reason(&text)))?;
            let mark = id.parse::<Mark>().map_err(|error| no_occurrence(&row.name, &id, error))?;
            let due = schedule.calendar.find(&schedule.zone, mark);
            let none = || no_occurrence(&row.name, &id, reason("its calendar names no such time"));
            let due = due.ok_or_else(none)?;
            let at = due.at.timestamp_millis();
            group.statement(sql::TRY_AT_ONCE)?.execute([row.id])?;
            group.statement(sql::RETRY_REQUESTS)?.execute([row.id])?;
            let made = params![row.id, due.occurrence(), at, group.now, 0, "marked_done"];
            Ok(group.statement(sql::MAKE_OCCURRENCE)?.execute(made)?)
        })
    }

    /// Takes note of what needs a person ([`ScheduleInfo::needs_attention`](crate::ScheduleInfo::needs_attention)): it
    /// needs nobody any more until something new comes. The records stay. False if there is no such schedule, or nothing
    /// new.
    ///
    /// # Errors
    ///
    /// Those of writing the file.
    pub fn acknowledge_schedule(&self, name: &str, deed: impl Into<Deed>) -> Result<bool> {
        self.change(name, Verb::new("acknowledge schedule", deed), |group, row| {
            let mut noted = 0;
            for sql in [sql::ACKNOWLEDGE_MISSED, sql::ACKNOWLEDGE_CONFLICTS, sql::ACKNOWLEDGE_REQUESTS] {
                noted += group.statement(sql)?.execute([row.id])?;
            }
            Ok(noted + group.statement(sql::ACKNOWLEDGE_SCHEDULE)?.execute(params![row.id, row.trouble()])?)
        })
    }

    fn change(
        &self,
        name: &str,
        verb: Verb,
        f: impl FnOnce(&mut Group<'_>, &ScheduleRow) -> OpResult<usize> + Send + 'static,
    ) -> Result<bool> {
        let name = name.to_owned();
        self.inner.pen.write(CHANGE, ATOMIC, move |group| {
            let row = group.statement(sql::SCHEDULE_BY_NAME)?.query_row([name], ScheduleRow::read).optional()?;
            let Some(row) = row else { return Ok(false) };
            let changed = f(group, &row)? > 0;
            if changed {
                verb.record(group, &row.name)?;
            }
            group.calendar |= changed;
            Ok(changed)
        })
    }

    pub(super) fn schedule_row(&self, name: &str) -> Result<Option<ScheduleRow>, Error> {
        self.read("reading a schedule", |tx| {
            tx.prepare_cached(sql::SCHEDULE_BY_NAME)?.query_row([name], ScheduleRow::read).optional()
        })
    }
}

/// What is done to a schedule, as it stands in the record of deeds.
struct Verb {
    name: &'static str,
    deed: Deed,
    detail: Option<String>,
}

impl Verb {
    fn new(name: &'static str, deed: impl Into<Deed>) -> Verb {
        Verb { name, deed: deed.into(), detail: None }
    }

    fn about(self, detail: serde_json::Value) -> Verb {
        Verb { detail: Some(detail.to_string()), ..self }
    }

    fn record(&self, group: &mut Group<'_>, schedule: &str) -> OpResult<()> {
        record_deed(group, self.name, &subject(schedule), &self.deed, self.detail.as_deref())?;
        Ok(())
    }
}

/// A schedule in the record of deeds.
pub(super) fn subject(schedule: &str) -> String {
    format!("schedule {schedule}")
}
