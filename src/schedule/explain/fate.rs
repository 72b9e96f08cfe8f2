//! What can have become of an occurrence, each with a stable code and a phrase.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::Serialize;

use crate::explain::{DeedRef, time};
use crate::state::JobRef;

/// What became of one occurrence of a schedule. Its `Display` is one sentence.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct OccurrenceFate {
    /// The schedule.
    pub schedule: String,
    /// The occurrence's id; `None` for an answer about the day as a whole.
    pub occurrence: Option<String>,
    /// When it was due.
    pub due_at: Option<DateTime<Utc>>,
    /// What became of it, or the first cause why nothing did.
    pub fate: Fate,
    /// What else is to be known of it, such as the rule that then applied.
    pub others: Vec<Fate>,
}

impl OccurrenceFate {
    pub(super) fn of_day(schedule: String, fate: Fate) -> OccurrenceFate {
        OccurrenceFate { schedule, occurrence: None, due_at: None, fate, others: Vec::new() }
    }
}

impl fmt::Display for OccurrenceFate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.schedule)?;
        self.occurrence.as_ref().map_or(Ok(()), |id| write!(f, " {id}"))?;
        write!(f, " {}", self.fate)?;
        self.others.iter().try_for_each(|other| write!(f, "; it {other}"))
    }
}

/// What became of an occurrence.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[serde(tag = "code", rename_all = "snake_case")]
#[non_exhaustive]
pub enum Fate {
    /// It ran: its jobs were made.
    Ran {
        /// When.
        at: DateTime<Utc>,
        /// Why: `due`, `asked` or `backfill`.
        cause: String,
        /// How late, in milliseconds, if it was later than the schedule's grace.
        late_ms: Option<i64>,
        /// How many jobs it had.
        of: u32,
        /// Those of them that are still kept, and where they are now.
        jobs: Vec<JobRef>,
        /// Kind and key of those that exist with other content.
        conflicts: Vec<String>,
    },
    /// A person has called it done; it did not run.
    MarkedDone {
        /// When.
        at: DateTime<Utc>,
        /// Who.
        by: Option<DeedRef>,
    },
    /// No runner had the schedule then.
    NobodyThere {
        /// When the last one that had it stopped, or was last heard of. `None`: none had been seen by then.
        since: Option<DateTime<Utc>>,
        /// When the next one came. `None`: none has yet.
        until: Option<DateTime<Utc>>,
    },
    /// A runner was there, and found it only later: the machine slept, or the process had no time.
    Asleep {
        /// When it was found.
        found: DateTime<Utc>,
    },
    /// The schedule is, or was then, paused.
    Paused {
        /// Since when.
        since: Option<DateTime<Utc>>,
        /// By whom.
        by: Option<DeedRef>,
        /// It came due within a pause that is over: it does not run any more.
        is_over: bool,
    },
    /// A newer one ran in its place ([`CatchUp::Latest`](crate::calendar::CatchUp::Latest)).
    Newer {
        /// That one.
        instead: Option<String>,
    },
    /// The schedule skips what it misses.
    Skipped {
        /// When that was recorded.
        at: DateTime<Utc>,
    },
    /// More were missed than the schedule makes up for.
    OverMax {
        /// When that was recorded.
        at: DateTime<Utc>,
    },
    /// It was older than the schedule's longest age.
    TooOld {
        /// When that was recorded.
        at: DateTime<Utc>,
    },
    /// The run before it was unfinished.
    Overlap {
        /// That run.
        before: Option<String>,
        /// Its jobs, and where they are now.
        jobs: Vec<JobRef>,
    },
    /// The schedule was given another calendar before it ran.
    Changed {
        /// When.
        at: DateTime<Utc>,
    },
    /// It waits for the run before it.
    Unfinished {
        /// That run.
        before: String,
        /// A job of it that is not finished.
        job: JobRef,
    },
    /// Its jobs cannot be made.
    Failing {
        /// Why.
        text: String,
        /// How often in a row.
        failures: u32,
        /// When it is tried again.
        try_at: Option<DateTime<Utc>>,
    },
    /// Its program started without registering the schedule.
    Orphaned {
        /// When that was seen.
        since: DateTime<Utc>,
    },
    /// The schedule's definition cannot be understood, such as a zone that this machine does not have.
    Broken {
        /// Why.
        text: String,
    },
    /// A person has asked for it, and nobody has carried that out yet.
    Asked {
        /// The request.
        request: i64,
        /// When.
        at: DateTime<Utc>,
        /// Why it failed last.
        error: Option<String>,
    },
    /// The clock was set back, and nothing is caught up until it is believed.
    ClockBehind {
        /// In words.
        text: String,
    },
    /// The schedule did not exist yet.
    BeforeItsTime {
        /// The mark that it began with.
        began: String,
    },
    /// The mark has passed it without a run: its calendar, its zone or the clock was another then.
    Passed {
        /// The mark.
        mark: String,
    },
    /// Its time has not come.
    NotYet {
        /// When it is due.
        at: DateTime<Utc>,
    },
    /// It is due, and a runner that has the schedule is about to make it.
    AboutToRun,
    /// It is due for longer than a runner that has the schedule needs to find it.
    Overdue {
        /// Since when.
        since: DateTime<Utc>,
    },
    /// The schedule is not due that day.
    NotDue {
        /// When it is due next; `None` if never, or while it is paused or orphaned.
        next: Option<DateTime<Utc>>,
    },
}

