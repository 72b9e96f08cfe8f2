//! birkez: a job runs once per key.
//!
//! An embedded, synchronous job runner on SQLite. Jobs lie in the app's own database file; a pool of threads runs them;
//! a unique key taken from the work itself makes a repeat harmless.
//!
//! ```
//! use birkez::{Context, Job, Runner, Store};
//! use serde::{Deserialize, Serialize};
//!
//! #[derive(Serialize, Deserialize)]
//! struct PostStatement { card: String, date: chrono::NaiveDate }
//!
//! impl Job for PostStatement {
//!     const KIND: &'static str = "post-statement";
//!     type Output = usize;
//!     fn key(&self) -> String { format!("{}/{}", self.card, self.date) }
//! }
//!
//! # fn main() -> anyhow::Result<()> {
//! # let folder = birkez::testing::TempStore::new()?;
//! # let path = folder.path();
//! let store = Store::open(path)?;
//! store.write(|tx| Ok(tx.execute_batch("CREATE TABLE ledger (card TEXT, date TEXT)")?))?;
//!
//! let runner = Runner::builder(&store)
//!     .handle(|job: PostStatement, cx: &Context| {
//!         // The row, the output and "done" are one transaction.
//!         cx.commit(|tx| Ok(tx.execute("INSERT INTO ledger VALUES (?1, ?2)", (&job.card, job.date.to_string()))?))
//!     })
//!     .start()?;
//!
//! let january = PostStatement { card: "card-01".into(), date: "2026-01-31".parse()? };
//! let first = store.enqueue(&january)?;
//! let again = store.enqueue(&january)?;
//! assert!(first.fresh && !again.fresh && first.id == again.id);
//! runner.stop(std::time::Duration::from_secs(10))?;
//! # Ok(())
//! # }
//! ```
//!
//! # The promises
//!
//! - **Kept.** A job whose enqueue returned `Ok` survives `kill -9` and, by default, loss of power.
//! - **Once per key.** A job is named by `(kind, key)`. A repeat gets the first one's state and, once done, its stored
//!   output ([`Enqueued`]); the same key with other content is [`Error::KeyReused`] and changes nothing.
//! - **At least once, with one effect.** Delivery is at least once. Writes made through [`Context::commit`] and the job's
//!   completion are one transaction, so inside the database the effect happens exactly once. For effects outside there are
//!   [`Context::step`], [`Context::idempotency_key`], [`Relay`]s and, by kind, [`Job::AT_MOST_ONCE`].
//! - **Fenced.** Every claim has a token that only rises; a worker that lost its lease changes nothing and is told so.
//! - **Prompt.** A dead process's jobs run again within about two seconds; a live process's jobs are never taken because
//!   they are slow.
//!
//! # Where to go from here
//!
//! [`Store`] to enqueue and to look, [`Runner`] to run, [`Store::once`] to run here and now, [`Schedule`] for what comes
//! round, [`Verdicts`] and [`RetryPolicy`] for failures, [`testing`] for tests. The tables are described in `schema.sql`;
//! a plain INSERT by a script in any language is a valid enqueue.

// The order is a reader's: a job's way from enqueue to done, then what that stands on. Callers come before callees.

pub use rusqlite;

mod job;
mod store;
mod enqueue;
mod fingerprint;
mod idempotency;

// What people do to jobs, and what they ask.
mod act;
mod hold;
mod explain;
mod advice;
mod watch;
mod health;
mod numbers;
mod copy;

mod schedule;
pub mod calendar;

mod runner;
mod presence;
mod relay;
#[cfg(feature = "webhook")]
mod webhook;
mod context;
mod claim;
mod failure;
mod retry;
mod outcome;
mod endings;
mod settle;
mod ordering;
mod trial;
mod telling;
mod upkeep;
mod owner;

mod pen;
mod schema;
mod sql;
mod connect;
mod platform;
mod clock;
mod fault;
mod error;
mod state;

pub mod testing;

pub use self::act::{Cancelled, Deed, DeedInfo, DeedPage, ReleasedInfo, Replay, Replayed, Resolution, Touched, Which};
pub use self::advice::Advice;
pub use self::clock::{Clock, SystemClock};
pub use self::connect::Durability;
pub use self::context::{Context, Progress};
pub use self::copy::{BackupInfo, RestoreInfo};
pub use self::error::{Error, Result};
pub use self::explain::{AfterCrash, DeedRef, Explanation, OneJob, Process, Reason, Words};
pub use self::failure::{Class, Verdicts, snooze};
pub use self::health::{Health, Need, ScheduleHealth};
pub use self::hold::{LimitInfo, PauseInfo, Scope};
pub use self::job::{DeadHead, Enqueued, EnqueuedIn, Failure, Job, MAX_KEY, MAX_KIND, Standing, in_future};
pub use self::numbers::{
    BusyWaits, CountDiff, FileSize, KeyCost, KindStats, Numbers, QueueStats, Rates, Spread, Stats,
};
pub use self::relay::{Message, Relay};
pub use self::retry::RetryPolicy;
pub use self::runner::{Runner, RunnerBuilder};
pub use self::schedule::{
    Fate, KeptSchedule, MissedInfo, Occurrence, OccurrenceFate, OccurrenceInfo, Overlap, RequestInfo, Schedule,
    ScheduleInfo,
};
pub use self::state::{JobName, JobRef, State};
pub use self::store::{Attempt, BlockedKey, Filter, History, JobInfo, Page, StepInfo, Store, StoreBuilder};
pub use self::telling::{Death, Event, EventJob, Happened, Missed};
pub use self::upkeep::{Compacted, Keep, Kept, Retention, UpkeepReport, WalState};
pub use self::watch::{Counts, OnChange, Snapshot, Watch};
#[cfg(feature = "webhook")]
pub use self::webhook::Webhook;

/// The README's example compiles.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;
