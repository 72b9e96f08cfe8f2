//! Waiting for the first few of a replay, to see whether the others may follow.

use std::time::Duration;

use crate::clock::Stopwatch;
use crate::error::Result;
use crate::state::State;
use crate::store::{JobInfo, Store};

const PATIENCE: Duration = Duration::from_secs(60);
/// How often they are looked at.
const LOOK: Duration = Duration::from_millis(10);

impl Store {
    /// How the canary stands when all of it is done, when one of it has ended otherwise, or after `patience`.
    pub(super) fn wait_for_canary(&self, jobs: &[i64], patience: Option<Duration>) -> Result<Vec<JobInfo>> {
        let (waited, patience) = (Stopwatch::start(), patience.unwrap_or(PATIENCE));
        loop {
            let found = jobs.iter().filter_map(|&job| self.job(job).transpose()).collect::<Result<Vec<_>>>()?;
            let is_decided = found.iter().all(|job| job.state == State::Done)
                || found.iter().any(|job| has_ended(job) && job.state != State::Done);
            if is_decided || waited.left(patience).is_none() {
                return Ok(found);
            }
            std::thread::sleep(LOOK);
        }
    }
}

fn has_ended(job: &JobInfo) -> bool {
    !matches!(job.state, State::Waiting | State::Running)
}

/// Why the others do not follow.
pub(super) fn verdict(canary: &[JobInfo]) -> Option<String> {
    let failed: Vec<_> = canary.iter().filter(|job| job.state != State::Done).collect();
    let first = failed.iter().find(|job| has_ended(job)).or(failed.first())?;
    let failure = first.last_failure.as_ref().filter(|_| has_ended(first));
    let why = failure.map(|failure| format!(" ({}: {})", failure.class, failure.text)).unwrap_or_default();
    let still = if has_ended(first) { "" } else { " still" };
    Some(format!(
        "{} of {} in the canary were not done: job {} is{still} {}{why}",
        failed.len(),
        canary.len(),
        first.id,
        first.state
    ))
}
