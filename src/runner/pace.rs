//! How much to claim ahead of the workers: what they will start within a short time, by the measured run time of its
//! kind. A kind that was not measured yet is not claimed ahead.

use std::collections::HashMap;
use std::time::Duration;

/// What the buffer holds is meant to be started within this.
pub(super) const REACH: Duration = Duration::from_millis(20);
/// Most that is ever claimed ahead.
const MOST: usize = 512;
/// Share of a new measurement in the average.
const WEIGHT: f64 = 0.125;
/// A run time below this counts as this, in seconds.
const LEAST: f64 = 1e-6;

#[derive(Debug, Default)]
pub(super) struct Pace {
    kinds: HashMap<String, Kind>,
}

#[derive(Debug)]
struct Kind {
    /// Seconds that one takes, averaged.
    takes: f64,
    /// How many may be claimed ahead: doubles as measurements bear it out.
    window: usize,
    /// Measurements since the window was last doubled.
    measured: usize,
}

impl Pace {
    /// Notes how long an attempt of the kind took.
    pub(super) fn measure(&mut self, kind: &str, took: Duration) {
        let took = took.as_secs_f64().max(LEAST);
        match self.kinds.get_mut(kind) {
            Some(known) => {
                // A sudden slowness counts at once: what was claimed ahead would lie for long.
                known.takes =
                    if took > 16.0 * known.takes { took } else { known.takes + (took - known.takes) * WEIGHT };
                known.measured += 1;
                if known.measured >= known.window {
                    known.window = (known.window * 2).min(MOST);
                    known.measured = 0;
                }
            }
            None => {
                self.kinds.insert(kind.to_owned(), Kind { takes: took, window: 2, measured: 0 });
            }
        }
    }

    /// The room for claiming ahead, as a copy: the workers go on measuring while it is used.
    pub(super) fn budget(&self, workers: usize) -> Budget {
        let kinds = self.kinds.iter().map(|(name, kind)| (name.clone(), (kind.takes, kind.window))).collect();
        Budget { kinds, seconds: REACH.as_secs_f64() * workers as f64, jobs: MOST }
    }
}

/// See [`Pace::budget`].
pub(super) struct Budget {
    /// Seconds that one of the kind takes, and how many more of it may be claimed.
    kinds: HashMap<String, (f64, usize)>,
    seconds: f64,
    pub(super) jobs: usize,
}

impl Budget {
    /// Takes off what lies in the buffer already.
    pub(super) fn with_buffered(mut self, buffered: usize, each: impl FnOnce(&mut dyn FnMut(&str))) -> Budget {
        self.jobs = self.jobs.saturating_sub(buffered);
        if buffered > 0 {
            each(&mut |kind| {
                self.spend(kind);
            });
        }
        self
    }

    /// Whether the kind is measured and takes no longer than the reach.
    pub(super) fn is_quick(&self, kind: &str) -> bool {
        self.kinds.get(kind).is_some_and(|(takes, _)| *takes <= REACH.as_secs_f64())
    }

    /// Whether one more of the kind may be claimed ahead; if so, it is counted.
    pub(super) fn spend(&mut self, kind: &str) -> bool {
        let Some((takes, left)) = self.kinds.get_mut(kind) else { return false };
        if *left == 0 || self.seconds < *takes {
            return false;
        }
        *left -= 1;
        self.seconds -= *takes;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn room(pace: &Pace, kind: &str) -> usize {
        let mut budget = pace.budget(4);
        (0..10_000).take_while(|_| budget.spend(kind)).count()
    }

    #[test]
    fn nothing_is_claimed_ahead_of_a_kind_that_was_not_measured() {
        assert_eq!(room(&Pace::default(), "mail"), 0);
    }

    #[test]
    fn quick_kinds_are_claimed_ahead_in_doubling_numbers() {
        let mut pace = Pace::default();
        let mut last = 0;
        for _ in 0..2_000 {
            pace.measure("mail", Duration::from_micros(1));
            let now = room(&pace, "mail");
            assert!(now >= last && now <= last.max(1) * 2, "{last} {now}");
            last = now;
        }
        assert_eq!(last, MOST);
    }

    #[test]
    fn slow_kinds_are_claimed_ahead_by_what_starts_within_the_reach() {
        let mut pace = Pace::default();
        for _ in 0..100 {
            pace.measure("resize", Duration::from_millis(5));
            pace.measure("backup", Duration::from_secs(1));
        }
        assert!((15..=16).contains(&room(&pace, "resize")), "{}", room(&pace, "resize"));
        assert_eq!(room(&pace, "backup"), 0);
    }

    #[test]
    fn a_kind_that_turns_slow_is_no_longer_claimed_ahead() {
        let mut pace = Pace::default();
        for _ in 0..1_000 {
            pace.measure("mail", Duration::from_micros(1));
        }
        pace.measure("mail", Duration::from_secs(1));
        assert_eq!(room(&pace, "mail"), 0);
    }
}
