//! Knowing that something changed, without asking again and again.
//!
//! Commits of this store tell it themselves; those of others are seen by a thread that is there only while somebody watches.

mod foreign;
mod snapshot;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

use self::foreign::Foreign;
pub use self::snapshot::{Counts, Snapshot};
use crate::clock::Stopwatch;
use crate::error::{Error, Result};
use crate::fault::StorageFault;
use crate::pen::{Act, Rider};
use crate::state::State;
use crate::store::{Inner, JobInfo, Store};

/// How often what others have committed is looked for.
const PACE: Duration = Duration::from_millis(50);
/// Nobody waits longer than this at a time.
const LONG: Duration = Duration::from_secs(86_400);
const WAIT: Act = Act { name: "wait", instead: "wait after the transaction" };

/// Wakes whoever waits when something in the file has changed; made by [`Store::watch`].
///
/// It keeps the store open. All watches of a store share one thread, which ends with the last of them.
pub struct Watch {
    // Before the store: the thread ends first, so that the store is closed by whoever lets go of it.
    hub: Arc<Hub>,
    store: Store,
    seen: u64,
    pause: Duration,
    woken: Option<Stopwatch>,
}

/// A function that is called when something has changed, until this is dropped; made by [`Store::on_change`].
#[must_use = "dropped at once, it calls nothing"]
pub struct OnChange {
    id: u64,
    hub: Arc<Hub>,
    _store: Store,
}

/// What all that watch through one store share.
pub(crate) struct Hub {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

type Callback = Arc<dyn Fn() + Send + Sync>;

#[derive(Default)]
struct Shared {
    news: Mutex<News>,
    signal: Condvar,
    callbacks: Mutex<Vec<(u64, Callback)>>,
}

#[derive(Clone, Copy, Default)]
struct News {
    /// How often something has changed.
    changes: u64,
    ended: bool,
    /// How many functions were given.
    given: u64,
}

impl Store {
    /// Watches the file: what this store commits wakes at once, what other stores and processes commit within about 50 ms.
    /// The beats of runners wake nobody; a commit of others to the app's own tables may.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// # let rounds = 1;
    /// use std::time::Duration;
    /// let mut watch = store.watch()?.at_most_every(Duration::from_millis(100));
    /// for _ in 0..rounds {
    ///     let now = watch.snapshot(20)?;
    ///     println!("{} running, {} need attention", now.running.len(), now.attention.len());
    ///     watch.wait(Duration::from_millis(1));
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the thread cannot be started.
    pub fn watch(&self) -> Result<Watch> {
        let hub = self.hub()?;
        let seen = hub.shared.news().changes;
        Ok(Watch { hub, store: self.clone(), seen, pause: Duration::ZERO, woken: None })
    }

    /// Calls `f` whenever something has changed, in a thread of the store's, until what this returns is dropped; such as to
    /// ask a user interface to draw itself anew. What changes while it runs is one more call. It should be brief: others
    /// that watch through this store are told of other processes' commits by the same thread. One that panics is not
    /// called again. Whoever drops the last handle waits for a call that is under way: `f` must not wait for that thread.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// # let window = std::sync::Arc::new(std::sync::atomic::AtomicBool::new(false));
    /// # let draw = window.clone();
    /// let on_change = store.on_change(move || draw.store(true, std::sync::atomic::Ordering::Release))?;
    /// # drop(on_change);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::Io`] if the thread cannot be started.
    pub fn on_change(&self, f: impl Fn() + Send + Sync + 'static) -> Result<OnChange> {
        let hub = self.hub()?;
        let id = {
            let mut news = hub.shared.news();
            news.given += 1;
            news.given
        };
        hub.shared.callbacks().push((id, Arc::new(f)));
        Ok(OnChange { id, hub, _store: self.clone() })
    }

    /// Waits until a job has come to an end (done, dead or cancelled) or is parked, for at most `timeout`; answers it as it is
    /// then, so that its state tells which. From a handler it keeps a worker busy, and may wait for one that waits for that
    /// worker.
    ///
    /// ```
    /// # use birkez::{Context, Job, Runner, State};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Export { year: i32 }
    /// # impl Job for Export {
    /// #     const KIND: &'static str = "export";
    /// #     type Output = ();
    /// #     fn key(&self) -> String { self.year.to_string() }
    /// # }
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// # let runner = Runner::builder(&store).handle(|_: Export, _: &Context| Ok(())).start()?;
    /// let export = store.enqueue(&Export { year: 2026 })?;
    /// let ended = store.wait(export.id, std::time::Duration::from_secs(10))?;
    /// assert_eq!(ended.state, State::Done);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchJob`]; [`Error::InsideTransaction`] inside a transaction closure; those of reading the file.
    pub fn wait(&self, job: i64, timeout: Duration) -> Result<JobInfo> {
        self.inner.pen.refuse_inside(WAIT)?;
        let waited = Stopwatch::start();
        let mut watch = None;
        loop {
            let info = self.job(job)?.ok_or_else(|| Error::NoSuchJob { job: format!("job {job}") })?;
            let left = waited.left(timeout);
            let (true, Some(left)) = (matches!(info.state, State::Waiting | State::Running), left) else {
                return Ok(info);
            };
            match &mut watch {
                // What changed before it watched is looked at once more.
                None => watch = Some(self.watch()?),
                Some(watch) => {
                    watch.wait(left);
                }
            }
        }
    }

