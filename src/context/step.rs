//! Steps: parts of a job that are not run again once their output is stored.

use std::collections::HashSet;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::ThreadId;

use rusqlite::params;
use serde::Serialize;
use serde::de::DeserializeOwned;

use super::{Context, encode};
use crate::error::{Error, Result};
use crate::idempotency;
use crate::job::MAX_KIND;
use crate::outcome::Output;
use crate::pen::{Act, Mode};
use crate::sql;

const STEP: Act = Act { name: "cx.step", instead: "it before or after the transaction" };

/// Names of the steps that an attempt has made or is making.
#[derive(Debug)]
pub(super) struct Steps {
    /// The handler's own thread.
    home: ThreadId,
    state: Mutex<State>,
}

impl Default for Steps {
    fn default() -> Steps {
        Steps { home: std::thread::current().id(), state: Mutex::default() }
    }
}

#[derive(Debug, Default)]
struct State {
    known: HashSet<String>,
    /// Who is in which, outermost first: a handler may use threads of its own.
    inside: Vec<(ThreadId, String)>,
}

impl Steps {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The step that this thread is in. A thread of the handler's is taken to be in the step that the handler's own thread
    /// is in: it was most likely started by that.
    fn current(&self) -> Option<String> {
        let me = std::thread::current().id();
        let state = self.lock();
        let own = state.inside.iter().rev().find(|(thread, _)| *thread == me);
        let at_home =
            state.inside.last().filter(|_| me != self.home && state.inside.iter().all(|(at, _)| *at == self.home));
        own.or(at_home).map(|(_, name)| name.clone())
    }
}

/// A step that is being made. One that comes to no stored output may be made again in the same attempt.
struct Making<'a> {
    steps: &'a Steps,
    name: &'a str,
    stored: bool,
}

impl<'a> Making<'a> {
    fn begin(steps: &'a Steps, name: &'a str) -> Option<Making<'a>> {
        let mut state = steps.lock();
        if !state.known.insert(name.to_owned()) {
            return None;
        }
        state.inside.push((std::thread::current().id(), name.to_owned()));
        Some(Making { steps, name, stored: false })
    }
}

impl Drop for Making<'_> {
    fn drop(&mut self) {
        let mut state = self.steps.lock();
        state.inside.retain(|(_, name)| name != self.name);
        if !self.stored {
            state.known.remove(self.name);
        }
    }
}

impl Context {
    /// What the world outside tells a repeat by: the same through all attempts, restarts and replays of the job, and
    /// different for each job. Hand it to whoever takes an idempotency key. Inside a [`step`](Context::step) it is the
    /// step's own.
    ///
    /// It is fixed when the job is enqueued and stored with it: 32 hexadecimal digits that follow from kind and key, and
    /// from the store's [secret](crate::StoreBuilder::idempotency_secret) if it has one, or the job's key itself
    /// ([`Job::KEY_AS_IS`](crate::Job::KEY_AS_IS)). A step's follows from the job's and the step's name.
    ///
    /// A thread that a step's closure has started is in the step too, if the handler's own thread has called `step`. A handler
    /// that makes steps in threads of its own takes the key in the thread that called `step`: nobody can tell which step
    /// another one belongs to, and it gets the job's.
    pub fn idempotency_key(&self) -> String {
        let job = &self.claim.idempotency;
        match self.steps.current() {
            Some(step) => idempotency::of_step(job, &step),
            None => job.clone(),
        }
    }

