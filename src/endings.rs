//! Attempts that have ended and wait to be written: the first thing in every transaction of the pen.
//!
//! A transaction that fails keeps them for the next. Writing one twice, after a COMMIT that only seemed to fail, is
//! harmless: the file tells that it has been applied.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

use crossbeam_channel::{Receiver, Sender, unbounded};

use crate::clock::Clock;
use crate::context::{Noted, write_progress};
use crate::fault::StorageFault;
use crate::outcome::{Ended, Settlement, decide};
use crate::pen::{Group, Rider};
use crate::retry::RetryPolicy;
use crate::settle::{Claim, Settled, settle};
use crate::telling::{EventJob, Happened, Teller};

/// Most of them that one transaction writes.
const AT_ONCE: usize = 1_024;
/// And one that is to be brief.
const BRIEFLY: usize = 64;

/// An attempt that has ended.
pub(crate) struct Ending {
    pub claim: Arc<Claim>,
    pub ended: Ended,
    pub policy: RetryPolicy,
    /// How far it said last that it was, if that is not in the file yet.
    pub noted: Option<Noted>,
    /// Told what came of it, once that is committed.
    pub told: Option<Arc<OnceLock<Settled>>>,
    /// Lowered by one once it is committed.
    pub unwritten: Option<Arc<AtomicUsize>>,
}

pub(crate) struct Endings {
    clock: Arc<dyn Clock>,
    teller: Arc<Teller>,
    send: Sender<Ending>,
    receive: Receiver<Ending>,
    /// In the transaction that is open, or left from one that failed.
    in_hand: Mutex<Vec<InHand>>,
}

impl Endings {
    pub(crate) fn new(clock: Arc<dyn Clock>, teller: Arc<Teller>) -> Endings {
        let (send, receive) = unbounded();
        Endings { clock, teller, send, receive, in_hand: Mutex::default() }
    }

    pub(crate) fn push(&self, ending: Ending) {
        // The receiver lives as long as this does.
        let _ = self.send.send(ending);
    }

    /// Whether there is nothing to write.
    pub(crate) fn is_empty(&self) -> bool {
        let in_hand = self.in_hand.lock().unwrap_or_else(PoisonError::into_inner);
        self.receive.is_empty() && in_hand.is_empty()
    }

    fn settlement(&self, ending: &Ending, now: i64) -> Settlement {
        decide(ending.ended.clone(), &ending.claim.facts(&ending.policy, now, self.clock.random()))
    }

    fn settle_all(&self, group: &mut Group<'_>, endings: &mut [InHand]) -> rusqlite::Result<()> {
        for (ending, settled) in endings {
            // Stays so if it cannot be written.
            *settled = Settled::LeaseLost;
            if let Some(noted) = &ending.noted {
                write_progress(group, &ending.claim, noted)?;
            }
            let settlement = self.settlement(ending, group.now);
            *settled = settle(group, &ending.claim, settlement)?;
        }
        Ok(())
    }
}

/// An ending, and what came of it in the transaction that is open.
type InHand = (Ending, Settled);

impl Rider for Endings {
    fn open(&self, group: &mut Group<'_>) -> rusqlite::Result<()> {
        let mut in_hand = self.in_hand.lock().unwrap_or_else(PoisonError::into_inner);
        let most = if group.brief { BRIEFLY } else { AT_ONCE };
        let room = most.saturating_sub(in_hand.len());
        in_hand.extend(self.receive.try_iter().take(room).map(|ending| (ending, Settled::LeaseLost)));
        if in_hand.is_empty() {
            return Ok(());
        }
        if group.isolated(|group| self.settle_all(group, &mut in_hand))?.is_none() {
            // One of them cannot be written, such as by a trigger of the app's. It must not hold up the others.
            for one in in_hand.iter_mut() {
                group.isolated(|group| self.settle_all(group, std::slice::from_mut(one)))?;
            }
        }
        Ok(())
    }

    fn committed(&self, outcome: Result<(), &StorageFault>) {
        if outcome.is_err() {
            return;
        }
        for (ending, settled) in self.in_hand.lock().unwrap_or_else(PoisonError::into_inner).drain(..) {
            if settled == Settled::LeaseLost && ending.ended != Ended::GivenBack {
                let Claim { id, kind, key, token, attempt, .. } = &*ending.claim;
                tracing::warn!(job = id, kind, token, "a late result was refused: the lease had been lost");
                let refused = || Happened::ResultRefused { job: EventJob::new(*id, kind, key), attempt: *attempt };
                self.teller.tell_now(self.clock.wall(), refused);
            }
            if let Some(told) = ending.told {
                let _ = told.set(settled);
            }
            if let Some(unwritten) = ending.unwritten {
                unwritten.fetch_sub(1, Ordering::AcqRel);
            }
        }
    }
}
