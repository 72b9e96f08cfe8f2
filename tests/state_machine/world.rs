//! The real side: a file with one store that enqueues and looks, and two processes that run jobs, each a store and a drain
//! of its own. Every step is made here and in the model, and both are compared.

#[path = "attempt.rs"]
mod attempt;

use std::path::Path;
use std::sync::atomic::{AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, Weak};
use std::time::Duration;

use anyhow::anyhow;
use birkez::rusqlite::Connection;
use birkez::testing::{Drain, TempStore};
use birkez::{Clock, Context, Durability, Error, Keep, Kept, Retention, Runner, Scope, Store};

use crate::file;
use crate::follow::{Seen, follow, has_buffered, is_on_its_way_back};
use crate::kinds::{Careful, Hasty, KINDS, Kind, New, Plain, Timed, with_kind};
use crate::model::{Answer, Model, Outcome};
use crate::ops::{Draft, Op, Trace};

pub type Check<T = ()> = Result<T, String>;

/// What an attempt takes, on the clock that the library measures with: longer than what is claimed ahead for, so that the
/// next job is chosen when the last one has ended.
const ATTEMPT: u64 = 25;
/// Other processes are looked at once a second.
const WATCH: u64 = 2_000;

/// Both clocks, moved by the history.
#[derive(Default)]
struct Time {
    wall: AtomicI64,
    monotonic: AtomicU64,
}

impl Clock for Time {
    fn wall(&self) -> i64 {
        self.wall.load(Ordering::Acquire)
    }

    fn monotonic(&self) -> Duration {
        Duration::from_millis(self.monotonic.load(Ordering::Acquire))
    }

    fn random(&self) -> f64 {
        0.5
    }
}

/// A process, as far as the file can tell.
struct Process {
    runner: i64,
    drain: Drain,
    store: Store,
}

/// A drain that is under way.
struct Run {
    runner: i64,
    seed: u64,
    attempts: usize,
    /// It has made no claim yet.
    is_first: bool,
}

#[derive(Default)]
struct State {
    model: Model,
    runs: Vec<Run>,
    failure: Option<String>,
    /// How often each thing was met.
    met: Met,
}

/// What a history has tried.
#[derive(Clone, Copy, Debug, Default)]
pub struct Met {
    pub attempts: u32,
    pub taken_back: u32,
    pub late_results: u32,
    pub superseded: u32,
    pub turns: u32,
    pub deeds: u32,
    pub refused: u32,
}

pub struct World {
    /// Their threads and connections stay as they are: a process that died signs nothing off while anybody looks.
    dead: Mutex<Vec<Arc<Process>>>,
    time: Arc<Time>,
    desk: Store,
    processes: Mutex<[Arc<Process>; 2]>,
    file: Mutex<Connection>,
    state: Mutex<State>,
    folder: TempStore,
}

/// When the file is looked at.
#[derive(Clone, Copy, PartialEq)]
enum Moment {
    /// A transaction that was somebody's own: nothing is let in.
    Write,
    /// An attempt starts.
    Start,
    /// A drain has ended.
    End,
}

impl World {
    pub fn new() -> Arc<World> {
        let folder = TempStore::new().unwrap();
        let time = Arc::new(Time::default());
        time.wall.store(
            "2026-03-01T12:00:00Z".parse::<chrono::DateTime<chrono::Utc>>().unwrap().timestamp_millis(),
            Ordering::Release,
        );
        let desk = open(folder.path(), &time);
        desk.write(|tx| Ok(tx.execute_batch("CREATE TABLE effect (job INTEGER)")?)).unwrap();
        let file = Mutex::new(Connection::open(folder.path()).unwrap());
        Arc::new_cyclic(|world| World {
            processes: Mutex::new([0, 1].map(|_| Process::start(folder.path(), &time, world.clone()))),
            folder,
            time,
            desk,
            file,
            state: Mutex::default(),
            dead: Mutex::default(),
        })
    }

