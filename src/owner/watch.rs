//! Finding owners that are gone, and taking back what they held.

use std::collections::HashMap;
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row, params};

use super::folder;
use super::lock::{FreeLock, Tried, try_lock};
use crate::clock::{Clock, Stopwatch, millis};
use crate::error::Result;
use crate::pen::{Act, Mode, Pen};
use crate::settle::take_back;
use crate::{platform, sql};

const REAP: Act = Act { name: "taking back the jobs of a dead process", instead: "the same after the transaction" };
/// Wall and monotonic time that part by more than this since the last look tell of a sleep or a set clock.
const PARTING: i64 = 1_000;
/// Who waited longer than this for the writer lock may have kept a beat waiting too.
const LONG_WAIT: Duration = Duration::from_millis(100);
/// A beat that was found standing still has at most this long to use the writer lock, which is free then.
const LAST_CALL: Duration = Duration::from_secs(1);

/// An owner other than ourselves, as its row says. Without a row there is no uuid: its leases are nobody's.
#[derive(Clone, Debug)]
pub(crate) struct Holder {
    id: i64,
    uuid: Option<String>,
    has_lock: bool,
    boot: Option<String>,
    beat: i64,
    lease: Duration,
}

impl Holder {
    fn read(row: &Row<'_>) -> rusqlite::Result<Holder> {
        let lease: Option<i64> = row.get(5)?;
        Ok(Holder {
            id: row.get(0)?,
            uuid: row.get(1)?,
            has_lock: row.get::<_, Option<bool>>(2)?.unwrap_or(false),
            boot: row.get(3)?,
            beat: row.get::<_, Option<i64>>(4)?.unwrap_or(0),
            lease: Duration::from_millis(lease.unwrap_or(0).unsigned_abs()),
        })
    }

    /// Owners other than `me` that hold leases.
    pub(crate) fn of_leases(connection: &Connection, me: i64) -> rusqlite::Result<Vec<Holder>> {
        connection.prepare_cached(sql::FOREIGN_HOLDERS)?.query_map([me], Holder::read)?.collect()
    }

    /// Owners other than `me` that are live by their rows, and whoever else holds leases.
    pub(crate) fn all(connection: &Connection, me: i64) -> rusqlite::Result<Vec<Holder>> {
        let mut live = connection.prepare_cached(sql::LIVE_RUNNERS)?;
        let mut all: Vec<Holder> = live.query_map([me], Holder::read)?.collect::<rusqlite::Result<_>>()?;
        all.extend(Holder::of_leases(connection, me)?.into_iter().filter(|holder| holder.uuid.is_none()));
        Ok(all)
    }
}

/// An owner that is gone.
pub(crate) struct Gone {
    id: i64,
    /// Held until its jobs are taken back, so that nobody else does the same work.
    lock: Option<FreeLock>,
    /// Where only the beat told: the beat that stood still. It is looked at again under the writer lock.
    still: Option<i64>,
}

/// What a watcher has seen of beats, on its own monotonic clock.
#[derive(Default)]
pub(crate) struct Watch {
    seen: HashMap<i64, Seen>,
    last: Option<(i64, Duration)>,
}

struct Seen {
    beat: i64,
    since: Duration,
    lease: Duration,
    /// Added to the lease after something that may have kept the beat from being raised.
    grace: Duration,
    /// It was found standing still by one who had the writer lock: whoever held that before may have kept it waiting.
    called: bool,
}

impl Gone {
    pub(crate) fn id(&self) -> i64 {
        self.id
    }
}

impl Watch {
    /// Gives an owner one more interval, after something that may have kept its beat from being raised.
    fn excuse(&mut self, runner: i64, longest: Duration) {
        if let Some(seen) = self.seen.get_mut(&runner) {
            seen.grace += (seen.lease / 3).min(longest);
            seen.called = true;
        }
    }

    fn was_called(&self, runner: i64) -> bool {
        self.seen.get(&runner).is_some_and(|seen| seen.called)
    }

    fn note_clocks(&mut self, wall: i64, monotonic: Duration) {
        if let Some((last_wall, last_monotonic)) = self.last.replace((wall, monotonic)) {
            let passed = millis(monotonic.saturating_sub(last_monotonic));
            if (wall.saturating_sub(last_wall) - passed).abs() > PARTING {
                // The machine slept, or a clock was set.
                self.seen.values_mut().for_each(|seen| seen.grace += seen.lease / 3);
            }
        }
    }

    /// Whether the beat of `holder` has stood still for a whole lease.
    fn stands_still(&mut self, holder: &Holder, monotonic: Duration) -> bool {
        let (beat, lease) = (holder.beat, holder.lease);
        let fresh = || Seen { beat, since: monotonic, lease, grace: Duration::ZERO, called: false };
        let seen = self.seen.entry(holder.id).or_insert_with(fresh);
        if seen.beat != holder.beat {
            *seen = fresh();
        }
        monotonic.saturating_sub(seen.since) >= holder.lease + seen.grace
    }
}

