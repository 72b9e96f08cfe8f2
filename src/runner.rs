//! The runner: one process's pool of workers, with a keeper that claims for them.

mod attempts;
mod bell;
mod buffer;
mod crew;
mod handlers;
mod hanging;
mod inline;
mod keeper;
mod neighbours;
mod pace;
mod round;
mod stop;
mod upkeep;
mod worker;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use self::crew::{Crew, Stage};
use self::handlers::{Handler, Handlers};
pub use self::inline::Drain;
use self::keeper::Keeper;
use self::stop::Stop;
use crate::clock::Stopwatch;
use crate::context::Context;
use crate::error::{Error, Result};
use crate::job::Job;
use crate::pen::Rider;
use crate::presence::Presence;
use crate::relay::Relay;
use crate::schedule::{Entry, Occurrence, Planner, Schedule};
use crate::store::Store;
use crate::telling::{Happened, Notice, is_news, register};

/// A stop returns within its grace and this.
const STOP_SLACK: Duration = Duration::from_millis(800);
/// Between two evaluations of the schedules, whatever rings.
const CALENDAR_REST: Duration = Duration::from_millis(5);
/// How long of that is for threads to end.
const JOIN_SLACK: Duration = Duration::from_millis(100);

/// A running pool of workers. Dropping it stops it, with the grace of [`RunnerBuilder::grace`].
pub struct Runner {
    crew: Arc<Crew>,
    stop: Arc<Stop>,
    grace: Duration,
    /// Its end has been waited for: a drop after a stop that failed does not wait once more.
    waited: AtomicBool,
    threads: Mutex<Vec<JoinHandle<()>>>,
    replacements: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

/// Describes a [`Runner`]; made by [`Runner::builder`].
#[must_use]
pub struct RunnerBuilder {
    store: Store,
    workers: usize,
    grace: Duration,
    pace: Option<Duration>,
    handlers: Vec<Handler>,
    schedules: Vec<Entry>,
    notices: Vec<Notice>,
}

impl Runner {
    /// A runner for `store`.
    ///
    /// ```
    /// # use birkez::{Context, Job, Runner, Store};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Mail { to: String }
    /// # impl Job for Mail {
    /// #     const KIND: &'static str = "mail";
    /// #     type Output = ();
    /// #     fn key(&self) -> String { self.to.clone() }
    /// # }
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// let runner = Runner::builder(&store).workers(2).handle(|mail: Mail, _cx: &Context| Ok(())).start()?;
    /// let _ = store.enqueue(&Mail { to: "a@b.c".into() })?;
    /// runner.stop(std::time::Duration::from_secs(10))?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn builder(store: &Store) -> RunnerBuilder {
        RunnerBuilder {
            store: store.clone(),
            workers: std::thread::available_parallelism().map_or(2, usize::from),
            grace: Duration::from_secs(10),
            pace: Some(Duration::from_millis(25)),
            handlers: Vec::new(),
            schedules: Vec::new(),
            notices: Vec::new(),
        }
    }

    /// Stops: nothing new starts, jobs that run may finish within `grace`; those that do not are told
    /// ([`Context::is_cancelled`]) and released uncharged, and their late results are refused. Returns within `grace` and
    /// one second. From one of its own workers it only asks.
    ///
    /// # Errors
    ///
    /// [`Error::InsideTransaction`] inside a transaction closure; [`Error::Busy`] if the file could not be written in
    /// time: what ran is then taken back by whoever finds this process gone. [`Error::Stopped`] if the runner had ended
    /// by itself.
    pub fn stop(self, grace: Duration) -> Result<()> {
        if self.crew.inner().pen.is_held_here() {
            let instead = "stop after the transaction (the runner has been asked to stop)";
            return Err(Error::InsideTransaction { act: "runner.stop", instead });
        }
        self.end(grace)
    }

    /// How many attempts run in this process.
    pub fn running(&self) -> usize {
        self.crew.attempts.running()
    }

    /// How many worker threads were given up on, since their attempt took longer than its kind allows and has not
    /// returned.
    pub fn given_up(&self) -> usize {
        self.crew.attempts.given_up()
    }

    /// Kinds that this runner has closed: threads were given up on in them, and with those that run such a kind now they
    /// are as many as it has workers. They open again when one of those threads comes back.
    pub fn closed_kinds(&self) -> Vec<String> {
        self.crew.closed_kinds()
    }

    /// What keeps the runner from writing now, or has ended it without being asked, such as a damaged file; `None` while
    /// all is well.
    pub fn fault(&self) -> Option<String> {
        self.stop.why().or_else(|| self.crew.trouble())
    }

    fn end(&self, grace: Duration) -> Result<()> {
        self.stop.ask(&self.crew, self.crew.now().saturating_add(grace));
        if worker::works_for(&self.crew) || self.crew.inner().pen.is_held_here() {
            return Ok(());
        }
        self.waited.store(true, Ordering::Release);
        if !self.stop.wait(grace.saturating_add(STOP_SLACK)) {
            return Err(Error::Busy { act: "stopping the runner", waited_ms: grace.as_millis() as u64 });
        }
        self.join_threads(Stopwatch::start());
        self.stop.why().map_or(Ok(()), |_| Err(Error::Stopped { act: "runner.stop" }))
    }

