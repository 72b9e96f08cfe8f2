//! The command line.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use chrono::NaiveDate;

use crate::refund::Wish;
use crate::rules::{YEARS, read_date};

pub const USAGE: &str = "\
Posts card instalments to a ledger on the night each statement closes.

usage: card_statements [--db FILE] [--purchases FILE] [--through DATE | --refund PURCHASE [--amount MINOR]] [--json]

  --db FILE         the database, created if it is missing (default: panel.db)
  --purchases FILE  the purchases, as CSV (default: the example's own)
  --through DATE    the last night to walk, YYYY-MM-DD (default: the last instalment's)
  --refund PURCHASE refund a purchase of a statement that has closed, instead of walking nights
  --amount MINOR    how much of it (default: all)
  --json            print the outcome as one JSON object

exit code: 0 all posted, 1 refused or failed, 2 wrong usage";

/// What was asked for.
#[derive(Debug)]
pub struct Args {
    pub db: PathBuf,
    pub purchases: PathBuf,
    pub through: Option<NaiveDate>,
    pub refund: Option<Wish>,
    pub json: bool,
    pub help: bool,
}

impl Args {
    /// Reads `--name value` and `--name=value`; the error says what is wrong.
    pub fn parse(mut words: impl Iterator<Item = OsString>) -> Result<Args, String> {
        let (mut db, mut purchases, mut through, mut json, mut help) = (None, None, None, false, false);
        let (mut refund, mut amount) = (None, None);
        while let Some(word) = words.next() {
            let (name, value) = split(&word);
            let mut value = || match value.map(OsStr::to_owned).or_else(|| words.next()) {
                Some(value) if !value.is_empty() && !value.to_string_lossy().starts_with("--") => Ok(value),
                _ => Err(format!("{name} needs a value")),
            };
            match name.as_str() {
                "--db" => once(&mut db, &name, value()?)?,
                "--purchases" => once(&mut purchases, &name, value()?)?,
                "--through" => once(&mut through, &name, date(&value()?)?)?,
                "--refund" => once(&mut refund, &name, value()?.to_string_lossy().into_owned())?,
                "--amount" => once(&mut amount, &name, minor(&value()?)?)?,
                "--json" if word == "--json" => json = true,
                "--help" | "-h" if word == *name => help = true,
                _ => return Err(format!("unknown argument {}", word.to_string_lossy().escape_debug())),
            }
        }
        let data = || Path::new(env!("CARGO_MANIFEST_DIR")).join("examples/data/purchases.csv");
        let db = db.map_or_else(|| PathBuf::from("panel.db"), PathBuf::from);
        let refund = match (refund, amount) {
            (Some(_), _) if through.is_some() => return Err("--refund walks no nights: leave out --through".to_owned()),
            (None, Some(_)) => return Err("--amount is one of --refund".to_owned()),
            (refund, amount_minor) => refund.map(|purchase_id| Wish { purchase_id, amount_minor }),
        };
        Ok(Args { db, purchases: purchases.map_or_else(data, PathBuf::from), through, refund, json, help })
    }
}

/// A path need not be Unicode, so that the text is cut as bytes are.
fn split(word: &OsStr) -> (String, Option<&OsStr>) {
    let text = word.to_string_lossy();
    let known = ["--db", "--purchases", "--through", "--refund", "--amount"];
    let name = known.into_iter().find(|name| text.strip_prefix(name).is_some_and(|rest| rest.starts_with('=')));
    match name.and_then(|name| Some((name, cut(word, name.len() + 1)?))) {
        Some((name, value)) => (name.to_owned(), Some(value)),
        None => (text.into_owned(), None),
    }
}

#[cfg(unix)]
fn cut(word: &OsStr, at: usize) -> Option<&OsStr> {
    use std::os::unix::ffi::OsStrExt;
    Some(OsStr::from_bytes(word.as_bytes().get(at..)?))
}

#[cfg(not(unix))]
fn cut(word: &OsStr, at: usize) -> Option<&OsStr> {
    Some(OsStr::new(word.to_str()?.get(at..)?))
}

fn once<T>(place: &mut Option<T>, name: &str, value: T) -> Result<(), String> {
    match place.replace(value) {
        None => Ok(()),
        Some(_) => Err(format!("{name} is given twice")),
    }
}

fn date(value: &OsStr) -> Result<NaiveDate, String> {
    let text = value.to_string_lossy();
    let (first, last) = (YEARS.start(), YEARS.end());
    read_date(&text).ok_or_else(|| format!("--through {text:?} is not a date YYYY-MM-DD from {first} to {last}"))
}

fn minor(value: &OsStr) -> Result<i64, String> {
    let text = value.to_string_lossy();
    text.parse().map_err(|_| format!("--amount {text:?} is not a whole number"))
}
