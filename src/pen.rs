//! The pen: one write connection per store, behind one first-in-first-out line.
//!
//! Whoever reaches the pen first leads: it opens a transaction, writes its own operation and those of all who have lined
//! up meanwhile, commits once, and answers them. Then it hands the pen to the first of those who came later. Nobody waits
//! to fill a batch; under load the batches fill themselves, and one sync serves many.

mod busy;
mod closure;
mod gaps;
mod group;
mod line;
mod rider;
mod sums;

use std::cell::{Cell, RefCell};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError, RwLock, TryLockError, Weak};
use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior};

use self::busy::Busy;
use self::gaps::Gaps;
pub(crate) use self::group::{Group, OpError, OpResult};
use self::line::{Line, Slot, Turn};
pub(crate) use self::rider::Rider;
use crate::clock::{Clock, Stopwatch};
use crate::connect::{Connector, Durability, waited_for_others, within};
use crate::error::{Error, Result};
use crate::fault::StorageFault;
use crate::telling::{Event, Teller};

/// Most operations that one transaction holds; what lines up later is for the next.
const GROUP: usize = 512;

/// A writing call: its name, and what to call instead inside a transaction closure.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Act {
    pub name: &'static str,
    pub instead: &'static str,
}

/// How an operation wants to be written.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Mode {
    /// It changes more than one row and must be undone as a whole if it is refused.
    pub atomic: bool,
    /// Its commit is synced whatever the store's durability.
    pub synced: bool,
    /// Its caller writes one transaction after another.
    pub follows: bool,
}

pub(crate) struct Pen {
    connector: Connector,
    clock: Arc<dyn Clock>,
    busy: Duration,
    line: Mutex<Line>,
    writer: Mutex<Writer>,
    /// Transactions are to be brief: somebody waits for what is not this pen's to write.
    brief: AtomicBool,
    /// Commits of the beats of this process, which are not a neighbour's.
    beats: Arc<AtomicU64>,
    riders: RwLock<Vec<Weak<dyn Rider>>>,
    /// Whether the last transaction has changed a row.
    changed: AtomicBool,
    teller: Arc<Teller>,
    /// How its transactions have waited for other connections.
    pub(crate) busy_waits: Busy,
}

struct Writer {
    connection: Connection,
    gaps: Gaps,
}

thread_local! {
    /// Pens whose transaction is open in a closure further up this thread's stack.
    static HELD: RefCell<Vec<usize>> = const { RefCell::new(Vec::new()) };
    /// When the earliest of the jobs is to run that the closure has stored in its transaction.
    static STORED: Cell<Option<i64>> = const { Cell::new(None) };
    /// What happened in the transaction that is open in a closure, beside what its group knows.
    static NEWS: RefCell<Vec<Event>> = const { RefCell::new(Vec::new()) };
}

impl Pen {
    pub(crate) fn new(
        connector: Connector,
        connection: Connection,
        clock: Arc<dyn Clock>,
        busy: Duration,
        teller: Arc<Teller>,
    ) -> Pen {
        Pen {
            connector,
            clock,
            busy,
            line: Mutex::default(),
            writer: Mutex::new(Writer { connection, gaps: Gaps::default() }),
            brief: AtomicBool::new(false),
            beats: Arc::default(),
            riders: RwLock::default(),
            changed: AtomicBool::new(false),
            teller,
            busy_waits: Busy::default(),
        }
    }

    /// From now on nothing waits longer than this for other connections.
    pub(crate) fn hurry(&mut self, busy: Duration) {
        self.busy = self.busy.min(busy);
    }

