//! Jobs of which an attempt was given up on and still runs somewhere in this process, by file. None of its runners claims
//! such a job: what the thread does outside the database would be done twice at once.

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{LazyLock, Mutex, MutexGuard, PoisonError};

static JOBS: LazyLock<Mutex<HashSet<(PathBuf, i64)>>> = LazyLock::new(Mutex::default);
/// Asked for every job that is claimed.
static COUNT: AtomicUsize = AtomicUsize::new(0);

pub(super) fn add(file: &Path, job: i64) {
    let mut jobs = lock();
    jobs.insert((file.to_owned(), job));
    COUNT.store(jobs.len(), Ordering::Release);
}

pub(super) fn remove(file: &Path, job: i64) {
    let mut jobs = lock();
    jobs.remove(&(file.to_owned(), job));
    COUNT.store(jobs.len(), Ordering::Release);
}

pub(super) fn contains(file: &Path, job: i64) -> bool {
    any() && lock().contains(&(file.to_owned(), job))
}

/// Whether there are any of a file.
pub(super) fn any_of(file: &Path) -> bool {
    any() && lock().iter().any(|(known, _)| known == file)
}

fn any() -> bool {
    COUNT.load(Ordering::Acquire) > 0
}

fn lock() -> MutexGuard<'static, HashSet<(PathBuf, i64)>> {
    JOBS.lock().unwrap_or_else(PoisonError::into_inner)
}
