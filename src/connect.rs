//! Opening connections to the file: what is checked before, and what is set on each.

use std::cell::Cell;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rusqlite::config::DbConfig;
use rusqlite::{Connection, ErrorCode, OpenFlags};

use crate::clock::Stopwatch;
use crate::error::{Error, Result};
use crate::platform;

/// The first release of each series that has the WAL-reset fix. <https://sqlite.org/wal.html#walresetbug>
const FIXED_SINCE: i32 = 3_051_003;
const FIXED_IN_SERIES: [(i32, i32); 2] = [(3_050_007, 3_051_000), (3_044_006, 3_045_000)];
/// All statements of one connection fit, so that none is ever prepared twice.
const STATEMENTS: usize = 96;
/// A WAL file is cut back to this after a checkpoint that a long reader had delayed.
const WAL_LIMIT: i64 = 4 << 20;
/// Between two tries at the writer lock. SQLite's own handler backs off to 100 ms and starves.
const POLL: std::ops::Range<u64> = 500..2_000;

pub(crate) type ConnectHook = Arc<dyn Fn(&Connection) -> rusqlite::Result<()> + Send + Sync>;

/// How strongly a commit is kept.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Durability {
    /// A job whose enqueue returned survives the death of its process and the loss of power: every commit is synced. The
    /// default.
    #[default]
    Full,
    /// A job whose enqueue returned survives the death of its process; the last commits before a loss of power may be
    /// gone. The file stays sound in any case.
    Normal,
}

impl Durability {
    pub(crate) fn pragma(self) -> &'static str {
        match self {
            Durability::Full => "PRAGMA synchronous = FULL",
            Durability::Normal => "PRAGMA synchronous = NORMAL",
        }
    }
}

/// What every connection of a store is opened with.
#[derive(Clone)]
pub(crate) struct Connector {
    pub path: PathBuf,
    pub durability: Durability,
    pub hook: Option<ConnectHook>,
}

impl Connector {
    /// A connection to the existing file.
    pub(crate) fn open(&self) -> rusqlite::Result<Connection> {
        // Without CREATE: a file that went away must not come back empty. The path is absolute, so SQLite never takes it
        // for a `file:` URI.
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let connection = Connection::open_with_flags(&self.path, flags)?;
        // A file that it may not write SQLite opens for reading, without a word.
        if connection.is_readonly(rusqlite::MAIN_DB)? {
            let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_READONLY);
            return Err(rusqlite::Error::SqliteFailure(code, None));
        }
        self.prepare(&connection)?;
        Ok(connection)
    }

    pub(crate) fn prepare(&self, connection: &Connection) -> rusqlite::Result<()> {
        // Savepoints spill into temporary files otherwise, in a folder that may not be writable. It touches no file, and
        // comes before the hook since it drops every temporary table that is there.
        connection.execute_batch("PRAGMA temp_store = MEMORY")?;
        if let Some(hook) = &self.hook {
            hook(connection)?;
        }
        connection.busy_handler(Some(wait_a_little))?;
        connection.set_prepared_statement_cache_capacity(STATEMENTS);
        // A mistyped column name is an error, not a text.
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DML, false)?;
        connection.set_db_config(DbConfig::SQLITE_DBCONFIG_DQS_DDL, false)?;
        connection.execute_batch(self.durability.pragma())?;
        if self.durability == Durability::Full {
            // On macOS a plain fsync leaves the data in the drive's cache.
            connection.execute_batch("PRAGMA fullfsync = ON; PRAGMA checkpoint_fullfsync = ON;")?;
        }
        connection.execute_batch("PRAGMA trusted_schema = OFF; PRAGMA cell_size_check = ON; PRAGMA mmap_size = 0;")?;
        connection.query_row(&format!("PRAGMA journal_size_limit = {WAL_LIMIT}"), [], |_| Ok(()))
    }
}

thread_local! {
    static DEADLINE: Cell<Option<(Stopwatch, Duration)>> = const { Cell::new(None) };
    /// How long this thread's busy handler has waited.
    static WAITED: Cell<Duration> = const { Cell::new(Duration::ZERO) };
}

/// Runs `f`, and says how long the busy handler has waited in it.
pub(crate) fn waited_for_others<R>(f: impl FnOnce() -> R) -> (R, Duration) {
    let before = WAITED.get();
    let result = f();
    (result, WAITED.get().saturating_sub(before))
}

