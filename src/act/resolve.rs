//! What a person decides of a parked job.

use rusqlite::params;
use serde::Serialize;

use super::{Deed, Task, Which};
use crate::enqueue::check_size;
use crate::error::Result;
use crate::ordering::{close_up, come_back, note_version};
use crate::pen::{Act, Group, OpResult};
use crate::sql;
use crate::state::State;
use crate::store::{JobInfo, Store};
use crate::telling::{Happened, died};

const RESOLVE: Act = Act { name: "resolve", instead: "resolve after the transaction" };

/// What a person has found out about a job, and what is to become of it.
#[derive(Clone, Debug, PartialEq)]
pub enum Resolution {
    /// It was done, with this output.
    Done(serde_json::Value),
    /// It was not done: it is to run again, with all its attempts.
    Retry,
    /// It is not to be done any more.
    Dead,
}

impl Resolution {
    /// It was done, with this output, which a repeat of the key is answered with: one of the job's `Output` type.
    ///
    /// # Errors
    ///
    /// The serialiser's.
    pub fn done(output: &impl Serialize) -> anyhow::Result<Resolution> {
        Ok(Resolution::Done(serde_json::to_value(output)?))
    }
}

impl Store {
    /// Decides about a parked job, such as one of [unknown outcome](crate::Job::AT_MOST_ONCE). The decision counts once: a
    /// job that is not parked, or not any more, is refused.
    ///
    /// ```
    /// # use birkez::{Context, Job, Resolution, Runner, State, testing::{Drain, TempStore}};
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Notify { order: u32 }
    /// impl Job for Notify {
    ///     const KIND: &'static str = "notify";
    ///     const AT_MOST_ONCE: bool = true;
    ///     type Output = String;
    ///     fn key(&self) -> String { self.order.to_string() }
    /// }
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = TempStore::new()?;
    /// # let store = folder.open()?;
    /// let job = store.enqueue(&Notify { order: 17 })?;
    /// # let lost = |_: Notify, _: &Context| -> anyhow::Result<String> { anyhow::bail!("the connection was lost") };
    /// # Drain::new(Runner::builder(&store).handle(lost))?.drain()?;
    /// // The call broke off in its middle, and somebody has asked the other side:
    /// store.resolve(job.id, Resolution::done(&"sent")?, "Ada")?;
    /// # assert_eq!(store.job(job.id)?.unwrap().state, State::Done);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchJob`](crate::Error::NoSuchJob); [`Error::WrongState`](crate::Error::WrongState) if it is not parked;
    /// [`Error::PayloadTooLarge`](crate::Error::PayloadTooLarge) for an output above the store's limit; those of
    /// writing the file.
    pub fn resolve(&self, job: i64, resolution: Resolution, deed: impl Into<Deed>) -> Result<()> {
        let limit = self.inner.terms.payload_limit;
        let detail = match resolution {
            Resolution::Done(_) => "done",
            Resolution::Retry => "retry",
            Resolution::Dead => "dead",
        };
        let task = Task {
            act: RESOLVE,
            verb: "resolve",
            which: Which::Id(job),
            deed: deed.into(),
            detail: Some(format!("\"{detail}\"")),
        };
        self.carry_out(task, move |group, job| {
            if job.state != State::Parked {
                return Ok(None);
            }
            resolve(group, job, &resolution, limit)?;
            Ok(Some(()))
        })?;
        Ok(())
    }
}

fn resolve(group: &mut Group<'_>, job: &JobInfo, resolution: &Resolution, limit: usize) -> OpResult<()> {
    let (id, line) = (job.id, job.line());
    let (state, gate, result) = match resolution {
        Resolution::Done(output) => {
            let output = output.to_string();
            check_size(&job.kind, &job.key, &output, limit)?;
            (2, None, Some(output))
        }
        Resolution::Retry if job.for_callers => (0, Some(4), None),
        Resolution::Retry => (0, Some(come_back(group, id, line, 1)?), None),
        Resolution::Dead => (3, None, None),
    };
    let finished = (state != 0).then_some(group.now);
    group.statement(sql::RESOLVE)?.execute(params![id, state, gate, group.now, result, finished])?;
    if state == 0 {
        group.note_due(group.now);
        return Ok(());
    }
    match state {
        // The token of its last claim.
        3 => died(group, id, &job.kind, group.statement(sql::CLAIMS)?.query_row([id], |row| row.get(0))?)?,
        _ => {
            group.count(&job.kind, state, 1);
            group.tell_job(id, &job.kind, &job.key, |told| Happened::Done { job: told, attempt: job.attempts });
        }
    }
    if let Some(line) = line {
        if let (2, Some(version)) = (state, job.version) {
            note_version(group, line, version)?;
        }
        close_up(group, line)?;
    }
    Ok(())
}
