//! What a schedule does about occurrences that were missed, and the record of those that did not run.

use std::fmt;
use std::time::Duration;

use super::Due;

/// What happens to occurrences that came while nobody was there to run them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum CatchUp {
    /// One run, for the newest; it is told how many others there were. So it is for those that are found together on time.
    /// The default.
    #[default]
    Latest,
    /// A run for each, oldest first. For instalments.
    Each {
        /// Keeps the newest so many and records the others, which calls for attention. Defaults to no maximum.
        max: Option<u32>,
    },
    /// No run; they are recorded.
    Skip,
}

impl CatchUp {
    /// A run for each missed occurrence, however many.
    pub fn each() -> CatchUp {
        CatchUp::Each { max: None }
    }

    /// A run for each of the newest `max` missed occurrences.
    pub fn each_of_newest(max: u32) -> CatchUp {
        CatchUp::Each { max: Some(max) }
    }
}

/// How a schedule deals with lateness.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// What becomes of missed occurrences. Defaults to [`CatchUp::Latest`].
    pub catch_up: CatchUp,
    /// How late an occurrence may be found, at the first look that finds it, without counting as missed. Defaults to 5 minutes: with seconds, a busy or
    /// waking machine loses runs.
    pub grace: Duration,
    /// Occurrences found later than this never run, whatever `catch_up` says; they are recorded. Defaults to no
    /// limit.
    pub max_age: Option<Duration>,
    /// How many runs one evaluation may plan; more wait for the next. Defaults to 100; 0 is taken for 1.
    pub batch: usize,
}

impl Default for Policy {
    fn default() -> Policy {
        Policy { catch_up: CatchUp::Latest, grace: Duration::from_secs(5 * 60), max_age: None, batch: 100 }
    }
}

/// Occurrences in a row that did not run: one record a gap.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Missed {
    /// The oldest of them.
    pub from: Due,
    /// The newest of them.
    pub to: Due,
    /// How many.
    pub count: Count,
    /// Why they did not run.
    pub reason: MissedReason,
}

/// Why an occurrence did not run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum MissedReason {
    /// A newer one ran in its place ([`CatchUp::Latest`]).
    Newer,
    /// The schedule skips what it misses ([`CatchUp::Skip`]).
    Skipped,
    /// There were more than the schedule's maximum ([`CatchUp::Each`]).
    OverMax,
    /// It was older than the schedule's longest age ([`Policy::max_age`]).
    TooOld,
    /// It came due while the schedule was paused.
    Paused,
    /// The schedule was given another calendar before it ran.
    Changed,
}

impl MissedReason {
    /// Whether a person should look: work was dropped that the schedule was asked to do.
    pub fn needs_attention(self) -> bool {
        self == MissedReason::OverMax
    }
}

impl fmt::Display for MissedReason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            MissedReason::Newer => "a newer one ran instead",
            MissedReason::Skipped => "missed ones are skipped",
            MissedReason::OverMax => "over the maximum",
            MissedReason::TooOld => "older than the longest age",
            MissedReason::Paused => "it was paused",
            MissedReason::Changed => "the calendar was changed",
        })
    }
}

/// A number that is exact up to 1,000, so that counting a long absence stays cheap.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Count(u32);

impl Count {
    /// The greatest number that is exact.
    pub const EXACT: u32 = 1_000;

    /// Anything over [`EXACT`](Count::EXACT) becomes "more than 1,000".
    pub fn new(number: usize) -> Count {
        Count(u32::try_from(number).unwrap_or(u32::MAX).min(Count::EXACT + 1))
    }

    /// The number; 1,001 stands for any greater than 1,000.
    pub fn get(self) -> u32 {
        self.0
    }

    /// Whether the number is exact.
    pub fn is_exact(self) -> bool {
        self.0 <= Count::EXACT
    }
}

impl fmt::Display for Count {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_exact() { self.0.fmt(f) } else { f.write_str("more than 1,000") }
    }
}