/// Runs `f` with at most `limit` of waiting for other connections' locks in it.
pub(crate) fn within<R>(limit: Duration, f: impl FnOnce() -> R) -> R {
    let outer = DEADLINE.replace(Some((Stopwatch::start(), limit)));
    let result = f();
    DEADLINE.set(outer);
    result
}

/// The busy handler: short, jittered waits until the thread's deadline.
fn wait_a_little(_tries: i32) -> bool {
    let Some((since, limit)) = DEADLINE.get() else { return false };
    let Some(left) = since.left(limit) else { return false };
    let nap = Stopwatch::start();
    std::thread::sleep(Duration::from_micros(fastrand::u64(POLL)).min(left));
    WAITED.set(WAITED.get() + nap.elapsed());
    true
}

/// How long this thread has been inside [`within`].
fn waited_ms() -> u64 {
    DEADLINE.get().map_or(0, |(since, _)| u64::try_from(since.elapsed().as_millis()).unwrap_or(u64::MAX))
}

pub(crate) fn check_engine(accepted: bool) -> Result<()> {
    if accepted || is_sound(rusqlite::version_number()) {
        return Ok(());
    }
    Err(Error::EngineTooOld { version: rusqlite::version().to_owned() })
}

fn is_sound(version: i32) -> bool {
    version >= FIXED_SINCE || FIXED_IN_SERIES.iter().any(|&(from, below)| (from..below).contains(&version))
}

/// The absolute path of the file, made empty and private if it is missing.
///
/// # Errors
///
/// The path is no regular file, or its folder cannot be written.
pub(crate) fn locate(path: &Path) -> Result<PathBuf> {
    let absolute = std::path::absolute(path).map_err(|source| Error::Io {
        act: "finding the folder of",
        path: path.to_owned(),
        source,
    })?;
    match std::fs::metadata(&absolute) {
        Ok(found) if !found.is_file() => return Err(Error::NotAFile { path: absolute }),
        Ok(_) => {}
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => create(&absolute)?,
        Err(source) => return Err(Error::Io { act: "opening", path: absolute, source }),
    }
    std::fs::canonicalize(&absolute).map_err(|source| Error::Io { act: "opening", path: absolute, source })
}

fn create(path: &Path) -> Result<()> {
    use std::io::ErrorKind::{AlreadyExists, NotFound, PermissionDenied, ReadOnlyFilesystem};
    match platform::create_private_file(path) {
        Ok(_) => Ok(()),
        Err(error) if error.kind() == AlreadyExists => Ok(()),
        Err(error) if matches!(error.kind(), PermissionDenied | ReadOnlyFilesystem) => {
            Err(Error::Unwritable { path: path.to_owned(), cause: error.to_string() })
        }
        Err(source) if source.kind() == NotFound => {
            Err(Error::Io { act: "creating (its folder does not exist)", path: path.to_owned(), source })
        }
        Err(source) => Err(Error::Io { act: "creating", path: path.to_owned(), source }),
    }
}

/// What SQLite's refusal to open or read a file means for whoever gave its path.
pub(crate) fn explain_open(error: rusqlite::Error, path: &Path) -> Error {
    let path = path.to_owned();
    match error.sqlite_error_code() {
        Some(ErrorCode::NotADatabase) => Error::NotADatabase { path },
        Some(ErrorCode::DatabaseCorrupt) => Error::Damaged { path, cause: error.to_string() },
        Some(ErrorCode::ReadOnly | ErrorCode::CannotOpen | ErrorCode::PermissionDenied) => {
            Error::Unwritable { path, cause: error.to_string() }
        }
        Some(ErrorCode::DiskFull) => Error::DiskFull { act: "opening the store" },
        // No room for the index of the WAL.
        Some(_) if extended_code(&error) == Some(rusqlite::ffi::SQLITE_IOERR_SHMSIZE) => {
            Error::DiskFull { act: "opening the store" }
        }
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            Error::Busy { act: "opening the store", waited_ms: waited_ms() }
        }
        _ => Error::Storage { act: "opening the store", source: error },
    }
}

fn extended_code(error: &rusqlite::Error) -> Option<i32> {
    error.sqlite_error().map(|error| error.extended_code)
}

#[cfg(test)]
mod tests {
    use super::is_sound;

    #[test]
    fn only_engines_with_the_wal_reset_fix_are_sound() {
        for good in [3_044_006, 3_050_007, 3_051_003, 3_053_002, 4_000_000] {
            assert!(is_sound(good), "{good}");
        }
        for bad in [3_007_000, 3_040_001, 3_044_005, 3_045_000, 3_050_006, 3_051_002] {
            assert!(!is_sound(bad), "{bad}");
        }
    }
}
