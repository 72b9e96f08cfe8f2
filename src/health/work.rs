//! What the jobs need.

use std::path::Path;
use std::time::Duration;

use rusqlite::{OptionalExtension, Transaction};

use super::Need;
use super::schedules::{LATE, LONG_PAUSE, time};
use crate::enqueue::text;
use crate::failure::Class;
use crate::hold::{Scope, limits_of, pauses_of};
use crate::job::instant;
use crate::numbers::{KindStats, Numbers, Stats, count};
use crate::owner::{Sign, lives};
use crate::schedule::ScheduleInfo;
use crate::sql;

/// A ready job that could have run for so long waits too long.
const TOO_LONG: Duration = Duration::from_secs(300);

pub(super) fn work_needs(
    tx: &Transaction<'_>,
    stats: &Stats,
    now: i64,
    schedules: &[ScheduleInfo],
) -> rusqlite::Result<Vec<Need>> {
    let mut needs = Vec::new();
    needs.extend(dead(tx, stats.total.dead)?);
    needs.extend(parked(tx)?);
    needs.extend(waiting(tx, stats, now, schedules)?);
    needs.extend(paused(tx, stats, now)?);
    Ok(needs)
}

fn dead(tx: &Transaction<'_>, dead: u64) -> rusqlite::Result<Option<Need>> {
    if dead == 0 {
        return Ok(None);
    }
    let row = |row: &rusqlite::Row<'_>| {
        let class = text(row, 3)?.map_or(String::new(), |class| format!(" ({class})"));
        let (id, kind, at): (i64, String, i64) = (row.get(0)?, row.get(1)?, row.get(4)?);
        Ok(format!("{kind} {} (job {id}){class} at {}", text(row, 2)?.unwrap_or_default(), time(instant(at))))
    };
    let newest = tx.prepare_cached(sql::NEWEST_DEATH)?.query_row([], row).optional()?;
    let newest = newest.map_or(String::new(), |newest| format!("; the newest is {newest}"));
    Ok(Some(Need::new("dead", None, format!("{} dead{newest}", jobs(dead)))))
}

fn parked(tx: &Transaction<'_>) -> rusqlite::Result<Vec<Need>> {
    let mut ask = tx.prepare_cached(sql::PARKED_BY_REASON)?;
    let reasons = ask.query_map([], |row| Ok((text(row, 0)?.unwrap_or_default(), count(row, 1)?)))?;
    reasons
        .map(|found| {
            let (reason, count) = found?;
            Ok(match reason == Class::UnknownOutcome.as_str() {
                true => Need::new(
                    "unknown_outcome",
                    Some(&reason),
                    format!("{} of unknown outcome: a person must say what came of them", jobs(count)),
                ),
                false => Need::new("parked", Some(&reason), format!("{} parked for {reason}", jobs(count))),
            })
        })
        .collect()
}

fn waiting(tx: &Transaction<'_>, stats: &Stats, now: i64, schedules: &[ScheduleInfo]) -> rusqlite::Result<Vec<Need>> {
    let mut needs = Vec::new();
    for kind in &stats.kinds {
        let Numbers { ready, scheduled, behind, oldest_ready, .. } = kind.numbers;
        if !kind.is_handled && ready + scheduled + behind > 0 {
            let text = format!(
                "{} waiting of kind {}, and no live runner handles it",
                jobs(ready + scheduled + behind),
                kind.kind
            );
            needs.push(Need::new("unhandled", Some(&kind.kind), text));
        }
        needs.extend(late_of(tx, kind, oldest_ready)?);
    }
    let late = schedules.iter().filter(|schedule| schedule.due_since.is_some_and(|since| instant(now) - since > LATE));
    let late = late.count();
    let stranded = if is_any_alive(tx, now)? { None } else { Some(stranded(tx, now)?) };
    if let Some(stranded) = stranded.filter(|stranded| stats.total.ready > 0 || late > 0 || *stranded > 0) {
        let left =
            if stranded > 0 { format!(", {} left in processes that are gone", jobs(stranded)) } else { String::new() };
        let ready = jobs(stats.total.ready);
        let text = format!("no runner is alive, while {ready} ready{left} and {late} schedules are late");
        needs.push(Need::new("no_runner", None, text));
    }
    Ok(needs)
}

