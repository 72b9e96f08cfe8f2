//! Finding what is due and making its jobs. What is decided is [`plan()`](crate::calendar::plan())'s; what is written is
//! one transaction an occurrence.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use rusqlite::params;

use super::behind::Behind;
use super::dealt::dealt;
use super::define::register;
use super::kept;
use super::requests::Asked;
use super::row::ScheduleRow;
use super::write::{Gap, Move, Place, stored};
use super::{Occurrence, Overlap, Schedule, invalid, reason};
use crate::calendar::{CatchUp, Clock, MissedReason, Plan, Policy, Run, plan_around};
use crate::enqueue::{NewJob, Terms};
use crate::error::Result;
use crate::job::{Job, instant};
use crate::pen::{Act, Mode};
use crate::platform::program_name;
use crate::sql;
use crate::store::Store;

const REGISTER: Act = Act { name: "registering schedules", instead: "the same before the transaction" };
const ATOMIC: Mode = Mode { atomic: true, synced: false, follows: false };
/// The wall clock is looked at this often at least: it may be set, and the zone may change.
const LONGEST: Duration = Duration::from_secs(60);
/// How often a run that waits for the last one looks whether that is finished, if nothing tells it.
const UNFINISHED: Duration = Duration::from_secs(1);
/// No failed mapping waits longer. A later time was noted by a clock that has been set back since.
const LONGEST_BACKOFF: TimeDelta = TimeDelta::minutes(75);

pub(super) type Map = dyn Fn(&Occurrence, &Terms) -> anyhow::Result<Vec<NewJob>> + Send + Sync;

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
    behind: Behind,
    /// A run waits for the last one to finish.
    waits: Arc<AtomicBool>,
}

/// A schedule that can be evaluated here.
pub(super) struct Mine {
    pub(super) row: ScheduleRow,
    pub(super) schedule: Schedule,
    pub(super) map: Arc<Map>,
}

