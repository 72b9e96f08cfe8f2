//! Runs the example as a program in a folder of its own, and reads what it wrote with plain SQL.

use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::OnceLock;

use birkez::rusqlite::Connection;
use birkez::rusqlite::types::Value as Cell;
use birkez::testing::TempStore;

use super::common::example::example;

pub const HEADER: &str = "purchase_id,card_id,statement_day,purchase_date,merchant,total_minor,instalments,currency";

/// A folder of its own, with a database and purchases in it.
pub struct Desk {
    folder: TempStore,
}

impl Desk {
    pub fn new(purchases: &str) -> Desk {
        let desk = Desk { folder: TempStore::new().unwrap() };
        desk.write(purchases);
        desk
    }

    pub fn db(&self) -> &Path {
        self.folder.path()
    }

    pub fn csv(&self) -> PathBuf {
        self.db().with_file_name("purchases.csv")
    }

    pub fn write(&self, purchases: impl AsRef<[u8]>) {
        std::fs::write(self.csv(), purchases).unwrap();
    }

    pub fn command(&self, more: &[&str]) -> Command {
        let mut command = Command::new(program());
        command.arg("--db").arg(self.db()).arg("--purchases").arg(self.csv()).args(more);
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        command
    }

    pub fn run(&self, more: &[&str]) -> Output {
        self.command(more).output().unwrap()
    }

    /// Runs it to a good end; answers what it printed.
    #[track_caller]
    pub fn post(&self, more: &[&str]) -> String {
        let output = self.run(more);
        assert!(output.status.success(), "{output:?}");
        text(&output.stdout)
    }

    /// Runs it to a refusal that changes nothing in the file; answers what it said.
    #[track_caller]
    pub fn refused(&self, more: &[&str]) -> String {
        let before = self.db().exists().then(|| dump(self.db()));
        let output = self.run(more);
        assert_eq!(output.status.code(), Some(1), "{output:?}");
        assert_eq!(self.db().exists().then(|| dump(self.db())), before, "a refused run wrote something");
        text(&output.stderr) + &text(&output.stdout)
    }

    pub fn ledger(&self) -> String {
        ledger(self.db())
    }
}

/// What a program printed.
pub fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// A file given with the tests, with plain line ends.
pub fn data(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/data").join(name);
    std::fs::read_to_string(path).unwrap().replace("\r\n", "\n")
}

/// The built example, looked for once.
pub fn program() -> &'static Path {
    static PROGRAM: OnceLock<PathBuf> = OnceLock::new();
    PROGRAM.get_or_init(|| example("card_statements"))
}

/// The ledger by plain SQL, as the given file has it.
fn ledger(db: &Path) -> String {
    let connection = Connection::open(db).unwrap();
    let ask = "SELECT card_id, statement_date, purchase_id, instalment, amount_minor, currency FROM ledger
               ORDER BY card_id, statement_date, purchase_id, instalment";
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer
        .write_record(["card_id", "statement_date", "purchase_id", "instalment", "amount_minor", "currency"])
        .unwrap();
    let mut statement = connection.prepare(ask).unwrap();
    let mut rows = statement.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        let cell = |at| match row.get(at).unwrap() {
            Cell::Text(text) => text,
            Cell::Integer(number) => number.to_string(),
            other => panic!("{other:?} in the ledger"),
        };
        writer.write_record((0..6).map(cell)).unwrap();
    }
    String::from_utf8(writer.into_inner().unwrap()).unwrap()
}

/// Every row of every table. SQLite's own counter of ids is left out: a repeat that changes nothing may raise it.
pub fn dump(db: &Path) -> Vec<String> {
    let connection = Connection::open(db).unwrap();
    let ask = "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'sqlite_sequence' ORDER BY name";
    let mut statement = connection.prepare(ask).unwrap();
    let tables: Vec<String> = statement.query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect();
    let mut all = Vec::new();
    for table in tables {
        let mut statement = connection.prepare(&format!("SELECT * FROM \"{table}\"")).unwrap();
        let width = statement.column_count();
        let mut rows = statement.query([]).unwrap();
        while let Some(row) = rows.next().unwrap() {
            let cells: Vec<Cell> = (0..width).map(|at| row.get(at).unwrap()).collect();
            all.push(format!("{table} {cells:?}"));
        }
    }
    all.sort();
    all
}
