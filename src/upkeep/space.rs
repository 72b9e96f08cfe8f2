//! The file and its log: what a log may grow to, and how freed pages go back to the system.

use std::path::PathBuf;
use std::time::Duration;

use rusqlite::Connection;
use serde::Serialize;

use super::work::Work;
use super::{UPKEEP, WalState, ask};
use crate::clock::Stopwatch;
use crate::connect::within;
use crate::error::{Error, Result};
use crate::fault::StorageFault;
use crate::pen::{Act, Mode};
use crate::sql;
use crate::store::Store;

const COMPACT: Act = Act { name: "compact", instead: "compact after the transaction" };
/// A log above this is cut, in bytes. SQLite cuts it to 4 MiB by itself when it begins anew at its front.
const LOG: u64 = 8 << 20;
/// How long a cut may wait for readers: it holds the writer lock meanwhile.
const CUT: Duration = Duration::from_millis(10);
/// Whoever reads for longer than this pins the log.
const PINS: Duration = Duration::from_millis(300);
/// So many freed pages stay for what comes, and so large a part of the file.
const RESERVE: i64 = 256;
const RESERVED_PART: i64 = 10;
/// Pages that are given back in one transaction.
const PAGES: i64 = 64;
const BRIEF: Duration = Duration::from_millis(3);

/// What [`Store::compact`] has done.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Compacted {
    /// Size of the file before, in bytes.
    pub before: u64,
    /// And after.
    pub after: u64,
    /// How long it took, in milliseconds.
    pub took_ms: u64,
}

/// What a file consists of.
#[derive(Clone, Copy, Debug)]
struct Pages {
    size: i64,
    all: i64,
    free: i64,
    /// Freed pages can be given back in steps.
    in_steps: bool,
}

impl Pages {
    fn of(connection: &Connection) -> rusqlite::Result<Pages> {
        Ok(Pages {
            size: ask(connection, "PRAGMA main.page_size")?,
            all: ask(connection, "PRAGMA main.page_count")?,
            free: ask(connection, "PRAGMA main.freelist_count")?,
            in_steps: ask(connection, "PRAGMA main.auto_vacuum")? == 2,
        })
    }

    fn bytes(self) -> u64 {
        u64::try_from(self.all * self.size).unwrap_or(0)
    }
}

/// A new file gives freed pages back in steps. To be said before anything is in it.
pub(crate) fn give_back_in_steps(connection: &Connection) -> rusqlite::Result<()> {
    connection.execute_batch("PRAGMA main.auto_vacuum = INCREMENTAL")
}

/// Where nobody but birkez has tables, what is removed is overwritten too. The app's own tables are its own matter.
///
/// Here as far as it costs no writing more: otherwise each settling of a large payload would write it twice.
pub(crate) fn settle_ownership(connection: &Connection) -> rusqlite::Result<()> {
    if is_own(connection)? {
        set(connection, "PRAGMA main.secure_delete = FAST")?;
    }
    Ok(())
}

/// Runs `f` with all that it removes overwritten, in a file that is birkez's own.
pub(super) fn overwriting<T>(connection: &Connection, f: impl FnOnce() -> T) -> rusqlite::Result<T> {
    const FAST: i64 = 2;
    let is_own = ask(connection, "PRAGMA main.secure_delete")? == FAST;
    if is_own {
        set(connection, "PRAGMA main.secure_delete = ON")?;
    }
    let result = f();
    if is_own {
        set(connection, "PRAGMA main.secure_delete = FAST")?;
    }
    Ok(result)
}

/// A pragma that answers with what it has set.
fn set(connection: &Connection, pragma: &str) -> rusqlite::Result<()> {
    connection.query_row(pragma, [], |_| Ok(()))
}

fn is_own(connection: &Connection) -> rusqlite::Result<bool> {
    connection.query_row(sql::IS_OWN_FILE, [], |row| row.get(0))
}

