//! Delivers events: to `tracing` at once, to the app's callback in a thread of its own.
//!
//! Whoever has committed may hold locks, or be the keeper whom all jobs wait for. So the callback runs elsewhere, and may
//! block, panic, or call the store.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::ThreadId;
use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};
use tracing::level_filters::LevelFilter;

use super::event::{Event, Happened};
use crate::failure::panic_text;
use crate::job::instant;

/// Events that may wait for a slow callback; what comes on top is counted and not told.
const WAITING: usize = 65_536;
/// How long a store that is closed waits for the callback to be told the rest.
const LAST: Duration = Duration::from_secs(1);

pub(crate) type Callback = Arc<dyn Fn(&Event) + Send + Sync>;

/// See the module.
#[derive(Default)]
pub(crate) struct Teller {
    line: Option<Line>,
}

struct Line {
    send: Option<Sender<Event>>,
    skipped: Arc<AtomicU64>,
    thread: ThreadId,
    /// Closed when the thread has ended.
    ended: Receiver<()>,
}

/// What events there is an ear for.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Listening(LevelFilter);

impl Listening {
    /// No ear at all.
    pub(crate) const NO: Listening = Listening(LevelFilter::OFF);

    pub(crate) fn is_any(self) -> bool {
        self.0 != LevelFilter::OFF
    }
}

impl Teller {
    pub(crate) fn new(callback: Option<Callback>) -> std::io::Result<Teller> {
        let Some(callback) = callback else { return Ok(Teller::default()) };
        let (send, events) = bounded(WAITING);
        let (end, ended) = bounded(0);
        let skipped = Arc::new(AtomicU64::new(0));
        let counted = Arc::clone(&skipped);
        let thread = std::thread::Builder::new().name("birkez-events".into()).spawn(move || {
            deliver(&events, &counted, &*callback);
            drop(end);
        })?;
        Ok(Teller { line: Some(Line { send: Some(send), skipped, thread: thread.thread().id(), ended }) })
    }

    /// Asked before an event is made: cheap while nobody listens.
    pub(crate) fn listening(&self) -> Listening {
        Listening(if self.line.is_some() { LevelFilter::TRACE } else { LevelFilter::current() })
    }

    pub(crate) fn tell(&self, events: impl IntoIterator<Item = Event>) {
        for event in events {
            event.what.log();
            let Some(line) = &self.line else { continue };
            if line.send.as_ref().is_some_and(|send| send.try_send(event).is_err()) {
                line.skipped.fetch_add(1, Ordering::AcqRel);
            }
        }
    }

    /// Tells what is no part of a transaction.
    pub(crate) fn tell_now(&self, now: i64, what: impl FnOnce() -> Happened) {
        if self.listening().is_any() {
            self.tell([Event { at: instant(now), what: what() }]);
        }
    }
}

impl Drop for Teller {
    fn drop(&mut self) {
        let Some(line) = &mut self.line else { return };
        drop(line.send.take());
        if std::thread::current().id() != line.thread {
            // Nothing is ever sent: it answers when the thread has ended.
            let _ = line.ended.recv_timeout(LAST);
        }
    }
}

fn deliver(events: &Receiver<Event>, skipped: &AtomicU64, callback: &(dyn Fn(&Event) + Send + Sync)) {
    let mut has_panicked = false;
    let mut tell = |event: &Event| {
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| callback(event)))
            && !std::mem::replace(&mut has_panicked, true)
        {
            tracing::error!(
                text = panic_text(&*panic),
                "the callback for events panicked; it is called again all the same"
            );
        }
    };
    for event in events {
        let count = skipped.swap(0, Ordering::AcqRel);
        if count > 0 {
            tell(&Event { at: event.at, what: Happened::Skipped { count } });
        }
        tell(&event);
    }
}
