//! What others have committed: seen on the pen's own connection, which leaves out its own commits.

use rusqlite::types::Value;
use rusqlite::{Connection, Row};

use crate::connect::within;
use crate::sql;
use crate::store::Inner;

/// A look gives up after this.
const PATIENCE: std::time::Duration = std::time::Duration::from_millis(100);

/// How often it looks for a moment in which nobody commits.
const TRIES: u32 = 5;

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

/// A look.
enum Look {
    /// What there is to see, with the version that it belongs to: nobody has committed in between.
    Settled(i64, Option<Seen>),
    /// Others commit all the time.
    Moving,
    /// The pen is in use.
    Busy,
}

impl Foreign {
    pub(super) fn new(inner: &Inner) -> Foreign {
        let reader = inner.connector.open().ok();
        match settle(inner, reader.as_ref()) {
            Look::Settled(version, seen) => Foreign { version: Some(version), own: 0, seen, reader },
            _ => Foreign { version: None, own: 0, seen: None, reader },
        }
    }

    /// Whether somebody else has changed something; `own` is how often this store has. A commit that raised beats and left
    /// the rest as it was is none.
    pub(super) fn look(&mut self, inner: &Inner, own: u64) -> bool {
        let Some(now) = version(inner) else { return false };
        if self.version == Some(now) && self.own == own {
            return false;
        }
        let (version, seen) = match settle(inner, self.reader.as_ref()) {
            Look::Settled(version, seen) => (version, seen),
            Look::Moving => return true,
            Look::Busy => return false,
        };
        let changed = self.version != Some(version);
        let news = match (&self.seen, &seen) {
            (Some(before), Some(seen)) => before.beats == seen.beats || before.digest != seen.digest,
            _ => true,
        };
        *self = Foreign { version: Some(version), own, seen, reader: self.reader.take() };
        changed && news
    }
}

fn settle(inner: &Inner, reader: Option<&Connection>) -> Look {
    for _ in 0..TRIES {
        let Some(before) = version(inner) else { return Look::Busy };
        let seen = reader.and_then(see);
        match version(inner) {
            Some(after) if after == before => return Look::Settled(before, seen),
            Some(_) => {}
            None => return Look::Busy,
        }
    }
    Look::Moving
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