    fn state(&self) -> MutexGuard<'_, State> {
        let mut state = self.state.lock().unwrap();
        state.model.now = self.time.wall();
        state
    }

    fn file(&self) -> MutexGuard<'_, Connection> {
        self.file.lock().unwrap()
    }

    fn process(&self, at: usize) -> Arc<Process> {
        Arc::clone(&self.processes.lock().unwrap()[at])
    }

    pub fn met(&self) -> Met {
        self.state().met
    }

    pub fn apply(self: &Arc<Self>, op: &Op) -> Check {
        match op {
            Op::Pass(time) => {
                let wall = self.time.wall.fetch_add(*time, Ordering::AcqRel) + time;
                self.time.wall.fetch_max(wall, Ordering::AcqRel);
                self.time.monotonic.fetch_add(time.unsigned_abs(), Ordering::AcqRel);
            }
            Op::Enqueue { kind, new, by } => self.enqueue(&KINDS[*kind], new, *by)?,
            Op::Insert { kind, new, is_broken } => self.insert(&KINDS[*kind], new, *is_broken),
            Op::Once { kind, new, outcome } => self.once(&KINDS[*kind], new, outcome)?,
            Op::Drain { process, seed } => self.drain(*process, *seed)?,
            Op::Crash { process, trace } => {
                self.crash(self.process(*process).runner, *trace);
                self.replace(*process, true)?;
            }
            Op::Restart(process) => self.replace(*process, false)?,
            Op::Pause { kind, on } => self.pause(&KINDS[*kind], *on)?,
            Op::Prune { content, key } => self.prune(*content, *key)?,
            Op::Act { verb, target } => {
                let which = target.which(&self.state().model);
                let answer = verb.ask(&self.desk, which, self.time.wall());
                let mut state = self.state();
                state.met.deeds += u32::from(answer.as_ref().is_ok_and(|n| *n > 0));
                state.met.refused += u32::from(answer.is_err());
                let wanted = verb.expect(&mut state.model, target);
                if answer != wanted {
                    return Err(format!("the answer was {answer:?}, and should be {wanted:?}"));
                }
            }
        }
        Ok(())
    }

    /// The file is as the model says.
    pub fn compare(&self, with_history: bool) -> Check {
        let (state, file) = (self.state(), self.file());
        file::compare_jobs(&file, &state.model)?;
        if with_history {
            file::compare_history(&file, &state.model)?;
            file::check_invariants(&file)?;
        }
        Ok(())
    }

    /// Whatever was left running comes to an end that both agree on.
    pub fn end(self: &Arc<Self>) -> Check {
        for kind in 0..KINDS.len() {
            self.apply(&Op::Pause { kind, on: false })?;
        }
        // One may die in the middle of this, too.
        for round in 0..12 {
            self.apply(&Op::Pass(4_000_000))?;
            self.drain(round % 2, round as u64)?;
            self.compare(true)?;
            if round > 1 && self.state().model.jobs.values().all(|job| job.lease.is_none()) {
                return Ok(());
            }
        }
        Err("nobody took back what a dead process held".to_owned())
    }

    // ---- what stores jobs

    fn enqueue(&self, kind: &'static Kind, draft: &Draft, by: Option<usize>) -> Check {
        let new = draft.at(self.time.wall());
        let process = by.map(|at| self.process(at));
        let store = process.as_ref().map_or(&self.desk, |process| &process.store);
        let answer = with_kind!(kind.name, J => store.enqueue(&J(new.clone())).map(|answer| {
            (answer.id, answer.fresh, answer.compared, answer.standing.state().as_str())
        }));
        let mut state = self.state();
        let model = &mut state.model;
        let wanted = model.answer(kind.name, &new);
        let given = match answer {
            Ok((id, true, ..)) => {
                model.insert(id, kind, &new, false);
                Answer::Fresh
            }
            Ok((id, false, compared, state)) => {
                model.compare(id);
                Answer::Existing { id, state, compared }
            }
            Err(Error::KeyReused { existing, .. }) => {
                model.compare(existing.id);
                Answer::Reused { id: existing.id }
            }
            Err(error) => return Err(error.to_string()),
        };
        if given != wanted && !is_on_its_way_back(model, &given, &wanted) {
            return Err(format!("the answer was {given:?}, and should be {wanted:?}"));
        }
        drop(state);
        process.map_or(Ok(()), |process| self.sync(process.runner, Moment::Write).map(|_| ()))
    }

    fn insert(&self, kind: &'static Kind, draft: &Draft, is_broken: bool) {
        let new = draft.at(self.time.wall());
        let payload = if is_broken { "{}".to_owned() } else { serde_json::to_string(&new).unwrap() };
        let file = self.file();
        let sql = "INSERT INTO birkez_job (kind, key, payload, run_at, priority, ordering_key, version)
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7) ON CONFLICT DO NOTHING";
        let run_at = new.run_at.map_or(0, |at| at.timestamp_millis());
        let row = (kind.name, &new.key, payload, run_at, new.priority, &new.line, new.version);
        if file.prepare_cached(sql).unwrap().execute(row).unwrap() == 1 {
            self.state().model.insert_plain(file.last_insert_rowid(), kind, &new, is_broken);
        }
    }

    /// Runs under the key, here and now.
    fn once(&self, kind: &'static Kind, draft: &Draft, outcome: &Outcome) -> Check {
        let new = draft.at(self.time.wall());
        let mut ran = None;
        let answer = {
            let run = |cx: &Context| {
                ran = Some(cx.job_id());
                self.carry_out(cx, &new, outcome)
            };
            let call =
                || with_kind!(kind.name, J => self.desk.once(&J(new.clone()), run)).map_err(|error| error.code());
            std::panic::catch_unwind(std::panic::AssertUnwindSafe(call)).unwrap_or(Err("PANIC"))
        };
        // Whoever holds the job and is gone was asked first.
        self.note_taken_back();
        let mut state = self.state();
        let model = &mut state.model;
        let wanted = self.expect_once(model, kind, &new, outcome, ran)?;
        if answer != wanted {
            return Err(format!("the answer was {answer:?}, and should be {wanted:?}"));
        }
        Ok(())
    }

    fn expect_once(
        &self,
        model: &mut Model,
        kind: &'static Kind,
        new: &New,
        outcome: &Outcome,
        ran: Option<i64>,
    ) -> Check<Result<u32, &'static str>> {
        let known = match model.answer(kind.name, new) {
            Answer::Fresh => None,
            Answer::Reused { .. } => return Ok(Err("KEY_REUSED")),
            Answer::Existing { id, .. } => {
                model.compare(id);
                Some(model.job(id)?.clone())
            }
        };
        let refusal = match known.as_ref().map(|job| (job.word(), job.for_callers)) {
            None | Some(("waiting", true)) => None,
            Some(("waiting", false)) => Some("NOT_FOR_CALLERS"),
            Some(("running", _)) => Some("IN_PROGRESS"),
            Some(("parked", _)) => Some("PARKED"),
            Some(("dead", _)) => Some("DEAD"),
            Some(("cancelled", _)) => Some("CANCELLED"),
            Some(_) => {
                let result = known.and_then(|job| job.result).and_then(|result| result.parse().ok());
                return Ok(result.ok_or("RESULT_GONE"));
            }
        };
        let (refusal, id) = match (refusal, ran) {
            (Some(refusal), None) => return Ok(Err(refusal)),
            (None, Some(id)) => (outcome, id),
            (refusal, ran) => return Err(format!("once ran {ran:?}, and should have answered {refusal:?}")),
        };
        if known.is_none() {
            model.insert(id, kind, new, true);
        }
        let claims = model.job(id)?.claims;
        model.claim_for_caller(id, claims + 1)?;
        model.settle(id, claims + 1, refusal)?;
        Ok(match outcome {
            Outcome::Done | Outcome::Commit => Ok(new.content),
            Outcome::Panic => Err("PANIC"),
            _ => Err("FAILED"),
        })
    }

    // ---- what holds jobs back, and what goes

    fn pause(&self, kind: &'static Kind, on: bool) -> Check {
        let (scope, who) = (Scope::kind(kind.name), "the history");
        let changed = if on { self.desk.pause(scope, who) } else { self.desk.unpause(scope, who) };
        let mut state = self.state();
        let paused = &mut state.model.paused;
        let wanted = if on { paused.insert(kind.name) } else { paused.remove(kind.name) };
        state.model.deeds += usize::from(wanted);
        let changed = changed.map_err(|error| error.to_string())?;
        if changed == wanted { Ok(()) } else { Err(format!("{kind:?} was paused or not: {changed}, {wanted}")) }
    }

    fn prune(&self, content: i64, key: i64) -> Check {
        let age = |time: i64| Keep::age(Duration::from_millis(time.unsigned_abs()));
        let kept = Kept::default().payload(age(content)).result(age(content)).key(age(key));
        let retention = Retention::keep_all().done(kept).cancelled(kept).dead(Kept::default().payload(age(content)));
        self.desk.prune(&retention).map_err(|error| error.to_string())?;
        self.state().model.prune(content, key);
        Ok(())
    }

    // ---- processes

    /// From now on others can see that a process is gone.
    fn crash(&self, runner: i64, trace: Trace) {
        let sql = match trace {
            Trace::OtherBoot => "UPDATE birkez_runner SET boot = 'another' WHERE id = ?1",
            Trace::Ended => "UPDATE birkez_runner SET ended_at = 1, ending = 'gone' WHERE id = ?1",
            Trace::NoRow => "DELETE FROM birkez_runner WHERE id = ?1",
        };
        self.file().execute(sql, [runner]).unwrap();
        self.state().model.runners.entry(runner).or_default().is_gone = true;
    }

    /// Another process takes the place of one that has closed its store, or that has died.
    fn replace(self: &Arc<Self>, at: usize, has_died: bool) -> Check {
        let fresh = Process::start(self.folder.path(), &self.time, Arc::downgrade(self));
        let old = std::mem::replace(&mut self.processes.lock().unwrap()[at], fresh);
        let runner = old.runner;
        if has_died {
            self.dead.lock().unwrap().push(old);
            return Ok(());
        }
        drop(old);
        self.note_taken_back();
        let (mut state, file) = (self.state(), self.file());
        // What is paused or to stop was on its way back already.
        let held = state.model.leases_of(runner).map(|(job, lease)| (job.id, lease.token));
        let given_back: Vec<_> = held.filter(|(id, token)| file::claims(&file, *id) == *token).collect();
        for (id, token) in given_back {
            state.model.settle(id, token, &Outcome::GivenBack)?;
        }
        state.model.take_back(runner);
        Ok(())
    }

    fn drain(self: &Arc<Self>, at: usize, seed: u64) -> Check {
        let process = self.process(at);
        let runner = process.runner;
        if self.state().runs.iter().any(|run| run.runner == runner) {
            return Ok(());
        }
        self.time.monotonic.fetch_add(WATCH, Ordering::AcqRel);
        self.state().runs.push(Run { runner, seed, attempts: 0, is_first: true });
        let attempts = process.drain.drain().map_err(|error| error.to_string());
        let ended = self.sync(runner, Moment::End);
        let mut state = self.state();
        let run = state.runs.pop().expect("the run that ends");
        if let Some(failure) = &state.failure {
            return Err(failure.clone());
        }
        ended?;
        let attempts = attempts?;
        let is_gone = state.model.runners.get(&runner).is_some_and(|runner| runner.is_gone);
        // What a process ran before it died may have left no trace.
        if attempts != run.attempts && !is_gone {
            return Err(format!("the drain says {attempts} attempts, and made {}", run.attempts));
        }
        if let Some(left) = file::left(&state.model).filter(|_| !is_gone) {
            return Err(format!("a drain left what is due: {left:?}"));
        }
        drop(state);
        // The process that died in the middle of it is gone in truth now.
        if is_gone { self.replace(at, true) } else { Ok(()) }
    }

    // ---- what the library did at its own choice

    /// Takes over from the file who was found gone.
    fn note_taken_back(&self) {
        let mut state = self.state();
        let file = self.file();
        // What is taken back has a number above the token that was out; what its process has settled has that one.
        let is_taken = |job: i64, token: i64| file::claims(&file, job) > token;
        let model = &state.model;
        let gone = model.runners.iter().filter(|(_, runner)| runner.is_gone).map(|(id, _)| *id);
        let has_lost = |id: &i64| model.leases_of(*id).any(|(job, lease)| is_taken(job.id, lease.token));
        for runner in gone.filter(has_lost).collect::<Vec<i64>>() {
            for (id, token, outcome) in state.model.runners[&runner].pending.clone() {
                if !is_taken(id, token) {
                    state.model.settle(id, token, &outcome).expect("it holds its lease");
                }
            }
            state.model.take_back(runner);
            state.met.taken_back += 1;
        }
    }

    /// Takes over from the file what a process has settled, called off and claimed, if it was right to do so.
    fn sync(&self, runner: i64, moment: Moment) -> Check {
        self.note_taken_back();
        let seen = Seen::of(&self.file());
        let mut state = self.state();
        let State { model, runs, met, .. } = &mut *state;
        let run = runs.last_mut().filter(|run| run.runner == runner);
        let is_first = moment != Moment::Write && run.as_ref().is_some_and(|run| run.is_first);
        // What it has claimed and not started lies there: then it had no reason for a look.
        let looked = moment == Moment::End || moment == Moment::Start && (is_first || !has_buffered(model, runner));
        let followed = follow(model, &seen, runner, looked, is_first)?;
        if moment == Moment::End && !model.runners[&runner].pending.is_empty() {
            return Err(format!("a drain has not written how an attempt ended: {:?}", model.runners[&runner]));
        }
        if let Some(run) = run {
            run.is_first &= !is_first;
            run.attempts += followed.undecodable;
        }
        met.turns += followed.turns;
        met.superseded += followed.superseded;
        Ok(())
    }
}

