//! A worker: one thread that runs one job at a time.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::crew::Crew;
use crate::error::{Error, Result};
use crate::failure::panicked;
use crate::outcome::Ended;
use crate::settle::Claim;

thread_local! {
    /// Which crew this thread works for, by address.
    static CREW: Cell<usize> = const { Cell::new(0) };
}

/// Starts a worker. It ends when the buffer is closed, or with an attempt that was given up on, when another has taken
/// its place.
pub(super) fn spawn(crew: &Arc<Crew>) -> Result<JoinHandle<()>> {
    let path = crew.store.path().to_owned();
    let crew = Arc::clone(crew);
    let work = move || {
        CREW.set(Arc::as_ptr(&crew).addr());
        while let Some(claim) = crew.buffer.take(&crew.inner().trial, &*crew.inner().clock, || crew.out_of_work()) {
            if !may_start(&crew, &claim) {
                crew.buffer.lay_down(1);
                continue;
            }
            if !run(&crew, Arc::new(claim)) {
                break;
            }
        }
    };
    std::thread::Builder::new().name("birkez-worker".into()).spawn(work).map_err(|source| Error::Io {
        act: "starting a worker's thread for",
        path,
        source,
    })
}

/// Runs a job. What panics outside the handler, such as the drop of what it has left, costs the attempt, not the worker.
fn run(crew: &Crew, claim: Arc<Claim>) -> bool {
    let job = Arc::clone(&claim);
    match catch_unwind(AssertUnwindSafe(|| crew.run(claim))) {
        Ok(waited_for) => waited_for,
        Err(panic) => {
            let waited_for = crew.attempts.end(job.id);
            if waited_for {
                crew.push(job, Ended::Panicked { text: panicked(panic) }, None);
            }
            waited_for
        }
    }
}

/// Whether this thread is one of the crew's workers.
pub(super) fn works_for(crew: &Arc<Crew>) -> bool {
    CREW.get() == Arc::as_ptr(crew).addr()
}

/// A process whose beat has not reached the file for a whole lease may have been declared gone: it starts nothing until
/// it knows.
fn may_start(crew: &Crew, claim: &Claim) -> bool {
    while !claim.owner.is_fresh(crew.now()) {
        if claim.owner.is_lost() {
            crew.inner().trial.end(claim.id);
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}
