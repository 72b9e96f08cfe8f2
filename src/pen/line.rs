//! The line before the pen.

use std::collections::VecDeque;
use std::sync::{Arc, Condvar, Mutex, PoisonError};
use std::time::Duration;

use super::{Group, Mode};
use crate::fault::StorageFault;

type Op = Box<dyn FnOnce(&mut Group<'_>) -> Result<(), StorageFault> + Send>;

/// What a place in the line has come to.
#[derive(Clone, Debug)]
pub(super) enum Turn {
    Waiting,
    /// Its operation is in the leader's transaction.
    Taken,
    /// Its thread has the pen.
    Lead,
    Done(Result<(), StorageFault>),
}

/// A place in the line. Its thread is woken by it alone: waiting on the pen's own lock cost a commit more each.
pub(super) struct Slot {
    turn: Mutex<Turn>,
    signal: Condvar,
    op: Mutex<Option<Op>>,
    in_person: bool,
    synced: bool,
}

impl Slot {
    pub(super) fn take(&self) -> Option<Op> {
        self.op.lock().unwrap_or_else(PoisonError::into_inner).take()
    }

    pub(super) fn set(&self, turn: Turn) {
        *self.turn.lock().unwrap_or_else(PoisonError::into_inner) = turn;
        self.signal.notify_one();
    }

    /// Waits until it has the pen or is done, or until `limit` is over.
    pub(super) fn wait(&self, limit: Option<Duration>) -> Turn {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let undecided = |turn: &mut Turn| matches!(turn, Turn::Waiting | Turn::Taken);
        let limit = limit.unwrap_or(Duration::ZERO);
        self.signal.wait_timeout_while(turn, limit, undecided).unwrap_or_else(PoisonError::into_inner).0.clone()
    }

    /// Waits until it has the pen or is done.
    pub(super) fn wait_on(&self) -> Turn {
        let turn = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let undecided = |turn: &mut Turn| matches!(turn, Turn::Waiting | Turn::Taken);
        self.signal.wait_while(turn, undecided).unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Who has the pen, and who waits for it in which order.
#[derive(Default)]
pub(super) struct Line {
    held: bool,
    waiting: VecDeque<Arc<Slot>>,
}

impl Line {
    /// Takes the pen if nobody has it.
    pub(super) fn take_pen(&mut self) -> bool {
        !std::mem::replace(&mut self.held, true)
    }

    /// Lines up with an operation that any thread may write.
    pub(super) fn join(
        &mut self,
        mode: Mode,
        op: impl FnOnce(&mut Group<'_>) -> Result<(), StorageFault> + Send + 'static,
    ) -> Arc<Slot> {
        self.push(Some(Box::new(op)), mode)
    }

    /// Lines up for the pen itself.
    pub(super) fn join_in_person(&mut self, mode: Mode) -> Arc<Slot> {
        self.push(None, mode)
    }

    fn push(&mut self, op: Option<Op>, mode: Mode) -> Arc<Slot> {
        let slot = Arc::new(Slot {
            turn: Mutex::new(Turn::Waiting),
            signal: Condvar::new(),
            in_person: op.is_none(),
            op: Mutex::new(op),
            synced: mode.synced,
        });
        self.waiting.push_back(Arc::clone(&slot));
        slot
    }

    /// The first in line, if its operation fits into the leader's transaction.
    pub(super) fn take_next(&mut self, synced: bool) -> Option<Arc<Slot>> {
        let first = self.waiting.front()?;
        if first.in_person || (first.synced && !synced) {
            return None;
        }
        let slot = self.waiting.pop_front()?;
        slot.set(Turn::Taken);
        Some(slot)
    }

    /// Leaves the line; false if its turn has come meanwhile.
    pub(super) fn leave(&mut self, slot: &Arc<Slot>) -> bool {
        let before = self.waiting.len();
        self.waiting.retain(|other| !Arc::ptr_eq(other, slot));
        self.waiting.len() < before
    }

    /// Hands the pen to the first in line, or puts it down.
    pub(super) fn pass_pen(&mut self) {
        match self.waiting.pop_front() {
            Some(next) => next.set(Turn::Lead),
            None => self.held = false,
        }
    }
}
