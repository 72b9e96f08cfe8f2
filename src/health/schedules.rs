//! What a schedule needs.

use chrono::{DateTime, TimeDelta, Utc};
use rusqlite::Transaction;

use super::Need;
use crate::schedule::ScheduleInfo;
use crate::sql;

/// An occurrence that was due so long ago is late.
pub(super) const LATE: TimeDelta = TimeDelta::minutes(5);
/// A pause of this length may have been forgotten.
pub(super) const LONG_PAUSE: TimeDelta = TimeDelta::days(1);

pub(super) fn schedule_needs(
    tx: &Transaction<'_>,
    schedule: &ScheduleInfo,
    now: DateTime<Utc>,
) -> rusqlite::Result<Vec<Need>> {
    let name = &schedule.name;
    let mut needs = Vec::new();
    let mut need = |code, text: String| {
        let text = format!("schedule {name} {text}; {}", success(schedule.last_success.as_ref()));
        needs.push(Need::new(code, Some(name), text));
    };
    if let Some(error) = schedule.error.as_ref().filter(|_| schedule.needs_attention) {
        need("schedule_failed", format!("cannot make its jobs: {error}"));
    }
    if let Some(since) = schedule.orphaned_at.filter(|_| schedule.needs_attention) {
        need("schedule_orphaned", format!("is registered by nobody since {}", time(since)));
    }
    let missed: (i64, i64, Option<String>) =
        tx.prepare_cached(sql::MISSED_OF)?.query_row([name], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    if let (1.., count, Some(last)) = &missed {
        need("schedule_missed", format!("has missed {count} occurrences, the newest {last}"));
    }
    if let Some(since) = schedule.due_since.filter(|since| now - *since > LATE) {
        need("schedule_late", format!("was due at {} and has not run", time(since)));
    }
    if let Some(since) = schedule.paused_at.filter(|since| now - *since > LONG_PAUSE) {
        let who = schedule.paused_by.as_deref().unwrap_or("somebody");
        need("schedule_paused", format!("is paused by {who} since {}", time(since)));
    }
    if schedule.needs_attention && needs.is_empty() {
        let text = format!("schedule {name} has met keys with other content, or what was asked of it fails");
        needs.push(Need::new("schedule_attention", Some(name), text));
    }
    Ok(needs)
}

/// When it succeeded last, in words.
pub(super) fn success(last: Option<&(String, DateTime<Utc>)>) -> String {
    match last {
        Some((occurrence, at)) => format!("its last success was {occurrence}, at {}", time(*at)),
        None => "it has never succeeded".to_owned(),
    }
}

pub(super) fn time(at: DateTime<Utc>) -> String {
    at.format("%Y-%m-%d %H:%M:%SZ").to_string()
}
