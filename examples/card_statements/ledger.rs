//! The app's own tables, in the same file as the jobs.

use std::collections::BTreeMap;
use std::path::Path;
use std::time::Duration;

use birkez::rusqlite::{Connection, OptionalExtension, Transaction, params};
use birkez::{Job, Store};
use chrono::{DateTime, SecondsFormat, Utc};

use crate::book::Statement;
use crate::refund::Refund;

/// `posting` says of each row of the ledger when it was written and by which job. Instalment 0 is a purchase's refund.
const TABLES: &str = "
CREATE TABLE IF NOT EXISTS ledger (
    card_id        TEXT NOT NULL,
    statement_date TEXT NOT NULL,
    purchase_id    TEXT NOT NULL,
    instalment     INTEGER NOT NULL,
    amount_minor   INTEGER NOT NULL,
    currency       TEXT NOT NULL,
    UNIQUE (purchase_id, instalment)
);
CREATE TABLE IF NOT EXISTS posting (
    purchase_id TEXT NOT NULL,
    instalment  INTEGER NOT NULL,
    posted_at   TEXT NOT NULL,
    job_id      INTEGER NOT NULL,
    UNIQUE (purchase_id, instalment)
);";

const INSERT_ROW: &str = "
INSERT INTO ledger (card_id, statement_date, purchase_id, instalment, amount_minor, currency)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

const INSERT_POSTING: &str = "
INSERT INTO posting (purchase_id, instalment, posted_at, job_id) VALUES (?1, ?2, ?3, ?4)";

pub fn create_tables(store: &Store) -> birkez::Result<()> {
    store.write(|tx| Ok(tx.execute_batch(TABLES)?))
}

/// Writes the rows of a statement, blindly: that it happens once is the job's business.
pub fn post(tx: &Transaction<'_>, statement: &Statement, job: i64, at: DateTime<Utc>) -> anyhow::Result<usize> {
    let mut ledger = tx.prepare_cached(INSERT_ROW)?;
    let mut posting = tx.prepare_cached(INSERT_POSTING)?;
    let Statement { card_id, statement_date, currency, rows } = statement;
    let (date, at) = (statement_date.to_string(), at.to_rfc3339_opts(SecondsFormat::Secs, true));
    for row in rows {
        ledger.execute(params![card_id, date, row.purchase_id, row.instalment, row.amount_minor, currency])?;
        posting.execute(params![row.purchase_id, row.instalment, at, job])?;
    }
    Ok(rows.len())
}

/// What the app reads, on a connection of its own.
pub struct Ledger(Connection);

/// The rows of one card.
#[derive(Clone, Debug, Default)]
pub struct Balance {
    pub rows: i64,
    /// How many of them are refunds.
    pub refunds: i64,
    /// Their sum, which may be more than SQLite's own `sum` can hold.
    pub minor: i128,
}

/// A job that stands in the way.
pub struct OpenJob {
    pub kind: String,
    pub key: String,
    pub state: String,
    pub text: String,
}

impl Ledger {
    pub fn open(file: &Path) -> anyhow::Result<Ledger> {
        let connection = Connection::open(file)?;
        connection.busy_timeout(Duration::from_secs(10))?;
        Ok(Ledger(connection))
    }

    /// Each card's balance, by card.
    pub fn balances(&self) -> anyhow::Result<BTreeMap<String, Balance>> {
        let ask = "SELECT card_id, count(*), sum(instalment = 0), sum(amount_minor / 1000000000), sum(amount_minor % 1000000000)
                   FROM ledger GROUP BY card_id";
        let mut ask = self.0.prepare(ask)?;
        let balance = |row: &birkez::rusqlite::Row<'_>| {
            let (high, low): (i64, i64) = (row.get(3)?, row.get(4)?);
            let minor = i128::from(high) * 1_000_000_000 + i128::from(low);
            Ok((row.get(0)?, Balance { rows: row.get(1)?, refunds: row.get(2)?, minor }))
        };
        Ok(ask.query_map([], balance)?.collect::<Result<_, _>>()?)
    }

    /// The keys of all statements that have a job.
    pub fn statement_keys(&self) -> anyhow::Result<Vec<String>> {
        let mut ask = self.0.prepare("SELECT key FROM birkez_jobs WHERE kind = ?1")?;
        Ok(ask.query_map([Statement::KIND], |row| row.get(0))?.collect::<Result<_, _>>()?)
    }

    /// What a job was made with.
    pub fn stored<J: Job>(&self, key: &str) -> anyhow::Result<Option<J>> {
        let ask = "SELECT payload FROM birkez_job WHERE kind = ?1 AND key = ?2";
        let payload: Option<Option<String>> = self.0.query_row(ask, [J::KIND, key], |row| row.get(0)).optional()?;
        Ok(payload.flatten().and_then(|payload| serde_json::from_str(&payload).ok()))
    }

    /// The first job that should have ended well by now and has not.
    pub fn open_job(&self, now: DateTime<Utc>) -> anyhow::Result<Option<OpenJob>> {
        let ask =
            "SELECT kind, key, state, coalesce(error_class || ': ' || error_text, reason, 'no failure is on record')
                   FROM birkez_jobs
                   WHERE kind IN (?1, ?2) AND (state IN ('running', 'parked', 'dead', 'cancelled')
                                        OR state = 'waiting' AND (run_at <= ?3 OR attempts > 0))
                   ORDER BY id LIMIT 1";
        let job = |row: &birkez::rusqlite::Row<'_>| {
            Ok(OpenJob { kind: row.get(0)?, key: row.get(1)?, state: row.get(2)?, text: row.get(3)? })
        };
        Ok(self.0.query_row(ask, params![Statement::KIND, Refund::KIND, now.timestamp_millis()], job).optional()?)
    }

    /// When the last of the jobs that still wait becomes due, a failed one's next attempt among them.
    pub fn last_due(&self) -> anyhow::Result<Option<DateTime<Utc>>> {
        let ask = "SELECT max(run_at) FROM birkez_jobs WHERE kind IN (?1, ?2) AND state IN ('waiting', 'running')";
        let at: Option<i64> = self.0.query_row(ask, [Statement::KIND, Refund::KIND], |row| row.get(0))?;
        Ok(at.and_then(DateTime::from_timestamp_millis))
    }
}
