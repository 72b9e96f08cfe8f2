//! What is kept beside the jobs: deeds, records of schedules, processes, numbers.

use rusqlite::{OptionalExtension, params};

use super::report::UpkeepReport;
use super::retention::{Part, Parts, Retention};
use super::work::Work;
use crate::clock::millis;
use crate::error::Result;
use crate::sql;

const READ: &str = "looking for old records";
/// How long a slot of the numbers is.
const SLOT: i64 = 300_000;
/// So many jobs of a deed go in one step; [`sql::DROP_TOUCHED`] knows the number too.
const TOUCHED: usize = 200;

/// Records that are found and removed by their number.
#[derive(Clone, Copy)]
struct Records {
    /// Those from a number on that are old enough.
    find: &'static str,
    /// One of them, if it still is.
    remove: &'static str,
    count: fn(&mut UpkeepReport) -> &mut u64,
}

const MISSED: Records =
    Records { find: sql::OLD_MISSED, remove: sql::DROP_MISSED, count: |report| &mut report.schedules };
const REQUESTS: Records =
    Records { find: sql::OLD_REQUESTS, remove: sql::DROP_REQUEST, count: |report| &mut report.schedules };
/// Before the runners, without whom nobody knows when it ended.
const PRESENCE: Records =
    Records { find: sql::OLD_PRESENCE, remove: sql::DROP_PRESENCE, count: |report| &mut report.runners };
const RUNNERS: Records =
    Records { find: sql::OLD_RUNNERS, remove: sql::DROP_RUNNER, count: |report| &mut report.runners };
const NUMBERS: Records = Records { find: sql::OLD_SLOTS, remove: sql::DROP_SLOT, count: |report| &mut report.numbers };

pub(super) fn remove_old(work: &mut Work<'_>, retention: &Retention) -> Result<()> {
    let now = work.now;
    let cut = |age| now.saturating_sub(millis(age));
    if let Some(age) = retention.numbers {
        remove(work, NUMBERS, cut(age).div_euclid(SLOT))?;
    }
    if let Some(age) = retention.schedules {
        remove(work, MISSED, cut(age))?;
        remove(work, REQUESTS, cut(age))?;
    }
    if let Some(age) = retention.runners {
        remove(work, PRESENCE, cut(age))?;
        remove(work, RUNNERS, cut(age))?;
    }
    if let Some(cut) = retention.deeds.cut(now) {
        remove_deeds(work, sql::OLD_DEEDS, cut)?;
    }
    if let Some(most) = retention.deeds.most()
        && let Some(last) = deeds_beyond(work, most)?
    {
        remove_deeds(work, sql::DEEDS_UP_TO, last)?;
    }
    if retention.has_rule(Parts::only(Part::Key)) {
        remove_links(work)?;
    }
    Ok(())
}

fn remove(work: &mut Work<'_>, records: Records, cut: i64) -> Result<()> {
    let mut place = i64::MIN;
    while work.goes_on() {
        let found = find(work, records.find, place, cut)?;
        let Some(&last) = found.last() else { break };
        place = last;
        work.each(found, move |group, id, report| {
            let removed = group.statement(records.remove)?.execute(params![id, cut])?;
            *(records.count)(report) += u64::try_from(removed).unwrap_or(0);
            Ok(())
        })?;
    }
    Ok(())
}

fn find(work: &Work<'_>, sql: &str, place: i64, cut: i64) -> Result<Vec<i64>> {
    work.store.read(READ, |tx| tx.prepare_cached(sql)?.query_map([place, cut], |row| row.get(0))?.collect())
}

fn deeds_beyond(work: &Work<'_>, most: u64) -> Result<Option<i64>> {
    let most = i64::try_from(most).unwrap_or(i64::MAX);
    work.store.read(READ, |tx| tx.prepare_cached(sql::DEEDS_BEYOND)?.query_row([most], |row| row.get(0)).optional())
}

/// A deed goes with the last of what it says of its jobs, which may be many: a part of them a step.
fn remove_deeds(work: &mut Work<'_>, find_them: &'static str, cut: i64) -> Result<()> {
    let mut place = i64::MIN;
    while work.goes_on() {
        let found: Vec<(i64, i64)> = work.store.read(READ, |tx| {
            tx.prepare_cached(find_them)?.query_map([place, cut], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
        })?;
        let Some(&(last, _)) = found.last() else { break };
        place = last;
        let steps = |jobs: i64| usize::try_from(jobs).unwrap_or(0).div_ceil(TOUCHED).max(1);
        let steps = found.into_iter().flat_map(|(deed, jobs)| std::iter::repeat_n(deed, steps(jobs))).collect();
        work.each(steps, |group, deed, report| {
            group.statement(sql::DROP_TOUCHED)?.execute([deed])?;
            report.deeds += u64::try_from(group.statement(sql::DROP_DEED)?.execute([deed])?).unwrap_or(0);
            Ok(())
        })?;
    }
    Ok(())
}

/// Which jobs an occurrence had, where the jobs are gone. The occurrence itself stays: it is what keeps it from running
/// again.
fn remove_links(work: &mut Work<'_>) -> Result<()> {
    let mut place = (i64::MIN, String::new(), i64::MIN);
    while work.goes_on() {
        let found: Vec<((i64, String, i64), bool)> = work.store.read(READ, |tx| {
            tx.prepare_cached(sql::LINKS_FROM)?
                .query_map(params![place.0, place.1, place.2], |row| {
                    Ok(((row.get(0)?, row.get(1)?, row.get(2)?), row.get(3)?))
                })?
                .collect()
        })?;
        let Some((last, _)) = found.last() else { break };
        place = last.clone();
        let loose = found.into_iter().filter(|(_, is_loose)| *is_loose).map(|(link, _)| link).collect();
        work.each(loose, |group, (schedule, occurrence, job): &(i64, String, i64), report| {
            let removed = group.statement(sql::DROP_LINK)?.execute(params![schedule, occurrence, job])?;
            report.schedules += u64::try_from(removed).unwrap_or(0);
            Ok(())
        })?;
    }
    Ok(())
}
