//! Looking at schedules and at what they have made.

use chrono::{DateTime, Utc};
use rusqlite::{OptionalExtension, Row};
use serde::Serialize;

use super::row::ScheduleRow;
use crate::error::Result;
use crate::job::instant;
use crate::sql;
use crate::store::Store;

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
    /// The newest occurrence that ran.
    pub last_run: Option<String>,
    /// The newest occurrence with a job that is done, and when that was.
    pub last_success: Option<(String, DateTime<Utc>)>,
    /// When it is due next, as far as its definition can be read and it is neither paused nor orphaned.
    pub next: Option<DateTime<Utc>>,
    /// Whether a person should look: it cannot make its jobs, or has dropped occurrences that it was asked to run.
    pub needs_attention: bool,
}

/// What was asked of a schedule, and what came of it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct RequestInfo {
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
    /// What came of it.
    pub answer: Option<String>,
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
    /// Why: `newer` (a newer one ran in their place), `skipped`, `over_max`, `too_old`, `overlap`, `paused`.
    pub reason: String,
    /// When this was recorded.
    pub at: DateTime<Utc>,
    /// Whether a person should look.
    pub needs_attention: bool,
}

/// What a schedule has made of one occurrence.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OccurrenceInfo {
    /// Its id, unique with the schedule.
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
        self.read("looking at schedules", |tx| {
            let rows: Vec<ScheduleRow> = tx
                .prepare_cached(sql::SCHEDULES)?
                .query_map([], ScheduleRow::read)?
                .collect::<rusqlite::Result<_>>()?;
            rows.into_iter().map(|row| info(tx, row, now)).collect()
        })
    }

    /// What was asked of a schedule, newest first, at most `limit`.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn schedule_requests(&self, schedule: &str, limit: u32) -> Result<Vec<RequestInfo>> {
        let info = |row: &Row<'_>| {
            Ok(RequestInfo {
                verb: row.get(0)?,
                first: row.get(1)?,
                last: row.get(2)?,
                asked_at: instant(row.get(3)?),
                done_at: row.get::<_, Option<i64>>(4)?.map(instant),
                answer: row.get(5)?,
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
                needs_attention: row.get(5)?,
            })
        };
        self.read("looking at missed occurrences", |tx| {
            tx.prepare_cached(sql::MISSED)?.query_map(rusqlite::params![schedule, limit], info)?.collect()
        })
    }

    /// The newest occurrences that a schedule has made, newest first, at most `limit`.
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

fn info(tx: &rusqlite::Transaction<'_>, row: ScheduleRow, now: DateTime<Utc>) -> rusqlite::Result<ScheduleInfo> {
    let success = |row: &Row<'_>| Ok((row.get(0)?, instant(row.get(1)?)));
    let last_success = tx.prepare_cached(sql::LAST_SUCCESS)?.query_row([row.id], success).optional()?;
    let dropped: bool = tx.prepare_cached(sql::NEEDS_ATTENTION)?.query_row([row.id], |row| row.get(0))?;
    let definition = row.definition();
    let idle = row.paused_at.is_some() || row.orphaned_at.is_some();
    let next = definition.as_ref().ok().filter(|_| !idle);
    let next = next.and_then(|schedule| schedule.calendar.next(&schedule.zone, now)).map(|due| due.at);
    let error = row.error.or(definition.err());
    Ok(ScheduleInfo {
        needs_attention: dropped || error.is_some() || row.orphaned_at.is_some(),
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
        next,
    })
}
