//! Finding what is due and making its jobs. What is decided is [`plan`]'s; what is written is one transaction an occurrence.

use std::collections::hash_map::{self, HashMap};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use rusqlite::params;

use super::kept;
use super::row::ScheduleRow;
use super::write::{Gap, Making, Move, make, pass_over, register, texts};
use super::{Occurrence, Overlap, Schedule, invalid, reason};
use crate::calendar::{CatchUp, Clock, Count, Plan, Run, plan};
use crate::enqueue::{NewJob, Terms};
use crate::error::Result;
use crate::failure::{panic_text, safe_text, text_of};
use crate::job::{Job, instant};
use crate::pen::{Act, Mode};
use crate::platform::program_name;
use crate::retry::RetryPolicy;
use crate::sql;
use crate::store::Store;

const REGISTER: Act = Act { name: "registering schedules", instead: "the same before the transaction" };
const MAKE: Act = Act { name: "making an occurrence", instead: "nothing" };
const ATOMIC: Mode = Mode { atomic: true, synced: false, follows: false };
/// The wall clock is looked at this often at least: it may be set, and the zone may change.
const LONGEST: Duration = Duration::from_secs(60);
/// How often a run that waits for the last one looks whether that is finished, if nothing tells it.
const UNFINISHED: Duration = Duration::from_secs(1);

/// No failed mapping waits longer. A later time was noted by a clock that has been set back since.
const LONGEST_BACKOFF: TimeDelta = TimeDelta::minutes(75);

type Map = dyn Fn(&Occurrence, &Terms) -> anyhow::Result<Vec<NewJob>> + Send + Sync;

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
        let map = move |occurrence: &Occurrence, terms: &Terms| {
            let jobs = map(occurrence)?.into_iter();
            jobs.map(|job| NewJob::encode(&job, terms)).collect::<Result<_>>().map_err(anyhow::Error::from)
        };
        Entry { schedule, map: Arc::new(map) }
    }
}

/// The schedules that a runner can evaluate: those registered with it, and those kept in the file whose kind it handles.
pub(crate) struct Planner {
    pub(super) store: Store,
    entries: Vec<Entry>,
    /// Handled kinds with the shape of their payloads.
    kinds: HashMap<String, u32>,
    /// Since when the clock has been far behind a schedule's mark, on the monotonic clock.
    behind: Mutex<HashMap<i64, Duration>>,
    /// A run waits for the last one to finish.
    waits: Arc<AtomicBool>,
}

/// A schedule that can be evaluated here.
pub(super) struct Mine {
    pub(super) row: ScheduleRow,
    pub(super) schedule: Schedule,
    map: Arc<Map>,
}

/// What to do next with a schedule.
enum Step {
    /// Something was written: look again.
    Again,
    /// Nothing until then; `None`: nothing until something changes.
    Until(Option<DateTime<Utc>>),
}

impl Planner {
    /// Registers the schedules.
    ///
    /// # Errors
    ///
    /// Two have one name; the errors of writing the file.
    pub(crate) fn new(store: Store, entries: Vec<Entry>, kinds: HashMap<String, u32>) -> Result<Planner> {
        for (at, entry) in entries.iter().enumerate() {
            let name = &entry.schedule.name;
            if entries[..at].iter().any(|other| other.schedule.name == *name) {
                return Err(invalid(name, reason("two schedules have this name")));
            }
        }
        let planner = Planner { store, entries, kinds, behind: Mutex::default(), waits: Arc::default() };
        let schedules: Vec<_> = planner.entries.iter().map(|entry| entry.schedule.clone()).collect();
        let owner = planner.store.inner.owner()?.id;
        if !schedules.is_empty() || planner.leaves_orphans(owner)? {
            let pen = &planner.store.inner.pen;
            pen.write(REGISTER, ATOMIC, move |group| register(group, &schedules, &program_name(), owner))?;
        }
        Ok(planner)
    }

    /// Whether this program no longer registers what an earlier process of it did. A runner without schedules writes
    /// nothing at its start otherwise.
    fn leaves_orphans(&self, owner: i64) -> Result<bool> {
        self.store.read("looking for orphaned schedules", |tx| {
            let ask = params![program_name(), owner];
            tx.prepare_cached(sql::HAS_ORPHANS)?.query_row(ask, |row| row.get(0))
        })
    }

    /// True while a run waits for the last one to finish.
    pub(crate) fn waits(&self) -> Arc<AtomicBool> {
        Arc::clone(&self.waits)
    }

    /// Makes all that is due and carries out what was asked; answers how long there is nothing to do.
    ///
    /// # Errors
    ///
    /// Those of the file. What is wrong with one schedule is noted there and holds up no other.
    pub(crate) fn evaluate(&self) -> Result<Duration> {
        self.waits.store(false, Ordering::Release);
        let rows: Vec<ScheduleRow> = self.store.read("reading schedules", |tx| {
            tx.prepare_cached(sql::SCHEDULES)?.query_map([], ScheduleRow::read)?.collect()
        })?;
        let mut next: Option<DateTime<Utc>> = None;
        for row in rows {
            let at = self.evaluate_one(row)?;
            next = [next, at].into_iter().flatten().min();
        }
        let limit = if self.waits.load(Ordering::Acquire) { UNFINISHED } else { LONGEST };
        Ok(next.map_or(limit, |at| (at - self.now()).to_std().unwrap_or(Duration::ZERO).min(limit)))
    }

