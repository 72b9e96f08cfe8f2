//! What keys cost: the jobs whose payload is gone. Counting them would walk all jobs, so a sample answers.

use rusqlite::{OptionalExtension, Transaction};

use super::{KeyCost, count};
use crate::sql;

/// How many jobs are looked at.
const SAMPLE: i64 = 256;
/// What a row takes beside its texts: its numbers, its header, and its entry in the unique index.
const ROW: u64 = 90;

/// Looks at jobs that stand evenly over all numbers: the same ones as long as the file is the same.
pub(super) fn estimate(tx: &Transaction<'_>, finished: u64) -> rusqlite::Result<KeyCost> {
    let range = tx.prepare_cached(sql::JOB_RANGE)?.query_row([], |row| Ok((row.get(0)?, row.get(1)?)))?;
    let (Some(first), Some(last)): (Option<i64>, Option<i64>) = range else { return Ok(KeyCost::default()) };
    let most = (last - first).saturating_add(1).min(SAMPLE);
    let (mut seen, mut gone, mut bytes) = (0_u64, 0_u64, 0_u64);
    let mut ask = tx.prepare_cached(sql::SAMPLE)?;
    for n in 0..most {
        let at =
            first + i64::try_from(i128::from(last - first) * i128::from(n) / i128::from(most.max(2) - 1)).unwrap_or(0);
        let row = |row: &rusqlite::Row<'_>| Ok((row.get::<_, i64>(0)?, row.get::<_, bool>(1)?, count(row, 2)?));
        let Some((state, is_gone, size)) = ask.query_row([at], row).optional()? else { continue };
        seen += u64::from(state >= 2);
        if state >= 2 && is_gone {
            gone += 1;
            bytes += ROW + size;
        }
    }
    let scale =
        |n: u64| u64::try_from(u128::from(finished) * u128::from(n) / u128::from(seen.max(1))).unwrap_or(u64::MAX);
    Ok(KeyCost { jobs: scale(gone), bytes: scale(bytes) })
}
