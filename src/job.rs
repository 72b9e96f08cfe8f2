//! What a job is: its type, its key, its state, and the answer to enqueueing it.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::advice::Advice;
use crate::error::{Error, Result};
use crate::failure::Class;
use crate::retry::RetryPolicy;
use crate::state::{JobName, JobRef, State};

/// The longest key, in bytes.
pub const MAX_KEY: usize = 512;
/// The longest kind, in bytes.
pub const MAX_KIND: usize = 128;

/// Work that is named by a key taken from the work itself.
///
/// A job is `(KIND, key())`. Enqueueing the same pair again does not make a second job: it is answered with the first
/// one's state and, once done, its output. The same pair with other content is an error.
///
/// ```
/// use birkez::Job;
/// use serde::{Deserialize, Serialize};
///
/// #[derive(Serialize, Deserialize)]
/// struct PostStatement { card: String, date: chrono::NaiveDate }
///
/// impl Job for PostStatement {
///     const KIND: &'static str = "post-statement";
///     type Output = u32;
///     fn key(&self) -> String { format!("{}/{}", self.card, self.date) }
/// }
/// ```
pub trait Job: Serialize + DeserializeOwned + Send + 'static {
    /// Name of the kind in the file. It must not change; a renamed kind keeps its history through
    /// [`FORMER_KINDS`](Job::FORMER_KINDS).
    const KIND: &'static str;

    /// The queue: a named group of kinds, to pause or to limit them together ([`Scope`](crate::Scope)). The program
    /// that was started last says which queue a kind is in: another version of it may move the kind out of one that is
    /// paused. Defaults to `default`.
    const QUEUE: &'static str = "default";

    /// Number of the payload's present form. Defaults to 1. Raise it when an older payload needs
    /// [`upgrade`](Job::upgrade) to be read. A field that is merely added, with `#[serde(default)]`, needs no new number
    /// while payloads are kept; where they are retired and keys live on, raise it for that too, since then only the old
    /// content's hash is left to compare with.
    const SHAPE: u32 = 1;

    /// Earlier names of the kind. A key known under one of them is known, and jobs left under one of them are run.
    /// Defaults to none.
    const FORMER_KINDS: &'static [&'static str] = &[];

    /// Whether the job's own key is what the world outside tells repeats by ([`Context::idempotency_key`]), as it is.
    /// Defaults to `false`: then it is a hash that tells nothing of the key.
    ///
    /// [`Context::idempotency_key`]: crate::Context::idempotency_key
    const KEY_AS_IS: bool = false;

    /// Whether the job is never run again by itself once it has started. Defaults to `false`.
    ///
    /// For an effect that must not be repeated and cannot be told apart by an idempotency key. The claim is synced before
    /// the handler starts. If the process dies then, or the time runs out, or the handler panics or fails without saying
    /// how, nobody knows what has happened outside: the job is parked as `unknown_outcome` until a person
    /// [resolves](crate::Store::resolve) it. An error from before the effect may say so and be retried
    /// ([`Verdicts::transient`](crate::Verdicts::transient)).
    const AT_MOST_ONCE: bool = false;

    /// What becomes of the others in the line of an [ordering key](Job::ordering_key) when this one is dead. The type that
    /// ran it last counts. Defaults to [`DeadHead::Holds`].
    const DEAD_HEAD: DeadHead = DeadHead::Holds;

    /// What the handler returns. It is stored, and a repeat of the key gets it back.
    type Output: Serialize + DeserializeOwned + Send + 'static;

    /// The key: what makes this piece of work *this* piece of work. 1 to 512 bytes, compared byte by byte, without NUL.
    fn key(&self) -> String;

    /// The content that must not change under a key. Defaults to the whole payload (`None`). Leave out what a sender may
    /// change between two deliveries of the same thing, such as a delivery time. Maps are compared without regard to
    /// order; a `HashSet` is written as a list in a different order each time, so sort it here, or use a `BTreeSet`.
    /// JSON has no NaN and no infinity: both are stored as `null`.
    fn fingerprint(&self) -> Option<serde_json::Value> {
        None
    }

    /// Larger is sooner. Defaults to 0.
    ///
    /// A lower priority is not starved for ever: after 16 jobs of higher priority have been claimed in front of a waiting
    /// lower one, the next claim takes one of a lower priority, each level in its turn.
    fn priority(&self) -> i32 {
        0
    }

    /// Not before this time. Defaults to `None`: at once. [`in_future`] helps with a delay.
    fn run_at(&self) -> Option<DateTime<Utc>> {
        None
    }

    /// Jobs of one ordering key run one at a time, in the order in which they were enqueued, whatever their kinds. The first
    /// in line holds up the others while it waits for its time or for a retry, and while it is parked; a dead one does as
    /// [`DEAD_HEAD`](Job::DEAD_HEAD) says. It has left the line when its completion is stored, so that what a handler does
    /// after [`commit`](crate::Context::commit) may run beside the next. Priority counts only between lines. A job of [`once`](crate::Store::once) stands
    /// in no line. Defaults to none.
    fn ordering_key(&self) -> Option<String> {
        None
    }

    /// Which version of its ordering key's state the job carries: a time stamp of the sender's, say. Once a newer one is
    /// done, an older one that comes later is not applied: it ends as cancelled, with the class
    /// [`Superseded`](crate::Class::Superseded). A job of [`once`](crate::Store::once) takes no part in it. Defaults to none.
    fn version(&self) -> Option<i64> {
        None
    }

    /// What people call this piece of work, such as the name of a file: it is shown in lists, with failures and in notices,
    /// where a payload is not. Defaults to none: then its key is all that is shown.
    fn label(&self) -> Option<String> {
        None
    }

    /// The job that this one corrects. What has been done is never edited: a correction is a job of its own, and the two
    /// show each other ([`JobInfo`](crate::JobInfo)). The name is the one it is stored under. Enqueueing fails if the file does
    /// not know it, and a repeat that names another one is a reused key.
    /// Defaults to none.
    fn corrects(&self) -> Option<JobName> {
        None
    }

    /// Turns a payload stored under an older [`SHAPE`](Job::SHAPE) into the present one.
    ///
    /// # Errors
    ///
    /// The default refuses every older shape: the job then ends as `undecodable`, with its payload kept.
    fn upgrade(shape: u32, payload: serde_json::Value) -> anyhow::Result<serde_json::Value> {
        let _ = payload;
        anyhow::bail!("payload has shape {shape}, this program reads only shape {}", Self::SHAPE)
    }

    /// What is to be done before a job that is dead by a failure of this class is replayed; it is shown with the job
    /// ([`Store::advice`](crate::Store::advice)), also by programs that do not know its type. Defaults to none.
    fn advice(class: Class) -> Option<Advice> {
        let _ = class;
        None
    }

    /// How failures are retried. Defaults to [`RetryPolicy::default`].
    fn retry() -> RetryPolicy {
        RetryPolicy::default()
    }

    /// How long one attempt may take. Defaults to `None`: as long as it likes.
    fn timeout() -> Option<Duration> {
        None
    }
}

