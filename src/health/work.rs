//! What the jobs need.

use std::path::Path;
use std::time::Duration;

use rusqlite::{OptionalExtension, Transaction};

use super::Need;
use super::schedules::{LATE, LONG_PAUSE, time};
use crate::enqueue::text;
use crate::failure::Class;
use crate::hold::{limits_of, pauses_of};
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
        let is_held = is_held_back(tx, kind)?;
        if let Some(age) = oldest_ready.filter(|age| *age > TOO_LONG && !is_held) {
            let text =
                format!("the oldest ready job of kind {} could have run {} minutes ago", kind.kind, age.as_secs() / 60);
            needs.push(Need::new("late", Some(&kind.kind), text));
        }
    }
    let late = schedules.iter().filter(|schedule| schedule.due_since.is_some_and(|since| instant(now) - since > LATE));
    let late = late.count();
    let is_alive = is_any_alive(tx, now)?;
    if !is_alive && (stats.total.ready > 0 || late > 0) {
        let text = format!("no runner is alive, while {} ready and {late} schedules are late", jobs(stats.total.ready));
        needs.push(Need::new("no_runner", None, text));
    }
    Ok(needs)
}

/// Whether it is meant to wait: its kind or its queue is paused, or limited to none.
fn is_held_back(tx: &Transaction<'_>, kind: &KindStats) -> rusqlite::Result<bool> {
    Ok(!pauses_of(tx, &kind.kind)?.is_empty() || limits_of(tx, &kind.kind)?.iter().any(|limit| limit.most == 0))
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
        let of_it = stats.kinds.iter().filter(|kind| (if scope == "kind" { &kind.kind } else { &kind.queue }) == &name);
        let held: u64 = of_it.map(|kind| kind.numbers.ready + kind.numbers.behind).sum();
        if held == 0 || instant(now) - instant(at) <= LONG_PAUSE {
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
