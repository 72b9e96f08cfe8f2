//! The keeper: one thread per runner that writes what has ended, claims what comes next, and keeps the time.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use super::crew::{Crew, NEVER, Stage};
use super::hanging;
use super::neighbours::Neighbours;
use super::stop::Stop;
use super::worker;
use crate::clock::millis;
use crate::context::note_progress;
use crate::error::{Error, Result};
use crate::outcome::Ended;
use crate::pen::{Act, Mode};
use crate::telling::Happened;

const ROUND: Act = Act { name: "writing a runner's jobs", instead: "nothing" };
const PROGRESS: Act = Act { name: "writing the progress of jobs", instead: "nothing" };
/// How often the file is looked at while a transaction of the host's may commit a job.
const EXPECTANT: Duration = Duration::from_millis(1);
/// The wall clock is looked at this often at least: it may be set, and a sleep is not counted by the monotonic one.
const LONGEST: Duration = Duration::from_secs(60);
/// Wall and monotonic time that part by more than this tell of a sleep or a set clock, in milliseconds.
const PARTING: i64 = 1_000;
/// How often jobs are looked for that hung in this process and have come back.
const RETURNED: Duration = Duration::from_millis(500);
/// Between two tries to say what this runner handles.
const SAY_AGAIN: Duration = Duration::from_millis(250);
/// After a transaction that failed.
const AFTER_FAULT: std::ops::RangeInclusive<Duration> = Duration::from_millis(20)..=Duration::from_secs(2);
pub(super) struct Keeper {
    crew: Arc<Crew>,
    stop: Arc<Stop>,
    neighbours: Neighbours,
    /// How often the file is looked at for what other processes did.
    pace: Duration,
    looked: Duration,
    fault: Option<Duration>,
    /// Wall and monotonic time at the last look.
    clocks: Option<(i64, Duration)>,
    hanging_at: Duration,
    /// When it is said, at the earliest, what this runner handles.
    say_at: Duration,
    /// Something hung at the last look for it.
    hanging: bool,
    /// The round before has just been written.
    in_succession: bool,
    /// Workers that replace threads which were given up on.
    spawned: Arc<Mutex<Vec<JoinHandle<()>>>>,
}

impl Keeper {
    pub(super) fn spawn(
        crew: &Arc<Crew>,
        stop: &Arc<Stop>,
        pace: Option<Duration>,
        spawned: &Arc<Mutex<Vec<JoinHandle<()>>>>,
    ) -> Result<JoinHandle<()>> {
        let keeper = Keeper {
            crew: Arc::clone(crew),
            stop: Arc::clone(stop),
            neighbours: Neighbours::new(crew)?,
            pace: pace.unwrap_or(LONGEST),
            looked: Duration::ZERO,
            fault: None,
            clocks: None,
            hanging_at: Duration::ZERO,
            say_at: if crew.presence.is_said() { Duration::ZERO } else { crew.now() + SAY_AGAIN },
            hanging: false,
            in_succession: false,
            spawned: Arc::clone(spawned),
        };
        let path = crew.store.path().to_owned();
        std::thread::Builder::new()
            .name("birkez-keeper".into())
            .spawn(move || keeper.run())
            .map_err(|source| Error::Io { act: "starting the keeper's thread for", path, source })
    }

    fn run(mut self) {
        loop {
            self.keep_time();
            if self.crew.stage() != Stage::Working && self.stop.advance(&self.crew) {
                self.crew.presence.end();
                break;
            }
            if self.crew.has_work() {
                self.round();
            } else {
                self.in_succession = false;
                self.crew.bell.wait(self.nap());
            }
        }
    }

    /// What the passing of time brings: limits of attempts, stale claims, due jobs, other processes.
    fn keep_time(&mut self) {
        let now = self.crew.now();
        for late in self.crew.attempts.give_up_late(now) {
            let limit = late.limit.unwrap_or_default();
            tracing::warn!(job = late.claim.id, kind = late.claim.kind, ?limit, "an attempt took too long");
            let ended = late.flags.judge(Ended::TimedOut { limit });
            self.crew.push(late.claim, ended, late.flags.progress.take());
            self.replace_worker();
        }
        self.crew.give_back(self.crew.buffer.take_stale(now));
        if self.crew.stage() != Stage::Working {
            return;
        }
        self.note_clocks(now);
        if let Err(error) = self.crew.presence.close(&self.crew.closed_kinds()) {
            tracing::debug!(%error, "which kinds are closed could not be said yet");
        }
        self.look_for_returned(now);
        if self.crew.due.load(Ordering::Acquire) <= self.crew.inner().clock.wall() {
            self.crew.due.store(NEVER, Ordering::Release);
            self.crew.look();
        }
        self.renew_owner(now);
        self.write_progress(now);
        if now >= self.looked + self.pace() {
            self.looked = now;
            // A look that met a locked file is made again at the next.
            if let Err(error) = self.neighbours.look(&self.crew) {
                tracing::debug!(%error, "a look at the file for other processes failed");
            }
        }
        if let Err(error) = self.neighbours.watch(&self.crew) {
            tracing::debug!(%error, "a look at other processes failed");
        }
    }

    /// How soon after a look at the file comes the next.
    fn pace(&self) -> Duration {
        if self.crew.expected().is_empty() { self.pace } else { self.pace.min(EXPECTANT) }
    }

