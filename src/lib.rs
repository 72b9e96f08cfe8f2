//! birkez: a job runs once per key.

pub use rusqlite;

mod job;
mod store;
mod enqueue;
mod fingerprint;
mod runner;
mod schedule;
pub mod calendar;
mod claim;
mod context;
mod failure;
mod retry;
mod outcome;
mod endings;
mod settle;
mod owner;
mod trial;
mod pen;
mod fault;
mod schema;
mod sql;
mod connect;
mod platform;
mod clock;
mod error;
pub mod testing;

pub use self::clock::{Clock, SystemClock};
pub use self::connect::Durability;
pub use self::context::Context;
pub use self::error::{Error, Result};
pub use self::failure::{Class, Verdicts, snooze};
pub use self::job::{Enqueued, Failure, Job, JobRef, MAX_KEY, MAX_KIND, Standing, State, in_future};
pub use self::retry::RetryPolicy;
pub use self::runner::{Runner, RunnerBuilder};
pub use self::schedule::{Occurrence, OccurrenceInfo, Schedule, ScheduleInfo};
pub use self::store::{Attempt, JobInfo, Store, StoreBuilder};
