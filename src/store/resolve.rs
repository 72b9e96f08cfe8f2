//! What a person decides of a parked job.

use rusqlite::{OptionalExtension, params};
use serde::Serialize;

use super::Store;
use super::look::read_job;
use crate::enqueue::check_size;
use crate::error::{Error, Result};
use crate::ordering::{gate_in_line, move_up, note_version};
use crate::pen::{Act, Group, Mode, OpResult};
use crate::sql;

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
    /// store.resolve(job.id, Resolution::done(&"sent")?)?;
    /// # assert_eq!(store.job(job.id)?.unwrap().state, State::Done);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchJob`], [`Error::NotParked`]; [`Error::PayloadTooLarge`] for an output above the store's limit; those of
    /// writing the file.
    pub fn resolve(&self, job: i64, resolution: Resolution) -> Result<()> {
        let limit = self.inner.terms.payload_limit;
        let mode = Mode { atomic: true, ..Mode::default() };
        self.inner.pen.write(RESOLVE, mode, move |group| resolve(group, job, &resolution, limit))
    }
}

fn resolve(group: &mut Group<'_>, id: i64, resolution: &Resolution, limit: usize) -> OpResult<()> {
    let job = group.statement(&sql::job_by_id())?.query_row([id], read_job).optional()?;
    let job = job.ok_or(Error::NoSuchJob { id })?;
    let line = job.line();
    let (state, gate, result) = match resolution {
        Resolution::Done(output) => {
            let output = output.to_string();
            check_size(&job.kind, &job.key, &output, limit)?;
            (2, None, Some(output))
        }
        Resolution::Retry if job.for_callers => (0, Some(4), None),
        Resolution::Retry => (0, Some(gate_in_line(group, id, line, 1)?), None),
        Resolution::Dead => (3, None, None),
    };
    let finished = (state != 0).then_some(group.now);
    let decided = group.statement(sql::RESOLVE)?.execute(params![id, state, gate, group.now, result, finished])?;
    if decided == 0 {
        return Err(Error::NotParked { kind: job.kind, key: job.key, state: job.state }.into());
    }
    if state == 0 {
        group.note_due(group.now);
        return Ok(());
    }
    group.count(&job.kind, state, 1);
    if let Some(line) = line {
        if let (2, Some(version)) = (state, job.version) {
            note_version(group, line, version)?;
        }
        move_up(group, line)?;
    }
    Ok(())
}
