//! Seeing what other processes do to the file, without writing: a look at `data_version` at a fixed pace, on a connection
//! that never writes.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Row};

use super::crew::Crew;
use crate::connect::within;
use crate::error::{Error, Result};
use crate::owner::{Holder, find_gone, reap};
use crate::schema::VERSION;
use crate::sql;

/// A read gives up after this and is tried again at the next look.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often the locks and beats of other owners are looked at, while they hold leases.
const WATCH: Duration = Duration::from_secs(1);

pub(super) struct Neighbours {
    connection: Connection,
    version: Option<i64>,
    /// How often schedules have changed in the file.
    schedules: Option<i64>,
    /// When the other owners are looked at next; `None` while none of them holds a lease.
    watch_at: Option<Duration>,
    /// Whether the next look is at all of them, leases or none.
    all: bool,
}

impl Neighbours {
    pub(super) fn new(crew: &Crew) -> Result<Neighbours> {
        let act = "opening a connection that watches";
        let connection = crew.inner().connector.open().map_err(|source| Error::Storage { act, source })?;
        Ok(Neighbours { connection, version: None, schedules: None, watch_at: Some(Duration::ZERO), all: true })
    }

    /// Looks whether another connection has committed since the last look, and if so, whether that concerns this crew.
    pub(super) fn look(&mut self, crew: &Crew) -> rusqlite::Result<()> {
        // The version first: what is committed after it shows as a change at the next look.
        let version = within(PATIENCE, || {
            self.connection.prepare_cached("PRAGMA data_version")?.query_row([], |row| row.get(0))
        })?;
        if self.version == Some(version) {
            return Ok(());
        }
        // In this order: what is committed between the two is still looked for, or found.
        within(PATIENCE, || forget_found(&self.connection, crew))?;
        if within(PATIENCE, || anything_for(&self.connection, crew))? {
            crew.look();
        }
        let stopping: Vec<i64> = within(PATIENCE, || {
            let mut ask = self.connection.prepare_cached(sql::STOPPING)?;
            ask.query_map([crew.owner().id], |row| row.get::<_, i64>(0))?.collect::<rusqlite::Result<_>>()
        })?;
        crew.ask_to_stop(&stopping);
        let schedules =
            within(PATIENCE, || self.connection.prepare_cached(sql::SCHEDULES_STATE)?.query_row([], |row| row.get(0)))?;
        // At the first look too: what has changed since the runner's start may have come after its first evaluation.
        if self.schedules.replace(schedules) != Some(schedules) {
            crew.calendar_bell.ring();
        }
        if self.watch_at.is_none() && within(PATIENCE, || self.foreign_leases(crew))? {
            self.watch_at = Some(crew.now() + WATCH);
        }
        self.version = Some(version);
        Ok(())
    }

    fn foreign_leases(&self, crew: &Crew) -> rusqlite::Result<bool> {
        let ask = "SELECT EXISTS (SELECT 1 FROM main.birkez_lease WHERE runner <> ?1)";
        self.connection.prepare_cached(ask)?.query_row([crew.owner().id], |row| row.get(0))
    }

    /// How long until the other owners are looked at.
    pub(super) fn next_watch(&self, now: Duration) -> Option<Duration> {
        self.watch_at.map(|at| at.saturating_sub(now))
    }

    /// Looks at the other owners, if it is time, and takes back what those held that are gone.
    pub(super) fn watch(&mut self, crew: &Crew) -> Result<()> {
        let now = crew.now();
        if self.watch_at.is_none_or(|at| now < at) {
            return Ok(());
        }
        let me = crew.owner().id;
        let all = self.all;
        let holders = within(PATIENCE, || match all {
            true => Holder::all(&self.connection, me),
            false => Holder::of_leases(&self.connection, me),
        });
        let holders = holders.map_err(|source| Error::Storage { act: "looking at other processes", source })?;
        self.all = false;
        self.watch_at = (!holders.is_empty()).then_some(now + WATCH);
        let inner = crew.inner();
        let mut watch = inner.watch.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        let gone = find_gone(&mut watch, &holders, crew.store.path(), &*inner.clock);
        if !gone.is_empty() && reap(&inner.pen, &mut watch, gone)? > 0 {
            crew.look();
        }
        Ok(())
    }
}

/// What has been committed need not be looked for any longer.
fn forget_found(connection: &Connection, crew: &Crew) -> rusqlite::Result<()> {
    let jobs: Vec<i64> = crew.expected().iter().map(|(job, _)| *job).collect();
    let mut ask = connection.prepare_cached(sql::IS_THERE)?;
    for job in jobs {
        if ask.query_row([job], |row| row.get(0))? {
            crew.expected().retain(|(known, _)| *known != job);
        }
    }
    Ok(())
}

fn anything_for(connection: &Connection, crew: &Crew) -> rusqlite::Result<bool> {
    // In a file that has become too new for this program, the next transaction says so; and it reads what is held back.
    let row = |row: &Row<'_>| Ok((row.get::<_, i64>(1)?, row.get::<_, Option<i64>>(2)?));
    let (oldest_writer, held) = connection.prepare_cached(sql::VERSION_AND_HOLDS)?.query_row([], row)?;
    let holds = crew.holds();
    if oldest_writer > VERSION || held != holds.version {
        return Ok(true);
    }
    let next: Option<i64> = connection.prepare_cached(sql::NEXT_DUE)?.query_row([], |row| row.get(0)).optional()?;
    match next {
        Some(at) if at <= crew.inner().clock.wall() => return Ok(true),
        // Nothing may change in the file until then.
        Some(at) => crew.due_at(at),
        None => {}
    }
    let mut ask = connection.prepare_cached(sql::ANYTHING_CLAIMABLE)?;
    let mut kinds = crew.open_kinds();
    holds.hold_back(&mut kinds, connection)?;
    for kind in kinds {
        if ask.query_row([kind], |row| row.get(0))? {
            return Ok(true);
        }
    }
    Ok(false)
}