fn open(path: &Path, time: &Arc<Time>) -> Store {
    let clock: Arc<dyn Clock> = Arc::clone(time) as _;
    // Beats are real threads' and know nothing of hours that pass at once: nobody is gone by its beat.
    let lease = Duration::from_secs(10 * 365 * 86_400);
    Store::builder(path).durability(Durability::Normal).lease(lease).clock(clock).open().unwrap()
}

impl Process {
    fn start(path: &Path, time: &Arc<Time>, world: Weak<World>) -> Arc<Process> {
        let store = open(path, time);
        let runner = Arc::new(AtomicI64::new(0));
        macro_rules! handler {
            ($type:ident) => {{
                let (world, runner) = (world.clone(), Arc::clone(&runner));
                move |job: $type, cx: &Context| {
                    let world = world.upgrade().ok_or_else(|| anyhow!("the history has ended"))?;
                    world.attempt(runner.load(Ordering::Acquire), cx, &job.0)
                }
            }};
        }
        let builder = Runner::builder(&store).handle(handler!(Plain)).handle(handler!(Hasty));
        let drain = Drain::new(builder.handle(handler!(Careful)).handle(handler!(Timed))).unwrap();
        let newest = "SELECT max(id) FROM birkez_runner";
        runner.store(crate::common::ask(path, newest), Ordering::Release);
        let runner = runner.load(Ordering::Acquire);
        Arc::new(Process { runner, drain, store })
    }
}
