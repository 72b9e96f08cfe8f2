//! Limits of how many jobs of a kind or a queue run at once.

use rusqlite::{Connection, Row, params};
use serde::Serialize;

use super::holds::Kinds;
use super::{Scope, raise};
use crate::act::{Deed, record};
use crate::enqueue::text;
use crate::error::Result;
use crate::pen::{Act, Mode};
use crate::sql;
use crate::store::Store;

const SET: Act = Act { name: "set_limit", instead: "set_limit after the transaction" };
const ATOMIC: Mode = Mode { atomic: true, synced: false, follows: false };

/// How many jobs of a kind or a queue may run at once, and how many do.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct LimitInfo {
    /// What is limited.
    #[serde(flatten)]
    pub scope: Scope,
    /// How many may run at once, in all processes together. 0: none.
    pub most: u32,
    /// The jobs that run now, by their numbers.
    pub running: Vec<i64>,
}

impl Store {
    /// Limits how many jobs of a kind or a queue run at once, in all processes together; 0 lets none start, `None` takes
    /// the limit away. False if nothing changed. A kind under a limit of its own and one of its queue keeps to both.
    ///
    /// What runs is counted from its leases, so that a process that dies leaves nothing used up. A lower limit stops
    /// nothing that runs. Jobs under a limit are never claimed ahead of a free worker. Callers of
    /// [`once`](Store::once) are counted and not held back.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// use birkez::Scope;
    /// store.set_limit(Scope::kind("transcode"), Some(2), "the settings page")?;
    /// assert_eq!(store.limits()?[0].most, 2);
    /// store.set_limit(Scope::kind("transcode"), None, "the settings page")?;
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::KindInvalid`](crate::Error::KindInvalid) for a name that no kind or queue can have; those of writing the
    /// file.
    pub fn set_limit(&self, scope: Scope, most: Option<u32>, deed: impl Into<Deed>) -> Result<bool> {
        scope.check()?;
        let deed = deed.into();
        self.inner.pen.write(SET, ATOMIC, move |group| {
            let (word, name) = scope.words();
            let changed = match most {
                Some(most) => group.statement(sql::SET_LIMIT)?.execute(params![word, name, most])?,
                None => group.statement(sql::REMOVE_LIMIT)?.execute(params![word, name])?,
            };
            if changed == 0 {
                return Ok(false);
            }
            let detail = serde_json::json!({ "most": most }).to_string();
            record(group, "set limit", &scope.to_string(), &deed, Some(&detail))?;
            raise(group)?;
            group.claimable = true;
            Ok(true)
        })
    }

    /// The limits that are set, kinds first, by name.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn limits(&self) -> Result<Vec<LimitInfo>> {
        self.read("looking at limits", |tx| limits(tx, |_, _| true))
    }
}

/// The limits that a kind is under.
pub(crate) fn limits_of(connection: &Connection, kind: &str) -> rusqlite::Result<Vec<LimitInfo>> {
    limits(connection, |kinds, scope| kinds.covers(scope, kind))
}

fn limits(connection: &Connection, which: impl Fn(&Kinds, &Scope) -> bool) -> rusqlite::Result<Vec<LimitInfo>> {
    let mut ask = connection.prepare_cached(sql::LIMITS)?;
    let mut limits: Vec<LimitInfo> = ask.query_map([], read_limit)?.collect::<rusqlite::Result<_>>()?;
    if limits.is_empty() {
        return Ok(limits);
    }
    let kinds = Kinds::read(connection)?;
    limits.retain(|limit| which(&kinds, &limit.scope));
    let mut ask = connection.prepare_cached(sql::RUNNING_KINDS)?;
    let mut rows = ask.query([])?;
    while let Some(row) = rows.next()? {
        let (kind, job) = (text(row, 0)?.unwrap_or_default(), row.get(1)?);
        let covering = limits.iter_mut().filter(|limit| kinds.covers(&limit.scope, &kind));
        covering.for_each(|limit| limit.running.push(job));
    }
    Ok(limits)
}

fn read_limit(row: &Row<'_>) -> rusqlite::Result<LimitInfo> {
    let scope = Scope::stored(&text(row, 0)?.unwrap_or_default(), text(row, 1)?.unwrap_or_default());
    let most = u32::try_from(row.get::<_, i64>(2)?).unwrap_or(u32::MAX);
    Ok(LimitInfo { scope, most, running: Vec::new() })
}
