//! What programs read of an error: its code, its job, whether to try again, and its one shape as JSON.

use serde::Serialize;
use serde::ser::{SerializeStruct, Serializer};

use super::Error;
use crate::state::State;

impl Error {
    /// The stable code, for programs to compare.
    ///
    /// | code | when | again? |
    /// | --- | --- | --- |
    /// | `KEY_REQUIRED`, `KEY_TOO_LONG`, `KEY_INVALID`, `KIND_INVALID` | the job's name cannot be one | no |
    /// | `PAYLOAD_TOO_LARGE`, `PAYLOAD_INVALID` | the payload was refused before any write | no |
    /// | `KEY_REUSED` | the key names a job with other content; nothing changed | no |
    /// | `IN_PROGRESS` | the job is running elsewhere | yes |
    /// | `NOT_FOR_CALLERS` | `once` on a job that was enqueued for runners | no |
    /// | `FAILED` | the closure of `once` failed; the attempt is on record | as its class says |
    /// | `DEAD`, `CANCELLED`, `PARKED` | `once` on a job in that state | no |
    /// | `RESULT_GONE`, `RESULT_UNREADABLE` | the job is done, its output is not to be had | no |
    /// | `LEASE_LOST` | the job was taken from this worker; nothing was written | no |
    /// | `ALREADY_SETTLED` | a second `commit`, or any write of an attempt after it | no |
    /// | `NOTHING_TO_CORRECT` | the job names one to correct that is not in the file; nothing was stored | no |
    /// | `STEP_INVALID`, `STEP_REPEATED`, `STEP_NOT_STORED` | a step that the program makes wrongly; the job ends | no |
    /// | `STEP_UNREADABLE` | a step's stored output does not decode; it was not run again | no |
    /// | `NO_SUCH_JOB`, `WRONG_STATE`, `MUST_RESOLVE` | what a person decides does not apply to the job as it stands | no |
    /// | `REPLAY_REFUSED` | a replay that would reach further than it says | no |
    /// | `NO_SUCH_SCHEDULE` | the file has no schedule of that name | no |
    /// | `OUTPUT_MISMATCH` | `commit` was given a value that is not the job's `Output` | no |
    /// | `INSIDE_TRANSACTION` | a writing call inside a transaction closure; the message names the right one | no |
    /// | `TRANSACTION_ENDED` | a closure ended the transaction it was given; what it wrote is rolled back or its own | no |
    /// | `BUSY` | another connection held the file for the whole busy deadline | yes |
    /// | `STALE_TRANSACTION` | `enqueue_in` in a transaction that read too early; run all of it again | yes |
    /// | `DISK_FULL` | nothing was stored | yes |
    /// | `OUTCOME_UNKNOWN` | COMMIT failed; repeating under the same key is safe | yes |
    /// | `CLOSURE_FAILED` | the closure of `store.write` returned an error | no |
    /// | `INTERRUPTED` | a closure held the writer lock too long | no |
    /// | `OTHER_FILE` | `enqueue_in` was given a transaction of another file | no |
    /// | `NOT_WAL`, `NOT_A_DATABASE`, `NOT_A_FILE`, `DAMAGED`, `UNWRITABLE`, `NEWER_SCHEMA`, `FOREIGN_SCHEMA`, `ENGINE_TOO_OLD` | the file or the engine is not fit | no |
    /// | `DUPLICATE_KIND`, `TOO_MANY_KINDS`, `SCHEDULE_INVALID`, `WEBHOOK_INVALID`, `NOTICE_INVALID` | a runner was described wrongly | no |
    /// | `STOPPED` | the runner has ended | no |
    /// | `IO`, `STORAGE` | anything else of the system or of SQLite | no |
    pub fn code(&self) -> &'static str {
        match self {
            Error::KeyRequired { .. } => "KEY_REQUIRED",
            Error::KeyTooLong { .. } => "KEY_TOO_LONG",
            Error::KeyInvalid { .. } => "KEY_INVALID",
            Error::KindInvalid { .. } => "KIND_INVALID",
            Error::PayloadTooLarge { .. } => "PAYLOAD_TOO_LARGE",
            Error::PayloadInvalid { .. } => "PAYLOAD_INVALID",
            Error::KeyReused { .. } => "KEY_REUSED",
            Error::InProgress { .. } => "IN_PROGRESS",
            Error::NotForCallers { .. } => "NOT_FOR_CALLERS",
            Error::Failed { .. } => "FAILED",
            Error::Dead { .. } => "DEAD",
            Error::Cancelled { .. } => "CANCELLED",
            Error::Parked { .. } => "PARKED",
            Error::ResultGone { .. } => "RESULT_GONE",
            Error::ResultUnreadable { .. } => "RESULT_UNREADABLE",
            Error::LeaseLost { .. } => "LEASE_LOST",
            Error::AlreadySettled { .. } => "ALREADY_SETTLED",
            Error::NothingToCorrect { .. } => "NOTHING_TO_CORRECT",
            Error::StepInvalid { .. } => "STEP_INVALID",
            Error::StepRepeated { .. } => "STEP_REPEATED",
            Error::StepUnreadable { .. } => "STEP_UNREADABLE",
            Error::StepNotStored { .. } => "STEP_NOT_STORED",
            Error::NoSuchJob { .. } => "NO_SUCH_JOB",
            Error::NoSuchSchedule { .. } => "NO_SUCH_SCHEDULE",
            Error::WrongState { .. } => "WRONG_STATE",
            Error::MustResolve => "MUST_RESOLVE",
            Error::ReplayRefused { .. } => "REPLAY_REFUSED",
            Error::StaleTransaction { .. } => "STALE_TRANSACTION",
            Error::OutputMismatch { .. } => "OUTPUT_MISMATCH",
            Error::InsideTransaction { .. } => "INSIDE_TRANSACTION",
            Error::TransactionEnded { .. } => "TRANSACTION_ENDED",
            Error::Busy { .. } => "BUSY",
            Error::DiskFull { .. } => "DISK_FULL",
            Error::OutcomeUnknown { .. } => "OUTCOME_UNKNOWN",
            Error::Interrupted { .. } => "INTERRUPTED",
            Error::Closure { .. } => "CLOSURE_FAILED",
            Error::NotWal { .. } => "NOT_WAL",
            Error::NotADatabase { .. } => "NOT_A_DATABASE",
            Error::OtherFile { .. } => "OTHER_FILE",
            Error::NotAFile { .. } => "NOT_A_FILE",
            Error::Damaged { .. } => "DAMAGED",
            Error::Unwritable { .. } => "UNWRITABLE",
            Error::NewerSchema { .. } => "NEWER_SCHEMA",
            Error::ForeignSchema { .. } => "FOREIGN_SCHEMA",
            Error::EngineTooOld { .. } => "ENGINE_TOO_OLD",
            Error::DuplicateKind { .. } => "DUPLICATE_KIND",
            Error::TooManyKinds { .. } => "TOO_MANY_KINDS",
            Error::ScheduleInvalid { .. } => "SCHEDULE_INVALID",
            Error::WebhookInvalid { .. } => "WEBHOOK_INVALID",
            Error::NoticeInvalid { .. } => "NOTICE_INVALID",
            Error::Stopped { .. } => "STOPPED",
            Error::Io { .. } => "IO",
            Error::Storage { .. } => "STORAGE",
        }
    }

    /// Whether the same call may succeed later without any change by the caller.
    pub fn is_retryable(&self) -> bool {
        match self {
            Error::Failed { retryable, .. } => *retryable,
            Error::InProgress { .. }
            | Error::Busy { .. }
            | Error::StaleTransaction { .. }
            | Error::DiskFull { .. }
            | Error::OutcomeUnknown { .. } => true,
            _ => false,
        }
    }

    /// Kind and key of the job it speaks of, where it speaks of one.
    pub fn job(&self) -> Option<(&str, &str)> {
        match self {
            Error::PayloadTooLarge { kind, key, .. }
            | Error::PayloadInvalid { kind, key, .. }
            | Error::KeyReused { kind, key, .. }
            | Error::InProgress { kind, key, .. }
            | Error::NotForCallers { kind, key, .. }
            | Error::Failed { kind, key, .. }
            | Error::Dead { kind, key, .. }
            | Error::Cancelled { kind, key }
            | Error::Parked { kind, key, .. }
            | Error::ResultGone { kind, key, .. }
            | Error::ResultUnreadable { kind, key, .. }
            | Error::LeaseLost { kind, key }
            | Error::AlreadySettled { kind, key }
            | Error::NothingToCorrect { kind, key, .. }
            | Error::StepInvalid { kind, key, .. }
            | Error::StepRepeated { kind, key, .. }
            | Error::StepUnreadable { kind, key, .. }
            | Error::StepNotStored { kind, key, .. }
            | Error::WrongState { kind, key, .. }
            | Error::OutputMismatch { kind, key } => Some((kind, key)),
            _ => None,
        }
    }

    fn kind(&self) -> Option<&str> {
        match self {
            Error::KeyRequired { kind }
            | Error::KeyTooLong { kind, .. }
            | Error::KeyInvalid { kind }
            | Error::KindInvalid { kind }
            | Error::NoticeInvalid { kind, .. }
            | Error::DuplicateKind { kind } => Some(kind),
            other => other.job().map(|(kind, _)| kind),
        }
    }

    /// State of the job that has the key already, for the errors that speak of one.
    pub fn existing(&self) -> Option<State> {
        match self {
            Error::KeyReused { existing, .. } | Error::NotForCallers { existing, .. } => Some(existing.state),
            _ => None,
        }
    }
}

