//! Letting dead and cancelled jobs run again, under control.

mod canary;
mod fix;

use std::sync::atomic::{AtomicI64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use rusqlite::params;
use serde::Serialize;
use serde_json::json;

use self::fix::{Fix, Fixed};
use super::{Deed, Errand, Task, Which};
use crate::error::{Error, Result};
use crate::failure::Class;
use crate::fingerprint::Fingerprint;
use crate::ordering::come_back;
use crate::pen::{Act, Group, OpResult};
use crate::sql;
use crate::state::State;
use crate::store::{JobInfo, Store};

const REPLAY: Act = Act { name: "replay", instead: "replay after the transaction" };
/// How many payloads are put right before they are written.
const FIXED_AT_ONCE: usize = 200;

/// How dead letters are replayed. By default all at once, with all their attempts and what they have stored of themselves.
///
/// ```
/// use birkez::Replay;
/// let careful = Replay::new().canary(5).limit(1_000).per_minute(60);
/// ```
#[derive(Clone, Default)]
#[must_use]
pub struct Replay {
    dry_run: bool,
    everything: bool,
    limit: Option<usize>,
    per_minute: Option<u32>,
    canary: usize,
    patience: Option<Duration>,
    fix: Option<Fix>,
    anew: bool,
}

impl Replay {
    /// All that are meant, at once.
    pub fn new() -> Replay {
        Replay::default()
    }

    /// Changes nothing: the answer says what is meant, by class of the last failure.
    pub fn dry_run(self) -> Replay {
        Replay { dry_run: true, ..self }
    }

    /// Says that a filter which names nothing but a state is meant so. Without it such a replay is refused.
    pub fn everything(self) -> Replay {
        Replay { everything: true, ..self }
    }

    /// So many at most: those with the lowest numbers that can be replayed.
    pub fn limit(self, jobs: usize) -> Replay {
        Replay { limit: Some(jobs), ..self }
    }

    /// So many a minute, so that what has just come up again is not flooded. They are given times one after another and
    /// need no further hand; [`Filter::touched_by`](crate::Filter::touched_by) with the deed's number and [`Store::cancel`] stop the rest. 0 counts
    /// as 1.
    pub fn per_minute(self, jobs: u32) -> Replay {
        Replay { per_minute: Some(jobs.max(1)), ..self }
    }

    /// The first so many go alone, with one attempt each: the call waits for them, and goes on with the others only if all
    /// of them are done; it stops waiting at the first that is not. Somebody must be running jobs of their kinds meanwhile.
    pub fn canary(self, jobs: usize) -> Replay {
        Replay { canary: jobs, ..self }
    }

    /// How long the call waits for the canary. Defaults to one minute.
    pub fn patience(self, time: Duration) -> Replay {
        Replay { patience: Some(time), ..self }
    }

    /// Puts payloads right: `fix` is given each as JSON and answers what it should have been. Where the kind's type is
    /// known, since a runner of this process handles it, the answer must decode as that and have the job's key. The old
    /// payload stays in the record ([`Store::payload_before`]); the fingerprint stays that of what was sent, so that a
    /// repeat by the sender is still a repeat. A job that `fix` has an error for is left as it is.
    pub fn fix(
        self,
        fix: impl Fn(serde_json::Value) -> anyhow::Result<serde_json::Value> + Send + Sync + 'static,
    ) -> Replay {
        Replay { fix: Some(Fix::new(fix)), ..self }
    }

    /// Nothing is known of an earlier run: stored steps run again, under a new idempotency key. By default they stay, so
    /// that what has been done outside is not done twice.
    pub fn anew(self) -> Replay {
        Replay { anew: true, ..self }
    }

    /// For the record.
    fn detail(&self) -> String {
        let mut said = serde_json::Map::new();
        let mut say = |word: &str, value: Option<serde_json::Value>| said.extend(value.map(|it| (word.to_owned(), it)));
        say("limit", self.limit.map(|limit| json!(limit)));
        say("per_minute", self.per_minute.map(|jobs| json!(jobs)));
        say("canary", (self.canary > 0).then(|| json!(self.canary)));
        say("fix", self.fix.is_some().then_some(json!(true)));
        say("anew", self.anew.then_some(json!(true)));
        serde_json::Value::Object(said).to_string()
    }
}

impl std::fmt::Debug for Replay {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Replay").field(&self.detail()).finish()
    }
}

/// What a replay has done.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Replayed {
    /// What was meant, by class of the last failure.
    pub by_class: Vec<(Option<Class>, u64)>,
    /// The jobs that wait to run again, or have done so, in the order of their numbers. The canary comes first.
    pub replayed: Vec<i64>,
    /// How the canary stood in the end.
    pub canary: Vec<JobInfo>,
    /// Why it did not go on after the canary.
    pub stopped: Option<String>,
    /// Jobs that could not be replayed and stayed as they are, with the reason.
    pub refused: Vec<(i64, String)>,
    /// How many of those that were meant this call has left alone.
    pub left: u64,
    /// After a dry run: how many of them would be replayed. Those whose payload is gone would not, nor those beyond the
    /// limit.
    pub would_go: u64,
    /// The number of its record, if it changed anything.
    pub deed: Option<i64>,
}