    /// To be raised with each commit of a beat.
    pub(crate) fn beats(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.beats)
    }

    /// `data_version` on the pen's connection, which leaves out its own commits. `None` while it is writing.
    pub(crate) fn neighbours_version(&self) -> Option<rusqlite::Result<i64>> {
        let writer = match self.writer.try_lock() {
            Ok(writer) => writer,
            Err(TryLockError::Poisoned(writer)) => writer.into_inner(),
            Err(TryLockError::WouldBlock) => return None,
        };
        let ask = writer.connection.prepare_cached("PRAGMA data_version");
        Some(ask.and_then(|mut ask| ask.query_row([], |row| row.get(0))))
    }

    pub(crate) fn teller(&self) -> &Teller {
        &self.teller
    }

    pub(crate) fn path(&self) -> &PathBuf {
        &self.connector.path
    }

    /// Whether this thread is inside a closure that holds this pen.
    pub(crate) fn is_held_here(&self) -> bool {
        let me = std::ptr::from_ref(self).addr();
        HELD.with_borrow(|held| held.contains(&me))
    }

    /// What happened in a transaction that is not the pen's own: told with the closure's that holds the pen here. What
    /// the host's own transactions do is not told, since nobody sees them commit.
    pub(crate) fn keep_news(&self, news: Vec<Event>) {
        if self.is_held_here() {
            NEWS.with_borrow_mut(|all| all.extend(news));
        }
    }

    /// From now on, or no longer, transactions take little along.
    pub(crate) fn be_brief(&self, brief: bool) {
        self.brief.store(brief, Ordering::Release);
    }

    /// Writes `op` in a transaction with whatever else is waiting, by whichever thread holds the pen then. When this
    /// returns `Ok`, it is committed.
    pub(crate) fn write<T, F>(&self, act: Act, mode: Mode, op: F) -> Result<T>
    where
        T: Send + 'static,
        F: FnOnce(&mut Group<'_>) -> OpResult<T> + Send + 'static,
    {
        self.refuse_inside(act)?;
        let waited = Stopwatch::start();
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if line.take_pen() {
            drop(line);
            return self.lead_own(act, mode, waited, op);
        }
        let answer = Arc::new(Mutex::new(None));
        let theirs = Arc::clone(&answer);
        let slot = line.join(mode, move |group| group.run(mode.atomic, op, &theirs));
        drop(line);
        match self.wait(&slot, waited) {
            Turn::Done(outcome) => self.answer(act, outcome, &answer),
            Turn::Lead => {
                let mut own = slot.take();
                let mode = Mode { follows: true, ..mode };
                let outcome = self.lead(act, mode, waited, &mut |group| own.take().map_or(Ok(()), |op| op(group)));
                self.answer(act, outcome, &answer)
            }
            Turn::Waiting | Turn::Taken => Err(self.busy_error(act, waited)),
        }
    }

    /// Runs `f` in this thread while it holds the pen: for closures of the user's, which may not move to another thread.
    pub(crate) fn write_here<T>(
        &self,
        act: Act,
        mode: Mode,
        f: impl FnOnce(&mut Group<'_>) -> OpResult<T>,
    ) -> Result<T> {
        self.refuse_inside(act)?;
        let waited = Stopwatch::start();
        let mut mode = mode;
        let mut line = self.line.lock().unwrap_or_else(PoisonError::into_inner);
        if !line.take_pen() {
            let slot = line.join_in_person(mode);
            drop(line);
            mode.follows = true;
            if !matches!(self.wait(&slot, waited), Turn::Lead) {
                return Err(self.busy_error(act, waited));
            }
        } else {
            drop(line);
        }
        self.lead_own(act, mode, waited, f)
    }

    fn lead_own<T>(
        &self,
        act: Act,
        mode: Mode,
        waited: Stopwatch,
        op: impl FnOnce(&mut Group<'_>) -> OpResult<T>,
    ) -> Result<T> {
        let answer = Mutex::new(None);
        let mut op = Some(op);
        let outcome = self
            .lead(act, mode, waited, &mut |group| op.take().map_or(Ok(()), |op| group.run(mode.atomic, op, &answer)));
        self.answer(act, outcome, &answer)
    }

    fn answer<T>(
        &self,
        act: Act,
        outcome: Result<(), StorageFault>,
        answer: &Mutex<Option<Result<T, Refusal>>>,
    ) -> Result<T> {
        let own = answer.lock().unwrap_or_else(PoisonError::into_inner).take();
        match (outcome, own) {
            (Err(fault), _) => Err(fault.to_error(act.name)),
            (Ok(()), Some(Ok(value))) => Ok(value),
            (Ok(()), Some(Err(Refusal::Refused(error)))) => Err(error),
            (Ok(()), Some(Err(Refusal::Fault(fault)))) => Err(fault.to_error(act.name)),
            (Ok(()), None) => Err(Error::OutcomeUnknown { act: act.name, cause: "the writing thread panicked".into() }),
        }
    }

    /// Waits for this thread's turn, for at most the busy deadline; once taken into a transaction, until its end.
    fn wait(&self, slot: &Arc<Slot>, waited: Stopwatch) -> Turn {
        match slot.wait(waited.left(self.busy)) {
            Turn::Waiting => {
                let gave_up = self.line.lock().unwrap_or_else(PoisonError::into_inner).leave(slot);
                if gave_up { Turn::Waiting } else { slot.wait_on() }
            }
            Turn::Taken => slot.wait_on(),
            turn => turn,
        }
    }

    fn busy_error(&self, act: Act, waited: Stopwatch) -> Error {
        Error::Busy { act: act.name, waited_ms: u64::try_from(waited.elapsed().as_millis()).unwrap_or(u64::MAX) }
    }

    pub(crate) fn refuse_inside(&self, act: Act) -> Result<()> {
        if self.is_held_here() {
            return Err(Error::InsideTransaction { act: act.name, instead: act.instead });
        }
        Ok(())
    }

    /// Leads one transaction and passes the pen on, also when it panics.
    fn lead(
        &self,
        act: Act,
        mode: Mode,
        waited: Stopwatch,
        own: &mut dyn FnMut(&mut Group<'_>) -> Result<(), StorageFault>,
    ) -> Result<(), StorageFault> {
        let mut news = Vec::new();
        let mut followers = Followers { pen: self, slots: Vec::new() };
        let outcome = self.lead_transaction(act, mode, waited, own, &mut followers.slots, &mut news);
        // Before the followers are: what a rider has written for one of them must be told when that one goes on.
        let changed = outcome.is_ok() && self.changed.load(Ordering::Acquire);
        self.each_rider(|rider| {
            rider.committed(outcome.as_ref().map(|_| ()));
            if changed {
                rider.stored();
            }
        });
        for slot in followers.slots.drain(..) {
            slot.set(Turn::Done(outcome.clone()));
        }
        // Passes the pen on: what is told is told without it.
        drop(followers);
        if outcome.is_ok() {
            self.teller.tell(news);
        }
        outcome
    }

    fn lead_transaction(
        &self,
        act: Act,
        mode: Mode,
        waited: Stopwatch,
        own: &mut dyn FnMut(&mut Group<'_>) -> Result<(), StorageFault>,
        followers: &mut Vec<Arc<Slot>>,
        news: &mut Vec<Event>,
    ) -> Result<(), StorageFault> {
        let mut writer = self.writer.lock().unwrap_or_else(PoisonError::into_inner);
        let Writer { connection, gaps } = &mut *writer;
        gaps.leave(mode.follows);
        let fault = |error: rusqlite::Error| StorageFault::from_sqlite(&error, self.path());
        let raised = mode.synced && self.connector.durability == Durability::Normal;
        if raised {
            connection.execute_batch(Durability::Full.pragma()).map_err(fault)?;
        }
        let mut held = None;
        let outcome = (|| {
            let left = waited.left(self.busy).unwrap_or(Duration::ZERO);
            let (begun, busy) = waited_for_others(|| {
                within(left, || Transaction::new_unchecked(connection, TransactionBehavior::Immediate))
            });
            self.busy_waits.note(busy);
            let tx = begun.map_err(|error| with_wait(fault(error), waited))?;
            held = Some(Stopwatch::start());
            let rows = tx.total_changes();
            let synced = raised || self.connector.durability == Durability::Full;
            let mut group = Group::new(&tx, self.path(), self.clock.wall());
            group.synced = synced;
            group.brief = self.brief.load(Ordering::Acquire);
            group.listening = self.teller.listening();
            group.check_version()?;
            if mode.follows {
                let version =
                    group.statement("PRAGMA data_version").and_then(|mut ask| ask.query_row([], |row| row.get(0)));
                gaps.note(version.map_err(fault)?, self.beats.load(Ordering::Acquire));
            }
            self.let_ride(&mut group, |rider, group| rider.open(group))?;
            own(&mut group)?;
            self.take_followers(&mut group, followers, synced)?;
            self.let_ride(&mut group, |rider, group| rider.close(group))?;
            group.write_counts().map_err(fault)?;
            self.changed.store(tx.total_changes() != rows + group.quiet, Ordering::Release);
            *news = std::mem::take(&mut group.news);
            tx.commit().map_err(|error| unknown(fault(error), act))
        })();
        if !connection.is_autocommit() {
            // What made COMMIT fail may keep ROLLBACK from working too; the next BEGIN then says so.
            let _ = connection.execute_batch("ROLLBACK");
        }
        if let Some(held) = held {
            gaps.end(held);
        }
        if raised {
            connection.execute_batch(self.connector.durability.pragma()).map_err(fault)?;
        }
        outcome
    }

    fn take_followers(
        &self,
        group: &mut Group<'_>,
        followers: &mut Vec<Arc<Slot>>,
        synced: bool,
    ) -> Result<(), StorageFault> {
        while followers.len() < GROUP {
            let next = self.line.lock().unwrap_or_else(PoisonError::into_inner).take_next(synced);
            let Some(slot) = next else { break };
            followers.push(Arc::clone(&slot));
            if let Some(op) = slot.take() {
                op(group)?;
            }
        }
        Ok(())
    }
}

/// The answer of an operation to whoever asked for it, where the transaction went through.
#[derive(Debug)]
pub(crate) enum Refusal {
    Refused(Error),
    Fault(StorageFault),
}

/// Those whose operations are in the leader's transaction. If the leader panics, they are told, and the pen goes on.
struct Followers<'a> {
    pen: &'a Pen,
    slots: Vec<Arc<Slot>>,
}

impl Drop for Followers<'_> {
    fn drop(&mut self) {
        for slot in self.slots.drain(..) {
            let cause = "the thread that was writing it panicked".to_owned();
            slot.set(Turn::Done(Err(StorageFault::Unknown { cause })));
        }
        self.pen.line.lock().unwrap_or_else(PoisonError::into_inner).pass_pen();
    }
}

/// Says in a busy fault how long was waited, by whosever busy handler.
fn with_wait(fault: StorageFault, waited: Stopwatch) -> StorageFault {
    match fault {
        StorageFault::Busy { .. } => {
            StorageFault::Busy { waited_ms: u64::try_from(waited.elapsed().as_millis()).unwrap_or(u64::MAX) }
        }
        other => other,
    }
}

/// A failed COMMIT may have been written. Only where SQLite could not write the log to its end is it known that it was not.
fn unknown(fault: StorageFault, act: Act) -> StorageFault {
    match fault {
        StorageFault::DiskFull => StorageFault::DiskFull,
        fault => StorageFault::Unknown { cause: fault.to_error(act.name).to_string() },
    }
}

#[cfg(test)]
mod tests;
