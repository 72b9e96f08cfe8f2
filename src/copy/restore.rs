//! A copy comes to the place of the file: what it held is held back, since what came after it may have happened already.

use std::path::Path;

use chrono::{DateTime, Utc};
use rusqlite::{Connection, ErrorCode, OpenFlags, OptionalExtension, params};
use serde::{Deserialize, Serialize};

use super::RESTORED;
use super::backup::{copy_pages, seal};
use super::part::Part;
use crate::act::{Deed, record};
use crate::connect::{check_engine, explain_open};
use crate::enqueue::text;
use crate::error::{Error, Result};
use crate::failure::Class;
use crate::fault::StorageFault;
use crate::job::instant;
use crate::pen::{Group, OpResult};
use crate::state::State;
use crate::store::{Store, StoreBuilder};
use crate::{platform, schema, sql};

const RESTORE: &str = "restoring the copy to";
const MAY_HAVE_HAPPENED: &str = "it ran when the copy was made from which this file was restored";

/// What is held back in a file that was restored.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct RestoreInfo {
    /// The file's generation since then.
    pub generation: i64,
    /// When the copy was made: what happened later is not in it.
    pub copied_at: DateTime<Utc>,
    /// When it came to its place.
    pub restored_at: DateTime<Utc>,
    /// Jobs that were waiting or running in the copy, and are parked as `restored` now.
    pub parked: u64,
    /// Jobs that may run once only and were running in the copy: parked as `unknown_outcome`.
    pub unknown_outcome: u64,
    /// Schedules that are paused now, by `restored`.
    pub schedules: u64,
    /// What was asked of schedules and not carried out in the copy; it is closed, and can be asked for again.
    pub requests: u64,
}

impl Store {
    /// Puts a copy in place as a new file at `path`, with the settings of [`StoreBuilder`]'s defaults. Nothing of it runs
    /// by itself, since what came after the copy may have happened already:
    ///
    /// - every job that was waiting or running is parked as `restored` (one that may run once only and was running, as
    ///   `unknown_outcome`; one that was asked to stop, is cancelled); what was parked already keeps its reason;
    /// - every schedule is paused as of the copy's time, by `restored`; what was asked of one is closed;
    /// - the file's [generation](Store::generation) rises, and the record of deeds says so.
    ///
    /// What is enqueued from then on runs as usual, but behind what is held of its ordering key. [`release_restored`](Store::release_restored) lets the rest go on, under
    /// the same ids and keys.
    ///
    /// A backup that is put at its place by hand is treated so by the first store that opens it. One made by other means
    /// (such as `VACUUM INTO`) carries no mark: put in place by hand it goes on at once, while this call holds it back too,
    /// as of the last that stands in it.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let copy = folder.path().with_file_name("copy.db");
    /// # folder.open()?.backup(&copy)?;
    /// # let panel = folder.path().with_file_name("panel.db");
    /// let held = birkez::Store::restore(copy, &panel)?;
    /// let store = birkez::Store::open(&panel)?;
    /// println!("{} jobs of {} are held back", held.parked, held.copied_at);
    /// // After a look at what has really happened since:
    /// let released = store.release_restored("Ada")?;
    /// # assert_eq!((released.jobs, store.generation()?), (0, 1));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Io`] with `AlreadyExists` if something is at `path`, or a log (`-wal`, `-journal`) of a
    /// file that was there: it would be read as the new file's. Those of opening a store, for the copy. Nothing is at
    /// `path` then.
    pub fn restore(copy: impl AsRef<Path>, path: impl AsRef<Path>) -> Result<RestoreInfo> {
        Store::builder(path).restore(copy)
    }

    /// How often a copy has been put in the place of this file. A program that keeps something of its own beside the file
    /// (such as how far it has read) can tell by it that the file has gone back in time.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn generation(&self) -> Result<i64> {
        self.read("reading the generation", |tx| tx.query_row(sql::GENERATION, [], |row| row.get(0)))
    }

    /// What was held back when a copy last came to the place of this file; `None` if none ever did. What of it is still held
    /// is parked as `restored`.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn restored(&self) -> Result<Option<RestoreInfo>> {
        if self.generation()? == 0 {
            return Ok(None);
        }
        let detail = self.read("reading what was restored", |tx| {
            tx.query_row(sql::NEWEST_RESTORE, [], |row| text(row, 0)).optional()
        })?;
        Ok(detail.flatten().and_then(|json| serde_json::from_str(&json).ok()))
    }
}

impl StoreBuilder {
    /// As [`Store::restore`], with these settings: `copy` comes to the path that was given to the builder.
    ///
    /// # Errors
    ///
    /// As [`Store::restore`].
    pub fn restore(self, copy: impl AsRef<Path>) -> Result<RestoreInfo> {
        let copy = copy.as_ref();
        let (path, connector, busy) = self.parts();
        check_engine(self.accepts_engine())?;
        check_copy(copy)?;
        let source = Connection::open_with_flags(copy, OpenFlags::SQLITE_OPEN_READ_ONLY)
            .and_then(|source| connector.prepare(&source).map(|()| source))
            .map_err(|error| explain_open(error, copy))?;
        let part = Part::begin(RESTORE, path)?;
        copy_pages(&source, connector, &part, busy, &mut |_, _| {}).map_err(|error| explain_open(error, copy))?;
        seal(RESTORE, connector, part.file(), |file| {
            schema::prepare(file, copy)?;
            mark(file).map_err(|error| StorageFault::from_sqlite(&error, copy).to_error(RESTORE))
        })?;
        part.finish(RESTORE)?;
        let restored = self.open()?.restored()?;
        restored.ok_or_else(|| crate::Error::OutcomeUnknown { act: RESTORE, cause: "its record is gone".to_owned() })
    }
}

