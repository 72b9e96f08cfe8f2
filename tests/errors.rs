//! The errors as programs see them. What can go wrong: a code that is not in the table of the docs, or means two things;
//! an error that an endpoint cannot handle in the one place where it handles all; a message that names nothing.

use std::collections::{BTreeMap, BTreeSet};
use std::path::PathBuf;

use birkez::{Error, JobName, JobRef, State};
use serde_json::Value;

const CODES: &str = include_str!("../src/error/code.rs");

fn cause() -> Box<dyn std::error::Error + Send + Sync> {
    "what lay behind it".into()
}

fn sqlite() -> birkez::rusqlite::Error {
    birkez::rusqlite::Error::QueryReturnedNoRows
}

/// One of each that speaks of a job.
fn of_jobs() -> Vec<Error> {
    let (kind, key) = (|| "mail".to_owned(), || "invoice-17".to_owned());
    let existing = || JobRef { id: 4711, state: State::Dead };
    let (text, class) = (|| "no route".to_owned(), || "transient".to_owned());
    let step = || "charge".to_owned();
    vec![
        Error::PayloadTooLarge { kind: kind(), key: key(), size: 300_000, limit: 262_144 },
        Error::PayloadInvalid { kind: kind(), key: key(), source: cause() },
        Error::KeyReused { kind: kind(), key: key(), existing: existing() },
        Error::InProgress { kind: kind(), key: key(), id: 4711 },
        Error::NotForCallers { kind: kind(), key: key(), existing: existing() },
        Error::Failed { kind: kind(), key: key(), class: class(), text: text(), attempt: 3, retryable: true },
        Error::Dead { kind: kind(), key: key(), class: class(), text: text() },
        Error::Cancelled { kind: kind(), key: key() },
        Error::Parked { kind: kind(), key: key(), reason: "auth:bank".into() },
        Error::ResultGone { kind: kind(), key: key(), note: "too_large".into() },
        Error::ResultUnreadable { kind: kind(), key: key(), source: cause() },
        Error::LeaseLost { kind: kind(), key: key() },
        Error::AlreadySettled { kind: kind(), key: key() },
        Error::OutputMismatch { kind: kind(), key: key() },
        Error::NothingToCorrect { kind: kind(), key: key(), corrected: JobName::new("mail", "invoice-16") },
        Error::StepInvalid { kind: kind(), key: key(), step: String::new() },
        Error::StepRepeated { kind: kind(), key: key(), step: step() },
        Error::StepUnreadable { kind: kind(), key: key(), step: step(), source: cause() },
        Error::StepNotStored { kind: kind(), key: key(), step: step(), note: "too_large" },
        Error::WrongState { act: "resolve", kind: kind(), key: key(), state: State::Done },
    ]
}

/// One of each that speaks of a kind at most.
fn of_others() -> Vec<Error> {
    let (kind, path) = (|| "mail".to_owned(), || PathBuf::from("/home/panel.db"));
    let act = "enqueue";
    vec![
        Error::KeyRequired { kind: kind() },
        Error::KeyTooLong { kind: kind(), size: 513, limit: 512 },
        Error::KeyInvalid { kind: kind() },
        Error::KindInvalid { kind: kind() },
        Error::InsideTransaction { act, instead: "enqueue_in with the transaction" },
        Error::TransactionEnded { act },
        Error::Busy { act, waited_ms: 10_000 },
        Error::DiskFull { act },
        Error::OutcomeUnknown { act, cause: "disk I/O error".into() },
        Error::Interrupted { act, held_ms: 5_001 },
        Error::Closure { act, source: cause() },
        Error::StaleTransaction { act },
        Error::NoSuchJob { job: "job 4711".into() },
        Error::NoSuchSchedule { name: "nightly".into() },
        Error::MustResolve,
        Error::ReplayRefused { cause: "the filter means every job".into() },
        Error::NotWal { path: path(), mode: "delete".into() },
        Error::NotADatabase { path: path() },
        Error::OtherFile { path: path(), other: "/home/other.db".into() },
        Error::NotAFile { path: path() },
        Error::Damaged { path: path(), cause: "malformed".into() },
        Error::Unwritable { path: path(), cause: "permission denied".into() },
        Error::NewerSchema { path: path(), found: 9, oldest_writer: 8, known: 1 },
        Error::ForeignSchema { path: path(), table: "birkez_job".into() },
        Error::EngineTooOld { version: "3.40.1".into() },
        Error::DuplicateKind { kind: kind() },
        Error::TooManyKinds { given: 401, limit: 400 },
        Error::ScheduleInvalid { name: "nightly".into(), verdict: "cannot be registered".into(), source: cause() },
        Error::WebhookInvalid { setting: "address", source: cause() },
        Error::NoticeInvalid { kind: "mail".into(), source: cause() },
        Error::Stopped { act },
        Error::Io { act, path: path(), source: std::io::Error::other("no such folder") },
        Error::Storage { act, source: sqlite() },
    ]
}

fn all() -> Vec<Error> {
    of_jobs().into_iter().chain(of_others()).collect()
}

