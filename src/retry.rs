//! When to try again: a pure policy.

use std::time::Duration;

use crate::clock::millis;

/// The longest delay that is ever stored: ten years.
const FOR_EVER: i64 = 10 * 366 * 86_400_000;

/// How failed attempts of a kind are retried.
///
/// The delay after attempt *n* is `d = min(cap, base · factor^(n-1))`, plus a random share of up to `jitter · d`; it is
/// never shorter than `d`. Any setting and any *n* is safe.
///
/// ```
/// use birkez::RetryPolicy;
/// use std::time::Duration;
///
/// let twice_a_minute_apart = RetryPolicy::default().max_attempts(2).base(Duration::from_secs(60));
/// ```
#[derive(Clone, Debug, PartialEq)]
pub struct RetryPolicy {
    pub(crate) max_attempts: Option<u32>,
    base: Duration,
    factor: f64,
    cap: Duration,
    jitter: f64,
    pub(crate) total: Option<Duration>,
}

impl Default for RetryPolicy {
    /// 8 attempts, base 5 s, factor 3, cap 1 h, jitter 0.2, 3 days in all.
    fn default() -> Self {
        RetryPolicy {
            max_attempts: Some(8),
            base: Duration::from_secs(5),
            factor: 3.0,
            cap: Duration::from_secs(3600),
            jitter: 0.2,
            total: Some(Duration::from_secs(3 * 86_400)),
        }
    }
}

impl RetryPolicy {
    /// How many charged attempts a job gets. 0 counts as 1. Defaults to 8.
    pub fn max_attempts(mut self, attempts: u32) -> Self {
        self.max_attempts = Some(attempts.max(1));
        self
    }

    /// Takes the limit of attempts away.
    pub fn unlimited_attempts(mut self) -> Self {
        self.max_attempts = None;
        self
    }

    /// Delay after the first failed attempt. Defaults to 5 s.
    pub fn base(mut self, delay: Duration) -> Self {
        self.base = delay;
        self
    }

    /// What the delay is multiplied by from one attempt to the next. Below 1, and what is no number, counts as 1.
    /// Defaults to 3.
    pub fn factor(mut self, factor: f64) -> Self {
        self.factor = if factor >= 1.0 { factor } else { 1.0 };
        self
    }

    /// The longest delay before jitter. Defaults to one hour.
    pub fn cap(mut self, delay: Duration) -> Self {
        self.cap = delay;
        self
    }

    /// Largest random share added to a delay, as a part of it. Below 0, and what is no number, counts as 0. Defaults to
    /// 0.2.
    pub fn jitter(mut self, share: f64) -> Self {
        self.jitter = if share > 0.0 { share } else { 0.0 };
        self
    }

    /// Total time from the start of the first attempt: a failure after it ends the job. It decides only after a failed
    /// attempt, never instead of one. Defaults to 3 days.
    pub fn total(mut self, time: Duration) -> Self {
        self.total = Some(time);
        self
    }

    /// Takes the limit of total time away.
    pub fn unlimited_total(mut self) -> Self {
        self.total = None;
        self
    }

    pub(crate) fn is_last(&self, attempt: u32) -> bool {
        self.max_attempts.is_some_and(|max| attempt >= max)
    }

    /// Milliseconds to wait after failed attempt `attempt` (from 1), at least `floor`; `random` is in `[0, 1)`.
    pub(crate) fn delay(&self, attempt: u32, floor: Duration, random: f64) -> i64 {
        let exponent = i32::try_from(attempt.saturating_sub(1)).unwrap_or(i32::MAX);
        let cap = self.cap.as_secs_f64() * 1000.0;
        let grown = self.base.as_secs_f64() * 1000.0 * self.factor.powi(exponent);
        // 0 · ∞ is no number: a base of zero stays zero.
        let backoff = if self.base.is_zero() { 0.0 } else { grown.min(cap) };
        let delay = backoff.max(millis(floor) as f64);
        let spread = (delay * self.jitter * random).max(0.0);
        // Up, so that a part of a millisecond never makes it shorter than it should be; `as` saturates.
        ((delay + spread).ceil() as i64).clamp(0, FOR_EVER)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NONE: Duration = Duration::ZERO;

    #[test]
    fn delays_grow_by_the_factor_up_to_the_cap() {
        let policy = RetryPolicy::default();
        let delays: Vec<_> = (1..=8).map(|n| policy.delay(n, NONE, 0.0)).collect();
        assert_eq!(delays, [5_000, 15_000, 45_000, 135_000, 405_000, 1_215_000, 3_600_000, 3_600_000]);
    }

    #[test]
    fn jitter_only_adds_and_stays_within_its_share() {
        let policy = RetryPolicy::default();
        for attempt in 1..20 {
            let least = policy.delay(attempt, NONE, 0.0);
            for step in 0..100 {
                let delay = policy.delay(attempt, NONE, f64::from(step) / 100.0);
                assert!(delay >= least && delay as f64 <= least as f64 * 1.2 + 1.0, "{attempt}: {delay}");
            }
        }
    }

    #[test]
    fn two_hundred_failures_of_one_moment_do_not_return_in_one_second() {
        let policy = RetryPolicy::default().base(Duration::from_secs(60));
        let mut chance = fastrand::Rng::with_seed(7);
        let mut seconds = std::collections::HashMap::new();
        for _ in 0..200 {
            let delay = policy.delay(1, NONE, chance.f64());
            assert!((60_000..=72_000).contains(&delay));
            *seconds.entry(delay / 1000).or_insert(0) += 1;
        }
        assert!(seconds.values().all(|&n| n < 40), "{seconds:?}");
    }

    #[test]
    fn a_floor_is_a_floor() {
        let policy = RetryPolicy::default();
        assert_eq!(policy.delay(1, Duration::from_secs(30), 0.0), 30_000);
        assert!(policy.delay(1, Duration::from_secs(30), 0.99) <= 36_000);
    }

    #[test]
    fn no_setting_and_no_attempt_number_breaks_it() {
        let odd = [0.0, -1.0, 1.0, 3.0, 1e300, f64::NAN, f64::INFINITY, f64::NEG_INFINITY];
        let lengths = [Duration::ZERO, Duration::from_millis(1), Duration::from_secs(5), Duration::MAX];
        for (factor, jitter) in odd.iter().flat_map(|&f| odd.map(|j| (f, j))) {
            for (base, cap) in lengths.iter().flat_map(|&b| lengths.map(|c| (b, c))) {
                let policy = RetryPolicy::default().factor(factor).jitter(jitter).base(base).cap(cap);
                for attempt in [0, 1, 2, 64, 2_000_000_000, u32::MAX] {
                    let delay = policy.delay(attempt, NONE, 0.999);
                    assert!((0..=FOR_EVER).contains(&delay), "{policy:?} {attempt} {delay}");
                }
            }
        }
        assert_eq!(RetryPolicy::default().base(NONE).delay(u32::MAX, NONE, 0.9), 0);
    }
}
