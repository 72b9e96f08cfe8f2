//! Two jobs with one key, under two names of one kind: one of them stays.

use rusqlite::{OptionalExtension, Row, params};

use crate::claim::{Candidate, Traits};
use crate::enqueue::text;
use crate::failure::Class;
use crate::ordering::move_up;
use crate::pen::Group;
use crate::sql;

/// No program's: a kind has no control characters. A row has it between two statements of one transaction.
const BETWEEN: &str = "\u{1}";

/// What the decision rests on, and what closing takes.
#[derive(Clone, Debug)]
pub(super) struct Twin {
    pub id: i64,
    pub kind: String,
    state: i64,
    pub runs: bool,
    started: bool,
    ordering_key: Option<String>,
    for_callers: bool,
    shape: i64,
    fingerprint: Option<Vec<u8>>,
}

impl Twin {
    pub(super) fn find(group: &Group<'_>, kind: &str, key: &str) -> rusqlite::Result<Option<Twin>> {
        group.statement(sql::TWIN)?.query_row([kind, key], Twin::read).optional()
    }

    fn read(row: &Row<'_>) -> rusqlite::Result<Twin> {
        Ok(Twin {
            id: row.get(0)?,
            kind: row.get(1)?,
            state: row.get(2)?,
            runs: row.get(3)?,
            started: row.get(4)?,
            ordering_key: text(row, 5)?,
            for_callers: row.get(6)?,
            shape: row.get(7)?,
            fingerprint: row.get(8)?,
        })
    }

    fn standing(&self) -> Standing {
        match self.state {
            2 => Standing::Done,
            _ if self.runs => Standing::Runs,
            // Somebody has to look at it, or has run it.
            1 | 3 => Standing::Started,
            4 if self.started => Standing::CalledOff,
            0 if self.started => Standing::Started,
            _ => Standing::Fresh,
        }
    }

    /// What may be closed: what is done or called off already stays what it is, and what runs is its worker's.
    fn can_close(&self) -> bool {
        !self.runs && matches!(self.state, 0 | 1 | 3)
    }

    /// Whether its content is known to be another's.
    fn differs(&self, other: &Twin) -> bool {
        self.shape == other.shape
            && matches!((&self.fingerprint, &other.fingerprint), (Some(one), Some(other)) if one != other)
    }
}

/// How much a job has a right to stay; more is more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Standing {
    Fresh,
    CalledOff,
    Started,
    Runs,
    Done,
}

/// Whether `one` stays, rather than `other`: the one that has come further, else the older.
fn stays((one, one_id): (Standing, i64), (other, other_id): (Standing, i64)) -> bool {
    (one, -one_id) > (other, -other_id)
}

/// What came of two that met.
pub(super) struct Met {
    /// The one that stays, under the name that it has now.
    pub kept: Twin,
    pub closed: bool,
    pub renamed: bool,
}

/// Closes one of two, if it can be, and gives the one that stays the present name. The other has a former one then, for as
/// long as it is known: an older program that stores the key once more meets it.
pub(super) fn settle(group: &mut Group<'_>, one: Twin, other: Twin, present: &str) -> rusqlite::Result<Met> {
    let one_stays = stays((one.standing(), one.id), (other.standing(), other.id));
    let (mut kept, other) = if one_stays { (one, other) } else { (other, one) };
    let closed = other.can_close() && close(group, &other, &kept)?;
    let state = if closed { 4 } else { other.state };
    let other = Twin { state, ..other };
    let renamed = other.kind == present && !kept.runs && !other.runs;
    if renamed {
        let former = std::mem::replace(&mut kept.kind, present.to_owned());
        // Out of the way first: no two rows may have one name, not even for a moment.
        group.statement(sql::RENAME)?.execute((other.id, BETWEEN))?;
        rename(group, &Twin { kind: former.clone(), ..kept.clone() }, present)?;
        rename(group, &other, &former)?;
    }
    Ok(Met { kept, closed, renamed })
}

/// What stood behind it in its line moves up.
fn close(group: &mut Group<'_>, job: &Twin, kept: &Twin) -> rusqlite::Result<bool> {
    let and = if job.differs(kept) { ", and has other content" } else { "" };
    let told = format!("job {} holds this key under another name of the kind, `{}`{and}", kept.id, kept.kind);
    let row = params![job.id, Class::Superseded.as_str(), told, group.now];
    if group.statement(sql::CLOSE_TWIN)?.execute(row)? == 0 {
        return Ok(false);
    }
    if job.state == 3 {
        group.count(&job.kind, 3, -1);
    }
    group.count(&job.kind, 4, 1);
    if let Some(line) = job.ordering_key.as_deref().filter(|_| !job.for_callers) {
        move_up(group, line)?;
    }
    tracing::warn!(
        job = job.id,
        kept = kept.id,
        kind = kept.kind,
        "two names of a kind held one key; one job is closed"
    );
    Ok(true)
}

/// Gives a job another name of its kind; not one that runs, whose worker knows it by the one it has.
pub(super) fn rename(group: &mut Group<'_>, job: &Twin, to: &str) -> rusqlite::Result<bool> {
    if job.runs || group.statement(sql::RENAME)?.execute((job.id, to))? == 0 {
        return Ok(false);
    }
    if job.state >= 2 {
        group.count(&job.kind, job.state, -1);
        group.count(to, job.state, 1);
    }
    // A runner that knows only the present name can take it now.
    group.claimable = true;
    Ok(true)
}

/// Before a job is claimed whose kind has had other names: an older program may have stored the same key under one of
/// them, and may even have run it. True if the candidate is not to run: another one stays, and it was closed if it could be.
pub(crate) fn meets_its_twin(
    group: &mut Group<'_>,
    candidate: &mut Candidate,
    traits: &Traits,
) -> rusqlite::Result<bool> {
    for name in traits.names() {
        if name == candidate.kind {
            continue;
        }
        let Some(other) = Twin::find(group, name, &candidate.key)? else { continue };
        let Some(own) = Twin::find(group, &candidate.kind, &candidate.key)? else { continue };
        let met = settle(group, own, other, traits.kind)?;
        if met.kept.id != candidate.id {
            return Ok(true);
        }
        candidate.kind = met.kept.kind;
    }
    Ok(false)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_one_that_has_come_further_stays_else_the_older() {
        let order = [Standing::Fresh, Standing::CalledOff, Standing::Started, Standing::Runs, Standing::Done];
        for (at, one) in order.into_iter().enumerate() {
            for (other_at, other) in order.into_iter().enumerate() {
                let older = stays((one, 1), (other, 2));
                let newer = stays((one, 2), (other, 1));
                assert_eq!((older, newer), (at >= other_at, at > other_at), "{one:?} and {other:?}");
            }
        }
    }
}
