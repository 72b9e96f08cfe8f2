//! Finished jobs lose what their state's rules say, one stretch of numbers after another.

use rusqlite::{OptionalExtension, params};

use super::remove::remove;
use super::report::UpkeepReport;
use super::retention::{Cuts, FINISHED, Part, Parts, Retention};
use super::turn::Turn;
use super::work::Work;
use crate::error::Result;
use crate::pen::Group;
use crate::sql;
use crate::store::Store;

/// After so many stretches in which there was nothing to do, how far it is is written down all the same.
const SILENT: u32 = 100;
const READ: &str = "looking for what is over";

/// Over which jobs, and for what.
#[derive(Clone, Copy)]
pub(super) struct Walk {
    pub parts: Parts,
    /// To the end, whatever is young on the way.
    pub whole: bool,
    /// After this number.
    pub from: i64,
}

/// A finished job, and what is to go of it.
struct Due {
    id: i64,
    parts: Parts,
}

/// One read of the file.
struct Stretch {
    due: Vec<Due>,
    /// The last job that it covers.
    last: i64,
    /// Nothing more is to be found in this walk.
    is_last: bool,
}

/// Applies the rules to jobs in the order of their numbers. With a turn, it goes on only while that is its own, and leaves
/// in it how far it came.
pub(super) fn walk(work: &mut Work<'_>, retention: &Retention, walk: Walk, turn: &mut Option<Turn>) -> Result<()> {
    if !retention.has_rule(walk.parts) {
        return Ok(());
    }
    let cuts = cuts(work, retention, walk.parts)?;
    let spared = if walk.parts.has(Part::Key) { last_successes(work.store)? } else { Vec::new() };
    let mut place = walk.from;
    let mut silent = 0;
    while work.goes_on() {
        let stretch = stretch(work.store, &cuts, walk, place)?;
        place = stretch.last;
        let writes = !stretch.due.is_empty();
        let spared = spared.clone();
        work.each(stretch.due, move |group, due, report| apply(group, due, &cuts, &spared, report))?;
        if !work.goes_on() {
            // It was not dealt with to its end.
            return Ok(());
        }
        silent = if writes { 0 } else { silent + 1 };
        let Some(turn) = turn else {
            if stretch.is_last {
                return Ok(());
            }
            continue;
        };
        if stretch.is_last && walk.whole {
            return turn.end(work);
        }
        if (writes || silent >= SILENT || stretch.is_last && place != turn.place) && !turn.keep(work, place)? {
            return Ok(());
        }
        if stretch.is_last {
            return Ok(());
        }
    }
    Ok(())
}

/// Whether a walk would find something, or get on.
pub(super) fn leads_on(work: &Work<'_>, retention: &Retention, walk: Walk) -> Result<bool> {
    let cuts = cuts(work, retention, walk.parts)?;
    let found = stretch(work.store, &cuts, walk, walk.from)?;
    Ok(!found.due.is_empty() || !found.is_last && found.last != walk.from)
}

/// Whether a walk over all jobs can find anything. In a file whose very first job is young, it does not.
pub(super) fn is_any_old(work: &Work<'_>, retention: &Retention) -> Result<bool> {
    leads_on(work, retention, Walk { parts: Parts::ALL, whole: false, from: 0 })
}

fn cuts(work: &Work<'_>, retention: &Retention, parts: Parts) -> Result<Cuts> {
    Cuts::new(retention, parts, work.now, |state, most| beyond(work.store, state, most))
}

