//! What the numbers look like.

use std::time::Duration;

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::bucket;

/// The numbers of a store at one moment, all of one consistent view.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Stats {
    /// When they were read.
    pub at: DateTime<Utc>,
    /// What durations and rates are of: this long before `at`, and up to five minutes more.
    pub window: Duration,
    /// All kinds that have or had jobs, or that a program handles, by name.
    pub kinds: Vec<KindStats>,
    /// By queue, by name. A kind of which no program has said a queue is in `default`.
    pub queues: Vec<QueueStats>,
    /// All together.
    pub total: Numbers,
    /// Occurrences of schedules that did not run and of which no person has taken note.
    pub missed: u64,
    /// Kinds with jobs that wait or are parked, and no live runner that handles them.
    pub unhandled: Vec<String>,
    /// What the file takes.
    pub file: FileSize,
    /// What it costs to know the keys of jobs whose payload is gone.
    pub keys: KeyCost,
    /// How writers of this store have waited for other connections, since it was opened.
    pub busy: BusyWaits,
}

/// The numbers of a kind.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct KindStats {
    /// Its name, as jobs were stored with it.
    pub kind: String,
    /// Its queue.
    pub queue: String,
    /// Whether a live runner handles it.
    pub is_handled: bool,
    /// Its numbers.
    pub numbers: Numbers,
}

/// The numbers of a queue.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct QueueStats {
    /// Its name.
    pub queue: String,
    /// Its numbers.
    pub numbers: Numbers,
}

/// Jobs by state, and how they fared.
#[derive(Clone, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Numbers {
    /// Waiting: could run now.
    pub ready: u64,
    /// Waiting for a time: scheduled, or to be retried.
    pub scheduled: u64,
    /// Waiting behind others of their ordering key.
    pub behind: u64,
    /// Waiting for a repeat of their caller's ([`Store::once`](crate::Store::once)).
    pub for_callers: u64,
    /// Running.
    pub running: u64,
    /// Parked: wait for a person or a signal.
    pub parked: u64,
    /// Done.
    pub done: u64,
    /// Dead.
    pub dead: u64,
    /// Cancelled.
    pub cancelled: u64,
    /// For how long the oldest ready job could have run.
    pub oldest_ready: Option<Duration>,
    /// From enqueue to done, of jobs that ended so within the window. It holds all waiting: for a time, for a retry.
    pub from_enqueue: Spread,
    /// How long attempts took, however they ended, within the window.
    pub run_time: Spread,
    /// How often what happened, within the window.
    pub rates: Rates,
    #[serde(skip)]
    pub(super) ranges: [Vec<(i64, u64)>; 2],
}

/// How durations spread. Each is right within 10 %; what is below a millisecond counts as none.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Spread {
    /// How many durations there are.
    pub count: u64,
    /// Half of them are not above this.
    pub p50: Option<Duration>,
    /// 95 of 100.
    pub p95: Option<Duration>,
    /// 99 of 100.
    pub p99: Option<Duration>,
}

/// How often what happened, within a window.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Rates {
    /// Jobs that were done.
    pub done: u64,
    /// Attempts that failed.
    pub failed: u64,
    /// Of them, those after which the job runs again by itself.
    pub retried: u64,
    /// Leases that were taken back from a process that was gone, started or not.
    pub leases_lost: u64,
}

/// What the file takes, in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct FileSize {
    /// The database file.
    pub database: u64,
    /// Of it, what is free and will be used again.
    pub free: u64,
    /// The write-ahead log beside it.
    pub wal: u64,
}

/// What it costs to know the keys of jobs whose payload is gone. Estimated from a sample of 256 jobs; exact in a file of
/// fewer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct KeyCost {
    /// Finished jobs without a payload.
    pub jobs: u64,
    /// Their bytes in the file.
    pub bytes: u64,
}

/// How writers have waited for other connections.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct BusyWaits {
    /// Transactions that met a locked file.
    pub count: u64,
    /// How long they have waited for it, in sum.
    pub time: Duration,
}

impl Numbers {
    /// All jobs that there are.
    pub fn all(&self) -> u64 {
        self.waiting() + self.running + self.parked + self.done + self.dead + self.cancelled
    }

    /// Those that wait, for whatever.
    pub fn waiting(&self) -> u64 {
        self.ready + self.scheduled + self.behind + self.for_callers
    }

    /// Adds those of another kind.
    pub(super) fn add(&mut self, other: &Numbers) {
        self.ready += other.ready;
        self.scheduled += other.scheduled;
        self.behind += other.behind;
        self.for_callers += other.for_callers;
        self.running += other.running;
        self.parked += other.parked;
        self.done += other.done;
        self.dead += other.dead;
        self.cancelled += other.cancelled;
        self.oldest_ready = self.oldest_ready.max(other.oldest_ready);
        self.rates.done += other.rates.done;
        self.rates.failed += other.rates.failed;
        self.rates.retried += other.rates.retried;
        self.rates.leases_lost += other.rates.leases_lost;
        for (own, theirs) in self.ranges.iter_mut().zip(&other.ranges) {
            own.extend(theirs);
        }
    }

    /// Reads the spreads off what was added up.
    pub(super) fn spread(&mut self) {
        for ranges in &mut self.ranges {
            ranges.sort_unstable();
        }
        self.from_enqueue = Spread::of(&self.ranges[0]);
        self.run_time = Spread::of(&self.ranges[1]);
        self.rates.done = self.from_enqueue.count;
    }
}

impl Spread {
    fn of(ranges: &[(i64, u64)]) -> Spread {
        let at = |part| bucket::quantile(ranges, part).map(|ms| Duration::from_secs_f64(ms / 1_000.0));
        let count = ranges.iter().map(|(_, n)| n).sum();
        Spread { count, p50: at(0.5), p95: at(0.95), p99: at(0.99) }
    }
}

impl Rates {
    /// Failed attempts for each one that ended done or failed; `None` if none did.
    pub fn failure(&self) -> Option<f64> {
        self.part(self.failed)
    }

    /// Attempts that failed and are followed by another, for each that ended; `None` if none did.
    pub fn retry(&self) -> Option<f64> {
        self.part(self.retried)
    }

    #[expect(clippy::cast_precision_loss, reason = "a rate")]
    fn part(&self, n: u64) -> Option<f64> {
        let ended = self.done + self.failed;
        (ended > 0).then(|| n as f64 / ended as f64)
    }
}