    fn hub(&self) -> Result<Arc<Hub>> {
        let mut watching = self.inner.watching.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(hub) = watching.upgrade() {
            return Ok(hub);
        }
        let hub = Hub::start(&self.inner)?;
        *watching = Arc::downgrade(&hub);
        Ok(hub)
    }
}

impl Watch {
    /// Waits until something has changed since the last call (or since the watch was made), for at most `timeout`. True if
    /// something has; what changed several times meanwhile is told once. A wake may find nothing that matters to the
    /// caller.
    pub fn wait(&mut self, timeout: Duration) -> bool {
        let waited = Stopwatch::start();
        if let Some(rest) = self.woken.and_then(|woken| woken.left(self.pause)) {
            std::thread::sleep(rest.min(timeout));
            if rest > timeout {
                return false;
            }
        }
        let news = self.hub.shared.wait(self.seen, waited.left(timeout).unwrap_or(Duration::ZERO));
        if news.changes == self.seen {
            return false;
        }
        self.seen = news.changes;
        self.woken = Some(Stopwatch::start());
        true
    }

    /// From now on at least this much time lies between two wakes; the first comes at once, and none is lost. Defaults to
    /// none.
    #[must_use]
    pub fn at_most_every(self, pause: Duration) -> Watch {
        Watch { pause, ..self }
    }

    /// How things stand now: [`Store::snapshot`].
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn snapshot(&self, most: u32) -> Result<Snapshot> {
        self.store.snapshot(most)
    }
}

impl Drop for OnChange {
    fn drop(&mut self) {
        self.hub.shared.callbacks().retain(|(id, _)| *id != self.id);
    }
}

impl Hub {
    fn start(inner: &Arc<Inner>) -> Result<Arc<Hub>> {
        let shared = Arc::<Shared>::default();
        let rider: Arc<dyn Rider> = Arc::clone(&shared) as _;
        inner.pen.attach(Arc::downgrade(&rider));
        // Here and not in the thread: what is committed from now on is news.
        let mut foreign = Foreign::new(inner);
        let (theirs, store) = (Arc::clone(&shared), Arc::clone(inner));
        let run = move || theirs.run(&store, &mut foreign);
        let thread = std::thread::Builder::new().name("birkez-watch".into()).spawn(run);
        let thread = thread.map_err(|source| Error::Io {
            act: "starting the thread that watches",
            path: inner.connector.path.clone(),
            source,
        })?;
        Ok(Arc::new(Hub { shared, thread: Mutex::new(Some(thread)) }))
    }
}

impl Drop for Hub {
    fn drop(&mut self) {
        self.shared.news().ended = true;
        self.shared.signal.notify_all();
        let thread = self.thread.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        // A function that was called may have dropped the last handle, in that thread.
        if let Some(thread) = thread.filter(|thread| thread.thread().id() != std::thread::current().id()) {
            let _ = thread.join();
        }
    }
}

impl Rider for Shared {
    fn stored(&self) {
        self.ring();
    }

    fn committed(&self, _: Result<(), &StorageFault>) {}
}

impl Shared {
    fn news(&self) -> MutexGuard<'_, News> {
        self.news.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn callbacks(&self) -> MutexGuard<'_, Vec<(u64, Callback)>> {
        self.callbacks.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn ring(&self) {
        self.news().changes += 1;
        self.signal.notify_all();
    }

    /// Waits until there is something newer than `seen`.
    fn wait(&self, seen: u64, limit: Duration) -> News {
        let nothing = |news: &mut News| news.changes == seen && !news.ended;
        let waited = self.signal.wait_timeout_while(self.news(), limit.min(LONG), nothing);
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }

    /// The thread: calls who wants to be called, and looks for what others have committed.
    fn run(&self, inner: &Inner, foreign: &mut Foreign) {
        let (mut told, mut looked) = (0, Stopwatch::start());
        loop {
            let news = self.wait(told, looked.left(PACE).unwrap_or(Duration::ZERO));
            if news.ended {
                return;
            }
            if news.changes != told {
                told = news.changes;
                self.call();
            }
            if looked.left(PACE).is_none() {
                if foreign.look(inner, told) {
                    self.ring();
                }
                looked = Stopwatch::start();
            }
        }
    }

    /// Without the lock: what is called may drop its handle.
    fn call(&self) {
        let callbacks = self.callbacks().clone();
        for (id, f) in callbacks {
            // One before it may have taken long, and this one's handle be dropped meanwhile.
            if !self.callbacks().iter().any(|(known, _)| *known == id) {
                continue;
            }
            if catch_unwind(AssertUnwindSafe(|| f())).is_err() {
                tracing::error!("a function that was called on a change has panicked; it is not called again");
                self.callbacks().retain(|(other, _)| *other != id);
            }
        }
    }
}

impl std::fmt::Debug for Watch {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Watch").field("store", &self.store).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for OnChange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OnChange").finish_non_exhaustive()
    }
}
