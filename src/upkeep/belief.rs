//! What time it is, for rules of age: what is removed does not come back, so that a clock that jumps ahead is not believed at
//! once.
//!
//! The file keeps the last time that was believed. A time further ahead of it than two days is only noted; it is believed
//! when a day has passed since, by the same clock. Until then the rules count from two days after the last one believed. A
//! machine that is used once a month lags behind by one use.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::UPKEEP;
use super::retention::FIRST_TIME;
use crate::clock::millis;
use crate::error::Result;
use crate::pen::{Group, Mode};
use crate::sql;
use crate::store::Store;

/// A file that is in use knows the time this well.
const JUMP: Duration = Duration::from_secs(2 * 86_400);
/// How long a time must have stood to be believed.
const STOOD: Duration = Duration::from_secs(86_400);
/// How often the time is noted while nothing is wrong with it.
const NOTED: Duration = Duration::from_secs(43_200);
const CLOCK: &str = "clock";

/// What is known: the last time that was believed, and since when another stands, or 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Known {
    believed: i64,
    noted: i64,
}

impl Known {
    /// What the file says. One that was in use before it kept the time knows when a process was last heard of.
    fn of(file: &Connection, now: i64) -> rusqlite::Result<Option<Known>> {
        let stored = file.prepare_cached(sql::UPKEEP)?.query_row([CLOCK], Known::read).optional()?;
        if stored.is_some() {
            return Ok(stored);
        }
        let before = now.saturating_sub(millis(JUMP));
        let heard: Option<i64> = file.prepare_cached(sql::HEARD_BEFORE)?.query_row([before], |row| row.get(0))?;
        Ok(heard.filter(|&at| at >= FIRST_TIME).map(|believed| Known { believed, noted: 0 }))
    }

    fn read(row: &Row<'_>) -> rusqlite::Result<Known> {
        Ok(Known { believed: row.get(0)?, noted: row.get(1)? })
    }
}

/// The time that counts, and what is to be known from now on, if that has changed.
fn believe(known: Option<Known>, now: i64) -> (i64, Option<Known>) {
    let fresh = Some(Known { believed: now, noted: 0 });
    // A clock that is behind makes nothing old. What is known stays: it may begin so at each start of the machine.
    if now < FIRST_TIME || known.is_some_and(|known| now < known.believed) {
        return (now, None);
    }
    let Some(Known { believed, noted }) = known else { return (now, fresh) };
    let trusted = believed.saturating_add(millis(JUMP));
    if now <= trusted {
        let is_news = noted != 0 || now >= believed.saturating_add(millis(NOTED));
        return (now, fresh.filter(|_| is_news));
    }
    if noted != 0 && (millis(STOOD)..).contains(&now.saturating_sub(noted)) {
        return (now, fresh);
    }
    let stands = noted != 0 && now >= noted;
    (trusted, (!stands).then_some(Known { believed, noted: now }))
}

/// The time that counts for what is removed by itself.
pub(super) fn believed_time(store: &Store) -> Result<i64> {
    let now = store.inner.clock.wall();
    let known = store.read("reading which time was believed last", |tx| Known::of(tx, now))?;
    let (time, news) = believe(known, now);
    if news.is_some() {
        store.inner.pen.write(UPKEEP, Mode::default(), |group| Ok(note_time(group)?))?;
    }
    Ok(time)
}

/// Notes the time, if that is news: in a transaction that is written anyway, as at a runner's start.
pub(crate) fn note_time(group: &mut Group<'_>) -> rusqlite::Result<()> {
    let known = Known::of(group.tx(), group.now)?;
    if let (_, Some(Known { believed, noted })) = believe(known, group.now) {
        group.statement(sql::TAKE_TURN)?.execute(params![CLOCK, believed, noted])?;
        group.quiet += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: i64 = 86_400_000;
    const T: i64 = 1_780_000_000_000;

    fn known(believed: i64, noted: i64) -> Option<Known> {
        Some(Known { believed, noted })
    }

    #[test]
    fn a_time_that_goes_on_is_believed_and_noted_twice_a_day() {
        assert_eq!(believe(None, T), (T, known(T, 0)));
        assert_eq!(believe(known(T, 0), T + DAY / 3), (T + DAY / 3, None));
        assert_eq!(believe(known(T, 0), T + DAY), (T + DAY, known(T + DAY, 0)));
    }

    #[test]
    fn a_jump_ahead_counts_only_once_it_has_stood_for_a_day() {
        let ahead = T + 3_650 * DAY;
        assert_eq!(believe(known(T, 0), ahead), (T + 2 * DAY, known(T, ahead)));
        assert_eq!(believe(known(T, ahead), ahead + DAY - 1), (T + 2 * DAY, None));
        assert_eq!(believe(known(T, ahead), ahead + DAY), (ahead + DAY, known(ahead + DAY, 0)));
    }

    #[test]
    fn a_jump_that_was_a_mistake_is_forgotten() {
        let ahead = T + 3_650 * DAY;
        assert_eq!(believe(known(T, ahead), T + 60_000), (T + 60_000, known(T + 60_000, 0)));
        // Another one stands for itself.
        assert_eq!(believe(known(T, ahead), T + 100 * DAY), (T + 2 * DAY, known(T, T + 100 * DAY)));
    }

    #[test]
    fn a_clock_that_is_behind_makes_nothing_old_and_nothing_forgotten() {
        assert_eq!(believe(known(T, 0), 5), (5, None));
        assert_eq!(believe(known(T, 0), T - DAY), (T - DAY, None));
        assert_eq!(believe(None, 5), (5, None));
        // As at each start of a machine without a battery.
        let next = T + 20 * DAY;
        assert_eq!(believe(known(T, 0), next), (T + 2 * DAY, known(T, next)));
        assert_eq!(believe(known(T, next), 5), (5, None));
        assert_eq!(believe(known(T, next), next + 20 * DAY), (next + 20 * DAY, known(next + 20 * DAY, 0)));
    }

    #[test]
    fn what_is_used_once_a_month_lags_by_one_use() {
        let (first, second) = (T + 30 * DAY, T + 60 * DAY);
        assert_eq!(believe(known(T, 0), first), (T + 2 * DAY, known(T, first)));
        assert_eq!(believe(known(T, first), second), (second, known(second, 0)));
    }
}
