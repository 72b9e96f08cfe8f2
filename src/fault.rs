//! The failure of a whole transaction, which is told to everybody who had something in it.

use std::path::{Path, PathBuf};

use crate::error::Error;

/// What a failed group tells each of its members: an [`Error`] that can be given to many.
#[derive(Clone, Debug)]
pub(crate) enum StorageFault {
    Busy {
        waited_ms: u64,
    },
    DiskFull,
    Unknown {
        cause: String,
    },
    Interrupted {
        held_ms: u64,
    },
    /// A closure of the user's ended the transaction.
    Ended,
    Newer {
        path: PathBuf,
        found: i64,
        oldest_writer: i64,
        known: i64,
    },
    Damaged {
        path: PathBuf,
        cause: String,
    },
    Other {
        code: rusqlite::ffi::Error,
        text: Option<String>,
    },
}

impl StorageFault {
    pub(crate) fn from_sqlite(error: &rusqlite::Error, path: &Path) -> StorageFault {
        use rusqlite::ErrorCode::{DatabaseBusy, DatabaseCorrupt, DatabaseLocked, DiskFull, NotADatabase};
        match error {
            rusqlite::Error::SqliteFailure(code, text) => match code.code {
                DiskFull => StorageFault::DiskFull,
                DatabaseBusy | DatabaseLocked => StorageFault::Busy { waited_ms: 0 },
                DatabaseCorrupt | NotADatabase => {
                    StorageFault::Damaged { path: path.to_owned(), cause: error.to_string() }
                }
                _ => StorageFault::Other { code: *code, text: text.clone() },
            },
            other => StorageFault::Other { code: rusqlite::ffi::Error::new(1), text: Some(other.to_string()) },
        }
    }

    pub(crate) fn to_error(&self, act: &'static str) -> Error {
        match self.clone() {
            StorageFault::Busy { waited_ms } => Error::Busy { act, waited_ms },
            StorageFault::DiskFull => Error::DiskFull { act },
            StorageFault::Unknown { cause } => Error::OutcomeUnknown { act, cause },
            StorageFault::Interrupted { held_ms } => Error::Interrupted { act, held_ms },
            StorageFault::Ended => Error::TransactionEnded { act },
            StorageFault::Newer { path, found, oldest_writer, known } => {
                Error::NewerSchema { path, found, oldest_writer, known }
            }
            StorageFault::Damaged { path, cause } => Error::Damaged { path, cause },
            StorageFault::Other { code, text } => {
                Error::Storage { act, source: rusqlite::Error::SqliteFailure(code, text) }
            }
        }
    }
}