    /// Waits a little for the threads to end. One that was given up on, or a mapping function, may never come back: it is
    /// left to itself.
    fn join_threads(&self, waited: Stopwatch) {
        let mut threads = std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        threads.append(&mut self.replacements.lock().unwrap_or_else(PoisonError::into_inner));
        while !threads.is_empty() {
            for thread in threads.extract_if(.., |thread| thread.is_finished()) {
                let _ = thread.join();
            }
            let patience = if self.crew.attempts.given_up() > 0 { Duration::from_millis(10) } else { JOIN_SLACK };
            if waited.left(patience).is_none() {
                break;
            }
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        if self.crew.stage() != Stage::Ended
            && !self.waited.load(Ordering::Acquire)
            && let Err(error) = self.end(self.grace)
        {
            tracing::warn!(%error, "a runner could not be stopped in order");
        }
    }
}

impl std::fmt::Debug for Runner {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Runner").field("running", &self.running()).field("given_up", &self.given_up()).finish()
    }
}

impl RunnerBuilder {
    /// How many jobs run at once. 0 counts as 1. Defaults to the number of processors.
    pub fn workers(mut self, threads: usize) -> Self {
        self.workers = threads.max(1);
        self
    }

    /// How long a drop of the runner lets jobs finish. Defaults to 10 s.
    pub fn grace(mut self, time: Duration) -> Self {
        self.grace = time;
        self
    }

    /// How often the file is looked at for what others have stored, such as other processes; a look costs a few
    /// microseconds. `None`: never, so that only what comes through this runner's store, or with
    /// [`enqueue_in`](Store::enqueue_in) in this process, starts at once, and the rest within a minute. Defaults to 25 ms.
    pub fn look_every(mut self, pace: Option<Duration>) -> Self {
        self.pace = pace.map(|pace| pace.max(Duration::from_millis(1)));
        self
    }

    /// Runs jobs of the kind of `J` with `f`, in a worker's thread.
    ///
    /// What `f` returns is stored as the job's output. An error is retried as [`Job::retry`] says, unless it carries a
    /// verdict of its own (see [`Verdicts`](crate::Verdicts)). A panic is a failed attempt.
    pub fn handle<J, F>(mut self, f: F) -> Self
    where
        J: Job,
        F: Fn(J, &Context) -> anyhow::Result<J::Output> + Send + Sync + 'static,
    {
        self.handlers.push(Handler::new::<J>(f));
        self
    }

    /// Publishes jobs of the kind of `J` with `relay`, in a worker's thread: its jobs are messages, whose payload goes out as
    /// it is stored.
    pub fn relay<J: Job>(mut self, relay: impl Relay<Receipt = J::Output>) -> Self {
        self.handlers.push(Handler::relay::<J>(relay));
        self
    }

    /// Makes jobs of the occurrences of `schedule`: `map` answers any number of them, each with a key of its own, made
    /// of [`Occurrence::date`] rather than of today.
    ///
    /// `map` runs in a thread of the runner's, without a transaction, and may run again for an occurrence that it has
    /// answered before: it should answer the same. Occurrence, jobs and the schedule's mark are then stored in one
    /// transaction. A job whose key exists with other content is noted on the occurrence
    /// ([`OccurrenceInfo`](crate::OccurrenceInfo)) and does not hold up the schedule.
    ///
    /// The mappings of all schedules of one runner run in one thread, one after another: one that takes long delays the
    /// others, and one that hangs stops them. What takes long belongs into a job's handler.
    pub fn schedule<J, I>(self, schedule: Schedule, map: impl Fn(&Occurrence) -> I + Send + Sync + 'static) -> Self
    where
        J: Job,
        I: IntoIterator<Item = J>,
    {
        self.try_schedule(schedule, move |occurrence| Ok(map(occurrence)))
    }

    /// As [`schedule`](RunnerBuilder::schedule), with a mapping that can fail. While it does, the mark stays, the
    /// schedule shows the error ([`ScheduleInfo`](crate::ScheduleInfo)) and is tried again with backoff; other schedules
    /// go on.
    pub fn try_schedule<J, I>(
        mut self,
        schedule: Schedule,
        map: impl Fn(&Occurrence) -> anyhow::Result<I> + Send + Sync + 'static,
    ) -> Self
    where
        J: Job,
        I: IntoIterator<Item = J>,
    {
        self.schedules.push(Entry::new(schedule, map));
        self
    }

    /// Has a job of the kind of `J` enqueued with each death, in its transaction: exactly one, whatever crashes. `J` wraps
    /// a [`Death`](crate::Death), which has an example. Any process that writes a death enqueues it, also one that knows
    /// nothing of `J`; it runs where it is handled. Its key, its kind and its shape are those of `J`, everything else is
    /// the default. The death of such a job is told by none. Defaults to none.
    ///
    /// A program that starts without it, while no other process of it is alive, ends it. A program is known by the name of
    /// its file: one that is renamed with each version leaves what the older one asked for.
    pub fn on_dead<J: Job>(mut self) -> Self {
        self.notices.push(Notice::of_death::<J>());
        self
    }

    /// Has a job of the kind of `J` enqueued with each record of occurrences that did not run and need attention
    /// ([`MissedInfo`](crate::MissedInfo)), as [`on_dead`](RunnerBuilder::on_dead) does with each death. `J` wraps a
    /// [`Missed`](crate::Missed).
    ///
    /// ```
    /// # use birkez::{Context, Job, Missed, Runner};
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// #[serde(transparent)]
    /// struct TellMissed(Missed);
    ///
    /// impl Job for TellMissed {
    ///     const KIND: &'static str = "tell-missed";
    ///     type Output = ();
    ///     fn key(&self) -> String { self.0.key() }
    /// }
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// let runner = Runner::builder(&store).on_missed::<TellMissed>().handle(|told: TellMissed, _cx: &Context| {
    ///     println!("{} did not run {} times from {} on", told.0.schedule, told.0.count, told.0.first);
    ///     Ok(())
    /// });
    /// # runner.start()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn on_missed<J: Job>(mut self) -> Self {
        self.notices.push(Notice::of_miss::<J>());
        self
    }

