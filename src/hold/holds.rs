//! Pauses and limits as a process knows them.

use std::collections::HashMap;
use std::sync::Arc;

use rusqlite::{Connection, Row};

use super::{DEFAULT_QUEUE, Scope};
use crate::enqueue::text;
use crate::sql;

/// What holds jobs back, as it stood in the file at one value of its counter.
#[derive(Debug, Default)]
pub(crate) struct Holds {
    /// The counter in the version row; `None` before the first look.
    pub(crate) version: Option<i64>,
    paused: Vec<Scope>,
    limits: Vec<(Scope, u32)>,
    kinds: Kinds,
}

/// What programs have said of kinds.
#[derive(Debug, Default)]
pub(super) struct Kinds(HashMap<String, Said>);

#[derive(Debug)]
struct Said {
    queue: String,
    goes_by: Option<String>,
}

impl Kinds {
    pub(super) fn read(connection: &Connection) -> rusqlite::Result<Kinds> {
        let mut ask = connection.prepare_cached(sql::KINDS_SAID)?;
        let row = |row: &Row<'_>| {
            let word = |column| text(row, column);
            let said = Said { queue: word(1)?.unwrap_or_default(), goes_by: word(2)? };
            Ok((word(0)?.unwrap_or_default(), said))
        };
        Ok(Kinds(ask.query_map([], row)?.collect::<rusqlite::Result<_>>()?))
    }

    /// The present name of a kind.
    fn present<'a>(&'a self, kind: &'a str) -> &'a str {
        self.0.get(kind).and_then(|said| said.goes_by.as_deref()).unwrap_or(kind)
    }

    /// Whether a pause or a limit is about jobs that are stored under this kind.
    pub(super) fn covers(&self, scope: &Scope, kind: &str) -> bool {
        match scope {
            Scope::Kind(name) => name == kind || self.present(name) == self.present(kind),
            Scope::Queue(name) => self.0.get(kind).map_or(DEFAULT_QUEUE, |said| &said.queue) == name,
        }
    }
}

impl Holds {
    pub(crate) fn read(connection: &Connection, version: i64) -> rusqlite::Result<Holds> {
        let scope = |row: &Row<'_>| -> rusqlite::Result<Scope> {
            Ok(Scope::stored(&text(row, 0)?.unwrap_or_default(), text(row, 1)?.unwrap_or_default()))
        };
        let mut ask = connection.prepare_cached(sql::PAUSES)?;
        let paused: Vec<Scope> = ask.query_map([], scope)?.collect::<rusqlite::Result<_>>()?;
        let mut ask = connection.prepare_cached(sql::LIMITS)?;
        let most = |row: &Row<'_>| Ok((scope(row)?, u32::try_from(row.get::<_, i64>(2)?).unwrap_or(u32::MAX)));
        let limits: Vec<(Scope, u32)> = ask.query_map([], most)?.collect::<rusqlite::Result<_>>()?;
        let kinds = match paused.is_empty() && limits.is_empty() {
            true => Kinds::default(),
            false => Kinds::read(connection)?,
        };
        Ok(Holds { version: Some(version), paused, limits, kinds })
    }

    /// Whether jobs of a kind are paused, by itself or with its queue.
    pub(crate) fn is_paused(&self, kind: &str) -> bool {
        self.paused.iter().any(|scope| self.kinds.covers(scope, kind))
    }

    /// Whether jobs of a kind are limited, by itself or with its queue.
    pub(crate) fn is_limited(&self, kind: &str) -> bool {
        self.limits.iter().any(|(scope, _)| self.kinds.covers(scope, kind))
    }

    /// The limits that a kind is under.
    fn limits_of(&self, kind: &str) -> impl Iterator<Item = usize> {
        let limits = self.limits.iter().enumerate();
        limits.filter(move |(_, (scope, _))| self.kinds.covers(scope, kind)).map(|(at, _)| at)
    }

    /// Whether there is a limit at all.
    pub(crate) fn has_limits(&self) -> bool {
        !self.limits.is_empty()
    }

    /// Takes out the kinds of which no job may be claimed now, and says how many more may be of the others.
    pub(crate) fn hold_back(
        self: &Arc<Self>,
        kinds: &mut Vec<String>,
        connection: &Connection,
    ) -> rusqlite::Result<Room> {
        if !self.paused.is_empty() {
            kinds.retain(|kind| !self.is_paused(kind));
        }
        if !kinds.iter().any(|kind| self.is_limited(kind)) {
            return Ok(Room::default());
        }
        let room = Room::now(self, connection)?;
        kinds.retain(|kind| room.has(kind));
        Ok(room)
    }
}

/// How many more jobs may run under each limit. The default: no limit concerns anybody.
#[derive(Clone, Debug, Default)]
pub(crate) struct Room {
    holds: Option<Arc<Holds>>,
    left: Vec<u32>,
}

impl Room {
    /// What is left once those are counted that run now.
    fn now(holds: &Arc<Holds>, connection: &Connection) -> rusqlite::Result<Room> {
        let left = holds.limits.iter().map(|(_, most)| *most).collect();
        let mut room = Room { holds: Some(Arc::clone(holds)), left };
        let mut ask = connection.prepare_cached(sql::RUNNING_KINDS)?;
        let mut rows = ask.query([])?;
        while let Some(row) = rows.next()? {
            room.take(&text(row, 0)?.unwrap_or_default());
        }
        Ok(room)
    }

    /// Whether one more of the kind may run.
    pub(crate) fn has(&self, kind: &str) -> bool {
        let Some(holds) = &self.holds else { return true };
        holds.limits_of(kind).all(|at| self.left[at] > 0)
    }

    /// Takes the room of one job, as far as there is some; false if it has none.
    pub(crate) fn take(&mut self, kind: &str) -> bool {
        let Some(holds) = &self.holds else { return true };
        let mut has_room = true;
        for at in holds.limits_of(kind) {
            has_room &= self.left[at] > 0;
            self.left[at] = self.left[at].saturating_sub(1);
        }
        has_room
    }
}
