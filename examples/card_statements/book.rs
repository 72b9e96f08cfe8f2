//! The purchases of all cards, and the statements that follow from them. No clock, no file.

use std::collections::{BTreeMap, BTreeSet};

use birkez::Job;
use chrono::NaiveDate;
use serde::{Deserialize, Serialize};

use crate::rules::{Instalments, Month};

/// One statement of one card: the job. Its content is all that goes into the ledger, so that a purchase added, changed or
/// missing later is other content under the same key.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Statement {
    pub card_id: String,
    pub statement_date: NaiveDate,
    pub currency: String,
    /// By purchase.
    pub rows: Vec<Row>,
}

/// One instalment on a statement.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Row {
    pub purchase_id: String,
    /// From 1. In the ledger, 0 is the purchase's refund.
    pub instalment: u32,
    pub amount_minor: i64,
}

impl Job for Statement {
    const KIND: &'static str = "post-statement";
    /// How many rows were written.
    type Output = usize;

    fn key(&self) -> String {
        format!("{}/{}", self.card_id, self.statement_date)
    }
}

/// Card and date of a statement's key.
pub fn split_key(key: &str) -> Option<(&str, NaiveDate)> {
    let (card, date) = key.rsplit_once('/')?;
    Some((card, crate::rules::read_date(date)?))
}

/// What has become of a statement, in words.
pub fn difference(stored: Option<&Statement>, now: Option<&Statement>) -> String {
    let (old, new) = (by_purchase(stored), by_purchase(now));
    let purchases: BTreeSet<&str> = old.keys().chain(new.keys()).copied().collect();
    let change = |purchase: &&str| match (old.get(purchase), new.get(purchase)) {
        (Some(_), None) => Some(format!("purchase {purchase} is missing")),
        (None, Some(_)) => Some(format!("purchase {purchase} is added")),
        (Some(old), Some(new)) if old != new => Some(format!(
            "purchase {purchase} is changed (instalment {} of {} to {} of {})",
            old.instalment, old.amount_minor, new.instalment, new.amount_minor
        )),
        _ => None,
    };
    let changes: Vec<String> = purchases.iter().filter_map(change).collect();
    let shown = changes[..changes.len().min(5)].join(", ");
    match (changes.len(), stored, now) {
        (0, Some(stored), Some(now)) => format!("its currency was {} and is {}", stored.currency, now.currency),
        (0, _, Some(_)) => "it has not been made".to_owned(),
        (0, _, None) => "there is no such statement any more".to_owned(),
        (1..=5, ..) => shown,
        (count, ..) => format!("{shown} and {} more", count - 5),
    }
}

fn by_purchase(statement: Option<&Statement>) -> BTreeMap<&str, &Row> {
    let rows = statement.into_iter().flat_map(|statement| &statement.rows);
    rows.map(|row| (row.purchase_id.as_str(), row)).collect()
}

/// What is known of a card.
#[derive(Debug)]
pub struct Card {
    pub statement_day: u32,
    pub currency: String,
    purchases: Vec<(String, Instalments)>,
    /// From here on it has a statement each month, also one without rows: only so is a purchase that comes too late for
    /// an empty statement found out.
    first: Month,
    last: Month,
}

/// All purchases, by card.
#[derive(Debug, Default)]
pub struct Book {
    cards: BTreeMap<String, Card>,
    purchases: usize,
    first_purchase: Option<NaiveDate>,
}

impl Book {
    /// What is known of a card so far.
    pub fn card(&self, id: &str) -> Option<&Card> {
        self.cards.get(id)
    }

    /// Adds a purchase; statement day and currency are those of the card's other purchases.
    pub fn add(&mut self, card: &str, day: u32, currency: &str, purchase: &str, bought: NaiveDate, plan: Instalments) {
        let card = self.cards.entry(card.to_owned()).or_insert_with(|| Card {
            statement_day: day,
            currency: currency.to_owned(),
            purchases: Vec::new(),
            first: plan.first(),
            last: plan.last(),
        });
        card.first = card.first.min(plan.first());
        card.last = card.last.max(plan.last());
        card.purchases.push((purchase.to_owned(), plan));
        self.purchases += 1;
        self.first_purchase = Some(self.first_purchase.map_or(bought, |first| first.min(bought)));
    }

    /// Puts the purchases in the one order that statements list them in, whatever the order of the input.
    pub fn finish(mut self) -> Book {
        self.cards.values_mut().for_each(|card| card.purchases.sort_by(|a, b| a.0.cmp(&b.0)));
        self
    }