impl Store {
    /// How many bytes of the file are free: they are used again, and given back by upkeep or
    /// [`compact`](Store::compact).
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn free_bytes(&self) -> Result<u64> {
        let pages = self.read("reading the size of the file", |tx| Pages::of(tx))?;
        Ok(u64::try_from(pages.free * pages.size).unwrap_or(0))
    }

    /// How much room on its disk a call of [`compact`](Store::compact) needs at most, in bytes, beside what the file has.
    ///
    /// A file that birkez has made gives its freed pages back in small steps, which needs a few megabytes. Another one must
    /// be written anew, which needs its size without the free part twice: once in the system's folder for temporary files,
    /// and once in the log.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn compact_needs(&self) -> Result<u64> {
        let pages = self.read("reading the size of the file", |tx| Pages::of(tx))?;
        let live = u64::try_from((pages.all - pages.free) * pages.size).unwrap_or(0);
        Ok(if pages.in_steps { LOG } else { 2 * live + LOG })
    }

    /// Gives all freed pages of the file back to the system.
    ///
    /// In a file that birkez has made, this is done in short transactions, and others come in between. In another one the
    /// file is written anew (`VACUUM`), and nobody writes until that is over, so that a call beside it may answer
    /// [`Busy`](Error::Busy). If only birkez has tables in it, it can give back in steps from then on.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// println!("{} bytes free, needs {} bytes to compact", store.free_bytes()?, store.compact_needs()?);
    /// let done = store.compact()?;
    /// assert!(done.after <= done.before);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::DiskFull`] if there is not as much room as [`compact_needs`](Store::compact_needs) says: the file stays as
    /// it was, or as far as it came in steps. [`Error::InsideTransaction`]; those of writing the file.
    pub fn compact(&self) -> Result<Compacted> {
        self.inner.pen.refuse_inside(COMPACT)?;
        let mut work = Work::new(self, 1, &|| true);
        let pages = |work: &mut Work<'_>| {
            work.beside().and_then(|file| Pages::of(file).map_err(|e| self.failed(COMPACT.name, &e)))
        };
        let before = pages(&mut work)?;
        if before.in_steps {
            give_back(&mut work, 0)?;
        } else {
            self.write_anew()?;
        }
        take_over_log(&mut work)?;
        cut_log(&mut work)?;
        let after = pages(&mut work)?;
        Ok(Compacted { before: before.bytes(), after: after.bytes(), took_ms: work.end().took_ms })
    }

    fn write_anew(&self) -> Result<()> {
        let failed = |error: rusqlite::Error| self.failed(COMPACT.name, &error);
        let connection = self.inner.connector.open().map_err(failed)?;
        within(self.inner.busy, || {
            // Not in memory: it is as large as the file.
            connection.execute_batch("PRAGMA temp_store = FILE")?;
            if is_own(&connection)? {
                give_back_in_steps(&connection)?;
            }
            connection.execute_batch("VACUUM main")
        })
        .map_err(failed)
    }

    fn failed(&self, act: &'static str, error: &rusqlite::Error) -> Error {
        StorageFault::from_sqlite(error, self.path()).to_error(act)
    }

    fn log_size(&self) -> u64 {
        let mut log = self.path().as_os_str().to_owned();
        log.push("-wal");
        std::fs::metadata(PathBuf::from(log)).map_or(0, |log| log.len())
    }
}

/// Gives back what is more than a reserve, and cuts the log.
pub(super) fn tidy(work: &mut Work<'_>) -> Result<()> {
    let store = work.store;
    let pages = Pages::of(work.beside()?).map_err(|error| store.failed(UPKEEP.name, &error))?;
    let reserve = RESERVE.max(pages.all / RESERVED_PART);
    if pages.in_steps && pages.free > reserve {
        give_back(work, reserve)?;
    }
    cut_log(work)
}

