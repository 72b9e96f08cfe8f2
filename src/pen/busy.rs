//! How transactions have waited for other connections.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use crate::numbers::BusyWaits;

/// Those that met a locked file, and the microseconds that they have waited.
#[derive(Default)]
pub(crate) struct Busy {
    count: AtomicU64,
    micros: AtomicU64,
}

impl Busy {
    /// A transaction has waited so long before it could begin.
    pub(super) fn note(&self, waited: Duration) {
        if !waited.is_zero() {
            self.count.fetch_add(1, Ordering::Relaxed);
            self.micros.fetch_add(u64::try_from(waited.as_micros()).unwrap_or(u64::MAX), Ordering::Relaxed);
        }
    }

    pub(crate) fn told(&self) -> BusyWaits {
        let time = Duration::from_micros(self.micros.load(Ordering::Relaxed));
        BusyWaits { count: self.count.load(Ordering::Relaxed), time }
    }
}