/// What to do next with a schedule.
pub(super) enum Step {
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
        if let Some(text) = entries.iter().find_map(|entry| entry.schedule.zone.warning()) {
            tracing::warn!(text, "schedules in the machine's own zone");
        }
        let planner = Planner { store, entries, kinds, behind: Behind::default(), waits: Arc::default() };
        let schedules: Vec<_> = planner.entries.iter().map(|entry| entry.schedule.clone()).collect();
        let owner = planner.store.inner.owner()?.id;
        if !schedules.is_empty() || planner.leaves_orphans(owner)? {
            let pen = &planner.store.inner.pen;
            pen.write(REGISTER, ATOMIC, move |group| register(group, &schedules, &program_name(), owner))?;
        }
        Ok(planner)
    }

    /// Whether this program no longer registers what an earlier process of it did. A runner without schedules does not
    /// ask for the writer lock otherwise.
    fn leaves_orphans(&self, owner: i64) -> Result<bool> {
        self.store.read("looking for orphaned schedules", |tx| {
            let ask = params![program_name(), owner];
            tx.prepare_cached(sql::HAS_ORPHANS)?.query_row(ask, |row| row.get(0))
        })
    }

    /// The schedules that are registered with it.
    pub(crate) fn names(&self) -> Vec<String> {
        self.entries.iter().map(|entry| entry.schedule.name.clone()).collect()
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
            let Some(mine) = self.mine(row)? else { return Ok(None) };
            if let Asked::Until(asked) = self.carry_out_asked(&mine)?
                && let Step::Until(due) = self.step(&mine)?
            {
                return Ok([asked, due].into_iter().flatten().min());
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
                Err(_) if self.later(row.try_at).is_some() => return Ok(None),
                Err(text) => return self.note_failure(&row, row.found(), &text).map(|()| None),
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

    /// The time of a next try, if that has yet to come.
    pub(super) fn later(&self, try_at: Option<i64>) -> Option<DateTime<Utc>> {
        let now = self.now();
        try_at.map(instant).filter(|&at| at > now && at - now <= LONGEST_BACKOFF)
    }

    fn step(&self, mine: &Mine) -> Result<Step> {
        if mine.row.paused_at.is_some() {
            return Ok(Step::Until(None));
        }
        let Some(plan) = self.plan(mine)? else { return Ok(Step::Until(self.later(mine.row.try_at))) };
        let next = || mine.schedule.calendar.next(&mine.schedule.zone, self.now()).map(|due| due.at);
        // Everything up to a high mark was dealt with before, and recorded then.
        let missed = if plan.high.is_some() { &[][..] } else { &plan.missed[..] };
        let (newer, dropped): (Vec<_>, Vec<_>) = missed.iter().partition(|missed| missed.reason == MissedReason::Newer);
        let gaps = |missed: Vec<_>| missed.into_iter().map(Gap::of).collect();
        let Some(run) = plan.runs.first() else {
            let to = Place::new(plan.mark, plan.high, None);
            if to == mine.place() && missed.is_empty() {
                return Ok(Step::Until(next()));
            }
            return self.pass_over(mine, to, true, gaps(missed.iter().collect()));
        };
        let waits = |mark| Place::new(mark, plan.high, plan.found);
        if !dropped.is_empty() {
            return self.pass_over(mine, waits(plan.passed), false, gaps(dropped));
        }
        if let Some(later) = self.later(mine.row.try_at) {
            // What comes due before the next try is found all the same, and keeps that it was on time.
            let found = Place { found: stored(plan.found), ..mine.place() };
            return match found == mine.place() {
                true => Ok(Step::Until([Some(later), next()].into_iter().flatten().min())),
                false => self.pass_over(mine, found, false, Vec::new()),
            };
        }
        self.run(mine, &plan, *run, gaps(newer))
    }

    /// What the time and the file ask for; `None` if the file cannot be understood, which is noted.
    fn plan(&self, mine: &Mine) -> Result<Option<Plan>> {
        let Schedule { calendar, zone, policy, overlap, .. } = &mine.schedule;
        let (now, monotonic) = (self.now(), self.store.inner.clock.monotonic());
        let state = match mine.row.state(self.behind.sum(&mine.row, monotonic)) {
            Ok(state) => state,
            Err(_) if self.later(mine.row.try_at).is_some() => return Ok(None),
            Err(text) => {
                self.note_failure(&mine.row, mine.row.found(), &text)?;
                return Ok(None);
            }
        };
        let dealt = dealt(&self.store, mine.row.id, &mine.schedule, &state, now)?;
        // One is made at a time; whether it has company is asked too. Of those that queue the newest is wanted.
        let batch = if *overlap == Overlap::QueueOne { policy.batch } else { 2 };
        let plan = plan_around(&dealt, calendar, zone, &state, now, &Policy { batch, ..*policy });
        self.behind.note(&self.store, &mine.row, plan.clock)?;
        Ok(Some(plan))
    }

    /// Makes a run, or leaves it for the last one to finish.
    fn run(&self, mine: &Mine, plan: &Plan, mut run: Run, mut gaps: Vec<Gap>) -> Result<Step> {
        let Schedule { policy, overlap, .. } = &mine.schedule;
        let last = self.last_run(mine)?;
        let each = matches!(policy.catch_up, CatchUp::Each { .. });
        let after_others = backlog(plan, &run, each, last);
        // What has been found together, or late, runs one after another; so it never meets the last one by chance.
        let queues = policy.catch_up != CatchUp::Latest && after_others;
        let steady = plan.clock == Clock::Steady;
        // Found on time, but long ago: it has waited for a mapping that failed.
        let stale = (self.now() - run.due.at).to_std().is_ok_and(|age| age > policy.grace);
        if last.is_some_and(|last| last.unfinished) {
            match overlap {
                Overlap::Allow if !(each && (run.late || stale)) => {}
                Overlap::Skip if !queues => {
                    gaps.push(Gap::of_runs(&[run], "overlap"));
                    let place = mine.after(plan, &run, plan.runs.len() == 1);
                    return self.pass_over(mine, place, true, gaps);
                }
                _ => return self.wait(mine, plan),
            }
        }
        let queued = if *overlap == Overlap::QueueOne && steady && !queues { queued(plan, last) } else { 0 };
        if queued > 1 {
            // The newest has waited, the others are one record. There may be a newer one still.
            let no_newest = plan.more && queued == plan.runs.len();
            run = plan.runs[queued - 1];
            gaps.push(Gap::of_runs(&plan.runs[..queued - usize::from(!no_newest)], "overlap"));
            if no_newest {
                return self.pass_over(mine, mine.after(plan, &run, false), true, gaps);
            }
        }
        let is_last = !plan.more && plan.runs.last().is_some_and(|last| last.due == run.due);
        let to = mine.after(plan, &run, is_last);
        self.make_due(mine, plan, run, Move { from: mine.place(), to, settles: true }, gaps)
    }

    /// Leaves what is due for later, and notes when it was found.
    fn wait(&self, mine: &Mine, plan: &Plan) -> Result<Step> {
        self.waits.store(true, Ordering::Release);
        let found = Place { found: stored(plan.found), ..mine.place() };
        if found != mine.place() {
            return self.pass_over(mine, found, false, Vec::new());
        }
        Ok(Step::Until(mine.schedule.calendar.next(&mine.schedule.zone, self.now()).map(|due| due.at)))
    }

    fn last_run(&self, mine: &Mine) -> Result<Option<LastRun>> {
        let Some(last) = &mine.row.last_run else { return Ok(None) };
        let read = |row: &rusqlite::Row<'_>| {
            let (made_at, finished_at) = (row.get::<_, Option<i64>>(0)?, row.get::<_, Option<i64>>(2)?);
            let unfinished = row.get(1)?;
            Ok(made_at.map(|at| LastRun { made_at: instant(at), unfinished, finished_at: finished_at.map(instant) }))
        };
        self.store.read("looking at the last run", |tx| {
            tx.prepare_cached(sql::LAST_RUN)?.query_row(params![mine.row.id, last], read)
        })
    }
}

