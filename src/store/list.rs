//! Listing jobs, page by page.

use rusqlite::types::Value;
use rusqlite::{OptionalExtension, params_from_iter};

use super::look::read_job;
use super::{Filter, JobInfo, Store};
use crate::enqueue::text;
use crate::error::Result;
use crate::failure::Class;
use crate::sql;

/// A part of a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Page {
    /// Only jobs with a number below this: the last one of the page before. `None` for the first page.
    pub below: Option<i64>,
    /// How many at most.
    pub limit: u32,
}

impl Page {
    /// The newest `limit` jobs.
    pub fn first(limit: u32) -> Page {
        Page { below: None, limit }
    }

    /// The page after one that ended with `last`.
    ///
    /// ```
    /// # use birkez::{Filter, Page};
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// let mut page = Page::first(50);
    /// loop {
    ///     let jobs = store.list(&Filter::dead(), page)?;
    ///     let Some(last) = jobs.last() else { break };
    ///     page = Page::after(last, 50);
    ///     for job in &jobs {
    ///         println!("{} {} {:?}", job.kind, job.key, job.last_failure);
    ///     }
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub fn after(last: &JobInfo, limit: u32) -> Page {
        Page { below: Some(last.id), limit }
    }
}

impl Store {
    /// The jobs that a filter means, newest first. Dead, parked and cancelled ones are found without a look at those that
    /// are done.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn list(&self, filter: &Filter, page: Page) -> Result<Vec<JobInfo>> {
        let (condition, mut values) = filter.condition();
        values.push(Value::Integer(page.below.unwrap_or(i64::MAX)));
        values.push(Value::Integer(page.limit.into()));
        let sql = sql::list_jobs(&condition, values.len());
        self.read("listing jobs", |tx| tx.prepare(&sql)?.query_map(params_from_iter(values), read_job)?.collect())
    }

    /// How many jobs a filter means, by the class of their last failure; those that never failed come first.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn count_by_class(&self, filter: &Filter) -> Result<Vec<(Option<Class>, u64)>> {
        let (condition, values) = filter.condition();
        let sql = sql::count_by_class(&condition);
        self.read("counting jobs by class", |tx| {
            let row = |row: &rusqlite::Row<'_>| {
                let (class, n): (Option<String>, i64) = (row.get(0)?, row.get(1)?);
                Ok((class.as_deref().map(Class::stored), u64::try_from(n).unwrap_or(0)))
            };
            tx.prepare(&sql)?.query_map(params_from_iter(values), row)?.collect()
        })
    }

    /// The payload of a job, as it is stored; `None` if it is retired, or there is no such job.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn payload(&self, job: i64) -> Result<Option<String>> {
        let payload = self.read("reading a payload", |tx| {
            tx.prepare_cached(sql::PAYLOAD)?.query_row([job], |row| text(row, 0)).optional()
        })?;
        Ok(payload.flatten())
    }
}