    pub fn purchases(&self) -> usize {
        self.purchases
    }

    /// A purchase, with the card that it was made with.
    pub fn purchase(&self, id: &str) -> Option<(&str, &Card, &Instalments)> {
        self.cards().find_map(|(card_id, card)| {
            let (_, plan) = card.purchases.iter().find(|(purchase, _)| purchase == id)?;
            Some((card_id, card, plan))
        })
    }

    pub fn cards(&self) -> impl Iterator<Item = (&str, &Card)> {
        self.cards.iter().map(|(id, card)| (id.as_str(), card))
    }

    /// When the first purchase was made.
    pub fn first_purchase(&self) -> Option<NaiveDate> {
        self.first_purchase
    }

    /// When the last instalment of all falls.
    pub fn last_statement(&self) -> Option<NaiveDate> {
        self.cards.values().map(|card| card.last.closing(card.statement_day)).max()
    }

    /// The statements that close on a date, by card.
    pub fn closing_on(&self, date: NaiveDate) -> impl Iterator<Item = Statement> + use<'_> {
        let month = Month::of(date);
        let closes = move |card: &&Card| card.first <= month && month.closing(card.statement_day) == date;
        self.cards().filter(move |(_, card)| closes(card)).map(move |(id, card)| card.statement(id, date))
    }

    /// All statements that have closed by the end of a date, oldest first.
    pub fn closed_by(&self, date: NaiveDate) -> Vec<Statement> {
        let Some(first) = self.first_purchase else { return Vec::new() };
        first.iter_days().take_while(|day| *day <= date).flat_map(|day| self.closing_on(day)).collect()
    }
}

impl Card {
    /// When its next statement after a date closes.
    pub fn closes_after(&self, date: NaiveDate) -> Option<NaiveDate> {
        let month = Month::of(date);
        let closing = |month: Month| month.closing(self.statement_day);
        [Some(month), month.plus(1)].into_iter().flatten().map(closing).find(|closing| *closing > date)
    }

    fn statement(&self, id: &str, date: NaiveDate) -> Statement {
        let month = Month::of(date);
        let row = |(purchase, plan): &(String, Instalments)| {
            let (instalment, amount_minor) = plan.on(month)?;
            Some(Row { purchase_id: purchase.clone(), instalment, amount_minor })
        };
        Statement {
            card_id: id.to_owned(),
            statement_date: date,
            currency: self.currency.clone(),
            rows: self.purchases.iter().filter_map(row).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rules::read_date;

    fn date(text: &str) -> NaiveDate {
        read_date(text).unwrap()
    }

    fn book(purchases: &[(&str, &str, &str, i64, u32)]) -> Book {
        let mut book = Book::default();
        for &(purchase, card, bought, total, count) in purchases {
            let plan = Instalments::new(31, date(bought), total, count).unwrap();
            book.add(card, 31, "TRY", purchase, date(bought), plan);
        }
        book.finish()
    }

    #[test]
    fn a_card_has_a_statement_each_month_from_its_first_purchase_on_also_without_rows() {
        let book =
            book(&[("p1", "a", "2024-01-15", 5, 1), ("p2", "b", "2024-03-01", 5, 1), ("p3", "a", "2024-04-30", 7, 2)]);
        let all = book.closed_by(date("2024-04-30"));
        let short: Vec<_> = all.iter().map(|statement| (statement.key(), statement.rows.len())).collect();
        let expected = [
            ("a/2024-01-31", 1),
            ("a/2024-02-29", 0),
            ("a/2024-03-31", 0),
            ("b/2024-03-31", 1),
            ("a/2024-04-30", 1),
            ("b/2024-04-30", 0),
        ];
        assert_eq!(short, expected.map(|(key, rows)| (key.to_owned(), rows)));
        assert_eq!(book.last_statement(), Some(date("2024-05-31")));
    }

    #[test]
    fn the_order_of_the_input_changes_no_statement() {
        let (one, two) = (("p1", "a", "2024-01-15", 5, 3), ("p2", "a", "2024-01-03", 9, 2));
        let until = date("2024-06-30");
        assert_eq!(book(&[one, two]).closed_by(until), book(&[two, one]).closed_by(until));
    }

    #[test]
    fn a_key_is_split_at_its_date_whatever_the_name_of_the_card() {
        assert_eq!(split_key("a/b/2024-01-31"), Some(("a/b", date("2024-01-31"))));
        assert_eq!(split_key("/2024-01-31"), Some(("", date("2024-01-31"))));
        assert_eq!(split_key("2024-01-31"), None);
    }
}
