//! Reading the purchases. Whatever is wrong with a row is found here, before anything is written.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::RangeInclusive;
use std::path::Path;

use anyhow::Context as _;
use csv::ByteRecord;

use crate::book::Book;
use crate::failure::Failure;
use crate::rules::{Instalments, YEARS, read_date};

const COLUMNS: [&str; 8] =
    ["purchase_id", "card_id", "statement_day", "purchase_date", "merchant", "total_minor", "instalments", "currency"];
const BYTE_ORDER_MARK: &[u8] = b"\xef\xbb\xbf";

/// Reads a file whose first line names the columns, in any order.
pub fn read(file: &Path) -> anyhow::Result<Book> {
    let bytes = std::fs::read(file).with_context(|| format!("cannot read the purchases in {}", file.display()))?;
    let text = bytes.strip_prefix(BYTE_ORDER_MARK).unwrap_or(&bytes);
    parse(text).map_err(|bad| {
        let file = file.to_owned();
        Failure::BadRow { file, line: line_of(text, bad.at), text: bad.text }.into()
    })
}

/// What is wrong, and where: a place in the text, turned into a line only when somebody is told.
struct Bad {
    at: usize,
    text: String,
}

/// The rows of a text so far.
struct Reading<'a> {
    text: &'a [u8],
    book: Book,
    /// Where each purchase and each card was first met.
    purchases: HashMap<String, usize>,
    cards: HashMap<String, usize>,
}

fn parse(text: &[u8]) -> Result<Book, Bad> {
    let mut rows = csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text);
    let mut reading = Reading { text, book: Book::default(), purchases: HashMap::new(), cards: HashMap::new() };
    let mut record = ByteRecord::new();
    let mut header: Option<(Vec<usize>, usize)> = None;
    loop {
        let before = rows.position().byte() as usize;
        let more = rows.read_byte_record(&mut record).map_err(|error| Bad { at: before, text: error.to_string() })?;
        // Blank lines are passed over by the reader.
        let at = before + text[before..].iter().take_while(|byte| matches!(byte, b'\r' | b'\n')).count();
        let bad = |text| Bad { at, text };
        match &header {
            _ if !more => break,
            None => header = Some((columns(&record).map_err(bad)?, record.len())),
            Some((_, width)) if record.len() != *width => {
                return Err(bad(format!("{} fields where the first line has {width}", record.len())));
            }
            Some((columns, _)) => {
                let fields = fields(&record, columns).map_err(bad)?;
                reading.row(fields, at).map_err(bad)?;
            }
        }
    }
    match header {
        Some(_) => Ok(reading.book.finish()),
        None => Err(Bad { at: 0, text: "the line that names the columns is missing".to_owned() }),
    }
}

/// Where each column stands.
fn columns(header: &ByteRecord) -> Result<Vec<usize>, String> {
    let place = |name: &&str| {
        let mut places = (0..header.len()).filter(|&place| &header[place] == name.as_bytes());
        match (places.next(), places.next()) {
            (Some(place), None) => Ok(place),
            (None, _) => Err(format!("column {name} is missing")),
            (Some(_), Some(_)) => Err(format!("column {name} is named twice")),
        }
    };
    COLUMNS.iter().map(place).collect()
}

fn fields<'a>(record: &'a ByteRecord, columns: &[usize]) -> Result<[&'a str; COLUMNS.len()], String> {
    let mut fields = [""; COLUMNS.len()];
    for ((field, &place), name) in fields.iter_mut().zip(columns).zip(COLUMNS) {
        *field = std::str::from_utf8(&record[place]).map_err(|_| format!("{name} is not UTF-8"))?;
    }
    Ok(fields)
}

impl Reading<'_> {
    fn row(&mut self, fields: [&str; COLUMNS.len()], at: usize) -> Result<(), String> {
        let [purchase, card, day, bought, _merchant, total, count, currency] = fields;
        for (name, text) in [("purchase_id", purchase), ("card_id", card), ("currency", currency)] {
            check_name(name, text)?;
        }
        let day = number("statement_day", day, 1..=31)? as u32;
        let (first, last) = (YEARS.start(), YEARS.end());
        let bought = read_date(bought)
            .ok_or_else(|| format!("purchase_date {bought:?} is not a date YYYY-MM-DD from {first} to {last}"))?;
        let total = number("total_minor", total, 1..=i64::MAX)?;
        let count = number("instalments", count, 1..=i64::from(u32::MAX))? as u32;
        let plan = Instalments::new(day, bought, total, count)
            .ok_or_else(|| format!("the last of {count} instalments would be after the year {last}"))?;
        self.check_card(card, day, currency, at)?;
        match self.purchases.entry(purchase.to_owned()) {
            Entry::Occupied(first) => {
                return Err(format!(
                    "purchase_id {purchase:?} is in line {} already",
                    line_of(self.text, *first.get())
                ));
            }
            Entry::Vacant(place) => place.insert(at),
        };
        self.book.add(card, day, currency, purchase, bought, plan);
        Ok(())
    }

    /// A card has one statement day and one currency.
    fn check_card(&mut self, id: &str, day: u32, currency: &str, at: usize) -> Result<(), String> {
        let Some(card) = self.book.card(id) else {
            self.cards.insert(id.to_owned(), at);
            return Ok(());
        };
        let line = || line_of(self.text, self.cards[id]);
        if card.statement_day != day {
            return Err(format!(
                "card {id:?} has statement_day {day} here and {} in line {}",
                card.statement_day,
                line()
            ));
        }
        if card.currency != currency {
            return Err(format!(
                "card {id:?} has currency {currency:?} here and {:?} in line {}",
                card.currency,
                line()
            ));
        }
        Ok(())
    }
}

/// Names are compared byte by byte and printed as they are.
fn check_name(column: &str, text: &str) -> Result<(), String> {
    // A statement's key is the card and a date.
    let limit = birkez::MAX_KEY - "/YYYY-MM-DD".len();
    match text {
        "" => Err(format!("{column} is empty")),
        _ if text.chars().any(char::is_control) => Err(format!("{column} {text:?} holds a control character")),
        _ if text.len() > limit => Err(format!("{column} is longer than {limit} bytes")),
        _ => Ok(()),
    }
}

fn number(column: &str, text: &str, allowed: RangeInclusive<i64>) -> Result<i64, String> {
    let (first, last) = (allowed.start(), allowed.end());
    let digits = !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
    let number = text.parse().ok().filter(|number| digits && allowed.contains(number));
    number.ok_or_else(|| format!("{column} {text:?} is not a whole number from {first} to {last}"))
}

/// The number of the line at a place, as editors count them.
fn line_of(text: &[u8], place: usize) -> usize {
    let before = &text[..place.min(text.len())];
    let ends = before.iter().enumerate().filter(|&(at, &byte)| match byte {
        b'\n' => true,
        b'\r' => text.get(at + 1) != Some(&b'\n'),
        _ => false,
    });
    1 + ends.count()
}
