//! What one transaction writes of a schedule: occurrence, jobs, record and mark, all or nothing.

use std::sync::Arc;

use rusqlite::params;

use super::Schedule;
use super::row::Words;
use crate::calendar::{Mark, Missed, MissedReason};
use crate::enqueue::{Compared, NewJob, Stored, store};
use crate::error::Error;
use crate::job::instant;
use crate::pen::{Group, OpError, OpResult};
use crate::sql;
use crate::store::Written;

/// An occurrence on its way into the file.
#[derive(Clone)]
pub(super) struct Making {
    pub schedule: i64,
    pub id: String,
    pub due_at: i64,
    pub cause: &'static str,
    pub jobs: Arc<Vec<NewJob>>,
    pub missed: Vec<Gap>,
    /// How the mark moves; `None` leaves it, such as for what a person has asked for.
    pub mark: Option<Move>,
}

/// From the marks that were read to new ones.
#[derive(Clone, Debug)]
pub(super) struct Move {
    pub from: (String, Option<String>),
    pub to: (String, Option<String>),
}

/// Occurrences in a row that did not run.
#[derive(Clone, Debug)]
pub(super) struct Gap {
    pub first: String,
    pub last: String,
    pub count: u32,
    pub reason: &'static str,
    pub attention: bool,
}

impl Gap {
    pub(super) fn of(missed: &Missed) -> Gap {
        let reason = match missed.reason {
            MissedReason::Newer => "newer",
            MissedReason::Skipped => "skipped",
            MissedReason::OverMax => "over_max",
            MissedReason::TooOld => "too_old",
        };
        Gap {
            first: missed.from.occurrence(),
            last: missed.to.occurrence(),
            count: missed.count.get(),
            reason,
            attention: missed.reason.needs_attention(),
        }
    }

    /// One occurrence that did not run.
    pub(super) fn one(id: String, reason: &'static str) -> Gap {
        Gap { first: id.clone(), last: id, count: 1, reason, attention: false }
    }
}

/// Registers what a program's code describes, and notes what it no longer does.
pub(super) fn register(group: &mut Group<'_>, schedules: &[Schedule], program: &str, owner: i64) -> OpResult<()> {
    for schedule in schedules {
        insert(group, schedule)?;
        let words = Words::of(schedule);
        group.statement(sql::SCHEDULE_REGISTERED)?.execute(params![schedule.name, program, owner])?;
        group.statement(sql::SET_SCHEDULE)?.execute(params![
            schedule.name,
            words.calendar,
            words.zone,
            mark_now(schedule, group.now),
            words.catch_up,
            words.grace_ms,
            words.max_age_ms,
            words.overlap,
            None::<&str>,
            None::<&str>,
            None::<&str>,
        ])?;
    }
    // Registered by an earlier process of this program, and by none that is alive.
    group.statement(sql::NOTE_ORPHANS)?.execute(params![program, owner, group.now])?;
    Ok(())
}

/// A row for the schedule, if there is none: it begins now.
pub(super) fn insert(group: &mut Group<'_>, schedule: &Schedule) -> rusqlite::Result<bool> {
    let words = Words::of(schedule);
    // `every` counts from here, by whole seconds as its occurrences do.
    let anchor = group.now.div_euclid(1_000) * 1_000;
    let made = group.statement(sql::INSERT_SCHEDULE)?.execute(params![
        schedule.name,
        words.calendar,
        words.zone,
        mark_now(schedule, group.now),
        anchor
    ])?;
    group.calendar = true;
    Ok(made == 1)
}

/// The mark of a schedule that begins now.
pub(super) fn mark_now(schedule: &Schedule, now: i64) -> String {
    schedule.calendar.mark_at(&schedule.zone, instant(now)).to_string()
}

/// Writes one occurrence with its jobs, and the record of those before it that did not run.
pub(super) fn make(group: &mut Group<'_>, making: &Making, compared: &Compared) -> OpResult<Written<()>> {
    if !move_mark(group, making.schedule, making.mark.as_ref(), Some(&making.id))? {
        // Another process has moved the mark.
        return Ok(Ok(()));
    }
    record(group, making.schedule, &making.missed)?;
    let count = i64::try_from(making.jobs.len()).unwrap_or(i64::MAX);
    let made = group.statement(sql::MAKE_OCCURRENCE)?.execute(params![
        making.schedule,
        making.id,
        making.due_at,
        group.now,
        count,
        making.cause,
    ])?;
    if made == 0 {
        // It stood in the file already.
        return Ok(Ok(()));
    }
    let (mut questions, mut conflicts) = (Vec::new(), Vec::new());
    for job in &*making.jobs {
        match store(group, job, compared, false) {
            Ok(Stored::Answered(answer)) => {
                group.statement(sql::LINK_JOB)?.execute(params![making.schedule, making.id, answer.id])?;
            }
            Ok(Stored::MustCompare(question)) => questions.push(question),
            // Other content under a known key does not hold up the schedule; it needs a person. So does a correction of
            // what is not there.
            Err(OpError::Refused(Error::KeyReused { kind, key, .. } | Error::NothingToCorrect { kind, key, .. })) => {
                conflicts.push(format!("{kind} {key}"));
            }
            Err(error) => return Err(error),
        }
    }
    if !questions.is_empty() {
        return Ok(Err(questions));
    }
    if !conflicts.is_empty() {
        let text = serde_json::to_string(&conflicts).unwrap_or_default();
        group.statement(sql::NOTE_CONFLICTS)?.execute(params![making.schedule, making.id, text])?;
        tracing::warn!(schedule = making.schedule, occurrence = making.id, text, "keys with other content were met");
    }
    Ok(Ok(()))
}

/// Moves the mark past occurrences that do not run. False if another process has moved it.
pub(super) fn pass_over(group: &mut Group<'_>, schedule: i64, to: &Move, missed: &[Gap]) -> rusqlite::Result<bool> {
    if !move_mark(group, schedule, Some(to), None)? {
        return Ok(false);
    }
    for gap in missed {
        // A mark that stays does not tell that another process was here.
        let known = to.from == to.to && group.statement(sql::HAS_SKIPPED)?.exists(params![schedule, gap.first])?;
        if !known {
            record(group, schedule, std::slice::from_ref(gap))?;
        }
    }
    Ok(true)
}

fn move_mark(
    group: &mut Group<'_>,
    schedule: i64,
    to: Option<&Move>,
    last_run: Option<&str>,
) -> rusqlite::Result<bool> {
    let Some(Move { from, to }) = to else { return Ok(true) };
    let moved = group.statement(sql::MOVE_MARK)?.execute(params![schedule, from.0, from.1, to.0, to.1, last_run])?;
    Ok(moved == 1)
}

pub(super) fn record(group: &mut Group<'_>, schedule: i64, missed: &[Gap]) -> rusqlite::Result<()> {
    for gap in missed {
        group.statement(sql::RECORD_MISSED)?.execute(params![
            schedule,
            gap.first,
            gap.last,
            gap.count,
            gap.reason,
            group.now,
            gap.attention,
        ])?;
    }
    Ok(())
}

/// The text of marks, as they are stored.
pub(super) fn texts(mark: Mark, high: Option<Mark>) -> (String, Option<String>) {
    (mark.to_string(), high.map(|high| high.to_string()))
}
