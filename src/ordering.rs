//! Order by key: the jobs of an ordering key stand in one line, in the order of their numbers, and only its head may be
//! claimed.
//!
//! Nobody walks a line. Whoever is stored behind others has gate 2, which no claim reads; whoever leaves the head of a line
//! lets in the next.

use rusqlite::{OptionalExtension, params};

use crate::claim::Candidate;
use crate::enqueue::text;
use crate::failure::{Class, safe_text};
use crate::pen::Group;
use crate::sql;
use crate::telling::Happened;

/// Behind others in its line.
const BEHIND: i64 = 2;

/// The first in a line.
struct Head {
    id: i64,
    gate: Option<i64>,
    run_at: i64,
    is_suspect: bool,
}

fn head(group: &Group<'_>, ordering_key: &str) -> rusqlite::Result<Option<Head>> {
    let row = |row: &rusqlite::Row<'_>| {
        Ok(Head { id: row.get(0)?, gate: row.get(1)?, run_at: row.get(2)?, is_suspect: row.get(3)? })
    };
    group.statement(sql::HEAD_OF_LINE)?.query_row([ordering_key], row).optional()
}

/// The job whose turn it was has left its line, or goes back to waiting: the first in the line has its turn. Nobody else of
/// the line runs.
pub(crate) fn move_up(group: &mut Group<'_>, ordering_key: &str) -> rusqlite::Result<()> {
    let Some(next) = head(group, ordering_key)?.filter(|next| next.gate == Some(BEHIND)) else { return Ok(()) };
    let gate = match (next.run_at <= group.now, next.is_suspect) {
        (false, _) => 0,
        (true, true) => 3,
        (true, false) => 1,
    };
    group.statement(sql::SET_GATE)?.execute([next.id, gate])?;
    group.note_due(next.run_at);
    Ok(())
}

/// If a job's ordering key has moved on to a newer version, calls the job off, with all others of its line that are as old.
/// False if it has not.
pub(crate) fn supersede(group: &mut Group<'_>, job: &Candidate) -> rusqlite::Result<bool> {
    let (Some(ordering_key), Some(version), false) = (&job.ordering_key, job.version, job.for_callers) else {
        return Ok(false);
    };
    if !group.statement(sql::IS_SUPERSEDED)?.exists(params![ordering_key, version])? {
        return Ok(false);
    }
    let mut ask = group.statement(sql::SUPERSEDED)?;
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    let old: Vec<(i64, String, i64)> = ask.query_map([ordering_key], row)?.collect::<rusqlite::Result<_>>()?;
    for (id, kind, version) in old {
        let why = format!("version {version} came after a newer one of `{ordering_key}` was done");
        let class = Class::Superseded.as_str();
        let called_off = group.statement(sql::SUPERSEDE)?.execute(params![id, class, safe_text(&why), group.now])?;
        group.count(&kind, 4, i64::try_from(called_off).unwrap_or(0));
        if called_off > 0 && group.is_listened_to() {
            let key = group.statement(sql::JOB_KEY)?.query_row([id], |row| text(row, 0))?.unwrap_or_default();
            group.tell_job(id, &kind, &key, |job| Happened::Cancelled { job });
        }
    }
    move_up(group, ordering_key)?;
    // Whoever has called it off has claimed nothing in its place, and looks once more.
    group.claimable = true;
    Ok(true)
}

/// A version of the ordering key's state is done: older ones are not applied any more.
pub(crate) fn note_version(group: &Group<'_>, ordering_key: &str, version: i64) -> rusqlite::Result<()> {
    group.statement(sql::NOTE_VERSION)?.execute(params![ordering_key, version])?;
    Ok(())
}

/// The gate of a job that goes back to waiting from its turn: `gate`, unless others are in front of it in its line.
pub(crate) fn gate_in_line(
    group: &Group<'_>,
    job: i64,
    ordering_key: Option<&str>,
    gate: i64,
) -> rusqlite::Result<i64> {
    let Some(ordering_key) = ordering_key else { return Ok(gate) };
    let is_behind = head(group, ordering_key)?.is_some_and(|head| head.id < job);
    Ok(if is_behind { BEHIND } else { gate })
}

// What people do to the jobs of a line happens beside one that may run. As a rule that one is the first of them; but a job
// that comes back by a replay takes its old place, which may be in front of one that runs.

/// A job that did not run has left its line: the first in it has its turn, unless one of it runs.
pub(crate) fn close_up(group: &mut Group<'_>, ordering_key: &str) -> rusqlite::Result<()> {
    if runs(group, ordering_key)? { Ok(()) } else { move_up(group, ordering_key) }
}

/// A job comes back to its place in its line, or may run sooner than it might. If that place is in front of the one whose
/// turn it was, that one waits again, unless it runs. Answers the gate of the one that comes back: `open` if it is its turn.
pub(crate) fn come_back(group: &Group<'_>, job: i64, ordering_key: Option<&str>, open: i64) -> rusqlite::Result<i64> {
    let Some(line) = ordering_key else { return Ok(open) };
    if runs(group, line)? {
        return Ok(BEHIND);
    }
    if let Some(first) = head(group, line)?.filter(|first| first.id > job && first.gate.is_some()) {
        group.statement(sql::SET_GATE)?.execute([first.id, BEHIND])?;
    }
    gate_in_line(group, job, ordering_key, open)
}

fn runs(group: &Group<'_>, ordering_key: &str) -> rusqlite::Result<bool> {
    group.statement(sql::LINE_RUNS)?.exists([ordering_key])
}