impl Fate {
    /// The stable code, for programs to compare; the same as in its JSON.
    pub fn code(&self) -> &'static str {
        match self {
            Fate::Ran { .. } => "ran",
            Fate::MarkedDone { .. } => "marked_done",
            Fate::NobodyThere { .. } => "nobody_there",
            Fate::Asleep { .. } => "asleep",
            Fate::Paused { .. } => "paused",
            Fate::Newer { .. } => "newer",
            Fate::Skipped { .. } => "skipped",
            Fate::OverMax { .. } => "over_max",
            Fate::TooOld { .. } => "too_old",
            Fate::Overlap { .. } => "overlap",
            Fate::Changed { .. } => "changed",
            Fate::Unfinished { .. } => "unfinished",
            Fate::Failing { .. } => "failing",
            Fate::Orphaned { .. } => "orphaned",
            Fate::Broken { .. } => "broken",
            Fate::Asked { .. } => "asked",
            Fate::ClockBehind { .. } => "clock_behind",
            Fate::BeforeItsTime { .. } => "before_its_time",
            Fate::Passed { .. } => "passed",
            Fate::NotYet { .. } => "not_yet",
            Fate::AboutToRun => "about_to_run",
            Fate::Overdue { .. } => "overdue",
            Fate::NotDue { .. } => "not_due",
        }
    }
}

impl fmt::Display for Fate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::Ran { .. } => self.ran(f),
            Fate::MarkedDone { at, by } => {
                write!(f, "was marked as done at {}", time(*at))?;
                by.as_ref().map_or(Ok(()), |by| write!(f, " by {by}"))
            }
            Fate::NobodyThere { .. } => self.nobody(f),
            Fate::Asleep { found } => {
                write!(
                    f,
                    "was found only at {}, though a runner was there: the machine slept or was busy",
                    time(*found)
                )
            }
            Fate::Paused { since, by, is_over } => {
                let (words, from) = match is_over {
                    true => ("did not run, as the schedule was paused", "from"),
                    false => ("is held by the schedule's pause", "since"),
                };
                f.write_str(words)?;
                since.map_or(Ok(()), |since| write!(f, " {from} {}", time(since)))?;
                by.as_ref().map_or(Ok(()), |by| write!(f, " by {by}"))
            }
            Fate::Newer { instead } => {
                f.write_str("did not run, since a newer one ran in its place")?;
                instead.as_ref().map_or(Ok(()), |instead| write!(f, ": {instead}"))
            }
            Fate::Skipped { at } => write!(f, "did not run, since missed ones are skipped (recorded at {})", time(*at)),
            Fate::OverMax { at } => {
                write!(f, "did not run, since more were missed than are made up for (recorded at {})", time(*at))
            }
            Fate::TooOld { at } => write!(f, "did not run, since it was too old when it was found at {}", time(*at)),
            Fate::Overlap { before, jobs } => {
                f.write_str("did not run, since the run before it was unfinished")?;
                before.as_ref().map_or(Ok(()), |before| write!(f, ": {before}"))?;
                list(f, jobs)
            }
            Fate::Changed { at } => {
                write!(f, "did not run, since the schedule was given another calendar at {}", time(*at))
            }
            other => other.waits(f),
        }
    }
}

