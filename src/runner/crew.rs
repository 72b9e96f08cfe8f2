//! What the threads of a runner share.

use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::attempts::Attempts;
use super::bell::Bell;
use super::buffer::Buffer;
use super::handlers::Handlers;
use super::pace::Pace;
use super::round::Round;
use crate::claim::{Candidate, Traits};
use crate::context::{Flags, Noted};
use crate::endings::Ending;
use crate::error::Error;
use crate::hold::Holds;
use crate::outcome::Ended;
use crate::owner::Owner;
use crate::pen::Mode;
use crate::presence::Presence;
use crate::settle::Claim;
use crate::store::{Inner, Store};
use crate::telling::{Happened, attempt_span, started};

/// Nothing is due in the future.
pub(super) const NEVER: i64 = i64::MAX;

/// See the module.
pub(super) struct Crew {
    pub store: Store,
    pub handlers: Handlers,
    names: Vec<String>,
    /// Of them, those that are claimed in a synced transaction only.
    pub(super) at_most_once: Vec<String>,
    /// Jobs of such kinds may be waiting for one.
    pub(super) wants_sync: AtomicBool,
    /// Jobs that transactions of the host's store if they commit, and until when each is looked for.
    expected: Mutex<VecDeque<(i64, Duration)>>,
    pub workers: usize,
    pub buffer: Buffer,
    pub attempts: Attempts,
    pub bell: Bell,
    /// Wakes the calendar's thread.
    pub calendar_bell: Bell,
    /// Wakes the upkeep's thread.
    pub upkeep_bell: Bell,
    /// A run waits for the last one of its schedule to finish.
    pub(super) calendar_waits: Arc<AtomicBool>,
    stage: AtomicU8,
    /// Endings of this crew's that are not in the file yet.
    unwritten: Arc<AtomicUsize>,
    /// The file is to be looked through: something may have come due, or come from another process.
    pub(super) look: AtomicBool,
    /// There may be claimable jobs that were not claimed for want of a free worker.
    pub(super) hungry: AtomicBool,
    /// The last look found something to claim: there may be more to claim ahead before a worker is free.
    pub(super) fed: AtomicBool,
    /// When the next job becomes due, by the wall clock.
    pub due: AtomicI64,
    pub pace: Mutex<Pace>,
    round: Mutex<Round>,
    pub owner: Mutex<Arc<Owner>>,
    trouble: Mutex<Option<String>>,
    /// What is paused and limited, as of the last transaction.
    holds: Mutex<Arc<Holds>>,
    pub presence: Presence,
}

/// How far a runner is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    Working,
    /// Nothing new starts.
    Stopping,
    Ended,
}

impl Crew {
    pub(super) fn new(
        store: Store,
        handlers: Handlers,
        workers: usize,
        (owner, presence): (Arc<Owner>, Presence),
        calendar_waits: Arc<AtomicBool>,
    ) -> Crew {
        let (names, at_most_once) = (handlers.names(), handlers.at_most_once());
        let attempts = Attempts::of(store.path());
        Crew {
            store,
            handlers,
            names,
            at_most_once,
            wants_sync: AtomicBool::new(false),
            expected: Mutex::default(),
            workers,
            buffer: Buffer::default(),
            attempts,
            bell: Bell::default(),
            calendar_bell: Bell::default(),
            upkeep_bell: Bell::default(),
            calendar_waits,
            stage: AtomicU8::new(0),
            unwritten: Arc::default(),
            look: AtomicBool::new(true),
            hungry: AtomicBool::new(false),
            fed: AtomicBool::new(false),
            due: AtomicI64::new(NEVER),
            pace: Mutex::default(),
            round: Mutex::default(),
            owner: Mutex::new(owner),
            trouble: Mutex::default(),
            holds: Mutex::default(),
            presence,
        }
    }

    pub(super) fn inner(&self) -> &Inner {
        &self.store.inner
    }

    pub(super) fn now(&self) -> Duration {
        self.inner().clock.monotonic()
    }

    pub(super) fn stage(&self) -> Stage {
        match self.stage.load(Ordering::SeqCst) {
            0 => Stage::Working,
            1 => Stage::Stopping,
            _ => Stage::Ended,
        }
    }

