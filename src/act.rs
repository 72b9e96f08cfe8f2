//! What people do to jobs, and the record of it.
//!
//! Every verb says who does it, and why ([`Deed`]), and names its jobs in one of three ways ([`Which`]), but for the decisions
//! about a single job ([`Store::resolve`], [`Store::pass_over`]), which take its number. Many jobs are
//! dealt with in transactions that are short, in the order of their numbers; each deed is recorded in the transaction
//! that does it.

mod cancel;
mod deed;
mod discard;
mod pass_over;
mod replay;
mod reschedule;
mod resolve;
mod restored;
mod resume;

use std::sync::Arc;
use std::time::Duration;

use rusqlite::types::Value;
use rusqlite::{OptionalExtension, params_from_iter};

pub use self::cancel::Cancelled;
use self::deed::record_job;
pub use self::deed::{Deed, DeedInfo, DeedPage, Touched};
pub(crate) use self::deed::{read_touched, record};
pub use self::replay::{Replay, Replayed};
pub use self::resolve::Resolution;
pub use self::restored::ReleasedInfo;
use crate::clock::Stopwatch;
use crate::error::{Error, Result};
use crate::pen::{Act, Group, Mode, OpResult};
use crate::sql;
use crate::state::JobName;
use crate::store::{Filter, JobInfo, Store, read_job};

/// A transaction over many jobs is ended once it has held the writer lock for so long; then the lock is free for as long.
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

/// A task under way: what is the same for each job, and the number of its record once there is one.
pub(crate) struct Errand {
    task: Arc<Task>,
    still_meant: Arc<StillMeant>,
    event: Option<i64>,
}

/// How a job is read under the lock, if it is still one of those that are meant.
struct StillMeant {
    sql: String,
    values: Vec<Value>,
}

/// What becomes of one job: `None` if the verb does not apply to it as it stands.
/// The last place takes the payload that the job had before, if that has changed.
type Change<T> = dyn Fn(&mut Group<'_>, &JobInfo, &mut Option<String>) -> OpResult<Option<T>> + Send + Sync;

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
        let mut errand = Errand::new(task);
        let changed = errand.run(self, &ids, change)?;
        if changed.is_empty() {
            errand.refuse_named(self, &ids)?;
        }
        Ok(changed)
    }
}

impl Errand {
    pub(crate) fn new(task: Task) -> Errand {
        let still_meant = Arc::new(StillMeant::new(&task.which));
        Errand { task: Arc::new(task), still_meant, event: None }
    }

    /// The number of its record, if it has changed anything.
    pub(crate) fn event(&self) -> Option<i64> {
        self.event
    }

    /// Applies `change` to these jobs, in short transactions, and records those that it has changed.
    pub(crate) fn run<T: Send + 'static>(
        &mut self,
        store: &Store,
        ids: &[i64],
        change: impl Fn(&mut Group<'_>, &JobInfo) -> OpResult<Option<T>> + Send + Sync + 'static,
    ) -> Result<Vec<T>> {
        self.run_keeping(store, ids, move |group, job, _| change(group, job))
    }

    /// As [`run`](Errand::run), for a change that may change payloads: the old ones stay in the record.
    pub(crate) fn run_keeping<T: Send + 'static>(
        &mut self,
        store: &Store,
        ids: &[i64],
        change: impl Fn(&mut Group<'_>, &JobInfo, &mut Option<String>) -> OpResult<Option<T>> + Send + Sync + 'static,
    ) -> Result<Vec<T>> {
        let change: Arc<Change<T>> = Arc::new(change);
        let mut changed = Vec::new();
        let mut at = 0;
        while at < ids.len() {
            let mut part = Part {
                task: Arc::clone(&self.task),
                still_meant: Arc::clone(&self.still_meant),
                ids: ids[at..ids.len().min(at + 1_000)].to_vec(),
                event: self.event,
            };
            let change = Arc::clone(&change);
            let (some, seen, event) =
                store.inner.pen.write(self.task.act, ATOMIC, move |group| part.carry_out(group, &*change))?;
            changed.extend(some);
            at += seen;
            self.event = event;
            if at < ids.len() {
                // A neighbour sleeps while it waits for the lock, and would miss a gap that is shorter.
                std::thread::sleep(BRIEF);
            }
        }
        Ok(changed)
    }

    /// The verb did not apply to a job that is named.
    pub(crate) fn refuse_named(&self, store: &Store, ids: &[i64]) -> Result<()> {
        if matches!(self.task.which, Which::Filter(_)) {
            return Ok(());
        }
        let missing = || Error::NoSuchJob { job: self.task.which.to_string() };
        let job = store.job(ids[0])?.ok_or_else(missing)?;
        Err(Error::WrongState { act: self.task.act.name, kind: job.kind, key: job.key, state: job.state })
    }
}

/// What one transaction does of an errand.
struct Part {
    task: Arc<Task>,
    still_meant: Arc<StillMeant>,
    ids: Vec<i64>,
    event: Option<i64>,
}

impl Part {
    /// What was changed, how many jobs were looked at, and the number of the record.
    fn carry_out<T>(&mut self, group: &mut Group<'_>, change: &Change<T>) -> OpResult<(Vec<T>, usize, Option<i64>)> {
        let held = Stopwatch::start();
        let (mut changed, mut seen) = (Vec::new(), 0);
        for &id in &self.ids {
            if seen > 0 && held.elapsed() > BRIEF {
                break;
            }
            seen += 1;
            let Some(job) = self.still_meant.read(group, id)? else { continue };
            let mut before = None;
            let Some(value) = change(group, &job, &mut before)? else { continue };
            let event = match self.event {
                Some(event) => event,
                None => *self.event.insert(self.record(group)?),
            };
            record_job(group, event, &job, before.as_deref())?;
            changed.push(value);
        }
        Ok((changed, seen, self.event))
    }

    fn record(&self, group: &mut Group<'_>) -> rusqlite::Result<i64> {
        let Task { verb, which, deed, detail, .. } = &*self.task;
        record(group, verb, &which.to_string(), deed, detail.as_deref())
    }
}

impl StillMeant {
    fn new(which: &Which) -> StillMeant {
        let (condition, values) = match which {
            Which::Filter(filter) => filter.condition(),
            _ => (String::new(), Vec::new()),
        };
        StillMeant { sql: sql::job_if(&condition, values.len() + 1), values }
    }

    fn read(&self, group: &Group<'_>, id: i64) -> rusqlite::Result<Option<JobInfo>> {
        let values = self.values.iter().cloned().chain([Value::Integer(id)]);
        group.statement(&self.sql)?.query_row(params_from_iter(values), read_job).optional()
    }
}