/// Tries the locks of `holders` and looks at their beats. Reads only.
pub(crate) fn find_gone(watch: &mut Watch, holders: &[Holder], database: &Path, clock: &dyn Clock) -> Vec<Gone> {
    let (wall, monotonic) = (clock.wall(), clock.monotonic());
    watch.note_clocks(wall, monotonic);
    watch.seen.retain(|id, _| holders.iter().any(|holder| holder.id == *id));
    let boot = platform::boot_id();
    holders.iter().filter_map(|holder| judge(watch, holder, database, boot.as_deref(), monotonic)).collect()
}

fn judge(watch: &mut Watch, holder: &Holder, database: &Path, boot: Option<&str>, monotonic: Duration) -> Option<Gone> {
    let gone = Gone { id: holder.id, lock: None, still: None };
    let Some(uuid) = &holder.uuid else { return Some(gone) };
    if let (Some(theirs), Some(ours)) = (holder.boot.as_deref(), boot)
        && theirs != ours
    {
        return Some(gone);
    }
    let stood_still = watch.stands_still(holder, monotonic);
    let tried = if holder.has_lock { try_lock(&folder(database), uuid) } else { Tried::Unknown };
    match tried {
        Tried::Free(lock) => Some(Gone { lock: Some(lock), ..gone }),
        Tried::Held | Tried::Unknown => stood_still.then_some(Gone { still: Some(holder.beat), ..gone }),
    }
}

/// Takes back what `gone` held and ends its row; answers how many jobs that were.
pub(crate) fn reap(pen: &Pen, watch: &mut Watch, gone: Vec<Gone>) -> Result<usize> {
    let mut sum = 0;
    for Gone { id, lock, still } in gone {
        let waiting = Stopwatch::start();
        let called = watch.was_called(id);
        let taken = pen.write(REAP, Mode { atomic: true, ..Mode::default() }, move |group| {
            if let Some(beat) = still {
                let now: Option<i64> =
                    group.statement(sql::RUNNER_BEAT)?.query_row([id], |row| row.get(0)).optional()?;
                // It beat after all, or whatever kept us waiting may have kept its beat waiting.
                if now.is_some_and(|now| now != beat) || waiting.elapsed() > LONG_WAIT || !called {
                    return Ok(None);
                }
            }
            group.statement(sql::END_RUNNER)?.execute(params![id, group.now, "gone"])?;
            Ok(Some(take_back(group, id)?))
        })?;
        match taken {
            Some(jobs) => {
                tracing::warn!(runner = id, jobs, "a process is gone; its jobs run again");
                sum += jobs;
            }
            None if waiting.elapsed() > LONG_WAIT => watch.excuse(id, Duration::MAX),
            None => watch.excuse(id, LAST_CALL),
        }
        if let Some(lock) = lock {
            lock.remove();
        }
    }
    Ok(sum)
}

/// The signs of life of an owner whose row says that it lives.
#[derive(PartialEq)]
pub(crate) struct Sign {
    uuid: Option<String>,
    has_lock: bool,
    boot: Option<String>,
    heard_at: i64,
    lease_ms: i64,
}

impl Sign {
    /// From the columns that hold its uuid, whether it has a lock, its boot, when it was heard of, and its lease.
    pub(crate) fn read(
        row: &Row<'_>,
        [uuid, has_lock, boot, heard_at, lease_ms]: [usize; 5],
    ) -> rusqlite::Result<Sign> {
        Ok(Sign {
            uuid: row.get(uuid)?,
            has_lock: row.get::<_, Option<bool>>(has_lock)?.unwrap_or(false),
            boot: row.get(boot)?,
            heard_at: row.get::<_, Option<i64>>(heard_at)?.unwrap_or(0),
            lease_ms: row.get::<_, Option<i64>>(lease_ms)?.unwrap_or(0),
        })
    }
}

/// Whether an owner lives, as far as one look tells: for people, never to take its jobs. Without a lock it is the wall
/// clock that tells, by when it was heard of.
pub(crate) fn lives(sign: &Sign, database: &Path, now: i64) -> bool {
    let Some(uuid) = &sign.uuid else { return false };
    if let (Some(theirs), Some(ours)) = (sign.boot.as_deref(), platform::boot_id().as_deref())
        && theirs != ours
    {
        return false;
    }
    let tried = if sign.has_lock { try_lock(&folder(database), uuid) } else { Tried::Unknown };
    match tried {
        Tried::Free(_) => false,
        Tried::Held => true,
        Tried::Unknown => now.saturating_sub(sign.heard_at) <= sign.lease_ms.saturating_mul(2),
    }
}