    pub(super) fn set_stage(&self, stage: Stage) {
        self.stage.fetch_max(stage as u8, Ordering::SeqCst);
        self.bell.ring();
        self.calendar_bell.ring();
        self.upkeep_bell.ring();
    }

    /// Something in the file may have changed without this process's doing.
    pub(super) fn look(&self) {
        self.look.store(true, Ordering::Release);
        self.bell.ring();
    }

    /// Something becomes due at this time.
    pub(super) fn due_at(&self, at: i64) {
        self.due.fetch_min(at, Ordering::AcqRel);
        self.bell.ring();
    }

    /// Whether all that its workers have ended is in the file.
    pub(super) fn is_written(&self) -> bool {
        self.unwritten.load(Ordering::Acquire) == 0
    }

    /// Whether the keeper has a reason to write.
    pub(super) fn has_work(&self) -> bool {
        !self.inner().endings.is_empty()
            || self.stage() == Stage::Working && (self.is_looking() || self.is_hungry() && self.can_claim())
    }

    /// Whether the file is to be looked through once more.
    pub(super) fn is_looking(&self) -> bool {
        self.look.load(Ordering::Acquire)
    }

    pub(super) fn is_hungry(&self) -> bool {
        self.hungry.load(Ordering::Acquire)
    }

    fn can_claim(&self) -> bool {
        (self.buffer.room(0) > 0 || self.fed.load(Ordering::Acquire) && self.buffer.len() < self.workers)
            && !self.inner().trial.is_on(self.now())
            && !self.owner().is_lost()
            && self.presence.is_said()
            && self.closed_kinds().len() < self.names.len()
    }

    /// A worker has found nothing to take.
    pub(super) fn out_of_work(&self) {
        if self.is_hungry() {
            self.bell.ring();
        }
    }

    /// Kinds that are open here.
    pub(super) fn open_kinds(&self) -> Vec<String> {
        let closed = self.closed_kinds();
        self.names.iter().filter(|name| !closed.contains(name)).cloned().collect()
    }

