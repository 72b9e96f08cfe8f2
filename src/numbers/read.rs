//! Reading all numbers in one consistent view.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::time::Duration;

use rusqlite::{Row, Transaction};

use super::stats::{FileSize, KindStats, Numbers, QueueStats, Stats};
use super::{SLOT, count, keys, slot_of};
use crate::clock::millis;
use crate::error::Result;
use crate::job::instant;
use crate::owner::{Sign, lives};
use crate::sql;
use crate::store::Store;

/// What durations and rates are of, unless asked otherwise.
const WINDOW: Duration = Duration::from_secs(3_600);
/// The longest window; older slots of the tally are never read.
const LONGEST: Duration = Duration::from_secs(86_400);
/// Of a kind of which no program has said one.
const QUEUE: &str = "default";

impl Store {
    /// The numbers of this moment; durations and rates over the last hour. It counts what is not finished, and looks at
    /// nothing else: a million finished jobs cost it nothing.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// let stats = store.stats()?;
    /// println!("{} ready, {} dead, p95 {:?}", stats.total.ready, stats.total.dead, stats.total.run_time.p95);
    /// for queue in &stats.queues {
    ///     println!("{}: oldest ready job {:?}", queue.queue, queue.numbers.oldest_ready);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn stats(&self) -> Result<Stats> {
        self.stats_over(WINDOW)
    }

    /// As [`stats`](Store::stats), with durations and rates over a window of 5 minutes to 24 hours.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn stats_over(&self, window: Duration) -> Result<Stats> {
        let now = self.inner.clock.wall();
        let mut stats = self.read("reading the numbers", |tx| read_stats(tx, now, window))?;
        stats.file.wal = wal_size(self.path());
        stats.busy = self.inner.pen.busy_waits.told();
        Ok(stats)
    }
}

/// What the write-ahead log takes. Asked of the folder: birkez opens no file of SQLite's.
pub(crate) fn wal_size(database: &Path) -> u64 {
    let mut name = database.as_os_str().to_owned();
    name.push("-wal");
    std::fs::metadata(name).map_or(0, |found| found.len())
}

pub(crate) fn read_stats(tx: &Transaction<'_>, now: i64, window: Duration) -> rusqlite::Result<Stats> {
    let window = window.clamp(Duration::from_millis(SLOT.unsigned_abs()), LONGEST);
    let queues: BTreeMap<String, String> = tx
        .prepare_cached(sql::QUEUES)?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    let handled = handled(tx, now)?;
    let mut kinds = Kinds::default();
    for kind in queues.keys().chain(&handled) {
        kinds.of(kind.clone());
    }
    finished(tx, &mut kinds)?;
    waiting(tx, now, &mut kinds)?;
    running(tx, now, &mut kinds)?;
    tallied(tx, [slot_of(now.saturating_sub(millis(window))), slot_of(now)], &mut kinds)?;
    let mut stats = summed(kinds, &queues, &handled);
    stats.at = instant(now);
    stats.window = window;
    let finished = stats.total.done + stats.total.dead + stats.total.cancelled;
    stats.keys = keys::estimate(tx, finished)?;
    stats.missed = tx.prepare_cached(sql::MISSED_ATTENTION)?.query_row([], |row| count(row, 1))?;
    let ask = |pragma| tx.prepare_cached(pragma)?.query_row([], |row| count(row, 0));
    let size = ask(sql::PAGE_SIZE)?;
    stats.file = FileSize { database: size * ask(sql::PAGE_COUNT)?, free: size * ask(sql::FREE_PAGES)?, wal: 0 };
    Ok(stats)
}

/// Kinds in the hands of a process that lives.
fn handled(tx: &Transaction<'_>, now: i64) -> rusqlite::Result<BTreeSet<String>> {
    let database = Path::new(tx.path().unwrap_or_default());
    let (mut handled, mut last) = (BTreeSet::new(), None);
    let mut ask = tx.prepare_cached(sql::HANDLED_KINDS)?;
    let mut rows = ask.query([])?;
    while let Some(row) = rows.next()? {
        let sign = Sign::read(row, [1, 2, 3, 4, 5])?;
        // The kinds of one process follow one another, and its lock is tried once.
        let is_alive = match last {
            Some((ref known, is_alive)) if *known == sign => is_alive,
            _ => lives(&sign, database, now),
        };
        last = Some((sign, is_alive));
        if is_alive {
            handled.insert(row.get(0)?);
        }
    }
    Ok(handled)
}

#[derive(Default)]
struct Kinds(BTreeMap<String, Numbers>);

impl Kinds {
    fn of(&mut self, kind: String) -> &mut Numbers {
        self.0.entry(kind).or_default()
    }

