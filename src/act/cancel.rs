//! Calling off what has not been done.

use rusqlite::params;
use serde::Serialize;

use super::{Deed, Task, Which};
use crate::enqueue::text;
use crate::error::{Error, Result};
use crate::failure::Class;
use crate::ordering::close_up;
use crate::pen::{Act, Group, OpResult};
use crate::sql;
use crate::state::State;
use crate::store::{JobInfo, Store};
use crate::telling::cancelled;

const CANCEL: Act = Act { name: "cancel", instead: "cancel after the transaction" };

/// A job that was called off, or asked to stop.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Cancelled {
    /// Its number.
    pub id: i64,
    /// Its kind.
    pub kind: String,
    /// Its key.
    pub key: String,
    /// Where it was. One that was [running](State::Running) is asked to stop, and may still end as done.
    pub was: State,
    /// Its payload, as JSON, for whoever wants to put the work back where it came from. It stays in the file too. `None` for
    /// one that runs.
    pub payload: Option<String>,
}

impl Store {
    /// Calls jobs off. One that waits or is parked ends as cancelled at once, and whoever stood behind it in its line moves
    /// up. One that runs is asked to stop ([`Context::is_cancelled`](crate::Context::is_cancelled)), within milliseconds in
    /// this process and at its next look at the file in another: it ends as cancelled however it fails, and is not run again
    /// by itself, nor after a crash. If it is done all the same, it is done. One of a kind that runs at most once, which
    /// does not say how far it came, is still parked as `unknown_outcome`.
    ///
    /// The key stays known, and a cancelled job can be [replayed](Store::replay). A filter passes over jobs that have come to
    /// their end, that have been asked already, and those of unknown outcome.
    ///
    /// ```
    /// # use birkez::{Context, Deed, Job, State, testing::TempStore};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { to: String }
    /// # impl Job for Mail {
    /// #     const KIND: &'static str = "mail";
    /// #     type Output = ();
    /// #     fn key(&self) -> String { self.to.clone() }
    /// # }
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = TempStore::new()?;
    /// # let store = folder.open()?;
    /// let mail = store.enqueue(&Mail { to: "a@b.c".into() })?;
    /// let called_off = store.cancel(mail.id, Deed::by("Ada").because("sent by hand"))?;
    /// assert_eq!(called_off[0].was, State::Waiting);
    /// assert_eq!(called_off[0].payload.as_deref(), Some(r#"{"to":"a@b.c"}"#));
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// For a job that is named: [`Error::NoSuchJob`]; [`Error::WrongState`] if it has come to its end or has been asked to
    /// stop; [`Error::MustResolve`] for one of unknown outcome. Those of writing the file; what was called off before stays
    /// so.
    pub fn cancel(&self, which: impl Into<Which>, deed: impl Into<Deed>) -> Result<Vec<Cancelled>> {
        let which = which.into();
        let one_by_one = !matches!(which, Which::Filter(_));
        let task = Task { act: CANCEL, verb: "cancel", which, deed: deed.into(), detail: None };
        self.carry_out(task, move |group, job| match job.state {
            State::Running if !job.is_stopping => ask_to_stop(group, job).map(Some),
            State::Parked if job.parked_for.as_deref() == Some(Class::UnknownOutcome.as_str()) => {
                if one_by_one {
                    Err(Error::MustResolve.into())
                } else {
                    Ok(None)
                }
            }
            State::Waiting | State::Parked => call_off(group, job).map(Some),
            _ => Ok(None),
        })
    }
}

fn ask_to_stop(group: &mut Group<'_>, job: &JobInfo) -> OpResult<Cancelled> {
    group.statement(sql::ASK_TO_STOP)?.execute([job.id])?;
    group.stopping.push(job.id);
    Ok(Cancelled { id: job.id, kind: job.kind.clone(), key: job.key.clone(), was: job.state, payload: None })
}

fn call_off(group: &mut Group<'_>, job: &JobInfo) -> OpResult<Cancelled> {
    let payload = group.statement(sql::PAYLOAD)?.query_row([job.id], |row| text(row, 0))?;
    group.statement(sql::CALL_OFF)?.execute(params![job.id, group.now])?;
    cancelled(group, job.id, &job.kind, &job.key);
    if let Some(line) = job.line() {
        close_up(group, line)?;
    }
    Ok(Cancelled { id: job.id, kind: job.kind.clone(), key: job.key.clone(), was: job.state, payload })
}