    /// What handlers have said and nobody has written since they said nothing more.
    fn write_progress(&self, now: Duration) {
        let due = self.crew.attempts.take_progress(now);
        if due.is_empty() {
            return;
        }
        let written = self.crew.inner().pen.write(PROGRESS, Mode::default(), move |group| {
            due.iter().try_for_each(|(running, noted)| note_progress(group, &running.claim, &running.flags, noted))
        });
        if let Err(error) = written {
            tracing::debug!(%error, "the progress of jobs could not be written");
        }
    }

    /// The machine slept, or its clock was set: the calendar's thread does not see it.
    fn note_clocks(&mut self, now: Duration) {
        let wall = self.crew.inner().clock.wall();
        if let Some((last_wall, last)) = self.clocks.replace((wall, now)) {
            let parted = (wall.saturating_sub(last_wall)).saturating_sub(millis(now.saturating_sub(last)));
            if parted.abs() > PARTING {
                self.crew.calendar_bell.ring();
            }
        }
    }

    /// What was passed over because it runs here may have come back, in another runner of this process. The last look
    /// comes after the last return: before it, what returned last was passed over still.
    fn look_for_returned(&mut self, now: Duration) {
        if now < self.hanging_at {
            return;
        }
        let hanging = hanging::any_of(self.crew.store.path());
        if hanging || self.hanging {
            self.hanging_at = now + RETURNED;
            self.crew.look();
        }
        self.hanging = hanging;
    }

    /// The thread of a late attempt is lost until it comes back: another takes its place, up to as many as there are
    /// workers.
    fn replace_worker(&self) {
        if self.crew.attempts.given_up() > self.crew.workers {
            return;
        }
        match worker::spawn(&self.crew) {
            Ok(thread) => self.spawned.lock().unwrap_or_else(PoisonError::into_inner).push(thread),
            Err(error) => tracing::error!(%error, "a worker could not be replaced"),
        }
    }

    /// A process that was declared gone registers anew; what it had claimed is not its own any more.
    fn renew_owner(&mut self, now: Duration) {
        if !self.crew.owner().is_lost() {
            return self.stand_by(now);
        }
        for claim in self.crew.buffer.empty(false) {
            self.crew.buffer.lay_down(1);
            self.crew.inner().trial.end(claim.id);
        }
        match self.crew.inner().owner() {
            Ok(owner) => {
                *self.crew.owner.lock().unwrap_or_else(PoisonError::into_inner) = owner;
                self.crew.look();
            }
            Err(error @ Error::NewerSchema { .. }) => self.bear(&error),
            Err(error) => tracing::debug!(%error, "this process could not be registered anew yet"),
        }
    }

    /// Says what this runner handles where that could not be said at its start, and once its process has registered anew.
    fn stand_by(&mut self, now: Duration) {
        if now < self.say_at {
            return;
        }
        if let Err(error) = self.crew.presence.stand_by(self.crew.owner().id) {
            self.say_at = now + SAY_AGAIN;
            tracing::debug!(%error, "what this runner handles could not be said yet");
        }
    }

    fn round(&mut self) {
        self.crew.ask_whole();
        let mode = self.crew.mode(std::mem::replace(&mut self.in_succession, true));
        match self.crew.inner().pen.write(ROUND, mode, |_| Ok(())) {
            Ok(()) => {
                if self.fault.take().is_some() {
                    self.crew.set_trouble(None);
                    tracing::info!("the runner writes again");
                    self.crew.tell(|| Happened::FaultEnded);
                }
            }
            Err(error) => self.bear(&error),
        }
    }

    /// A fault is reported when it begins, not at each of its returns, and waited out.
    fn bear(&mut self, error: &Error) {
        if self.fault.is_none() {
            self.crew.set_trouble(Some(error));
            tracing::error!(code = error.code(), %error, "the runner cannot write");
            self.crew.tell(|| Happened::FaultBegun { code: error.code().to_owned() });
        }
        let pause = self.fault.map_or(*AFTER_FAULT.start(), |last| (last * 2).min(*AFTER_FAULT.end()));
        self.fault = Some(pause);
        if matches!(error, Error::NewerSchema { .. } | Error::Damaged { .. } | Error::NotADatabase { .. }) {
            // Nothing that this process does can mend it.
            self.crew.attempts.give_up_all();
            self.stop.at_once(error.to_string());
            self.crew.set_stage(Stage::Stopping);
        }
        std::thread::sleep(pause.min(self.stop.patience(&self.crew)));
    }

    /// How long there is nothing to do, unless the bell rings.
    fn nap(&self) -> Duration {
        let now = self.crew.now();
        let due = self.crew.due.load(Ordering::Acquire);
        let until_due = due.saturating_sub(self.crew.inner().clock.wall()).max(1);
        let mut nap = Duration::from_millis(u64::try_from(until_due).unwrap_or(1)).min(LONGEST);
        let others = [
            self.crew.attempts.next_limit(now),
            self.neighbours.next_watch(now),
            Some((self.looked + self.pace()).saturating_sub(now)),
            self.crew.attempts.next_progress(now),
            (!self.crew.presence.is_said()).then(|| self.say_at.saturating_sub(now)),
            self.crew.inner().trial.left(now),
            (self.crew.buffer.len() > 0).then_some(Duration::from_millis(250)),
            (self.crew.stage() != Stage::Working).then(|| self.stop.patience(&self.crew)),
        ];
        for other in others.into_iter().flatten() {
            nap = nap.min(other);
        }
        nap.max(Duration::from_micros(100))
    }
}