/// Gives freed pages back until so many are left, fewer at a time on a disk that is nearly full.
fn give_back(work: &mut Work<'_>, leave: i64) -> Result<()> {
    const MODE: Mode = Mode { atomic: false, synced: false, follows: true };
    let mut pages = PAGES;
    while work.goes_on() {
        let given = work.store.inner.pen.write(UPKEEP, MODE, move |group| {
            let held = Stopwatch::start();
            let mut given = 0;
            loop {
                let some = give_back_some(group.tx(), pages, leave)?;
                given += some;
                if some == 0 || pages < PAGES || held.elapsed() > BRIEF {
                    return Ok((given, held));
                }
            }
        });
        match given {
            Ok((0, _)) => break,
            Ok((given, held)) => {
                work.report.pages_given_back += given;
                work.count(held.elapsed());
            }
            // The log has no room for as much.
            Err(Error::DiskFull { .. }) if pages > 1 => pages = (pages / 8).max(1),
            Err(error) => return Err(error),
        }
        take_over_log(work)?;
    }
    Ok(())
}

/// Gives back at most so many pages; answers how many it were.
fn give_back_some(tx: &Connection, pages: i64, leave: i64) -> rusqlite::Result<u64> {
    let free = || ask(tx, "PRAGMA main.freelist_count");
    let before = free()?;
    let most = (before - leave).min(pages);
    if most <= 0 {
        return Ok(0);
    }
    // Run to its end: each of its steps gives back one page.
    let mut steps = tx.prepare(&format!("PRAGMA main.incremental_vacuum({most})"))?;
    let mut rows = steps.raw_query();
    while rows.next()?.is_some() {}
    Ok(u64::try_from(before - free()?).unwrap_or(0))
}

/// How far a checkpoint came: pages in the log, and those of them that are in the file.
struct Taken {
    all: i64,
    done: i64,
}

/// Takes the log over into the file as far as readers allow. Nobody waits for it.
pub(super) fn take_over_log(work: &mut Work<'_>) -> Result<()> {
    checkpoint(work, "PRAGMA main.wal_checkpoint(PASSIVE)", Duration::ZERO).map(|_| ())
}

fn checkpoint(work: &mut Work<'_>, sql: &str, patience: Duration) -> Result<Taken> {
    let store = work.store;
    let row = |row: &rusqlite::Row<'_>| Ok(Taken { all: row.get(1)?, done: row.get(2)? });
    let file = work.beside()?;
    within(patience, || file.query_row(sql, [], row)).map_err(|error| store.failed(UPKEEP.name, &error))
}

/// Cuts a log that has become large, and says if a reader keeps it from being cut.
pub(super) fn cut_log(work: &mut Work<'_>) -> Result<()> {
    let bytes = work.store.log_size();
    work.note_wal(WalState { bytes, pinned_pages: 0 });
    if bytes <= LOG {
        return Ok(());
    }
    let first = checkpoint(work, "PRAGMA main.wal_checkpoint(PASSIVE)", Duration::ZERO)?;
    let mut last = Taken { ..first };
    let waited = Stopwatch::start();
    // A reader that is about to end is not worth a word.
    while last.done < first.all && waited.left(PINS).is_some() && work.goes_on() {
        std::thread::sleep(Duration::from_millis(20));
        last = checkpoint(work, "PRAGMA main.wal_checkpoint(PASSIVE)", Duration::ZERO)?;
        if last.all < first.all {
            // It has begun anew at its front.
            break;
        }
    }
    if last.all >= first.all && last.done < first.all {
        let pinned = u64::try_from(first.all - last.done).unwrap_or(0);
        tracing::warn!(bytes, pinned, "a reader of an older state keeps the write-ahead log from being cut");
        work.note_wal(WalState { bytes, pinned_pages: pinned });
        return Ok(());
    }
    // Only what came in since the last look is left to take over while the writer lock is held.
    checkpoint(work, "PRAGMA main.wal_checkpoint(TRUNCATE)", CUT)?;
    work.note_wal(WalState { bytes: work.store.log_size(), pinned_pages: 0 });
    Ok(())
}
