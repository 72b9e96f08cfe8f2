//! An app's own database, and a job to use a store with.

use std::path::Path;

use birkez::rusqlite::Connection;
use birkez::testing::Drain;
use birkez::{Context, Job, Runner, State, Store};
use serde::{Deserialize, Serialize};

use super::rows;

#[derive(Serialize, Deserialize)]
pub struct Note {
    pub text: String,
}

impl Job for Note {
    const KIND: &'static str = "note";
    type Output = usize;
    fn key(&self) -> String {
        self.text.clone()
    }
}

pub fn note(text: &str) -> Note {
    Note { text: text.to_owned() }
}

/// Enqueues and runs one job, and another by `once`.
pub fn use_it(store: &Store) {
    let drain = Drain::new(Runner::builder(store).handle(|note: Note, _cx: &Context| Ok(note.text.len()))).unwrap();
    assert!(store.enqueue(&note("ran")).unwrap().fresh);
    assert_eq!(drain.drain().unwrap(), 1);
    assert_eq!(store.once(&note("once"), |_cx| Ok(7)).unwrap(), 7);
    assert_eq!(store.find("note", "ran").unwrap().unwrap().state, State::Done);
}

/// An app's own database in WAL mode, with a bit of everything.
pub fn app_database(path: &Path, encoding: &str) {
    let app = Connection::open(path).unwrap();
    app.execute_batch(&format!(
        "PRAGMA encoding = '{encoding}'; PRAGMA page_size = 8192; PRAGMA auto_vacuum = INCREMENTAL;
         PRAGMA journal_mode = WAL; PRAGMA user_version = 7; PRAGMA application_id = 1112888667;
         CREATE TABLE card (id INTEGER PRIMARY KEY AUTOINCREMENT, name TEXT  NOT NULL);
         CREATE TABLE entry (card INTEGER REFERENCES card, minor INTEGER DEFAULT (0), PRIMARY KEY (card, minor)) WITHOUT ROWID;
         CREATE INDEX entry_minor ON entry (minor) WHERE minor > 0;
         CREATE VIEW total AS SELECT card, sum(minor) AS minor FROM entry GROUP BY card;
         CREATE TRIGGER no_delete BEFORE DELETE ON card BEGIN SELECT raise(ABORT, 'kept'); END;
         INSERT INTO card (name) VALUES ('bonus'), ('miles'); INSERT INTO entry VALUES (1, 250), (2, -40);"
    ))
    .unwrap();
}

/// Everything in the file that is the app's.
pub fn what_the_app_sees(path: &Path) -> Vec<String> {
    let questions = [
        "PRAGMA user_version",
        "PRAGMA application_id",
        "PRAGMA page_size",
        "PRAGMA encoding",
        "PRAGMA auto_vacuum",
        "PRAGMA journal_mode",
        // The root pages too: nothing was moved or rebuilt.
        "SELECT type, name, tbl_name, rootpage, sql FROM sqlite_schema
         WHERE tbl_name NOT LIKE 'birkez~_%' ESCAPE '~' AND name <> 'sqlite_sequence' ORDER BY name",
        "SELECT name, seq FROM sqlite_sequence WHERE name NOT LIKE 'birkez~_%' ESCAPE '~' ORDER BY name",
        "SELECT * FROM card ORDER BY id",
        "SELECT * FROM entry ORDER BY card",
        "SELECT * FROM total ORDER BY card",
    ];
    questions.iter().flat_map(|sql| rows(path, sql)).collect()
}

/// An app's own database in SQLite's first journal mode.
pub fn rollback_database(path: &Path) {
    let app = Connection::open(path).unwrap();
    app.execute_batch("CREATE TABLE card (name TEXT); INSERT INTO card VALUES ('bonus');").unwrap();
}

/// An error with its causes, as a program would print it.
pub fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text += &format!(": {error}");
        cause = error.source();
    }
    text
}
