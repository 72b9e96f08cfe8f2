//! Counted against scanned.

use std::collections::BTreeMap;

use rusqlite::{Transaction, params};
use serde::Serialize;

use crate::error::Result;
use crate::pen::{Act, Group, Mode};
use crate::sql;
use crate::state::State;
use crate::store::Store;

const MEND: Act = Act { name: "mend_counts", instead: "mend_counts after the transaction" };

/// A count that is not what the rows say.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct CountDiff {
    /// Of which kind.
    pub kind: String,
    /// And state: done, dead or cancelled.
    pub state: State,
    /// What the count says.
    pub counted: i64,
    /// How many rows there are.
    pub scanned: i64,
}

impl Store {
    /// Compares what is counted with the rows, all of them: it reads every job that is in the file. Empty if all is well.
    ///
    /// Counts part from the rows where somebody else deletes or changes jobs with SQL of their own.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// if !store.check_counts()?.is_empty() {
    ///     store.mend_counts()?;
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn check_counts(&self) -> Result<Vec<CountDiff>> {
        self.read("comparing counts with jobs", |tx| differences(tx, |_, _| 0))
    }

    /// Sets the counts to what the rows say; answers what it has set. It reads every job in one transaction, and holds the
    /// writer lock meanwhile: over a second for a million jobs.
    ///
    /// # Errors
    ///
    /// [`Error::InsideTransaction`](crate::Error::InsideTransaction); those of writing the file.
    pub fn mend_counts(&self) -> Result<Vec<CountDiff>> {
        self.inner.pen.write(MEND, Mode { atomic: true, ..Mode::default() }, |group| Ok(mend(group)?))
    }
}

/// What others in this transaction have counted is in the rows already, and not yet in the counts.
fn mend(group: &mut Group<'_>) -> rusqlite::Result<Vec<CountDiff>> {
    let wrong = differences(group.tx(), |kind, state| group.pending(kind, state))?;
    for diff in &wrong {
        let (state, pending) = (diff.state.number(), group.pending(&diff.kind, diff.state.number()));
        group.statement(sql::SET_COUNT)?.execute(params![diff.kind, state, diff.scanned - pending])?;
    }
    Ok(wrong)
}

fn differences(tx: &Transaction<'_>, pending: impl Fn(&str, i64) -> i64) -> rusqlite::Result<Vec<CountDiff>> {
    let mut both: BTreeMap<(String, i64), (i64, i64)> = BTreeMap::new();
    let mut counted = tx.prepare_cached(sql::COUNTED)?;
    let mut rows = counted.query([])?;
    while let Some(row) = rows.next()? {
        both.entry((row.get(0)?, row.get(1)?)).or_default().0 = row.get(2)?;
    }
    let mut scanned = tx.prepare_cached(sql::SCANNED)?;
    let mut rows = scanned.query([])?;
    while let Some(row) = rows.next()? {
        both.entry((row.get(0)?, row.get(1)?)).or_default().1 = row.get(2)?;
    }
    let diff = |((kind, state), (counted, scanned)): ((String, i64), (i64, i64))| {
        let counted = counted + pending(&kind, state);
        (counted != scanned).then(|| CountDiff { state: State::stored(state, false), kind, counted, scanned })
    };
    Ok(both.into_iter().filter_map(diff).collect())
}
