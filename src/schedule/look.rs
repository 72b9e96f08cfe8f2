//! Looking at schedules and at what they have made.

use std::time::Duration;

use chrono::{DateTime, Utc};
use rusqlite::{OptionalExtension, Row};
use serde::Serialize;

use super::Schedule;
use super::row::ScheduleRow;
use crate::calendar::{BELIEVED_AFTER, Clock, clock};
use crate::error::Result;
use crate::job::instant;
use crate::sql;
use crate::store::Store;

/// Most occurrences that were made before their time and are passed over in the look for one that is due.
const DUE: usize = 1_000;

/// A schedule as it stands in the file.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ScheduleInfo {
    /// Its name.
    pub name: String,
    /// Its calendar's text.
    pub calendar: String,
    /// The zone that its times are meant in.
    pub zone: String,
    /// Every occurrence up to this one has been dealt with.
    pub mark: String,
    /// Why it cannot make its jobs, if its last try failed.
    pub error: Option<String>,
    /// How many tries have failed in a row.
    pub failures: u32,
    /// When it is tried again after a failure.
    pub try_at: Option<DateTime<Utc>>,
    /// The kind that it enqueues, if it is kept in the file.
    pub kind: Option<String>,
    /// Since when it is paused.
    pub paused_at: Option<DateTime<Utc>>,
    /// Who paused it.
    pub paused_by: Option<String>,
    /// When its program was seen to start without registering it.
    pub orphaned_at: Option<DateTime<Utc>>,
    /// The newest occurrence that ran when it was due. Neither one that was marked as done nor one that was asked for.
    pub last_run: Option<String>,
    /// The occurrence that was due last of those with a job that is done, and when it was done.
    pub last_success: Option<(String, DateTime<Utc>)>,
    /// When it is due next, as far as its definition can be read and it is neither paused nor orphaned. Occurrences that
    /// were made before their time are passed over.
    pub next: Option<DateTime<Utc>>,
    /// Since when an occurrence is due that nobody has dealt with: none but for a moment, unless no runner evaluates it,
    /// its mapping fails, or it waits for the run before it. `None` while it is paused.
    pub due_since: Option<DateTime<Utc>>,
    /// Why nothing is caught up though nothing has failed: the clock is far behind the mark.
    pub waits: Option<String>,
    /// For how long that has been so, in sum, while a runner looked (written every 10 minutes). After 48 hours the clock
    /// is believed.
    pub clock_behind_for: Option<Duration>,
    /// Whether a person should look: it cannot make its jobs, a request cannot be carried out, it has dropped occurrences
    /// that it was asked to run, has met keys with other content, or nobody registers it any more. False again after
    /// [`Store::acknowledge_schedule`], until something new comes.
    pub needs_attention: bool,
}

/// What was asked of a schedule, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RequestInfo {
    /// Its number, for [`Store::withdraw_request`].
    pub id: i64,
    /// `run` or `backfill`.
    pub verb: String,
    /// The occurrence to run, or the first date.
    pub first: Option<String>,
    /// The last date.
    pub last: Option<String>,
    /// When it was asked for.
    pub asked_at: DateTime<Utc>,
    /// When it was carried out; `None` while it waits for a process that can.
    pub done_at: Option<DateTime<Utc>>,
    /// What came of it: `ran`, or that the occurrence or its jobs stood in the file already; `made N` of a back-fill.
    pub answer: Option<String>,
    /// How often its mapping has failed.
    pub failures: u32,
    /// Why, at the last time.
    pub error: Option<String>,
    /// When it is tried again. The schedule goes on meanwhile.
    pub try_at: Option<DateTime<Utc>>,
}

/// Occurrences in a row that did not run.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct MissedInfo {
    /// Id of the oldest.
    pub first: String,
    /// Id of the newest.
    pub last: String,
    /// How many; 1,001 stands for any number above 1,000.
    pub count: u32,
    /// Why: `newer` (a newer one ran in their place), `skipped`, `over_max`, `too_old`, `overlap`, `paused`
    /// (it came due within a pause), `changed` (the schedule was given another calendar).
    pub reason: String,
    /// When this was recorded.
    pub at: DateTime<Utc>,
    /// Whether a person should look, and none has taken note.
    pub needs_attention: bool,
}

