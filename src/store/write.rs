//! The calls that enqueue.

use std::path::Path;
use std::sync::Arc;

use rusqlite::Transaction;

use super::Store;
use crate::clock::Stopwatch;
use crate::context::Fence;
use crate::enqueue::{Answer, Compared, NewJob, Stored, ToCompare, compare, store};
use crate::error::{Error, Result};
use crate::job::{Enqueued, EnqueuedIn, Job};
use crate::pen::{Act, Group, Mode, OpError, OpResult};
use crate::sql;

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
        self.enqueue_one(ENQUEUE, Mode::default(), job, None)
    }

    /// With a fence for a handler, whose children exist only while its job is its own.
    pub(crate) fn enqueue_one<J: Job>(
        &self,
        act: Act,
        mode: Mode,
        job: &J,
        fence: Option<Fence>,
    ) -> Result<Enqueued<J::Output>> {
        let new = self.new_job(job, fence.as_ref())?;
        let key = new.key.clone();
        let answers = self.store_all(act, mode, vec![new], fence)?;
        Ok(answers[0].typed::<J>(&key))
    }

    /// Stores any number of jobs in one transaction, all or none.
    ///
    /// # Errors
    ///
    /// As [`enqueue`](Store::enqueue); if one job is refused, nothing of the call is stored.
    pub fn enqueue_all<'a, J: Job>(&self, jobs: impl IntoIterator<Item = &'a J>) -> Result<Vec<Enqueued<J::Output>>> {
        let terms = &self.inner.terms;
        let new: Vec<_> = jobs.into_iter().map(|job| NewJob::encode(job, terms)).collect::<Result<_>>()?;
        if new.is_empty() {
            return Ok(Vec::new());
        }
        let keys: Vec<_> = new.iter().map(|job| job.key.clone()).collect();
        let answers = self.store_all(ENQUEUE_ALL, Mode { atomic: true, ..Mode::default() }, new, None)?;
        Ok(answers.iter().zip(&keys).map(|(answer, key)| answer.typed::<J>(key)).collect())
    }

    /// Stores `job` in the app's own transaction: the job exists if and only if that commits.
    ///
    /// `tx` may be of any connection to this file. The job is as durable as that connection's settings make it. Runners of
    /// this process start it within a few milliseconds of the COMMIT, if that comes within a second; others find it at
    /// their usual pace. It is an INSERT: what `tx.last_insert_rowid()` says afterwards is not of the app's last row, so ask
    /// for that before.
    ///
    /// ```
    /// # use birkez::Job;
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Receipt { sale: i64 }
    /// # impl Job for Receipt {
    /// #     const KIND: &'static str = "receipt";
    /// #     type Output = ();
    /// #     fn key(&self) -> String { self.sale.to_string() }
    /// # }
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// # store.write(|tx| Ok(tx.execute_batch("CREATE TABLE sale (id INTEGER PRIMARY KEY, minor INTEGER)")?))?;
    /// use birkez::rusqlite::{Connection, TransactionBehavior};
    /// let mut app = Connection::open(store.path())?;
    /// app.busy_timeout(std::time::Duration::from_secs(5))?;
    /// let tx = app.transaction_with_behavior(TransactionBehavior::Immediate)?;
    /// tx.execute("INSERT INTO sale (minor) VALUES (1250)", [])?;
    /// let receipt = store.enqueue_in(&tx, &Receipt { sale: tx.last_insert_rowid() })?;
    /// assert!(receipt.is_fresh());
    /// tx.commit()?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`enqueue`](Store::enqueue). [`Error::OtherFile`] if `tx` is of another file; [`Error::TransactionEnded`] if it
    /// has ended. A transaction that has read before
    /// it writes cannot go on if another connection has written since: [`Error::StaleTransaction`], or [`Error::Busy`] while
    /// that one is still at it. Roll it back and run it again, begun with `IMMEDIATE`; [`write`](Store::write) is the easy
    /// way.
    pub fn enqueue_in<J: Job>(&self, tx: &Transaction<'_>, job: &J) -> Result<EnqueuedIn<J::Output>> {
        self.insert_in("enqueue_in", tx, job, None)
    }

    pub(crate) fn insert_in<J: Job>(
        &self,
        act: &'static str,
        tx: &Transaction<'_>,
        job: &J,
        fence: Option<&Fence>,
    ) -> Result<EnqueuedIn<J::Output>> {
        let new = self.new_job(job, fence)?;
        if tx.path().map(Path::new) != Some(self.path()) {
            let (path, other) = (self.path().to_owned(), tx.path().unwrap_or_default().to_owned());
            return Err(Error::OtherFile { path, other });
        }
        if tx.is_autocommit() {
            return Err(Error::TransactionEnded { act });
        }
        let waited = Stopwatch::start();
        let mut compared = Compared::new();
        let answer = loop {
            match self.store_in(tx, &new, &compared, fence) {
                Ok(Stored::Answered(answer)) => break answer,
                Ok(Stored::MustCompare(question)) => compare(vec![question], &mut compared),
                Err(OpError::Refused(Error::KeyReused { kind, key, mut existing })) => {
                    existing.id = if self.is_committed(act, existing.id)? { existing.id } else { 0 };
                    return Err(Error::KeyReused { kind, key, existing });
                }
                Err(OpError::Sql(error)) if is_stale(&error) => return Err(Error::StaleTransaction { act }),
                Err(error) => return Err(error.into_error(act, self.path(), waited)),
            }
        };
        if answer.fresh {
            self.inner.pen.expect(answer.id, answer.row.run_at);
            return Ok(EnqueuedIn::Fresh);
        }
        // One that this very transaction has stored has no number yet that could be shown.
        let committed = self.is_committed(act, answer.id)?;
        Ok(if committed { EnqueuedIn::Existing(answer.typed::<J>(&new.key)) } else { EnqueuedIn::Fresh })
    }

    fn new_job<J: Job>(&self, job: &J, fence: Option<&Fence>) -> Result<NewJob> {
        let mut new = NewJob::encode(job, &self.inner.terms)?;
        if let Some(fence) = fence {
            new.origin = fence.origin();
        }
        Ok(new)
    }

    fn is_committed(&self, act: &'static str, job: i64) -> Result<bool> {
        self.read(act, |tx| tx.prepare_cached(sql::IS_THERE)?.query_row([job], |row| row.get(0)))
    }

    /// The INSERT comes first: in a deferred transaction a SELECT in front of it could not be upgraded beside a writer.
    fn store_in(
        &self,
        tx: &Transaction<'_>,
        job: &NewJob,
        compared: &Compared,
        fence: Option<&Fence>,
    ) -> OpResult<Stored> {
        let mut group = Group::of_host(tx, self.path(), self.inner.clock.wall());
        if self.inner.pen.is_held_here() {
            group.listening = self.inner.pen.teller().listening();
        }
        tx.execute_batch("SAVEPOINT birkez_in")?;
        let stored = store(&mut group, job, compared, false).and_then(|stored| {
            group.check_version().map_err(OpError::Fault)?;
            fence.map_or(Ok(()), |fence| fence.check(&group))?;
            Ok(stored)
        });
        let ending = if stored.is_ok() { "RELEASE birkez_in" } else { "ROLLBACK TO birkez_in; RELEASE birkez_in" };
        // After a full disk there is no transaction left to end.
        if !tx.is_autocommit() {
            tx.execute_batch(ending)?;
        }
        if stored.is_ok() {
            self.inner.pen.keep_news(group.news);
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

    fn store_all(&self, act: Act, mode: Mode, jobs: Vec<NewJob>, fence: Option<Fence>) -> Result<Vec<Answer>> {
        self.write_compared(act, mode, move |group, compared| {
            fence.as_ref().map_or(Ok(()), |fence| fence.check(group))?;
            store_each(group, &jobs, compared)
        })
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

/// Whether a transaction has read what is no longer the newest, so that it can never write.
fn is_stale(error: &rusqlite::Error) -> bool {
    error.sqlite_error().is_some_and(|error| error.extended_code == rusqlite::ffi::SQLITE_BUSY_SNAPSHOT)
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
