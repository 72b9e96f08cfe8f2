//! The reasons that there are, each with a stable code and a phrase that follows the job's name.

use std::fmt;

use chrono::{DateTime, Utc};
use rusqlite::Row;
use serde::Serialize;

use crate::advice::Advice;
use crate::enqueue::text;
use crate::failure::Class;
use crate::hold::{PauseInfo, Scope};
use crate::job::{Failure, instant};
use crate::state::JobName;

/// What a person did, in short.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct DeedRef {
    /// What was done, such as `reschedule`.
    pub verb: String,
    /// Who.
    pub who: String,
    /// When.
    pub at: DateTime<Utc>,
    /// Why.
    pub why: Option<String>,
}

impl DeedRef {
    pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<DeedRef> {
        let word = |column| Ok::<_, rusqlite::Error>(text(row, column)?.unwrap_or_default());
        Ok(DeedRef { verb: word(0)?, who: word(1)?, at: instant(row.get(2)?), why: text(row, 3)? })
    }
}

impl fmt::Display for DeedRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.who)?;
        because(f, self.why.as_deref())
    }
}

/// A process that runs a job.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Process {
    /// Name of its machine.
    pub host: String,
    /// Its number there.
    pub pid: i64,
    /// Its program.
    pub program: String,
    /// It has died, and nobody has taken back its jobs yet.
    pub is_gone: bool,
}

impl fmt::Display for Process {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} (process {} on {})", self.program, self.pid, self.host)
    }
}

/// What becomes of a job whose process has died in its middle.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum AfterCrash {
    /// It runs again.
    RunsAgain,
    /// It must not be repeated, and waits for a person's word.
    Parked,
    /// It was its last attempt.
    Dead,
    /// It was asked to stop.
    Cancelled,
}

impl fmt::Display for AfterCrash {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            AfterCrash::RunsAgain => "it runs again",
            AfterCrash::Parked => "it is parked for a person, since it must not be repeated,",
            AfterCrash::Dead => "it is dead",
            AfterCrash::Cancelled => "it is called off",
        })
    }
}

/// Why a job is where it is.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "code", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Reason {
    /// It is done.
    Done {
        /// When.
        at: Option<DateTime<Utc>>,
    },
    /// It gave up.
    Dead {
        /// When.
        at: Option<DateTime<Utc>>,
        /// Its last failure.
        failure: Option<Failure>,
        /// What its kind says is to be done before a replay.
        advice: Option<Advice>,
        /// When it was handed to support.
        handed: Option<DateTime<Utc>>,
    },
    /// It was called off.
    Cancelled {
        /// When.
        at: Option<DateTime<Utc>>,
        /// By what, if it was not a person, such as `superseded`.
        failure: Option<Failure>,
        /// The last that a person did to it.
        by: Option<DeedRef>,
    },
    /// It waits for a person or a signal.
    Parked {
        /// For what.
        reason: String,
        /// Since when: the end of its last attempt.
        since: Option<DateTime<Utc>>,
        /// Its last failure.
        failure: Option<Failure>,
        /// When it was handed to support.
        handed: Option<DateTime<Utc>>,
    },
    /// A worker has it.
    Running {
        /// Since when.
        since: DateTime<Utc>,
        /// Number of the attempt, from 1.
        attempt: u32,
        /// Where.
        process: Process,
        /// It is asked to stop.
        is_stopping: bool,
        /// What becomes of it if its process is gone.
        then: AfterCrash,
    },
    /// It belongs to the callers of [`once`](crate::Store::once): it runs when one of them calls again.
    ForCallers {
        /// How it failed last.
        failure: Option<Failure>,
    },
    /// Another job is before it in the line of its ordering key.
    Behind {
        /// The head of the line.
        job: i64,
        /// Its name.
        name: JobName,
        /// The ordering key.
        ordering_key: String,
        /// Why the head is where it is.
        because: Box<Reason>,
    },
    /// It is to run later.
    Scheduled {
        /// When.
        at: DateTime<Utc>,
        /// Who has set this time, if it was not its sender.
        by: Option<DeedRef>,
    },
    /// It is tried again after a failure.
    Retry {
        /// When.
        at: DateTime<Utc>,
        /// Number of the next attempt, from 1.
        attempt: u32,
        /// How many its kind allows, as far as a program has said so; `None` also where it allows any number.
        of: Option<u32>,
        /// The failure.
        failure: Failure,
    },
    /// Its kind or its queue is paused.
    Paused {
        /// Which of them.
        #[serde(flatten)]
        scope: Scope,
        /// Since when.
        since: DateTime<Utc>,
        /// By whom.
        by: String,
        /// Why.
        why: Option<String>,
    },
    /// No process handles its kind.
    NoHandler {
        /// The kind.
        kind: String,
        /// When the last process that did has stopped; `None` if none has been seen.
        since: Option<DateTime<Utc>>,
    },
    /// As many jobs run as are allowed to.
    LimitReached {
        /// Of which kind or queue.
        #[serde(flatten)]
        scope: Scope,
        /// How many are allowed.
        most: u32,
        /// Those that run, by their numbers.
        running: Vec<i64>,
    },
    /// A process died while it held the job, so it is tried by itself.
    Suspect {
        /// When that process died, or was found dead.
        since: DateTime<Utc>,
    },
    /// Nothing holds it: it runs as soon as a worker is free.
    Ready {
        /// Since when. `None` for a plain INSERT that no runner has looked at yet.
        since: Option<DateTime<Utc>>,
        /// How many processes handle its kind.
        processes: usize,
    },
}

