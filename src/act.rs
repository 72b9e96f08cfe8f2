//! What people do to jobs, and the record of it.
//!
//! Every verb names its jobs in one of three ways ([`Which`]) and says who does it, and why ([`Deed`]). Many jobs are
//! dealt with in transactions that are short, in the order of their numbers; each deed is recorded in the transaction
//! that does it.

mod deed;
mod discard;
mod pass_over;
mod reschedule;
mod resolve;
mod resume;

use std::sync::Arc;
use std::time::Duration;

use rusqlite::types::Value;
use rusqlite::{OptionalExtension, params_from_iter};

pub use self::deed::{Deed, DeedInfo, DeedPage, Touched};
use self::deed::{record, record_job};
pub use self::resolve::Resolution;
use crate::clock::Stopwatch;
use crate::error::{Error, Result};
use crate::pen::{Act, Group, Mode, OpResult};
use crate::sql;
use crate::state::JobName;
use crate::store::{Filter, JobInfo, Store, read_job};

/// A transaction over many jobs is ended once it has held the writer lock for so long.
const BRIEF: Duration = Duration::from_millis(10);
const ATOMIC: Mode = Mode { atomic: true, synced: false, follows: false };

/// Which jobs a verb is about.
#[derive(Clone, Debug, PartialEq)]
pub enum Which {
    /// The job with this number.
    Id(i64),
    /// The job with this kind and key.
    Name(JobName),
    /// All that a filter means when the call begins; one that comes later is not touched, nor is one that has moved out
    /// of the filter before its turn.
    Filter(Filter),
}

impl From<i64> for Which {
    fn from(id: i64) -> Which {
        Which::Id(id)
    }
}

impl From<JobName> for Which {
    fn from(name: JobName) -> Which {
        Which::Name(name)
    }
}

impl From<Filter> for Which {
    fn from(filter: Filter) -> Which {
        Which::Filter(filter)
    }
}

impl From<&Filter> for Which {
    fn from(filter: &Filter) -> Which {
        Which::Filter(filter.clone())
    }
}

impl std::fmt::Display for Which {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Which::Id(id) => write!(f, "job {id}"),
            Which::Name(name) => name.fmt(f),
            Which::Filter(filter) => filter.fmt(f),
        }
    }
}

/// A verb, and all that its record needs.
pub(crate) struct Task {
    pub act: Act,
    /// As it stands in the record.
    pub verb: &'static str,
    pub which: Which,
    pub deed: Deed,
    /// JSON for the record.
    pub detail: Option<String>,
}

/// What becomes of one job: `None` if the verb does not apply to it as it stands.
type Change<T> = dyn Fn(&mut Group<'_>, &JobInfo) -> OpResult<Option<T>> + Send + Sync;

impl Store {
    /// The numbers of the jobs that are meant, lowest first.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchJob`] for one that is named and not there; those of reading the file.
    pub(crate) fn selected(&self, which: &Which) -> Result<Vec<i64>> {
        let missing = || Error::NoSuchJob { job: which.to_string() };
        match which {
            Which::Id(id) => self.job(*id)?.map(|job| vec![job.id]).ok_or_else(missing),
            Which::Name(name) => self.find(&name.kind, &name.key)?.map(|job| vec![job.id]).ok_or_else(missing),
            Which::Filter(filter) => {
                let (condition, values) = filter.condition();
                let sql = sql::select_jobs(&condition);
                self.read("selecting jobs", |tx| {
                    tx.prepare(&sql)?.query_map(params_from_iter(values), |row| row.get(0))?.collect()
                })
            }
        }
    }

    /// Applies `change` to each job that `task` means, and records those that it has changed with what they were before.
    ///
    /// # Errors
    ///
    /// For a job that is named: [`Error::NoSuchJob`], and [`Error::WrongState`] if the verb does not apply to it.
    /// [`Error::InsideTransaction`]; those of writing the file; what was changed before stays changed.
    pub(crate) fn carry_out<T: Send + 'static>(
        &self,
        task: Task,
        change: impl Fn(&mut Group<'_>, &JobInfo) -> OpResult<Option<T>> + Send + Sync + 'static,
    ) -> Result<Vec<T>> {
        // Even if nothing is selected.
        self.inner.pen.refuse_inside(task.act)?;
        let ids = self.selected(&task.which)?;
        let (act, named) = (task.act, !matches!(task.which, Which::Filter(_)));
        let (task, change): (_, Arc<Change<T>>) = (Arc::new(task), Arc::new(change));
        let mut changed = Vec::new();
        let mut event = None;
        let mut at = 0;
        while at < ids.len() {
            let rest = ids[at..ids.len().min(at + 1_000)].to_vec();
            let (task, change) = (Arc::clone(&task), Arc::clone(&change));
            let (some, seen, noted) =
                self.inner.pen.write(act, ATOMIC, move |group| some_of(group, &task, &rest, event, &*change))?;
            changed.extend(some);
            at += seen;
            event = noted;
        }
        if named && changed.is_empty() {
            let job = self.job(ids[0])?.ok_or_else(|| Error::NoSuchJob { job: task.which.to_string() })?;
            return Err(Error::WrongState { act: act.name, kind: job.kind, key: job.key, state: job.state });
        }
        Ok(changed)
    }
}

/// What was changed, how many jobs were looked at, and the number of the record.
type Part<T> = (Vec<T>, usize, Option<i64>);

fn some_of<T>(
    group: &mut Group<'_>,
    task: &Task,
    ids: &[i64],
    mut event: Option<i64>,
    change: &Change<T>,
) -> OpResult<Part<T>> {
    let held = Stopwatch::start();
    let (mut changed, mut seen) = (Vec::new(), 0);
    for &id in ids {
        if seen > 0 && held.elapsed() > BRIEF {
            break;
        }
        seen += 1;
        let Some(job) = still_meant(group, &task.which, id)? else { continue };
        if let Some(value) = change(group, &job)? {
            let event = match event {
                Some(event) => event,
                None => *event.insert(record(
                    group,
                    task.verb,
                    &task.which.to_string(),
                    &task.deed,
                    task.detail.as_deref(),
                )?),
            };
            record_job(group, event, &job)?;
            changed.push(value);
        }
    }
    Ok((changed, seen, event))
}

/// The job, if it is still one of those that are meant.
fn still_meant(group: &Group<'_>, which: &Which, id: i64) -> rusqlite::Result<Option<JobInfo>> {
    let Which::Filter(filter) = which else {
        return group.statement(&sql::job_by_id())?.query_row([id], read_job).optional();
    };
    let (condition, mut values) = filter.condition();
    values.push(Value::Integer(id));
    let sql = sql::job_if(&condition, values.len());
    group.statement(&sql)?.query_row(params_from_iter(values), read_job).optional()
}