/// The message with its causes: whoever reads JSON has no other way to them.
fn with_causes(error: &Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text.push_str(": ");
        text.push_str(&error.to_string());
        cause = error.source();
    }
    text
}

impl Serialize for Error {
    fn serialize<S: Serializer>(&self, serializer: S) -> std::result::Result<S::Ok, S::Error> {
        let mut shape = serializer.serialize_struct("Error", 5)?;
        shape.serialize_field("code", self.code())?;
        shape.serialize_field("message", &with_causes(self))?;
        shape.serialize_field("kind", &self.kind())?;
        shape.serialize_field("key", &self.job().map(|(_, key)| key))?;
        shape.serialize_field("retryable", &self.is_retryable())?;
        shape.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_can_be_handed_between_threads_and_is_small() {
        fn send_sync<T: Send + Sync + 'static>() {}
        send_sync::<Error>();
        assert!(size_of::<Error>() <= 120, "{} bytes", size_of::<Error>());
    }

    #[test]
    fn an_error_serialises_in_the_one_shape() {
        let error = Error::LeaseLost { kind: "mail".into(), key: "17".into() };
        let json = serde_json::to_value(&error).unwrap();
        assert_eq!(json["code"], "LEASE_LOST");
        assert_eq!(json["kind"], "mail");
        assert_eq!(json["key"], "17");
        assert_eq!(json["retryable"], false);
        assert_eq!(json["message"], error.to_string());
        assert_eq!(json.as_object().unwrap().len(), 5);
    }
}