fn stretch(store: &Store, cuts: &Cuts, walk: Walk, from: i64) -> Result<Stretch> {
    store.read(READ, |tx| {
        let mut ask = tx.prepare_cached(sql::FINISHED_FROM)?;
        let mut rows = ask.query([from])?;
        let (mut due, mut last, mut seen) = (Vec::new(), from, 0);
        while let Some(row) = rows.next()? {
            let (id, state) = (row.get(0)?, row.get(1)?);
            if !walk.whole && cuts.is_young(id, row.get(2)?) {
                return Ok(Stretch { due, last, is_last: true });
            }
            let mut there = Parts::only(Part::Key);
            for (part, column) in [(Part::Payload, 4), (Part::Result, 5), (Part::History, 6)] {
                if row.get(column)? {
                    there.add(part);
                }
            }
            let parts = cuts.due(id, state, row.get(3)?).and(there);
            if !parts.is_empty() {
                due.push(Due { id, parts });
            }
            (last, seen) = (id, seen + 1);
        }
        Ok(Stretch { due, last, is_last: seen == 0 })
    })
}

/// Looks at the job once more, since it may have been replayed, and does what is still due.
fn apply(
    group: &mut Group<'_>,
    due: &Due,
    cuts: &Cuts,
    spared: &[i64],
    report: &mut UpkeepReport,
) -> rusqlite::Result<()> {
    let mut ask = group.statement(sql::FINISHED_JOB)?;
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(1)?, row.get(2)?));
    let Some((state, finished_at)) = ask.query_row([due.id], row).optional()? else { return Ok(()) };
    let mut parts = cuts.due(due.id, state, finished_at).and(due.parts);
    if parts.has(Part::Key) {
        match remove(group, due.id, cuts, spared)? {
            0 => report.kept_back += 1,
            removed => {
                report.keys += removed;
                return Ok(());
            }
        }
        parts = parts.and(due.parts);
    }
    retire(group, due.id, parts, report)
}

fn retire(group: &Group<'_>, id: i64, parts: Parts, report: &mut UpkeepReport) -> rusqlite::Result<()> {
    let [payload, result, history] = [Part::Payload, Part::Result, Part::History].map(|part| parts.has(part));
    if !(payload || result || history) {
        return Ok(());
    }
    group.statement(sql::RETIRE)?.execute(params![id, payload, result, history])?;
    if payload {
        group.statement(sql::DROP_KEPT_PAYLOADS)?.execute([id])?;
        report.payloads += 1;
    }
    if result {
        group.statement(sql::DROP_STEPS)?.execute([id])?;
        report.results += 1;
    }
    if history {
        group.statement(sql::DROP_ATTEMPTS)?.execute([id])?;
        group.statement(sql::DROP_PROGRESS)?.execute([id])?;
        report.histories += 1;
    }
    Ok(())
}

/// The number of the newest job of a state that is not among its newest `most`.
fn beyond(store: &Store, state: i64, most: u64) -> Result<Option<i64>> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    let ask = match state {
        3 => sql::DEAD_BEYOND,
        4 => sql::CANCELLED_BEYOND,
        _ => return done_beyond(store, most),
    };
    store.read(READ, |tx| tx.prepare_cached(ask)?.query_row([most], |row| row.get(0)).optional())
}

/// What is done has no index of its own: it is counted from the newest back, in short reads.
fn done_beyond(store: &Store, most: i64) -> Result<Option<i64>> {
    let (mut before, mut seen) = (i64::MAX, 0);
    loop {
        let stretch: Vec<(i64, i64)> = store.read(READ, |tx| {
            tx.prepare_cached(sql::DONE_BEFORE)?.query_map([before], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        })?;
        let Some(&(last, _)) = stretch.last() else { return Ok(None) };
        for (id, _) in stretch.into_iter().filter(|(_, state)| *state == FINISHED[0]) {
            if seen == most {
                return Ok(Some(id));
            }
            seen += 1;
        }
        before = last;
    }
}

fn last_successes(store: &Store) -> Result<Vec<i64>> {
    let found: Vec<Option<i64>> =
        store.read(READ, |tx| tx.prepare_cached(sql::LAST_SUCCESSES)?.query_map([], |row| row.get(0))?.collect())?;
    Ok(found.into_iter().flatten().collect())
}
