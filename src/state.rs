//! The six states of a job.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Where a job is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum State {
    /// It has a time to run: now, later, or after a failure.
    Waiting,
    /// A worker holds its lease.
    Running,
    /// It waits for a person or a signal.
    Parked,
    /// It was completed.
    Done,
    /// It gave up.
    Dead,
    /// It was called off.
    Cancelled,
}

impl State {
    /// The word in the file's view and in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            State::Waiting => "waiting",
            State::Running => "running",
            State::Parked => "parked",
            State::Done => "done",
            State::Dead => "dead",
            State::Cancelled => "cancelled",
        }
    }

    /// The number that it is stored as; running has none in the table of jobs, and this one in the record of deeds.
    pub(crate) fn number(self) -> i64 {
        match self {
            State::Waiting => 0,
            State::Parked => 1,
            State::Done => 2,
            State::Dead => 3,
            State::Cancelled => 4,
            State::Running => 5,
        }
    }

    pub(crate) fn stored(number: i64, leased: bool) -> State {
        match number {
            0 if leased => State::Running,
            0 => State::Waiting,
            1 => State::Parked,
            2 => State::Done,
            3 => State::Dead,
            5 => State::Running,
            _ => State::Cancelled,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A job by its name.
#[derive(Clone, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct JobName {
    /// Its kind.
    pub kind: String,
    /// Its key.
    pub key: String,
}

impl JobName {
    /// The job of `kind` with this key.
    ///
    /// ```
    /// use birkez::JobName;
    /// assert_eq!(JobName::new("mail", "invoice-17").to_string(), "mail invoice-17");
    /// ```
    pub fn new(kind: impl Into<String>, key: impl Into<String>) -> JobName {
        JobName { kind: kind.into(), key: key.into() }
    }
}

impl fmt::Display for JobName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.kind, self.key)
    }
}

/// A job that exists, in one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobRef {
    /// Its number in the file; 0 for one that is stored in a transaction that is still open.
    pub id: i64,
    /// Its state when it was met.
    pub state: State,
}
