//! Upkeep at work: many rows in short transactions, with pauses.

use std::sync::Arc;
use std::time::Duration;

use rusqlite::Connection;

use super::report::UpkeepReport;
use super::space;
use super::{UPKEEP, WalState};
use crate::clock::Stopwatch;
use crate::error::{Error, Result};
use crate::pen::{Group, Mode};
use crate::store::Store;

/// A transaction takes up no further row once it has held the writer lock for so long; the commit comes on top.
const BRIEF: Duration = Duration::from_millis(3);
/// With its commit, a transaction is to take this long at most: what took longer makes the next ones smaller.
const GOAL: Duration = Duration::from_millis(8);
const MODE: Mode = Mode { atomic: true, synced: false, follows: true };
/// Most rows of a transaction.
const MOST: usize = 1_000;
/// Rows of the first one, when nothing is known of the disk yet.
const FIRST: usize = 32;
/// After so many rows the log is taken over into the file, beside the pen: nobody's commit has to do it.
const CHECKPOINT: usize = 128;
/// A pause is broken into pieces of this length, since it may be over before its time.
const PIECE: Duration = Duration::from_millis(20);
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// A change to the file for one of many items, noted in the report.
pub(super) type Step<T> = dyn Fn(&mut Group<'_>, &T, &mut UpkeepReport) -> rusqlite::Result<()> + Send + Sync;

pub(super) struct Work<'a> {
    pub store: &'a Store,
    /// The time that its rules of age count from.
    pub now: i64,
    /// The lock is free for so many times as long as it was held.
    ease: u32,
    go_on: &'a dyn Fn() -> bool,
    pub report: UpkeepReport,
    rows: usize,
    unsaved: usize,
    began: Stopwatch,
    /// A connection beside the pen.
    beside: Option<Connection>,
}

impl<'a> Work<'a> {
    pub(super) fn new(store: &'a Store, ease: u32, go_on: &'a dyn Fn() -> bool) -> Work<'a> {
        let began = Stopwatch::start();
        let (now, report) = (store.inner.clock.wall(), UpkeepReport::default());
        Work { store, now, ease, go_on, report, rows: FIRST, unsaved: 0, began, beside: None }
    }

    /// Whether it is to go on.
    pub(super) fn goes_on(&self) -> bool {
        (self.go_on)()
    }

    pub(super) fn end(mut self) -> UpkeepReport {
        self.report.took_ms = whole_ms(self.began.elapsed());
        self.report
    }

    /// A connection beside the pen, which whoever uses it must not hold the writer lock with for long.
    pub(super) fn beside(&mut self) -> Result<&Connection> {
        if self.beside.is_none() {
            let opened = self.store.inner.connector.open();
            self.beside = Some(opened.map_err(|source| Error::Storage { act: UPKEEP.name, source })?);
        }
        self.beside.as_ref().ok_or(Error::Stopped { act: UPKEEP.name })
    }

    /// Applies `step` to each item, in as many transactions as it takes. On a disk that is nearly full, they become smaller.
    /// A row that refuses its change, by a trigger of the app's, is passed over.
    pub(super) fn each<T: Send + Sync + 'static>(
        &mut self,
        items: Vec<T>,
        step: impl Fn(&mut Group<'_>, &T, &mut UpkeepReport) -> rusqlite::Result<()> + Send + Sync + 'static,
    ) -> Result<()> {
        let (items, step): (_, Arc<Step<T>>) = (Arc::new(items), Arc::new(step));
        let mut at = 0;
        while at < items.len() && self.goes_on() {
            let (some, step, rows) = (Arc::clone(&items), Arc::clone(&step), self.rows);
            let written = self.store.inner.pen.write(UPKEEP, MODE, move |group| {
                let held = Stopwatch::start();
                let tx = group.tx();
                let (seen, report) = space::overwriting(tx, || some_of(group, &some[at..], rows, &*step))??;
                Ok((seen, report, held))
            });
            match written {
                Ok((seen, report, held)) => {
                    at += seen;
                    self.written(seen, report, held.elapsed());
                }
                Err(Error::DiskFull { .. }) if self.rows > 1 => {
                    self.rows = (self.rows / 8).max(1);
                    space::take_over_log(self)?;
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }

    fn written(&mut self, rows: usize, report: UpkeepReport, took: Duration) {
        self.report += report;
        self.report.transactions += 1;
        self.report.longest_ms = self.report.longest_ms.max(whole_ms(took));
        if took > GOAL {
            self.rows = (rows / 2).max(1);
        } else if took < GOAL / 2 && rows >= self.rows {
            self.rows = (self.rows * 2).min(MOST);
        }
        self.unsaved += rows;
        if self.unsaved >= CHECKPOINT {
            self.unsaved = 0;
            // What could not be taken over now is so at the next commit.
            if let Err(error) = space::take_over_log(self) {
                tracing::debug!(%error, "the log could not be taken over");
            }
        }
        self.pause(took);
    }

    /// Leaves the file to others.
    pub(super) fn pause(&self, held: Duration) {
        let mut left = (held * self.ease).clamp(Duration::from_millis(1), LONGEST_PAUSE);
        while !left.is_zero() && self.goes_on() {
            let nap = left.min(PIECE);
            std::thread::sleep(nap);
            left -= nap;
        }
    }

    pub(super) fn note_wal(&mut self, wal: WalState) {
        self.report.wal = wal;
    }

    /// Counts a transaction that was not made by [`each`](Work::each).
    pub(super) fn count(&mut self, held: Duration) {
        self.report.transactions += 1;
        self.report.longest_ms = self.report.longest_ms.max(whole_ms(held));
        self.pause(held);
    }
}

/// As many as there is time for; answers how many, and what was done.
fn some_of<T>(
    group: &mut Group<'_>,
    items: &[T],
    most: usize,
    step: &Step<T>,
) -> rusqlite::Result<(usize, UpkeepReport)> {
    let held = Stopwatch::start();
    let (mut seen, mut report) = (0, UpkeepReport::default());
    for item in items.iter().take(most) {
        if seen > 0 && held.elapsed() > BRIEF {
            break;
        }
        seen += 1;
        let before = report.clone();
        if group.isolated(|group| step(group, item, &mut report))?.is_none() {
            report = before;
        }
    }
    Ok((seen, report))
}

fn whole_ms(duration: Duration) -> u64 {
    u64::try_from(duration.as_millis()).unwrap_or(u64::MAX)
}