impl Reason {
    pub(super) fn paused(pause: PauseInfo) -> Reason {
        Reason::Paused { scope: pause.scope, since: pause.at, by: pause.who, why: pause.why }
    }

    /// The stable code, for programs to compare; the same as in its JSON.
    pub fn code(&self) -> &'static str {
        match self {
            Reason::Done { .. } => "done",
            Reason::Dead { .. } => "dead",
            Reason::Cancelled { .. } => "cancelled",
            Reason::Parked { .. } => "parked",
            Reason::Running { .. } => "running",
            Reason::ForCallers { .. } => "for_callers",
            Reason::Behind { .. } => "behind",
            Reason::Scheduled { .. } => "scheduled",
            Reason::Retry { .. } => "retry",
            Reason::Paused { .. } => "paused",
            Reason::NoHandler { .. } => "no_handler",
            Reason::LimitReached { .. } => "limit_reached",
            Reason::Suspect { .. } => "suspect",
            Reason::Ready { .. } => "ready",
        }
    }
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Done { at } => write!(f, "is done{}", since(*at)),
            Reason::Dead { at, failure, advice, handed } => {
                write!(f, "is dead{}{}", since(*at), said(failure.as_ref()))?;
                advice.as_ref().map_or(Ok(()), |advice| write!(f, " ({advice})"))?;
                handed.map_or(Ok(()), |at| write!(f, ", handed to support at {}", time(at)))
            }
            Reason::Cancelled { at, failure, by } => {
                write!(f, "was called off{}{}", on(*at), said(failure.as_ref()))?;
                by.as_ref().map_or(Ok(()), |by| write!(f, " by {by}"))
            }
            Reason::Parked { reason, since: from, failure, handed } => {
                parked(f, reason, *from, failure.as_ref())?;
                handed.map_or(Ok(()), |at| write!(f, ", handed to support at {}", time(at)))
            }
            Reason::Running { since, attempt, process, is_stopping, then } => {
                if process.is_gone {
                    let since = time(*since);
                    return write!(
                        f,
                        "was running since {since} in {process}, which is gone; {then} once a runner has found that out"
                    );
                }
                write!(f, "runs since {} in {process}, attempt {attempt}", time(*since))?;
                if *is_stopping { f.write_str(", and is asked to stop") } else { Ok(()) }
            }
            Reason::ForCallers { failure } => {
                write!(f, "belongs to the callers of once: it runs when one calls again{}", after(failure.as_ref()))
            }
            Reason::Behind { job, name, ordering_key, because } => {
                write!(f, "waits for its turn in the line {ordering_key} behind job {job} ({name}), which {because}")
            }
            other => other.not_now(f),
        }
    }
}

