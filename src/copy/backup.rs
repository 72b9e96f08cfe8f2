//! Making a copy of a file that is in use.

use std::path::{Path, PathBuf};
use std::time::Duration;

use chrono::{DateTime, Utc};
use rusqlite::backup::{Backup, StepResult};
use rusqlite::{Connection, params};
use serde::Serialize;

use super::part::Part;
use crate::clock::Stopwatch;
use crate::connect::{Connector, Durability, within};
use crate::error::{Error, Result};
use crate::fault::StorageFault;
use crate::job::instant;
use crate::sql;
use crate::store::Store;

const BACKUP: &str = "making the backup";
/// Pages between two reports of how far it is.
const STEP: i32 = 256;

/// A copy that was made.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct BackupInfo {
    /// The absolute path of the copy.
    pub path: PathBuf,
    /// Everything that was committed before this moment is in it.
    pub copied_at: DateTime<Utc>,
    /// Its size.
    pub bytes: u64,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
    /// The generation of the file that it is a copy of ([`Store::generation`]).
    pub generation: i64,
}

impl Store {
    /// Makes a copy of the whole file, the app's tables included, as it stands at one moment. Jobs and writers go on
    /// meanwhile.
    ///
    /// The copy is one complete SQLite file without files beside it (in the journal mode `delete`), readable by its owner
    /// alone (mode 0600), synced. It appears under `path` only when it is whole; until then it lies in the folder
    /// `<path>.part`, which a process that dies leaves behind and the next backup to the same path clears away. The write-ahead
    /// log grows while it is made, by what is written meanwhile.
    ///
    /// The copy carries a mark. To put it in place again, use [`restore`](Store::restore), or put it there by hand: the
    /// first store that opens it does the same. To look into a copy without that, open it with any SQLite.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// # let target = folder.path().with_file_name("copy.db");
    /// let made = store.backup(&target)?;
    /// println!("{} holds {} bytes", made.path.display(), made.bytes);
    /// # assert!(made.path.exists());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Io`] with `AlreadyExists` if something is at `path`, which stays as it is; [`Error::Busy`] while another
    /// backup to the same path is made, or if the file could not be read in time; [`Error::DiskFull`]; those of reading the
    /// file. Nothing is left under `path` then.
    pub fn backup(&self, path: impl AsRef<Path>) -> Result<BackupInfo> {
        self.backup_with(path, |_, _| {})
    }

    /// As [`backup`](Store::backup), and says how far it is: bytes copied, of how many. Called about once a megabyte, in
    /// this thread.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// # let target = folder.path().with_file_name("copy.db");
    /// store.backup_with(&target, |done, total| println!("{} %", done * 100 / total.max(1)))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`backup`](Store::backup).
    pub fn backup_with(&self, path: impl AsRef<Path>, mut progress: impl FnMut(u64, u64)) -> Result<BackupInfo> {
        let began = Stopwatch::start();
        let inner = &*self.inner;
        let part = Part::begin(BACKUP, path.as_ref())?;
        let fault = |error: rusqlite::Error| StorageFault::from_sqlite(&error, self.path()).to_error(BACKUP);
        let source = inner.connector.open().map_err(fault)?;
        let copied_at = inner.clock.wall();
        copy_pages(&source, &inner.connector, &part, inner.busy, &mut progress).map_err(fault)?;
        drop(source);
        let at = part.file().to_owned();
        let generation = seal(BACKUP, &inner.connector, &at, |copy| {
            copy.execute(sql::MARK_AS_COPY, params![copied_at]).map_err(fault)?;
            copy.query_row(sql::GENERATION, [], |row| row.get(0)).map_err(fault)
        })?;
        let bytes = size(&at)?;
        let path = part.finish(BACKUP)?;
        let took_ms = u64::try_from(began.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(BackupInfo { path, copied_at: instant(copied_at), bytes, took_ms, generation })
    }
}

/// Copies all pages of one view, so that no commit meanwhile makes it begin anew.
pub(super) fn copy_pages(
    source: &Connection,
    connector: &Connector,
    part: &Part,
    busy: Duration,
    progress: &mut dyn FnMut(u64, u64),
) -> rusqlite::Result<()> {
    let mut copy = open(connector, part.file())?;
    let view = source.unchecked_transaction()?;
    let page: i64 = within(busy, || view.query_row("PRAGMA main.page_size", [], |row| row.get(0)))?;
    // A transaction has its view from its first read of a table.
    within(busy, || view.query_row("SELECT count(*) FROM main.sqlite_schema", [], |_| Ok(())))?;
    let backup = Backup::new(&view, &mut copy)?;
    let waited = Stopwatch::start();
    loop {
        let step = backup.step(STEP)?;
        let at = backup.progress();
        let bytes = |pages: i32| u64::try_from(i64::from(pages) * page).unwrap_or(0);
        progress(bytes(at.pagecount - at.remaining), bytes(at.pagecount));
        match step {
            StepResult::Done => break,
            StepResult::Busy | StepResult::Locked if waited.left(busy).is_none() => {
                let code = rusqlite::ffi::Error::new(rusqlite::ffi::SQLITE_BUSY);
                return Err(rusqlite::Error::SqliteFailure(code, None));
            }
            StepResult::Busy | StepResult::Locked => std::thread::sleep(Duration::from_millis(1)),
            _ => part.sync(),
        }
    }
    drop(backup);
    view.rollback()
}

/// Writes into a copy what is to stand in it, and closes it as one file that needs no other.
pub(super) fn seal<T>(
    act: &'static str,
    connector: &Connector,
    file: &Path,
    write: impl FnOnce(&Connection) -> Result<T>,
) -> Result<T> {
    let fault = |error: rusqlite::Error| StorageFault::from_sqlite(&error, file).to_error(act);
    let copy = open(connector, file).map_err(fault)?;
    let written = write(&copy)?;
    let mode = copy.query_row("PRAGMA main.journal_mode = DELETE", [], |row| row.get::<_, String>(0)).map_err(fault)?;
    if mode != "delete" {
        let cause = format!("its journal mode stays {mode}");
        return Err(Error::OutcomeUnknown { act, cause });
    }
    copy.close().map_err(|(_, error)| fault(error))?;
    Ok(written)
}

/// Synced whatever the store's durability: a copy is made for bad days.
fn open(connector: &Connector, file: &Path) -> rusqlite::Result<Connection> {
    Connector { path: file.to_owned(), durability: Durability::Full, ..connector.clone() }.open()
}

fn size(file: &Path) -> Result<u64> {
    let found = std::fs::metadata(file);
    found.map(|found| found.len()).map_err(|source| Error::Io { act: BACKUP, path: file.to_owned(), source })
}
