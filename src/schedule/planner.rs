//! Finding what is due and making its jobs: occurrence, jobs and mark in one transaction.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use chrono::{DateTime, Utc};
use rusqlite::{OptionalExtension, params};

use super::look::{ScheduleRow, read_schedule};
use super::{Occurrence, Schedule};
use crate::calendar::{Due, Mark};
use crate::enqueue::{Compared, NewJob, Stored, ToCompare, compare, store};
use crate::error::{Error, Result};
use crate::failure::{panic_text, safe_text, text_of};
use crate::job::{Job, instant};
use crate::pen::{Act, Group, Mode, OpError, OpResult};
use crate::retry::RetryPolicy;
use crate::sql;
use crate::store::Store;

const REGISTER: Act = Act { name: "registering schedules", instead: "the same before the transaction" };
const MAKE: Act = Act { name: "making an occurrence", instead: "nothing" };
const ATOMIC: Mode = Mode { atomic: true, synced: false, follows: false };
/// The wall clock is looked at this often at least.
const LONGEST: Duration = Duration::from_secs(60);

type Map = dyn Fn(&Occurrence, usize) -> anyhow::Result<Vec<NewJob>> + Send + Sync;

/// A schedule with its mapping function.
#[derive(Clone)]
pub(crate) struct Entry {
    schedule: Schedule,
    map: Arc<Map>,
}

impl Entry {
    pub(crate) fn new<J, M, I>(schedule: Schedule, map: M) -> Entry
    where
        J: Job,
        I: IntoIterator<Item = J>,
        M: Fn(&Occurrence) -> anyhow::Result<I> + Send + Sync + 'static,
    {
        let map = move |occurrence: &Occurrence, limit: usize| {
            let jobs = map(occurrence)?.into_iter();
            jobs.map(|job| NewJob::encode(&job, limit)).collect::<Result<_>>().map_err(anyhow::Error::from)
        };
        Entry { schedule, map: Arc::new(map) }
    }
}

/// The schedules of a runner.
pub(crate) struct Planner {
    store: Store,
    entries: Vec<Entry>,
}

/// What came of one try at one occurrence.
enum Made {
    /// Its jobs are in the file.
    Now,
    /// Another process has moved the mark.
    ByOthers,
    MustCompare(Vec<ToCompare>),
}

impl Planner {
    /// Registers the schedules.
    ///
    /// # Errors
    ///
    /// Two have one name; the errors of writing the file.
    pub(crate) fn new(store: Store, entries: Vec<Entry>) -> Result<Planner> {
        for (at, entry) in entries.iter().enumerate() {
            let name = &entry.schedule.name;
            if entries[..at].iter().any(|other| other.schedule.name == *name) {
                return Err(super::invalid(name, std::io::Error::other("two schedules have this name")));
            }
        }
        let planner = Planner { store, entries };
        let schedules: Vec<_> = planner.entries.iter().map(|entry| entry.schedule.clone()).collect();
        if !schedules.is_empty() {
            planner.store.inner.pen.write(REGISTER, ATOMIC, move |group| register(group, &schedules))?;
        }
        Ok(planner)
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }

    /// Makes all that is due; answers how long there is nothing to do.
    pub(crate) fn evaluate(&self) -> Duration {
        let mut next: Option<DateTime<Utc>> = None;
        for entry in &self.entries {
            match self.evaluate_one(entry) {
                Ok(at) => next = [next, at].into_iter().flatten().min(),
                Err(error) => {
                    tracing::warn!(schedule = entry.schedule.name, %error, "a schedule could not be evaluated");
                    return Duration::from_secs(1);
                }
            }
        }
        let now = self.now();
        next.map_or(LONGEST, |at| (at - now).to_std().unwrap_or(Duration::ZERO).min(LONGEST))
    }

    fn now(&self) -> DateTime<Utc> {
        instant(self.store.inner.clock.wall())
    }

    /// Makes what is due of one schedule, oldest first; answers when to look again.
    fn evaluate_one(&self, entry: &Entry) -> Result<Option<DateTime<Utc>>> {
        let Schedule { name, calendar, zone } = &entry.schedule;
        loop {
            let now = self.now();
            let Some(row) = self.row(name)? else { return Ok(None) };
            // Another program has registered the name with another calendar since: the newest definition counts.
            if row.calendar != calendar.to_string() || row.zone != zone.to_string() {
                return Ok(None);
            }
            if let Some(later) = row.try_at.map(instant).filter(|&at| at > now) {
                return Ok(Some(later));
            }
            let Ok(mark) = row.mark.parse::<Mark>() else {
                self.note_failure(&row, &format!("its mark `{}` is unreadable", row.mark))?;
                continue;
            };
            let Some(due) = calendar.due_oldest_first(zone, mark, now).next() else {
                return Ok(calendar.next(zone, now).map(|due| due.at));
            };
            if let Err(text) = self.make(entry, &row, due)? {
                self.note_failure(&row, &text)?;
            }
        }
    }

