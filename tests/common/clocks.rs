//! A wall clock and a monotonic clock, each moved by hand.

use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use birkez::Clock;

/// See the module.
#[derive(Default)]
pub struct Clocks {
    /// In milliseconds.
    pub wall: AtomicI64,
    /// In seconds.
    pub monotonic: AtomicU64,
}

impl Clock for Clocks {
    fn wall(&self) -> i64 {
        self.wall.load(Ordering::Acquire)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_secs(self.monotonic.load(Ordering::Acquire))
    }

    fn random(&self) -> f64 {
        0.5
    }
}