/// What a dead job at the head of its line does to those behind it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum DeadHead {
    /// They wait until a person has dealt with it ([`Store::pass_over`](crate::Store::pass_over)): what comes later may rest
    /// on it. The default.
    #[default]
    Holds,
    /// They go on without it.
    PassedOver,
}

/// Whether a dead job of this type holds its ordering key back.
pub(crate) fn holds_key<J: Job>() -> bool {
    J::DEAD_HEAD == DeadHead::Holds
}

/// The time `delay` from now, for [`Job::run_at`].
///
/// ```
/// use std::time::Duration;
/// assert!(birkez::in_future(Duration::from_secs(60)) > chrono::Utc::now());
/// ```
pub fn in_future(delay: Duration) -> DateTime<Utc> {
    let now = crate::clock::Clock::wall(&crate::clock::SystemClock::default());
    instant(now.saturating_add(crate::clock::millis(delay)))
}

/// The instant of a stored time; one outside the calendar is as far as the calendar goes.
pub(crate) fn instant(millis: i64) -> DateTime<Utc> {
    DateTime::from_timestamp_millis(millis).unwrap_or(if millis < 0 {
        DateTime::<Utc>::MIN_UTC
    } else {
        DateTime::<Utc>::MAX_UTC
    })
}

/// The answer to enqueueing: the one job that has the key.
#[derive(Debug)]
#[must_use = "the job may exist already, in any state"]
#[non_exhaustive]
pub struct Enqueued<T> {
    /// The job's number in the file.
    pub id: i64,
    /// Whether this call made it.
    pub fresh: bool,
    /// Whether its content is known to be the same. False only where the stored payload can no longer be compared: it is
    /// retired, or of a shape this program does not know.
    pub compared: bool,
    /// Whether it belongs to the callers of [`once`](crate::Store::once), who alone run it: no runner does.
    pub for_callers: bool,
    /// Where it stands.
    pub standing: Standing<T>,
}