/// The codes that the source gives to its variants.
fn codes_in_the_source() -> BTreeSet<String> {
    let arms = CODES.lines().filter_map(|line| line.trim().strip_prefix("Error::")?.split_once("=> \""));
    arms.map(|(_, code)| code.trim_end_matches("\",").to_owned()).collect()
}

/// The table of the docs: each code with its answer to "again?".
fn table() -> BTreeMap<String, String> {
    let rows = CODES.lines().filter_map(|line| line.trim().strip_prefix("/// | `"));
    let cells = rows.map(|row| row.trim_end_matches('|').split(" | ").map(str::trim).collect::<Vec<_>>());
    let mut table = BTreeMap::new();
    for cells in cells {
        for code in cells[0].split(", ") {
            let before = table.insert(code.trim_matches('`').to_owned(), cells[cells.len() - 1].to_owned());
            assert_eq!(before, None, "{code} is in the table twice");
        }
    }
    table
}

#[test]
fn every_code_is_of_one_error_and_stands_in_the_table_of_the_docs() {
    let codes: Vec<_> = all().iter().map(Error::code).collect();
    let each: BTreeSet<String> = codes.iter().map(|code| (*code).to_owned()).collect();
    assert_eq!(each.len(), codes.len(), "two errors have one code: {codes:?}");
    assert_eq!(each, codes_in_the_source(), "this file lists every error");
    assert_eq!(each, table().into_keys().collect(), "the docs list every code");
    for code in each {
        assert!(code.bytes().all(|byte| byte.is_ascii_uppercase() || byte == b'_'), "{code}");
    }
}

#[test]
fn what_the_table_says_of_trying_again_is_what_an_error_says() {
    let table = table();
    for error in all() {
        let again = match table[error.code()].as_str() {
            "yes" => true,
            "no" => false,
            "as its class says" => continue,
            other => panic!("{other}"),
        };
        assert_eq!(error.is_retryable(), again, "{}", error.code());
    }
    let failed = |retryable| Error::Failed {
        kind: "mail".into(),
        key: "a".into(),
        class: "permanent".into(),
        text: "no".into(),
        attempt: 1,
        retryable,
    };
    assert!(failed(true).is_retryable() && !failed(false).is_retryable());
}

#[test]
fn every_error_serialises_in_the_one_shape() {
    for error in all() {
        let json = serde_json::to_value(&error).unwrap();
        let names: BTreeSet<&str> = json.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(names, BTreeSet::from(["code", "key", "kind", "message", "retryable"]), "{error:?}");
        assert_eq!(json["code"], error.code());
        // Whoever reads JSON has no other way to the causes.
        let causes = std::iter::successors(std::error::Error::source(&error), |cause| cause.source());
        let told = causes.fold(error.to_string(), |text, cause| format!("{text}: {cause}"));
        assert_eq!(json["message"], told);
        assert_eq!(json["retryable"], error.is_retryable());
        let (kind, key) = error.job().map_or((None, None), |(kind, key)| (Some(kind), Some(key)));
        assert_eq!(json["key"].as_str(), key);
        assert!(json["kind"].is_string() || json["kind"].is_null());
        assert!(kind.is_none() || json["kind"].as_str() == kind);
        assert!(json["key"].is_string() || json["key"] == Value::Null);
    }
    assert_eq!(serde_json::to_value(Error::KeyRequired { kind: "mail".into() }).unwrap()["kind"], "mail");
}

#[test]
fn an_error_that_speaks_of_a_job_names_it_and_its_message_is_for_people() {
    for error in of_jobs() {
        assert_eq!(error.job(), Some(("mail", "invoice-17")), "{error:?}");
        let text = error.to_string();
        assert!(text.contains("`mail`") && text.contains("`invoice-17`"), "{text}");
    }
    for error in all() {
        let text = error.to_string();
        assert!(!text.contains("Error") && !text.contains("Some(") && !text.ends_with('.'), "{text}");
        if let Some(cause) = std::error::Error::source(&error) {
            assert!(!text.contains(&cause.to_string()), "the cause is told once, as the source: {text}");
        }
    }
    for error in of_others() {
        let text = error.to_string();
        let names_its_act = text.contains("enqueue") || text.contains("`mail`") || text.contains("/home/panel.db");
        let names_its_object =
            ["nothing is replayed", "nightly", "401", "3.40.1", "job 4711", "unknown_outcome", "webhook's address"]
                .iter()
                .any(|it| text.contains(it));
        assert!(names_its_act || names_its_object, "{text}");
    }
}

#[test]
fn an_unknown_outcome_says_that_a_repeat_is_safe() {
    let text = Error::OutcomeUnknown { act: "enqueue", cause: "disk I/O error".into() }.to_string();
    for word in ["COMMIT failed", "disk I/O error", "unknown", "repeating it under its key is safe"] {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
}

#[test]
fn the_state_of_the_job_in_the_way_is_told() {
    for error in of_jobs() {
        let told = matches!(error.code(), "KEY_REUSED" | "NOT_FOR_CALLERS");
        assert_eq!(error.existing(), told.then_some(State::Dead), "{error:?}");
        if told {
            assert!(error.to_string().contains("4711") && error.to_string().contains("dead"), "{error}");
        }
    }
}
