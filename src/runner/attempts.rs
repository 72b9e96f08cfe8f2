//! The attempts that run in this process: their limits, and the threads that were given up on.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::hanging;
use crate::claim::Candidate;
use crate::context::{Flags, Noted};
use crate::settle::Claim;

/// See the module.
pub(super) struct Attempts {
    file: PathBuf,
    state: Mutex<State>,
    /// How many threads were given up on.
    hanging: AtomicUsize,
}

#[derive(Default)]
struct State {
    running: HashMap<i64, Running>,
    /// Jobs of which an attempt was given up and whose thread has not come back, with their kinds.
    given_up: HashMap<i64, String>,
}

/// An attempt in the hands of a worker.
#[derive(Clone)]
pub(super) struct Running {
    pub claim: Arc<Claim>,
    pub flags: Arc<Flags>,
    started: Duration,
    pub limit: Option<Duration>,
}

impl Attempts {
    /// For jobs of a database file.
    pub(super) fn of(file: &Path) -> Attempts {
        Attempts { file: file.to_owned(), state: Mutex::default(), hanging: AtomicUsize::new(0) }
    }

    /// How many run that are of these kinds.
    pub(super) fn running_of(&self, kinds: &[String]) -> usize {
        self.lock().running.values().filter(|running| kinds.contains(&running.claim.kind)).count()
    }

    pub(super) fn begin(&self, claim: &Arc<Claim>, flags: &Arc<Flags>, now: Duration, limit: Option<Duration>) {
        let running = Running { claim: Arc::clone(claim), flags: Arc::clone(flags), started: now, limit };
        self.lock().running.insert(claim.id, running);
    }

    /// The handler has returned. True if its result is still waited for.
    pub(super) fn end(&self, job: i64) -> bool {
        let mut state = self.lock();
        let waited_for = state.running.remove(&job).is_some();
        if state.given_up.remove(&job).is_some() {
            hanging::remove(&self.file, job);
        }
        self.hanging.store(state.given_up.len(), Ordering::Release);
        drop(state);
        waited_for
    }

    /// Gives up on the attempts whose time is over; they are told.
    pub(super) fn give_up_late(&self, now: Duration) -> Vec<Running> {
        self.give_up(|running| running.limit.is_some_and(|limit| now.saturating_sub(running.started) >= limit))
    }

    /// Gives up on all attempts; they are told.
    pub(super) fn give_up_all(&self) -> Vec<Running> {
        self.give_up(|_| true)
    }

    fn give_up(&self, which: impl Fn(&Running) -> bool) -> Vec<Running> {
        let mut state = self.lock();
        let late: Vec<_> = state.running.values().filter(|running| which(running)).cloned().collect();
        for running in &late {
            running.flags.cancelled.store(true, Ordering::Release);
            running.flags.given_up.store(true, Ordering::Release);
            state.running.remove(&running.claim.id);
            state.given_up.insert(running.claim.id, running.claim.kind.clone());
            hanging::add(&self.file, &running.claim);
        }
        self.hanging.store(state.given_up.len(), Ordering::Release);
        drop(state);
        late
    }

    /// Tells the attempts of these jobs that they should end.
    pub(super) fn ask_to_stop(&self, jobs: &[i64]) {
        let state = self.lock();
        for running in jobs.iter().filter_map(|job| state.running.get(job)) {
            running.flags.cancelled.store(true, Ordering::Release);
        }
    }

    /// What attempts have said of their progress and is to be written now.
    pub(super) fn take_progress(&self, now: Duration) -> Vec<(Running, Noted)> {
        let state = self.lock();
        let due = |running: &Running| Some((running.clone(), running.flags.progress.take_due(now)?));
        state.running.values().filter_map(due).collect()
    }

    /// How long until some of it is.
    pub(super) fn next_progress(&self, now: Duration) -> Option<Duration> {
        self.lock().running.values().filter_map(|running| running.flags.progress.due_in(now)).min()
    }

    /// How long until the next attempt's time is over.
    pub(super) fn next_limit(&self, now: Duration) -> Option<Duration> {
        let state = self.lock();
        let ends = state.running.values().filter_map(|running| Some(running.started + running.limit?));
        ends.min().map(|end| end.saturating_sub(now))
    }

    /// Whether a thread still runs an attempt of the job, or of another in its line.
    pub(super) fn runs_here(&self, job: &Candidate) -> bool {
        // One that is not given up holds its lease, and is no candidate.
        hanging::is_beside(&self.file, job)
    }

    /// How many threads were given up on and have not come back.
    pub(super) fn given_up(&self) -> usize {
        self.hanging.load(Ordering::Acquire)
    }

    /// Kinds of the threads that were given up on, without repeats.
    pub(super) fn given_up_kinds(&self) -> Vec<String> {
        let mut kinds: Vec<_> = self.lock().given_up.values().cloned().collect();
        kinds.sort_unstable();
        kinds.dedup();
        kinds
    }

    /// How many have run for longer than this.
    pub(super) fn longer_than(&self, time: Duration, now: Duration) -> usize {
        self.lock().running.values().filter(|running| now.saturating_sub(running.started) > time).count()
    }

    pub(super) fn running(&self) -> usize {
        self.lock().running.len()
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