/// What waits too long. What is paused is meant to wait, and has a need of its own in time; so is what a limit lets not run
/// at all, for a day.
fn late_of(tx: &Transaction<'_>, kind: &KindStats, oldest: Option<Duration>) -> rusqlite::Result<Option<Need>> {
    let Some(age) = oldest.filter(|age| *age > TOO_LONG) else { return Ok(None) };
    if !pauses_of(tx, &kind.kind)?.is_empty() {
        return Ok(None);
    }
    let name = &kind.kind;
    let is_limited = limits_of(tx, name)?.iter().any(|limit| limit.most == 0);
    let text = match is_limited {
        true if age <= LONG_PAUSE.to_std().unwrap_or_default() => return Ok(None),
        true => format!("the oldest job of kind {name} waits for {} hours for a limit of none", age.as_secs() / 3_600),
        false => format!("the oldest ready job of kind {name} could have run {} minutes ago", age.as_secs() / 60),
    };
    Ok(Some(Need::new("late", Some(name), text)))
}

/// How many jobs are held by processes that are gone.
fn stranded(tx: &Transaction<'_>, now: i64) -> rusqlite::Result<u64> {
    let database = Path::new(tx.path().unwrap_or_default());
    let mut ask = tx.prepare_cached(sql::HOLDERS)?;
    let mut rows = ask.query([])?;
    let mut stranded = 0;
    while let Some(row) = rows.next()? {
        let ended = row.get::<_, Option<i64>>(6)?.is_some();
        if ended || !lives(&Sign::read(row, [1, 2, 3, 4, 5])?, database, now) {
            stranded += count(row, 0)?;
        }
    }
    Ok(stranded)
}

fn is_any_alive(tx: &Transaction<'_>, now: i64) -> rusqlite::Result<bool> {
    let database = Path::new(tx.path().unwrap_or_default());
    let mut ask = tx.prepare_cached(sql::SIGNS)?;
    let mut rows = ask.query([])?;
    while let Some(row) = rows.next()? {
        if lives(&Sign::read(row, [0, 1, 2, 3, 4])?, database, now) {
            return Ok(true);
        }
    }
    Ok(false)
}

fn paused(tx: &Transaction<'_>, stats: &Stats, now: i64) -> rusqlite::Result<Vec<Need>> {
    let mut ask = tx.prepare_cached(sql::PAUSES)?;
    let mut rows = ask.query([])?;
    let mut needs = Vec::new();
    while let Some(row) = rows.next()? {
        let (scope, name, at): (String, String, i64) = (row.get(0)?, row.get(1)?, row.get(2)?);
        if instant(now) - instant(at) <= LONG_PAUSE {
            continue;
        }
        let paused = Scope::stored(&scope, name.clone());
        let mut held = 0;
        for kind in &stats.kinds {
            if pauses_of(tx, &kind.kind)?.iter().any(|pause| pause.scope == paused) {
                held += kind.numbers.ready + kind.numbers.behind;
            }
        }
        if held == 0 {
            continue;
        }
        let why = text(row, 4)?.map_or(String::new(), |why| format!(" ({why})"));
        let who = text(row, 3)?.unwrap_or_default();
        let since = time(instant(at));
        let text = format!("{scope} {name} is paused by {who} since {since}{why}, and {} waiting", jobs(held));
        needs.push(Need::new("paused", Some(&name), text));
    }
    Ok(needs)
}

fn jobs(count: u64) -> String {
    match count {
        1 => "1 job is".to_owned(),
        count => format!("{count} jobs are"),
    }
}
