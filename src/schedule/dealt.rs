//! Reading what stands in the file of the occurrences that an evaluation looks at.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, params};

use super::Schedule;
use crate::calendar::{Clock, Dealt, Mark, ScheduleState, clock, window};
use crate::error::Result;
use crate::sql;
use crate::store::Store;

/// What has been dealt with of what one evaluation looks at.
pub(super) fn dealt(
    store: &Store,
    id: i64,
    schedule: &Schedule,
    state: &ScheduleState,
    now: DateTime<Utc>,
) -> Result<Dealt> {
    let Schedule { calendar, zone, policy, .. } = schedule;
    let (after, upto) = window(calendar, zone, state, now, policy.grace);
    if calendar.after(zone, after).next().is_none_or(|due| due.mark() > upto) {
        // Nothing is due: at nearly every look.
        return Ok(Dealt::default());
    }
    let counts: &[&str] = match clock(calendar, zone, state.mark, now) {
        // What is recorded above the mark came while an older one waited.
        Clock::Steady if state.high.is_none() => &[],
        // Otherwise the time has been here before: what was recorded then may be on time now. A pause of a moment ago still
        // counts when the clock is set back by a little.
        Clock::Steady | Clock::Waiting => &["overlap", "paused"],
        Clock::Behind => &["overlap"],
    };
    store.read("looking for occurrences", |tx| between(tx, id, (after, upto), counts))
}

/// What stands in the file after one mark and up to another: what was made, and what was recorded for one of `reasons`
/// (for any, if there are none).
pub(super) fn between(
    connection: &Connection,
    schedule: i64,
    (after, upto): (Mark, Mark),
    reasons: &[&str],
) -> rusqlite::Result<Dealt> {
    let mut dealt = Dealt::default();
    let range = params![schedule, after.to_string(), upto.to_string()];
    let mut made = connection.prepare_cached(sql::MADE_BETWEEN)?;
    let ids = made.query_map(range, |row| row.get::<_, String>(0))?;
    for id in ids {
        // What a person asked for without a slot has an id of its own.
        id?.parse().into_iter().for_each(|mark| dealt.note_made(mark));
    }
    let mut left_out = connection.prepare_cached(sql::LEFT_OUT_BETWEEN)?;
    let mut rows = left_out.query(range)?;
    while let Some(row) = rows.next()? {
        let (first, last, reason): (String, String, String) = (row.get(0)?, row.get(1)?, row.get(2)?);
        if let (true, Ok(first), Ok(last)) =
            (reasons.is_empty() || reasons.contains(&reason.as_str()), first.parse(), last.parse())
        {
            dealt.note_left_out(first, last);
        }
    }
    Ok(dealt)
}
