//! Looking at schedules and at what they have made.

use chrono::{DateTime, Utc};
use rusqlite::Row;
use serde::Serialize;

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
}

pub(super) struct ScheduleRow {
    pub id: i64,
    pub name: String,
    pub calendar: String,
    pub zone: String,
    pub mark: String,
    pub failures: u32,
    pub error: Option<String>,
    pub try_at: Option<i64>,
}

pub(super) fn read_schedule(row: &Row<'_>) -> rusqlite::Result<ScheduleRow> {
    Ok(ScheduleRow {
        id: row.get(0)?,
        name: row.get(1)?,
        calendar: row.get(2)?,
        zone: row.get(3)?,
        mark: row.get(5)?,
        failures: row.get(6)?,
        error: row.get(7)?,
        try_at: row.get(9)?,
    })
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
        let info = |row: &Row<'_>| {
            let row = read_schedule(row)?;
            Ok(ScheduleInfo {
                name: row.name,
                calendar: row.calendar,
                zone: row.zone,
                mark: row.mark,
                error: row.error,
                failures: row.failures,
                try_at: row.try_at.map(instant),
            })
        };
        self.read("looking at schedules", |tx| tx.prepare_cached(sql::SCHEDULES)?.query_map([], info)?.collect())
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
            })
        };
        self.read("looking at occurrences", |tx| {
            tx.prepare_cached(sql::OCCURRENCES)?.query_map(rusqlite::params![schedule, limit], info)?.collect()
        })
    }
}
