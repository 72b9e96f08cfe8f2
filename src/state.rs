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

    pub(crate) fn stored(number: i64, leased: bool) -> State {
        match number {
            0 if leased => State::Running,
            0 => State::Waiting,
            1 => State::Parked,
            2 => State::Done,
            3 => State::Dead,
            _ => State::Cancelled,
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A job that exists, in one line.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct JobRef {
    /// Its number in the file.
    pub id: i64,
    /// Its state when it was met.
    pub state: State,
}
