//! Writing what became of a claimed job, fenced by its lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};

use rusqlite::params;

use crate::enqueue::text;
use crate::failure::Class;
use crate::ordering::{gate_in_line, move_up, note_version};
use crate::outcome::{Facts, Next, Output, Settlement};
use crate::owner::Owner;
use crate::pen::Group;
use crate::retry::RetryPolicy;
use crate::sql;
use crate::telling::{note_settled, note_taken_back};

/// A job in the hands of a worker.
#[derive(Debug)]
pub(crate) struct Claim {
    pub id: i64,
    pub kind: String,
    pub key: String,
    pub payload: Option<String>,
    pub shape: u32,
    pub priority: i64,
    pub run_at: i64,
    pub attempt: u32,
    pub token: i64,
    pub since: i64,
    pub deadline: Option<i64>,
    /// It was claimed before by a process that died.
    pub suspect: bool,
    /// It belongs to the callers of `once`.
    pub for_callers: bool,
    /// Once started, it does not run again by itself.
    pub at_most_once: bool,
    /// Its ordering key.
    pub ordering_key: Option<String>,
    /// Which version of the ordering key's state it carries.
    pub version: Option<i64>,
    /// When it was enqueued.
    pub created_at: i64,
    /// Whatever its kind allows, its next failure is its last.
    pub one_attempt: bool,
    /// What the world outside tells repeats by.
    pub idempotency: String,
    pub owner: Arc<Owner>,
    /// When its handler was called, by the wall clock; 0 before that.
    pub started: AtomicI64,
}

impl Claim {
    /// What the decision about its end rests on.
    pub(crate) fn facts<'a>(&self, policy: &'a RetryPolicy, now: i64, random: f64) -> Facts<'a> {
        let Claim { attempt, since, deadline, at_most_once, one_attempt, .. } = *self;
        Facts { attempt, since, now, deadline, policy, at_most_once, one_attempt, random }
    }

    /// When its attempt began.
    pub(crate) fn started(&self) -> i64 {
        match self.started.load(Ordering::Acquire) {
            0 => self.since,
            started => started,
        }
    }

    /// The line that it stands in: one that belongs to callers stands in none.
    pub(crate) fn line(&self) -> Option<&str> {
        self.ordering_key.as_deref().filter(|_| !self.for_callers)
    }
}

/// What came of a settling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Settled {
    /// It is written now, or was written by an earlier try whose COMMIT seemed to fail.
    Written,
    /// The lease is somebody else's, or nobody's.
    LeaseLost,
}

/// Whether `claim` still holds its lease.
pub(crate) fn holds(group: &Group<'_>, claim: &Claim) -> rusqlite::Result<bool> {
    let mut ask = group.statement(sql::HOLDS_LEASE)?;
    ask.exists(params![claim.id, claim.owner.id, claim.token])
}

fn is_stopping(group: &Group<'_>, claim: &Claim) -> rusqlite::Result<bool> {
    group.statement(sql::IS_STOPPING)?.exists(params![claim.id, claim.owner.id, claim.token])
}

/// Whether the attempt of `claim` has been settled as its own.
pub(crate) fn was_settled(group: &Group<'_>, claim: &Claim) -> rusqlite::Result<bool> {
    group.statement(sql::WAS_SETTLED)?.exists(params![claim.id, claim.token])
}

/// Writes how the attempt of `claim` ended. One that was asked to stop and is not done ends as cancelled.
pub(crate) fn settle(group: &mut Group<'_>, claim: &Claim, settlement: Settlement) -> rusqlite::Result<Settled> {
    let settlement = match &settlement.next {
        Next::Done(_) => settlement,
        _ if is_stopping(group, claim)? => settlement.called_off(),
        _ => settlement,
    };
    let ended = group.statement(sql::END_LEASE)?.execute(params![claim.id, claim.owner.id, claim.token])?;
    if ended == 0 {
        return Ok(if was_settled(group, claim)? { Settled::Written } else { Settled::LeaseLost });
    }
    group.settled = true;
    if let Next::Done(output) = &settlement.next {
        write_done(group, claim, &settlement, output)?;
    } else {
        write_other(group, claim, &settlement)?;
    }
    if let Some(ordering_key) = claim.line() {
        if let (Next::Done(_), Some(version)) = (&settlement.next, claim.version) {
            note_version(group, ordering_key, version)?;
        }
        move_up(group, ordering_key)?;
    }
    if let Some(record) = &settlement.record {
        group.statement(sql::RECORD_ATTEMPT)?.execute(params![
            claim.id,
            claim.token,
            claim.attempt,
            record.class.as_str(),
            record.text,
            record.charged,
            claim.since,
            group.now,
        ])?;
    }
    note_settled(group, claim, &settlement)?;
    Ok(Settled::Written)
}

fn write_done(group: &mut Group<'_>, claim: &Claim, settlement: &Settlement, output: &Output) -> rusqlite::Result<()> {
    let (result, note) = match output {
        Output::Stored(json) => (Some(json), None),
        Output::NotStored(note) => (None, Some(*note)),
    };
    group.statement(sql::SETTLE_DONE)?.execute(params![
        claim.id,
        claim.token,
        settlement.attempts,
        result,
        note,
        group.now
    ])?;
    group.count(&claim.kind, 2, 1);
    Ok(())
}

