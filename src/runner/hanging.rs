//! Jobs of which an attempt was given up on and still runs somewhere in this process, by file. None of its runners claims
//! such a job, or another of its ordering key: what the thread does outside the database would be done twice at once, or
//! out of order.

use std::collections::HashMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

use crate::claim::Candidate;
use crate::settle::Claim;

static JOBS: LazyLock<Mutex<Jobs>> = LazyLock::new(Mutex::default);
/// With the ordering key of each.
type Jobs = HashMap<(PathBuf, i64), Option<String>>;

/// Asked for every job that is claimed.
static COUNT: AtomicUsize = AtomicUsize::new(0);

pub(super) fn add(file: &Path, claim: &Claim) {
    let mut jobs = lock();
    jobs.insert((file.to_owned(), claim.id), claim.line().map(str::to_owned));
    COUNT.store(jobs.len(), Ordering::Release);
}

pub(super) fn remove(file: &Path, job: i64) {
    let mut jobs = lock();
    jobs.remove(&(file.to_owned(), job));
    COUNT.store(jobs.len(), Ordering::Release);
}

/// Whether the job itself runs, or another of its ordering key.
pub(super) fn is_beside(file: &Path, job: &Candidate) -> bool {
    let is_it = |id: i64, line: &Option<String>| id == job.id || line.is_some() && *line == job.ordering_key;
    any() && lock().iter().any(|((known, id), line)| known == file && is_it(*id, line))
}

/// Whether there are any of a file.
pub(super) fn any_of(file: &Path) -> bool {
    any() && lock().keys().any(|(known, _)| known == file)
}

fn any() -> bool {
    COUNT.load(Ordering::Acquire) > 0
}

fn lock() -> MutexGuard<'static, Jobs> {
    JOBS.lock().unwrap_or_else(PoisonError::into_inner)
}