impl<T> Enqueued<T> {
    /// The job, in one line.
    pub fn job_ref(&self) -> JobRef {
        JobRef { id: self.id, state: self.standing.state() }
    }
}

/// The answer to enqueueing in a transaction that is still open.
#[derive(Debug)]
#[must_use = "the job may exist already, in any state"]
pub enum EnqueuedIn<T> {
    /// The job is stored in this transaction: it exists if and only if that commits. It has no number before.
    Fresh,
    /// The file has the job already.
    Existing(Enqueued<T>),
}

impl<T> EnqueuedIn<T> {
    /// Whether the job is stored by the transaction.
    pub fn is_fresh(&self) -> bool {
        matches!(self, EnqueuedIn::Fresh)
    }
}

/// Where a job with a known key stands.
#[derive(Debug)]
#[non_exhaustive]
pub enum Standing<T> {
    /// It has a time to run.
    Waiting {
        /// When.
        run_at: DateTime<Utc>,
        /// How many attempts have been charged to it.
        attempts: u32,
    },
    /// It is running.
    Running,
    /// It waits for a person or a signal.
    Parked {
        /// For what.
        reason: String,
    },
    /// It was completed; here is its output, or the error that says why there is none
    /// ([`ResultGone`](Error::ResultGone), [`ResultUnreadable`](Error::ResultUnreadable)).
    Done(Result<T>),
    /// It gave up.
    Dead(Failure),
    /// It was called off.
    Cancelled,
}

impl<T> Standing<T> {
    /// The state as a word.
    pub fn state(&self) -> State {
        match self {
            Standing::Waiting { .. } => State::Waiting,
            Standing::Running => State::Running,
            Standing::Parked { .. } => State::Parked,
            Standing::Done(_) => State::Done,
            Standing::Dead(_) => State::Dead,
            Standing::Cancelled => State::Cancelled,
        }
    }
}

/// A stored failure.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Failure {
    /// Its class.
    pub class: Class,
    /// What the handler said, made safe for a terminal and at most 4 KiB.
    pub text: String,
}

/// Refuses a name that cannot be stored, before anything is written.
pub(crate) fn check_name(kind: &str, key: &str) -> Result<()> {
    check_kind(kind)?;
    if key.is_empty() {
        return Err(Error::KeyRequired { kind: kind.to_owned() });
    }
    if key.len() > MAX_KEY {
        return Err(Error::KeyTooLong { kind: kind.to_owned(), size: key.len(), limit: MAX_KEY });
    }
    if key.contains('\0') {
        return Err(Error::KeyInvalid { kind: kind.to_owned() });
    }
    Ok(())
}

/// Refuses the name of a kind that cannot be stored.
pub(crate) fn check_kind(kind: &str) -> Result<()> {
    if kind.is_empty() || kind.len() > MAX_KIND || kind.chars().any(char::is_control) {
        return Err(Error::KindInvalid { kind: kind.chars().take(MAX_KIND).collect() });
    }
    Ok(())
}
