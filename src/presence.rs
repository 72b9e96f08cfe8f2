//! What a runner says in the file of what it has in its hands: which kinds and schedules, from when to when.
//!
//! It is history too: whoever asks why nothing ran last night is told when nobody was there.

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError};

use chrono::{DateTime, Utc};
use rusqlite::{Connection, OptionalExtension, Row, params};

use crate::error::{Error, Result};
use crate::hold::raise;
use crate::job::instant;
use crate::owner::{Sign, lives};
use crate::pen::{Act, Group, Mode, OpResult};
use crate::sql;
use crate::store::Store;
use crate::upkeep::note_time;

const BEGIN: Act = Act { name: "saying what a runner handles", instead: "the same before the transaction" };
const END: Act = Act { name: "saying that a runner has ended", instead: "the same after the transaction" };
const ATOMIC: Mode = Mode { atomic: true, synced: false, follows: false };

/// What a program says of a kind, under one of its names.
#[derive(Clone, Debug)]
pub(crate) struct Saying {
    pub kind: &'static str,
    pub queue: &'static str,
    /// Its present name, if this is a former one.
    pub goes_by: Option<&'static str>,
    pub advice: String,
}

/// A runner's word in the file. It is taken back when this is dropped.
pub(crate) struct Presence {
    store: Store,
    kinds: Vec<Saying>,
    schedules: Vec<String>,
    is_said: AtomicBool,
    rows: Mutex<Option<Rows>>,
}

/// The rows that stand for it now.
#[derive(Clone)]
struct Rows {
    owner: i64,
    first: i64,
    last: i64,
    /// Kinds that it has in its hands and runs none of, by their names; it has taken those up again whose row is here.
    closed: Vec<String>,
    reopened: Vec<i64>,
}

impl Presence {
    /// Where another connection holds the file, it is left for later ([`stand_by`](Presence::stand_by)).
    pub(crate) fn begin(store: Store, kinds: Vec<Saying>, schedules: Vec<String>, owner: i64) -> Result<Presence> {
        let is_said = AtomicBool::new(kinds.is_empty() && schedules.is_empty());
        let presence = Presence { store, kinds, schedules, is_said, rows: Mutex::default() };
        match presence.stand_by(owner) {
            Ok(()) | Err(Error::Busy { .. }) => Ok(presence),
            Err(error) => Err(error),
        }
    }

    /// Whether what the kinds are is in the file: before that, nobody can tell which of them are paused with their queue.
    pub(crate) fn is_said(&self) -> bool {
        self.is_said.load(Ordering::Acquire)
    }

    /// Says it for this owner, unless it is said. What was said for another that was declared gone ended with that one.
    pub(crate) fn stand_by(&self, owner: i64) -> Result<()> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let stands = rows.as_ref().is_some_and(|rows| rows.owner == owner);
        if stands || self.kinds.is_empty() && self.schedules.is_empty() {
            return Ok(());
        }
        let (kinds, schedules) = (self.kinds.clone(), self.schedules.clone());
        let (first, last) =
            self.store.inner.pen.write(BEGIN, ATOMIC, move |group| say(group, &kinds, &schedules, owner))?;
        *rows = Some(Rows { owner, first, last, closed: Vec::new(), reopened: Vec::new() });
        self.is_said.store(true, Ordering::Release);
        Ok(())
    }

    /// Says which of its kinds are closed, since all workers may hang in them: nobody is there who would run one.
    pub(crate) fn close(&self, closed: &[String]) -> Result<()> {
        let mut rows = self.rows.lock().unwrap_or_else(PoisonError::into_inner);
        let Some(said) = rows.as_mut().filter(|rows| rows.closed != closed) else { return Ok(()) };
        let (before, now) = (said.clone(), closed.to_vec());
        *said = self.store.inner.pen.write(BEGIN, ATOMIC, move |group| {
            let mut rows = before;
            for name in now.iter().filter(|name| !rows.closed.contains(name)) {
                group.statement(sql::CLOSE_PRESENCE)?.execute(params![rows.owner, name, group.now])?;
            }
            for name in rows.closed.iter().filter(|name| !now.contains(name)) {
                group.statement(sql::BEGIN_PRESENCE)?.execute(params![rows.owner, "kind", name, group.now])?;
                rows.reopened.push(group.tx().last_insert_rowid());
            }
            rows.closed = now;
            Ok(rows)
        })?;
        Ok(())
    }

    /// It has them in its hands no longer.
    pub(crate) fn end(&self) {
        let Some(rows) = self.rows.lock().unwrap_or_else(PoisonError::into_inner).take() else { return };
        let ended = self.store.inner.pen.write(END, Mode::default(), move |group| {
            let ranges = rows.reopened.iter().map(|&id| (id, id));
            for (first, last) in ranges.chain([(rows.first, rows.last)]) {
                group.statement(sql::END_PRESENCE)?.execute(params![first, last, group.now])?;
            }
            Ok(())
        });
        if let Err(error) = ended {
            tracing::debug!(%error, "that a runner has ended will show when its process ends");
        }
    }
}

