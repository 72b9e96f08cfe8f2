//! What a handler is given beside its job.

use std::any::TypeId;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rusqlite::Transaction;
use serde::Serialize;

use crate::error::Error;
use crate::outcome::{Ended, Facts, Output, decide};
use crate::pen::{Act, Mode};
use crate::retry::RetryPolicy;
use crate::settle::{Claim, Settled, holds, settle};
use crate::store::Store;

const COMMIT: Act = Act { name: "cx.commit", instead: "the statements on the transaction that is open" };

/// The attempt that a handler is running: who it is, whether to stop, and the transaction that completes it.
pub struct Context {
    store: Store,
    pub(crate) claim: Arc<Claim>,
    pub(crate) flags: Arc<Flags>,
    output: TypeId,
}

/// What the attempt's handler and its runner tell each other.
#[derive(Debug, Default)]
pub(crate) struct Flags {
    /// The handler is asked to stop.
    pub cancelled: AtomicBool,
    /// Its result is not waited for any more.
    pub given_up: AtomicBool,
    /// `commit` has settled the attempt.
    pub settled: AtomicBool,
}

impl Context {
    pub(crate) fn new<T: 'static>(store: Store, claim: Arc<Claim>, flags: Arc<Flags>) -> Context {
        Context { store, claim, flags, output: TypeId::of::<T>() }
    }

    /// The job's number in the file.
    pub fn job_id(&self) -> i64 {
        self.claim.id
    }

    /// The job's kind.
    pub fn kind(&self) -> &str {
        &self.claim.kind
    }

    /// The job's key.
    pub fn key(&self) -> &str {
        &self.claim.key
    }

    /// Number of this attempt, from 1. Attempts that cost nothing (a snooze, a shutdown) do not count.
    pub fn attempt(&self) -> u32 {
        self.claim.attempt
    }

    /// The store that the job is in.
    pub fn store(&self) -> &Store {
        &self.store
    }

    /// Whether the handler should stop: its time is over, its runner stops, or its lease is lost. Whatever it returns
    /// then is not used.
    pub fn is_cancelled(&self) -> bool {
        self.flags.cancelled.load(Ordering::Acquire) || self.claim.owner.is_lost()
    }

    /// Writes the handler's rows and the completion of the job in one transaction: both are stored, or neither.
    ///
    /// `f` runs in this thread, on birkez's own connection to the file, in an `IMMEDIATE` transaction; nothing in it
    /// meets a locked file. What `f` returns is the job's output: let the handler return it too. After a `commit` that
    /// returned `Ok` the job is done, whatever the handler does next. The writer lock is held while `f` runs, so
    /// slow work and calls over the network belong before it: after 5 s a statement is interrupted, and nothing is stored.
    /// Leave the connection's settings as they are: it is birkez's own.
    ///
    /// Inside `f` use the transaction that is given; every writing call of the store or of this context refuses with
    /// [`Error::InsideTransaction`].
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
        let (kind, key) = (self.claim.kind.clone(), self.claim.key.clone());
        if TypeId::of::<T>() != self.output {
            return Err(Error::OutputMismatch { kind, key }.into());
        }
        if self.flags.settled.load(Ordering::Acquire) {
            return Err(Error::AlreadySettled { kind, key }.into());
        }
        let pen = &self.store.inner.pen;
        let limit = self.store.inner.payload_limit;
        // `once` is synced whatever the durability.
        let mode = Mode { atomic: true, synced: self.claim.for_callers, ..Mode::default() };
        let about = format!("{} {} (job {})", kind.escape_debug(), key.escape_debug(), self.claim.id);
        let result = pen.write_here(COMMIT, mode, |group| {
            if self.flags.given_up.load(Ordering::Acquire) || !holds(group, &self.claim)? {
                return Err(self.lease_lost().into());
            }
            let value = match pen.run_closure(group, COMMIT, &about, f)? {
                Ok(value) => value,
                Err(error) => {
                    group.undo = true;
                    return Ok(Err(error));
                }
            };
            let settlement = decide(Ended::Done(encode(&value, limit)), &facts(&self.claim, group.now));
            match settle(group, &self.claim, &settlement)? {
                Settled::Written => {
                    group.freed += 1;
                    Ok(Ok(value))
                }
                Settled::LeaseLost => Err(self.lease_lost().into()),
            }
        })?;
        if result.is_ok() {
            self.flags.settled.store(true, Ordering::Release);
        }
        result
    }

    /// The handler need not wait for the next beat to see that it should stop.
    fn lease_lost(&self) -> Error {
        self.flags.cancelled.store(true, Ordering::Release);
        Error::LeaseLost { kind: self.claim.kind.clone(), key: self.claim.key.clone() }
    }
}

impl std::fmt::Debug for Context {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Context")
            .field("job", &self.claim.id)
            .field("attempt", &self.claim.attempt)
            .finish_non_exhaustive()
    }
}

/// For an ending that depends on no policy.
fn facts(claim: &Claim, now: i64) -> Facts<'static> {
    static NONE: std::sync::LazyLock<RetryPolicy> = std::sync::LazyLock::new(RetryPolicy::default);
    Facts { attempt: claim.attempt, since: claim.since, now, deadline: claim.deadline, policy: &NONE, random: 0.0 }
}

/// The output as it is stored. A serialiser that fails or panics does not undo what was done.
pub(crate) fn encode<T: Serialize>(value: &T, limit: usize) -> Output {
    match catch_unwind(AssertUnwindSafe(|| serde_json::to_string(value))) {
        Ok(Ok(json)) if json.len() <= limit => Output::Stored(json),
        Ok(Ok(_)) => Output::NotStored("too_large"),
        Ok(Err(_)) | Err(_) => Output::NotStored("unserialisable"),
    }
}