impl Store {
    /// Lets dead jobs, and cancelled ones, run again, with all their attempts; the history of the old ones stays. A filter
    /// means dead ones unless it says [`State::Cancelled`]. What is meant is settled when the call begins: what dies later
    /// is not touched. Each job takes its old place in the line of its ordering key. `how` says how carefully.
    ///
    /// Steps that are stored stay, and so does the idempotency key, unless `how` says [`anew`](Replay::anew).
    ///
    /// ```
    /// # use birkez::{Class, Deed, Filter, Replay};
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// let timeouts = Filter::dead().kind("mail").class(Class::Timeout);
    /// let meant = store.replay(&timeouts, Replay::new().dry_run(), "Ada")?;
    /// println!("{} would run again", meant.would_go);
    /// let deed = Deed::by("Ada").because("the server is back");
    /// let report = store.replay(&timeouts, Replay::new().canary(3).per_minute(30), deed)?;
    /// if let Some(why) = report.stopped {
    ///     println!("only the canary ran: {why}");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::ReplayRefused`] for a filter that means everything, unless `how` says so, and for one that names another
    /// state. For a job that is named: [`Error::NoSuchJob`], and [`Error::WrongState`] if it is neither dead nor cancelled.
    /// Those of writing the file; what was replayed before stays so.
    pub fn replay(&self, which: impl Into<Which>, how: Replay, deed: impl Into<Deed>) -> Result<Replayed> {
        // The call may wait for jobs.
        self.inner.pen.refuse_inside(REPLAY)?;
        let which = meant(which.into(), &how)?;
        let mut report = Replayed { by_class: self.classes_of(&which)?, ..Replayed::default() };
        let ids = self.selected(&which)?;
        report.left = count(&ids);
        let limit = how.limit.unwrap_or(usize::MAX);
        if how.dry_run {
            report.would_go = self.would_go(&which, &ids)?.min(limit as u64);
            return Ok(report);
        }
        let task = Task { act: REPLAY, verb: "replay", which, deed: deed.into(), detail: Some(how.detail()) };
        let mut errand = Errand::new(task);
        let mut pool = &ids[..];
        if how.canary > 0 {
            self.draw(&mut errand, &mut pool, how.canary.min(limit), (&how, Pace::canary()), &mut report)?;
            report.canary = self.wait_for_canary(&report.replayed, how.patience)?;
            report.stopped = canary::verdict(&report.canary);
        }
        if report.stopped.is_none() {
            self.draw(&mut errand, &mut pool, limit, (&how, Pace::of(how.per_minute)), &mut report)?;
        }
        if report.replayed.is_empty() && report.refused.is_empty() {
            errand.refuse_named(self, &ids)?;
        }
        report.deed = errand.event();
        report.left -= count(&report.replayed);
        Ok(report)
    }

    /// Of what is meant.
    fn classes_of(&self, which: &Which) -> Result<Vec<(Option<Class>, u64)>> {
        if let Which::Filter(filter) = which {
            return self.count_by_class(filter);
        }
        let ids = self.selected(which)?;
        let job = ids.first().map(|id| self.job(*id)).transpose()?.flatten();
        Ok(job.map(|job| (job.last_failure.map(|failure| failure.class), 1)).into_iter().collect())
    }

    /// How many could be replayed.
    fn would_go(&self, which: &Which, ids: &[i64]) -> Result<u64> {
        if !matches!(which, Which::Filter(_)) {
            let job = ids.first().map(|id| self.job(*id)).transpose()?.flatten();
            if let Some(job) = job.filter(|job| !is_over(job)) {
                return Err(Error::WrongState { act: REPLAY.name, kind: job.kind, key: job.key, state: job.state });
            }
        }
        self.read("counting payloads", |tx| {
            let mut ask = tx.prepare_cached(sql::HAS_PAYLOAD)?;
            ids.iter().try_fold(0, |sum, id| Ok(sum + u64::from(ask.exists([id])?)))
        })
    }

    /// Draws from the pool until so many in all have been replayed, or none is left: one that is refused, or that another
    /// call has replayed meanwhile, is made up for by the next.
    fn draw(
        &self,
        errand: &mut Errand,
        pool: &mut &[i64],
        most: usize,
        (how, pace): (&Replay, Pace),
        report: &mut Replayed,
    ) -> Result<()> {
        let pace = Arc::new(pace);
        while report.replayed.len() < most && !pool.is_empty() {
            let (some, rest) = pool.split_at((most - report.replayed.len()).min(pool.len()));
            *pool = rest;
            self.replay_some(errand, some, how, &pace, report)?;
        }
        Ok(())
    }