impl Drop for Presence {
    fn drop(&mut self) {
        self.end();
    }
}

/// Answers the numbers of the first and the last row.
fn say(group: &mut Group<'_>, kinds: &[Saying], schedules: &[String], owner: i64) -> OpResult<(i64, i64)> {
    note_time(group)?;
    let mut news = 0;
    for said in kinds {
        let row = params![said.kind, said.queue, said.goes_by, said.advice, group.now];
        news += group.statement(sql::SAY_KIND)?.execute(row)?;
    }
    let names = kinds.iter().map(|said| ("kind", said.kind));
    let names = names.chain(schedules.iter().map(|name| ("schedule", name.as_str())));
    let (mut first, mut last) = (None, 0);
    for (what, name) in names {
        group.statement(sql::BEGIN_PRESENCE)?.execute(params![owner, what, name, group.now])?;
        last = group.tx().last_insert_rowid();
        first.get_or_insert(last);
    }
    if news > 0 {
        // A kind may have come into a queue that is paused, or have left one.
        raise(group)?;
        group.claimable = true;
    }
    Ok((first.unwrap_or(last), last))
}

/// What a presence is about.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Subject<'a> {
    what: &'static str,
    name: &'a str,
}

/// Whether somebody had something in hand at a moment.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Absence {
    There,
    Nobody(Spell),
    /// The history does not reach so far back.
    Untold,
}

/// A time that nobody had something in hand.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Spell {
    /// Until when it was in somebody's hands last, before the moment that was asked about. `None`: never before.
    pub until: Option<DateTime<Utc>>,
    /// When somebody took it up again. `None`: nobody has yet.
    pub again: Option<DateTime<Utc>>,
}

impl<'a> Subject<'a> {
    pub(crate) fn kind(name: &'a str) -> Subject<'a> {
        Subject { what: "kind", name }
    }

    pub(crate) fn schedule(name: &'a str) -> Subject<'a> {
        Subject { what: "schedule", name }
    }

    /// How many processes have it in their hands now.
    pub(crate) fn held_by(self, connection: &Connection, database: &Path, now: i64) -> rusqlite::Result<usize> {
        let mut ask = connection.prepare_cached(sql::HANDLED_BY)?;
        let sign = |row: &Row<'_>| Sign::read(row, [0, 1, 2, 3, 4]);
        let signs: Vec<Sign> = ask.query_map(params![self.what, self.name], sign)?.collect::<rusqlite::Result<_>>()?;
        Ok(signs.iter().filter(|sign| lives(sign, database, now)).count())
    }

    /// Whether somebody had it in hand at a moment.
    pub(crate) fn nobody_at(
        self,
        connection: &Connection,
        database: &Path,
        (at, now): (i64, i64),
    ) -> rusqlite::Result<Absence> {
        let mut ask = connection.prepare_cached(sql::PRESENCES_UPTO)?;
        let mut rows = ask.query(params![self.what, self.name, at])?;
        let mut until: Option<i64> = None;
        while let Some(row) = rows.next()? {
            match end_of(row, database, now)? {
                Some(end) if end <= at => until = until.max(Some(end)),
                _ => return Ok(Absence::There),
            }
        }
        if until.is_none() && !is_told_of(connection, at)? {
            return Ok(Absence::Untold);
        }
        let mut ask = connection.prepare_cached(sql::PRESENCE_AFTER)?;
        let again: Option<i64> = ask.query_row(params![self.what, self.name, at], |row| row.get(0))?;
        Ok(Absence::Nobody(Spell { until: until.map(instant), again: again.map(instant) }))
    }
}

/// Whether the history of what runners had in hand reaches back to a moment. Older programs kept none; before the first
/// of them there was nobody.
fn is_told_of(connection: &Connection, at: i64) -> rusqlite::Result<bool> {
    let first = |sql| connection.prepare_cached(sql)?.query_row([], |row| row.get::<_, i64>(0)).optional();
    Ok(first(sql::FIRST_PRESENCE)?.is_some_and(|begins| begins <= at)
        || first(sql::FIRST_RUNNER)?.is_none_or(|begins| begins > at))
}

/// When a presence ended; `None` if it lasts.
fn end_of(row: &Row<'_>, database: &Path, now: i64) -> rusqlite::Result<Option<i64>> {
    let since: i64 = row.get(0)?;
    let (until, ended): (Option<i64>, Option<i64>) = (row.get(1)?, row.get(2)?);
    let heard: Option<i64> = row.get(4)?;
    if let Some(end) = until {
        return Ok(Some(end));
    }
    let last_heard = heard.unwrap_or(since).max(since);
    if let Some(end) = ended {
        let gone = row.get::<_, Option<String>>(3)?.is_some_and(|ending| ending == "gone");
        return Ok(Some(if gone { last_heard } else { end }));
    }
    let sign = Sign::read(row, [5, 6, 7, 4, 8])?;
    Ok((!lives(&sign, database, now)).then_some(last_heard))
}