    pub(super) fn now(&self) -> DateTime<Utc> {
        instant(self.store.inner.clock.wall())
    }

    fn evaluate_one(&self, mut row: ScheduleRow) -> Result<Option<DateTime<Utc>>> {
        loop {
            let name = row.name.clone();
            let now = self.now();
            if let Some(later) = row.try_at.map(instant).filter(|&at| at > now && at - now <= LONGEST_BACKOFF) {
                return Ok(Some(later));
            }
            let Some(mine) = self.mine(row)? else { return Ok(None) };
            if let Step::Until(at) = self.step(&mine)? {
                return Ok(at);
            }
            let Some(fresh) = self.store.schedule_row(&name)? else { return Ok(None) };
            row = fresh;
        }
    }

    /// The row as one that can be evaluated here. One that cannot be understood is noted as broken, if it would be ours.
    fn mine(&self, row: ScheduleRow) -> Result<Option<Mine>> {
        if let Some(kind) = row.kind.clone() {
            let Some(&shape) = self.kinds.get(&kind) else { return Ok(None) };
            let schedule = match row.definition() {
                Ok(schedule) => schedule,
                Err(text) => return self.note_failure(&row, &text).map(|()| None),
            };
            let (payload, template) = (row.payload.clone().unwrap_or_default(), row.key_template.clone());
            let map = move |occurrence: &Occurrence, terms: &Terms| {
                Ok(vec![kept::job(occurrence, &kind, shape, &payload, template.as_deref(), terms)?])
            };
            return Ok(Some(Mine { row, schedule, map: Arc::new(map) }));
        }
        let entry = self.entries.iter().find(|entry| row.name == entry.schedule.name && row.is(&entry.schedule));
        let Some(entry) = entry else { return Ok(None) };
        let calendar = entry.schedule.calendar.clone().anchored(instant(row.anchor));
        let schedule = Schedule { calendar, ..entry.schedule.clone() };
        Ok(Some(Mine { row, schedule, map: Arc::clone(&entry.map) }))
    }

    fn step(&self, mine: &Mine) -> Result<Step> {
        if self.carry_out_asked(mine)? {
            return Ok(Step::Again);
        }
        if mine.row.paused_at.is_some() {
            return Ok(Step::Until(None));
        }
        let now = self.now();
        let state = match mine.row.state(self.behind_for(mine.row.id)) {
            Ok(state) => state,
            Err(text) => return self.broken(mine, &text),
        };
        let Schedule { calendar, zone, policy, .. } = &mine.schedule;
        let plan = plan(calendar, zone, &state, now, policy);
        self.note_clock(mine, plan.clock);
        let from = (mine.row.mark.clone(), mine.row.high.clone());
        let moves = |run: Option<&Run>| {
            let to = match run {
                Some(run) if plan.clock == Clock::Steady => texts(run.due.mark(), plan.high),
                // A clock that is behind moves the marks after the last of its runs: what is below them is not looked for.
                Some(_) => from.clone(),
                None => texts(plan.mark, plan.high),
            };
            Move { from: from.clone(), to }
        };
        // Everything up to a high mark was dealt with before, and recorded then.
        let missed = if plan.high.is_some() { &[][..] } else { &plan.missed[..] };
        let Some(run) = self.next_run(mine, &plan)? else {
            let to = moves(None);
            if to.from == to.to && missed.is_empty() {
                return Ok(Step::Until(calendar.next(zone, now).map(|due| due.at)));
            }
            let gaps: Vec<_> = missed.iter().map(Gap::of).collect();
            return self.pass_over(mine, to, gaps);
        };
        let earlier = |missed: &&crate::calendar::Missed| missed.to.mark() < run.due.mark();
        let gaps: Vec<_> = missed.iter().filter(earlier).map(Gap::of).collect();
        self.run(mine, &plan, run, moves(Some(&run)), gaps)
    }

    /// The first planned run that has not been made. Where the time has been here before, some have, or were skipped.
    fn next_run(&self, mine: &Mine, plan: &Plan) -> Result<Option<Run>> {
        let again = plan.clock != Clock::Steady || plan.high.is_some();
        for run in &plan.runs {
            let id = run.due.occurrence();
            let seen = again && (self.exists(mine, &id)? || self.was_skipped(mine, &id)?);
            if !seen {
                return Ok(Some(*run));
            }
        }
        Ok(None)
    }

    pub(super) fn exists(&self, mine: &Mine, occurrence: &str) -> Result<bool> {
        self.store.read("looking for an occurrence", |tx| {
            tx.prepare_cached(sql::HAS_OCCURRENCE)?.exists(params![mine.row.id, occurrence])
        })
    }

