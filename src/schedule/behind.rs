//! How long the clock has been far behind a schedule's mark, over all the processes that have looked.
//!
//! A machine that is switched off each night would never believe its clock if each start began to count anew. So the sum
//! stands in the file, written seldom.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use rusqlite::params;

use super::row::ScheduleRow;
use crate::calendar::Clock;
use crate::clock::millis;
use crate::error::Result;
use crate::pen::{Act, Mode};
use crate::sql;
use crate::store::Store;

const NOTE: &str = "noting how long the clock has been behind";
/// A kill forgets no more than this.
const NOTED_EVERY: Duration = Duration::from_secs(10 * 60);

/// The schedules whose mark the clock is far behind, as this process has seen it.
#[derive(Default)]
pub(super) struct Behind(Mutex<HashMap<i64, Spell>>);

#[derive(Clone, Copy)]
struct Spell {
    /// On the monotonic clock.
    since: Duration,
    /// What others had seen before.
    before: Duration,
    written: Duration,
}

impl Spell {
    fn sum(&self, now: Duration) -> Duration {
        self.before + now.saturating_sub(self.since)
    }
}

impl Behind {
    /// How long in sum.
    pub(super) fn sum(&self, row: &ScheduleRow, now: Duration) -> Duration {
        self.spell(row).map_or(behind(row), |spell| spell.sum(now))
    }

    /// Notes what a look has found.
    pub(super) fn note(&self, store: &Store, row: &ScheduleRow, clock: Clock) -> Result<()> {
        let now = store.inner.clock.monotonic();
        if clock != Clock::Behind {
            self.lock().remove(&row.id);
            return if row.behind_ms == 0 { Ok(()) } else { write(store, row.id, 0) };
        }
        let Some(mut spell) = self.spell(row) else {
            let before = behind(row);
            self.lock().insert(row.id, Spell { since: now, before, written: before });
            if before.is_zero() {
                let (schedule, mark) = (&row.name, &row.mark);
                tracing::warn!(
                    schedule,
                    mark,
                    "the clock went back; nothing is caught up until it reaches the mark again"
                );
            }
            return Ok(());
        };
        if spell.sum(now) >= spell.written + NOTED_EVERY {
            spell.written = spell.sum(now);
            self.lock().insert(row.id, spell);
            write(store, row.id, millis(spell.written))?;
        }
        Ok(())
    }

    /// Writes what has not been written: the process stops.
    pub(super) fn rest(&self, store: &Store) {
        let now = store.inner.clock.monotonic();
        for (id, spell) in self.lock().drain().filter(|(_, spell)| spell.sum(now) > spell.written) {
            if let Err(error) = write(store, id, millis(spell.sum(now))) {
                tracing::debug!(%error, "how long the clock has been behind could not be written");
            }
        }
    }

    /// What this process has counted, unless another has found the clock right in the meantime.
    fn spell(&self, row: &ScheduleRow) -> Option<Spell> {
        let spell = self.lock().get(&row.id).copied();
        spell.filter(|spell| spell.written <= behind(row))
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<i64, Spell>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn behind(row: &ScheduleRow) -> Duration {
    Duration::from_millis(u64::try_from(row.behind_ms).unwrap_or(0))
}

fn write(store: &Store, schedule: i64, sum_ms: i64) -> Result<()> {
    let act = Act { name: NOTE, instead: "nothing" };
    store.inner.pen.write(act, Mode::default(), move |group| {
        group.statement(sql::SET_BEHIND)?.execute(params![schedule, sum_ms])?;
        Ok(())
    })
}
