//! The kinds of jobs that a history is made of, and what the model is to know of each.

use std::time::Duration;

use birkez::{DeadHead, Job, RetryPolicy};
use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

/// A job as a history enqueues it. Its content is what must not change under its key.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct New {
    pub key: String,
    pub content: u32,
    pub priority: i32,
    pub run_at: Option<DateTime<Utc>>,
    pub line: Option<String>,
    pub version: Option<i64>,
}

/// What a kind's type says, in the model's own words. Times are milliseconds.
#[derive(Debug)]
pub struct Kind {
    pub name: &'static str,
    pub at_most_once: bool,
    /// A dead one lets its line go on.
    pub passed_over: bool,
    pub max_attempts: u32,
    pub base: i64,
    pub factor: i64,
    pub cap: i64,
    pub total: Option<i64>,
}

pub static KINDS: [Kind; 4] = [
    Kind { max_attempts: 3, base: 10_000, factor: 3, cap: 40_000, ..KIND },
    Kind { name: "hasty", max_attempts: 2, passed_over: true, ..KIND },
    Kind { name: "careful", at_most_once: true, max_attempts: 2, base: 5_000, ..KIND },
    Kind { name: "timed", max_attempts: u32::MAX, base: 1_000, factor: 2, cap: 60_000, total: Some(300_000), ..KIND },
];

const KIND: Kind = Kind {
    name: "plain",
    at_most_once: false,
    passed_over: false,
    max_attempts: 1,
    base: 0,
    factor: 1,
    cap: 3_600_000,
    total: None,
};

impl Kind {
    /// The pause after a failed attempt.
    pub fn backoff(&self, attempt: u32) -> i64 {
        let grown = (1..attempt).fold(self.base, |delay, _| (delay * self.factor).min(self.cap));
        grown.min(self.cap)
    }

    fn policy(&self) -> RetryPolicy {
        let millis = |time: i64| Duration::from_millis(time.unsigned_abs());
        let policy = RetryPolicy::default().max_attempts(self.max_attempts).jitter(0.0).factor(self.factor as f64);
        let policy = policy.base(millis(self.base)).cap(millis(self.cap));
        match self.total {
            Some(total) => policy.total(millis(total)),
            None => policy.unlimited_total(),
        }
    }
}

macro_rules! kind {
    ($type:ident, $at:literal, $name:literal, $at_most_once:literal, $dead_head:ident) => {
        #[derive(Serialize, Deserialize)]
        #[serde(transparent)]
        pub struct $type(pub New);

        impl Job for $type {
            const KIND: &'static str = $name;
            const AT_MOST_ONCE: bool = $at_most_once;
            const DEAD_HEAD: DeadHead = DeadHead::$dead_head;
            type Output = u32;
            fn key(&self) -> String {
                self.0.key.clone()
            }
            fn fingerprint(&self) -> Option<serde_json::Value> {
                Some(self.0.content.into())
            }
            fn priority(&self) -> i32 {
                self.0.priority
            }
            fn run_at(&self) -> Option<DateTime<Utc>> {
                self.0.run_at
            }
            fn ordering_key(&self) -> Option<String> {
                self.0.line.clone()
            }
            fn version(&self) -> Option<i64> {
                self.0.version
            }
            fn retry() -> RetryPolicy {
                KINDS[$at].policy()
            }
        }
    };
}

kind!(Plain, 0, "plain", false, Holds);
kind!(Hasty, 1, "hasty", false, PassedOver);
kind!(Careful, 2, "careful", true, Holds);
kind!(Timed, 3, "timed", false, Holds);

/// Calls something with a job's type, chosen by its kind.
macro_rules! with_kind {
    ($kind:expr, $type:ident => $call:expr) => {
        match $kind {
            "plain" => {
                use $crate::kinds::Plain as $type;
                $call
            }
            "hasty" => {
                use $crate::kinds::Hasty as $type;
                $call
            }
            "careful" => {
                use $crate::kinds::Careful as $type;
                $call
            }
            _ => {
                use $crate::kinds::Timed as $type;
                $call
            }
        }
    };
}
pub(crate) use with_kind;