    /// Asks for rows that begin with a kind.
    fn each(
        &mut self,
        tx: &Transaction<'_>,
        sql: &str,
        values: impl rusqlite::Params,
        mut add: impl FnMut(&mut Numbers, &Row<'_>) -> rusqlite::Result<()>,
    ) -> rusqlite::Result<()> {
        let mut ask = tx.prepare_cached(sql)?;
        let mut rows = ask.query(values)?;
        while let Some(row) = rows.next()? {
            add(self.of(row.get(0)?), row)?;
        }
        Ok(())
    }
}

fn finished(tx: &Transaction<'_>, kinds: &mut Kinds) -> rusqlite::Result<()> {
    kinds.each(tx, sql::COUNTED, [], |numbers, row| {
        let n = count(row, 2)?;
        match row.get::<_, i64>(1)? {
            2 => numbers.done = n,
            3 => numbers.dead = n,
            _ => numbers.cancelled = n,
        }
        Ok(())
    })
}

fn waiting(tx: &Transaction<'_>, now: i64, kinds: &mut Kinds) -> rusqlite::Result<()> {
    let older = |numbers: &mut Numbers, since: Option<i64>| {
        let age = since.map(|since| Duration::from_millis(u64::try_from(now.saturating_sub(since)).unwrap_or(0)));
        numbers.oldest_ready = numbers.oldest_ready.max(age);
    };
    for sql in [sql::WAITING_READY, sql::WAITING_SUSPECT] {
        kinds.each(tx, sql, [], |numbers, row| {
            numbers.ready += count(row, 1)?;
            older(numbers, row.get(2)?);
            Ok(())
        })?;
    }
    kinds.each(tx, sql::WAITING_DUE, [now], |numbers, row| {
        let (all, due) = (count(row, 1)?, count(row, 2)?);
        numbers.ready += due;
        numbers.scheduled += all - due;
        // What a plain INSERT has left out is not known before the first look.
        older(numbers, row.get::<_, Option<i64>>(3)?.or((due > 0).then_some(now)));
        Ok(())
    })?;
    type Place = fn(&mut Numbers) -> &mut u64;
    let others: [(&str, Place); 3] = [
        (sql::WAITING_BEHIND, |numbers| &mut numbers.behind),
        (sql::WAITING_FOR_CALLERS, |numbers| &mut numbers.for_callers),
        (sql::PARKED, |numbers| &mut numbers.parked),
    ];
    for (sql, place) in others {
        kinds.each(tx, sql, [], |numbers, row| {
            *place(numbers) = count(row, 1)?;
            Ok(())
        })?;
    }
    Ok(())
}

/// What runs is in the indexes of what waits too.
fn running(tx: &Transaction<'_>, now: i64, kinds: &mut Kinds) -> rusqlite::Result<()> {
    kinds.each(tx, sql::RUNNING, [now], |numbers, row| {
        let (gate, is_due, n): (Option<i64>, bool, _) = (row.get(1)?, row.get(2)?, count(row, 3)?);
        let counted = match gate {
            Some(0) if !is_due => &mut numbers.scheduled,
            Some(2) => &mut numbers.behind,
            Some(4) => &mut numbers.for_callers,
            Some(_) => &mut numbers.ready,
            // A row that somebody else has finished under a lease.
            None => return Ok(()),
        };
        *counted = counted.saturating_sub(n);
        numbers.running += n;
        Ok(())
    })
}

/// Up to now: what a clock that was ahead has stored is of no time yet.
fn tallied(tx: &Transaction<'_>, slots: [i64; 2], kinds: &mut Kinds) -> rusqlite::Result<()> {
    kinds.each(tx, sql::TALLIED, slots, |numbers, row| {
        let (what, bucket, n): (i64, i64, _) = (row.get(1)?, row.get(2)?, count(row, 3)?);
        match (what, bucket) {
            (0, _) => numbers.ranges[0].push((bucket, n)),
            (1, _) => numbers.ranges[1].push((bucket, n)),
            (2, 0) => (numbers.rates.failed, numbers.rates.retried) = (numbers.rates.failed + n, n),
            (2, _) => numbers.rates.failed += n,
            _ => numbers.rates.leases_lost += n,
        }
        Ok(())
    })
}

fn summed(kinds: Kinds, names: &BTreeMap<String, String>, handled: &BTreeSet<String>) -> Stats {
    let mut total = Numbers::default();
    let mut queues: BTreeMap<&str, Numbers> = BTreeMap::new();
    let queue_of = |kind: &str| names.get(kind).map_or(QUEUE, String::as_str);
    for (kind, numbers) in &kinds.0 {
        total.add(numbers);
        queues.entry(queue_of(kind)).or_default().add(numbers);
    }
    total.spread();
    let queues = queues.into_iter().map(|(queue, mut numbers)| {
        numbers.spread();
        QueueStats { queue: queue.to_owned(), numbers }
    });
    let queues = queues.collect();
    let kinds = kinds.0.into_iter().map(|(kind, mut numbers)| {
        numbers.spread();
        KindStats { queue: queue_of(&kind).to_owned(), is_handled: handled.contains(&kind), kind, numbers }
    });
    let kinds: Vec<KindStats> = kinds.collect();
    let needs_one = |kind: &&KindStats| {
        let Numbers { ready, scheduled, behind, parked, .. } = kind.numbers;
        !kind.is_handled && ready + scheduled + behind + parked > 0
    };
    let unhandled = kinds.iter().filter(needs_one).map(|kind| kind.kind.clone()).collect();
    Stats {
        at: instant(0),
        window: WINDOW,
        kinds,
        queues,
        total,
        missed: 0,
        unhandled,
        file: FileSize::default(),
        keys: super::KeyCost::default(),
        busy: super::BusyWaits::default(),
    }
}