impl Fate {
    fn ran(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fate::Ran { at, cause, late_ms, of, jobs, conflicts } = self else { return Ok(()) };
        let why = match cause.as_str() {
            "asked" => ", since somebody asked for it",
            "backfill" => ", back-filled",
            _ => "",
        };
        write!(f, "ran at {}{why}", time(*at))?;
        late_ms.map_or(Ok(()), |late| write!(f, ", {} late", Span(late)))?;
        list(f, jobs)?;
        let gone = (*of as usize).saturating_sub(jobs.len() + conflicts.len());
        match gone {
            0 if *of == 0 => f.write_str(", and had no job to make")?,
            0 => {}
            1 => f.write_str(", and one job that is not kept any more")?,
            n => write!(f, ", and {n} jobs that are not kept any more")?,
        }
        if conflicts.is_empty() {
            return Ok(());
        }
        write!(f, ", and met keys with other content: {}", conflicts.join(", "))
    }

    fn nobody(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Fate::NobodyThere { since, until } = self else { return Ok(()) };
        match (since.map(time), until.map(time)) {
            (Some(since), Some(until)) => write!(f, "met no runner: none had it between {since} and {until}"),
            (Some(since), None) => write!(f, "meets no runner: none has it since {since}"),
            (None, Some(until)) => write!(f, "met no runner: none had it before {until}"),
            (None, None) => f.write_str("meets no runner: none has had it yet"),
        }
    }

    /// What has yet to run, or never was to.
    fn waits(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fate::Unfinished { before, job } => {
                write!(f, "waits for the run {before}, whose job {} is {}", job.id, job.state)
            }
            Fate::Failing { text, failures, try_at } => {
                write!(f, "cannot make its jobs ({failures} tries in a row have failed: {text})")?;
                try_at.map_or(Ok(()), |at| write!(f, ", and is tried again at {}", time(at)))
            }
            Fate::Orphaned { since } => {
                write!(f, "has no function any more: its program started without the schedule at {}", time(*since))
            }
            Fate::Broken { text } => write!(f, "cannot be understood: {text}"),
            Fate::Asked { request, at, error } => {
                write!(f, "was asked for at {} (request {request}) and waits for a runner", time(*at))?;
                error.as_ref().map_or(Ok(()), |error| write!(f, "; it failed last: {error}"))
            }
            Fate::ClockBehind { text } => write!(f, "waits: {text}"),
            Fate::BeforeItsTime { began } => write!(f, "is from before the schedule, which began at {began}"),
            Fate::Passed { mark } => write!(
                f,
                "did not run: the schedule's mark passed it ({mark}) while its calendar, its zone or the clock was another"
            ),
            Fate::NotYet { at } => write!(f, "is due at {}", time(*at)),
            Fate::AboutToRun => f.write_str("is due and about to run"),
            Fate::Overdue { since } => write!(
                f,
                "is due since {}, and the runner that has the schedule has not made it: the machine sleeps, another mapping \
                 takes long, or the schedule was given another definition in the file than the runner has",
                time(*since)
            ),
            Fate::NotDue { next: Some(next) } => write!(f, "is not due that day; next at {}", time(*next)),
            _ => f.write_str("is not due that day, nor later as it stands"),
        }
    }
}

fn list(f: &mut fmt::Formatter<'_>, jobs: &[JobRef]) -> fmt::Result {
    for (at, job) in jobs.iter().take(8).enumerate() {
        write!(f, "{}{} ({})", if at == 0 { ": job " } else { ", " }, job.id, job.state)?;
    }
    if jobs.len() > 8 { write!(f, " and {} more", jobs.len() - 8) } else { Ok(()) }
}

/// A length of time in milliseconds, for people.
struct Span(i64);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let minutes = self.0 / 60_000;
        match (minutes / 60, minutes % 60) {
            (0, minutes) => write!(f, "{minutes} min"),
            (hours, minutes) => write!(f, "{hours} h {minutes} min"),
        }
    }
}
