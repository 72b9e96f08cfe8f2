//! For tests, of this crate and of programs that use it: a clock that is moved by hand, and a store in a folder of its own.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::time::Duration;

use chrono::{DateTime, Utc};

use crate::clock::{Clock, SystemClock, millis};
use crate::error::{Error, Result};
pub use crate::runner::Drain;
use crate::store::{Store, StoreBuilder};

/// A wall clock that stands until it is moved. Monotonic time is the machine's, since threads and locks wait in it.
///
/// ```
/// use birkez::{Clock, testing::ManualClock};
/// let clock = ManualClock::at("2026-03-29T00:59:00Z".parse().unwrap());
/// clock.advance(std::time::Duration::from_secs(60));
/// assert_eq!(clock.now().to_rfc3339(), "2026-03-29T01:00:00+00:00");
/// ```
#[derive(Debug)]
pub struct ManualClock {
    wall: AtomicI64,
    machine: SystemClock,
}

impl ManualClock {
    /// A clock that shows `time`.
    pub fn at(time: DateTime<Utc>) -> Arc<ManualClock> {
        Arc::new(ManualClock { wall: AtomicI64::new(time.timestamp_millis()), machine: SystemClock::default() })
    }

    /// Sets it, forward or back.
    pub fn set(&self, time: DateTime<Utc>) {
        self.wall.store(time.timestamp_millis(), Ordering::Release);
    }

    /// Moves it forward.
    pub fn advance(&self, time: Duration) {
        let forward = |wall: i64| Some(wall.saturating_add(millis(time)));
        let _ = self.wall.fetch_update(Ordering::AcqRel, Ordering::Acquire, forward);
    }

    /// What it shows.
    pub fn now(&self) -> DateTime<Utc> {
        crate::job::instant(self.wall())
    }
}

impl Clock for ManualClock {
    fn wall(&self) -> i64 {
        self.wall.load(Ordering::Acquire)
    }

    fn monotonic(&self) -> Duration {
        self.machine.monotonic()
    }

    fn random(&self) -> f64 {
        self.machine.random()
    }
}

/// A folder for one store, removed when this is dropped.
///
/// ```
/// # fn main() -> anyhow::Result<()> {
/// let folder = birkez::testing::TempStore::new()?;
/// let store = folder.open()?;
/// # Ok(())
/// # }
/// ```
#[derive(Debug)]
pub struct TempStore {
    folder: PathBuf,
    file: PathBuf,
}

impl TempStore {
    /// Makes the folder.
    ///
    /// # Errors
    ///
    /// The system's temporary folder cannot be written.
    pub fn new() -> Result<TempStore> {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let count = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("birkez-{}-{count}-{:08x}", std::process::id(), fastrand::u32(..));
        let folder = std::env::temp_dir().join(name);
        std::fs::create_dir(&folder).map_err(|source| Error::Io { act: "creating", path: folder.clone(), source })?;
        let file = folder.join("test.db");
        Ok(TempStore { folder, file })
    }

    /// The path of the database file, which need not exist yet.
    pub fn path(&self) -> &Path {
        &self.file
    }

    /// Opens the store with the defaults.
    ///
    /// # Errors
    ///
    /// Those of [`Store::open`].
    pub fn open(&self) -> Result<Store> {
        Store::open(&self.file)
    }

    /// Settings for the store.
    pub fn builder(&self) -> StoreBuilder {
        Store::builder(&self.file)
    }
}

impl Drop for TempStore {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.folder);
    }
}
