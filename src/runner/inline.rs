//! A runner without threads: everything that is due runs in the calling thread.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use super::RunnerBuilder;
use super::crew::Crew;
use super::neighbours::Neighbours;
use crate::error::{Error, Result};
use crate::pen::{Act, Rider};
use crate::schedule::Planner;

const DRAIN: Act = Act { name: "drain", instead: "drain after the transaction" };

/// Runs what is due in the calling thread, until nothing is: for tests, and for programs that walk a clock of their own.
///
/// ```
/// # use birkez::{Context, Job, Runner, testing::{Drain, TempStore}};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Mail { to: String }
/// # impl Job for Mail {
/// #     const KIND: &'static str = "mail";
/// #     type Output = ();
/// #     fn key(&self) -> String { self.to.clone() }
/// # }
/// # fn main() -> anyhow::Result<()> {
/// let folder = TempStore::new()?;
/// let store = folder.open()?;
/// let drain = Drain::new(Runner::builder(&store).handle(|_mail: Mail, _cx: &Context| Ok(())))?;
/// let _ = store.enqueue(&Mail { to: "a@b.c".into() })?;
/// assert_eq!(drain.drain()?, 1);
/// assert_eq!(drain.drain()?, 0);
/// # Ok(())
/// # }
/// ```
pub struct Drain {
    crew: Arc<Crew>,
    planner: Planner,
    neighbours: Mutex<Neighbours>,
}

impl Drain {
    /// Takes the handlers and schedules of a runner that is not started. Its number of workers plays no part, and limits
    /// of time are not kept: there is no other thread to keep them.
    ///
    /// # Errors
    ///
    /// Those of [`RunnerBuilder::start`].
    pub fn new(builder: RunnerBuilder) -> Result<Drain> {
        let (crew, planner) = builder.workers(1).build()?;
        crew.buffer.add_idle();
        let rider: Arc<dyn Rider> = Arc::clone(&crew) as _;
        crew.inner().pen.attach(Arc::downgrade(&rider));
        let neighbours = Mutex::new(Neighbours::new(&crew)?);
        Ok(Drain { crew, planner, neighbours })
    }

    /// Makes what its schedules owe and runs jobs until none is due, those of processes that are gone among them; answers
    /// how many attempts were made.
    ///
    /// # Errors
    ///
    /// Those of writing the file. A handler's failure is none.
    pub fn drain(&self) -> Result<usize> {
        let mut attempts = 0;
        self.crew.presence.stand_by(self.crew.owner().id)?;
        self.watch()?;
        loop {
            self.planner.evaluate()?;
            // What is settled now may be what the next run of a schedule waits for.
            let mut moved = !self.crew.inner().endings.is_empty();
            self.crew.ask_whole();
            self.crew.inner().pen.write(DRAIN, self.crew.mode(false), |_| Ok(()))?;
            loop {
                match self.crew.buffer.try_take(&self.crew.inner().trial, self.crew.now()) {
                    Ok(claim) => {
                        self.crew.run(Arc::new(claim));
                        attempts += 1;
                        moved = true;
                    }
                    Err(Some(wait)) => std::thread::sleep(wait.max(Duration::from_millis(1))),
                    Err(None) => break,
                }
            }
            if !moved && self.crew.inner().endings.is_empty() && !self.crew.is_looking() && !self.crew.wants_sync() {
                return Ok(attempts);
            }
        }
    }

    /// What a process held that is gone is due again; there is no keeper to find out.
    fn watch(&self) -> Result<()> {
        let mut neighbours = self.neighbours.lock().unwrap_or_else(PoisonError::into_inner);
        let act = "looking at other processes";
        neighbours.look(&self.crew).map_err(|source| Error::Storage { act, source })?;
        neighbours.watch(&self.crew)
    }
}

impl std::fmt::Debug for Drain {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Drain").field("store", &self.crew.store).finish_non_exhaustive()
    }
}
