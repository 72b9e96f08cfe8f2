//! What the threads of a runner share, and its part in every transaction: claiming for its workers.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU8, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

use super::attempts::Attempts;
use super::buffer::Buffer;
use super::handlers::Handlers;
use super::pace::{Pace, REACH};
use crate::claim::{Candidate, Fairness, Traits, Wish, claim, claim_suspect, let_in, next_due};
use crate::context::Flags;
use crate::endings::Ending;
use crate::error::Error;
use crate::fault::StorageFault;
use crate::outcome::Ended;
use crate::owner::Owner;
use crate::pen::{Group, Mode, Rider};
use crate::settle::Claim;
use crate::sql;
use crate::store::{Inner, Store};

/// Nothing is due in the future.
pub(super) const NEVER: i64 = i64::MAX;

/// How long a COMMIT of the host's is waited for, once it has stored a job.
const EXPECT_FOR: Duration = Duration::from_secs(1);
/// Most jobs that are looked for in that way; any of them leads to a look that finds the others.
const EXPECTED: usize = 256;

/// See the module.
pub(super) struct Crew {
    pub store: Store,
    pub handlers: Handlers,
    names: Vec<String>,
    /// Of them, those that are claimed in a synced transaction only.
    at_most_once: Vec<String>,
    /// Jobs of such kinds may be waiting for one.
    wants_sync: AtomicBool,
    /// Jobs that transactions of the host's store if they commit, and until when each is looked for.
    expected: Mutex<VecDeque<(i64, Duration)>>,
    pub workers: usize,
    pub buffer: Buffer,
    pub attempts: Attempts,
    pub bell: Bell,
    /// Wakes the calendar's thread.
    pub calendar_bell: Bell,
    /// A run waits for the last one of its schedule to finish.
    calendar_waits: Arc<AtomicBool>,
    stage: AtomicU8,
    /// Endings of this crew's that are not in the file yet.
    unwritten: Arc<AtomicUsize>,
    /// The file is to be looked through: something may have come due, or come from another process.
    look: AtomicBool,
    /// There may be claimable jobs that were not claimed for want of a free worker.
    hungry: AtomicBool,
    /// The last look found something to claim: there may be more to claim ahead before a worker is free.
    fed: AtomicBool,
    /// When the next job becomes due, by the wall clock.
    pub due: AtomicI64,
    pub pace: Mutex<Pace>,
    round: Mutex<Round>,
    pub owner: Mutex<Arc<Owner>>,
    trouble: Mutex<Option<String>>,
}

/// What one transaction has done for this crew.
#[derive(Default)]
struct Round {
    /// The keeper wants the file looked through, not only what the transaction itself has made claimable.
    whole: bool,
    claimed: Vec<Claim>,
    /// Something claimable may be left.
    left: bool,
    /// It changes a schedule, or what is asked of one.
    calendar: bool,
    /// More may be due than one look lets in.
    more: bool,
    /// When the earliest of the jobs that it has put off becomes due.
    due: i64,
    fairness: Fairness,
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
        owner: Arc<Owner>,
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

    fn is_hungry(&self) -> bool {
        self.hungry.load(Ordering::Acquire)
    }

    fn can_claim(&self) -> bool {
        (self.buffer.room(0) > 0 || self.fed.load(Ordering::Acquire) && self.buffer.len() < self.workers)
            && !self.inner().trial.is_on(self.now())
            && !self.owner().is_lost()
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

    /// Kinds of threads that were given up on, once those and the ones that run such a kind now are as many as there are
    /// workers: all of them may hang.
    pub(super) fn closed_kinds(&self) -> Vec<String> {
        if self.attempts.given_up() == 0 {
            return Vec::new();
        }
        let tainted = self.attempts.given_up_kinds();
        if self.room_for_hanging(&tainted) > 0 { Vec::new() } else { tainted }
    }

    fn room_for_hanging(&self, tainted: &[String]) -> usize {
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
    pub(super) fn push(&self, claim: Arc<Claim>, ended: Ended) {
        self.end_trial(&claim);
        let policy = self.traits(&claim.kind).policy;
        self.unwritten.fetch_add(1, Ordering::AcqRel);
        let unwritten = Some(Arc::clone(&self.unwritten));
        self.inner().endings.push(Ending { claim, ended, policy, told: None, unwritten });
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
            self.push(Arc::new(claim), Ended::GivenBack);
        }
    }

    /// Runs one claimed job in this thread, and notes how it ended. False if the thread was given up on meanwhile.
    pub(super) fn run(&self, claim: Arc<Claim>) -> bool {
        let Some(handler) = self.handlers.of(&claim.kind) else {
            self.push(claim, Ended::GivenBack);
            return true;
        };
        let flags = Arc::new(Flags::default());
        let started = self.now();
        self.attempts.begin(&claim, &flags, started, handler.timeout);
        if handler.timeout.is_some() {
            self.bell.ring();
        }
        let ended = handler.run(&self.store, Arc::clone(&claim), Arc::clone(&flags));
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
            self.push(claim, ended);
        } else {
            // Its kind may open again, and its job may be claimed here.
            self.look();
        }
        waited_for
    }

