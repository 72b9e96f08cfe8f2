//! Looking at jobs.

use chrono::{DateTime, Utc};
use rusqlite::{OptionalExtension, Row};
use serde::Serialize;

use super::Store;
use crate::context::Progress;
use crate::enqueue::text;
use crate::error::Result;
use crate::failure::Class;
use crate::job::{Failure, instant};
use crate::sql;
use crate::state::{JobRef, State};

/// A job as it stands, without its payload.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct JobInfo {
    /// Its number in the file.
    pub id: i64,
    /// Its kind, under the name it was stored with.
    pub kind: String,
    /// Its key.
    pub key: String,
    /// What people call it.
    pub label: Option<String>,
    /// Where it is in its life.
    pub state: State,
    /// When it runs, or ran, next: now, later, or after a failure.
    pub run_at: DateTime<Utc>,
    /// Larger is sooner.
    pub priority: i64,
    /// Attempts charged to it.
    pub attempts: u32,
    /// What it is parked for.
    pub parked_for: Option<String>,
    /// Its last failure, also when it has succeeded since.
    pub last_failure: Option<Failure>,
    /// When it was enqueued. `None` for a plain INSERT that no runner has looked at yet.
    pub created_at: Option<DateTime<Utc>>,
    /// What enqueued it, in words: an app, a job, a schedule. `None` for a plain INSERT.
    pub origin: Option<String>,
    /// When it came to an end.
    pub finished_at: Option<DateTime<Utc>>,
    /// Since when it runs, if it does.
    pub running_since: Option<DateTime<Utc>>,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// The job at the head of its line, if it waits behind it. For the head itself, which has come back in front of a job
    /// that runs: that one.
    pub behind: Option<i64>,
    /// Its version within its ordering key.
    pub version: Option<i64>,
    /// When a process died that held it, if it has not been settled since.
    pub suspect_since: Option<DateTime<Utc>>,
    /// It belongs to the callers of [`Store::once`]: no runner claims it.
    pub for_callers: bool,
    /// What the world outside tells repeats by. `None` for a plain INSERT that has not been claimed yet.
    pub idempotency_key: Option<String>,
    /// The job that it corrects.
    pub corrects: Option<JobRef>,
    /// How far it says that it is, or was when it ended.
    pub progress: Option<Progress>,
    /// When a person handed it to support, if it has not gone on since.
    pub handed_to_support: Option<DateTime<Utc>>,
    /// It runs and is asked to stop.
    pub is_stopping: bool,
}

impl JobInfo {
    /// The line that it stands in: one that belongs to callers stands in none.
    pub(crate) fn line(&self) -> Option<&str> {
        self.ordering_key.as_deref().filter(|_| !self.for_callers)
    }
}

/// A step of a job that is not run again.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct StepInfo {
    /// Its name.
    pub name: String,
    /// What it has stored, as JSON.
    pub output: String,
    /// When.
    pub at: DateTime<Utc>,
}

/// An attempt that did not end well.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Attempt {
    /// Its number, from 1. An uncharged one has the number of the attempt after it.
    pub number: u32,
    /// How it failed.
    pub failure: Failure,
    /// Whether it counts against the job's attempts.
    pub charged: bool,
    /// When it was claimed.
    pub started_at: DateTime<Utc>,
    /// When it ended, or was found to have ended.
    pub ended_at: DateTime<Utc>,
}

