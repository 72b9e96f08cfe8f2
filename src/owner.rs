//! Who holds leases: one owner per process and store, known to others by a lock and a beat.
//!
//! No wall clock and no process number decides whether an owner lives. Its operating-system lock is free the moment its
//! process is gone; where that cannot be told, its beat (a counter in its row) must stand still for a whole lease, watched
//! on the watcher's own monotonic clock.

mod beat;
mod lock;
mod watch;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::params;

pub(crate) use self::watch::{Holder, Sign, Watch, find_gone, lives, reap};
use crate::clock::{Clock, millis};
use crate::connect::Connector;
use crate::error::Result;
use crate::pen::{Act, Mode, Pen};
use crate::{platform, sql};

const REGISTER: Act = Act { name: "registering this process", instead: "the same before the transaction" };

/// See the module.
pub(crate) struct Owner {
    pub id: i64,
    lease: Duration,
    state: Arc<BeatState>,
    lock: Option<lock::LockFile>,
    beat: Mutex<Option<beat::Beat>>,
}

/// What the beat knows.
#[derive(Debug, Default)]
pub(crate) struct BeatState {
    /// Somebody has declared this owner gone.
    lost: AtomicBool,
    /// Commits of the beat's, so that they are not taken for a neighbour's.
    commits: Arc<AtomicU64>,
    /// Monotonic milliseconds of the last beat that reached the file.
    last: AtomicU64,
}

impl Owner {
    /// Takes the lock, then writes the row: whoever reads the row finds the lock held.
    pub(crate) fn register(
        pen: &Pen,
        connector: &Connector,
        clock: &Arc<dyn Clock>,
        lease: Duration,
    ) -> Result<Arc<Owner>> {
        let uuid = format!("{:032x}", fastrand::u128(..));
        let lock = match lock::LockFile::create(&folder(&connector.path), &uuid) {
            Ok(lock) => Some(lock),
            Err(error) => {
                let file = connector.path.display();
                tracing::warn!(%file, %error, "no lock file can be made; if this process dies, only its beat will tell");
                None
            }
        };
        let has_lock = lock.is_some();
        let id = pen.write(REGISTER, Mode::default(), move |group| {
            group.statement(sql::REGISTER_RUNNER)?.execute(params![
                uuid,
                has_lock,
                platform::boot_id(),
                platform::host_name(),
                std::process::id(),
                platform::program_name(),
                millis(lease),
                group.now,
            ])?;
            Ok(group.tx().last_insert_rowid())
        })?;
        let state = Arc::new(BeatState { commits: pen.beats(), ..BeatState::default() });
        state.heard(clock.monotonic());
        let beat = beat::Beat::start(id, lease, connector, clock, &state)?;
        Ok(Arc::new(Owner { id, lease, state, lock, beat: Mutex::new(Some(beat)) }))
    }

    /// Whether somebody has declared it gone: nothing that it claimed is its own any more.
    pub(crate) fn is_lost(&self) -> bool {
        self.state.lost.load(Ordering::Acquire)
    }

    /// Whether its beat is fresh enough to start something.
    pub(crate) fn is_fresh(&self, monotonic: Duration) -> bool {
        let last = Duration::from_millis(self.state.last.load(Ordering::Acquire));
        !self.is_lost() && monotonic.saturating_sub(last) < self.lease
    }

    /// Stops the beat. The row is ended by the caller, in a transaction of the pen's.
    pub(crate) fn fall_silent(&self) {
        let beat = self.beat.lock().unwrap_or_else(PoisonError::into_inner).take();
        drop(beat);
    }

    pub(crate) fn remove_lock(&self) {
        if let Some(lock) = &self.lock {
            lock.remove();
        }
    }
}

impl std::fmt::Debug for Owner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Owner").field("id", &self.id).field("lost", &self.is_lost()).finish_non_exhaustive()
    }
}

impl BeatState {
    fn heard(&self, monotonic: Duration) {
        self.last.store(u64::try_from(monotonic.as_millis()).unwrap_or(u64::MAX), Ordering::Release);
    }
}

/// Where the lock files of a database's owners are.
pub(crate) fn folder(database: &Path) -> PathBuf {
    let mut name = database.as_os_str().to_owned();
    name.push("-birkez.d");
    PathBuf::from(name)
}
