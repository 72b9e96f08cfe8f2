//! Closures of the user's, the only code of theirs that runs while the pen is held.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::time::Duration;

use rusqlite::Transaction;

use super::{Act, Group, HELD, NEWS, OpError, OpResult, Pen, STORED};
use crate::clock::{Stopwatch, millis};
use crate::fault::StorageFault;

/// A closure of the user's may hold the writer lock this long before SQLite is told to interrupt it.
const CLOSURE_LIMIT: Duration = Duration::from_secs(5);
/// A closure that holds it longer than this is reported.
const CLOSURE_LONG: Duration = Duration::from_secs(1);
/// How many steps of SQLite's machine pass between two looks at the clock.
const STEPS: i32 = 10_000;

impl Pen {
    /// Runs a closure of the user's inside `group`: interrupted when it holds the writer lock too long, reported when it
    /// is slow, and with every writing call of this store refused meanwhile.
    pub(crate) fn run_closure<T>(
        &self,
        group: &mut Group<'_>,
        act: Act,
        about: &str,
        f: impl FnOnce(&Transaction<'_>) -> anyhow::Result<T>,
    ) -> OpResult<anyhow::Result<T>> {
        let held = Stopwatch::start();
        let tx = group.tx();
        let is_over = move || held.elapsed() > CLOSURE_LIMIT;
        tx.progress_handler(STEPS, Some(is_over))?;
        let me = std::ptr::from_ref(self).addr();
        HELD.with_borrow_mut(|pens| pens.push(me));
        STORED.set(None);
        NEWS.take();
        let result = catch_unwind(AssertUnwindSafe(|| f(tx)));
        HELD.with_borrow_mut(Vec::pop);
        if let Some(run_at) = STORED.take() {
            group.note_due(run_at);
        }
        group.news.append(&mut NEWS.take());
        tx.progress_handler(0, None::<fn() -> bool>)?;
        let held_ms = u64::try_from(millis(held.elapsed())).unwrap_or(0);
        if held.elapsed() > CLOSURE_LONG {
            tracing::warn!(about, held_ms, "a closure of {} held the writer lock for long", act.name);
        }
        let result = result.unwrap_or_else(|panic| resume_unwind(panic));
        // Short statements never meet the handler: what has held the lock for too long is not stored in any case.
        if held.elapsed() > CLOSURE_LIMIT {
            return Err(OpError::Fault(StorageFault::Interrupted { held_ms }));
        }
        if tx.is_autocommit() {
            return Err(OpError::Ended);
        }
        Ok(result)
    }
}
