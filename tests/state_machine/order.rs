//! Which job runs next.

use std::collections::BTreeSet;

use crate::model::{Job, Model};

/// So many may be claimed in front of a waiting job of lower priority.
const PATIENCE: u32 = 16;
/// What is looked at for a claim counts, also where it is called off or makes room for a turn.
const EARLY: u32 = 6;
/// What else may come in between: a turn that went to another, what was claimed already.
const SLACK: u32 = 40;

/// Refuses claims of `runner` that other jobs should have come before. Answers which of them were turns of a lower
/// priority. `moved_up` became claimable in this very moment and may have come too late.
pub fn judge(
    model: &mut Model,
    runner: i64,
    claimed: &[i64],
    moved_up: &BTreeSet<i64>,
) -> Result<BTreeSet<i64>, String> {
    let may_run = |job: &&Job| job.is_claimable() && !model.paused.contains(job.kind.name) && !model.is_superseded(job);
    let waiting: Vec<_> = model.jobs.values().filter(may_run).filter(|job| !moved_up.contains(&job.id)).collect();
    let mut turns = BTreeSet::new();
    let known = model.runners.get(&runner).cloned().unwrap_or_default();
    let (mut passed, mut in_front) = (known.passed, known.in_front);
    let best = claimed.iter().filter_map(|id| Some(model.jobs.get(id)?.priority)).max().unwrap_or(0);
    for id in claimed {
        let job = model.job(*id)?;
        if model.paused.contains(job.kind.name) {
            return Err(format!("job {id} was claimed, and its kind is paused: {job:?}"));
        }
        if job.is_suspect() && claimed.len() > 1 {
            return Err(format!(
                "job {id} was held by a process that died, and was not claimed by itself: {claimed:?}"
            ));
        }
        let comes_first = |other: &&&Job| {
            // Jobs that run at most once are claimed only where the claim is synced.
            let is_asked = !other.kind.at_most_once || job.kind.at_most_once;
            let is_before = match (job.is_suspect(), other.is_suspect()) {
                // A suspect comes before others of its priority.
                (true, false) => other.priority > job.priority,
                // It cannot be claimed beside others, and waits for what comes before it and whatever goes with that.
                (false, true) => other.priority >= best,
                _ => other.rank() < job.rank(),
            };
            is_asked && is_before && !claimed.contains(&other.id)
        };
        let first = waiting.iter().find(comes_first);
        if let Some(first) = first {
            // A turn goes by the level, and not always to the oldest of it: that one may have been chosen already, and
            // have made room for the turn.
            let is_turn = first.priority >= job.priority;
            if first.is_suspect() || !is_turn || passed + EARLY < PATIENCE {
                return Err(format!(
                    "job {id} was claimed before job {}, {passed} after the last turn: {job:?} {first:?}",
                    first.id
                ));
            }
            turns.insert(*id);
            // What was claimed in front beyond that counts for the next turn.
            (passed, in_front) = (passed.saturating_sub(PATIENCE), 0);
        } else {
            let lower = |other: &&&Job| other.priority < job.priority && !other.is_suspect();
            let starved = waiting.iter().find(lower);
            passed += 1;
            in_front = if starved.is_some() { in_front + 1 } else { 0 };
            if let Some(starved) = starved.filter(|_| in_front > PATIENCE + SLACK) {
                return Err(format!("job {} waits, and {in_front} others were claimed in front of it", starved.id));
            }
        }
    }
    let runner = model.runners.entry(runner).or_default();
    (runner.passed, runner.in_front) = (passed, in_front);
    Ok(turns)
}

/// Refuses the start of a job that another one, claimed by the same runner, should come before.
pub fn judge_start(model: &mut Model, runner: i64, id: i64) -> Result<(), String> {
    let held = model.leases_of(runner).filter(|(job, lease)| !lease.is_started && job.content.is_some());
    let held: Vec<_> = held.map(|(job, lease)| ((!lease.is_turn, job.rank()), job)).collect();
    let Some((_, started)) = held.iter().find(|(_, job)| job.id == id) else {
        return Err(format!("job {id} starts in process {runner}, which has not claimed it"));
    };
    let best = held.iter().min_by_key(|(rank, _)| *rank).map_or(*started, |(_, best)| *best);
    // It may have been claimed as a turn though nothing was left for it to be preferred to.
    let passed = model.runners.get(&runner).map_or(0, |runner| runner.passed);
    // A suspect starts by itself: whatever lies beside it waits.
    if started.lease.as_ref().is_some_and(|lease| lease.was_suspect) {
        return Ok(());
    }
    if best.id != id && (started.priority >= best.priority || passed + EARLY < PATIENCE) {
        return Err(format!("job {id} starts before job {}, which lies beside it, {passed} after a turn", best.id));
    }
    if best.id != id {
        model.runners.entry(runner).or_default().passed = 0;
    }
    Ok(())
}
