//! Settings of a store, and the checks at its opening.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use rusqlite::{Connection, ErrorCode};

use super::{Inner, Store};
use crate::clock::{Clock, Stopwatch, SystemClock};
use crate::connect::{Connector, Durability, check_engine, explain_open, locate, within};
use crate::copy::{arrive, is_copy};
use crate::endings::Endings;
use crate::enqueue::Terms;
use crate::error::{Error, Result};
use crate::pen::{Act, Mode, Pen, Rider};
use crate::platform;
use crate::schema;
use crate::telling::{Callback, Event, Teller};
use crate::trial::Trial;
use crate::upkeep::{Retention, give_back_in_steps, settle_ownership};

/// Who waits longer than this for a lock waits for ever.
const LONGEST_WAIT: Duration = Duration::from_secs(86_400);
/// Between two tries at switching a file to WAL, where SQLite does not ask the busy handler.
const SWITCH_PAUSE: Duration = Duration::from_millis(2);
const ARRIVE: Act = Act { name: "opening a copy in its place", instead: "the same after the transaction" };

/// Settings of a [`Store`]; made by [`Store::builder`].
#[derive(Clone)]
#[must_use]
pub struct StoreBuilder {
    path: PathBuf,
    connector: Connector,
    clock: Arc<dyn Clock>,
    pool_size: u32,
    busy: Duration,
    lease: Duration,
    terms: Terms,
    retention: Retention,
    switch_to_wal: bool,
    accept_engine: bool,
    on_event: Option<Callback>,
}

impl StoreBuilder {
    pub(super) fn new(path: &Path) -> StoreBuilder {
        StoreBuilder {
            path: path.to_owned(),
            connector: Connector { path: PathBuf::new(), durability: Durability::Full, hook: None },
            clock: Arc::new(SystemClock::default()),
            pool_size: 4,
            busy: Duration::from_secs(10),
            lease: Duration::from_secs(30),
            terms: Terms {
                payload_limit: 256 * 1024,
                origin: format!("app {}", platform::program_name()),
                secret: Vec::new(),
            },
            retention: Retention::default(),
            switch_to_wal: false,
            accept_engine: false,
            on_event: None,
        }
    }

    /// How strongly a commit is kept. Defaults to [`Durability::Full`].
    pub fn durability(mut self, durability: Durability) -> Self {
        self.connector.durability = durability;
        self
    }

    /// How many connections may read at once. They are opened when needed. 0 counts as 1. Defaults to 4.
    pub fn pool_size(mut self, connections: u32) -> Self {
        self.pool_size = connections.max(1);
        self
    }

    /// How long a call waits for other connections before it answers [`Error::Busy`]. Defaults to 10 s; at least 1 ms, at
    /// most a day.
    pub fn busy_deadline(mut self, limit: Duration) -> Self {
        self.busy = limit.clamp(Duration::from_millis(1), LONGEST_WAIT);
        self
    }

    /// How long the beat of a process may stand still before its jobs are taken back, where its lock cannot tell that it
    /// died. It bounds no job's length. Defaults to 30 s, at least 30 ms.
    pub fn lease(mut self, length: Duration) -> Self {
        self.lease = length.max(Duration::from_millis(30));
        self
    }

    /// The largest payload and the largest stored output, in bytes. Defaults to 256 KiB.
    pub fn payload_limit(mut self, bytes: usize) -> Self {
        self.terms.payload_limit = bytes;
        self
    }

    /// What [idempotency keys](crate::Context::idempotency_key) are computed with, so that nobody who knows a job's kind and
    /// key can guess its. A job keeps the one that it was stored with. Defaults to none.
    pub fn idempotency_secret(mut self, secret: impl Into<Vec<u8>>) -> Self {
        self.terms.secret = secret.into();
        self
    }

    /// Where the time comes from. Defaults to [`SystemClock`].
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Runs first on every connection that birkez opens, such as for a host's `PRAGMA key`. Defaults to nothing.
    pub fn on_connect(mut self, hook: impl Fn(&Connection) -> rusqlite::Result<()> + Send + Sync + 'static) -> Self {
        self.connector.hook = Some(Arc::new(hook));
        self
    }

    /// What is kept of what is over, and for how long. Runners of this store see to it by themselves; so does
    /// [`Store::upkeep`]. Of several processes with different rules the strictest counts. Defaults to
    /// [`Retention::default`].
    pub fn retention(mut self, retention: Retention) -> Self {
        self.retention = retention;
        self
    }

    /// Switches an existing file to WAL instead of refusing it. It stays in WAL mode afterwards.
    pub fn switch_to_wal(mut self) -> Self {
        self.switch_to_wal = true;
        self
    }

    /// Accepts an SQLite without the fix of the WAL-reset fault, which can lose committed data.
    pub fn accept_engine(mut self) -> Self {
        self.accept_engine = true;
        self
    }

