//! Why a job is where it is: one sentence, and a structure for programs.
//!
//! Everything is read from the file in one view, by numbers and names; nothing is kept for it. So any process can explain,
//! one that runs nothing among them.

mod reason;
mod words;

use std::fmt;
use std::path::Path;

use chrono::{DateTime, Utc};
use rusqlite::{Connection, OptionalExtension, Row};
use serde::Serialize;

pub(crate) use self::reason::time;
pub use self::reason::{AfterCrash, DeedRef, Process, Reason};
pub use self::words::Words;
use crate::act::{Deed, Task, Which};
use crate::advice::Sayings;
use crate::enqueue::text;
use crate::error::{Error, Result};
use crate::hold::{limits_of, pauses_of};
use crate::job::instant;
use crate::owner::{Sign, lives};
use crate::pen::Act;
use crate::presence::{Absence, Subject};
use crate::sql;
use crate::state::{JobName, State};
use crate::store::{JobInfo, Store, read_job};

const HAND: Act = Act { name: "hand_to_support", instead: "hand_to_support after the transaction" };

/// One job, by its number or its name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum OneJob {
    /// The job with this number.
    Id(i64),
    /// The job with this kind and key.
    Name(JobName),
}

impl From<i64> for OneJob {
    fn from(id: i64) -> OneJob {
        OneJob::Id(id)
    }
}

impl From<JobName> for OneJob {
    fn from(name: JobName) -> OneJob {
        OneJob::Name(name)
    }
}

impl From<&JobInfo> for OneJob {
    fn from(job: &JobInfo) -> OneJob {
        OneJob::Id(job.id)
    }
}

impl fmt::Display for OneJob {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            OneJob::Id(id) => write!(f, "job {id}"),
            OneJob::Name(name) => name.fmt(f),
        }
    }
}

/// Why a job is where it is. Its `Display` is one sentence.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Explanation {
    /// The job as it stood.
    pub job: JobInfo,
    /// The reason that matters: what has to change first.
    pub reason: Reason,
    /// What would hold the job too, if that were not.
    pub others: Vec<Reason>,
}

impl fmt::Display for Explanation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "job {} ({} {}) {}", self.job.id, self.job.kind, self.job.key, self.reason)?;
        for (at, other) in self.others.iter().enumerate() {
            write!(f, "{}{other}", if at == 0 { "; besides, it " } else { ", and it " })?;
        }
        Ok(())
    }
}

impl Store {
    /// Says why a job is where it is. It costs a few reads by number, however many jobs the file holds.
    ///
    /// ```
    /// # use birkez::{Job, JobName, Reason};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { to: String }
    /// # impl Job for Mail {
    /// #     const KIND: &'static str = "mail";
    /// #     type Output = ();
    /// #     fn key(&self) -> String { self.to.clone() }
    /// # }
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// let mail = store.enqueue(&Mail { to: "a@b.c".into() })?;
    /// let why = store.explain(mail.id)?;
    /// assert_eq!(why.to_string(), "job 1 (mail a@b.c) waits for a program that handles mail: none has been seen");
    /// assert_eq!(why.reason.code(), "no_handler");
    /// assert_eq!(store.explain(JobName::new("mail", "a@b.c"))?.reason, why.reason);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchJob`]; those of reading the file.
    pub fn explain(&self, job: impl Into<OneJob>) -> Result<Explanation> {
        let which = job.into();
        let now = self.inner.clock.wall();
        let explained = self.read("explaining a job", |tx| {
            let job = match &which {
                OneJob::Id(id) => tx.prepare_cached(&sql::job_by_id())?.query_row([id], read_job).optional()?,
                OneJob::Name(JobName { kind, key }) => {
                    tx.prepare_cached(&sql::job_by_name())?.query_row([kind, key], read_job).optional()?
                }
            };
            job.map(|job| View { file: tx, database: self.path(), now }.explain(job)).transpose()
        })?;
        explained.ok_or_else(|| Error::NoSuchJob { job: which.to_string() })
    }

