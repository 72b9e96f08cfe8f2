//! What one transaction writes of a schedule: occurrence, jobs, record and mark, all or nothing.

use std::sync::Arc;

use rusqlite::{OptionalExtension, params};

use crate::calendar::{Count, Found, Mark, Missed, MissedReason, Run};
use crate::enqueue::{Compared, NewJob, Stored, store};
use crate::error::Error;
use crate::job::instant;
use crate::pen::{Group, OpError, OpResult};
use crate::sql;
use crate::store::Written;
use crate::telling::{self, Happened};

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
    pub from: Place,
    pub to: Place,
    /// What failed has been dealt with.
    pub settles: bool,
}

/// How far a schedule is, as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub mark: String,
    pub high: Option<String>,
    /// When what waits was found, and the newest look that found one.
    pub found: (Option<i64>, Option<i64>),
}

impl Place {
    pub(super) fn new(mark: Mark, high: Option<Mark>, found: Option<Found>) -> Place {
        Place { mark: mark.to_string(), high: high.map(|high| high.to_string()), found: stored(found) }
    }
}

/// As it is stored.
pub(super) fn stored(found: Option<Found>) -> (Option<i64>, Option<i64>) {
    found.map(|found| (found.at.timestamp_millis(), found.seen.timestamp_millis())).unzip()
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
            MissedReason::Paused => "paused",
            MissedReason::Changed => "changed",
        };
        Gap {
            first: missed.from.occurrence(),
            last: missed.to.occurrence(),
            count: missed.count.get(),
            reason,
            attention: missed.reason.needs_attention(),
        }
    }

    /// Planned runs in a row that do not run after all.
    pub(super) fn of_runs(runs: &[Run], reason: &'static str) -> Gap {
        let id = |run: Option<&Run>| run.map(|run| run.due.occurrence()).unwrap_or_default();
        let count = Count::new(runs.len()).get();
        Gap { first: id(runs.first()), last: id(runs.last()), count, reason, attention: false }
    }
}

/// What came of an occurrence that was to be written.
#[derive(Clone, Copy, Debug)]
pub(super) enum Made {
    /// Another process has moved the mark.
    Moved,
    /// It stood in the file already.
    Stood,
    New(Counts),
}

/// The jobs of an occurrence.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Counts {
    pub jobs: usize,
    /// Those that existed already, with the same content.
    pub existing: usize,
    /// Those whose keys exist with other content.
    pub conflicts: usize,
}

/// Writes one occurrence with its jobs, and the record of those before it that did not run.
pub(super) fn make(group: &mut Group<'_>, making: &Making, compared: &Compared) -> OpResult<Written<Made>> {
    let stood = group.statement(sql::HAS_OCCURRENCE)?.exists(params![making.schedule, making.id])?;
    let ran = (!stood).then_some(making.id.as_str());
    if let Some(to) = &making.mark
        && !move_mark(group, making.schedule, to, ran)?
    {
        return Ok(Ok(Made::Moved));
    }
    record(group, making.schedule, &making.missed)?;
    if stood {
        return Ok(Ok(Made::Stood));
    }
    let count = i64::try_from(making.jobs.len()).unwrap_or(i64::MAX);
    group.statement(sql::MAKE_OCCURRENCE)?.execute(params![
        making.schedule,
        making.id,
        making.due_at,
        group.now,
        count,
        making.cause,
    ])?;
    store_jobs(group, making, compared)
}

fn store_jobs(group: &mut Group<'_>, making: &Making, compared: &Compared) -> OpResult<Written<Made>> {
    let (mut questions, mut conflicts) = (Vec::new(), Vec::new());
    let mut counts = Counts { jobs: making.jobs.len(), ..Counts::default() };
    for job in &*making.jobs {
        match store(group, job, compared, false) {
            Ok(Stored::Answered(answer)) => {
                counts.existing += usize::from(!answer.fresh);
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
    counts.conflicts = conflicts.len();
    if group.is_listened_to() {
        let (schedule, occurrence, jobs) = (name_of(group, making.schedule)?, making.id.clone(), counts.jobs);
        group.tell(|| Happened::OccurrenceMade { schedule, occurrence, jobs });
    }
    Ok(Ok(Made::New(counts)))
}

/// Moves the mark past occurrences that do not run, or notes what waits. False if another process has been here.
pub(super) fn pass_over(group: &mut Group<'_>, schedule: i64, to: &Move, missed: &[Gap]) -> rusqlite::Result<bool> {
    if !move_mark(group, schedule, to, None)? {
        return Ok(false);
    }
    for gap in missed {
        // A mark that stays does not tell that another process was here.
        let known = to.from.mark == to.to.mark
            && group.statement(sql::HAS_RECORD)?.exists(params![schedule, gap.first, gap.last, gap.reason])?;
        if !known {
            record(group, schedule, std::slice::from_ref(gap))?;
        }
    }
    Ok(true)
}

fn move_mark(group: &mut Group<'_>, schedule: i64, to: &Move, last_run: Option<&str>) -> rusqlite::Result<bool> {
    let Move { from, to, settles } = to;
    let moved = group.statement(sql::MOVE_MARK)?.execute(params![
        schedule,
        from.mark,
        from.high,
        from.found.0,
        from.found.1,
        to.mark,
        to.high,
        to.found.0,
        to.found.1,
        last_run,
        settles,
    ])?;
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
        tell(group, schedule, gap)?;
    }
    Ok(())
}

/// What has just been recorded is told, and where a person should look, a job is enqueued that says so.
fn tell(group: &mut Group<'_>, schedule: i64, gap: &Gap) -> rusqlite::Result<()> {
    if !gap.attention && !group.is_listened_to() {
        return Ok(());
    }
    let record = group.tx().last_insert_rowid();
    let missed = telling::Missed {
        schedule: name_of(group, schedule)?,
        first: gap.first.clone(),
        last: gap.last.clone(),
        count: gap.count,
        reason: gap.reason.to_owned(),
        at: instant(group.now),
        record,
    };
    if gap.attention {
        telling::missed(group, &missed)?;
    }
    let telling::Missed { schedule, first, last, count, reason, .. } = missed;
    group.tell(|| Happened::Missed { schedule, first, last, count, reason });
    Ok(())
}

fn name_of(group: &Group<'_>, schedule: i64) -> rusqlite::Result<String> {
    let found = group.statement(sql::SCHEDULE_NAME)?.query_row([schedule], |row| row.get(0)).optional()?;
    Ok(found.unwrap_or_default())
}
