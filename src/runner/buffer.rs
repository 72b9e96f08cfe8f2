//! What is claimed and not started: between the keeper and the workers.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use crate::claim::PATIENCE;
use crate::clock::Clock;
use crate::settle::Claim;
use crate::trial::Trial;

/// What has not started within this is given back: somebody else may have a worker free.
const STALE: Duration = Duration::from_secs(1);

#[derive(Default)]
pub(super) struct Buffer {
    state: Mutex<State>,
    signal: Condvar,
    /// Claims that are in somebody's hands: being stored, run, or given back.
    out: AtomicUsize,
}

#[derive(Default)]
struct State {
    waiting: BinaryHeap<Waiting>,
    /// How many have started while others lay here.
    passed_over: u32,
    idle: usize,
    closed: bool,
}

/// A claimed job, ordered so that the best comes first: by priority, then time, then id.
struct Waiting {
    order: (i64, Reverse<i64>, Reverse<i64>),
    since: Duration,
    claim: Claim,
}

impl PartialEq for Waiting {
    fn eq(&self, other: &Self) -> bool {
        self.order == other.order
    }
}

impl Eq for Waiting {}

impl PartialOrd for Waiting {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Waiting {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.order.cmp(&other.order)
    }
}

impl Buffer {
    /// So many claims are being stored.
    pub(super) fn take_up(&self, claims: usize) {
        self.out.fetch_add(claims, Ordering::SeqCst);
    }

    /// So many claims are in nobody's hands any more: their endings are on the way to the file, or they never got there.
    pub(super) fn lay_down(&self, claims: usize) {
        self.out.fetch_sub(claims, Ordering::SeqCst);
    }

    /// Whether no claim lies here or is in somebody's hands: from before its commit until its ending is on the way to the
    /// file, every claim is the one or the other.
    pub(super) fn has_none_left(&self) -> bool {
        let state = self.lock();
        state.waiting.is_empty() && self.out.load(Ordering::SeqCst) == 0
    }

    /// Lays in what was taken up and is stored now.
    pub(super) fn put(&self, claims: Vec<Claim>, now: Duration) {
        if claims.is_empty() {
            return;
        }
        let many = claims.len() > 1;
        let mut state = self.lock();
        self.lay_down(claims.len());
        for claim in claims {
            let order = (claim.priority, Reverse(claim.run_at), Reverse(claim.id));
            state.waiting.push(Waiting { order, since: now, claim });
        }
        drop(state);
        if many { self.signal.notify_all() } else { self.signal.notify_one() }
    }

    /// Waits for the best job that may start; `None` once the buffer is closed. `on_empty` is called before waiting.
    pub(super) fn take(&self, trial: &Trial, clock: &dyn Clock, on_empty: impl Fn()) -> Option<Claim> {
        let mut state = self.lock();
        let mut asked = false;
        loop {
            if state.closed {
                return None;
            }
            let wait = match take_best(&mut state, trial, clock.monotonic()) {
                Ok(claim) => {
                    self.take_up(1);
                    return Some(claim);
                }
                Err(wait) => wait,
            };
            state.idle += 1;
            if wait.is_none() && !asked {
                // Once a wait: the keeper may have gone to sleep with work left in the file.
                asked = true;
                drop(state);
                on_empty();
                state = self.lock();
            }
            if state.waiting.is_empty() && !state.closed || wait.is_some() {
                let longest = wait.unwrap_or(Duration::from_secs(3600)).max(Duration::from_millis(1));
                state = self.signal.wait_timeout(state, longest).unwrap_or_else(PoisonError::into_inner).0;
            }
            state.idle -= 1;
        }
    }

    /// Takes the best job that may start now, without waiting.
    pub(super) fn try_take(&self, trial: &Trial, now: Duration) -> Result<Claim, Option<Duration>> {
        let mut state = self.lock();
        take_best(&mut state, trial, now).inspect(|_| self.take_up(1))
    }

    /// One worker without a thread: whoever calls [`try_take`](Buffer::try_take).
    pub(super) fn add_idle(&self) {
        self.lock().idle += 1;
    }

