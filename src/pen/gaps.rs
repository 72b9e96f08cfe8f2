//! Gaps for neighbours: connections outside birkez, which SQLite lets in only when they happen to look while the lock is
//! free. They cannot be seen waiting, only by what they have committed.

use std::time::Duration;

use crate::clock::Stopwatch;

/// Transactions in direct succession are broken after this long …
const BURST: Duration = Duration::from_millis(20);
/// … by this much of free lock.
const GAP: Duration = Duration::from_millis(2);
/// While a neighbour has been seen, the lock is free for as long as it was held, once that is this much. SQLite's own busy
/// handler looks in ever longer naps: a neighbour that is to be in within 100 ms has eight looks.
const SHARE: std::ops::RangeInclusive<Duration> = Duration::from_millis(1)..=Duration::from_millis(20);
/// A neighbour counts as there for this long after its last commit.
const SEEN: Duration = Duration::from_secs(1);
/// A lock that was free for this long has ended the burst.
const REST: Duration = Duration::from_millis(1);

/// What the pen knows of its own haste and of its neighbours.
#[derive(Debug, Default)]
pub(super) struct Gaps {
    /// How long the lock was held since the last gap.
    held: Duration,
    /// Since the end of the last transaction.
    ended: Option<Stopwatch>,
    seen: Option<Stopwatch>,
    /// `data_version` on the pen's own connection, which leaves out its own commits, with the number of the beat's.
    version: Option<(i64, u64)>,
}

impl Gaps {
    /// Before a transaction. One that follows at once on another, by the keeper or by who had lined up, lets a neighbour in
    /// if it is time. A caller that comes by itself leaves gaps of its own.
    pub(super) fn leave(&mut self, follows: bool) {
        if self.ended.is_none_or(|ended| ended.elapsed() >= REST) {
            self.held = Duration::ZERO;
        }
        let beside = self.seen.is_some_and(|seen| seen.elapsed() < SEEN);
        if let Some(gap) = gap(self.held, beside).filter(|_| follows) {
            std::thread::sleep(gap);
            self.held = Duration::ZERO;
        }
    }

    /// After a transaction that has held the lock since `held`.
    pub(super) fn end(&mut self, held: Stopwatch) {
        self.held += held.elapsed();
        self.ended = Some(Stopwatch::start());
    }

    /// Inside a transaction: what `data_version` is now, and how often the beat has committed.
    pub(super) fn note(&mut self, version: i64, beats: u64) {
        if self.version.is_some_and(|(last, last_beats)| version != last && beats == last_beats) {
            self.seen = Some(Stopwatch::start());
        }
        self.version = Some((version, beats));
    }
}

/// How long to leave the lock free after it was held for `held`.
fn gap(held: Duration, beside: bool) -> Option<Duration> {
    match beside {
        true => (held >= *SHARE.start()).then(|| held.min(*SHARE.end())),
        false => (held >= BURST).then_some(GAP),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_burst_is_broken_and_a_seen_neighbour_gets_half_of_the_time() {
        let ms = Duration::from_millis;
        assert_eq!(gap(ms(19), false), None);
        assert_eq!(gap(ms(20), false), Some(ms(2)));
        assert_eq!(gap(Duration::from_micros(999), true), None);
        assert_eq!(gap(ms(3), true), Some(ms(3)));
        assert_eq!(gap(ms(500), true), Some(ms(20)));
    }

    #[test]
    fn the_beat_is_not_taken_for_a_neighbour() {
        let mut gaps = Gaps::default();
        gaps.note(1, 0);
        gaps.note(2, 1);
        assert!(gaps.seen.is_none());
        gaps.note(3, 1);
        assert!(gaps.seen.is_some());
    }
}
