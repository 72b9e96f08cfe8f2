//! Suspects start one by one: a job that was held by a process that died is watched through its start, so that one that
//! kills its process again is found out without a neighbour being blamed.

use std::sync::{Mutex, PoisonError};
use std::time::Duration;

/// A suspect that has run for this long is no longer watched: others may start beside it.
const WATCHED: Duration = Duration::from_millis(200);

/// The suspect under watch in this process, if there is one.
#[derive(Debug, Default)]
pub(crate) struct Trial {
    on: Mutex<Option<On>>,
}

#[derive(Clone, Copy, Debug)]
struct On {
    job: i64,
    started: Option<Duration>,
}

impl Trial {
    /// Puts `job` on trial: from its claim on, nothing else starts. False if another is on trial.
    pub(crate) fn begin(&self, job: i64, now: Duration) -> bool {
        let mut on = self.lock();
        if on.is_some_and(|on| !on.is_over(now)) {
            return false;
        }
        *on = Some(On { job, started: None });
        true
    }

    /// Whether `job` may start now; if not, when to ask again.
    pub(crate) fn may_start(&self, job: i64, now: Duration) -> Result<(), Duration> {
        let mut on = self.lock();
        match &mut *on {
            Some(on) if on.job == job => {
                on.started.get_or_insert(now);
                Ok(())
            }
            Some(on) if !on.is_over(now) => Err(on.left(now)),
            _ => Ok(()),
        }
    }

    /// Whether nothing may start for now but the suspect itself.
    pub(crate) fn is_on(&self, now: Duration) -> bool {
        self.lock().is_some_and(|on| !on.is_over(now))
    }

    /// How long until others may start beside the suspect, unless it ends before.
    pub(crate) fn left(&self, now: Duration) -> Option<Duration> {
        let on = self.lock().filter(|on| !on.is_over(now))?;
        Some(on.left(now))
    }

    /// The job has ended, or was given back.
    pub(crate) fn end(&self, job: i64) {
        let mut on = self.lock();
        if on.is_some_and(|on| on.job == job) {
            *on = None;
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Option<On>> {
        self.on.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl On {
    fn left(&self, now: Duration) -> Duration {
        self.started.map_or(WATCHED, |started| (started + WATCHED).saturating_sub(now))
    }

    fn is_over(&self, now: Duration) -> bool {
        self.started.is_some_and(|started| now.saturating_sub(started) >= WATCHED)
    }
}
