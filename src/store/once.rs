//! `once`: run here and now under the key, or answer what came of it.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, OnceLock, PoisonError};

use rusqlite::params;

use super::{Store, Written};
use crate::claim::{Candidate, Traits, take};
use crate::context::{Context, Flags, Noted, encode};
use crate::endings::Ending;
use crate::enqueue::{Answer, Compared, Known, NewJob, Stored, store};
use crate::error::{Error, Result};
use crate::failure::{Class, is_untouched, panic_text, text_of, verdict_of};
use crate::job::Job;
use crate::outcome::{Ended, Next, decide};
use crate::owner::{Holder, Owner, find_gone, reap};
use crate::pen::{Act, Group, Mode, OpResult};
use crate::retry::RetryPolicy;
use crate::schema::VERSION;
use crate::settle::{Claim, Settled};
use crate::sql;
use crate::state::State;
use crate::telling::{attempt_span, started};

const ONCE: Act = Act { name: "once", instead: "once before or after the transaction" };
/// A repeat must find the first one's claim and its end, whatever happens to the machine in between.
const SYNCED: Mode = Mode { atomic: true, synced: true, follows: false };

/// What claiming for a caller came to.
enum Turn {
    Claimed(Box<Claim>),
    Known(Box<Answer>),
    HeldBy(i64, Box<Answer>),
}

impl Store {
    /// Runs `f` under the job's key, in this thread, and stores what it returns; a repeat of the key returns the stored
    /// output without running anything.
    ///
    /// A job born here belongs to its callers: no runner claims it. When `f` fails, the attempt is on record and the next
    /// `once` may run it at once, whatever its backoff; a permanent failure or spent attempts make it dead, and `once`
    /// then answers the stored error. One whose process died can be claimed again. Claim and completion are synced
    /// whatever the store's durability. [`Job::timeout`] plays no part: it is the caller's thread. Neither a pause nor a
    /// limit holds a caller back.
    ///
    /// ```
    /// # use birkez::Job;
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct CloseMonth { month: String }
    /// # impl Job for CloseMonth {
    /// #     const KIND: &'static str = "close-month";
    /// #     type Output = i64;
    /// #     fn key(&self) -> String { self.month.clone() }
    /// # }
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// let month = CloseMonth { month: "2026-11".into() };
    /// assert_eq!(store.once(&month, |_cx| Ok(42))?, 42);
    /// assert_eq!(store.once(&month, |_cx| unreachable!("it is done"))?, 42);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InProgress`] if it is running elsewhere; [`Error::Failed`] if `f` failed; [`Error::Dead`],
    /// [`Error::Cancelled`], [`Error::Parked`] if it ended so before; [`Error::NotForCallers`] if it was enqueued for
    /// runners; [`Error::ResultGone`], [`Error::ResultUnreadable`] if it is done and its output is not to be had;
    /// [`Error::LeaseLost`] if this process was declared gone meanwhile; otherwise as [`enqueue`](Store::enqueue).
    ///
    /// # Panics
    ///
    /// If `f` panics, after putting the attempt on record.
    pub fn once<J: Job>(&self, job: &J, f: impl FnOnce(&Context) -> anyhow::Result<J::Output>) -> Result<J::Output> {
        if self.inner.pen.is_held_here() {
            return Err(Error::InsideTransaction { act: ONCE.name, instead: ONCE.instead });
        }
        let new = NewJob::encode(job, &self.inner.terms)?;
        // Before anything is claimed: it is the user's, and may panic.
        let traits = Traits::of::<J>();
        match self.claim_for_caller(&new, &traits)? {
            Turn::Claimed(claim) => self.run_for_caller::<J>(Arc::new(*claim), traits.policy, f),
            Turn::Known(answer) => answer_caller::<J>(&answer.row, &new.key),
            Turn::HeldBy(_, answer) => Err(Error::InProgress { kind: J::KIND.to_owned(), key: new.key, id: answer.id }),
        }
    }

    fn claim_for_caller(&self, job: &NewJob, traits: &Traits) -> Result<Turn> {
        let owner = self.inner.owner()?;
        let mut asked = false;
        loop {
            let (job, owner, traits) = (job.clone(), Arc::clone(&owner), traits.clone());
            let turn = self.write_compared(ONCE, SYNCED, move |group, compared| {
                claim_or_answer(group, &owner, &job, &traits, compared)
            })?;
            match turn {
                Turn::HeldBy(holder, answer) => {
                    // Asked once: whoever is not gone now is at work.
                    if asked || !self.take_back_if_gone(holder)? {
                        return Ok(Turn::HeldBy(holder, answer));
                    }
                    asked = true;
                }
                turn => return Ok(turn),
            }
        }
    }

