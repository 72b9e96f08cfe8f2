//! Time and chance, injected. Nothing outside this file asks the system for either.

use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Where birkez gets the time and its random numbers from.
///
/// [`SystemClock`] is the default; [`testing::ManualClock`](crate::testing::ManualClock) is moved by hand.
pub trait Clock: Send + Sync + 'static {
    /// Milliseconds since 1970-01-01 UTC. May jump in either direction.
    fn wall(&self) -> i64;

    /// Time since some fixed moment. Never goes back; need not advance while the machine sleeps.
    fn monotonic(&self) -> Duration;

    /// A number in `[0, 1)`, for jitter.
    fn random(&self) -> f64;
}

/// The machine's own clock and a random generator seeded by the system.
#[derive(Debug)]
pub struct SystemClock {
    start: Instant,
}

impl Default for SystemClock {
    fn default() -> Self {
        SystemClock { start: Instant::now() }
    }
}

impl Clock for SystemClock {
    fn wall(&self) -> i64 {
        match SystemTime::now().duration_since(UNIX_EPOCH) {
            Ok(since) => millis(since),
            Err(before) => -millis(before.duration()),
        }
    }

    fn monotonic(&self) -> Duration {
        self.start.elapsed()
    }

    fn random(&self) -> f64 {
        fastrand::f64()
    }
}

/// A real stretch of waiting, such as for a lock. It runs on the machine's time even under a manual clock, since what it
/// waits for (another process, a thread, the disk) does too.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Stopwatch(Instant);

impl Stopwatch {
    pub(crate) fn start() -> Self {
        Stopwatch(Instant::now())
    }

    pub(crate) fn elapsed(self) -> Duration {
        self.0.elapsed()
    }

    /// What is left of `limit`, or `None` when it is used up.
    pub(crate) fn left(self, limit: Duration) -> Option<Duration> {
        limit.checked_sub(self.elapsed()).filter(|left| !left.is_zero())
    }
}

/// A duration as whole milliseconds; one too long for that is as good as for ever.
pub(crate) fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}