    fn replay_some(
        &self,
        errand: &mut Errand,
        ids: &[i64],
        how: &Replay,
        pace: &Arc<Pace>,
        report: &mut Replayed,
    ) -> Result<()> {
        let anew = how.anew;
        let Some(fix) = &how.fix else {
            let pace = Arc::clone(pace);
            return self.write_replay(errand, ids, report, move |group, job, _| again(group, job, &pace, anew));
        };
        for some in ids.chunks(FIXED_AT_ONCE) {
            let (fixed, refused) = fix.prepare(self, some)?;
            report.refused.extend(refused);
            let some: Vec<i64> = some.iter().copied().filter(|id| fixed.contains_key(id)).collect();
            let (fixed, pace) = (Arc::new(fixed), Arc::clone(pace));
            self.write_replay(errand, &some, report, move |group, job, before| {
                // One that has gone on since must not find another payload than it was given.
                let one = fixed.get(&job.id).filter(|_| is_over(job));
                let Some(Fixed { old, new, fingerprint }) = one else { return Ok(Again::Unmeant) };
                let is_new = group.statement(sql::FIX_PAYLOAD)?.execute(params![
                    job.id,
                    old,
                    new,
                    fingerprint.as_ref().map(Fingerprint::bytes)
                ])? == 1;
                if !is_new {
                    return Ok(Again::Refused("its payload was changed meanwhile"));
                }
                *before = Some(old.clone());
                again(group, job, &pace, anew)
            })?;
        }
        Ok(())
    }

    fn write_replay(
        &self,
        errand: &mut Errand,
        ids: &[i64],
        report: &mut Replayed,
        change: impl Fn(&mut Group<'_>, &JobInfo, &mut Option<String>) -> OpResult<Again> + Send + Sync + 'static,
    ) -> Result<()> {
        let refused = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&refused);
        let replayed = errand.run_keeping(self, ids, move |group, job, before| {
            Ok(match change(group, job, before)? {
                Again::Replayed => Some(job.id),
                Again::Unmeant => None,
                Again::Refused(why) => {
                    noted.lock().unwrap_or_else(PoisonError::into_inner).push((job.id, why.to_owned()));
                    None
                }
            })
        })?;
        report.replayed.extend(replayed);
        report.refused.append(&mut refused.lock().unwrap_or_else(PoisonError::into_inner));
        Ok(())
    }
}

/// What came of one job.
enum Again {
    Replayed,
    /// It is neither dead nor cancelled any more.
    Unmeant,
    Refused(&'static str),
}

/// When each runs, and how often it may fail.
struct Pace {
    one_attempt: bool,
    step_ms: i64,
    next: AtomicI64,
}

impl Pace {
    fn canary() -> Pace {
        Pace { one_attempt: true, ..Pace::of(None) }
    }

    fn of(per_minute: Option<u32>) -> Pace {
        let step_ms = per_minute.map_or(0, |jobs| 60_000 / i64::from(jobs));
        Pace { one_attempt: false, step_ms, next: AtomicI64::new(i64::MIN) }
    }

    fn next(&self, now: i64) -> i64 {
        let at = self.next.load(Ordering::Acquire).max(now);
        self.next.store(at.saturating_add(self.step_ms), Ordering::Release);
        at
    }
}

/// Which are meant, with the state that a filter leaves open.
fn meant(which: Which, how: &Replay) -> Result<Which> {
    let refuse = |cause: &str| Err(Error::ReplayRefused { cause: cause.to_owned() });
    let Which::Filter(filter) = which else { return Ok(which) };
    if !matches!(filter.meant_state(), None | Some(State::Dead | State::Cancelled)) {
        return refuse("only dead and cancelled jobs can be replayed, and the filter names another state");
    }
    if filter.names_only_state() && !how.everything {
        return refuse("the filter means every job: narrow it, or say `everything`");
    }
    Ok(Which::Filter(filter.or_state(State::Dead)))
}

fn again(group: &mut Group<'_>, job: &JobInfo, pace: &Pace, anew: bool) -> OpResult<Again> {
    if !is_over(job) {
        return Ok(Again::Unmeant);
    }
    if !group.statement(sql::HAS_PAYLOAD)?.exists([job.id])? {
        return Ok(Again::Refused("its payload is gone"));
    }
    let run_at = pace.next(group.now);
    let gate = match job.for_callers {
        true => 4,
        false => come_back(group, job.id, job.line(), i64::from(run_at <= group.now))?,
    };
    group.statement(sql::REPLAY)?.execute(params![job.id, gate, run_at, pace.one_attempt, anew])?;
    if anew {
        group.statement(sql::FORGET_STEPS)?.execute([job.id])?;
    }
    group.count(&job.kind, job.state.number(), -1);
    if !job.for_callers {
        group.note_due(run_at);
    }
    Ok(Again::Replayed)
}

/// Whether it is what can be replayed.
fn is_over(job: &JobInfo) -> bool {
    matches!(job.state, State::Dead | State::Cancelled)
}

fn count(jobs: &[i64]) -> u64 {
    jobs.len() as u64
}
