//! Lines that do not move.

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::look::read_job;
use super::{JobInfo, Store};
use crate::error::Result;
use crate::job::instant;
use crate::sql;
use crate::state::State;

/// An ordering key whose head holds up those behind it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct BlockedKey {
    /// The ordering key.
    pub ordering_key: String,
    /// The job at its head.
    pub head: JobInfo,
    /// Since when: the end of its last attempt, or, without one, when it was enqueued.
    pub since: Option<DateTime<Utc>>,
    /// Why, in a few words.
    pub why: String,
}

impl Store {
    /// Ordering keys with jobs that wait behind a head which does not run now: it is dead and holds its key, parked, or
    /// waits for its time or a retry. Oldest head first.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// for line in store.blocked_keys()? {
    ///     println!("{}: {} {} {}", line.ordering_key, line.head.kind, line.head.key, line.why);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn blocked_keys(&self) -> Result<Vec<BlockedKey>> {
        let now = self.inner.clock.wall();
        self.read("looking for lines that do not move", |tx| {
            let mut ask = tx.prepare_cached(&sql::held_lines())?;
            let heads: Vec<JobInfo> = ask.query_map([now], read_job)?.collect::<rusqlite::Result<_>>()?;
            let mut last_attempt = tx.prepare_cached(sql::LAST_ATTEMPT)?;
            let mut held = Vec::with_capacity(heads.len());
            for head in heads {
                let Some(ordering_key) = head.ordering_key.clone() else { continue };
                let failed: Option<i64> = last_attempt.query_row([head.id], |row| row.get(0))?;
                let since = failed.map(instant).or(head.created_at);
                held.push(BlockedKey { ordering_key, since, why: why(&head), head });
            }
            Ok(held)
        })
    }
}

fn why(head: &JobInfo) -> String {
    let failure = head.last_failure.as_ref().map(|failure| format!("{}: {}", failure.class, failure.text));
    match head.state {
        State::Dead => format!("is dead ({})", failure.unwrap_or_default()),
        State::Parked => format!("is parked for {}", head.parked_for.as_deref().unwrap_or_default()),
        _ => match failure {
            Some(failure) => format!("is tried again at {} ({failure})", head.run_at.to_rfc3339()),
            None => format!("waits until {}", head.run_at.to_rfc3339()),
        },
    }
}
