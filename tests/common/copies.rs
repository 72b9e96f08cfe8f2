//! What the tests of copies share.

use std::path::{Path, PathBuf};

use birkez::rusqlite::types::FromSql;
use birkez::rusqlite::{Connection, OpenFlags};
use birkez::testing::TempStore;
use birkez::{Error, Job, Store};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
pub struct Pay {
    pub n: u32,
    #[serde(default)]
    pub line: Option<String>,
}

impl Job for Pay {
    const KIND: &'static str = "pay";
    type Output = u32;
    fn key(&self) -> String {
        self.n.to_string()
    }
    fn ordering_key(&self) -> Option<String> {
        self.line.clone()
    }
}

/// Runs once at most.
#[derive(Serialize, Deserialize)]
pub struct Text {
    pub n: u32,
}

impl Job for Text {
    const KIND: &'static str = "text";
    const AT_MOST_ONCE: bool = true;
    type Output = ();
    fn key(&self) -> String {
        self.n.to_string()
    }
}

pub fn pay(n: u32) -> Pay {
    Pay { n, line: None }
}

pub fn put<J: Job>(store: &Store, job: &J) -> i64 {
    store.enqueue(job).unwrap().id
}

pub fn beside(folder: &TempStore, name: &str) -> PathBuf {
    folder.path().with_file_name(name)
}

pub fn is_exists(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists)
}

/// A copy read without a change to it.
pub fn look<T: FromSql>(copy: &Path, sql: &str) -> T {
    let copy = Connection::open_with_flags(copy, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    copy.query_row(sql, [], |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}