    /// What is paused and limited.
    pub(super) fn holds(&self) -> Arc<Holds> {
        Arc::clone(&self.holds.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// Pauses and limits have changed. What was claimed ahead and is held back now is given back.
    pub(super) fn set_holds(&self, holds: Arc<Holds>) {
        *self.holds.lock().unwrap_or_else(PoisonError::into_inner) = Arc::clone(&holds);
        self.give_back(self.buffer.take_out(|claim| holds.is_paused(&claim.kind) || holds.is_limited(&claim.kind)));
    }

    /// Kinds of threads that were given up on, once those and the ones that run such a kind now are as many as there are
    /// workers: all of them may hang.
    pub(super) fn closed_kinds(&self) -> Vec<String> {
        if self.attempts.given_up() == 0 {
            return Vec::new();
        }
        let tainted = self.attempts.given_up_kinds();
        if self.room_for_hanging(&tainted) > 0 { Vec::new() } else { tainted }
    }

    pub(super) fn room_for_hanging(&self, tainted: &[String]) -> usize {
        let hanging = self.attempts.given_up() + self.attempts.running_of(tainted) + self.buffer.count_of(tainted);
        self.workers.saturating_sub(hanging)
    }

    /// What keeps it from writing.
    pub(super) fn trouble(&self) -> Option<String> {
        self.trouble.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    pub(super) fn set_trouble(&self, error: Option<&Error>) {
        *self.trouble.lock().unwrap_or_else(PoisonError::into_inner) = error.map(ToString::to_string);
    }

    pub(super) fn owner(&self) -> Arc<Owner> {
        Arc::clone(&self.owner.lock().unwrap_or_else(PoisonError::into_inner))
    }

    /// How an attempt ended, to be written with the next transaction.
    pub(super) fn push(&self, claim: Arc<Claim>, ended: Ended, noted: Option<Noted>) {
        self.end_trial(&claim);
        let policy = self.traits(&claim.kind).policy;
        self.unwritten.fetch_add(1, Ordering::AcqRel);
        let unwritten = Some(Arc::clone(&self.unwritten));
        self.inner().endings.push(Ending { claim, ended, policy, noted, told: None, unwritten });
        self.buffer.lay_down(1);
        self.bell.ring();
    }

    fn end_trial(&self, claim: &Claim) {
        if claim.suspect {
            self.inner().trial.end(claim.id);
            self.buffer.nudge();
        }
    }

    /// Gives back what was claimed and has not started.
    pub(super) fn give_back(&self, claims: Vec<Claim>) {
        for claim in claims {
            self.push(Arc::new(claim), Ended::GivenBack, None);
        }
    }

    /// Tells the attempts of these jobs that they should end, and gives back what has not started. Both end as cancelled, by
    /// the mark in their leases.
    pub(super) fn ask_to_stop(&self, jobs: &[i64]) {
        if jobs.is_empty() {
            return;
        }
        self.attempts.ask_to_stop(jobs);
        self.give_back(self.buffer.take_out(|claim| jobs.contains(&claim.id)));
    }

    /// Runs one claimed job in this thread, and notes how it ended. False if the thread was given up on meanwhile.
    pub(super) fn run(&self, claim: Arc<Claim>) -> bool {
        let Some(handler) = self.handlers.of(&claim.kind) else {
            self.push(claim, Ended::GivenBack, None);
            return true;
        };
        let flags = Arc::new(Flags::default());
        let started = self.now();
        self.attempts.begin(&claim, &flags, started, handler.timeout);
        if handler.timeout.is_some() {
            self.bell.ring();
        }
        self.note_start(&claim);
        let span = attempt_span(&claim);
        let ended = span.in_scope(|| handler.run(&self.store, Arc::clone(&claim), Arc::clone(&flags)));
        let waited_for = self.attempts.end(claim.id);
        let took = self.now().saturating_sub(started);
        self.pace.lock().unwrap_or_else(PoisonError::into_inner).measure(&claim.kind, took);
        if flags.settled.load(Ordering::Acquire) {
            self.end_trial(&claim);
            if waited_for {
                self.buffer.lay_down(1);
                self.ring_if_stopping();
            }
            if let Ended::Failed { text, .. } | Ended::Panicked { text } = &ended {
                tracing::warn!(job = claim.id, text, "a handler failed after its commit; the job is done all the same");
            }
        } else if waited_for {
            self.push(claim, ended, flags.progress.take());
        } else {
            // Its kind may open again, and its job may be claimed here.
            self.look();
        }
        waited_for
    }

    fn note_start(&self, claim: &Claim) {
        let now = self.inner().clock.wall();
        claim.started.store(now, Ordering::Release);
        self.tell(|| started(claim));
    }

    /// Tells what is no part of a transaction.
    pub(super) fn tell(&self, what: impl FnOnce() -> Happened) {
        self.inner().pen.teller().tell_now(self.inner().clock.wall(), what);
    }

    /// The keeper waits for the last claim to be laid down.
    pub(super) fn ring_if_stopping(&self) {
        if self.stage() != Stage::Working {
            self.bell.ring();
        }
    }

    pub(super) fn round(&self) -> MutexGuard<'_, Round> {
        self.round.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether jobs may be waiting for a transaction that is synced.
    pub(super) fn wants_sync(&self) -> bool {
        self.wants_sync.load(Ordering::Acquire)
    }

    /// How the next transaction that is this crew's own is to be written.
    pub(super) fn mode(&self, follows: bool) -> Mode {
        Mode { follows, synced: self.wants_sync.swap(false, Ordering::AcqRel), ..Mode::default() }
    }

    /// Jobs that are looked for until a transaction of the host's commits, or until it is clear that none will soon.
    pub(super) fn expected(&self) -> MutexGuard<'_, VecDeque<(i64, Duration)>> {
        let mut expected = self.expected.lock().unwrap_or_else(PoisonError::into_inner);
        let now = self.now();
        while expected.front().is_some_and(|(_, until)| *until <= now) {
            expected.pop_front();
        }
        expected
    }

    /// Asks the next transaction to look through the whole file for this crew.
    pub(super) fn ask_whole(&self) {
        self.round().whole = true;
    }

    pub(super) fn traits(&self, kind: &str) -> Traits {
        self.handlers.of(kind).map(|handler| handler.traits.clone()).unwrap_or_default()
    }

    pub(super) fn idempotency(&self, job: &Candidate) -> String {
        let secret = &self.inner().terms.secret;
        self.handlers.of(&job.kind).map(|handler| handler.idempotency(secret, job)).unwrap_or_default()
    }
}
