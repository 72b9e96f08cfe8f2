//! What a person or an app does with schedules.

use chrono::NaiveDate;
use rusqlite::{OptionalExtension, params};

use super::kept::KeptSchedule;
use super::row::{ScheduleRow, Words};
use super::write::{Gap, insert, mark_now, record};
use super::{invalid, reason};
use crate::calendar::{Count, Mark};
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
    /// has changed does not fire for the past.
    ///
    /// # Errors
    ///
    /// Those of writing the file.
    pub fn set_schedule(&self, kept: &KeptSchedule) -> Result<()> {
        let kept = kept.clone();
        self.inner.pen.write(SET, ATOMIC, move |group| {
            insert(group, &kept.schedule)?;
            let words = Words::of(&kept.schedule);
            group.statement(sql::SET_SCHEDULE)?.execute(params![
                kept.schedule.name,
                words.calendar,
                words.zone,
                mark_now(&kept.schedule, group.now),
                words.catch_up,
                words.grace_ms,
                words.max_age_ms,
                words.overlap,
                kept.kind,
                kept.payload,
                kept.template,
            ])?;
            Ok(())
        })
    }

    /// Removes a schedule. What it has made stays; a program that still registers it makes a new one, from then on.
    /// False if there is none.
    ///
    /// # Errors
    ///
    /// Those of writing the file.
    pub fn remove_schedule(&self, name: &str) -> Result<bool> {
        self.change(name, |group, row| Ok(group.statement(sql::REMOVE_SCHEDULE)?.execute([&row.name])?))
    }

    /// Pauses a schedule until further notice; `by` says who, for those who wonder later. False if there is none, or it is
    /// paused.
    ///
    /// # Errors
    ///
    /// Those of writing the file.
    pub fn pause_schedule(&self, name: &str, by: &str) -> Result<bool> {
        let by = crate::failure::safe_text(by).into_owned();
        self.change(name, move |group, row| {
            Ok(group.statement(sql::PAUSE_SCHEDULE)?.execute(params![row.name, group.now, by])?)
        })
    }

    /// Ends a pause. What came due meanwhile does not run; one record says so. False if there is none, or it is not paused.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleInvalid`] if its stored definition cannot be read; those of writing the file.
    pub fn resume_schedule(&self, name: &str) -> Result<bool> {
        self.change(name, |group, row| {
            if row.paused_at.is_none() {
                return Ok(0);
            }
            let broken = |text: String| invalid(&row.name, reason(&text));
            let schedule = row.definition().map_err(broken)?;
            let state = row.state(std::time::Duration::ZERO).map_err(broken)?;
            let now = instant(group.now);
            let due = || schedule.calendar.due_newest_first(&schedule.zone, state.mark, now);
            if let Some(last) = due().next() {
                let count = Count::new(due().take(Count::EXACT as usize + 1).count()).get();
                let first = schedule.calendar.due_oldest_first(&schedule.zone, state.mark, now).next().unwrap_or(last);
                let (first, last) = (first.occurrence(), last.occurrence());
                record(group, row.id, &[Gap { first, last, count, reason: "paused", attention: false }])?;
            }
            let mark = state.mark.later(schedule.calendar.mark_at(&schedule.zone, now));
            Ok(group.statement(sql::RESUME_SCHEDULE)?.execute(params![row.name, mark.to_string()])?)
        })
    }

    /// Asks for a run now: of the occurrence with this id, which then does not run again at its time, or of one of its own.
    /// It is carried out by a process that registered the schedule, or handles its kind, at once if that runs. False if
    /// there is no such schedule.
    ///
    /// # Errors
    ///
    /// Those of writing the file.
    pub fn run_schedule(&self, name: &str, occurrence: Option<&str>) -> Result<bool> {
        let occurrence = occurrence.map(str::to_owned);
        self.change(name, move |group, row| {
            Ok(group.statement(sql::ASK)?.execute(params![row.name, "run", occurrence, None::<&str>, group.now])?)
        })
    }

    /// Asks for every occurrence of the local dates `first` to `last`, both included, that is due and was not made yet,
    /// also those from before the schedule existed. They have the same ids as if they had run in time. Carried out as
    /// [`run_schedule`](Store::run_schedule).
    ///
    /// # Errors
    ///
    /// Those of writing the file.
    pub fn backfill_schedule(&self, name: &str, first: NaiveDate, last: NaiveDate) -> Result<bool> {
        self.change(name, move |group, row| {
            let (first, last) = (first.to_string(), last.to_string());
            Ok(group.statement(sql::ASK)?.execute(params![row.name, "backfill", first, last, group.now])?)
        })
    }

    /// Notes an occurrence as done, so that it does not run. False if there is no such schedule, or the occurrence was
    /// made before.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleInvalid`] if the schedule has no such occurrence; those of writing the file.
    pub fn mark_occurrence_done(&self, name: &str, occurrence: &str) -> Result<bool> {
        let id = occurrence.to_owned();
        self.change(name, move |group, row| {
            let schedule = row.definition().map_err(|text| invalid(&row.name, reason(&text)))?;
            let mark = id.parse::<Mark>().ok();
            let due = mark.and_then(|mark| schedule.calendar.find(&schedule.zone, mark));
            let none = || invalid(&row.name, reason(&format!("it has no occurrence `{}`", id.escape_debug())));
            let due = due.ok_or_else(none)?;
            let at = due.at.timestamp_millis();
            let made = params![row.id, due.occurrence(), at, group.now, 0, "marked_done"];
            Ok(group.statement(sql::MAKE_OCCURRENCE)?.execute(made)?)
        })
    }

    fn change(
        &self,
        name: &str,
        f: impl FnOnce(&mut Group<'_>, &ScheduleRow) -> OpResult<usize> + Send + 'static,
    ) -> Result<bool> {
        let name = name.to_owned();
        self.inner.pen.write(CHANGE, ATOMIC, move |group| {
            let row = group.statement(sql::SCHEDULE_BY_NAME)?.query_row([name], ScheduleRow::read).optional()?;
            let Some(row) = row else { return Ok(false) };
            let changed = f(group, &row)? > 0;
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
