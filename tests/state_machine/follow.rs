//! What the library does at its own choice is taken over from the file, if it was right to do it: when it writes how an
//! attempt has ended, what it calls off, and what it claims.

use std::collections::{BTreeMap, BTreeSet};

use birkez::rusqlite::Connection;

use crate::file::{self, Held};
use crate::model::{Answer, Job, Lease, Model, Outcome};
use crate::order;

/// What the file shows.
pub struct Seen {
    pub leases: BTreeMap<i64, Held>,
    superseded: Vec<i64>,
    undecodable: Vec<i64>,
}

impl Seen {
    pub fn of(file: &Connection) -> Seen {
        let (superseded, undecodable) = (file::superseded(file), file::undecodable(file));
        Seen { leases: file::leases(file), superseded, undecodable }
    }
}

/// What was taken over.
#[derive(Default)]
pub struct Followed {
    pub undecodable: usize,
    pub superseded: u32,
    pub turns: u32,
}

/// Whether a process has claimed what it has not started. One that no type can read never reaches its handler.
pub fn has_buffered(model: &Model, runner: i64) -> bool {
    model.leases_of(runner).any(|(job, lease)| !lease.is_started && job.content.is_some())
}

/// `looked`: it has looked through the whole file since. `is_first`: it may have claimed before that look, while it
/// found that another process is gone.
pub fn follow(model: &mut Model, seen: &Seen, runner: i64, looked: bool, is_first: bool) -> Result<Followed, String> {
    settle_pending(model, seen, runner)?;
    let early = is_first.then(|| claimable(model));
    if looked {
        model.let_in();
    }
    let mut followed = Followed::default();
    let mut moved_up = BTreeSet::new();
    loop {
        if let Some(id) = seen.superseded.iter().find(|id| is_called_off(model, **id)) {
            moved_up.extend(model.supersede(*id)?);
            // It was chosen before it was called off, and counts among those in front of a lower priority.
            model.runners.entry(runner).or_default().passed += 1;
            followed.superseded += 1;
        } else if let Some(id) = next_undecodable(model, seen, runner) {
            followed.undecodable += 1;
            if model.job(id)?.lease.is_none() {
                judge(model, runner, &[id], &moved_up, early.as_ref())?;
                model.claim(id, runner, model.jobs[&id].claims + 1, false)?;
            }
            let before = claimable(model);
            let token = model.job(id)?.lease.as_ref().map_or(0, |lease| lease.token);
            model.settle(id, token, &Outcome::Undecodable)?;
            moved_up.extend(claimable(model).difference(&before));
        } else {
            break;
        }
    }
    give_back(model, seen, runner)?;
    followed.turns = claim_new(model, seen, runner, &moved_up, early.as_ref())?;
    Ok(followed)
}

/// All endings of a process are written in one transaction.
fn settle_pending(model: &mut Model, seen: &Seen, runner: i64) -> Result<(), String> {
    let pending = model.runners.entry(runner).or_default().pending.clone();
    let is_out = |id: i64, token| seen.leases.get(&id).is_some_and(|held| (held.token, held.runner) == (token, runner));
    if pending.iter().any(|(id, token, _)| is_out(*id, *token)) {
        return Ok(());
    }
    for (id, token, outcome) in pending {
        model.settle(id, token, &outcome)?;
    }
    model.runners.entry(runner).or_default().pending.clear();
    Ok(())
}

/// What was to stop, or was paused, before it had started is given back.
fn give_back(model: &mut Model, seen: &Seen, runner: i64) -> Result<(), String> {
    let must = |job: &Job, lease: &Lease| lease.cancel || model.paused.contains(job.kind.name);
    let held = model.leases_of(runner).filter(|(job, lease)| !lease.is_started && must(job, lease));
    let held = held.filter(|(job, lease)| !is_held(seen, job.id, lease.token));
    let held: Vec<(i64, i64)> = held.map(|(job, lease)| (job.id, lease.token)).collect();
    held.into_iter().try_for_each(|(id, token)| model.settle(id, token, &Outcome::GivenBack))
}

/// What was claimed, has not started, and is paused or to stop meanwhile is given back in the next transaction of whoever
/// claimed it, which may be the one that answers.
pub fn is_on_its_way_back(model: &Model, given: &Answer, wanted: &Answer) -> bool {
    let (Answer::Existing { id, state, compared }, Answer::Existing { id: same, state: "running", compared: alike }) =
        (given, wanted)
    else {
        return false;
    };
    let Some(job) = model.jobs.get(id) else { return false };
    let Some(lease) = job.lease.as_ref().filter(|lease| !lease.is_started) else { return false };
    let back = if lease.cancel { "cancelled" } else { "waiting" };
    let must = lease.cancel || model.paused.contains(job.kind.name);
    id == same && compared == alike && must && *state == back
}

fn is_held(seen: &Seen, id: i64, token: i64) -> bool {
    seen.leases.get(&id).is_some_and(|held| held.token == token)
}

fn claimable(model: &Model) -> BTreeSet<i64> {
    model.jobs.values().filter(|job| job.is_claimable()).map(|job| job.id).collect()
}

fn is_called_off(model: &Model, id: i64) -> bool {
    model.jobs.get(&id).is_some_and(|job| job.is_claimable() && model.is_superseded(job))
}

/// The best of those that were claimed and did not decode since the last look.
fn next_undecodable(model: &Model, seen: &Seen, runner: i64) -> Option<i64> {
    let jobs = seen.undecodable.iter().filter_map(|id| model.jobs.get(id)).filter(|job| job.content.is_none());
    let ran = jobs.filter(|job| match &job.lease {
        Some(lease) => lease.runner == runner,
        None => job.is_claimable(),
    });
    ran.min_by_key(|job| (job.lease.is_none(), !job.is_suspect(), job.rank())).map(|job| job.id)
}

/// Refuses claims that were not to be made yet. What was claimed before the look is judged by what could be claimed then.
fn judge(
    model: &mut Model,
    runner: i64,
    ids: &[i64],
    moved_up: &BTreeSet<i64>,
    early: Option<&BTreeSet<i64>>,
) -> Result<BTreeSet<i64>, String> {
    let judged = order::judge(model, runner, ids, moved_up);
    match early {
        Some(early) if ids.iter().all(|id| early.contains(id)) => Ok(judged.unwrap_or_default()),
        _ => judged,
    }
}

fn claim_new(
    model: &mut Model,
    seen: &Seen,
    runner: i64,
    moved_up: &BTreeSet<i64>,
    early: Option<&BTreeSet<i64>>,
) -> Result<u32, String> {
    let is_known = |id: &i64| model.jobs.get(id).is_some_and(|job| job.lease.is_some());
    let new: Vec<&Held> = seen.leases.values().filter(|held| held.runner == runner && !is_known(&held.job)).collect();
    let ids: Vec<i64> = new.iter().map(|held| held.job).collect();
    let turns = judge(model, runner, &ids, moved_up, early)?;
    for held in new {
        let job = model.job(held.job)?;
        let attempt = job.attempts + 1;
        let wanted = (attempt, model.now, job.on_crash(attempt, job.is_suspect()));
        if (held.attempt, held.since, held.on_crash) != wanted {
            return Err(format!("the lease is {held:?}, and should have {wanted:?}: {job:?}"));
        }
        model.claim(held.job, runner, held.token, turns.contains(&held.job))?;
    }
    Ok(turns.len() as u32)
}