fn write_other(group: &mut Group<'_>, claim: &Claim, settlement: &Settlement) -> rusqlite::Result<()> {
    let (mut state, mut gate, mut run_at, mut reason, mut finished) = (0, None, claim.run_at, None, None);
    match &settlement.next {
        Next::Waiting { run_at: at } => {
            run_at = *at;
            gate = Some(if claim.for_callers { 4 } else { i64::from(*at <= group.now) });
        }
        Next::Back => {
            gate = Some(match (claim.for_callers, claim.suspect) {
                (true, _) => 4,
                (false, true) => 3,
                (false, false) => 1,
            });
        }
        Next::Parked { reason: why } => (state, reason) = (1, Some(why)),
        Next::Dead => (state, finished) = (3, Some(group.now)),
        Next::Cancelled => (state, finished) = (4, Some(group.now)),
        Next::Done(_) => unreachable!("written elsewhere"),
    }
    if let Some(open) = gate.filter(|_| !claim.for_callers) {
        gate = Some(gate_in_line(group, claim.id, claim.line(), open)?);
        group.note_due(run_at);
    }
    group.statement(sql::SETTLE)?.execute(params![
        claim.id,
        state,
        gate,
        run_at,
        claim.token,
        settlement.attempts,
        settlement.deadline,
        reason,
        settlement.class.map(Class::as_str),
        settlement.record.as_ref().map(|record| &record.text),
        finished,
        settlement.next == Next::Back,
    ])?;
    Ok(())
}

/// Takes back everything that an owner held which is gone, by the verdicts that stand in its leases.
///
/// A claim does not charge, so what it held becomes suspect, uncharged. Only what was a suspect already was charged in
/// its claim, and may have spent its last attempt.
pub(crate) fn take_back(group: &mut Group<'_>, runner: i64) -> rusqlite::Result<usize> {
    let mut ask = group.statement(sql::LEASES_OF)?;
    let leases: Vec<Held> = ask.query_map([runner], Held::read)?.collect::<rusqlite::Result<_>>()?;
    // First: whoever moves up in a line must not find one of them running.
    group.statement(sql::DROP_LEASES_OF)?.execute([runner])?;
    for held in &leases {
        take_back_one(group, runner, held)?;
    }
    group.claimable |= !leases.is_empty();
    Ok(leases.len())
}

struct Held {
    job: i64,
    token: i64,
    attempt: u32,
    since: i64,
    on_crash: i64,
    kind: String,
    attempts: u32,
    for_callers: bool,
    ordering_key: Option<String>,
    is_stopping: bool,
}

impl Held {
    fn read(row: &rusqlite::Row<'_>) -> rusqlite::Result<Held> {
        Ok(Held {
            job: row.get(0)?,
            token: row.get(1)?,
            attempt: row.get(2)?,
            since: row.get(3)?,
            on_crash: row.get(4)?,
            kind: row.get(5)?,
            attempts: row.get(6)?,
            for_callers: row.get(7)?,
            ordering_key: text(row, 8)?,
            is_stopping: row.get(9)?,
        })
    }
}

fn take_back_one(group: &mut Group<'_>, runner: i64, held: &Held) -> rusqlite::Result<()> {
    let charged = held.attempts >= held.attempt;
    let (state, class) = match (held.on_crash, charged) {
        (1, _) => (1, Some(Class::UnknownOutcome)),
        (2, true) => (3, Some(Class::Crashed)),
        (_, true) => (0, Some(Class::Crashed)),
        (_, false) => (0, None),
    };
    // What was asked to stop does not run again.
    let state = if held.is_stopping && state != 1 { 4 } else { state };
    let text = class.map(|_| "its process died");
    let gate = match (state, held.for_callers) {
        (0, true) => Some(4),
        (0, false) => Some(gate_in_line(group, held.job, held.ordering_key.as_deref(), 3)?),
        _ => None,
    };
    let reason = (state == 1).then_some(Class::UnknownOutcome.as_str());
    let finished = (state >= 3).then_some(group.now);
    group.statement(sql::TAKE_BACK)?.execute(params![
        held.job,
        state,
        gate,
        held.token + 1,
        (state == 0).then_some(group.now),
        reason,
        class.map(Class::as_str),
        text,
        finished,
    ])?;
    if let Some(class) = class {
        group.statement(sql::RECORD_ATTEMPT)?.execute(params![
            held.job,
            held.token,
            held.attempt,
            class.as_str(),
            text,
            charged,
            held.since,
            group.now,
        ])?;
    }
    note_taken_back(group, (held.job, &held.kind, held.token, held.attempt), runner, class, state)?;
    if let Some(ordering_key) = held.ordering_key.as_deref().filter(|_| !held.for_callers) {
        move_up(group, ordering_key)?;
    }
    Ok(())
}
