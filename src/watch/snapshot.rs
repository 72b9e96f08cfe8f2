//! How things stand, in one consistent view.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use rusqlite::Transaction;
use serde::Serialize;

use crate::error::Result;
use crate::job::instant;
use crate::sql;
use crate::store::{JobInfo, Store, read_job};

/// How things stand at one moment, in the piles that a user interface shows: what needs attention, what is at work, what is
/// completed. Made by [`Store::snapshot`].
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Snapshot {
    /// When it was taken.
    pub at: DateTime<Utc>,
    /// How many jobs there are in each state.
    pub counts: Counts,
    /// Dead and parked jobs, newest first.
    pub attention: Vec<JobInfo>,
    /// Names of the schedules that need attention ([`ScheduleInfo::needs_attention`](crate::ScheduleInfo)).
    pub schedules: Vec<String>,
    /// All that run, in all processes, longest first, with their progress.
    pub running: Vec<JobInfo>,
    /// What failed and will be retried, soonest first, as far as it is among the 1,000 jobs that are due next.
    pub retrying: Vec<JobInfo>,
    /// What was done last, as far as it is among the 1,000 newest jobs.
    pub completed: Vec<JobInfo>,
}

/// How many jobs there are in each state. Their sum is all jobs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Counts {
    /// With a time to run.
    pub waiting: u64,
    /// With a worker.
    pub running: u64,
    /// Waiting for a person or a signal.
    pub parked: u64,
    /// Completed.
    pub done: u64,
    /// Given up.
    pub dead: u64,
    /// Called off.
    pub cancelled: u64,
}

impl Counts {
    /// What has yet to come to an end without anybody's help: what waits and what runs.
    pub fn unfinished(&self) -> u64 {
        self.waiting + self.running
    }
}

impl Store {
    /// How things stand now, read in one view, with at most `most` jobs in each list but that of the running ones, which
    /// holds all. What is finished is counted as it ends, not scanned.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// let now = store.snapshot(20)?;
    /// println!("{} jobs running: they go on at the next start", now.counts.running);
    /// for job in &now.running {
    ///     println!("  {} {} {:?}", job.kind, job.key, job.progress);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn snapshot(&self, most: u32) -> Result<Snapshot> {
        let at = instant(self.inner.clock.wall());
        self.read("taking a snapshot", |tx| {
            let jobs = |sql: &str| -> rusqlite::Result<Vec<JobInfo>> {
                tx.prepare_cached(sql)?.query_map([most], read_job)?.collect()
            };
            let mut attention = jobs(&sql::newest_dead())?;
            attention.extend(jobs(&sql::newest_parked())?);
            attention.sort_by_key(|job| std::cmp::Reverse(job.id));
            attention.truncate(usize::try_from(most).unwrap_or(usize::MAX));
            Ok(Snapshot {
                at,
                counts: counts(tx)?,
                attention,
                schedules: crate::schedule::troubled(tx)?,
                running: tx.prepare_cached(&sql::running_jobs())?.query_map([], read_job)?.collect::<Result<_, _>>()?,
                retrying: jobs(&sql::retrying_jobs())?,
                completed: jobs(&sql::completed_jobs())?,
            })
        })
    }
}

fn counts(tx: &Transaction<'_>) -> rusqlite::Result<Counts> {
    let whole = |n: i64| u64::try_from(n).unwrap_or(0);
    let row = |row: &rusqlite::Row<'_>| Ok((whole(row.get(0)?), whole(row.get(1)?), whole(row.get(2)?)));
    let (open, running, parked) = tx.prepare_cached(sql::COUNT_OPEN)?.query_row([], row)?;
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, whole(row.get(1)?)));
    let finished: BTreeMap<i64, u64> =
        tx.prepare_cached(sql::COUNT_FINISHED)?.query_map([], row)?.collect::<rusqlite::Result<_>>()?;
    let of = |state| finished.get(&state).copied().unwrap_or(0);
    Ok(Counts { waiting: open.saturating_sub(running), running, parked, done: of(2), dead: of(3), cancelled: of(4) })
}
