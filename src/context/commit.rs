//! What a handler writes in the database, fenced by its lease.

use std::any::TypeId;
use std::sync::atomic::Ordering;

use rusqlite::Transaction;
use serde::Serialize;

use super::{Context, encode, write_progress};
use crate::error::{Error, Result};
use crate::job::{Enqueued, EnqueuedIn, Job};
use crate::outcome::{Ended, decide};
use crate::pen::{Act, Group, OpResult};
use crate::retry::RetryPolicy;
use crate::settle::{Settled, settle};

const COMMIT: Act = Act { name: "cx.commit", instead: "the statements on the transaction that is open" };
const TRANSACTION: Act = Act { name: "cx.transaction", instead: "the statements on the transaction that is open" };
const ENQUEUE: Act = Act { name: "cx.enqueue", instead: "cx.enqueue_in with the transaction" };

impl Context {
    /// Writes the handler's rows and the completion of the job in one transaction: both are stored, or neither.
    ///
    /// `f` runs in this thread, on birkez's own connection to the file, in an `IMMEDIATE` transaction; nothing in it
    /// meets a locked file. What `f` returns is the job's output: let the handler return it too. After a `commit` that
    /// returned `Ok` the job is done, whatever the handler does next. The writer lock is held while `f` runs, so
    /// slow work and calls over the network belong before it: after 5 s a statement is interrupted, and nothing is stored.
    /// Leave the connection's settings as they are: it is birkez's own.
    ///
    /// Inside `f` use the transaction that is given, and [`enqueue_in`](Context::enqueue_in) for what is to follow; every
    /// other writing call of the store or of this context refuses with [`Error::InsideTransaction`].
    ///
    /// # Errors
    ///
    /// The error of `f`, and then nothing that it wrote is stored; [`Error::LeaseLost`] if the job is not this worker's
    /// any more; [`Error::OutputMismatch`] if `f` does not return the job's `Output`; the errors of writing the file. An
    /// output that cannot be stored is no error: the job is done and its output is marked as not stored.
    ///
    /// # Panics
    ///
    /// If `f` panics, after rolling back.
    pub fn commit<T: Serialize + 'static>(
        &self,
        f: impl FnOnce(&Transaction<'_>) -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        if TypeId::of::<T>() != self.output {
            return Err(Error::OutputMismatch { kind: self.claim.kind.clone(), key: self.claim.key.clone() }.into());
        }
        let limit = self.store.inner.terms.payload_limit;
        let result = self.write_fenced(COMMIT, f, |group, value| {
            if let Some(noted) = self.flags.progress.take() {
                write_progress(group, &self.claim, &noted)?;
            }
            let policy = RetryPolicy::default();
            let facts = self.claim.facts(&policy, group.now, 0.0);
            let settlement = decide(Ended::Done(encode(&value, limit)), &facts);
            match settle(group, &self.claim, settlement)? {
                Settled::Written => {
                    group.freed += 1;
                    Ok(value)
                }
                Settled::LeaseLost => Err(self.fence().lost().into()),
            }
        });
        if result.is_ok() {
            self.flags.settled.store(true, Ordering::Release);
        }
        result
    }

    /// Writes rows in the middle of a job, in one transaction that is stored only while the job is this worker's.
    ///
    /// A later attempt finds what an earlier one has written so: it is a checkpoint, and the job's own business to go on
    /// from. As [`commit`](Context::commit) otherwise, which completes the job too and is to be preferred where it will do.
    ///
    /// ```
    /// # use birkez::{Context, Job, Runner, testing::{Drain, TempStore}};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Import { file: String }
    /// # impl Job for Import {
    /// #     const KIND: &'static str = "import";
    /// #     type Output = ();
    /// #     fn key(&self) -> String { self.file.clone() }
    /// # }
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = TempStore::new()?;
    /// # let store = folder.open()?;
    /// # store.write(|tx| Ok(tx.execute_batch("CREATE TABLE line (file TEXT, n INTEGER, PRIMARY KEY (file, n))")?))?;
    /// let import = |job: Import, cx: &Context| {
    ///     for page in 0..3_u32 {
    ///         cx.transaction(|tx| Ok(tx.execute("INSERT OR IGNORE INTO line VALUES (?1, ?2)", (&job.file, page))?))?;
    ///         cx.progress(u64::from(page) + 1, 3, "pages")?;
    ///     }
    ///     Ok(())
    /// };
    /// # let _ = store.enqueue(&Import { file: "a.csv".into() })?;
    /// # Drain::new(Runner::builder(&store).handle(import))?.drain()?;
    /// # assert_eq!(store.find("import", "a.csv")?.unwrap().state, birkez::State::Done);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`commit`](Context::commit); [`Error::AlreadySettled`] after it.
    ///
    /// # Panics
    ///
    /// If `f` panics, after rolling back.
    pub fn transaction<T>(&self, f: impl FnOnce(&Transaction<'_>) -> anyhow::Result<T>) -> anyhow::Result<T> {
        self.write_fenced(TRANSACTION, f, |_, value| Ok(value))
    }

    /// Runs `f` and then `finish` in one transaction, if the attempt still holds its job.
    fn write_fenced<T, U>(
        &self,
        act: Act,
        f: impl FnOnce(&Transaction<'_>) -> anyhow::Result<T>,
        finish: impl FnOnce(&mut Group<'_>, T) -> OpResult<U>,
    ) -> anyhow::Result<U> {
        self.refuse(act)?;
        let claim = &self.claim;
        let about = format!("{} {} (job {})", claim.kind.escape_debug(), claim.key.escape_debug(), claim.id);
        let pen = &self.store.inner.pen;
        pen.write_here(act, self.mode(), |group| {
            self.fence().check(group)?;
            match pen.run_closure(group, act, &about, f)? {
                Ok(value) => finish(group, value).map(Ok),
                Err(error) => {
                    group.undo = true;
                    Ok(Err(error))
                }
            }
        })?
    }

    /// Stores a job that follows from this one. It is stored only while this one is this worker's, so that a worker whose
    /// job was taken over leaves no children.
    ///
    /// # Errors
    ///
    /// As [`Store::enqueue`](crate::Store::enqueue); [`Error::LeaseLost`]; [`Error::AlreadySettled`] after `commit`.
    pub fn enqueue<J: Job>(&self, job: &J) -> Result<Enqueued<J::Output>> {
        self.refuse(ENQUEUE)?;
        self.store.enqueue_one(ENQUEUE, self.mode(), job, Some(self.fence()))
    }

    /// As [`enqueue`](Context::enqueue), in a transaction that is open: the one of [`commit`](Context::commit) or
    /// [`transaction`](Context::transaction), or one of the app's own.
    ///
    /// A job too long for one go hands over to the next with it: what is done so far and the job that goes on from there are
    /// stored in one transaction.
    ///
    /// ```
    /// # use birkez::{Context, Job, Runner, testing::{Drain, TempStore}};
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Walk { from: u32 }
    /// impl Job for Walk {
    ///     const KIND: &'static str = "walk";
    ///     type Output = u32;
    ///     fn key(&self) -> String { format!("from-{}", self.from) }
    /// }
    /// # fn main() -> anyhow::Result<()> {
    /// let walk = |job: Walk, cx: &Context| {
    ///     let to = job.from + 100;
    ///     cx.commit(|tx| {
    ///         if to < 300 {
    ///             let _ = cx.enqueue_in(tx, &Walk { from: to })?;
    ///         }
    ///         Ok(to)
    ///     })
    /// };
    /// # let folder = TempStore::new()?;
    /// # let store = folder.open()?;
    /// # let _ = store.enqueue(&Walk { from: 0 })?;
    /// # assert_eq!(Drain::new(Runner::builder(&store).handle(walk))?.drain()?, 3);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`Store::enqueue_in`](crate::Store::enqueue_in); [`Error::LeaseLost`].
    pub fn enqueue_in<J: Job>(&self, tx: &Transaction<'_>, job: &J) -> Result<EnqueuedIn<J::Output>> {
        self.store.insert_in("cx.enqueue_in", tx, job, Some(&self.fence()))
    }
}