    fn take_back_if_gone(&self, holder: i64) -> Result<bool> {
        let me = self.inner.owner()?.id;
        let holders = self.read("looking for a dead process", |tx| Holder::all(tx, me))?;
        let mut watch = self.inner.watch.lock().unwrap_or_else(PoisonError::into_inner);
        let mut gone = find_gone(&mut watch, &holders, self.path(), &*self.inner.clock);
        gone.retain(|gone| gone.id() == holder);
        let found = !gone.is_empty();
        reap(&self.inner.pen, &mut watch, gone)?;
        Ok(found)
    }

    fn run_for_caller<J: Job>(
        &self,
        claim: Arc<Claim>,
        policy: RetryPolicy,
        f: impl FnOnce(&Context) -> anyhow::Result<J::Output>,
    ) -> Result<J::Output> {
        self.wait_for_start(&claim);
        let flags = Arc::new(Flags::default());
        let cx = Context::new::<J::Output>(self.clone(), Arc::clone(&claim), Arc::clone(&flags));
        claim.started.store(self.inner.clock.wall(), Ordering::Release);
        self.inner.pen.teller().tell_now(self.inner.clock.wall(), || started(&claim));
        let span = attempt_span(&claim);
        let result = catch_unwind(AssertUnwindSafe(|| span.in_scope(|| f(&cx))));
        self.inner.trial.end(claim.id);
        if flags.settled.load(Ordering::Acquire) {
            return match result {
                Ok(Ok(output)) => Ok(output),
                // It is done all the same: what `commit` stored is the answer.
                Ok(Err(_)) => self.stored_output::<J>(&claim),
                Err(panic) => resume_unwind(panic),
            };
        }
        let ended = match &result {
            Ok(Ok(output)) => Ended::Done(encode(output, self.inner.terms.payload_limit)),
            Ok(Err(error)) => ended_by(error),
            Err(panic) => Ended::Panicked { text: panic_text(&**panic) },
        };
        let ended = flags.judge(ended);
        let mut failed = failed(&claim, &ended, &policy);
        if let (Ok(Err(error)), Ended::StorageTrouble, Error::Failed { text, .. }) = (&result, &ended, &mut failed) {
            *text = text_of(error);
        }
        let settled = self.settle_for_caller(&claim, ended, policy, flags.progress.take());
        match result {
            Ok(Ok(output)) => match settled? {
                Settled::Written => Ok(output),
                Settled::LeaseLost => Err(Error::LeaseLost { kind: claim.kind.clone(), key: claim.key.clone() }),
            },
            Ok(Err(_)) if self.job(claim.id)?.is_some_and(|job| job.state == State::Cancelled) => {
                Err(Error::Cancelled { kind: claim.kind.clone(), key: claim.key.clone() })
            }
            Ok(Err(_)) => Err(failed),
            Err(panic) => resume_unwind(panic),
        }
    }

    fn settle_for_caller(
        &self,
        claim: &Arc<Claim>,
        ended: Ended,
        policy: RetryPolicy,
        noted: Option<Noted>,
    ) -> Result<Settled> {
        let told = Arc::new(OnceLock::new());
        let (claim, told_here) = (Arc::clone(claim), Some(Arc::clone(&told)));
        let owner = claim.owner.id;
        let ending = Ending { claim, ended, policy, noted, told: told_here, unwritten: None };
        self.inner.endings.push(ending);
        // More endings than one transaction takes may be in front of this one.
        loop {
            let written = Arc::clone(&told);
            self.inner.pen.write(ONCE, SYNCED, move |group| {
                if written.get().is_some() {
                    // Somebody else's transaction took it along, and that one need not have been synced. A commit that
                    // changes nothing would not sync it either.
                    group.statement(sql::BEAT)?.execute(params![owner, group.now, VERSION])?;
                }
                Ok(())
            })?;
            if let Some(settled) = told.get() {
                return Ok(*settled);
            }
        }
    }

    fn stored_output<J: Job>(&self, claim: &Claim) -> Result<J::Output> {
        let known = self.read("reading an output", |tx| {
            tx.prepare_cached(sql::JOB_BY_KEY)?.query_row([&claim.kind, &claim.key], Known::read)
        })?;
        known.output(&claim.key)
    }