/// What a schedule has made of one occurrence.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OccurrenceInfo {
    /// Its id, unique with the schedule; see [`Occurrence::id`](crate::Occurrence::id).
    pub id: String,
    /// When it was due.
    pub due_at: DateTime<Utc>,
    /// When its jobs were made.
    pub made_at: DateTime<Utc>,
    /// How many jobs it mapped to.
    pub jobs: u32,
    /// Kind and key of each that exists with other content. They need a person.
    pub conflicts: Vec<String>,
    /// Why it was made: `due`, `asked`, `backfill`, or `marked_done` (then it did not run).
    pub cause: String,
}

impl Store {
    /// All schedules, by name.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// for schedule in store.schedules()? {
    ///     println!("{} up to {}: {:?}", schedule.name, schedule.mark, schedule.error);
    ///     for made in store.occurrences(&schedule.name, 10)? {
    ///         println!("  {} made {} jobs", made.id, made.jobs);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn schedules(&self) -> Result<Vec<ScheduleInfo>> {
        let now = instant(self.inner.clock.wall());
        self.read("looking at schedules", |tx| all_schedules(tx, now))
    }

    /// What was asked of a schedule, newest first, at most `limit`.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn schedule_requests(&self, schedule: &str, limit: u32) -> Result<Vec<RequestInfo>> {
        let info = |row: &Row<'_>| {
            Ok(RequestInfo {
                id: row.get(0)?,
                verb: row.get(1)?,
                first: row.get(2)?,
                last: row.get(3)?,
                asked_at: instant(row.get(4)?),
                done_at: row.get::<_, Option<i64>>(5)?.map(instant),
                answer: row.get(6)?,
                failures: row.get(7)?,
                error: row.get(8)?,
                try_at: row.get::<_, Option<i64>>(9)?.map(instant),
            })
        };
        self.read("looking at requests", |tx| {
            tx.prepare_cached(sql::REQUESTS)?.query_map(rusqlite::params![schedule, limit], info)?.collect()
        })
    }

    /// The newest records of occurrences that did not run, newest first, at most `limit`.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn missed(&self, schedule: &str, limit: u32) -> Result<Vec<MissedInfo>> {
        let info = |row: &Row<'_>| {
            Ok(MissedInfo {
                first: row.get(0)?,
                last: row.get(1)?,
                count: row.get(2)?,
                reason: row.get(3)?,
                at: instant(row.get(4)?),
                needs_attention: row.get::<_, i64>(5)? == 1,
            })
        };
        self.read("looking at missed occurrences", |tx| {
            tx.prepare_cached(sql::MISSED)?.query_map(rusqlite::params![schedule, limit], info)?.collect()
        })
    }

    /// The occurrences that a schedule has made, those that were due last first, at most `limit`.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn occurrences(&self, schedule: &str, limit: u32) -> Result<Vec<OccurrenceInfo>> {
        let info = |row: &Row<'_>| {
            let conflicts: Option<String> = row.get(4)?;
            Ok(OccurrenceInfo {
                id: row.get(0)?,
                due_at: instant(row.get(1)?),
                made_at: instant(row.get(2)?),
                jobs: row.get(3)?,
                conflicts: conflicts.and_then(|text| serde_json::from_str(&text).ok()).unwrap_or_default(),
                cause: row.get(5)?,
            })
        };
        self.read("looking at occurrences", |tx| {
            tx.prepare_cached(sql::OCCURRENCES)?.query_map(rusqlite::params![schedule, limit], info)?.collect()
        })
    }
}

/// All schedules, by name.
pub(crate) fn all_schedules(tx: &rusqlite::Transaction<'_>, now: DateTime<Utc>) -> rusqlite::Result<Vec<ScheduleInfo>> {
    let mut ask = tx.prepare_cached(sql::SCHEDULES)?;
    let rows: Vec<ScheduleRow> = ask.query_map([], ScheduleRow::read)?.collect::<rusqlite::Result<_>>()?;
    rows.into_iter().map(|row| info(tx, row, now)).collect()
}

fn info(tx: &rusqlite::Transaction<'_>, row: ScheduleRow, now: DateTime<Utc>) -> rusqlite::Result<ScheduleInfo> {
    let success = |row: &Row<'_>| Ok((row.get(0)?, instant(row.get(1)?)));
    let last_success = tx.prepare_cached(sql::LAST_SUCCESS)?.query_row([row.id], success).optional()?;
    let error = row.trouble();
    let behind = behind(&row, now);
    Ok(ScheduleInfo {
        needs_attention: needs_attention(tx, &row)?,
        next: next(tx, &row, now)?,
        due_since: due_since(tx, &row, now)?,
        waits: behind.map(|behind| waits(&row.mark, behind)),
        clock_behind_for: behind,
        name: row.name,
        calendar: row.calendar,
        zone: row.zone,
        mark: row.mark,
        error,
        failures: row.failures,
        try_at: row.try_at.map(instant),
        kind: row.kind,
        paused_at: row.paused_at.map(instant),
        paused_by: row.paused_by,
        orphaned_at: row.orphaned_at.map(instant),
        last_run: row.last_run,
        last_success,
    })
}

