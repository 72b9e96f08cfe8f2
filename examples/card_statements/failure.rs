//! What a run can end with, beside the errors of the library and of the system.

use std::path::PathBuf;

use birkez::Job;
use chrono::NaiveDate;
use serde_json::{Value, json};

use crate::book::Statement;

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
    /// A statement's job has not been done.
    #[error("the statement {key} is not posted, its job is {state}: {text}")]
    NotPosted { key: String, state: String, text: String },
}

/// Any error in the one shape of the library's, with what a script needs to find the place.
pub fn shape(error: &anyhow::Error) -> Value {
    let shape = |code, kind, key: Option<String>| json!({ "code": code, "message": error.to_string(), "kind": kind, "key": key, "retryable": false });
    match error.downcast_ref::<Failure>() {
        Some(Failure::BadRow { line, .. }) => with(shape("BAD_ROW", None, None), "line", json!(line)),
        Some(Failure::Reused { card_id, statement_date, .. }) => {
            let key = format!("{card_id}/{statement_date}");
            let shape = with(shape("KEY_REUSED", Some(Statement::KIND), Some(key)), "card_id", json!(card_id));
            with(shape, "statement_date", json!(statement_date))
        }
        Some(Failure::NotPosted { key, .. }) => shape("NOT_POSTED", Some(Statement::KIND), Some(key.clone())),
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
