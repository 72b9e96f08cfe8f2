//! The store: a file with jobs in it, and the calls that enqueue and look.

mod builder;
mod filter;
mod history;
mod lines;
mod list;
mod look;
mod once;
mod write;

use std::collections::HashMap;
use std::path::Path;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use r2d2_sqlite::SqliteConnectionManager;
use rusqlite::params;

pub use self::builder::StoreBuilder;
pub use self::filter::Filter;
pub use self::history::History;
pub use self::lines::BlockedKey;
pub use self::list::Page;
pub(crate) use self::look::read_job;
pub use self::look::{Attempt, JobInfo, StepInfo};
pub(crate) use self::once::ended_by;
pub(crate) use self::write::Written;
use crate::clock::Clock;
use crate::connect::{Connector, within};
use crate::endings::Endings;
use crate::enqueue::{KnownKind, Terms};
use crate::error::{Error, Result};
use crate::fault::StorageFault;
use crate::owner::{Owner, Watch};
use crate::pen::{Act, Mode, Pen};
use crate::settle::take_back;
use crate::sql;
use crate::trial::Trial;
use crate::upkeep::Retention;
use crate::watch::Hub;

/// Whoever closes a store does not wait long for another connection.
const CLOSING: Duration = Duration::from_millis(500);
const CLOSE: Act = Act { name: "closing the store", instead: "the same after the transaction" };

/// A database file with jobs in it: the app's own, or one of its own.
///
/// Cheap to clone; clones share one write connection, so that concurrent calls share commits.
///
/// ```
/// # fn main() -> anyhow::Result<()> {
/// # let folder = birkez::testing::TempStore::new()?;
/// # let path = folder.path();
/// let store = birkez::Store::open(path)?;
/// assert!(store.path().is_absolute());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct Store {
    pub(crate) inner: Arc<Inner>,
}

pub(crate) struct Inner {
    pub pen: Pen,
    pub connector: Connector,
    pub clock: Arc<dyn Clock>,
    pub busy: Duration,
    pub lease: Duration,
    pub terms: Terms,
    pub retention: Retention,
    pool_size: u32,
    pool: OnceLock<r2d2::Pool<SqliteConnectionManager>>,
    owner: Mutex<Option<Arc<Owner>>>,
    /// Suspects start one by one in a process.
    pub trial: Trial,
    pub endings: Arc<Endings>,
    /// Kinds that runners of this store handle, under all their names.
    kinds: Mutex<HashMap<&'static str, KnownKind>>,
    /// What this process has seen of other owners' beats.
    pub watch: Mutex<Watch>,
    /// Who in this process wants to know of changes, if anybody does.
    pub watching: Mutex<Weak<Hub>>,
    /// Which jobs tell, as runners of this store have asked: what, kind, and shape.
    pub notices: Mutex<Vec<(&'static str, &'static str, u32)>>,
}

impl Store {
    /// Opens `path` with the defaults of [`StoreBuilder`], creating the file (mode 0600) if it is missing.
    ///
    /// An existing database gets birkez's tables and is changed nowhere else.
    ///
    /// # Errors
    ///
    /// The file is not fit, each case with its own code: see the table at [`Error::code`].
    pub fn open(path: impl AsRef<Path>) -> Result<Store> {
        Store::builder(path).open()
    }

    /// Settings other than the defaults.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let path = folder.path();
    /// use birkez::{Durability, Store};
    /// let store = Store::builder(path).durability(Durability::Normal).open()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(path: impl AsRef<Path>) -> StoreBuilder {
        StoreBuilder::new(path.as_ref())
    }

    /// The absolute path of the file.
    pub fn path(&self) -> &Path {
        &self.inner.connector.path
    }

    /// Reads with a pooled connection, in one consistent view.
    pub(crate) fn read<T>(
        &self,
        act: &'static str,
        f: impl FnOnce(&rusqlite::Transaction<'_>) -> rusqlite::Result<T>,
    ) -> Result<T> {
        let inner = &*self.inner;
        let waited_ms = u64::try_from(inner.busy.as_millis()).unwrap_or(u64::MAX);
        let mut connection = inner.pool()?.get().map_err(|_| Error::Busy { act, waited_ms })?;
        within(inner.busy, || {
            let tx = connection.transaction()?;
            f(&tx)
        })
        .map_err(|error| StorageFault::from_sqlite(&error, self.path()).to_error(act))
    }
}

impl Inner {
    fn pool(&self) -> Result<&r2d2::Pool<SqliteConnectionManager>> {
        Ok(self.pool.get_or_init(|| {
            let connector = self.connector.clone();
            let flags = rusqlite::OpenFlags::SQLITE_OPEN_READ_WRITE | rusqlite::OpenFlags::SQLITE_OPEN_NO_MUTEX;
            let manager = SqliteConnectionManager::file(&self.connector.path)
                .with_flags(flags)
                .with_init(move |connection| connector.prepare(connection));
            // What is handed out is a transaction, never the connection: the pool cannot tell a connection that comes
            // back with one open.
            r2d2::Pool::builder()
                .max_size(self.pool_size)
                .min_idle(Some(0))
                .connection_timeout(self.busy)
                .error_handler(Box::new(r2d2::NopErrorHandler))
                .build_unchecked(manager)
        }))
    }

    pub(crate) fn know_kinds(&self, kinds: impl IntoIterator<Item = (&'static str, KnownKind)>) {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner).extend(kinds);
    }

    pub(crate) fn known_kind(&self, kind: &str) -> Option<KnownKind> {
        self.kinds.lock().unwrap_or_else(PoisonError::into_inner).get(kind).copied()
    }

    /// The owner of this process's leases, registered on first use and anew when it was declared gone.
    pub(crate) fn owner(&self) -> Result<Arc<Owner>> {
        let mut owner = self.owner.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(owner) = owner.as_ref().filter(|owner| !owner.is_lost()) {
            return Ok(Arc::clone(owner));
        }
        let fresh = Owner::register(&self.pen, &self.connector, &self.clock, self.lease)?;
        if let Some(lost) = owner.replace(Arc::clone(&fresh)) {
            lost.fall_silent();
            lost.remove_lock();
        }
        Ok(fresh)
    }
}

impl Drop for Inner {
    /// Ends this process's row, so that others need not find out.
    fn drop(&mut self) {
        let owner = self.owner.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(owner) = owner else { return };
        owner.fall_silent();
        let id = owner.id;
        self.pen.hurry(CLOSING);
        let ended = self.pen.write(CLOSE, Mode { atomic: true, ..Mode::default() }, move |group| {
            take_back(group, id)?;
            group.statement(sql::END_RUNNER)?.execute(params![id, group.now, "stopped"])?;
            Ok(())
        });
        if let Err(error) = ended {
            tracing::warn!(%error, "this process could not sign off; others will find it gone");
        }
        owner.remove_lock();
    }
}

impl std::fmt::Debug for Store {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Store").field("path", &self.path()).finish_non_exhaustive()
    }
}
