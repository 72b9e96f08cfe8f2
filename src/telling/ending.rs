//! What the end of an attempt is counted as, and who is told.

use rusqlite::params;

use super::event::{EventJob, Happened};
use super::notice::{self, Death};
use crate::enqueue::text;
use crate::failure::Class;
use crate::job::instant;
use crate::numbers::Tallied;
use crate::outcome::{Next, Settlement};
use crate::pen::Group;
use crate::settle::Claim;
use crate::sql;

/// The span in which an attempt runs.
pub(crate) fn attempt_span(claim: &Claim) -> tracing::Span {
    tracing::info_span!("birkez.attempt", job = claim.id, kind = &*claim.kind, attempt = claim.attempt)
}

/// An attempt begins.
pub(crate) fn started(claim: &Claim) -> Happened {
    Happened::Started { job: EventJob::new(claim.id, &claim.kind, &claim.key), attempt: claim.attempt }
}

/// An attempt has been settled.
pub(crate) fn note_settled(group: &mut Group<'_>, claim: &Claim, settlement: &Settlement) -> rusqlite::Result<()> {
    let (id, kind, key, attempt, now) = (claim.id, &*claim.kind, &*claim.key, claim.attempt, group.now);
    let class = settlement.record.as_ref().map(|record| record.class);
    let is_done = matches!(settlement.next, Next::Done(_));
    if is_done && claim.created_at != 0 {
        group.tally(kind, Tallied::FromEnqueue(now - claim.created_at));
    }
    if is_done || class.is_some_and(|class| class != Class::Interrupted) {
        group.tally(kind, Tallied::Ran(now - claim.started()));
    }
    if let Some(class) = class.filter(|class| !matches!(class, Class::Interrupted | Class::Parked)) {
        let goes_on = matches!(settlement.next, Next::Waiting { .. } | Next::Back);
        group.tally(kind, if goes_on { Tallied::Failed } else { Tallied::FailedLast });
        let retry_at = match settlement.next {
            Next::Waiting { run_at } => Some(instant(run_at)),
            Next::Back => Some(instant(now)),
            _ => None,
        };
        group.tell_job(id, kind, key, |job| Happened::Failed { job, attempt, class, retry_at });
    }
    match &settlement.next {
        Next::Done(_) => group.tell_job(id, kind, key, |job| Happened::Done { job, attempt }),
        Next::Parked { reason } => {
            group.tell_job(id, kind, key, |job| Happened::Parked { job, reason: reason.clone() });
        }
        Next::Dead => died(group, id, kind, claim.token)?,
        Next::Cancelled => cancelled(group, id, kind, key),
        Next::Waiting { .. } | Next::Back => {}
    }
    Ok(())
}

/// A job was taken from a process that is gone. `class`: of its attempt, if that has ended with it; `state` as it is
/// stored.
pub(crate) fn note_taken_back(
    group: &mut Group<'_>,
    (job, kind, token, attempt): (i64, &str, i64, u32),
    runner: i64,
    class: Option<Class>,
    state: i64,
) -> rusqlite::Result<()> {
    group.tally(kind, Tallied::LeaseLost);
    if class.is_some() {
        group.tally(kind, if state == 0 { Tallied::Failed } else { Tallied::FailedLast });
    }
    if group.is_listened_to() {
        let key = group.statement(sql::JOB_KEY)?.query_row([job], |row| text(row, 0))?.unwrap_or_default();
        group.tell_job(job, kind, &key, |job| Happened::LeaseLost { job, runner });
        if let Some(class) = class {
            let retry_at = (state == 0).then(|| instant(group.now));
            group.tell_job(job, kind, &key, |job| Happened::Failed { job, attempt, class, retry_at });
        }
        if state == 4 {
            group.tell_job(job, kind, &key, |job| Happened::Cancelled { job });
        }
        if state == 1 {
            let reason = Class::UnknownOutcome.as_str().to_owned();
            group.tell_job(job, kind, &key, |job| Happened::Parked { job, reason });
        }
    }
    match state {
        3 => died(group, job, kind, token),
        4 => {
            group.count(kind, 4, 1);
            Ok(())
        }
        _ => Ok(()),
    }
}

/// A job was called off: it is counted and told of.
pub(crate) fn cancelled(group: &mut Group<'_>, id: i64, kind: &str, key: &str) {
    group.count(kind, 4, 1);
    group.tell_job(id, kind, key, |job| Happened::Cancelled { job });
}

/// A job has died, as its row says already: it is counted, told of, and a person gets to know in the same transaction.
/// Every death passes here.
pub(crate) fn died(group: &mut Group<'_>, job: i64, kind: &str, token: i64) -> rusqlite::Result<()> {
    group.count(kind, 3, 1);
    let at = instant(group.now);
    let row = |row: &rusqlite::Row<'_>| {
        Ok(Death {
            job,
            kind: kind.to_owned(),
            key: text(row, 0)?.unwrap_or_default(),
            label: text(row, 1)?,
            class: text(row, 2)?.map(|class| Class::stored(&class)),
            text: text(row, 3)?.unwrap_or_default(),
            attempts: row.get(4)?,
            at,
            token,
        })
    };
    let death = group.statement(sql::DIED)?.query_row(params![job], row)?;
    if group.is_listened_to() {
        let (job, class) = (EventJob::new(job, kind, &death.key), death.class);
        group.tell(|| Happened::Dead { job, class });
    }
    notice::of_death(group, &death)
}