    /// Is told what happens through this store, once it is committed: see [`Event`]. Defaults to nobody.
    ///
    /// It runs in a thread of its own, one event after another, and may block or call the store; what panics is told
    /// nothing less. Up to 65,536 events wait for it; those that come on top are counted in
    /// [`Happened::Skipped`](crate::Happened::Skipped). What must not be lost in a crash is told by a job
    /// ([`on_dead`](crate::RunnerBuilder::on_dead)). A callback that holds the store itself keeps it open for ever.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// let store = folder.builder().on_event(|event| println!("{} {:?}", event.what.name(), event.what.job())).open()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_event(mut self, callback: impl Fn(&Event) + Send + Sync + 'static) -> Self {
        self.on_event = Some(Arc::new(callback));
        self
    }

    /// Opens the store. A file that is a [backup](Store::backup) becomes a store anew: see [`Store::restore`].
    ///
    /// # Errors
    ///
    /// The file is not fit, each case with its own code: see the table at [`Error::code`]. The file stays as it was.
    pub fn open(mut self) -> Result<Store> {
        check_engine(self.accept_engine)?;
        self.connector.path = locate(&self.path)?;
        let busy = self.busy;
        let connection = within(busy, || self.open_connection())?;
        let copied = is_copy(&connection).map_err(|error| explain_open(error, &self.connector.path))?;
        let teller = Teller::new(self.on_event).map_err(|source| {
            let path = self.connector.path.clone();
            Error::Io { act: "starting the thread of events for", path, source }
        })?;
        let teller = Arc::new(teller);
        let pen = Pen::new(self.connector.clone(), connection, Arc::clone(&self.clock), busy, Arc::clone(&teller));
        if copied {
            pen.write(ARRIVE, Mode { atomic: true, synced: true, follows: false }, arrive)?;
        }
        let endings = Arc::new(Endings::new(Arc::clone(&self.clock), teller));
        let rider: Arc<dyn Rider> = Arc::clone(&endings) as _;
        pen.attach(Arc::downgrade(&rider));
        Ok(Store {
            inner: Arc::new(Inner {
                pen,
                endings,
                kinds: Mutex::default(),
                watch: Mutex::default(),
                connector: self.connector,
                clock: self.clock,
                busy,
                lease: self.lease,
                terms: self.terms,
                retention: self.retention,
                pool_size: self.pool_size,
                pool: OnceLock::new(),
                owner: Mutex::new(None),
                trial: Trial::default(),
                watching: Mutex::default(),
                notices: Mutex::default(),
            }),
        })
    }

    pub(crate) fn accepts_engine(&self) -> bool {
        self.accept_engine
    }

    pub(crate) fn parts(&self) -> (&Path, &Connector, Duration) {
        (&self.path, &self.connector, self.busy)
    }

    fn open_connection(&self) -> Result<Connection> {
        let path = &self.connector.path;
        let connection = self.connector.open().map_err(|error| explain_open(error, path))?;
        self.ensure_wal(&connection)?;
        schema::prepare(&connection, path)?;
        settle_ownership(&connection).map_err(|error| explain_open(error, path))?;
        Ok(connection)
    }

    fn ensure_wal(&self, connection: &Connection) -> Result<()> {
        let path = &self.connector.path;
        let explain = |error| explain_open(error, path);
        let waited = Stopwatch::start();
        loop {
            // Pages before mode: another process may fill the file in between, and it switches the mode first.
            let pages = connection.query_row("PRAGMA main.page_count", [], |row| row.get::<_, i64>(0));
            let pages = pages.map(Some).or_else(busy_is_none).map_err(explain)?;
            let mode = journal_mode(connection, "PRAGMA main.journal_mode").or_else(busy_is_none).map_err(explain)?;
            if mode.as_deref() == Some("wal") {
                return Ok(());
            }
            match (mode, pages) {
                // A backup is no WAL file, so that it can be read anywhere; the one that it was made of was.
                (Some(mode), Some(pages))
                    if pages > 0
                        && !self.switch_to_wal
                        && has_tables(connection).map_err(explain)?
                        && !is_copy(connection).map_err(explain)? =>
                {
                    return Err(Error::NotWal { path: path.clone(), mode });
                }
                (Some(_), Some(pages)) => {
                    if pages == 0 {
                        give_back_in_steps(connection).map_err(explain)?;
                    }
                    let switched = journal_mode(connection, "PRAGMA main.journal_mode = WAL").or_else(busy_is_none);
                    if switched.map_err(explain)?.as_deref() == Some("wal") {
                        return Ok(());
                    }
                }
                _ => {}
            }
            if waited.left(self.busy).is_none() {
                let waited_ms = u64::try_from(self.busy.as_millis()).unwrap_or(u64::MAX);
                return Err(Error::Busy { act: "switching the file to WAL", waited_ms });
            }
            std::thread::sleep(SWITCH_PAUSE);
        }
    }
}

/// Whether somebody's tables are in it. A file with pages and none is one that another process is making: how freed pages are
/// given back is written into it before its mode.
fn has_tables(connection: &Connection) -> rusqlite::Result<bool> {
    let found = connection.query_row("SELECT EXISTS (SELECT 1 FROM main.sqlite_schema)", [], |row| row.get(0));
    Ok(found.map(Some).or_else(busy_is_none)?.unwrap_or(false))
}

fn journal_mode(connection: &Connection, pragma: &str) -> rusqlite::Result<Option<String>> {
    connection.query_row(pragma, [], |row| row.get(0)).map(Some)
}

/// The switch answers "locked" at once, whatever the busy handler would have said.
fn busy_is_none<T>(error: rusqlite::Error) -> rusqlite::Result<Option<T>> {
    match error.sqlite_error_code() {
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => Ok(None),
        _ => Err(error),
    }
}
