//! Upkeep: what is over goes by the rules of [`Retention`], jobs of former names come under the present one, and the file
//! and its log stay small.
//!
//! Everything is found by reading, without the writer lock, and then written in short transactions, each of which looks
//! again before it changes a row. Between them the lock is free. Every runner has a thread that does it by itself;
//! `birkez_upkeep` says when each part was done last, so that of several processes one does it at a time.

mod adopt;
mod belief;
mod jobs;
mod records;
mod remove;
mod report;
mod retention;
mod space;
mod turn;
mod twins;
mod work;

use std::time::Duration;

use rusqlite::Connection;

pub(crate) use self::adopt::Former;
use self::belief::believed_time;
pub(crate) use self::belief::note_time;
pub use self::report::{UpkeepReport, WalState};
use self::retention::{EACH, Part, Parts};
pub use self::retention::{Keep, Kept, Retention};
pub use self::space::Compacted;
pub(crate) use self::space::{give_back_in_steps, settle_ownership};
use self::turn::{Turn, is_turn};
pub(crate) use self::twins::meets_its_twin;
use self::work::Work;
use crate::clock::Stopwatch;
use crate::error::Result;
use crate::pen::Act;
use crate::sql;
use crate::store::Store;

const UPKEEP: Act = Act { name: "upkeep", instead: "it after the transaction" };
/// Between two walks that go on where the last one ended.
const WALK: Duration = Duration::from_secs(600);
/// Between two walks over all jobs: ages count from the end, and numbers from the beginning.
const WHOLE: Duration = Duration::from_secs(86_400);
const RECORDS: Duration = Duration::from_secs(6 * 3_600);
const NAMES: Duration = Duration::from_secs(300);
/// How much longer the lock is left free than it was held, in a thread of a runner's.
const EASE: u32 = 4;

impl Store {
    /// Does all upkeep that is due now, in the calling thread: what is over goes as [`Retention`] says, jobs under former
    /// names of their kind come under the present one (as far as a runner of this file has said which is which), freed
    /// pages are given back, and the log is cut. Runners do the same by themselves, a little at a time; this is for
    /// programs without one, and for whoever will not wait.
    ///
    /// No transaction holds the writer lock for long, and between two of them others come in.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// let report = store.upkeep()?;
    /// println!("{report}");
    /// # assert_eq!(report.rows(), 0);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::InsideTransaction`](crate::Error::InsideTransaction); those of writing the file. What was done before stays
    /// done.
    pub fn upkeep(&self) -> Result<UpkeepReport> {
        self.forced(&self.inner.retention, true)
    }

    /// As [`upkeep`](Store::upkeep), by rules that need not be the store's, and nothing but what is over: such as for a
    /// person who needs room now.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// use birkez::{Keep, Kept, Retention};
    /// let report = store.prune(&Retention::default().done(Kept::default().payload(Keep::days(1))))?;
    /// println!("{} payloads in {} ms", report.payloads, report.took_ms);
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`upkeep`](Store::upkeep).
    pub fn prune(&self, retention: &Retention) -> Result<UpkeepReport> {
        self.forced(retention, false)
    }

    fn forced(&self, retention: &Retention, names: bool) -> Result<UpkeepReport> {
        self.inner.pen.refuse_inside(UPKEEP)?;
        let mut work = Work::new(self, 1, &|| true);
        if names {
            for former in self.former_names()? {
                adopt::adopt(&mut work, &former, None)?;
            }
        }
        let place = jobs::Walk { parts: Parts::ALL, whole: true, from: 0 };
        jobs::walk(&mut work, retention, place, &mut None)?;
        records::remove_old(&mut work, retention)?;
        space::tidy(&mut work)?;
        Ok(work.end())
    }

    /// What is due of the store's upkeep, gently, for as long as `go_on` says so. While there is nothing to do, nothing is
    /// written. `records` says when this process looked for old records last.
    ///
    /// # Errors
    ///
    /// Those of reading and writing the file; what is left is done another time.
    pub(crate) fn upkeep_in_turn(
        &self,
        former: &[Former],
        records: &mut Option<Stopwatch>,
        go_on: &dyn Fn() -> bool,
    ) -> Result<UpkeepReport> {
        let retention = &self.inner.retention;
        let mut work = Work::new(self, EASE, go_on);
        work.now = believed_time(self)?;
        for former in former {
            adopt_in_turn(&mut work, former)?;
        }
        for part in EACH {
            if retention.has_rule(Parts::only(part)) {
                walk_in_turn(&mut work, retention, part)?;
            }
        }
        if retention.has_rule(Parts::ALL)
            && jobs::is_any_old(&work, retention)?
            && let Some(turn) = Turn::take_unfinished(&work, "all", WHOLE)?
        {
            let from = turn.place.max(0);
            let walk = jobs::Walk { parts: Parts::ALL, whole: true, from };
            let mut turn = Some(turn);
            jobs::walk(&mut work, retention, walk, &mut turn)?;
        }
        if records.is_none_or(|looked| looked.left(RECORDS).is_none()) {
            records::remove_old(&mut work, retention)?;
            *records = Some(Stopwatch::start());
        }
        space::tidy(&mut work)?;
        Ok(work.end())
    }

    /// As the programs that know the kinds have said.
    fn former_names(&self) -> Result<Vec<Former>> {
        let names: Vec<(String, String)> = self.read("reading the names of kinds", |tx| {
            tx.prepare_cached(sql::FORMER_NAMES)?
                .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
                .collect::<rusqlite::Result<_>>()
        })?;
        Ok(names.into_iter().map(|(name, present)| Former { name, present }).collect())
    }
}

fn adopt_in_turn(work: &mut Work<'_>, former: &Former) -> Result<()> {
    let what = format!("name {}", former.name);
    if is_turn(work, &what, NAMES)? && adopt::is_any(work, former)? {
        let mut turn = Turn::take(work, &what, NAMES)?;
        if turn.is_some() {
            adopt::adopt(work, former, turn.as_mut())?;
        }
    }
    Ok(())
}

/// Goes on where the last walk for this part ended, up to what is too young.
fn walk_in_turn(work: &mut Work<'_>, retention: &Retention, part: Part) -> Result<()> {
    let what = match part {
        Part::Payload => "payload",
        Part::Result => "result",
        Part::History => "history",
        Part::Key => "key",
    };
    let parts = Parts::only(part);
    if let Some(place) = Turn::place_if_due(work, what, WALK)?
        && jobs::leads_on(work, retention, jobs::Walk { parts, whole: false, from: place })?
        && let Some(turn) = Turn::take(work, what, WALK)?
    {
        let walk = jobs::Walk { parts, whole: false, from: turn.place };
        jobs::walk(work, retention, walk, &mut Some(turn))?;
    }
    Ok(())
}

/// What the file and its log are, for whoever writes a report.
fn ask(connection: &Connection, sql: &str) -> rusqlite::Result<i64> {
    connection.query_row(sql, [], |row| row.get(0))
}
