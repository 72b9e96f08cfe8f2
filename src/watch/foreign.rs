//! What others have committed: seen on the pen's own connection, which leaves out its own commits.

use rusqlite::types::Value;
use rusqlite::{Connection, Row};

use crate::connect::within;
use crate::sql;
use crate::store::Inner;

/// A look gives up after this.
const PATIENCE: std::time::Duration = std::time::Duration::from_millis(100);

/// What was seen at the last look.
pub(super) struct Foreign {
    version: Option<i64>,
    /// How many changes of this store there were.
    own: u64,
    seen: Option<Seen>,
    reader: Option<Connection>,
}

#[derive(PartialEq)]
struct Seen {
    beats: i64,
    digest: Vec<Value>,
}

impl Foreign {
    pub(super) fn new(inner: &Inner) -> Foreign {
        let version = version(inner);
        let reader = inner.connector.open().ok();
        let seen = reader.as_ref().and_then(see);
        Foreign { version, own: 0, seen, reader }
    }

    /// Whether somebody else has changed something; `own` is how often this store has. A commit that raised beats and left
    /// the rest as it was is none.
    pub(super) fn look(&mut self, inner: &Inner, own: u64) -> bool {
        let Some(now) = version(inner) else { return false };
        let changed = self.version != Some(now);
        if !changed && self.own == own {
            return false;
        }
        let seen = self.reader.as_ref().and_then(see);
        // What was committed since the version was asked may be in what was seen: it would not show as a change later.
        let after = version(inner);
        let news = match (&self.seen, &seen) {
            (Some(before), Some(seen)) => before.beats == seen.beats || before.digest != seen.digest,
            _ => true,
        };
        let more = after.is_some_and(|after| after != now);
        *self = Foreign { version: after.or(Some(now)), own, seen, reader: self.reader.take() };
        (changed && news) || more
    }
}

/// `None` while the pen is in use: its own commits tell who waits, and what others have done is seen at the next look.
fn version(inner: &Inner) -> Option<i64> {
    inner.pen.neighbours_version()?.ok()
}

fn see(reader: &Connection) -> Option<Seen> {
    let all = |row: &Row<'_>| (0..row.as_ref().column_count()).map(|at| row.get(at)).collect();
    let seen = within(PATIENCE, || {
        let tx = reader.unchecked_transaction()?;
        let beats = tx.prepare_cached(sql::BEATS)?.query_row([], |row| row.get(0))?;
        let digest = tx.prepare_cached(sql::DIGEST)?.query_row([], all)?;
        Ok::<_, rusqlite::Error>(Seen { beats, digest })
    });
    seen.ok()
}
