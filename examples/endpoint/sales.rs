//! The sale: a job that runs in the thread of whoever sends it, once per key.

use std::time::Duration;

use anyhow::anyhow;
use birkez::rusqlite::{OptionalExtension, Transaction};
use birkez::{Context, Error, Job, Store, Verdicts};
use serde::{Deserialize, Serialize};

const TABLES: &str = "
CREATE TABLE IF NOT EXISTS card (id TEXT PRIMARY KEY);
INSERT OR IGNORE INTO card VALUES ('card-01'), ('card-02');
CREATE TABLE IF NOT EXISTS sale (
    id    INTEGER PRIMARY KEY AUTOINCREMENT,
    key   TEXT NOT NULL UNIQUE,
    card  TEXT NOT NULL REFERENCES card,
    minor INTEGER NOT NULL,
    at    TEXT NOT NULL DEFAULT (strftime('%Y-%m-%dT%H:%M:%fZ'))
);";

/// What a form asks for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Form {
    pub card: String,
    pub minor: i64,
}

/// The form and its key. What must be the same in a repeat is all of it.
#[derive(Serialize, Deserialize)]
struct Sale {
    key: String,
    card: String,
    minor: i64,
}

/// What is stored as the job's output, and is every answer's body.
#[derive(Serialize, Deserialize)]
pub struct Receipt {
    sale: i64,
    card: String,
    minor: i64,
    at: String,
}

impl Job for Sale {
    const KIND: &'static str = "sale";
    type Output = Receipt;
    /// The page's own. With several users it would be `user/key`: two people's keys may be the same.
    fn key(&self) -> String {
        self.key.clone()
    }
}

/// The panel's sales.
pub struct Sales {
    store: Store,
    slow: Duration,
}

impl Sales {
    pub fn open(store: Store, slow: Duration) -> birkez::Result<Sales> {
        store.write(|tx| Ok(tx.execute_batch(TABLES)?))?;
        Ok(Sales { store, slow })
    }

    /// Makes the sale, or answers what came of it.
    pub fn take(&self, key: &str, form: Form) -> Result<Receipt, Error> {
        let sale = Sale { key: key.to_owned(), card: form.card, minor: form.minor };
        let sell = |cx: &Context| {
            std::thread::sleep(self.slow);
            // The sale's row, the receipt and "done" are one transaction: killed before it there is nothing, and the next
            // try begins anew; killed after it there is the answer for that.
            cx.commit(|tx| write_sale(tx, &sale))
        };
        match self.store.once(&sale, sell) {
            // It failed for good. The first is told what is stored, as every repeat will be, and in the same words.
            Err(Error::Failed { retryable: false, .. }) => self.store.once(&sale, sell),
            taken => taken,
        }
    }
}

fn write_sale(tx: &Transaction<'_>, sale: &Sale) -> anyhow::Result<Receipt> {
    let known = tx.query_row("SELECT 1 FROM card WHERE id = ?1", [&sale.card], |_| Ok(())).optional()?;
    // No repeat makes it better, so the job is dead and its error the answer from now on. Without a verdict it would be
    // retryable: the next try under the key would run it again.
    known.ok_or_else(|| anyhow!("there is no card {:?}", sale.card)).permanent()?;
    let insert = "INSERT INTO sale (key, card, minor) VALUES (?1, ?2, ?3) RETURNING id, at";
    let (id, at) = tx.query_row(insert, (&sale.key, &sale.card, sale.minor), |row| Ok((row.get(0)?, row.get(1)?)))?;
    Ok(Receipt { sale: id, card: sale.card.clone(), minor: sale.minor, at })
}
