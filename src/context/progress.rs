//! How far a job says that it is.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use chrono::{DateTime, Utc};
use rusqlite::params;
use serde::Serialize;

use super::{Context, Fence, Flags};
use crate::error::{Error, Result};
use crate::failure::safe_text;
use crate::pen::{Act, Group, Mode, OpResult};
use crate::settle::Claim;
use crate::sql;

const PROGRESS: Act = Act { name: "cx.progress", instead: "it before or after the transaction" };
/// One job's progress is written this often at most.
const PAUSE: Duration = Duration::from_millis(200);

/// How far a job says that it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Progress {
    /// How much is done.
    pub done: u64,
    /// Of how much; 0 if that is not known.
    pub total: u64,
    /// What it is at.
    pub note: String,
    /// When it said so.
    pub at: DateTime<Utc>,
}

/// The newest progress of an attempt, and when one was written last.
#[derive(Debug, Default)]
pub(crate) struct Slot(Mutex<State>);

#[derive(Debug, Default)]
struct State {
    unwritten: Option<Noted>,
    written: Option<Duration>,
}

#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Noted {
    done: i64,
    total: i64,
    note: String,
}

impl Slot {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Keeps what was noted. True if nothing else was waiting to be written.
    fn note(&self, noted: Noted) -> bool {
        self.lock().unwritten.replace(noted).is_none()
    }

    /// What is to be written now.
    pub(crate) fn take_due(&self, now: Duration) -> Option<Noted> {
        let mut state = self.lock();
        if state.written.is_some_and(|written| now < written + PAUSE) {
            return None;
        }
        let noted = state.unwritten.take()?;
        state.written = Some(now);
        Some(noted)
    }

    /// What nobody has written yet, now that the attempt has ended.
    pub(crate) fn take(&self) -> Option<Noted> {
        self.lock().unwritten.take()
    }

    /// How long until something is to be written.
    pub(crate) fn due_in(&self, now: Duration) -> Option<Duration> {
        let state = self.lock();
        state.unwritten.as_ref()?;
        Some(state.written.map_or(Duration::ZERO, |written| (written + PAUSE).saturating_sub(now)))
    }

    /// It could not be written; what came since is newer.
    fn put_back(&self, noted: Noted) {
        self.lock().unwritten.get_or_insert(noted);
    }
}

impl Context {
    /// Says how far the job is: `done` of `total` (0 if that is not known), and what it is at. Readers see it with the job
    /// ([`JobInfo::progress`](crate::JobInfo)).
    ///
    /// It costs next to nothing at any call rate: what is said within 200 ms of the last that was written is kept, and the
    /// newest is written then by the runner (in [`once`](crate::Store::once), by the next call), and with the attempt's end at
    /// the latest. Numbers above `i64::MAX` count as that. It is for
    /// people to read: what a later attempt is to go on from belongs in a
    /// [`transaction`](Context::transaction). The note is cut at 4 KiB.
    ///
    /// # Errors
    ///
    /// [`Error::LeaseLost`] if the job is not this worker's any more: it should stop. [`Error::AlreadySettled`] after
    /// `commit`, [`Error::InsideTransaction`] inside a transaction closure. A file that cannot be written now is no error.
    pub fn progress(&self, done: u64, total: u64, note: &str) -> Result<()> {
        self.refuse(PROGRESS)?;
        if self.is_cancelled() && (self.claim.owner.is_lost() || self.flags.given_up.load(Ordering::Acquire)) {
            return Err(self.fence().lost());
        }
        let whole = |n: u64| i64::try_from(n).unwrap_or(i64::MAX);
        let noted = Noted { done: whole(done), total: whole(total), note: safe_text(note).into_owned() };
        let slot = &self.flags.progress;
        let is_first = slot.note(noted);
        let Some(noted) = slot.take_due(self.store.inner.clock.monotonic()) else {
            if is_first {
                // It is the keeper's to write, if the handler says nothing more.
                self.store.inner.pen.wake_riders();
            }
            return Ok(());
        };
        let (fence, ours) = (self.fence(), noted.clone());
        let written = self.store.inner.pen.write(PROGRESS, Mode::default(), move |group| {
            fence.check(group)?;
            Ok(write_progress(group, &fence.claim, &ours)?)
        });
        match written {
            Ok(()) => Ok(()),
            Err(error @ Error::LeaseLost { .. }) => Err(error),
            Err(error) => {
                tracing::debug!(%error, "the progress of a job could not be written");
                slot.put_back(noted);
                Ok(())
            }
        }
    }
}

/// Fenced by the statement itself.
pub(crate) fn write_progress(group: &Group<'_>, claim: &Claim, noted: &Noted) -> rusqlite::Result<()> {
    let Noted { done, total, note } = noted;
    let row = params![claim.id, claim.owner.id, claim.token, done, total, note, group.now];
    group.statement(sql::NOTE_PROGRESS)?.execute(row)?;
    Ok(())
}

/// Writes what an attempt noted last and nobody has written yet. A lease that is lost says so elsewhere.
pub(crate) fn note_progress(group: &Group<'_>, claim: &Arc<Claim>, flags: &Arc<Flags>, noted: &Noted) -> OpResult<()> {
    let fence = Fence { claim: Arc::clone(claim), flags: Arc::clone(flags) };
    match fence.check(group) {
        Ok(()) => Ok(write_progress(group, claim, noted)?),
        Err(_) => Ok(()),
    }
}