    /// The keeper waits for the last claim to be laid down.
    fn ring_if_stopping(&self) {
        if self.stage() != Stage::Working {
            self.bell.ring();
        }
    }

    fn round(&self) -> MutexGuard<'_, Round> {
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

    /// Claims for this crew, and says whether something claimable is left.
    fn fill(&self, group: &mut Group<'_>, round: &mut Round) -> rusqlite::Result<bool> {
        let mut kinds = self.open_kinds();
        let unsynced = self.leave_unsynced(group, &mut kinds)?;
        let owner = self.owner();
        let trial = &self.inner().trial;
        if kinds.is_empty() || owner.is_lost() || trial.is_on(self.now()) {
            return Ok(true);
        }
        Ok(self.claim_into(group, round, &owner, &kinds)? || unsynced)
    }

    /// Takes out the kinds whose claim must be synced if this transaction is not. True if one of them has a job to claim.
    fn leave_unsynced(&self, group: &Group<'_>, kinds: &mut Vec<String>) -> rusqlite::Result<bool> {
        if group.synced || self.at_most_once.is_empty() {
            return Ok(false);
        }
        let mut left = false;
        let mut ask = group.statement(sql::ANYTHING_CLAIMABLE)?;
        for kind in kinds.extract_if(.., |kind| self.at_most_once.contains(kind)) {
            left |= ask.query_row([kind], |row| row.get::<_, bool>(0))?;
        }
        if left {
            self.wants_sync.store(true, Ordering::Release);
            self.bell.ring();
        }
        Ok(left)
    }

    /// Claims jobs of `kinds`, and says whether more of them may be left.
    fn claim_into(
        &self,
        group: &mut Group<'_>,
        round: &mut Round,
        owner: &Arc<Owner>,
        kinds: &[String],
    ) -> rusqlite::Result<bool> {
        // As many threads may hang as there are workers: kinds in which some do get no more than what is left.
        let tainted = self.attempts.given_up_kinds();
        let is_tainted = |kind: &str| tainted.iter().any(|tainted| tainted == kind);
        let mut idle = self.buffer.room(group.freed);
        if kinds.iter().any(|kind| is_tainted(kind)) {
            idle = idle.min(self.room_for_hanging(&tainted));
        }
        // Who is in something long will not start what is claimed ahead.
        let quick = self.workers.saturating_sub(self.attempts.longer_than(REACH, self.now()));
        let budget = self.pace.lock().unwrap_or_else(PoisonError::into_inner).budget(quick);
        let budget = budget.with_buffered(self.buffer.len(), |f| self.buffer.each_kind(f));
        // Whoever only stores a job claims for idle workers; claiming ahead is the keeper's.
        let ahead = if round.whole { budget.jobs } else { 0 };
        let budget = RefCell::new(budget);
        // What is claimed ahead holds up its line, or is taken for begun if the process dies.
        let may_lie = |job: &Candidate| {
            !is_tainted(&job.kind) && job.ordering_key.is_none() && !self.at_most_once.contains(&job.kind)
        };
        let wish = Wish {
            owner,
            kinds,
            idle,
            ahead,
            may_wait: &|job| may_lie(job) && budget.borrow_mut().spend(&job.kind),
            is_quick: &|job| may_lie(job) && budget.borrow().is_quick(&job.kind),
            traits: &|kind| self.traits(kind),
            idempotency: &|job| self.idempotency(job),
            runs_here: &|job| self.attempts.runs_here(job),
        };
        if idle > 0
            && let Some(suspect) = claim_suspect(group, &wish)?
        {
            self.inner().trial.begin(suspect.id, self.now());
            round.claimed.push(suspect);
            return Ok(true);
        }
        round.claimed = claim(group, &wish, &mut round.fairness)?;
        Ok(round.claimed.len() >= idle)
    }