impl Store {
    /// The job with this number.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn job(&self, id: i64) -> Result<Option<JobInfo>> {
        self.read("looking at a job", |tx| tx.prepare_cached(&sql::job_by_id())?.query_row([id], read_job).optional())
    }

    /// The job of `kind` with this key. Former names of the kind are not asked.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// assert!(store.find("mail", "invoice-17")?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn find(&self, kind: &str, key: &str) -> Result<Option<JobInfo>> {
        self.read("looking for a job", |tx| {
            tx.prepare_cached(&sql::job_by_name())?.query_row([kind, key], read_job).optional()
        })
    }

    /// The attempts of a job that did not end well, oldest first.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn attempts(&self, id: i64) -> Result<Vec<Attempt>> {
        self.read("looking at a job's attempts", |tx| {
            tx.prepare_cached(sql::ATTEMPTS)?.query_map([id], read_attempt)?.collect()
        })
    }

    /// The jobs that correct a job, oldest first.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn corrections(&self, id: i64) -> Result<Vec<JobRef>> {
        let row = |row: &Row<'_>| Ok(JobRef { id: row.get(0)?, state: State::stored(row.get(1)?, row.get(2)?) });
        self.read("looking at a job's corrections", |tx| {
            tx.prepare_cached(sql::CORRECTED_BY)?.query_map([id], row)?.collect()
        })
    }

    /// The steps of a job whose output is stored, oldest first.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn steps(&self, id: i64) -> Result<Vec<StepInfo>> {
        self.read("looking at a job's steps", |tx| tx.prepare_cached(sql::STEPS)?.query_map([id], read_step)?.collect())
    }

    /// How many jobs of each kind came to an end, by state. Counted as they end, not scanned.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn finished(&self) -> Result<Vec<(String, State, i64)>> {
        self.read("counting finished jobs", |tx| {
            let row = |row: &Row<'_>| Ok((row.get(0)?, State::stored(row.get(1)?, false), row.get(2)?));
            tx.prepare_cached(sql::COUNTS)?.query_map([], row)?.collect()
        })
    }
}

pub(crate) fn read_job(row: &Row<'_>) -> rusqlite::Result<JobInfo> {
    let state = State::stored(row.get(3)?, row.get(4)?);
    let class: Option<String> = row.get(9)?;
    let created: i64 = row.get(11)?;
    let said: Option<String> = row.get(10)?;
    Ok(JobInfo {
        id: row.get(0)?,
        kind: row.get(1)?,
        key: text(row, 2)?.unwrap_or_default(),
        label: text(row, 27)?,
        origin: text(row, 28)?,
        state,
        run_at: instant(row.get(5)?),
        priority: row.get(6)?,
        attempts: row.get(7)?,
        parked_for: row.get(8)?,
        last_failure: class.map(|class| Failure { class: Class::stored(&class), text: said.unwrap_or_default() }),
        created_at: (created != 0).then(|| instant(created)),
        finished_at: row.get::<_, Option<i64>>(12)?.map(instant),
        running_since: row.get::<_, Option<i64>>(13)?.map(instant),
        ordering_key: row.get(14)?,
        behind: row.get(26)?,
        version: row.get(15)?,
        suspect_since: row.get::<_, Option<i64>>(16)?.map(instant),
        for_callers: row.get(17)?,
        idempotency_key: text(row, 18)?,
        corrects: corrected(row)?,
        progress: progress(row)?,
        handed_to_support: row.get::<_, Option<i64>>(29)?.map(instant),
        is_stopping: row.get::<_, Option<bool>>(30)?.unwrap_or(false),
    })
}

pub(super) fn read_step(row: &Row<'_>) -> rusqlite::Result<StepInfo> {
    Ok(StepInfo { name: row.get(0)?, output: text(row, 1)?.unwrap_or_default(), at: instant(row.get(2)?) })
}

fn corrected(row: &Row<'_>) -> rusqlite::Result<Option<JobRef>> {
    let (id, state): (Option<i64>, Option<i64>) = (row.get(19)?, row.get(20)?);
    let leased = row.get(21)?;
    Ok(id.zip(state).map(|(id, state)| JobRef { id, state: State::stored(state, leased) }))
}

fn progress(row: &Row<'_>) -> rusqlite::Result<Option<Progress>> {
    let Some(done) = row.get::<_, Option<i64>>(22)? else { return Ok(None) };
    let count = |n: i64| u64::try_from(n).unwrap_or(0);
    let note = text(row, 24)?.unwrap_or_default();
    Ok(Some(Progress { done: count(done), total: count(row.get(23)?), note, at: instant(row.get(25)?) }))
}

pub(super) fn read_attempt(row: &Row<'_>) -> rusqlite::Result<Attempt> {
    let class: String = row.get(1)?;
    Ok(Attempt {
        number: row.get(0)?,
        failure: Failure { class: Class::stored(&class), text: row.get(2)? },
        charged: row.get(3)?,
        started_at: instant(row.get(4)?),
        ended_at: instant(row.get(5)?),
    })
}
