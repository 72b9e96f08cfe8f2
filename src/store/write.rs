//! The calls that enqueue.

use std::path::Path;
use std::sync::Arc;

use rusqlite::Transaction;

use super::Store;
use crate::enqueue::{Answer, Compared, NewJob, Stored, ToCompare, compare, store};
use crate::error::{Error, Result};
use crate::job::{Enqueued, Job};
use crate::pen::{Act, Group, Mode, OpError, OpResult};

const ENQUEUE: Act = Act { name: "enqueue", instead: "enqueue_in with the transaction" };
const ENQUEUE_ALL: Act = Act { name: "enqueue_all", instead: "enqueue_in with the transaction, job by job" };
const WRITE: Act = Act { name: "store.write", instead: "the statements on the transaction that is open" };

impl Store {
    /// Stores `job` under its key, or answers what became of the one that is there.
    ///
    /// When this returns `Ok`, the job is kept: it survives the death of the process and, under
    /// [`Durability::Full`](crate::Durability::Full), the loss of power.
    ///
    /// # Errors
    ///
    /// [`Error::KeyReused`] if the key exists with other content; a refused name or payload; [`Error::Busy`],
    /// [`Error::DiskFull`], [`Error::OutcomeUnknown`], all safe to repeat. Inside a transaction closure it refuses with
    /// [`Error::InsideTransaction`].
    pub fn enqueue<J: Job>(&self, job: &J) -> Result<Enqueued<J::Output>> {
        let new = NewJob::encode(job, self.inner.payload_limit)?;
        let key = new.key.clone();
        let answers = self.store_all(ENQUEUE, Mode::default(), vec![new])?;
        Ok(answers[0].typed::<J>(&key))
    }

    /// Stores any number of jobs in one transaction, all or none.
    ///
    /// # Errors
    ///
    /// As [`enqueue`](Store::enqueue); if one job is refused, nothing of the call is stored.
    pub fn enqueue_all<'a, J: Job>(&self, jobs: impl IntoIterator<Item = &'a J>) -> Result<Vec<Enqueued<J::Output>>> {
        let limit = self.inner.payload_limit;
        let new: Vec<_> = jobs.into_iter().map(|job| NewJob::encode(job, limit)).collect::<Result<_>>()?;
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = new.iter().map(|job| job.key.clone()).collect();
        let answers = self.store_all(ENQUEUE_ALL, Mode { atomic: true, ..Mode::default() }, new)?;
        Ok(answers.iter().zip(&keys).map(|(answer, key)| answer.typed::<J>(key)).collect())
    }

    /// Stores `job` in the app's own transaction: the job exists if and only if that commits.
    ///
    /// `tx` may be of any connection to this file. It is as durable as that connection's settings make it.
    ///
    /// # Errors
    ///
    /// As [`enqueue`](Store::enqueue). [`Error::OtherFile`] if `tx` is of another file. In a transaction that has read
    /// before it writes, SQLite may refuse with [`Error::Busy`] at once: begin it with `IMMEDIATE`, or use
    /// [`write`](Store::write).
    pub fn enqueue_in<J: Job>(&self, tx: &Transaction<'_>, job: &J) -> Result<Enqueued<J::Output>> {
        let new = NewJob::encode(job, self.inner.payload_limit)?;
        if tx.path().map(Path::new) != Some(self.path()) {
            let (path, other) = (self.path().to_owned(), tx.path().unwrap_or_default().to_owned());
            return Err(Error::OtherFile { path, other });
        }
        let mut compared = Compared::new();
        loop {
            match self.store_in(tx, &new, &compared).map_err(|error| error.into_error("enqueue_in", self.path()))? {
                Stored::Answered(answer) => return Ok(answer.typed::<J>(&new.key)),
                Stored::MustCompare(question) => compare(vec![question], &mut compared),
            }
        }
    }

    /// The INSERT comes first: in a deferred transaction a SELECT in front of it could not be upgraded beside a writer.
    fn store_in(&self, tx: &Transaction<'_>, job: &NewJob, compared: &Compared) -> OpResult<Stored> {
        let mut group = Group::of_host(tx, self.path(), self.inner.clock.wall());
        tx.execute_batch("SAVEPOINT birkez_in")?;
        let stored = store(&mut group, job, compared, false).and_then(|stored| {
            group.check_version().map_err(OpError::Fault)?;
            Ok(stored)
        });
        let ending = if stored.is_ok() { "RELEASE birkez_in" } else { "ROLLBACK TO birkez_in; RELEASE birkez_in" };
        // After a full disk there is no transaction left to end.
        if !tx.is_autocommit() {
            tx.execute_batch(ending)?;
        }
        stored
    }

    /// Runs `f` in a write transaction of its own on this file, and commits it if `f` returns `Ok`.
    ///
    /// It begins `IMMEDIATE`, so that nothing in it meets a locked file. Inside it, enqueue with
    /// [`enqueue_in`](Store::enqueue_in); every other writing call of this store refuses at once.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// store.write(|tx| Ok(tx.execute_batch("CREATE TABLE note (text TEXT)")?))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Closure`] with the error of `f`; [`Error::TransactionEnded`] if `f` ended the transaction; otherwise as
    /// [`enqueue`](Store::enqueue). In each case nothing that `f` wrote is stored, but in the last but one.
    ///
    /// # Panics
    ///
    /// If `f` panics, after rolling back.
    pub fn write<T>(&self, f: impl FnOnce(&Transaction<'_>) -> anyhow::Result<T>) -> Result<T> {
        let pen = &self.inner.pen;
        let result = pen.write_here(WRITE, Mode { atomic: true, ..Mode::default() }, |group| {
            let result = pen.run_closure(group, WRITE, "store.write", f)?;
            group.undo = result.is_err();
            // What it enqueued may be due.
            group.claimable = true;
            Ok(result)
        })?;
        result.map_err(|error| Error::Closure { act: WRITE.name, source: error.into() })
    }

    pub(crate) fn store_all(&self, act: Act, mode: Mode, jobs: Vec<NewJob>) -> Result<Vec<Answer>> {
        self.write_compared(act, mode, move |group, compared| store_each(group, &jobs, compared))
    }

    /// Writes `op`. What only the user's code can compare is compared without the pen, and then it is written again.
    pub(crate) fn write_compared<T, F>(&self, act: Act, mode: Mode, op: F) -> Result<T>
    where
        T: Send + 'static,
        F: Fn(&mut Group<'_>, &Compared) -> OpResult<Written<T>> + Send + Sync + 'static,
    {
        let op = Arc::new(op);
        let mut compared = Compared::new();
        loop {
            let (op, known) = (Arc::clone(&op), std::mem::take(&mut compared));
            let (written, known) = self.inner.pen.write(act, mode, move |group| {
                let written = op(group, &known)?;
                group.undo = written.is_err();
                Ok((written, known))
            })?;
            compared = known;
            match written {
                Ok(value) => return Ok(value),
                Err(questions) => compare(questions, &mut compared),
            }
        }
    }
}

/// What was written, or what must be compared before it can be.
pub(crate) type Written<T> = std::result::Result<T, Vec<ToCompare>>;

fn store_each(group: &mut Group<'_>, jobs: &[NewJob], compared: &Compared) -> OpResult<Written<Vec<Answer>>> {
    let mut answers = Vec::with_capacity(jobs.len());
    let mut questions = Vec::new();
    for job in jobs {
        match store(group, job, compared, false)? {
            Stored::Answered(answer) => answers.push(*answer),
            Stored::MustCompare(question) => questions.push(question),
        }
    }
    Ok(if questions.is_empty() { Ok(answers) } else { Err(questions) })
}
