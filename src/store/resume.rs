//! Releasing what is parked.

use rusqlite::params;

use super::Store;
use crate::error::{Error, Result};
use crate::failure::Class;
use crate::pen::{Act, Mode};
use crate::sql;

const RESUME: Act = Act { name: "resume", instead: "resume after the transaction" };
/// Most that one transaction releases.
const BATCH: usize = 1_000;

impl Store {
    /// Releases all jobs that are parked for `reason`; answers how many. They run as soon as a worker is free, with the
    /// attempts that they had, and their total time counts anew.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// // After the user has signed in again:
    /// let released = store.resume("auth:bank")?;
    /// # assert_eq!(released, 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::MustResolve`] for `unknown_outcome`: each of those needs a decision of its own
    /// ([`resolve`](Store::resolve)). Those of writing the file; what was released before stays released.
    pub fn resume(&self, reason: &str) -> Result<usize> {
        if reason == Class::UnknownOutcome.as_str() {
            return Err(Error::MustResolve);
        }
        let mut released = 0;
        loop {
            let reason = reason.to_owned();
            let some = self.inner.pen.write(RESUME, Mode::default(), move |group| {
                let some = group.statement(sql::RESUME)?.execute(params![reason, group.now, BATCH as i64])?;
                if some > 0 {
                    group.come_due();
                }
                Ok(some)
            })?;
            released += some;
            if some < BATCH {
                return Ok(released);
            }
        }
    }
}
