//! What a transaction counts: kept in memory, and written once before its COMMIT.
//!
//! Everything is appended, so that what an undone operation has counted goes away by cutting the lists.

use rusqlite::{Transaction, params};

use crate::numbers::{Tallied, slot_of};
use crate::sql;

/// See the module.
#[derive(Default)]
pub(super) struct Sums {
    kinds: Vec<String>,
    /// Kind, state, and how many came to it.
    counted: Vec<(usize, i64, i64)>,
    /// Kind, what, and bucket.
    tallied: Vec<(usize, i64, i64)>,
}

/// How much was counted at a moment.
#[derive(Clone, Copy, Debug)]
pub(super) struct SumsMark {
    counted: usize,
    tallied: usize,
}

impl Sums {
    pub(super) fn mark(&self) -> SumsMark {
        SumsMark { counted: self.counted.len(), tallied: self.tallied.len() }
    }

    pub(super) fn undo(&mut self, to: SumsMark) {
        self.counted.truncate(to.counted);
        self.tallied.truncate(to.tallied);
    }

    pub(super) fn count(&mut self, kind: &str, state: i64, n: i64) {
        let kind = self.number(kind);
        self.counted.push((kind, state, n));
    }

    pub(super) fn tally(&mut self, kind: &str, what: Tallied) {
        let kind = self.number(kind);
        self.tallied.push((kind, what.number(), what.bucket()));
    }

    /// What is counted for a kind and state and not written yet.
    pub(super) fn pending(&self, kind: &str, state: i64) -> i64 {
        let Some(kind) = self.kinds.iter().position(|known| known == kind) else { return 0 };
        let of_it = self.counted.iter().filter(|(k, s, _)| *k == kind && *s == state);
        of_it.map(|(_, _, n)| n).sum()
    }

    pub(super) fn write(&mut self, tx: &Transaction<'_>, now: i64) -> rusqlite::Result<()> {
        self.counted.sort_unstable();
        for same in self.counted.chunk_by(|a, b| (a.0, a.1) == (b.0, b.1)) {
            let sum: i64 = same.iter().map(|(_, _, n)| n).sum();
            if sum != 0 {
                tx.prepare_cached(sql::COUNT)?.execute(params![self.kinds[same[0].0], same[0].1, sum])?;
            }
        }
        self.tallied.sort_unstable();
        let slot = slot_of(now);
        for same in self.tallied.chunk_by(|a, b| a == b) {
            let (kind, what, bucket) = same[0];
            let n = i64::try_from(same.len()).unwrap_or(i64::MAX);
            tx.prepare_cached(sql::TALLY)?.execute(params![slot, self.kinds[kind], what, bucket, n])?;
        }
        self.counted.clear();
        self.tallied.clear();
        Ok(())
    }

    fn number(&mut self, kind: &str) -> usize {
        self.kinds.iter().position(|known| known == kind).unwrap_or_else(|| {
            self.kinds.push(kind.to_owned());
            self.kinds.len() - 1
        })
    }
}
