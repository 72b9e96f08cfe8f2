//! Handlers by kind, with their types taken away.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use serde::Serialize;
use serde::de::IgnoredAny;

use crate::advice::Sayings;
use crate::claim::{Candidate, Traits};
use crate::context::{Context, Flags, encode};
use crate::enqueue::{KnownKind, decode};
use crate::error::{Error, Result};
use crate::failure::{panicked, safe_text};
use crate::idempotency;
use crate::job::{Job, check_kind};
use crate::outcome::Ended;
use crate::presence::Saying;
use crate::relay::{Message, Relay};
use crate::settle::Claim;
use crate::store::Store;
use crate::store::ended_by;
use crate::upkeep::Former;

/// Most kinds of a runner: one claim asks for all of them in one statement.
pub(super) const MAX_KINDS: usize = 400;

type Make = fn(Store, Arc<Claim>, Arc<Flags>) -> Context;
type Run = dyn Fn(Context, &Store) -> Ended + Send + Sync;

/// What a runner knows of a kind.
pub(super) struct Handler {
    pub kind: &'static str,
    former: &'static [&'static str],
    shape: u32,
    queue: &'static str,
    /// What it says of its failures, as JSON.
    advice: String,
    pub traits: Traits,
    key_as_is: bool,
    pub timeout: Option<Duration>,
    known: KnownKind,
    make: Make,
    run: Box<Run>,
}

impl Handler {
    pub(super) fn new<J: Job>(f: impl Fn(J, &Context) -> anyhow::Result<J::Output> + Send + Sync + 'static) -> Handler {
        Handler::of_payload::<J>(move |payload, cx, store| match decode::<J>(cx.claim.shape, payload) {
            Ok(job) => ended(f(job, cx), store),
            Err(error) => undecodable(&format!("payload does not decode as {}: {error:#}", J::KIND)),
        })
    }

    pub(super) fn relay<J: Job>(relay: impl Relay<Receipt = J::Output>) -> Handler {
        Handler::of_payload::<J>(move |body, cx, store| {
            if let Err(error) = serde_json::from_str::<IgnoredAny>(body) {
                return undecodable(&format!("payload is no JSON: {error}"));
            }
            let message = Message { cx, id: cx.idempotency_key(), body };
            ended(relay.publish(&message, cx), store)
        })
    }

    fn of_payload<J: Job>(f: impl Fn(&str, &Context, &Store) -> Ended + Send + Sync + 'static) -> Handler {
        let run = move |cx: Context, store: &Store| match cx.claim.payload.as_deref() {
            Some(payload) => f(payload, &cx, store),
            None => undecodable("payload is gone"),
        };
        Handler {
            kind: J::KIND,
            former: J::FORMER_KINDS,
            shape: J::SHAPE,
            queue: J::QUEUE,
            advice: Sayings::of::<J>().json(),
            traits: Traits::of::<J>(),
            key_as_is: J::KEY_AS_IS,
            timeout: J::timeout(),
            known: KnownKind::of::<J>(),
            make: Context::new::<J::Output>,
            run: Box::new(run),
        }
    }

    /// The idempotency key of a row that was stored without one.
    pub(super) fn idempotency(&self, secret: &[u8], job: &Candidate) -> String {
        match self.key_as_is {
            true => job.key.clone(),
            false => idempotency::of_job(secret, &job.kind, &job.key),
        }
    }

    /// Runs one attempt in this thread; a panic is how it ended.
    pub(super) fn run(&self, store: &Store, claim: Arc<Claim>, flags: Arc<Flags>) -> Ended {
        let cx = (self.make)(store.clone(), claim, flags);
        let flags = Arc::clone(&cx.flags);
        let ended = catch_unwind(AssertUnwindSafe(|| (self.run)(cx, store)))
            .unwrap_or_else(|panic| Ended::Panicked { text: panicked(panic) });
        flags.judge(ended)
    }
}

fn ended<T: Serialize>(result: anyhow::Result<T>, store: &Store) -> Ended {
    match result {
        Ok(output) => Ended::Done(encode(&output, store.inner.terms.payload_limit)),
        Err(error) => ended_by(&error),
    }
}

fn undecodable(text: &str) -> Ended {
    Ended::Undecodable { text: safe_text(text).into_owned() }
}

/// All handlers of a runner, under the present and the former names of their kinds.
pub(super) struct Handlers {
    handlers: Vec<Handler>,
    by_name: HashMap<&'static str, usize>,
}

impl Handlers {
    pub(super) fn new(handlers: Vec<Handler>) -> Result<Handlers> {
        let mut by_name = HashMap::new();
        for (at, handler) in handlers.iter().enumerate() {
            for &name in std::iter::once(&handler.kind).chain(handler.former) {
                check_kind(name)?;
                if by_name.insert(name, at).is_some_and(|before| before != at) {
                    return Err(Error::DuplicateKind { kind: name.to_owned() });
                }
            }
        }
        if by_name.len() > MAX_KINDS {
            return Err(Error::TooManyKinds { given: by_name.len(), limit: MAX_KINDS });
        }
        Ok(Handlers { handlers, by_name })
    }

    pub(super) fn of(&self, kind: &str) -> Option<&Handler> {
        self.by_name.get(kind).map(|&at| &self.handlers[at])
    }

    /// All former names, with the present ones.
    pub(super) fn former_names(&self) -> Vec<Former> {
        let of = |handler: &Handler| {
            let present = handler.kind.to_owned();
            handler.former.iter().map(move |&name| Former { name: name.to_owned(), present: present.clone() })
        };
        self.handlers.iter().flat_map(of).filter(|former| former.name != former.present).collect()
    }

    /// The shape of each kind's payload.
    pub(super) fn shapes(&self) -> HashMap<String, u32> {
        self.by_name.iter().map(|(&name, &at)| (name.to_owned(), self.handlers[at].shape)).collect()
    }

    /// What is known of each kind.
    pub(super) fn known(&self) -> impl Iterator<Item = (&'static str, KnownKind)> {
        self.by_name.iter().map(|(&name, &at)| (name, self.handlers[at].known))
    }

    /// The names of kinds that run at most once.
    pub(super) fn at_most_once(&self) -> Vec<String> {
        let mut names = self.names();
        names.retain(|name| self.of(name).is_some_and(|handler| handler.traits.at_most_once));
        names
    }

    /// What is said of the kinds, under all their names.
    pub(super) fn sayings(&self) -> Vec<Saying> {
        let say = |handler: &Handler, kind, goes_by| Saying {
            kind,
            queue: handler.queue,
            goes_by,
            advice: handler.advice.clone(),
        };
        let mut sayings = Vec::with_capacity(self.by_name.len());
        for handler in &self.handlers {
            sayings.push(say(handler, handler.kind, None));
            sayings.extend(handler.former.iter().map(|former| say(handler, former, Some(handler.kind))));
        }
        sayings
    }

    /// All names, in a stable order.
    pub(super) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.by_name.keys().map(|&name| name.to_owned()).collect();
        names.sort_unstable();
        names
    }
}
