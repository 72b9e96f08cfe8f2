//! What a run says: a bar while it walks, one line or one JSON object at its end.

use std::collections::BTreeMap;
use std::io::{IsTerminal, Write, stderr};
use std::path::Path;
use std::time::{Duration, Instant};

use chrono::NaiveDate;
use serde::Serialize;

use crate::book::Book;
use crate::ledger::Balance;
use crate::nightly::Walked;

const BAR: usize = 30;
const PACE: Duration = Duration::from_millis(50);

/// A bar on the terminal, if there is one.
pub struct Bar {
    terminal: bool,
    drawn: Option<Instant>,
}

impl Bar {
    pub fn new() -> Bar {
        Bar { terminal: stderr().is_terminal(), drawn: None }
    }

    pub fn draw(&mut self, night: NaiveDate, behind: usize, nights: usize) {
        if !self.terminal || self.drawn.is_some_and(|drawn| drawn.elapsed() < PACE) {
            return;
        }
        let filled = BAR * behind / nights.max(1);
        let (done, left) = ("#".repeat(filled), "-".repeat(BAR - filled));
        // A terminal that is gone stops nothing.
        let _ = write!(stderr(), "\r[{done}{left}] {night}  {behind} of {nights} nights");
        self.drawn = Some(Instant::now());
    }
}

impl Drop for Bar {
    fn drop(&mut self) {
        if self.drawn.is_some() {
            let _ = write!(stderr(), "\r{:100}\r", "");
        }
    }
}

/// A run that went well.
#[derive(Debug, Serialize)]
pub struct Report {
    db: String,
    purchases: usize,
    through: Option<NaiveDate>,
    /// Every statement up to here has closed; later than `through` if an earlier run went further.
    closed_through: Option<NaiveDate>,
    nights_walked: usize,
    statements_posted: usize,
    rows_written: usize,
    ledger_rows: i64,
    /// By card.
    cards: Vec<CardBalance>,
}

#[derive(Debug, Serialize)]
struct CardBalance {
    card_id: String,
    currency: String,
    rows: i64,
    /// Rows that take something back.
    refunds: i64,
    balance_minor: i128,
}

/// The cards of the purchases, before the book is handed to the walk.
pub fn card_list(book: &Book) -> Vec<(String, String)> {
    book.cards().map(|(id, card)| (id.to_owned(), card.currency.clone())).collect()
}

impl Report {
    pub fn new(
        db: &Path,
        (purchases, cards): (usize, Vec<(String, String)>),
        through: Option<NaiveDate>,
        walked: &Walked,
        mut balances: BTreeMap<String, Balance>,
    ) -> Report {
        let ledger_rows = balances.values().map(|balance| balance.rows).sum();
        let card = |(card_id, currency)| {
            let balance = balances.remove(&card_id).unwrap_or_default();
            CardBalance {
                card_id,
                currency,
                rows: balance.rows,
                refunds: balance.refunds,
                balance_minor: balance.minor,
            }
        };
        Report {
            db: db.display().to_string(),
            purchases,
            through,
            closed_through: walked.closed_by,
            nights_walked: walked.nights,
            statements_posted: walked.statements,
            rows_written: walked.rows,
            ledger_rows,
            cards: cards.into_iter().map(card).collect(),
        }
    }

    /// The whole of it as one JSON object.
    pub fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)?)
    }

    /// One line.
    pub fn line(&self) -> String {
        let until = match self.closed_through {
            Some(date) => format!("through {date}"),
            None => "(no night was walked)".to_owned(),
        };
        let (db, cards) = (&self.db, self.cards.len());
        let holds = format!("{db} holds {} of {}", count(self.ledger_rows, "row"), count(cards as i64, "card"));
        if self.statements_posted == 0 {
            return format!("Nothing to write: every statement {until} is posted; {holds}.");
        }
        let rows = count(self.rows_written as i64, "row");
        let statements = count(self.statements_posted as i64, "statement");
        format!("Posted {rows} in {statements} {until}; {holds}.")
    }
}

/// `1 row`, `3,069 rows`.
fn count(number: i64, what: &str) -> String {
    let digits = number.to_string();
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    format!("{text} {what}{}", if number == 1 { "" } else { "s" })
}