    /// How many workers have nothing to do, beyond what lies here already.
    pub(super) fn room(&self, extra: usize) -> usize {
        let state = self.lock();
        (state.idle + extra).saturating_sub(state.waiting.len())
    }

    /// How many jobs lie here.
    pub(super) fn len(&self) -> usize {
        self.lock().waiting.len()
    }

    /// How many jobs of these kinds lie here.
    pub(super) fn count_of(&self, kinds: &[String]) -> usize {
        self.lock().waiting.iter().filter(|waiting| kinds.contains(&waiting.claim.kind)).count()
    }

    /// Calls `f` with the kind of each job that lies here.
    pub(super) fn each_kind(&self, mut f: impl FnMut(&str)) {
        self.lock().waiting.iter().for_each(|waiting| f(&waiting.claim.kind));
    }

    /// Takes out what has lain here for too long.
    pub(super) fn take_stale(&self, now: Duration) -> Vec<Claim> {
        self.take_if(|waiting| now.saturating_sub(waiting.since) >= STALE)
    }

    /// Takes out the claims that `which` says.
    pub(super) fn take_out(&self, which: impl Fn(&Claim) -> bool) -> Vec<Claim> {
        self.take_if(|waiting| which(&waiting.claim))
    }

    fn take_if(&self, which: impl Fn(&Waiting) -> bool) -> Vec<Claim> {
        let mut state = self.lock();
        if !state.waiting.iter().any(&which) {
            return Vec::new();
        }
        let (out, left): (Vec<_>, Vec<_>) = state.waiting.drain().partition(&which);
        state.waiting = left.into();
        self.take_up(out.len());
        out.into_iter().map(|waiting| waiting.claim).collect()
    }

    /// Takes out everything; workers that wait are told that there is no more if `close`.
    pub(super) fn empty(&self, close: bool) -> Vec<Claim> {
        let mut state = self.lock();
        state.closed |= close;
        let all: Vec<_> = state.waiting.drain().map(|waiting| waiting.claim).collect();
        self.take_up(all.len());
        drop(state);
        self.signal.notify_all();
        all
    }

    /// Wakes workers that wait for a trial to end.
    pub(super) fn nudge(&self) {
        self.signal.notify_all();
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The best job that may start. Without one: how long to wait for a trial, if it is that.
fn take_best(state: &mut State, trial: &Trial, now: Duration) -> Result<Claim, Option<Duration>> {
    let Some(best) = state.waiting.peek() else { return Err(None) };
    let wait = match trial.may_start(best.claim.id, now) {
        Ok(()) => return in_its_turn(state, trial, now).or_else(|| state.waiting.pop()).map(|it| it.claim).ok_or(None),
        Err(wait) => wait,
    };
    // The suspect on trial may lie behind better jobs, which wait for it.
    let suspect = state.waiting.iter().find(|waiting| waiting.claim.suspect).map(|waiting| waiting.claim.id);
    let Some(suspect) = suspect.filter(|&id| trial.may_start(id, now).is_ok()) else { return Err(Some(wait)) };
    take_out(state, suspect).map(|waiting| waiting.claim).ok_or(Some(wait))
}

/// What was claimed ahead may be overtaken by what is claimed later, again and again: after enough of that, the one that
/// has lain here longest has its turn.
fn in_its_turn(state: &mut State, trial: &Trial, now: Duration) -> Option<Waiting> {
    let best = state.waiting.peek()?.order.0;
    state.passed_over = if state.waiting.len() > 1 { state.passed_over + 1 } else { 0 };
    if state.passed_over <= PATIENCE {
        return None;
    }
    state.passed_over = 0;
    let lower = state.waiting.iter().filter(|waiting| waiting.order.0 < best);
    let oldest = lower.min_by_key(|waiting| (waiting.since, Reverse(waiting.order)))?.claim.id;
    trial.may_start(oldest, now).ok()?;
    take_out(state, oldest)
}

fn take_out(state: &mut State, job: i64) -> Option<Waiting> {
    let mut taken = None;
    for waiting in std::mem::take(&mut state.waiting) {
        if waiting.claim.id == job { taken = Some(waiting) } else { state.waiting.push(waiting) }
    }
    taken
}
