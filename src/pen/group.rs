//! One transaction of the pen, with everything that is written in it.

use std::path::Path;
use std::sync::{Mutex, PoisonError};

use rusqlite::{CachedStatement, Transaction};

use super::sums::{Sums, SumsMark};
use super::{Refusal, with_wait};
use crate::clock::Stopwatch;
use crate::error::Error;
use crate::fault::StorageFault;
use crate::job::instant;
use crate::numbers::Tallied;
use crate::schema::Found;
use crate::sql;
use crate::telling::{Event, EventJob, Happened, Listening, is_news};

/// Result of an operation inside a transaction.
pub(crate) type OpResult<T> = Result<T, OpError>;

/// Why an operation was not written.
#[derive(Debug)]
pub(crate) enum OpError {
    /// It was refused for what it is; the rest of the transaction goes on.
    Refused(Error),
    /// SQLite refused.
    Sql(rusqlite::Error),
    /// The transaction as a whole is lost.
    Fault(StorageFault),
    /// A closure of the user's ended the transaction.
    Ended,
}

impl OpError {
    /// For an operation outside the pen, in a transaction of the host's.
    pub(crate) fn into_error(self, act: &'static str, path: &Path, waited: Stopwatch) -> Error {
        match self {
            OpError::Refused(error) => error,
            OpError::Sql(error) => with_wait(StorageFault::from_sqlite(&error, path), waited).to_error(act),
            OpError::Fault(fault) => with_wait(fault, waited).to_error(act),
            OpError::Ended => Error::TransactionEnded { act },
        }
    }
}

impl From<rusqlite::Error> for OpError {
    fn from(error: rusqlite::Error) -> Self {
        OpError::Sql(error)
    }
}

impl From<Error> for OpError {
    fn from(error: Error) -> Self {
        OpError::Refused(error)
    }
}

pub(crate) struct Group<'a> {
    tx: &'a Transaction<'a>,
    path: &'a Path,
    /// The time, read after the writer lock was held.
    pub now: i64,
    /// Whether something in it made a job claimable.
    pub claimable: bool,
    /// The earliest time at which something in it becomes due later.
    pub due_later: Option<i64>,
    /// Jobs that run and are asked to stop in it.
    pub stopping: Vec<i64>,
    /// Whether something in it has changed a schedule, or what is asked of one.
    pub calendar: bool,
    /// How often pauses and limits had changed in the file when it began.
    holds: Option<i64>,
    /// Whether something in it has changed them.
    pub holds_moved: bool,
    /// Whether a lease has ended in it.
    pub settled: bool,
    /// Rows that it has changed and nobody waits for: whose turn the upkeep is.
    pub quiet: u64,
    /// Whether it is to take little along, so that it is over soon.
    pub brief: bool,
    /// Whether its COMMIT is synced.
    pub synced: bool,
    /// Workers that will be free once it is committed.
    pub freed: usize,
    /// Set by an atomic operation whose answer is kept and whose writes are not.
    pub undo: bool,
    sums: Sums,
    /// What there is an ear for.
    pub listening: Listening,
    /// What happened in it, to be told once it is committed.
    pub news: Vec<Event>,
}

/// What was counted and happened up to a moment, so that what comes after it can be undone.
struct Before {
    sums: SumsMark,
    news: usize,
}

impl<'a> Group<'a> {
    /// A transaction of the host's, which birkez does not commit.
    pub(crate) fn of_host(tx: &'a Transaction<'a>, path: &'a Path, now: i64) -> Self {
        Group::new(tx, path, now)
    }

    pub(super) fn new(tx: &'a Transaction<'a>, path: &'a Path, now: i64) -> Self {
        Group {
            tx,
            path,
            now,
            claimable: false,
            due_later: None,
            stopping: Vec::new(),
            calendar: false,
            holds: None,
            holds_moved: false,
            settled: false,
            quiet: 0,
            brief: false,
            synced: false,
            freed: 0,
            undo: false,
            sums: Sums::default(),
            listening: Listening::NO,
            news: Vec::new(),
        }
    }

    pub(crate) fn tx(&self) -> &'a Transaction<'a> {
        self.tx
    }

