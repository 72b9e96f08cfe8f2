//! Health: all is well, or what needs attention. An empty queue is not health: a schedule that nobody evaluates leaves
//! one behind.

mod schedules;
mod work;

use chrono::{DateTime, Utc};
use rusqlite::Transaction;
use serde::Serialize;

use self::schedules::schedule_needs;
use self::work::work_needs;
use crate::error::Result;
use crate::numbers::{read_stats, wal_size};
use crate::schedule::{ScheduleInfo, all_schedules};
use crate::store::Store;

/// A write-ahead log of more bytes than this is not being taken in: somebody keeps a transaction open.
const BIG_WAL: u64 = 64 << 20;

/// What needs attention, and how each schedule fares.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Health {
    /// When it was looked at.
    pub at: DateTime<Utc>,
    /// What needs attention; nothing if all is well.
    pub needs: Vec<Need>,
    /// All schedules, by name.
    pub schedules: Vec<ScheduleHealth>,
}

/// Something that needs attention.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Need {
    /// What it is, for programs:
    ///
    /// | code | when |
    /// | --- | --- |
    /// | `dead` | jobs gave up |
    /// | `parked` | jobs wait for a person or a signal |
    /// | `unknown_outcome` | jobs broke off in their middle, and only a person can say what came of them |
    /// | `late` | the oldest ready job could have run for 5 minutes |
    /// | `unhandled` | jobs wait, and no live runner handles their kind |
    /// | `no_runner` | jobs are ready or schedules are late, and no runner is alive |
    /// | `paused` | a pause is older than a day, and jobs wait because of it |
    /// | `schedule_failed` | a schedule cannot make its jobs |
    /// | `schedule_orphaned` | its program started without it |
    /// | `schedule_missed` | it has dropped occurrences that it was asked to run |
    /// | `schedule_late` | an occurrence was due 5 minutes ago and nobody has dealt with it |
    /// | `schedule_paused` | it is paused for more than a day |
    /// | `schedule_attention` | it has met keys with other content, or what was asked of it fails |
    /// | `big_wal` | the write-ahead log has outgrown 64 MiB |
    pub code: &'static str,
    /// What it is about: a kind, a queue, a reason, a schedule, if it is about one.
    pub subject: Option<String>,
    /// A sentence for people.
    pub text: String,
}

/// How a schedule fares.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct ScheduleHealth {
    /// Its name.
    pub name: String,
    /// The occurrence that was due last of those with a job that is done, and when it was done.
    pub last_success: Option<(String, DateTime<Utc>)>,
    /// Since when an occurrence is due that nobody has dealt with.
    pub due_since: Option<DateTime<Utc>>,
    /// When it is due next.
    pub next: Option<DateTime<Utc>>,
    /// Whether one of the needs is about it.
    pub needs_attention: bool,
}

impl Health {
    /// Whether nothing needs attention.
    pub fn is_fine(&self) -> bool {
        self.needs.is_empty()
    }
}

impl std::fmt::Display for Health {
    /// A line a need, and a line a schedule with its last success.
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.is_fine() {
            writeln!(f, "fine")?;
        }
        for need in &self.needs {
            writeln!(f, "{}: {}", need.code, need.text)?;
        }
        for schedule in &self.schedules {
            writeln!(f, "schedule {}: {}", schedule.name, schedules::success(schedule.last_success.as_ref()))?;
        }
        Ok(())
    }
}

impl Need {
    fn new(code: &'static str, subject: Option<&str>, text: String) -> Need {
        Need { code, subject: subject.map(str::to_owned), text }
    }
}

impl Store {
    /// Whether all is well, or what needs attention, with the last success of each schedule.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// let health = store.health()?;
    /// for need in &health.needs {
    ///     eprintln!("{}: {}", need.code, need.text);
    /// }
    /// assert!(health.is_fine());
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn health(&self) -> Result<Health> {
        let now = self.inner.clock.wall();
        let wal = wal_size(self.path());
        self.read("looking at the health of the store", |tx| look(tx, now, wal))
    }
}

fn look(tx: &Transaction<'_>, now: i64, wal: u64) -> rusqlite::Result<Health> {
    let at = crate::job::instant(now);
    let stats = read_stats(tx, now, std::time::Duration::ZERO)?;
    let schedules = all_schedules(tx, at)?;
    let mut needs = work_needs(tx, &stats, now, &schedules)?;
    let mut shown = Vec::new();
    for schedule in &schedules {
        let of_it = schedule_needs(tx, schedule, at)?;
        shown.push(show(schedule, !of_it.is_empty()));
        needs.extend(of_it);
    }
    if wal > BIG_WAL {
        let text = format!(
            "the write-ahead log has {} MiB: it cannot be taken in while a transaction on the file stays open",
            wal >> 20
        );
        needs.push(Need::new("big_wal", None, text));
    }
    Ok(Health { at, needs, schedules: shown })
}

fn show(schedule: &ScheduleInfo, needs_attention: bool) -> ScheduleHealth {
    ScheduleHealth {
        name: schedule.name.clone(),
        last_success: schedule.last_success.clone(),
        due_since: schedule.due_since,
        next: schedule.next,
        needs_attention,
    }
}
