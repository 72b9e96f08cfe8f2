//! What a run can end with, beside the errors of the library and of the system.

use std::path::PathBuf;

use birkez::Job;
use chrono::NaiveDate;
use serde_json::{Value, json};

use crate::book::Statement;
use crate::refund::Refund;

#[derive(Debug, thiserror::Error)]
pub enum Failure {
    #[error("{}, line {line}: {text}; nothing was written", file.display())]
    BadRow { file: PathBuf, line: usize, text: String },
    /// The purchases make another statement of one that has closed, or one that was never there, or none any more.
    #[error(
        "the statement of card {card_id} of {statement_date} is closed, and by the purchases it would now be another: \
         {text}; nothing was written"
    )]
    Reused { card_id: String, statement_date: NaiveDate, text: String },
    /// A job has not been done.
    #[error("the {} {key} is not posted, its job is {state}: {text}", if kind == Refund::KIND { "refund" } else { "statement" })]
    NotPosted { kind: String, key: String, state: String, text: String },
    #[error("there is no purchase {purchase_id:?} to refund; nothing was written")]
    UnknownPurchase { purchase_id: String },
    #[error("of purchase {purchase_id}, 1 to {total_minor} can be refunded, not {amount_minor}; nothing was written")]
    BadAmount { purchase_id: String, amount_minor: i64, total_minor: i64 },
    /// A purchase is refunded once; the wish is for another amount than the one that is posted.
    #[error("purchase {purchase_id} is refunded already, with {} and not {amount_minor}; nothing was written", stored.unwrap_or_default())]
    OtherRefund { purchase_id: String, amount_minor: i64, stored: Option<i64> },
}

/// Any error in the one shape of the library's, with what a script needs to find the place.
pub fn shape(error: &anyhow::Error) -> Value {
    let shape = |code: &str, kind: Option<&str>, key: Option<String>| json!({ "code": code, "message": error.to_string(), "kind": kind, "key": key, "retryable": false });
    let refused = |code, purchase: &str| shape(code, Some(Refund::KIND), Some(purchase.to_owned()));
    match error.downcast_ref::<Failure>() {
        Some(Failure::BadRow { line, .. }) => with(shape("BAD_ROW", None, None), "line", json!(line)),
        Some(Failure::Reused { card_id, statement_date, .. }) => {
            let key = format!("{card_id}/{statement_date}");
            let shape = with(shape("KEY_REUSED", Some(Statement::KIND), Some(key)), "card_id", json!(card_id));
            with(shape, "statement_date", json!(statement_date))
        }
        Some(Failure::NotPosted { kind, key, .. }) => shape("NOT_POSTED", Some(kind), Some(key.clone())),
        Some(Failure::UnknownPurchase { purchase_id }) => refused("UNKNOWN_PURCHASE", purchase_id),
        Some(Failure::BadAmount { purchase_id, .. }) => refused("BAD_AMOUNT", purchase_id),
        Some(Failure::OtherRefund { purchase_id, .. }) => refused("KEY_REUSED", purchase_id),
        None => match error.downcast_ref::<birkez::Error>() {
            Some(error) => json!(error),
            None => shape("ERROR", None, None),
        },
    }
}

fn with(mut shape: Value, name: &str, value: Value) -> Value {
    shape[name] = value;
    shape
}
