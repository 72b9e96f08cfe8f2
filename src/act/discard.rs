//! Closing what is not to be done any more.

use rusqlite::params;

use super::{Deed, Task, Which};
use crate::error::Result;
use crate::ordering::close_up;
use crate::pen::Act;
use crate::sql;
use crate::state::State;
use crate::store::Store;
use crate::telling::cancelled;

const DISCARD: Act = Act { name: "discard", instead: "discard after the transaction" };

impl Store {
    /// Closes dead letters for good: they end as cancelled, their payloads are removed, and their keys stay known, so that
    /// a repeat of the work is still a repeat. Answers how many. Whoever stood behind one in its line moves up. A filter
    /// passes over jobs that are not dead.
    ///
    /// ```
    /// # use birkez::{Class, Deed, Filter};
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// let unreadable = Filter::dead().kind("mail").class(Class::Undecodable);
    /// store.discard(unreadable, Deed::by("Ada").because("of a version that never shipped"))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// For a job that is named: [`Error::NoSuchJob`](crate::Error::NoSuchJob), and
    /// [`Error::WrongState`](crate::Error::WrongState) if it is not dead. Those of writing the file; what was closed before
    /// stays closed.
    pub fn discard(&self, which: impl Into<Which>, deed: impl Into<Deed>) -> Result<usize> {
        let task = Task { act: DISCARD, verb: "discard", which: which.into(), deed: deed.into(), detail: None };
        let closed = self.carry_out(task, |group, job| {
            if job.state != State::Dead {
                return Ok(None);
            }
            group.statement(sql::DISCARD)?.execute(params![job.id, group.now])?;
            group.statement(sql::DROP_KEPT_PAYLOADS)?.execute([job.id])?;
            group.count(&job.kind, 3, -1);
            cancelled(group, job.id, &job.kind, &job.key);
            if let Some(line) = job.line() {
                close_up(group, line)?;
            }
            Ok(Some(()))
        })?;
        Ok(closed.len())
    }
}
