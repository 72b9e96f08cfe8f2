//! Moving a waiting job to another time.

use chrono::{DateTime, Utc};
use rusqlite::params;

use super::{Deed, Task, Which};
use crate::error::Result;
use crate::ordering::come_back;
use crate::pen::Act;
use crate::sql;
use crate::state::State;
use crate::store::Store;

const RESCHEDULE: Act = Act { name: "reschedule", instead: "reschedule after the transaction" };

impl Store {
    /// Lets waiting jobs run at `at`, or at once if that is over, whatever they waited for: their time, or a retry. Answers
    /// how many. A job behind others in its line still waits for its turn, and its attempts stay as they are. A filter
    /// passes over jobs that do not wait, and those that belong to callers of [`once`](Store::once).
    ///
    /// ```
    /// # use birkez::{Deed, Filter};
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// // The bank is up again: no need to wait for the backoff.
    /// store.reschedule(Filter::all().kind("sync"), chrono::Utc::now(), Deed::by("Ada"))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// For a job that is named: [`Error::NoSuchJob`](crate::Error::NoSuchJob), and
    /// [`Error::WrongState`](crate::Error::WrongState) if it does not wait for a runner. Those of writing the file; what was
    /// moved before stays moved.
    pub fn reschedule(&self, which: impl Into<Which>, at: DateTime<Utc>, deed: impl Into<Deed>) -> Result<usize> {
        let run_at = at.timestamp_millis().max(1);
        let detail = Some(format!("\"{}\"", at.to_rfc3339()));
        let task = Task { act: RESCHEDULE, verb: "reschedule", which: which.into(), deed: deed.into(), detail };
        let moved = self.carry_out(task, move |group, job| {
            if job.state != State::Waiting || job.for_callers {
                return Ok(None);
            }
            // A suspect that is due later becomes one again when it is let in.
            let open = match (run_at <= group.now, job.suspect_since) {
                (false, _) => 0,
                (true, Some(_)) => 3,
                (true, None) => 1,
            };
            let gate = come_back(group, job.id, job.line(), open)?;
            group.statement(sql::RESCHEDULE)?.execute(params![job.id, run_at, gate, group.now])?;
            group.note_due(run_at);
            Ok(Some(()))
        })?;
        Ok(moved.len())
    }
}
