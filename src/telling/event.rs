//! What happened, in ids.

use chrono::{DateTime, Utc};
use serde::Serialize;
use tracing::Level;

use crate::failure::Class;

/// Something that happened and is committed, told to [`on_event`](crate::StoreBuilder::on_event): with ids, kind and key,
/// never a payload, and never the text of an error.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Event {
    /// When.
    pub at: DateTime<Utc>,
    /// What.
    #[serde(flatten)]
    pub what: Happened,
}

/// The job that an [`Event`] is about.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct EventJob {
    /// Its number.
    pub id: i64,
    /// Its kind.
    pub kind: String,
    /// Its key.
    pub key: String,
}

impl EventJob {
    pub(crate) fn new(id: i64, kind: &str, key: &str) -> EventJob {
        EventJob { id, kind: kind.to_owned(), key: key.to_owned() }
    }
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "event", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Happened {
    /// A job was stored that was not there before. Not told of those that a transaction of the app's own connection
    /// stores: nobody sees it commit.
    Enqueued {
        /// The job.
        job: EventJob,
        /// When it is to run.
        run_at: DateTime<Utc>,
    },
    /// An attempt started.
    Started {
        /// The job.
        job: EventJob,
        /// Number of the attempt, from 1.
        attempt: u32,
    },
    /// A job is done.
    Done {
        /// The job.
        job: EventJob,
        /// Number of the attempt.
        attempt: u32,
    },
    /// An attempt failed, or its process died.
    Failed {
        /// The job.
        job: EventJob,
        /// Number of the attempt.
        attempt: u32,
        /// How.
        class: Class,
        /// When the job runs again by itself, if it does.
        retry_at: Option<DateTime<Utc>>,
    },
    /// A job waits for a person or a signal.
    Parked {
        /// The job.
        job: EventJob,
        /// For what.
        reason: String,
    },
    /// A job gave up, or was given up by a person.
    Dead {
        /// The job.
        job: EventJob,
        /// Why.
        class: Option<Class>,
    },
    /// A job was called off.
    Cancelled {
        /// The job.
        job: EventJob,
    },
    /// A job was taken from a process that is gone.
    LeaseLost {
        /// The job.
        job: EventJob,
        /// Number of the runner that held it.
        runner: i64,
    },
    /// A result came too late, since the job had been taken from this process, or its row cannot be written: nothing was.
    ResultRefused {
        /// The job.
        job: EventJob,
        /// Number of the attempt.
        attempt: u32,
    },
    /// The jobs of an occurrence were made.
    OccurrenceMade {
        /// Name of the schedule.
        schedule: String,
        /// Id of the occurrence.
        occurrence: String,
        /// How many jobs it mapped to.
        jobs: usize,
    },
    /// Occurrences did not run.
    Missed {
        /// Name of the schedule.
        schedule: String,
        /// Id of the oldest.
        first: String,
        /// Id of the newest.
        last: String,
        /// How many; 1,001 stands for any number above 1,000.
        count: u32,
        /// Why, as in [`MissedInfo`](crate::MissedInfo).
        reason: String,
    },
    /// A person did something to jobs ([`Store::deeds`](crate::Store::deeds)).
    Deed {
        /// Its number in the record.
        id: i64,
        /// What.
        verb: String,
        /// Who.
        who: String,
    },
    /// A runner of this store started.
    RunnerStarted {
        /// Its number.
        runner: i64,
    },
    /// A runner of this store stopped.
    RunnerStopped {
        /// Its number.
        runner: i64,
    },
    /// A runner cannot write the file. Told once, when that begins.
    FaultBegun {
        /// The code of the error ([`Error::code`](crate::Error::code)).
        code: String,
    },
    /// It can again.
    FaultEnded,
    /// The callback was slower than what happened: so many events before this one were not told.
    Skipped {
        /// How many.
        count: u64,
    },
}

impl Happened {
    /// What it is called.
    pub fn name(&self) -> &'static str {
        match self {
            Happened::Enqueued { .. } => "enqueued",
            Happened::Started { .. } => "started",
            Happened::Done { .. } => "done",
            Happened::Failed { .. } => "failed",
            Happened::Parked { .. } => "parked",
            Happened::Dead { .. } => "dead",
            Happened::Cancelled { .. } => "cancelled",
            Happened::LeaseLost { .. } => "lease_lost",
            Happened::ResultRefused { .. } => "result_refused",
            Happened::OccurrenceMade { .. } => "occurrence_made",
            Happened::Missed { .. } => "missed",
            Happened::Deed { .. } => "deed",
            Happened::RunnerStarted { .. } => "runner_started",
            Happened::RunnerStopped { .. } => "runner_stopped",
            Happened::FaultBegun { .. } => "fault_begun",
            Happened::FaultEnded => "fault_ended",
            Happened::Skipped { .. } => "skipped",
        }
    }

    /// The job it is about.
    pub fn job(&self) -> Option<&EventJob> {
        match self {
            Happened::Enqueued { job, .. }
            | Happened::Started { job, .. }
            | Happened::Done { job, .. }
            | Happened::Failed { job, .. }
            | Happened::Parked { job, .. }
            | Happened::Dead { job, .. }
            | Happened::Cancelled { job }
            | Happened::LeaseLost { job, .. }
            | Happened::ResultRefused { job, .. } => Some(job),
            _ => None,
        }
    }

    fn schedule(&self) -> Option<&str> {
        match self {
            Happened::OccurrenceMade { schedule, .. } | Happened::Missed { schedule, .. } => Some(schedule),
            _ => None,
        }
    }

    fn attempt(&self) -> Option<u32> {
        match self {
            Happened::Started { attempt, .. }
            | Happened::Done { attempt, .. }
            | Happened::Failed { attempt, .. }
            | Happened::ResultRefused { attempt, .. } => Some(*attempt),
            _ => None,
        }
    }

    fn class(&self) -> Option<&'static str> {
        match self {
            Happened::Failed { class, .. } | Happened::Dead { class: Some(class), .. } => Some(class.as_str()),
            _ => None,
        }
    }

    /// How loud it is in a log.
    pub(super) fn level(&self) -> Level {
        match self {
            Happened::Dead { .. } | Happened::Missed { .. } | Happened::LeaseLost { .. } => Level::WARN,
            Happened::Parked { .. }
            | Happened::Deed { .. }
            | Happened::RunnerStarted { .. }
            | Happened::RunnerStopped { .. } => Level::INFO,
            _ => Level::DEBUG,
        }
    }

    /// As an event of `tracing`.
    pub(super) fn log(&self) {
        let (name, level) = (self.name(), self.level());
        let (job, kind, key) = self
            .job()
            .map(|job| (job.id, &*job.kind, &*job.key))
            .map_or((None, None, None), |job| (Some(job.0), Some(job.1), Some(job.2)));
        let (attempt, class, schedule) = (self.attempt(), self.class(), self.schedule());
        if level == Level::WARN {
            tracing::warn!(event = name, job, kind, key, attempt, class, schedule);
        } else if level == Level::INFO {
            tracing::info!(event = name, job, kind, key, attempt, class, schedule);
        } else {
            tracing::debug!(event = name, job, kind, key, attempt, class, schedule);
        }
    }
}