    pub(crate) fn statement(&self, sql: &str) -> rusqlite::Result<CachedStatement<'a>> {
        self.tx.prepare_cached(sql)
    }

    /// A job in it can run at `run_at`.
    pub(crate) fn note_due(&mut self, run_at: i64) {
        if run_at <= self.now {
            self.claimable = true;
        } else {
            self.due_later = Some(self.due_later.map_or(run_at, |known| known.min(run_at)));
        }
    }

    /// A job of `kind` came to (or left) a finished state.
    pub(crate) fn count(&mut self, kind: &str, state: i64, n: i64) {
        self.sums.count(kind, state, n);
    }

    /// What is counted for a kind and state and not written yet.
    pub(crate) fn pending(&self, kind: &str, state: i64) -> i64 {
        self.sums.pending(kind, state)
    }

    /// Something that numbers are made of.
    pub(crate) fn tally(&mut self, kind: &str, what: Tallied) {
        self.sums.tally(kind, what);
    }

    /// Whether what happens is told to anybody.
    pub(crate) fn is_listened_to(&self) -> bool {
        self.listening.is_any()
    }

    /// Something happened, if this is committed.
    pub(crate) fn tell(&mut self, what: impl FnOnce() -> Happened) {
        if self.is_listened_to() {
            self.news.push(Event { at: instant(self.now), what: what() });
        }
    }

    /// Something happened to a job.
    pub(crate) fn tell_job(&mut self, id: i64, kind: &str, key: &str, what: impl FnOnce(EventJob) -> Happened) {
        self.tell(|| what(EventJob::new(id, kind, key)));
    }

    fn before(&self) -> Before {
        Before { sums: self.sums.mark(), news: self.news.len() }
    }

    fn back_to(&mut self, before: &Before) {
        self.sums.undo(before.sums);
        self.news.truncate(before.news);
    }

    pub(super) fn write_counts(&mut self) -> rusqlite::Result<()> {
        if self.calendar {
            self.tx.prepare_cached(sql::SCHEDULES_CHANGED)?.execute([])?;
        }
        self.sums.write(self.tx, self.now)
    }

    /// How often pauses and limits have changed in the file.
    pub(crate) fn holds(&self) -> rusqlite::Result<i64> {
        match self.holds {
            Some(holds) if !self.holds_moved => Ok(holds),
            _ => self.statement(sql::HOLDS_STATE)?.query_row([], |row| row.get(0)),
        }
    }

    pub(crate) fn check_version(&mut self) -> Result<(), StorageFault> {
        let row = |row: &rusqlite::Row<'_>| {
            Ok((Found { version: row.get(0)?, oldest_writer: row.get(1)? }, row.get::<_, Option<i64>>(2)?))
        };
        let found = self.statement(sql::VERSION_AND_HOLDS).and_then(|mut ask| ask.query_row([], row));
        let (found, holds) = found.map_err(|error| StorageFault::from_sqlite(&error, self.path))?;
        self.holds = holds;
        match found.may_write() {
            true => Ok(()),
            false => Err(StorageFault::Newer {
                path: self.path.to_owned(),
                found: found.version,
                oldest_writer: found.oldest_writer,
                known: crate::schema::VERSION,
            }),
        }
    }

    /// Runs one operation and keeps its answer. An error means that the whole transaction is lost.
    pub(super) fn run<T>(
        &mut self,
        atomic: bool,
        op: impl FnOnce(&mut Group<'_>) -> OpResult<T>,
        answer: &Mutex<Option<Result<T, Refusal>>>,
    ) -> Result<(), StorageFault> {
        let fault = |error: rusqlite::Error, path: &Path| StorageFault::from_sqlite(&error, path);
        let path = self.path;
        if atomic {
            self.savepoint("SAVEPOINT birkez_op").map_err(|error| fault(error, path))?;
        }
        let (before, freed, stopping) = (self.before(), self.freed, self.stopping.len());
        let result = op(self);
        // A full disk has rolled the whole transaction back: what would follow must not run in autocommit.
        if self.tx.is_autocommit() {
            return Err(match result {
                Err(OpError::Sql(error)) => fault(error, path),
                Err(OpError::Fault(fault)) => fault,
                Err(OpError::Ended) => StorageFault::Ended,
                _ => StorageFault::Unknown { cause: "SQLite rolled the transaction back".to_owned() },
            });
        }
        let undo = std::mem::take(&mut self.undo) || result.is_err();
        if undo {
            self.back_to(&before);
            self.freed = freed;
            self.stopping.truncate(stopping);
        }
        if atomic {
            let ending = if undo { "ROLLBACK TO birkez_op" } else { "RELEASE birkez_op" };
            match self.savepoint(ending) {
                Ok(()) if undo => self.savepoint("RELEASE birkez_op").map_err(|error| fault(error, path))?,
                Ok(()) => {}
                // The savepoint is gone: a closure ended this transaction and began one of its own.
                Err(error) if is_unknown_savepoint(&error) => return Err(StorageFault::Ended),
                Err(error) => return Err(fault(error, path)),
            }
        }
        keep(
            answer,
            result.map_err(|error| match error {
                OpError::Refused(error) => Refusal::Refused(error),
                OpError::Sql(error) => Refusal::Fault(fault(error, path)),
                OpError::Fault(fault) => Refusal::Fault(fault),
                OpError::Ended => Refusal::Fault(StorageFault::Ended),
            }),
        );
        Ok(())
    }

    /// Runs `f` so that a row which SQLite or birkez cannot digest costs only what `f` would have done, not the whole
    /// transaction of everybody in it. `None` if it was such a row.
    pub(crate) fn isolated<T>(
        &mut self,
        f: impl FnOnce(&mut Self) -> rusqlite::Result<T>,
    ) -> rusqlite::Result<Option<T>> {
        self.savepoint("SAVEPOINT birkez_part")?;
        let before = self.before();
        match f(self) {
            Ok(value) => {
                self.savepoint("RELEASE birkez_part")?;
                Ok(Some(value))
            }
            Err(error) if is_about_a_row(&error) && !self.tx.is_autocommit() => {
                self.savepoint("ROLLBACK TO birkez_part")?;
                self.savepoint("RELEASE birkez_part")?;
                self.back_to(&before);
                if is_news("a row", &error.to_string()) {
                    tracing::error!(%error, "a row of the file cannot be dealt with and is passed over");
                }
                Ok(None)
            }
            Err(error) => Err(error),
        }
    }

    fn savepoint(&self, sql: &str) -> rusqlite::Result<()> {
        self.tx.prepare_cached(sql)?.execute([]).map(|_| ())
    }
}

fn keep<T>(answer: &Mutex<Option<Result<T, Refusal>>>, value: Result<T, Refusal>) {
    *answer.lock().unwrap_or_else(PoisonError::into_inner) = Some(value);
}

/// Whether an error is about the content of a row, such as an app's trigger that refuses it, and not about the file.
fn is_about_a_row(error: &rusqlite::Error) -> bool {
    use rusqlite::ErrorCode::{ConstraintViolation, TooBig, TypeMismatch, Unknown};
    match error.sqlite_error_code() {
        Some(code) => matches!(code, ConstraintViolation | TypeMismatch | TooBig | Unknown),
        None => true,
    }
}

fn is_unknown_savepoint(error: &rusqlite::Error) -> bool {
    error.to_string().contains("no such savepoint")
}
