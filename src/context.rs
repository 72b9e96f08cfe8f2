//! What a handler is given beside its job.

mod commit;
mod progress;
mod step;

use std::any::TypeId;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicI64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use serde::Serialize;

pub use self::progress::Progress;
use self::progress::Slot;
pub(crate) use self::progress::{Noted, note_progress, write_progress};
use self::step::Steps;
use crate::clock::millis;
use crate::error::{Error, Result};
use crate::failure::Class;
use crate::outcome::{Ended, Output};
use crate::pen::{Act, Group, Mode, OpResult};
use crate::settle::{Claim, holds, was_settled};
use crate::sql;
use crate::store::Store;

/// How often a caller of `once` looks whether it is to stop.
const LOOK: Duration = Duration::from_millis(50);

/// The attempt that a handler is running: who it is, whether to stop, and what it may write while it holds the job.
pub struct Context {
    store: Store,
    pub(crate) claim: Arc<Claim>,
    pub(crate) flags: Arc<Flags>,
    output: TypeId,
    steps: Steps,
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
    /// How far it says that it is.
    pub progress: Slot,
    /// Why the attempt must not be followed by another, whatever the handler makes of it.
    pub misused: OnceLock<String>,
    /// Monotonic milliseconds before which a caller of `once` does not look again whether it is to stop.
    look_at: AtomicI64,
}

impl Flags {
    /// What the attempt has ended as, if the handler has done what no repeat mends.
    pub(crate) fn judge(&self, ended: Ended) -> Ended {
        match (self.misused.get(), ended) {
            (None, ended) | (_, ended @ (Ended::Done(_) | Ended::Misused { .. })) => ended,
            (Some(text), _) => Ended::Misused { class: Class::Permanent, text: text.clone() },
        }
    }
}

/// What every write of an attempt is held to: the lease. Whoever has lost it changes nothing and is told so.
#[derive(Clone)]
pub(crate) struct Fence {
    claim: Arc<Claim>,
    flags: Arc<Flags>,
}

impl Fence {
    /// Whether the attempt still holds its job.
    pub(crate) fn check(&self, group: &Group<'_>) -> OpResult<()> {
        if self.flags.settled.load(Ordering::Acquire) {
            return Err(self.settled().into());
        }
        if self.flags.given_up.load(Ordering::Acquire) {
            return Err(self.lost().into());
        }
        if holds(group, &self.claim)? {
            return Ok(());
        }
        // Another thread of the handler's may have committed in this moment.
        let is_settled = was_settled(group, &self.claim)?;
        Err(if is_settled { self.settled() } else { self.lost() }.into())
    }

    /// What stands as the origin of the jobs that the attempt enqueues.
    pub(crate) fn origin(&self) -> String {
        format!("job {}", self.claim.id)
    }

    fn settled(&self) -> Error {
        Error::AlreadySettled { kind: self.claim.kind.clone(), key: self.claim.key.clone() }
    }

    /// The handler need not wait for the next beat to see that it should stop.
    fn lost(&self) -> Error {
        self.flags.cancelled.store(true, Ordering::Release);
        Error::LeaseLost { kind: self.claim.kind.clone(), key: self.claim.key.clone() }
    }
}

impl Context {
    pub(crate) fn new<T: 'static>(store: Store, claim: Arc<Claim>, flags: Arc<Flags>) -> Context {
        Context { store, claim, flags, output: TypeId::of::<T>(), steps: Steps::default() }
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

    /// Whether the handler should stop: its time is over, its runner stops, its lease is lost, or somebody has
    /// [cancelled](Store::cancel) the job. Whatever it returns then is not used; only a cancelled job that is done all the
    /// same is done.
    pub fn is_cancelled(&self) -> bool {
        self.flags.cancelled.load(Ordering::Acquire)
            || self.claim.owner.is_lost()
            || self.claim.for_callers && self.caller_is_asked()
    }

    /// A job of [`once`](Store::once) has no keeper that would tell it: it looks into the file, now and then.
    fn caller_is_asked(&self) -> bool {
        let now = millis(self.store.inner.clock.monotonic());
        if now < self.flags.look_at.load(Ordering::Acquire) {
            return false;
        }
        self.flags.look_at.store(now + millis(LOOK), Ordering::Release);
        let Claim { id, token, .. } = *self.claim;
        let asked = self.store.read("looking whether a job is to stop", |tx| {
            tx.prepare_cached(sql::IS_ASKED)?.query_row([id, token], |row| row.get(0))
        });
        // A file that cannot be read now is read at the next look.
        let asked = asked.unwrap_or(false);
        self.flags.cancelled.fetch_or(asked, Ordering::AcqRel);
        asked
    }

    fn fence(&self) -> Fence {
        Fence { claim: Arc::clone(&self.claim), flags: Arc::clone(&self.flags) }
    }

    /// What an attempt writes is synced where it must not be forgotten.
    fn mode(&self) -> Mode {
        Mode { atomic: true, synced: self.claim.for_callers || self.claim.at_most_once, ..Mode::default() }
    }

    /// Refuses a writing call inside a transaction closure, and one after the attempt was settled.
    fn refuse(&self, act: Act) -> Result<()> {
        if self.store.inner.pen.is_held_here() {
            return Err(Error::InsideTransaction { act: act.name, instead: act.instead });
        }
        if self.flags.settled.load(Ordering::Acquire) {
            return Err(self.fence().settled());
        }
        Ok(())
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

/// A value as it is stored. A serialiser that fails or panics does not undo what was done.
pub(crate) fn encode<T: Serialize>(value: &T, limit: usize) -> Output {
    match catch_unwind(AssertUnwindSafe(|| serde_json::to_string(value))) {
        Ok(Ok(json)) if json.len() <= limit => Output::Stored(json),
        Ok(Ok(_)) => Output::NotStored("too_large"),
        Ok(Err(_)) | Err(_) => Output::NotStored("unserialisable"),
    }
}
