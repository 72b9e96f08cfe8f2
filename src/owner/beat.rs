//! The beat: a counter raised by a thread and a connection of its own, which wait for nothing but the writer lock.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::thread::JoinHandle;
use std::time::Duration;

use crossbeam_channel::{RecvTimeoutError, Sender, bounded};
use rusqlite::{Connection, ErrorCode, params};

use super::BeatState;
use crate::clock::Clock;
use crate::connect::{Connector, Durability, within};
use crate::error::{Error, Result};
use crate::schema::VERSION;
use crate::sql;

/// A running beat; it ends when this is dropped.
pub(super) struct Beat {
    stop: Option<Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Beat {
    pub(super) fn start(
        owner: i64,
        lease: Duration,
        connector: &Connector,
        clock: &Arc<dyn Clock>,
        state: &Arc<BeatState>,
    ) -> Result<Beat> {
        // A beat needs no durability: after a loss of power there is no process for it to speak of.
        let connector = Connector { durability: Durability::Normal, ..connector.clone() };
        let connection = connector.open().map_err(|source| Error::Storage { act: "starting the beat", source })?;
        let (stop, stopped) = bounded::<()>(0);
        let (state, clock) = (Arc::downgrade(state), Arc::clone(clock));
        let run = move || {
            let mut pause = lease / 3;
            while let Err(RecvTimeoutError::Timeout) = stopped.recv_timeout(pause) {
                let Some(next) = raise(&connection, owner, lease, &*clock, &state) else { break };
                pause = next;
            }
        };
        let thread = std::thread::Builder::new().name("birkez-beat".into()).spawn(run).map_err(|source| Error::Io {
            act: "starting the beat's thread for",
            path: connector.path.clone(),
            source,
        })?;
        Ok(Beat { stop: Some(stop), thread: Some(thread) })
    }
}

impl Drop for Beat {
    fn drop(&mut self) {
        drop(self.stop.take());
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

/// Raises the counter; answers how long to wait for the next, or `None` when there is nothing left to beat for.
fn raise(
    connection: &Connection,
    owner: i64,
    lease: Duration,
    clock: &dyn Clock,
    state: &Weak<BeatState>,
) -> Option<Duration> {
    let state = state.upgrade()?;
    // Shorter than a third of the lease, so that a drop never waits long for this thread.
    let patience = (lease / 6).min(Duration::from_millis(500));
    let beat = || connection.prepare_cached(sql::BEAT)?.execute(params![owner, clock.wall(), VERSION]);
    let beaten = within(patience, beat);
    match beaten {
        Ok(0) => {
            state.lost.store(true, Ordering::Release);
            tracing::warn!(
                owner,
                "this process was declared gone, or is too old for the file; what it runs is not its own any more"
            );
            None
        }
        Ok(_) => {
            state.commits.fetch_add(1, Ordering::AcqRel);
            state.heard(clock.monotonic());
            Some(lease / 3)
        }
        // The gap that a busy writer leaves may be short.
        Err(error) if error.sqlite_error_code() == Some(ErrorCode::DatabaseBusy) => Some(Duration::from_millis(1)),
        // Whatever keeps it from writing may pass before the lease is over.
        Err(_) => Some((lease / 60).max(Duration::from_millis(1))),
    }
}
