//! Putting payloads right before a replay: the user's code, run without the pen.

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use rusqlite::Row;
use serde_json::Value;

use crate::enqueue::{check_size, text};
use crate::error::Result;
use crate::failure::{panicked, text_of};
use crate::fingerprint::Fingerprint;
use crate::sql;
use crate::store::Store;

/// What makes of a payload the one that it should have been.
#[derive(Clone)]
pub(super) struct Fix(Arc<dyn Fn(Value) -> anyhow::Result<Value> + Send + Sync>);

/// A payload before and after.
pub(super) struct Fixed {
    pub old: String,
    pub new: String,
    /// For a row that has none yet: it would be computed from the fixed payload.
    pub fingerprint: Option<Fingerprint>,
}

/// A job that stays as it is, and why.
type Refused = (i64, String);

impl Fix {
    pub(super) fn new(fix: impl Fn(Value) -> anyhow::Result<Value> + Send + Sync + 'static) -> Fix {
        Fix(Arc::new(fix))
    }

    /// The payloads of these jobs put right; those that cannot be, with the reason.
    pub(super) fn prepare(&self, store: &Store, jobs: &[i64]) -> Result<(HashMap<i64, Fixed>, Vec<Refused>)> {
        let sent = store.read("reading payloads", |tx| {
            let mut ask = tx.prepare_cached(sql::SENT)?;
            let mut sent = Vec::with_capacity(jobs.len());
            for job in jobs {
                sent.extend(ask.query_map([job], Sent::read)?.collect::<rusqlite::Result<Vec<_>>>()?);
            }
            Ok(sent)
        })?;
        let (mut fixed, mut refused) = (HashMap::new(), Vec::new());
        for sent in sent {
            let id = sent.id;
            let applied = catch_unwind(AssertUnwindSafe(|| self.apply(store, sent)));
            match applied.unwrap_or_else(|panic| Err(anyhow::anyhow!("the fix panicked: {}", panicked(panic)))) {
                Ok(one) => drop(fixed.insert(id, one)),
                Err(error) => refused.push((id, text_of(&error))),
            }
        }
        Ok((fixed, refused))
    }

    fn apply(&self, store: &Store, sent: Sent) -> anyhow::Result<Fixed> {
        let old = sent.payload.ok_or_else(|| anyhow::anyhow!("its payload is gone"))?;
        let value: Value =
            serde_json::from_str(&old).map_err(|error| anyhow::anyhow!("its payload is no JSON: {error}"))?;
        let new = (self.0)(value)?.to_string();
        check_size(&sent.kind, &sent.key, &new, store.inner.terms.payload_limit)?;
        let known = store.inner.known_kind(&sent.kind);
        if let Some(known) = known {
            let key = (known.key_of)(sent.shape, &new)
                .map_err(|error| anyhow::anyhow!("the fixed payload does not decode as {}: {error:#}", sent.kind))?;
            anyhow::ensure!(key == sent.key, "the fixed payload is of another key: {key}");
        }
        // Of what was sent.
        let fingerprint = match known {
            Some(known) => (known.recompute)(sent.shape, &old),
            None => Fingerprint::of(&old).ok(),
        };
        Ok(Fixed { old, new, fingerprint })
    }
}

/// What is in the file.
struct Sent {
    id: i64,
    kind: String,
    key: String,
    shape: u32,
    payload: Option<String>,
}

impl Sent {
    fn read(row: &Row<'_>) -> rusqlite::Result<Sent> {
        Ok(Sent {
            id: row.get(0)?,
            kind: row.get(1)?,
            key: text(row, 2)?.unwrap_or_default(),
            shape: row.get(3)?,
            payload: text(row, 4)?,
        })
    }
}
