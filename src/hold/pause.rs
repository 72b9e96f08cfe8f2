//! Pausing a kind or a queue.

use chrono::{DateTime, Utc};
use rusqlite::{Connection, Row, params};
use serde::Serialize;

use super::holds::Kinds;
use super::{Scope, raise};
use crate::act::{Deed, record};
use crate::enqueue::text;
use crate::error::Result;
use crate::job::instant;
use crate::pen::{Act, Mode};
use crate::sql;
use crate::store::Store;

const PAUSE: Act = Act { name: "pause", instead: "pause after the transaction" };
const UNPAUSE: Act = Act { name: "unpause", instead: "unpause after the transaction" };
const ATOMIC: Mode = Mode { atomic: true, synced: false, follows: false };

/// A kind or a queue that is paused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct PauseInfo {
    /// What is paused.
    #[serde(flatten)]
    pub scope: Scope,
    /// Since when.
    pub at: DateTime<Utc>,
    /// Who paused it.
    pub who: String,
    /// Why.
    pub why: Option<String>,
    /// How many jobs would run but for the pause: those whose time has come and that nothing else holds.
    pub waiting: u64,
}

impl Store {
    /// Pauses a kind or a queue until further notice, in all processes: none of its jobs is claimed, also not by the
    /// recovery from a crash. What runs goes on; what was claimed ahead and has not started is given back, uncharged. A
    /// pause outlives every process. False if it is paused already: the first pause stands.
    ///
    /// In this process nothing starts any more when this returns, but for a job that a worker has just taken; other
    /// processes follow at their next look ([`RunnerBuilder::look_every`](crate::RunnerBuilder::look_every)). A pause does not stop a caller of [`once`](Store::once), who
    /// is there and waits for an answer. Jobs are enqueued, and schedules make them, as ever.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// use birkez::{Deed, Scope};
    /// store.pause(Scope::queue("bank"), Deed::by("Ada").because("their interface is down"))?;
    /// for pause in store.pauses()? {
    ///     println!("{} paused since {} by {}, {} waiting", pause.scope, pause.at, pause.who, pause.waiting);
    /// }
    /// store.unpause(Scope::queue("bank"), "Ada")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::KindInvalid`](crate::Error::KindInvalid) for a name that no kind or queue can have; those of writing the
    /// file.
    pub fn pause(&self, scope: Scope, deed: impl Into<Deed>) -> Result<bool> {
        scope.check()?;
        let deed = deed.into();
        self.inner.pen.write(PAUSE, ATOMIC, move |group| {
            let (word, name) = scope.words();
            let row = params![word, name, group.now, deed.who(), deed.why()];
            if group.statement(sql::PAUSE)?.execute(row)? == 0 {
                return Ok(false);
            }
            record(group, "pause", &scope.to_string(), &deed, None)?;
            raise(group)?;
            Ok(true)
        })
    }

    /// Ends a pause; what has waited runs as soon as a worker is free. False if there is none. A kind whose queue is paused
    /// too stays paused with it.
    ///
    /// # Errors
    ///
    /// Those of writing the file.
    pub fn unpause(&self, scope: Scope, deed: impl Into<Deed>) -> Result<bool> {
        let deed = deed.into();
        self.inner.pen.write(UNPAUSE, ATOMIC, move |group| {
            let (word, name) = scope.words();
            if group.statement(sql::UNPAUSE)?.execute(params![word, name])? == 0 {
                return Ok(false);
            }
            record(group, "unpause", &scope.to_string(), &deed, None)?;
            raise(group)?;
            group.claimable = true;
            Ok(true)
        })
    }

    /// What is paused, oldest first. Counting what waits takes as long as that is many.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn pauses(&self) -> Result<Vec<PauseInfo>> {
        let now = self.inner.clock.wall();
        self.read("looking at pauses", |tx| {
            let mut pauses: Vec<PauseInfo> =
                tx.prepare_cached(sql::PAUSES)?.query_map([], read_pause)?.collect::<rusqlite::Result<_>>()?;
            if pauses.is_empty() {
                return Ok(pauses);
            }
            let kinds = Kinds::read(tx)?;
            let mut ready = tx.prepare_cached(sql::READY_OF_KIND)?;
            let mut ask = tx.prepare_cached(sql::KINDS_STORED)?;
            let mut rows = ask.query([])?;
            while let Some(row) = rows.next()? {
                let kind = text(row, 0)?.unwrap_or_default();
                let mut covering = pauses.iter_mut().filter(|pause| kinds.covers(&pause.scope, &kind)).peekable();
                if covering.peek().is_some() {
                    let waiting: i64 = ready.query_row(params![kind, now], |row| row.get(0))?;
                    covering.for_each(|pause| pause.waiting += u64::try_from(waiting).unwrap_or(0));
                }
            }
            Ok(pauses)
        })
    }
}

/// The pauses that a kind is under.
pub(crate) fn pauses_of(connection: &Connection, kind: &str) -> rusqlite::Result<Vec<PauseInfo>> {
    let mut ask = connection.prepare_cached(sql::PAUSES)?;
    let mut pauses: Vec<PauseInfo> = ask.query_map([], read_pause)?.collect::<rusqlite::Result<_>>()?;
    if !pauses.is_empty() {
        let kinds = Kinds::read(connection)?;
        pauses.retain(|pause| kinds.covers(&pause.scope, kind));
    }
    Ok(pauses)
}

fn read_pause(row: &Row<'_>) -> rusqlite::Result<PauseInfo> {
    let word = |column| Ok::<_, rusqlite::Error>(text(row, column)?.unwrap_or_default());
    Ok(PauseInfo {
        scope: Scope::stored(&word(0)?, word(1)?),
        at: instant(row.get(2)?),
        who: word(3)?,
        why: text(row, 4)?,
        waiting: 0,
    })
}