    /// This crew's part in a transaction: what has come due, and what it claims.
    fn close_round(&self, group: &mut Group<'_>) -> rusqlite::Result<()> {
        let mut round = self.round();
        round.claimed.clear();
        round.left = self.is_hungry() || group.claimable;
        round.calendar = group.calendar;
        round.due = group.due_later.unwrap_or(NEVER);
        round.more = false;
        if round.whole {
            // Cleared before the look: what comes after it asks for another.
            self.look.store(false, Ordering::Release);
            round.more = group.isolated(let_in)?.unwrap_or(false);
            round.left = true;
        }
        if self.stage() == Stage::Working && round.left && (round.whole || self.buffer.room(group.freed) > 0) {
            // What cannot be claimed does not keep others from storing; it is tried again at the next look.
            if let Some(left) = group.isolated(|group| self.fill(group, &mut round))? {
                round.left = left;
            } else {
                round.left = false;
                round.claimed.clear();
            }
        }
        self.buffer.take_up(round.claimed.len());
        if round.whole {
            // Before COMMIT: what another process commits after it is found by a look after it, and comes on top. If COMMIT
            // fails, the file is looked through once more.
            self.due.store(next_due(group)?.unwrap_or(NEVER), Ordering::Release);
        }
        Ok(())
    }

    fn traits(&self, kind: &str) -> Traits {
        self.handlers.of(kind).map(|handler| handler.traits.clone()).unwrap_or_default()
    }

    fn idempotency(&self, job: &Candidate) -> String {
        let secret = &self.inner().terms.secret;
        self.handlers.of(&job.kind).map(|handler| handler.idempotency(secret, job)).unwrap_or_default()
    }
}

impl Rider for Crew {
    fn close(&self, group: &mut Group<'_>) -> rusqlite::Result<()> {
        // From before it is asked whether this crew stops: who stops it then waits for what is claimed here.
        self.buffer.take_up(1);
        let closed = self.close_round(group);
        self.buffer.lay_down(1);
        closed
    }

    fn expect(&self, job: i64) {
        let mut expected = self.expected();
        if expected.len() >= EXPECTED {
            expected.pop_front();
        }
        expected.push_back((job, self.now() + EXPECT_FOR));
        drop(expected);
        self.bell.ring();
    }

    fn wake(&self) {
        self.bell.ring();
    }

    fn committed(&self, outcome: Result<(), &StorageFault>) {
        let mut round = self.round();
        let whole = std::mem::take(&mut round.whole);
        let claimed = std::mem::take(&mut round.claimed);
        if outcome.is_err() {
            // A claim that was not stored is not handed out.
            self.buffer.lay_down(claimed.len());
            claimed.iter().filter(|claim| claim.suspect).for_each(|claim| self.inner().trial.end(claim.id));
            self.look.fetch_or(whole, Ordering::AcqRel);
            return;
        }
        self.hungry.store(round.left, Ordering::Release);
        if whole {
            self.fed.store(!claimed.is_empty(), Ordering::Release);
        }
        if round.more {
            self.look();
        }
        if round.calendar || self.calendar_waits.load(Ordering::Acquire) {
            self.calendar_bell.ring();
        }
        if round.due != NEVER {
            self.due_at(round.due);
        }
        if whole {
            self.bell.ring();
        }
        drop(round);
        self.buffer.put(claimed, self.now());
        self.ring_if_stopping();
    }
}

/// Wakes the keeper. Rung any number of times before it looks, it rings once.
pub(super) struct Bell {
    send: Sender<()>,
    receive: Receiver<()>,
}

impl Default for Bell {
    fn default() -> Self {
        let (send, receive) = bounded(1);
        Bell { send, receive }
    }
}

impl Bell {
    pub(super) fn ring(&self) {
        // Full: it has been rung and not heard yet.
        let _ = self.send.try_send(());
    }

    /// Waits for a ring, at most this long.
    pub(super) fn wait(&self, limit: Duration) {
        let _ = self.receive.recv_timeout(limit);
    }
}
