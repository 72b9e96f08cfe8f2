//! Removing a job with its key, where nothing else rests on it.

use rusqlite::OptionalExtension;

use super::retention::{Cuts, Part};
use crate::pen::Group;
use crate::sql;

/// A job with more corrections of corrections than this stays.
const TOGETHER: usize = 200;

struct Finished {
    kind: String,
    state: i64,
    corrects: Option<i64>,
}

/// Removes a job, together with what it corrects and what corrects it; answers how many. None of them goes unless all
/// may: whoever finds a wrong entry must find its correction.
pub(super) fn remove(group: &mut Group<'_>, id: i64, cuts: &Cuts, spared: &[i64]) -> rusqlite::Result<u64> {
    let mut together: Vec<(i64, Finished)> = Vec::new();
    let mut to_see = vec![id];
    while let Some(id) = to_see.pop() {
        if together.iter().any(|(known, _)| *known == id) {
            continue;
        }
        if together.len() == TOGETHER || spared.contains(&id) {
            return Ok(0);
        }
        let job = match look(group, id, cuts)? {
            Look::May(job) => job,
            Look::Gone => continue,
            Look::Stays => return Ok(0),
        };
        to_see.extend(job.corrects);
        let mut ask = group.statement(sql::CORRECTED_BY)?;
        for corrected_by in ask.query_map([id], |row| row.get(0))? {
            to_see.push(corrected_by?);
        }
        together.push((id, job));
    }
    let removed = u64::try_from(together.len()).unwrap_or(0);
    for (id, job) in together {
        let gone = group.statement(sql::REMOVE_JOB)?.execute([id])?;
        group.count(&job.kind, job.state, -i64::try_from(gone).unwrap_or(0));
        for sql in [sql::DROP_STEPS, sql::DROP_ATTEMPTS, sql::DROP_PROGRESS, sql::DROP_KEPT_PAYLOADS] {
            group.statement(sql)?.execute([id])?;
        }
    }
    Ok(removed)
}

enum Look {
    May(Finished),
    Stays,
    Gone,
}

fn look(group: &Group<'_>, id: i64, cuts: &Cuts) -> rusqlite::Result<Look> {
    let mut ask = group.statement(sql::FINISHED_JOB)?;
    let row = |row: &rusqlite::Row<'_>| {
        let (state, finished_at) = (row.get(1)?, row.get(2)?);
        let in_use: bool = row.get::<_, bool>(4)? || row.get::<_, bool>(5)?;
        if in_use || !cuts.due(id, state, finished_at).has(Part::Key) {
            return Ok(Look::Stays);
        }
        Ok(Look::May(Finished { kind: row.get(0)?, state, corrects: row.get(3)? }))
    };
    Ok(ask.query_row([id], row).optional()?.unwrap_or(Look::Gone))
}