    /// Whether it did not run for overlap. The mark tells of that only where the clock is not behind it.
    fn was_skipped(&self, mine: &Mine, occurrence: &str) -> Result<bool> {
        self.store.read("looking for a skipped occurrence", |tx| {
            tx.prepare_cached(sql::HAS_SKIPPED)?.exists(params![mine.row.id, occurrence])
        })
    }

    /// Makes a run, or leaves it for the last one to finish.
    fn run(&self, mine: &Mine, plan: &Plan, mut run: Run, to: Move, mut gaps: Vec<Gap>) -> Result<Step> {
        let each = matches!(mine.schedule.policy.catch_up, CatchUp::Each { .. }) && run.late;
        let mut to = to;
        if (each || mine.schedule.overlap != Overlap::Allow) && self.is_unfinished(mine)? {
            if each || mine.schedule.overlap == Overlap::QueueOne {
                self.waits.store(true, Ordering::Release);
                return Ok(Step::Until(None));
            }
            gaps.push(Gap::one(run.due.occurrence(), "overlap"));
            return self.pass_over(mine, to, gaps);
        }
        if !each && mine.schedule.overlap == Overlap::QueueOne && plan.clock == Clock::Steady {
            // What came while the last one ran: the newest has waited, the others are recorded.
            let first = run.due.mark();
            for newer in plan.runs.iter().copied().skip_while(|other| other.due.mark() <= first) {
                gaps.push(Gap::one(std::mem::replace(&mut run, newer).due.occurrence(), "overlap"));
                to.to.0 = run.due.mark().to_string();
            }
        }
        self.make(mine, run, run.due.occurrence(), "due", Some(to), gaps)
    }

    fn is_unfinished(&self, mine: &Mine) -> Result<bool> {
        let Some(last) = &mine.row.last_run else { return Ok(false) };
        self.store.read("looking at the last run", |tx| {
            tx.prepare_cached(sql::IS_UNFINISHED)?.query_row(params![mine.row.id, last], |row| row.get(0))
        })
    }

    fn pass_over(&self, mine: &Mine, to: Move, gaps: Vec<Gap>) -> Result<Step> {
        let id = mine.row.id;
        self.store.inner.pen.write(MAKE, ATOMIC, move |group| Ok(pass_over(group, id, &to, &gaps)?))?;
        Ok(Step::Again)
    }

    /// Maps one occurrence and writes it. If the mapping fails, the mark stays.
    fn make(
        &self,
        mine: &Mine,
        run: Run,
        id: String,
        cause: &'static str,
        mark: Option<Move>,
        missed: Vec<Gap>,
    ) -> Result<Step> {
        let occurrence = Occurrence { schedule: mine.row.name.clone(), zone: mine.schedule.zone, run, id: id.clone() };
        let terms = &self.store.inner.terms;
        let jobs = match catch_unwind(AssertUnwindSafe(|| (mine.map)(&occurrence, terms))) {
            Ok(Ok(jobs)) => jobs,
            Ok(Err(error)) => return self.broken(mine, &text_of(&error)),
            Err(panic) => {
                return self.broken(mine, &format!("its mapping function panicked: {}", panic_text(&*panic)));
            }
        };
        let due_at = run.due.at.timestamp_millis();
        let making = Making { schedule: mine.row.id, id, due_at, cause, jobs: Arc::new(jobs), missed, mark };
        self.store.write_compared(MAKE, ATOMIC, move |group, compared| make(group, &making, compared))?;
        Ok(Step::Again)
    }

    /// Makes an occurrence that a person asked for, whatever the mark.
    pub(super) fn make_asked(
        &self,
        mine: &Mine,
        due: crate::calendar::Due,
        id: String,
        cause: &'static str,
    ) -> Result<std::result::Result<(), ()>> {
        let lateness = (self.now() - due.at).to_std().unwrap_or_default();
        let run = Run { due, lateness, late: false, missed_count: Count::default(), missed_since: None };
        match self.make(mine, run, id, cause, None, Vec::new())? {
            Step::Again => Ok(Ok(())),
            Step::Until(_) => Ok(Err(())),
        }
    }

    fn broken(&self, mine: &Mine, text: &str) -> Result<Step> {
        self.note_failure(&mine.row, text)?;
        Ok(Step::Until(Some(self.now() + TimeDelta::seconds(1))))
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

    fn behind_for(&self, schedule: i64) -> Duration {
        let now = self.store.inner.clock.monotonic();
        let behind = self.behind.lock().unwrap_or_else(PoisonError::into_inner);
        behind.get(&schedule).map_or(Duration::ZERO, |&since| now.saturating_sub(since))
    }

    fn note_clock(&self, mine: &Mine, clock: Clock) {
        let now = self.store.inner.clock.monotonic();
        let mut behind = self.behind.lock().unwrap_or_else(PoisonError::into_inner);
        if clock != Clock::Behind {
            behind.remove(&mine.row.id);
        } else if let hash_map::Entry::Vacant(first) = behind.entry(mine.row.id) {
            first.insert(now);
            let (schedule, mark) = (&mine.row.name, &mine.row.mark);
            tracing::warn!(schedule, mark, "the clock went back; nothing is caught up until it reaches the mark again");
        }
    }
}