/// SQLite takes an empty file for an empty database: as a copy it is none.
fn check_copy(copy: &Path) -> Result<()> {
    let found = std::fs::metadata(copy);
    let found = found.map_err(|source| Error::Io { act: "reading the copy", path: copy.to_owned(), source })?;
    match found.len() {
        0 => Err(Error::Damaged { path: copy.to_owned(), cause: "it is empty".to_owned() }),
        _ => Ok(()),
    }
}

/// Marks as a copy what was not made as one, as of the last that it knows of.
fn mark(file: &Connection) -> rusqlite::Result<()> {
    if !is_copy(file)? {
        let last: i64 = file.query_row(sql::LAST_HEARD, [], |row| row.get(0))?;
        file.execute(sql::MARK_AS_COPY, [last])?;
    }
    Ok(())
}

/// Whether a file is a copy that has not been put in place yet. One without birkez's tables, or with older ones, is none.
pub(crate) fn is_copy(connection: &Connection) -> rusqlite::Result<bool> {
    match connection.query_row(sql::IS_COPY, [], |row| row.get(0)) {
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::Unknown) => Ok(false),
        other => other,
    }
}

/// In one transaction, before anything in the file can run: what a copy holds is held back.
pub(crate) fn arrive(group: &mut Group<'_>) -> OpResult<()> {
    let copied_at: Option<i64> = group.statement(sql::COPIED_AT)?.query_row([], |row| row.get(0))?;
    // Somebody else opened it first.
    let Some(copied_at) = copied_at else { return Ok(()) };
    let deed = Deed::by(platform::program_name()).because(format!("this file is a copy, made {}", instant(copied_at)));
    let event = record(group, "restore", "all that was unfinished", &deed, None)?;
    let (parked, unknown_outcome) = park(group, event, copied_at)?;
    let change = |sql, params: &[&dyn rusqlite::ToSql]| group.statement(sql)?.execute(params);
    change(sql::END_ALL_RUNNERS, &[&copied_at])?;
    let schedules = change(sql::PAUSE_ALL_SCHEDULES, &[&copied_at, &RESTORED])?;
    let answer = "the file was restored from a copy before it was carried out: ask again if it is still wanted";
    let requests = change(sql::CLOSE_REQUESTS, &[&group.now, &answer])?;
    change(sql::NEXT_GENERATION, &[])?;
    let info = RestoreInfo {
        generation: group.statement(sql::GENERATION)?.query_row([], |row| row.get(0))?,
        copied_at: instant(copied_at),
        restored_at: instant(group.now),
        parked,
        unknown_outcome,
        schedules: schedules as u64,
        requests: requests as u64,
    };
    let detail = serde_json::to_string(&info).unwrap_or_default();
    group.statement(sql::SET_DETAIL)?.execute(params![event, detail])?;
    tracing::warn!(
        generation = info.generation,
        parked,
        unknown_outcome,
        "the file is a copy; what it holds is held back"
    );
    Ok(())
}

/// Parks what is unfinished; answers how many jobs wait for a release, and how many for a decision.
fn park(group: &mut Group<'_>, event: i64, copied_at: i64) -> rusqlite::Result<(u64, u64)> {
    let unknown = Class::UnknownOutcome.as_str();
    group.statement(sql::RECORD_ALL_LEASED)?.execute([event])?;
    let undecided: i64 = group.statement(sql::COUNT_UNKNOWN)?.query_row([], |row| row.get(0))?;
    let mut ask = group.statement(sql::STOPPING_KINDS)?;
    let stopped: Vec<String> = ask.query_map([], |row| row.get(0))?.collect::<rusqlite::Result<_>>()?;
    group.statement(sql::NOTE_UNKNOWN_ATTEMPTS)?.execute(params![unknown, MAY_HAVE_HAPPENED, group.now])?;
    let taken = params![unknown, RESTORED, MAY_HAVE_HAPPENED, group.now];
    let leased = group.statement(sql::TAKE_BACK_ALL)?.execute(taken)?;
    group.statement(sql::DROP_ALL_LEASES)?.execute([])?;
    stopped.iter().for_each(|kind| group.count(kind, State::Cancelled.number(), 1));
    let undecided = u64::try_from(undecided).unwrap_or(0);
    let mut parked = (leased as u64).saturating_sub(undecided + stopped.len() as u64);
    for gate in sql::GATES {
        group.tx().execute(&sql::record_waiting(gate), [event])?;
        parked += group.tx().execute(&sql::park_waiting(gate), params![RESTORED, copied_at])? as u64;
    }
    Ok((parked, undecided))
}
