//! Jobs under a former name of their kind come under the present one.

use super::turn::Turn;
use super::twins::{Twin, rename, settle};
use super::work::Work;
use crate::error::Result;
use crate::pen::Group;
use crate::sql;
use crate::upkeep::UpkeepReport;

const READ: &str = "looking for jobs under former names";
/// A former name of a kind, and the present one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Former {
    pub name: String,
    pub present: String,
}

/// Whether there is any job under the former name.
pub(super) fn is_any(work: &Work<'_>, former: &Former) -> Result<bool> {
    work.store.read(READ, |tx| tx.prepare_cached(sql::ANY_NAMED)?.query_row([&former.name], |row| row.get(0)))
}

/// Gives them the present name, in the order of their keys: what waits, is parked or is over. What runs keeps its name until
/// it has ended. With a turn, only while that is its own.
pub(super) fn adopt(work: &mut Work<'_>, former: &Former, mut turn: Option<&mut Turn>) -> Result<()> {
    let mut place = String::new();
    while work.goes_on() {
        let found: Vec<String> = work.store.read(READ, |tx| {
            tx.prepare_cached(sql::JOBS_NAMED)?.query_map([&former.name, &place], |row| row.get(0))?.collect()
        })?;
        let Some(last) = found.last() else { break };
        place.clone_from(last);
        let names = former.clone();
        work.each(found, move |group, key, report| adopt_one(group, &names, key, report))?;
        if let Some(turn) = turn.as_deref_mut()
            && !turn.keep(work, 0)?
        {
            break;
        }
    }
    Ok(())
}

fn adopt_one(group: &mut Group<'_>, former: &Former, key: &str, report: &mut UpkeepReport) -> rusqlite::Result<()> {
    if group.statement(sql::IS_HELD)?.query_row([&former.name], |row| row.get(0))? {
        return Ok(());
    }
    let Some(old) = Twin::find(group, &former.name, key)? else { return Ok(()) };
    let Some(new) = Twin::find(group, &former.present, key)? else {
        report.adopted += u64::from(rename(group, &old, &former.present)?);
        return Ok(());
    };
    let met = settle(group, old, new, &former.present)?;
    report.closed += u64::from(met.closed);
    report.adopted += u64::from(met.renamed);
    Ok(())
}