    fn row(&self, name: &str) -> Result<Option<ScheduleRow>> {
        self.store.read("reading a schedule", |tx| {
            tx.prepare_cached(sql::SCHEDULE_BY_NAME)?.query_row([name], read_schedule).optional()
        })
    }

    /// Makes one occurrence. The inner error is of the mapping function: the mark stays.
    fn make(&self, entry: &Entry, row: &ScheduleRow, due: Due) -> Result<std::result::Result<(), String>> {
        let occurrence = Occurrence { schedule: row.name.clone(), zone: entry.schedule.zone, due };
        let limit = self.store.inner.payload_limit;
        let jobs = match catch_unwind(AssertUnwindSafe(|| (entry.map)(&occurrence, limit))) {
            Ok(Ok(jobs)) => Arc::new(jobs),
            Ok(Err(error)) => return Ok(Err(text_of(&error))),
            Err(panic) => return Ok(Err(format!("its mapping function panicked: {}", panic_text(&*panic)))),
        };
        let mut compared = Compared::new();
        loop {
            let (id, mark, jobs, known) = (row.id, row.mark.clone(), Arc::clone(&jobs), std::mem::take(&mut compared));
            let (made, known) = self.store.inner.pen.write(MAKE, ATOMIC, move |group| {
                let made = write_occurrence(group, id, &mark, due, &jobs, &known)?;
                group.undo = matches!(made, Made::MustCompare(_));
                Ok((made, known))
            })?;
            compared = known;
            match made {
                Made::MustCompare(questions) => compare(questions, &mut compared),
                Made::Now | Made::ByOthers => return Ok(Ok(())),
            }
        }
    }

    /// The mark stays; the schedule is tried again with backoff, and the others go on.
    fn note_failure(&self, row: &ScheduleRow, text: &str) -> Result<()> {
        if row.failures == 0 {
            tracing::warn!(schedule = row.name, text, "a schedule cannot make its jobs; it is tried again");
        }
        let text = safe_text(text).into_owned();
        let (id, mark, failures) = (row.id, row.mark.clone(), row.failures);
        let random = self.store.inner.clock.random();
        self.store.inner.pen.write(MAKE, Mode::default(), move |group| {
            let delay = RetryPolicy::default().delay(failures.saturating_add(1), Duration::ZERO, random);
            let try_at = group.now.saturating_add(delay);
            group.statement(sql::SCHEDULE_FAILED)?.execute(params![id, mark, text, group.now, try_at])?;
            Ok(())
        })
    }
}

fn register(group: &mut Group<'_>, schedules: &[Schedule]) -> OpResult<()> {
    for schedule in schedules {
        let mark = schedule.calendar.mark_at(&schedule.zone, instant(group.now)).to_string();
        let (calendar, zone) = (schedule.calendar.to_string(), schedule.zone.to_string());
        group.statement(sql::REGISTER_SCHEDULE)?.execute(params![schedule.name, calendar, zone, mark])?;
    }
    Ok(())
}

fn write_occurrence(
    group: &mut Group<'_>,
    schedule: i64,
    mark: &str,
    due: Due,
    jobs: &[NewJob],
    compared: &Compared,
) -> OpResult<Made> {
    let moved = group.statement(sql::MOVE_MARK)?.execute(params![schedule, mark, due.mark().to_string()])?;
    if moved == 0 {
        return Ok(Made::ByOthers);
    }
    let id = due.occurrence();
    let count = i64::try_from(jobs.len()).unwrap_or(i64::MAX);
    let made = group.statement(sql::MAKE_OCCURRENCE)?.execute(params![
        schedule,
        id,
        due.at.timestamp_millis(),
        group.now,
        count
    ])?;
    if made == 0 {
        // It was made before, under a mark that has since been set back.
        return Ok(Made::Now);
    }
    let (mut questions, mut conflicts) = (Vec::new(), Vec::new());
    for job in jobs {
        match store(group, job, compared, false) {
            Ok(Stored::Answered(_)) => {}
            Ok(Stored::MustCompare(question)) => questions.push(question),
            // Other content under a known key does not hold up the schedule; it needs a person.
            Err(OpError::Refused(Error::KeyReused { kind, key, .. })) => conflicts.push(format!("{kind} {key}")),
            Err(error) => return Err(error),
        }
    }
    if !questions.is_empty() {
        return Ok(Made::MustCompare(questions));
    }
    if !conflicts.is_empty() {
        let text = serde_json::to_string(&conflicts).unwrap_or_default();
        group.statement(sql::NOTE_CONFLICTS)?.execute(params![schedule, id, text])?;
        tracing::warn!(schedule, occurrence = id, conflicts = text, "an occurrence met keys with other content");
    }
    Ok(Made::Now)
}
