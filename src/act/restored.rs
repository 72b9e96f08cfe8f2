//! Letting go on what a restored file holds back.

use serde::Serialize;

use super::Deed;
use crate::copy::RESTORED;
use crate::enqueue::text;
use crate::error::Result;
use crate::pen::Act;
use crate::sql;
use crate::store::{Filter, Store};

const RELEASE: Act = Act { name: "release_restored", instead: "release_restored after the transaction" };

/// What was released in a restored file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct ReleasedInfo {
    /// How many jobs.
    pub jobs: usize,
    /// Names of the schedules that go on.
    pub schedules: Vec<String>,
}

impl Store {
    /// Lets everything go on that is held back since the file was [restored](Store::restore): jobs parked as `restored`,
    /// under the same ids, keys and idempotency keys, and schedules paused by it. What came due between the copy and this
    /// call does not run; each schedule has one record that says so, and [`backfill_schedule`](Store::backfill_schedule)
    /// makes it good where that is wanted.
    ///
    /// To look first: [`list`](Store::list) with `Filter::parked_for("restored")`. What has happened already is
    /// [resolved](Store::resolve) as done; single jobs or kinds are released by [`release`](Store::release). Jobs parked as
    /// `unknown_outcome` stay: each needs a decision of its own.
    ///
    /// Calling it again releases what a call that failed has left.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleInvalid`](crate::Error::ScheduleInvalid) for a schedule whose stored definition cannot be read, after
    /// all others were released; those of writing the file.
    pub fn release_restored(&self, deed: impl Into<Deed>) -> Result<ReleasedInfo> {
        let deed = deed.into();
        self.inner.pen.refuse_inside(RELEASE)?;
        let jobs = self.release(Filter::parked_for(RESTORED), &deed)?;
        let held: Vec<String> = self.read("looking for schedules to release", |tx| {
            let name = |row: &rusqlite::Row<'_>| Ok(text(row, 0)?.unwrap_or_default());
            tx.prepare_cached(sql::RESTORED_SCHEDULES)?.query_map([RESTORED], name)?.collect()
        })?;
        let (mut schedules, mut failed) = (Vec::new(), None);
        for name in held {
            match self.resume_schedule(&name, &deed) {
                Ok(true) => schedules.push(name),
                Ok(false) => {}
                Err(error) => failed = Some(error),
            }
        }
        failed.map_or(Ok(ReleasedInfo { jobs, schedules }), Err)
    }
}