impl Reason {
    /// Of those that wait by themselves.
    fn not_now(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Scheduled { at, by } => {
                write!(f, "is scheduled for {}", time(*at))?;
                by.as_ref().map_or(Ok(()), |by| write!(f, ", set by {by}"))
            }
            Reason::Retry { at, attempt, of, failure } => {
                write!(f, "is tried again at {}, attempt {attempt}", time(*at))?;
                of.map_or(Ok(()), |of| write!(f, " of {of}"))?;
                f.write_str(&after(Some(failure)))
            }
            Reason::Paused { scope, since, by, why } => {
                write!(f, "is held since {scope} was paused at {} by {by}", time(*since))?;
                because(f, why.as_deref())
            }
            Reason::NoHandler { kind, since: Some(since) } => {
                write!(f, "waits for a program that handles {kind}: none does since {}", time(*since))
            }
            Reason::NoHandler { kind, since: None } => {
                write!(f, "waits for a program that handles {kind}: none has been seen")
            }
            Reason::LimitReached { scope, most: 0, .. } => {
                write!(f, "is held by the limit of {scope}, which lets none run")
            }
            Reason::LimitReached { scope, most, running } => {
                let jobs: Vec<String> = running.iter().take(8).map(ToString::to_string).collect();
                let more = if running.len() > jobs.len() { ", …" } else { "" };
                let (n, jobs) = (running.len(), jobs.join(", "));
                write!(f, "waits for the limit of {scope}: {n} of {most} run (job {jobs}{more})")
            }
            Reason::Suspect { since } => {
                write!(f, "was held by a process that died at {}, and is tried by itself", time(*since))
            }
            Reason::Ready { since, processes } => {
                let from = since.map_or_else(String::new, |at| format!(" since {}", time(at)));
                let place = match processes {
                    1 => "the process that handles".to_owned(),
                    n => format!("one of the {n} processes that handle"),
                };
                write!(f, "is ready{from} and starts as soon as a worker is free in {place} it")
            }
            _ => Ok(()),
        }
    }
}

fn parked(
    f: &mut fmt::Formatter<'_>,
    reason: &str,
    from: Option<DateTime<Utc>>,
    failure: Option<&Failure>,
) -> fmt::Result {
    if reason == Class::UnknownOutcome.as_str() {
        write!(f, "is parked{}: it broke off in what must not be repeated, and a person has to resolve it", since(from))
    } else {
        let text = failure.map_or_else(String::new, |failure| format!(" ({})", failure.text));
        write!(f, "is parked{} for {reason}{text}", since(from))
    }
}

fn since(at: Option<DateTime<Utc>>) -> String {
    at.map_or_else(String::new, |at| format!(" since {}", time(at)))
}

fn on(at: Option<DateTime<Utc>>) -> String {
    at.map_or_else(String::new, |at| format!(" at {}", time(at)))
}

fn said(failure: Option<&Failure>) -> String {
    failure.map_or_else(String::new, |failure| format!(": {}: {}", class(failure.class), failure.text))
}

fn after(failure: Option<&Failure>) -> String {
    failure.map_or_else(String::new, |failure| format!(", after {}: {}", class(failure.class), failure.text))
}

/// Nothing in a sentence says that something is not known.
fn class(class: Class) -> &'static str {
    if class == Class::UnknownOutcome { "broken off" } else { class.as_str() }
}

pub(crate) fn because(f: &mut fmt::Formatter<'_>, why: Option<&str>) -> fmt::Result {
    why.map_or(Ok(()), |why| write!(f, " because {why}"))
}

/// A time for people, in UTC.
pub(crate) fn time(at: DateTime<Utc>) -> impl fmt::Display {
    at.format("%Y-%m-%d %H:%M:%S UTC")
}