    /// A suspect starts by itself, and nothing starts beside a suspect.
    fn wait_for_start(&self, claim: &Claim) {
        let inner = &self.inner;
        while claim.suspect && !inner.trial.begin(claim.id, inner.clock.monotonic()) {
            std::thread::sleep(std::time::Duration::from_millis(1));
        }
        while let Err(wait) = inner.trial.may_start(claim.id, inner.clock.monotonic()) {
            std::thread::sleep(wait.min(std::time::Duration::from_millis(1)));
        }
    }
}

/// What an error returned by a handler ends its attempt as.
pub(crate) fn ended_by(error: &anyhow::Error) -> Ended {
    let text = text_of(error);
    let storage = error.chain().find_map(|link| link.downcast_ref::<Error>());
    match storage {
        // Storage contention is never a job's failure.
        Some(
            Error::Busy { .. } | Error::StaleTransaction { .. } | Error::DiskFull { .. } | Error::OutcomeUnknown { .. },
        ) => {
            tracing::info!(text, "a handler met a busy or full file; it runs again");
            Ended::StorageTrouble
        }
        // No repeat mends the program.
        Some(
            Error::OutputMismatch { .. }
            | Error::StepInvalid { .. }
            | Error::StepRepeated { .. }
            | Error::StepNotStored { .. },
        ) => Ended::Misused { class: Class::Permanent, text },
        Some(Error::StepUnreadable { .. }) => Ended::Misused { class: Class::Undecodable, text },
        _ => Ended::Failed { verdict: verdict_of(error), text, untouched: is_untouched(error) },
    }
}

fn claim_or_answer(
    group: &mut Group<'_>,
    owner: &Arc<Owner>,
    job: &NewJob,
    traits: &Traits,
    compared: &Compared,
) -> OpResult<Written<Turn>> {
    let answer = match store(group, job, compared, true)? {
        Stored::MustCompare(question) => return Ok(Err(vec![question])),
        Stored::Answered(answer) => answer,
    };
    Ok(Ok(match (answer.row.state, answer.row.holder) {
        (State::Running, Some(holder)) => Turn::HeldBy(holder, answer),
        (State::Waiting, _) if answer.row.for_callers => {
            // Where an older program stored it.
            let idempotency = |_: &Candidate| job.idempotency.clone().unwrap_or_default();
            match take(group, owner, candidate(&answer.row, job), traits, &idempotency)? {
                Some(claim) => Turn::Claimed(Box::new(claim)),
                // Another job stays that holds the key under another name.
                None => match store(group, job, compared, true)? {
                    Stored::Answered(answer) => Turn::Known(answer),
                    Stored::MustCompare(question) => return Ok(Err(vec![question])),
                },
            }
        }
        _ => Turn::Known(answer),
    }))
}

fn candidate(row: &Known, job: &NewJob) -> Candidate {
    Candidate {
        id: row.id,
        kind: row.kind.clone(),
        key: job.key.clone(),
        payload: None,
        shape: row.shape,
        priority: 0,
        run_at: row.run_at,
        attempts: row.attempts,
        claims: row.claims,
        deadline: row.deadline,
        suspect: row.is_suspect,
        for_callers: true,
        ordering_key: row.ordering_key.clone(),
        idempotency: row.idempotency.clone(),
        version: None,
        created_at: row.created_at,
        one_attempt: false,
    }
}

/// The answer to a repeat.
fn answer_caller<J: Job>(row: &Known, key: &str) -> Result<J::Output> {
    let (kind, key) = (J::KIND.to_owned(), key.to_owned());
    match row.state {
        State::Done => row.output(&key),
        State::Dead => {
            let failure = row.failure();
            Err(Error::Dead { kind, key, class: failure.class.to_string(), text: failure.text })
        }
        State::Cancelled => Err(Error::Cancelled { kind, key }),
        State::Parked => Err(Error::Parked { kind, key, reason: row.reason.clone().unwrap_or_default() }),
        State::Running => Err(Error::InProgress { kind, key, id: row.id }),
        State::Waiting => Err(Error::NotForCallers { kind, key, existing: row.job_ref() }),
    }
}

/// The error for a caller whose closure did not succeed.
fn failed(claim: &Claim, ended: &Ended, policy: &RetryPolicy) -> Error {
    let settlement = decide(ended.clone(), &claim.facts(policy, claim.since, 0.0));
    Error::Failed {
        kind: claim.kind.clone(),
        key: claim.key.clone(),
        class: settlement.class.unwrap_or(Class::Transient).to_string(),
        text: settlement.record.map(|record| record.text).unwrap_or_default(),
        attempt: claim.attempt,
        retryable: matches!(settlement.next, Next::Waiting { .. } | Next::Back),
    }
}
