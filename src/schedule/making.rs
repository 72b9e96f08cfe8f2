//! Mapping an occurrence to its jobs and writing both; what becomes of one that cannot be mapped.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use chrono::TimeDelta;
use rusqlite::params;

use super::Occurrence;
use super::planner::{Mine, Planner, Step};
use super::row::ScheduleRow;
use super::write::{Gap, Made, Making, Move, Place, make, pass_over, stored};
use crate::calendar::{Count, Due, Found, Plan, Run};
use crate::enqueue::NewJob;
use crate::error::Result;
use crate::failure::{panic_text, safe_text, text_of};
use crate::pen::{Act, Mode};
use crate::retry::RetryPolicy;
use crate::sql;

const MAKE: Act = Act { name: "making an occurrence", instead: "nothing" };
const ATOMIC: Mode = Mode { atomic: true, synced: false, follows: false };

/// An occurrence that was mapped and written, or why it could not be mapped.
pub(super) type MadeOr = std::result::Result<Made, String>;

impl Planner {
    /// Makes what is due. If the mapping fails, the mark stays.
    pub(super) fn make_due(&self, mine: &Mine, plan: &Plan, run: Run, mark: Move, missed: Vec<Gap>) -> Result<Step> {
        let made = self.make(mine, run, run.due.occurrence(), "due", Some(mark), missed)?;
        let Err(text) = made else { return Ok(Step::Again) };
        self.note_failure(&mine.row, plan.found, &text)?;
        Ok(Step::Until(Some(self.now() + TimeDelta::seconds(1))))
    }

    /// Makes an occurrence that a person asked for, whatever the mark.
    pub(super) fn make_asked(&self, mine: &Mine, due: Due, id: String, cause: &'static str) -> Result<MadeOr> {
        let lateness = (self.now() - due.at).to_std().unwrap_or_default();
        let run = Run { due, lateness, late: false, missed_count: Count::default(), missed_since: None };
        self.make(mine, run, id, cause, None, Vec::new())
    }

    fn make(
        &self,
        mine: &Mine,
        run: Run,
        id: String,
        cause: &'static str,
        mark: Option<Move>,
        missed: Vec<Gap>,
    ) -> Result<MadeOr> {
        let occurrence = Occurrence { schedule: mine.row.name.clone(), zone: mine.schedule.zone, run, id: id.clone() };
        let jobs = match self.map(mine, &occurrence) {
            Ok(jobs) => Arc::new(jobs),
            Err(text) => return Ok(Err(text)),
        };
        let due_at = run.due.at.timestamp_millis();
        let making = Making { schedule: mine.row.id, id, due_at, cause, jobs, missed, mark };
        self.store.write_compared(MAKE, ATOMIC, move |group, compared| make(group, &making, compared)).map(Ok)
    }

    fn map(&self, mine: &Mine, occurrence: &Occurrence) -> std::result::Result<Vec<NewJob>, String> {
        match catch_unwind(AssertUnwindSafe(|| (mine.map)(occurrence, &self.store.inner.terms))) {
            Ok(mut jobs) => {
                let origin = format!("schedule {} {}", occurrence.schedule(), occurrence.id());
                jobs.iter_mut().flatten().for_each(|job| job.origin.clone_from(&origin));
                jobs.map_err(|error| text_of(&error))
            }
            Err(panic) => Err(format!("its mapping function panicked: {}", panic_text(&*panic))),
        }
    }

    /// Moves the mark past what does not run, or notes what waits.
    pub(super) fn pass_over(&self, mine: &Mine, to: Place, settles: bool, gaps: Vec<Gap>) -> Result<Step> {
        let (id, to) = (mine.row.id, Move { from: mine.place(), to, settles });
        self.store.inner.pen.write(MAKE, ATOMIC, move |group| Ok(pass_over(group, id, &to, &gaps)?))?;
        Ok(Step::Again)
    }

    /// The mark stays; the schedule is tried again with backoff, and the others go on.
    pub(super) fn note_failure(&self, row: &ScheduleRow, found: Option<Found>, text: &str) -> Result<()> {
        if row.failures == 0 {
            tracing::warn!(schedule = row.name, text, "a schedule cannot make its jobs; it is tried again");
        }
        let text = safe_text(text).into_owned();
        let (id, mark, delay) = (row.id, row.mark.clone(), self.backoff(row.failures));
        self.store.inner.pen.write(MAKE, Mode::default(), move |group| {
            let (found_at, seen_at) = stored(found);
            let try_at = group.now.saturating_add(delay);
            let failed = params![id, mark, text, group.now, try_at, found_at, seen_at];
            group.statement(sql::SCHEDULE_FAILED)?.execute(failed)?;
            Ok(())
        })
    }

    /// How long, in milliseconds, until what has failed so often before is tried again.
    pub(super) fn backoff(&self, failures: u32) -> i64 {
        let random = self.store.inner.clock.random();
        RetryPolicy::default().delay(failures.saturating_add(1), Duration::ZERO, random)
    }
}