    /// Starts the threads. What it handles is said in the file, for those who ask why something does not run
    /// ([`Store::explain`], [`Store::explain_schedule`]), and taken back at its stop.
    ///
    /// # Errors
    ///
    /// [`Error::DuplicateKind`] if a kind, under its present or a former name, was given two handlers;
    /// [`Error::TooManyKinds`]; [`Error::NoticeInvalid`] if a job of [`on_dead`](RunnerBuilder::on_dead) or
    /// [`on_missed`](RunnerBuilder::on_missed) does not hold what it is given; the errors of writing the file and of starting threads.
    pub fn start(self) -> Result<Runner> {
        let (grace, pace, workers) = (self.grace, self.pace, self.workers);
        let (crew, planner) = self.build()?;
        let rider: Arc<dyn Rider> = Arc::clone(&crew) as _;
        crew.inner().pen.attach(Arc::downgrade(&rider));
        let runner = Runner {
            stop: Arc::default(),
            grace,
            waited: AtomicBool::default(),
            threads: Mutex::default(),
            replacements: Arc::default(),
            crew,
        };
        let keeper = Keeper::spawn(&runner.crew, &runner.stop, pace, &runner.replacements)?;
        let mut threads = vec![keeper];
        for _ in 0..workers {
            threads.push(worker::spawn(&runner.crew)?);
        }
        threads.push(plan(&runner.crew, planner)?);
        let runner_id = runner.crew.owner().id;
        runner.crew.tell(|| Happened::RunnerStarted { runner: runner_id });
        threads.push(upkeep::spawn(&runner.crew)?);
        *runner.threads.lock().unwrap_or_else(PoisonError::into_inner) = threads;
        Ok(runner)
    }

    fn build(self) -> Result<(Arc<Crew>, Planner)> {
        let handlers = Handlers::new(self.handlers)?;
        if self.store.inner.pen.is_held_here() {
            return Err(Error::InsideTransaction { act: "runner.start", instead: "start before the transaction" });
        }
        let owner = self.store.inner.owner()?;
        self.store.inner.know_kinds(handlers.known());
        register(&self.store, owner.id, &self.notices)?;
        let planner = Planner::new(self.store.clone(), self.schedules, handlers.shapes())?;
        let presence = Presence::begin(self.store.clone(), handlers.sayings(), planner.names(), owner.id)?;
        let crew = Crew::new(self.store, handlers, self.workers, (owner, presence), planner.waits());
        Ok((Arc::new(crew), planner))
    }
}

/// The thread that turns occurrences into jobs: mapping functions are the user's, and may take their time.
fn plan(crew: &Arc<Crew>, planner: Planner) -> Result<JoinHandle<()>> {
    let path = crew.store.path().to_owned();
    let crew = Arc::clone(crew);
    let run = move || {
        while crew.stage() == Stage::Working {
            let nap = planner.evaluate();
            match nap.as_ref().err().map(ToString::to_string) {
                Some(error) if is_news("the calendar", &error) => {
                    tracing::warn!(error, "schedules could not be evaluated");
                }
                None if is_news("the calendar", "") => tracing::info!("schedules are evaluated again"),
                _ => {}
            }
            let nap = nap.unwrap_or(Duration::from_secs(1));
            crew.calendar_bell.wait(nap.max(CALENDAR_REST));
        }
    };
    std::thread::Builder::new().name("birkez-calendar".into()).spawn(run).map_err(|source| Error::Io {
        act: "starting the calendar's thread for",
        path,
        source,
    })
}
