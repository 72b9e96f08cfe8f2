//! The tables in the file: made, checked, and brought up to date.

use std::path::Path;

use rusqlite::{Connection, ErrorCode, OptionalExtension, Transaction, TransactionBehavior};

use crate::connect::explain_open;
use crate::error::{Error, Result};
use crate::sql;

/// The version this program writes, described by `schema.sql`.
pub(crate) const VERSION: i64 = STEPS.len() as i64 + 1;

/// How a file of version *n* becomes one of version *n + 1*: step *n - 1*, in one transaction with all later ones and the
/// version row. A step that keeps programs of the version before it right leaves `OLDEST_WRITER` alone.
const STEPS: [Step; 4] = [
    |tx| tx.execute_batch(include_str!("schema/2.sql")),
    |tx| tx.execute_batch(include_str!("schema/3.sql")),
    |tx| tx.execute_batch(include_str!("schema/4.sql")),
    |tx| tx.execute_batch(include_str!("schema/5.sql")),
];

type Step = fn(&Transaction<'_>) -> rusqlite::Result<()>;

const SCHEMA: &str = include_str!("../schema.sql");
const FIRST_ROW: &str = "INSERT INTO birkez_version (one, version, oldest_writer) VALUES (1, ?1, ?2)";
/// The oldest version whose programs may write beside this one's: older ones know no pauses.
const OLDEST_WRITER: i64 = 5;

/// What the version row says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Found {
    pub version: i64,
    pub oldest_writer: i64,
}

impl Found {
    pub(crate) fn may_write(self) -> bool {
        self.oldest_writer <= VERSION
    }

    pub(crate) fn refuse(self, path: &Path) -> Error {
        Error::NewerSchema {
            path: path.to_owned(),
            found: self.version,
            oldest_writer: self.oldest_writer,
            known: VERSION,
        }
    }
}

/// Makes the tables or brings them up to date. Losing a race for it is no error: the check is made again under the
/// writer lock.
pub(crate) fn prepare(connection: &Connection, path: &Path) -> Result<()> {
    let explain = |error| explain_open(error, path);
    match read(connection).map_err(|error| explain_read(error, path))? {
        Some(found) if !found.may_write() => return Err(found.refuse(path)),
        Some(found) if found.version >= VERSION => return Ok(()),
        _ => {}
    }
    let tx = Transaction::new_unchecked(connection, TransactionBehavior::Immediate).map_err(explain)?;
    match read(&tx).map_err(|error| explain_read(error, path))? {
        Some(found) if !found.may_write() => return Err(found.refuse(path)),
        Some(found) => upgrade(&tx, found.version, &STEPS).map_err(explain)?,
        None => create(&tx, path)?,
    }
    tx.commit().map_err(explain)
}

fn read(connection: &Connection) -> rusqlite::Result<Option<Found>> {
    let known = "SELECT 1 FROM main.sqlite_schema WHERE type = 'table' AND name = 'birkez_version'";
    if connection.query_row(known, [], |_| Ok(())).optional()?.is_none() {
        return Ok(None);
    }
    let row = |row: &rusqlite::Row<'_>| Ok(Found { version: row.get(0)?, oldest_writer: row.get(1)? });
    connection.query_row(sql::VERSION, [], row).optional()
}

/// A version table that does not answer the question is somebody else's.
fn explain_read(error: rusqlite::Error, path: &Path) -> Error {
    match error.sqlite_error_code() {
        None | Some(ErrorCode::Unknown) => {
            Error::ForeignSchema { path: path.to_owned(), table: "birkez_version".to_owned() }
        }
        _ => explain_open(error, path),
    }
}

fn create(tx: &Transaction<'_>, path: &Path) -> Result<()> {
    let taken = "SELECT name FROM main.sqlite_schema WHERE name LIKE 'birkez\\_%' ESCAPE '\\' ORDER BY name LIMIT 1";
    let explain = |error| explain_open(error, path);
    if let Some(table) = tx.query_row(taken, [], |row| row.get(0)).optional().map_err(explain)? {
        return Err(Error::ForeignSchema { path: path.to_owned(), table });
    }
    tx.execute_batch(SCHEMA).map_err(explain)?;
    tx.execute(FIRST_ROW, [VERSION, OLDEST_WRITER]).map_err(explain)?;
    Ok(())
}

fn upgrade(tx: &Transaction<'_>, from: i64, steps: &[Step]) -> rusqlite::Result<()> {
    let done = usize::try_from(from - 1).unwrap_or(0);
    for (step, to) in steps.iter().zip(2..).skip(done) {
        step(tx)?;
        let note = "UPDATE main.birkez_version SET version = ?1, oldest_writer = max(oldest_writer, min(?1, ?2))";
        tx.execute(note, [to, OLDEST_WRITER])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    const ADD_COLUMN: Step = |tx| tx.execute_batch("ALTER TABLE birkez_job ADD COLUMN colour TEXT");
    const FAIL: Step = |tx| tx.execute_batch("ALTER TABLE birkez_nowhere ADD COLUMN colour TEXT");

    fn version_one() -> Connection {
        let connection = Connection::open_in_memory().unwrap();
        connection.execute_batch(SCHEMA).unwrap();
        connection.execute(FIRST_ROW, [1, 1]).unwrap();
        connection
    }

    fn try_upgrade(connection: &Connection, steps: &[Step]) -> rusqlite::Result<()> {
        let tx = connection.unchecked_transaction()?;
        let from = read(&tx)?.map_or(0, |found| found.version);
        upgrade(&tx, from, steps)?;
        tx.commit()
    }

    #[test]
    fn an_upgrade_runs_each_missing_step_once_and_in_order() {
        let file = version_one();
        try_upgrade(&file, &[ADD_COLUMN]).unwrap();
        // Once more would fail: the column is there.
        try_upgrade(&file, &[ADD_COLUMN]).unwrap();
        assert_eq!(read(&file).unwrap(), Some(Found { version: 2, oldest_writer: 2 }));
        file.execute("UPDATE birkez_job SET colour = 'x'", []).unwrap();
    }

    #[test]
    fn an_upgrade_that_fails_leaves_the_file_as_it_was() {
        let file = version_one();
        assert!(try_upgrade(&file, &[ADD_COLUMN, FAIL]).is_err());
        assert_eq!(read(&file).unwrap(), Some(Found { version: 1, oldest_writer: 1 }));
        assert!(file.execute("UPDATE birkez_job SET colour = 'x'", []).is_err());
    }
}
