//! How a runner comes to its end: nothing new starts, what runs may finish within a grace, then it is told and released.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use super::crew::{Crew, Stage};
use crate::outcome::Ended;
use crate::telling::Happened;

/// How long after the grace what is left may take to be written.
const AFTER_GRACE: Duration = Duration::from_millis(700);

#[derive(Default)]
pub(super) struct Stop {
    state: Mutex<State>,
    ended: Condvar,
}

#[derive(Default)]
struct State {
    /// When the grace is over, by the monotonic clock.
    grace_until: Option<Duration>,
    interrupted: bool,
    ended: bool,
    /// What ended the runner, if it was not asked to.
    why: Option<String>,
}

impl Stop {
    /// Asks for the end, with what runs given until `grace_until`. The earliest such time counts.
    pub(super) fn ask(&self, crew: &Crew, grace_until: Duration) {
        let mut state = self.lock();
        let earliest = state.grace_until.map_or(grace_until, |until| until.min(grace_until));
        state.grace_until = Some(earliest);
        drop(state);
        crew.set_stage(Stage::Stopping);
        crew.give_back(crew.buffer.empty(true));
    }

    /// Asks for the end without a grace.
    pub(super) fn at_once(&self, why: String) {
        let mut state = self.lock();
        state.grace_until = Some(Duration::ZERO);
        state.why.get_or_insert(why);
    }

    /// What ended the runner, if it was not asked to end.
    pub(super) fn why(&self) -> Option<String> {
        self.lock().why.clone()
    }

    /// Goes on with the stop; called by the keeper. True when it has come to its end.
    pub(super) fn advance(&self, crew: &Crew) -> bool {
        let now = crew.now();
        crew.give_back(crew.buffer.empty(true));
        let mut state = self.lock();
        let until = *state.grace_until.get_or_insert(now);
        if now >= until && !state.interrupted {
            state.interrupted = true;
            drop(state);
            for running in crew.attempts.give_up_all() {
                let ended = running.flags.judge(Ended::Interrupted);
                crew.push(running.claim, ended, running.flags.progress.take());
            }
            state = self.lock();
        }
        let written = crew.buffer.has_none_left() && crew.is_written();
        let given_up = state.interrupted && now >= until + AFTER_GRACE || state.why.is_some();
        if !written && !given_up {
            return false;
        }
        state.ended = true;
        drop(state);
        let runner = crew.owner().id;
        crew.tell(|| Happened::RunnerStopped { runner });
        crew.set_stage(Stage::Ended);
        self.ended.notify_all();
        true
    }

    /// How long the keeper may wait before it goes on with the stop.
    pub(super) fn patience(&self, crew: &Crew) -> Duration {
        let state = self.lock();
        match state.grace_until {
            Some(until) if !state.interrupted => until.saturating_sub(crew.now()).min(Duration::from_secs(1)),
            Some(_) => Duration::from_millis(20),
            None => Duration::from_secs(1),
        }
    }

    /// Waits for the end, at most this long; true if it came.
    pub(super) fn wait(&self, limit: Duration) -> bool {
        let state = self.lock();
        let state = self.ended.wait_timeout_while(state, limit, |state| !state.ended);
        state.unwrap_or_else(PoisonError::into_inner).0.ended
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
