//! Releasing what is parked.

use rusqlite::params;

use super::{Deed, Task, Which};
use crate::error::{Error, Result};
use crate::failure::Class;
use crate::ordering::come_back;
use crate::pen::Act;
use crate::sql;
use crate::state::State;
use crate::store::{Filter, Store};

const RESUME: Act = Act { name: "resume", instead: "resume after the transaction" };

impl Store {
    /// Releases all jobs that are parked for `reason`; answers how many. They run as soon as a worker is free, with the
    /// attempts that they had, and their total time counts anew.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// // After the user has signed in again:
    /// let released = store.resume("auth:bank", "the panel")?;
    /// # assert_eq!(released, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::MustResolve`] for `unknown_outcome`: each of those needs a decision of its own
    /// ([`resolve`](Store::resolve)). Those of writing the file; what was released before stays released.
    pub fn resume(&self, reason: &str, deed: impl Into<Deed>) -> Result<usize> {
        if reason == Class::UnknownOutcome.as_str() {
            return Err(Error::MustResolve);
        }
        self.release(Filter::parked_for(reason), deed)
    }

    /// Releases parked jobs by id, by kind and key, or by filter; answers how many. As [`resume`](Store::resume) does; what
    /// is parked as `unknown_outcome` is left where it is by a filter.
    ///
    /// ```
    /// # use birkez::{Deed, Filter};
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// store.release(Filter::all().kind("mail"), Deed::by("Ada").because("the server is back"))?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// For a job that is named: [`Error::NoSuchJob`]; [`Error::WrongState`] if it is not parked; [`Error::MustResolve`]
    /// for one of unknown outcome. Those of writing the file.
    pub fn release(&self, which: impl Into<Which>, deed: impl Into<Deed>) -> Result<usize> {
        let which = which.into();
        let one_by_one = !matches!(which, Which::Filter(_));
        let task = Task { act: RESUME, verb: "resume", which, deed: deed.into(), detail: None };
        let released = self.carry_out(task, move |group, job| {
            if job.state != State::Parked {
                return Ok(None);
            }
            if job.parked_for.as_deref() == Some(Class::UnknownOutcome.as_str()) {
                return if one_by_one { Err(Error::MustResolve.into()) } else { Ok(None) };
            }
            let gate = if job.for_callers { 4 } else { come_back(group, job.id, job.line(), 1)? };
            group.statement(sql::RESUME)?.execute(params![job.id, group.now, gate])?;
            if !job.for_callers {
                group.note_due(group.now);
            }
            Ok(Some(()))
        })?;
        Ok(released.len())
    }
}
