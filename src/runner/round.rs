//! A runner's part in every transaction: what has come due, and what is claimed for its workers.

use std::cell::RefCell;
use std::sync::atomic::Ordering;
use std::sync::{Arc, PoisonError};
use std::time::Duration;

use super::crew::{Crew, NEVER, Stage};
use super::pace::{Budget, REACH};
use crate::claim::{Candidate, Fairness, Wish, claim, claim_suspect, let_in, next_due};
use crate::fault::StorageFault;
use crate::hold::{Holds, Room};
use crate::owner::Owner;
use crate::pen::{Group, Rider};
use crate::settle::Claim;
use crate::sql;

/// How long a COMMIT of the host's is waited for, once it has stored a job.
const EXPECT_FOR: Duration = Duration::from_secs(1);
/// Most jobs that are looked for in that way; any of them leads to a look that finds the others.
const EXPECTED: usize = 256;

/// Most that a transaction claims ahead while it is to be brief: without any, a drain beside an app whose transactions are
/// rolled back again and again took up to eight times as long.
const BRIEFLY: usize = 8;

/// What one transaction has done for this crew.
#[derive(Default)]
pub(super) struct Round {
    /// The keeper wants the file looked through, not only what the transaction itself has made claimable.
    pub(super) whole: bool,
    claimed: Vec<Claim>,
    /// Something claimable may be left.
    left: bool,
    /// Jobs that it asks to stop.
    stopping: Vec<i64>,
    /// It changes a schedule, or what is asked of one.
    calendar: bool,
    /// More may be due than one look lets in.
    more: bool,
    /// When the earliest of the jobs that it has put off becomes due.
    due: i64,
    /// Pauses and limits, if they have changed.
    holds: Option<Arc<Holds>>,
    fairness: Fairness,
}

impl Crew {
    /// Claims for this crew, and says whether something claimable is left.
    fn fill(&self, group: &mut Group<'_>, round: &mut Round) -> rusqlite::Result<bool> {
        let mut kinds = self.open_kinds();
        let any_open = !kinds.is_empty();
        let holds = round.holds.clone().unwrap_or_else(|| self.holds());
        let room = holds.hold_back(&mut kinds, group.tx())?;
        if any_open && kinds.is_empty() {
            // Whoever ends the pause, or a job under the limit, says so.
            return Ok(false);
        }
        let unsynced = self.leave_unsynced(group, &mut kinds)?;
        let owner = self.owner();
        let trial = &self.inner().trial;
        if kinds.is_empty() || owner.is_lost() || trial.is_on(self.now()) || !self.presence.is_said() {
            return Ok(true);
        }
        Ok(self.claim_into(group, round, &owner, (&kinds, &room, &holds))? || unsynced)
    }

    /// Takes out the kinds whose claim must be synced if this transaction is not. True if one of them has a job to claim.
    fn leave_unsynced(&self, group: &Group<'_>, kinds: &mut Vec<String>) -> rusqlite::Result<bool> {
        if group.synced || self.at_most_once.is_empty() {
            return Ok(false);
        }
        let mut left = false;
        let mut ask = group.statement(sql::ANYTHING_CLAIMABLE)?;
        for kind in kinds.extract_if(.., |kind| self.at_most_once.contains(kind)) {
            left |= ask.query_row([kind], |row| row.get::<_, bool>(0))?;
        }
        if left {
            self.wants_sync.store(true, Ordering::Release);
            self.bell.ring();
        }
        Ok(left)
    }

    /// Claims jobs of `kinds`, and says whether more of them may be left.
    fn claim_into(
        &self,
        group: &mut Group<'_>,
        round: &mut Round,
        owner: &Arc<Owner>,
        (kinds, room, holds): (&[String], &Room, &Holds),
    ) -> rusqlite::Result<bool> {
        // As many threads may hang as there are workers: kinds in which some do get no more than what is left.
        let tainted = self.attempts.given_up_kinds();
        let is_tainted = |kind: &str| tainted.iter().any(|tainted| tainted == kind);
        let mut idle = self.buffer.room(group.freed);
        if kinds.iter().any(|kind| is_tainted(kind)) {
            idle = idle.min(self.room_for_hanging(&tainted));
        }
        let budget = self.budget();
        // Whoever only stores a job claims for idle workers; claiming ahead is the keeper's.
        let ahead = match (round.whole, group.brief) {
            (true, false) => budget.jobs,
            (true, true) => budget.jobs.min(BRIEFLY),
            (false, _) => 0,
        };
        let budget = RefCell::new(budget);
        // What is claimed ahead holds up its line, uses up its limit, or is taken for begun if the process dies.
        let may_lie = |job: &Candidate| {
            !is_tainted(&job.kind)
                && job.ordering_key.is_none()
                && !self.at_most_once.contains(&job.kind)
                && !holds.is_limited(&job.kind)
        };
        let wish = Wish {
            owner,
            kinds,
            room,
            idle,
            ahead,
            may_wait: &|job| may_lie(job) && budget.borrow_mut().spend(&job.kind),
            is_quick: &|job| may_lie(job) && budget.borrow().is_quick(&job.kind),
            traits: &|kind| self.traits(kind),
            idempotency: &|job| self.idempotency(job),
            runs_here: &|job| self.attempts.runs_here(job),
        };
        if idle > 0
            && let Some(suspect) = claim_suspect(group, &wish)?
        {
            self.inner().trial.begin(suspect.id, self.now());
            round.claimed.push(suspect);
            return Ok(true);
        }
        round.claimed = claim(group, &wish, &mut round.fairness)?;
        Ok(round.claimed.len() >= idle)
    }

