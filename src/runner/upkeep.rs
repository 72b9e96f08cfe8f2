//! The thread that keeps the file small, a little at a time.

use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

use super::crew::{Crew, Stage};
use crate::error::{Error, Result};

/// After a runner's start, which has better things to do.
const FIRST: Duration = Duration::from_secs(2);
/// Between two looks at what is due.
const PAUSE: Duration = Duration::from_secs(60);

/// Starts it; it ends with the runner, in the middle of its work if need be.
pub(super) fn spawn(crew: &Arc<Crew>) -> Result<JoinHandle<()>> {
    let path = crew.store.path().to_owned();
    let crew = Arc::clone(crew);
    let run = move || {
        let former = crew.handlers.former_names();
        let go_on = || crew.stage() == Stage::Working;
        let mut pause = FIRST;
        let mut records = None;
        while go_on() {
            crew.upkeep_bell.wait(pause);
            pause = PAUSE;
            if !go_on() {
                break;
            }
            match crew.store.upkeep_in_turn(&former, &mut records, &go_on) {
                Ok(report) if report.rows() > 0 => tracing::info!(%report, "upkeep"),
                Ok(_) => {}
                // It is tried again; what keeps the runner from writing is told by the keeper.
                Err(error) => tracing::debug!(%error, "upkeep has stopped before its end"),
            }
        }
    };
    std::thread::Builder::new().name("birkez-upkeep".into()).spawn(run).map_err(|source| Error::Io {
        act: "starting the upkeep's thread for",
        path,
        source,
    })
}
