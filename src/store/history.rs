//! Everything that is known of one job, in one consistent read.

use rusqlite::OptionalExtension;
use serde::Serialize;

use super::Store;
use super::look::{Attempt, JobInfo, StepInfo, read_attempt, read_job, read_step};
use crate::act::{Touched, read_touched};
use crate::error::Result;
use crate::sql;

/// What is known of a job, without its payload ([`Store::payload`]).
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct History {
    /// The job as it stands.
    pub job: JobInfo,
    /// Its attempts that did not end well, oldest first: those before a replay too. A number that is not higher than the
    /// one before begins another count.
    pub attempts: Vec<Attempt>,
    /// What people did to it, oldest first.
    pub deeds: Vec<Touched>,
    /// Its steps whose output is stored, oldest first.
    pub steps: Vec<StepInfo>,
}

impl History {
    /// The first failure that is on record.
    ///
    /// ```
    /// # use birkez::{Context, Job, Runner, testing::{Drain, TempStore}};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { to: String }
    /// # impl Job for Mail {
    /// #     const KIND: &'static str = "mail";
    /// #     type Output = ();
    /// #     fn key(&self) -> String { self.to.clone() }
    /// # }
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = TempStore::new()?;
    /// # let store = folder.open()?;
    /// let mail = store.enqueue(&Mail { to: "a@b.c".into() })?;
    /// # let fails = |_: Mail, _: &Context| -> anyhow::Result<()> { anyhow::bail!("no route") };
    /// # Drain::new(Runner::builder(&store).handle(fails))?.drain()?;
    /// let history = store.history(mail.id)?.expect("it was enqueued");
    /// assert_eq!(history.first_failure().unwrap().failure.text, "no route");
    /// # Ok(())
    /// # }
    /// ```
    pub fn first_failure(&self) -> Option<&Attempt> {
        self.attempts.first()
    }

    /// The last failure that is on record.
    pub fn last_failure(&self) -> Option<&Attempt> {
        self.attempts.last()
    }
}

impl Store {
    /// Everything that is known of a job but its payload: how it stands, how each attempt failed, what people did to it, and
    /// what its steps have stored. `None` if there is no such job.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn history(&self, job: i64) -> Result<Option<History>> {
        self.read("looking at all that is known of a job", |tx| {
            let found = tx.prepare_cached(&sql::job_by_id())?.query_row([job], read_job).optional()?;
            let Some(found) = found else { return Ok(None) };
            Ok(Some(History {
                job: found,
                attempts: tx
                    .prepare_cached(sql::ATTEMPTS)?
                    .query_map([job], read_attempt)?
                    .collect::<rusqlite::Result<_>>()?,
                deeds: tx
                    .prepare_cached(sql::DEEDS_OF_JOB)?
                    .query_map([job], read_touched)?
                    .collect::<rusqlite::Result<_>>()?,
                steps: tx.prepare_cached(sql::STEPS)?.query_map([job], read_step)?.collect::<rusqlite::Result<_>>()?,
            }))
        })
    }
}