    /// What may be claimed ahead. Who is in something long will not start it.
    fn budget(&self) -> Budget {
        let quick = self.workers.saturating_sub(self.attempts.longer_than(REACH, self.now()));
        let budget = self.pace.lock().unwrap_or_else(PoisonError::into_inner).budget(quick);
        budget.with_buffered(self.buffer.len(), |f| self.buffer.each_kind(f))
    }

    /// This crew's part in a transaction: what has come due, and what it claims.
    fn close_round(&self, group: &mut Group<'_>) -> rusqlite::Result<()> {
        let mut round = self.round();
        round.claimed.clear();
        let version = group.holds()?;
        round.holds = (self.holds().version != Some(version))
            .then(|| Holds::read(group.tx(), version))
            .transpose()?
            .map(Arc::new);
        // A lease that has ended may have been the last that a limit allows.
        let has_room = group.settled && self.holds().has_limits();
        round.left = self.is_hungry() || group.claimable || has_room;
        round.calendar = group.calendar;
        round.stopping.clone_from(&group.stopping);
        round.due = group.due_later.unwrap_or(NEVER);
        round.more = false;
        if round.whole {
            // Cleared before the look: what comes after it asks for another.
            self.look.store(false, Ordering::Release);
            round.more = group.isolated(let_in)?.unwrap_or(false);
            round.left = true;
        }
        if self.stage() == Stage::Working && round.left && (round.whole || self.buffer.room(group.freed) > 0) {
            // What cannot be claimed does not keep others from storing; it is tried again at the next look.
            let before = (std::mem::take(&mut group.claimable), group.due_later);
            if let Some(left) = group.isolated(|group| self.fill(group, &mut round))? {
                round.left = left;
                // What it has called off has made room for what stood behind, which it had not seen.
                round.more |= group.claimable || group.due_later != before.1;
            } else {
                round.left = false;
                round.claimed.clear();
            }
            // For the other runners of this process, which come after this one.
            group.claimable |= before.0;
        }
        self.buffer.take_up(round.claimed.len());
        if round.whole {
            // Before COMMIT: what another process commits after it is found by a look after it, and comes on top. If COMMIT
            // fails, the file is looked through once more.
            self.due.store(next_due(group)?.unwrap_or(NEVER), Ordering::Release);
        }
        Ok(())
    }
}

impl Rider for Crew {
    fn close(&self, group: &mut Group<'_>) -> rusqlite::Result<()> {
        // From before it is asked whether this crew stops: who stops it then waits for what is claimed here.
        self.buffer.take_up(1);
        let closed = self.close_round(group);
        self.buffer.lay_down(1);
        closed
    }

    fn expect(&self, job: i64) {
        let mut expected = self.expected();
        if expected.len() >= EXPECTED {
            expected.pop_front();
        }
        expected.push_back((job, self.now() + EXPECT_FOR));
        // Beside a drain, what is claimed ahead and what has ended would hold the file in front of it.
        self.inner().pen.be_brief(true);
        drop(expected);
        self.bell.ring();
    }

    fn wake(&self) {
        self.bell.ring();
    }

    fn committed(&self, outcome: Result<(), &StorageFault>) {
        let mut round = self.round();
        let whole = std::mem::take(&mut round.whole);
        let claimed = std::mem::take(&mut round.claimed);
        let stopping = std::mem::take(&mut round.stopping);
        let holds = round.holds.take();
        if outcome.is_err() {
            // A claim that was not stored is not handed out.
            self.buffer.lay_down(claimed.len());
            claimed.iter().filter(|claim| claim.suspect).for_each(|claim| self.inner().trial.end(claim.id));
            self.look.fetch_or(whole, Ordering::AcqRel);
            return;
        }
        self.hungry.store(round.left, Ordering::Release);
        if whole {
            self.fed.store(!claimed.is_empty(), Ordering::Release);
        }
        if round.more {
            self.look();
        }
        if whole && self.expected().is_empty() {
            self.inner().pen.be_brief(false);
        }
        if round.calendar || self.calendar_waits.load(Ordering::Acquire) {
            self.calendar_bell.ring();
        }
        if round.due != NEVER {
            self.due_at(round.due);
        }
        if whole {
            self.bell.ring();
        }
        drop(round);
        if let Some(holds) = holds {
            self.set_holds(holds);
        }
        self.buffer.put(claimed, self.now());
        self.ask_to_stop(&stopping);
        self.ring_if_stopping();
    }
}
