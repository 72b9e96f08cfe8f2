//! Numbers: how many, how long, how often. Counted as jobs end, never scanned.
//!
//! Finished jobs are in `birkez_count`, by kind and state; durations and failures in `birkez_tally`, by slots of five
//! minutes. What is not finished is read from the partial indexes, which hold nothing else.

mod bucket;
mod check;
mod keys;
mod prometheus;
mod read;
mod stats;

pub use self::check::CountDiff;
pub(crate) use self::read::{read_stats, wal_size};
pub use self::stats::{BusyWaits, FileSize, KeyCost, KindStats, Numbers, QueueStats, Rates, Spread, Stats};

/// How long a slot of the tally is, in milliseconds.
pub(crate) const SLOT: i64 = 300_000;

/// A number of things, in a row.
pub(crate) fn count(row: &rusqlite::Row<'_>, column: usize) -> rusqlite::Result<u64> {
    Ok(u64::try_from(row.get::<_, i64>(column)?).unwrap_or(0))
}

/// The slot of a time.
pub(crate) fn slot_of(at: i64) -> i64 {
    at.div_euclid(SLOT)
}

/// What is tallied.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Tallied {
    /// Milliseconds from enqueue to done.
    FromEnqueue(i64),
    /// Milliseconds that an attempt ran.
    Ran(i64),
    /// An attempt failed and its job goes on.
    Failed,
    /// An attempt failed and its job does not run again by itself.
    FailedLast,
    LeaseLost,
}

impl Tallied {
    /// As in `birkez_tally.what`.
    pub(crate) fn number(self) -> i64 {
        match self {
            Tallied::FromEnqueue(_) => 0,
            Tallied::Ran(_) => 1,
            Tallied::Failed | Tallied::FailedLast => 2,
            Tallied::LeaseLost => 3,
        }
    }

    pub(crate) fn bucket(self) -> i64 {
        match self {
            Tallied::FromEnqueue(ms) | Tallied::Ran(ms) => bucket::of(ms),
            Tallied::Failed | Tallied::LeaseLost => 0,
            Tallied::FailedLast => 1,
        }
    }
}
