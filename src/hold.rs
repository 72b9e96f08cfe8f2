//! What is held back until further notice, in all processes: pauses, and limits of how many jobs run at once.
//!
//! Both stand in the file, with a counter in the version row that every change raises. Every write transaction reads the
//! counter anyway; who finds it moved reads pauses and limits anew before it claims ([`Holds`]).

mod holds;
mod limit;
mod pause;

use std::fmt;

use serde::Serialize;

pub(crate) use self::holds::{Holds, Room};
pub use self::limit::LimitInfo;
pub(crate) use self::limit::limits_of;
pub use self::pause::PauseInfo;
pub(crate) use self::pause::pauses_of;
use crate::error::{Error, Result};
use crate::job::check_kind;
use crate::pen::Group;
use crate::sql;

/// The queue of kinds of which no program has said one.
pub(crate) const DEFAULT_QUEUE: &str = "default";

/// What a pause or a limit is about: a kind, or a queue, which is a named group of kinds ([`Job::QUEUE`]).
///
/// A kind is meant under its present and all its former names, by whichever of them it is called here. A kind that no
/// runner has handled yet counts to the queue `default`.
///
/// ```
/// use birkez::Scope;
/// assert_eq!(Scope::queue("bank").to_string(), "queue bank");
/// ```
///
/// [`Job::QUEUE`]: crate::Job::QUEUE
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
#[serde(tag = "scope", content = "name", rename_all = "snake_case")]
pub enum Scope {
    /// The kind with this name.
    Kind(String),
    /// All kinds of this queue.
    Queue(String),
}

impl Scope {
    /// The kind with this name.
    pub fn kind(name: impl Into<String>) -> Scope {
        Scope::Kind(name.into())
    }

    /// All kinds of this queue.
    pub fn queue(name: impl Into<String>) -> Scope {
        Scope::Queue(name.into())
    }

    /// As it is stored: which of the two, and its name.
    fn words(&self) -> (&'static str, &str) {
        match self {
            Scope::Kind(name) => ("kind", name),
            Scope::Queue(name) => ("queue", name),
        }
    }

    pub(crate) fn stored(scope: &str, name: String) -> Scope {
        if scope == "queue" { Scope::Queue(name) } else { Scope::Kind(name) }
    }

    fn check(&self) -> Result<()> {
        let (_, name) = self.words();
        // Both have the same bounds.
        check_kind(name).map_err(|_| Error::KindInvalid { kind: name.to_owned() })
    }
}

impl fmt::Display for Scope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (scope, name) = self.words();
        write!(f, "{scope} {name}")
    }
}

/// Says to all processes that pauses or limits have changed, or what decides about them.
pub(crate) fn raise(group: &mut Group<'_>) -> rusqlite::Result<()> {
    group.statement(sql::HOLDS_CHANGED)?.execute([])?;
    group.holds_moved = true;
    Ok(())
}