impl Drop for Planner {
    fn drop(&mut self) {
        self.behind.rest(&self.store);
    }
}

/// The run before.
#[derive(Clone, Copy)]
struct LastRun {
    made_at: DateTime<Utc>,
    unfinished: bool,
    finished_at: Option<DateTime<Utc>>,
}

/// How many of the runs came due while the last one ran.
fn queued(plan: &Plan, last: Option<LastRun>) -> usize {
    let finished = last.and_then(|last| last.finished_at);
    plan.runs.iter().take_while(|run| finished.is_some_and(|at| run.due.at <= at)).count()
}

/// Whether a run belongs to a backlog: it is late, or was found together with the next, or the one before was itself made
/// when this was due already.
fn backlog(plan: &Plan, run: &Run, each: bool, last: Option<LastRun>) -> bool {
    let found = plan.found.map(|found| found.at);
    let together = plan.runs.get(1).is_some_and(|second| found.is_some_and(|at| second.due.at <= at));
    (each && run.late) || together || last.is_some_and(|last| last.made_at >= run.due.at)
}

impl Mine {
    pub(super) fn place(&self) -> Place {
        let (mark, high) = (self.row.mark.clone(), self.row.high.clone());
        Place { mark, high, found: (self.row.found_at, self.row.seen_at) }
    }

    /// Where the schedule is once a run has been dealt with. A clock that is behind moves the marks after the last of its
    /// runs: what is below them is not looked for.
    fn after(&self, plan: &Plan, run: &Run, is_last: bool) -> Place {
        let found = plan.found.filter(|_| !is_last);
        match plan.clock {
            // After the last of them, past what was dealt with beside it.
            Clock::Steady if is_last => Place::new(plan.mark, plan.high, found),
            Clock::Steady => Place::new(run.due.mark(), plan.high, found),
            _ => Place { found: stored(found), ..self.place() },
        }
    }
}