fn needs_attention(tx: &rusqlite::Transaction<'_>, row: &ScheduleRow) -> rusqlite::Result<bool> {
    let noted: bool = tx.prepare_cached(sql::NEEDS_ATTENTION)?.query_row([row.id], |row| row.get(0))?;
    let error = row.trouble();
    let is_new = error.is_some() && error != row.acknowledged;
    let orphaned = row.orphaned_at.is_some() && !row.orphan_acknowledged;
    Ok(noted || is_new || orphaned)
}

/// Names of the schedules that need attention.
pub(crate) fn troubled(tx: &rusqlite::Transaction<'_>) -> rusqlite::Result<Vec<String>> {
    let mut names = Vec::new();
    for row in tx.prepare_cached(sql::SCHEDULES)?.query_map([], ScheduleRow::read)? {
        let row = row?;
        if needs_attention(tx, &row)? {
            names.push(row.name);
        }
    }
    Ok(names)
}

/// The first occurrence from now on that runs.
pub(super) fn next(
    tx: &rusqlite::Transaction<'_>,
    row: &ScheduleRow,
    now: DateTime<Utc>,
) -> rusqlite::Result<Option<DateTime<Utc>>> {
    let (Ok(Schedule { calendar, zone, .. }), Ok(state)) = (row.definition(), row.state(Duration::ZERO)) else {
        return Ok(None);
    };
    if row.paused_at.is_some() || row.orphaned_at.is_some() {
        return Ok(None);
    }
    let own = |mark| calendar.carry_over(&zone, mark, &zone);
    let mut from = own(state.created).later(calendar.mark_at(&zone, now));
    if clock(&calendar, &zone, state.mark, now) == Clock::Waiting && calendar.is_wall() {
        from = from.later(own(state.mark));
    }
    let mut has = tx.prepare_cached(sql::HAS_OCCURRENCE)?;
    for due in calendar.after(&zone, from) {
        if !has.exists(rusqlite::params![row.id, due.occurrence()])? {
            return Ok(Some(due.at));
        }
    }
    Ok(None)
}

/// Since when an occurrence is due that is above the mark and was not made.
fn due_since(
    tx: &rusqlite::Transaction<'_>,
    row: &ScheduleRow,
    now: DateTime<Utc>,
) -> rusqlite::Result<Option<DateTime<Utc>>> {
    let (Ok(Schedule { calendar, zone, .. }), Ok(state)) = (row.definition(), row.state(Duration::ZERO)) else {
        return Ok(None);
    };
    if row.paused_at.is_some() {
        return Ok(None);
    }
    let own = |mark| calendar.carry_over(&zone, mark, &zone);
    let mut has = tx.prepare_cached(sql::HAS_OCCURRENCE)?;
    let from = own(state.created).later(own(state.mark));
    for due in calendar.after(&zone, from).take_while(|due| due.at <= now).take(DUE) {
        if !has.exists(rusqlite::params![row.id, due.occurrence()])? {
            return Ok(Some(due.at));
        }
    }
    Ok(None)
}

/// For how long the clock has been far behind the mark, if it is.
pub(super) fn behind(row: &ScheduleRow, now: DateTime<Utc>) -> Option<Duration> {
    let Schedule { calendar, zone, .. } = row.definition().ok()?;
    let mark = row.state(Duration::ZERO).ok()?.mark;
    let is_behind = clock(&calendar, &zone, mark, now) == Clock::Behind;
    is_behind.then(|| Duration::from_millis(u64::try_from(row.behind_ms).unwrap_or(0)))
}

pub(super) fn waits(mark: &str, behind: Duration) -> String {
    let (hours, minutes) = (behind.as_secs() / 3_600, behind.as_secs() / 60 % 60);
    let believed = BELIEVED_AFTER.as_secs() / 3_600;
    format!(
        "the clock is behind the mark {mark}: what is on time runs, nothing is caught up. So far for {hours} h \
         {minutes} min; after {believed} h it is believed"
    )
}