    /// Notes that jobs which need a person were handed to support, so that their users are told so ([`Words`]); answers how
    /// many. It is forgotten when the job goes on. A filter passes over jobs that are neither dead nor parked, and those
    /// that were handed over before.
    ///
    /// ```
    /// # use birkez::{Deed, Filter};
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// store.hand_to_support(Filter::dead().kind("transfer"), Deed::by("the app").because("ticket 4711"))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// For a job that is named: [`Error::NoSuchJob`]; [`Error::WrongState`] if it is neither dead nor parked, or was handed
    /// over before. Those of writing the file.
    pub fn hand_to_support(&self, which: impl Into<Which>, deed: impl Into<Deed>) -> Result<usize> {
        let task = Task { act: HAND, verb: "hand to support", which: which.into(), deed: deed.into(), detail: None };
        let handed = self.carry_out(task, |group, job| {
            let row = rusqlite::params![job.id, group.now];
            Ok((group.statement(sql::HAND_TO_SUPPORT)?.execute(row)? > 0).then_some(()))
        })?;
        Ok(handed.len())
    }
}

/// One look at the file.
struct View<'a> {
    file: &'a Connection,
    database: &'a Path,
    now: i64,
}

impl View<'_> {
    fn explain(&self, job: JobInfo) -> rusqlite::Result<Explanation> {
        let mut others = self.reasons(&job)?;
        let reason = others.remove(0);
        Ok(Explanation { job, reason, others })
    }

    /// At least one, the one that matters first.
    fn reasons(&self, job: &JobInfo) -> rusqlite::Result<Vec<Reason>> {
        let failure = job.last_failure.clone();
        Ok(match job.state {
            State::Done => vec![Reason::Done { at: job.finished_at }],
            State::Dead => {
                let advice = self.sayings(&job.kind)?.advice(failure.as_ref().map(|failure| failure.class));
                vec![Reason::Dead { at: job.finished_at, failure, advice, handed: job.handed_to_support }]
            }
            State::Cancelled => {
                let at = job.finished_at;
                let by = self.deed(job)?.filter(|deed| matches!(deed.verb.as_str(), "cancel" | "discard"));
                // What a person has called off failed before, and not by that.
                let failure = failure.filter(|_| by.is_none());
                vec![Reason::Cancelled { at, failure, by }]
            }
            State::Parked => {
                let since = self.last_attempt(job)?;
                let reason = job.parked_for.clone().unwrap_or_default();
                vec![Reason::Parked { reason, since, failure, handed: job.handed_to_support }]
            }
            State::Running => return self.running(job),
            State::Waiting => return self.waiting(job),
        })
    }

    fn running(&self, job: &JobInfo) -> rusqlite::Result<Vec<Reason>> {
        let row = |row: &Row<'_>| {
            let word = |column| Ok::<_, rusqlite::Error>(text(row, column)?.unwrap_or_default());
            let pid = row.get::<_, Option<i64>>(3)?.unwrap_or(0);
            let ended = row.get::<_, Option<i64>>(5)?.is_some();
            let is_gone = ended || !lives(&Sign::read(row, [6, 7, 8, 9, 10])?, self.database, self.now);
            let process = Process { host: word(2)?, pid, program: word(4)?, is_gone };
            let (attempt, since) = (row.get(0)?, instant(row.get(1)?));
            let then = match (row.get(11)?, job.is_stopping) {
                (1, _) => AfterCrash::Parked,
                (_, true) => AfterCrash::Cancelled,
                (2, false) => AfterCrash::Dead,
                _ => AfterCrash::RunsAgain,
            };
            Ok(Reason::Running { since, attempt, process, is_stopping: job.is_stopping, then })
        };
        let running = self.file.prepare_cached(sql::HELD_IN)?.query_row([job.id], row)?;
        let is_gone = matches!(&running, Reason::Running { process, .. } if process.is_gone);
        let mut reasons = vec![running];
        if is_gone {
            self.held_back(job, &mut reasons)?;
        }
        Ok(reasons)
    }

    fn waiting(&self, job: &JobInfo) -> rusqlite::Result<Vec<Reason>> {
        if job.for_callers {
            return Ok(vec![Reason::ForCallers { failure: job.last_failure.clone() }]);
        }
        let mut reasons = Vec::new();
        if let Some(head) = job.behind {
            reasons.extend(self.behind(job, head)?);
        }
        let is_due = job.run_at.timestamp_millis() <= self.now;
        if !is_due {
            reasons.push(self.not_yet(job)?);
        }
        let handled = self.held_back(job, &mut reasons)?;
        if let (Some(since), true) = (job.suspect_since, is_due) {
            reasons.push(Reason::Suspect { since });
        }
        if reasons.is_empty() {
            let since = [Some(job.run_at), job.created_at].into_iter().flatten().max();
            reasons.push(Reason::Ready { since, processes: handled });
        }
        Ok(reasons)
    }

    /// What holds a job's kind; answers how many processes handle it.
    fn held_back(&self, job: &JobInfo, reasons: &mut Vec<Reason>) -> rusqlite::Result<usize> {
        let pauses = pauses_of(self.file, &job.kind)?;
        reasons.extend(pauses.into_iter().map(Reason::paused));
        let subject = Subject::kind(&job.kind);
        let handled = subject.held_by(self.file, self.database, self.now)?;
        if handled == 0 {
            let since = match subject.nobody_at(self.file, self.database, (self.now, self.now))? {
                Absence::Nobody(spell) => spell.until,
                _ => None,
            };
            reasons.push(Reason::NoHandler { kind: job.kind.clone(), since });
        }
        for limit in limits_of(self.file, &job.kind)? {
            let running: Vec<i64> = limit.running.into_iter().filter(|id| *id != job.id).collect();
            if running.len() >= limit.most as usize {
                reasons.push(Reason::LimitReached { scope: limit.scope, most: limit.most, running });
            }
        }
        Ok(handled)
    }

    /// The head of a line is behind nobody.
    fn behind(&self, job: &JobInfo, head: i64) -> rusqlite::Result<Option<Reason>> {
        let head = self.file.prepare_cached(&sql::job_by_id())?.query_row([head], read_job).optional()?;
        let Some(head) = head else { return Ok(None) };
        let because = Box::new(self.reasons(&head)?.remove(0));
        let ordering_key = job.ordering_key.clone().unwrap_or_default();
        Ok(Some(Reason::Behind { job: head.id, name: JobName::new(head.kind, head.key), ordering_key, because }))
    }

    /// Its time has not come: by a failure, unless somebody has set the time since. That the last deed has set it shows in
    /// its record; what has run since may have set another.
    fn not_yet(&self, job: &JobInfo) -> rusqlite::Result<Reason> {
        let at = job.run_at;
        let failed = self.last_attempt(job)?;
        let mut ask = self.file.prepare_cached(sql::LAST_DEED_OF)?;
        let row = |row: &Row<'_>| Ok((DeedRef::read(row)?, text(row, 4)?));
        let last: Option<(DeedRef, Option<String>)> = ask.query_row([job.id], row).optional()?;
        let has_set = |(deed, detail): &(DeedRef, Option<String>)| {
            deed.verb == "reschedule" && detail.as_deref().and_then(set_time) == Some(at)
        };
        let by = last.filter(has_set).map(|(deed, _)| deed);
        Ok(match (&job.last_failure, failed) {
            (Some(failure), Some(_)) if by.is_none() => {
                let of = self.sayings(&job.kind)?.attempts;
                Reason::Retry { at, attempt: job.attempts + 1, of, failure: failure.clone() }
            }
            _ => Reason::Scheduled { at, by },
        })
    }

    fn last_attempt(&self, job: &JobInfo) -> rusqlite::Result<Option<DateTime<Utc>>> {
        let at: Option<i64> = self.file.prepare_cached(sql::LAST_ATTEMPT)?.query_row([job.id], |row| row.get(0))?;
        Ok(at.map(instant))
    }

    fn deed(&self, job: &JobInfo) -> rusqlite::Result<Option<DeedRef>> {
        self.file.prepare_cached(sql::LAST_DEED_OF)?.query_row([job.id], DeedRef::read).optional()
    }

    fn sayings(&self, kind: &str) -> rusqlite::Result<Sayings> {
        let mut ask = self.file.prepare_cached(sql::KIND_SAYS)?;
        let said = ask.query_row([kind], |row| text(row, 2)).optional()?;
        Ok(Sayings::stored(said.flatten().as_deref()))
    }
}

/// The time that a reschedule has recorded.
fn set_time(detail: &str) -> Option<DateTime<Utc>> {
    let text: String = serde_json::from_str(detail).ok()?;
    let at = DateTime::parse_from_rfc3339(&text).ok()?;
    DateTime::from_timestamp_millis(at.timestamp_millis())
}
