//! Whose turn a part of the upkeep is: whoever writes its time first, once a period is over.

use std::time::Duration;

use rusqlite::{OptionalExtension, params};

use super::UPKEEP;
use super::work::Work;
use crate::clock::millis;
use crate::error::Result;
use crate::pen::{Group, Mode};
use crate::sql;
use crate::store::Store;

/// One who has not been heard of for this long is not at it any more.
const SILENT: Duration = Duration::from_secs(300);
/// It was done to its end.
const ENDED: i64 = -1;
/// A time ahead of now by more than this was written under a clock that has been set back.
const AHEAD: i64 = 60_000;

/// The right to do a part of the upkeep, until its period is over.
#[derive(Clone, Debug)]
pub(super) struct Turn {
    what: String,
    at: i64,
    /// How far it is: what that means is its part's own matter.
    pub place: i64,
}

#[derive(Clone, Copy)]
struct Rule {
    period: i64,
    /// One that has not come to its end is taken over after a shorter time.
    unfinished: bool,
}

impl Rule {
    fn is_due(self, stored: Option<(i64, i64)>, now: i64) -> bool {
        let Some((at, place)) = stored else { return true };
        let wait = if self.unfinished && place != ENDED { millis(SILENT).min(self.period) } else { self.period };
        at <= now.saturating_sub(wait) || at > now.saturating_add(AHEAD)
    }
}

/// Whether a part is due, as far as can be told without writing.
pub(super) fn is_turn(work: &Work<'_>, what: &str, period: Duration) -> Result<bool> {
    let rule = Rule { period: millis(period), unfinished: false };
    Ok(rule.is_due(stored(work.store, what)?, work.store.inner.clock.wall()))
}

fn stored(store: &Store, what: &str) -> Result<Option<(i64, i64)>> {
    store.read("reading when upkeep was done last", |tx| {
        tx.prepare_cached(sql::UPKEEP)?.query_row([what], |row| Ok((row.get(0)?, row.get(1)?))).optional()
    })
}

impl Turn {
    /// Where a part would go on, if it is due: as far as can be told without writing.
    pub(super) fn place_if_due(work: &Work<'_>, what: &str, period: Duration) -> Result<Option<i64>> {
        let rule = Rule { period: millis(period), unfinished: false };
        let stored = stored(work.store, what)?;
        let is_due = rule.is_due(stored, work.store.inner.clock.wall());
        Ok(is_due.then(|| stored.map_or(0, |(_, place)| place)))
    }

    /// Takes it once the period is over; where it goes on is where it was left.
    pub(super) fn take(work: &Work<'_>, what: &str, period: Duration) -> Result<Option<Turn>> {
        Turn::by(work, what, Rule { period: millis(period), unfinished: false })
    }

    /// The same for what has an end: it begins anew once the period is over, and is taken over if whoever was at it has
    /// not been heard of.
    pub(super) fn take_unfinished(work: &Work<'_>, what: &str, period: Duration) -> Result<Option<Turn>> {
        Turn::by(work, what, Rule { period: millis(period), unfinished: true })
    }

    fn by(work: &Work<'_>, what: &str, rule: Rule) -> Result<Option<Turn>> {
        if !work.goes_on() || !rule.is_due(stored(work.store, what)?, work.store.inner.clock.wall()) {
            return Ok(None);
        }
        let what = what.to_owned();
        work.store.inner.pen.write(UPKEEP, Mode::default(), move |group| {
            let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?));
            let stored = group.statement(sql::UPKEEP)?.query_row([&what], row).optional()?;
            if !rule.is_due(stored, group.now) {
                return Ok(None);
            }
            let place = stored.map_or(0, |(_, place)| place).max(0);
            group.statement(sql::TAKE_TURN)?.execute(params![what, group.now, place])?;
            group.quiet += 1;
            Ok(Some(Turn { what, at: group.now, place }))
        })
    }

    /// Notes how far it is. False if somebody else has taken it over.
    fn note(&mut self, group: &mut Group<'_>, place: i64) -> rusqlite::Result<bool> {
        let noted = group.statement(sql::KEEP_TURN)?.execute(params![self.what, self.at, group.now, place])?;
        group.quiet += u64::try_from(noted).unwrap_or(0);
        (self.at, self.place) = (group.now, place);
        Ok(noted == 1)
    }

    /// Writes down how far it is; false if it is somebody else's by now.
    pub(super) fn keep(&mut self, work: &Work<'_>, place: i64) -> Result<bool> {
        let mut turn = self.clone();
        let (turn, mine) = work.store.inner.pen.write(UPKEEP, Mode::default(), move |group| {
            let mine = turn.note(group, place)?;
            Ok((turn, mine))
        })?;
        *self = turn;
        Ok(mine)
    }

    /// It is done to its end.
    pub(super) fn end(&mut self, work: &Work<'_>) -> Result<()> {
        self.keep(work, ENDED).map(|_| ())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_turn_comes_after_its_period_and_one_left_in_the_middle_sooner() {
        let whole = Rule { period: 86_400_000, unfinished: true };
        assert!(whole.is_due(None, 0));
        assert!(!whole.is_due(Some((1_000, ENDED)), 86_400_999));
        assert!(whole.is_due(Some((1_000, ENDED)), 86_401_000));
        assert!(!whole.is_due(Some((1_000, 17)), 300_999), "somebody may be at it");
        assert!(whole.is_due(Some((1_000, 17)), 301_000));
        let walk = Rule { period: 600_000, unfinished: false };
        assert!(!walk.is_due(Some((1_000, 17)), 600_999));
        assert!(walk.is_due(Some((1_000, 17)), 601_000));
    }

    #[test]
    fn a_clock_that_was_ahead_does_not_end_the_upkeep() {
        let rule = Rule { period: 600_000, unfinished: false };
        assert!(!rule.is_due(Some((61_000, 0)), 1_000), "clocks of two processes may differ a little");
        assert!(rule.is_due(Some((61_001, 0)), 1_000));
    }
}
