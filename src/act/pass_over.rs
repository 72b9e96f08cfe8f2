//! Letting a line go on past its dead head.

use super::{Deed, Task, Which};
use crate::error::{Error, Result};
use crate::ordering::close_up;
use crate::pen::Act;
use crate::sql;
use crate::store::Store;

const PASS_OVER: Act = Act { name: "pass_over", instead: "it after the transaction" };

impl Store {
    /// Lets a line go on without the dead job at its head, which stays dead. False if the job is not dead, or held nobody.
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchJob`]; those of writing the file.
    pub fn pass_over(&self, job: i64, deed: impl Into<Deed>) -> Result<bool> {
        let which = Which::Id(job);
        let task = Task { act: PASS_OVER, verb: "pass over", which, deed: deed.into(), detail: None };
        let passed = self.carry_out(task, |group, dead| {
            let Some(line) = dead.line() else { return Ok(None) };
            if group.statement(sql::PASS_OVER)?.execute([dead.id])? == 0 {
                return Ok(None);
            }
            close_up(group, line)?;
            Ok(Some(()))
        });
        match passed {
            Ok(_) => Ok(true),
            Err(Error::WrongState { .. }) => Ok(false),
            Err(error) => Err(error),
        }
    }
}