    /// Runs `f` and stores its output under `name`; a later attempt of the job gets the stored output and runs nothing.
    ///
    /// If the process dies in the middle of `f`, or after `f` and before its output is stored, `f` runs again, under the
    /// same [`idempotency_key`](Context::idempotency_key): a provider that takes one tells the repeat. If `f` fails, nothing
    /// is stored. Names are unique within a job, 1 to 128 bytes without control characters.
    ///
    /// ```
    /// # use birkez::{Context, Job, Runner, testing::{Drain, TempStore}};
    /// # #[derive(serde::Serialize, serde::Deserialize)]
    /// # struct Order { number: u32 }
    /// # impl Job for Order {
    /// #     const KIND: &'static str = "order";
    /// #     type Output = String;
    /// #     fn key(&self) -> String { self.number.to_string() }
    /// # }
    /// # fn charge(_number: u32, _idempotency_key: &str) -> anyhow::Result<String> { Ok("ch_17".into()) }
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = TempStore::new()?;
    /// # let store = folder.open()?;
    /// let handler = |order: Order, cx: &Context| {
    ///     let charge = cx.step("charge", || charge(order.number, &cx.idempotency_key()))?;
    ///     cx.commit(|_tx| Ok(charge))
    /// };
    /// # let _ = store.enqueue(&Order { number: 17 })?;
    /// # Drain::new(Runner::builder(&store).handle(handler))?.drain()?;
    /// # assert_eq!(store.steps(1)?[0].name, "charge");
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// The error of `f`; [`Error::StepInvalid`] for a name that cannot be one; [`Error::StepRepeated`] if this attempt has
    /// made a step of that name; [`Error::StepUnreadable`] if the stored output does not decode as `T`, and nothing runs;
    /// [`Error::StepNotStored`] if the output cannot be stored: then the job ends, since a repeat would run `f` again;
    /// [`Error::LeaseLost`], [`Error::AlreadySettled`], [`Error::InsideTransaction`]; the errors of writing the file.
    pub fn step<T: Serialize + DeserializeOwned>(
        &self,
        name: &str,
        f: impl FnOnce() -> anyhow::Result<T>,
    ) -> anyhow::Result<T> {
        self.refuse(STEP)?;
        let (kind, key, step) = (self.claim.kind.clone(), self.claim.key.clone(), name.to_owned());
        if name.is_empty() || name.len() > MAX_KIND || name.chars().any(char::is_control) {
            return Err(Error::StepInvalid { kind, key, step: step.chars().take(MAX_KIND).collect() }.into());
        }
        let Some(mut making) = Making::begin(&self.steps, name) else {
            return Err(Error::StepRepeated { kind, key, step }.into());
        };
        if let Some(stored) = self.stored_step(name)? {
            let output = serde_json::from_str(&stored);
            let output = output.map_err(|source| Error::StepUnreadable { kind, key, step, source: source.into() })?;
            making.stored = true;
            return Ok(output);
        }
        let output = f()?;
        let note = match encode(&output, self.store.inner.terms.payload_limit) {
            Output::Stored(json) if serde_json::from_str::<T>(&json).is_ok() => {
                self.store_step(name, json)?;
                making.stored = true;
                return Ok(output);
            }
            Output::Stored(_) => "unreadable",
            Output::NotStored(note) => note,
        };
        let error = Error::StepNotStored { kind, key, step, note };
        // Whatever the handler makes of it: a repeat would run the step again.
        self.flags.misused.get_or_init(|| error.to_string());
        Err(error.into())
    }

    /// Nothing is begun on behalf of a job that is somebody else's.
    fn stored_step(&self, name: &str) -> Result<Option<String>> {
        let claim = &self.claim;
        let (output, holds) = self.store.read("looking for a step", |tx| {
            let mut ask = tx.prepare_cached(sql::STEP)?;
            ask.query_row(params![claim.id, claim.owner.id, claim.token, name], |row| {
                Ok((row.get::<_, Option<String>>(0)?, row.get::<_, bool>(1)?))
            })
        })?;
        if !holds || self.is_cancelled() {
            return Err(self.fence().lost());
        }
        Ok(output)
    }

    fn store_step(&self, name: &str, output: String) -> Result<()> {
        let (fence, name) = (self.fence(), name.to_owned());
        let mode = Mode { atomic: false, ..self.mode() };
        self.store.inner.pen.write(STEP, mode, move |group| {
            fence.check(group)?;
            let claim = &fence.claim;
            let row = params![claim.id, claim.owner.id, claim.token, name, output, group.now];
            group.statement(sql::STORE_STEP)?.execute(row)?;
            Ok(())
        })
    }
}
