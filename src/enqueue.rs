//! Storing a job under its key, or meeting the one that is there.

use std::borrow::Cow;
use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use rusqlite::{OptionalExtension, Row, params};

use crate::error::{Error, Result};
use crate::failure::{Class, panicked, safe_text};
use crate::fingerprint::Fingerprint;
use crate::idempotency;
use crate::job::{Enqueued, Failure, Job, Standing, check_name, holds_key, instant};
use crate::pen::{Group, OpResult};
use crate::sql;
use crate::state::{JobName, JobRef, State};
use crate::telling::Happened;

/// What a store holds new jobs to.
#[derive(Clone)]
pub(crate) struct Terms {
    pub payload_limit: usize,
    /// What stands as the origin of jobs that the app enqueues.
    pub origin: String,
    /// What idempotency keys are computed with.
    pub secret: Vec<u8>,
}

/// A job as it is written: encoded, checked, and free of the user's code.
#[derive(Clone, Debug)]
pub(crate) struct NewJob {
    pub kind: Cow<'static, str>,
    former: &'static [&'static str],
    pub key: String,
    payload: String,
    shape: u32,
    fingerprint: Fingerprint,
    priority: i32,
    run_at: Option<i64>,
    ordering_key: Option<String>,
    version: Option<i64>,
    /// `None`: computed when it is claimed, by a program that knows the kind.
    pub idempotency: Option<String>,
    holds_key: bool,
    label: Option<String>,
    /// What enqueues it, in words.
    pub origin: String,
    corrects: Option<JobName>,
    /// Recomputes the fingerprint of a stored payload as today's type sees it.
    recompute: fn(u32, &str) -> Option<Fingerprint>,
}

impl NewJob {
    /// Encodes `job`; whatever is wrong with it is found here, before any write.
    pub(crate) fn encode<J: Job>(job: &J, terms: &Terms) -> Result<NewJob> {
        let key = job.key();
        check_name(J::KIND, &key)?;
        let unreadable = |source: serde_json::Error| Error::PayloadInvalid {
            kind: J::KIND.to_owned(),
            key: key.clone(),
            source: source.into(),
        };
        let payload = serde_json::to_string(job).map_err(unreadable)?;
        check_size(J::KIND, &key, &payload, terms.payload_limit)?;
        let fingerprint = match job.fingerprint() {
            Some(content) => Fingerprint::of(&content.to_string()).map_err(unreadable)?,
            None => Fingerprint::of(&payload).map_err(unreadable)?,
        };
        Ok(NewJob {
            kind: Cow::Borrowed(J::KIND),
            former: J::FORMER_KINDS,
            idempotency: Some(idempotency::of::<J>(&terms.secret, &key)),
            key,
            payload,
            shape: J::SHAPE,
            fingerprint,
            priority: job.priority(),
            run_at: job.run_at().map(|at| at.timestamp_millis()),
            ordering_key: job.ordering_key(),
            version: job.version(),
            holds_key: holds_key::<J>(),
            label: job.label().map(|label| safe_text(&label).into_owned()),
            origin: terms.origin.clone(),
            corrects: job.corrects(),
            recompute: recompute::<J>,
        })
    }

    /// Under which names it may be known, if there are more than one. The present name first: where both hold the key, a
    /// job that was closed for it keeps the former one.
    fn names(&self) -> impl Iterator<Item = &str> {
        let present = (!self.former.is_empty()).then_some(&*self.kind);
        present.into_iter().chain(self.former.iter().copied())
    }

    /// A job whose type is not known here: its payload is JSON.
    pub(crate) fn raw(kind: &str, key: String, payload: &str, shape: u32, terms: &Terms) -> Result<NewJob> {
        check_size(kind, &key, payload, terms.payload_limit)?;
        let kind = kind.to_owned();
        let fingerprint = Fingerprint::of(payload).map_err(|source| Error::PayloadInvalid {
            kind: kind.clone(),
            key: key.clone(),
            source: source.into(),
        })?;
        Ok(NewJob {
            kind: Cow::Owned(kind),
            former: &[],
            key,
            payload: payload.to_owned(),
            shape,
            fingerprint,
            priority: 0,
            run_at: None,
            ordering_key: None,
            version: None,
            idempotency: None,
            holds_key: true,
            label: None,
            origin: terms.origin.clone(),
            corrects: None,
            recompute: |_, payload| Fingerprint::of(payload).ok(),
        })
    }
}

pub(crate) fn check_size(kind: &str, key: &str, payload: &str, limit: usize) -> Result<()> {
    if payload.len() <= limit {
        return Ok(());
    }
    Err(Error::PayloadTooLarge { kind: kind.to_owned(), key: key.to_owned(), size: payload.len(), limit })
}

/// Decodes a stored payload, upgraded first where it has an older shape.
pub(crate) fn decode<J: Job>(shape: u32, payload: &str) -> anyhow::Result<J> {
    if shape == J::SHAPE {
        return Ok(serde_json::from_str(payload)?);
    }
    anyhow::ensure!(shape < J::SHAPE, "payload has shape {shape}, this program knows shapes up to {}", J::SHAPE);
    let upgraded = J::upgrade(shape, serde_json::from_str(payload)?)?;
    Ok(serde_json::from_value(upgraded)?)
}

fn recompute<J: Job>(shape: u32, payload: &str) -> Option<Fingerprint> {
    let job = decode::<J>(shape, payload).ok()?;
    let content = match job.fingerprint() {
        Some(content) => content.to_string(),
        None => serde_json::to_string(&job).ok()?,
    };
    Fingerprint::of(&content).ok()
}

/// What a process knows of a kind that it handles, without its type.
#[derive(Clone, Copy)]
pub(crate) struct KnownKind {
    /// The key that a payload of this shape stands for.
    pub key_of: fn(u32, &str) -> anyhow::Result<String>,
    /// Its fingerprint, as today's type sees it.
    pub recompute: fn(u32, &str) -> Option<Fingerprint>,
}

impl KnownKind {
    pub(crate) fn of<J: Job>() -> KnownKind {
        KnownKind { key_of: |shape, payload| Ok(decode::<J>(shape, payload)?.key()), recompute: recompute::<J> }
    }
}

/// The answer of the file about one job.
#[derive(Clone, Debug)]
pub(crate) struct Answer {
    pub id: i64,
    pub fresh: bool,
    pub compared: bool,
    pub row: Known,
}

/// What is known of a job that exists.
#[derive(Clone, Debug)]
pub(crate) struct Known {
    pub id: i64,
    pub kind: String,
    pub payload: Option<String>,
    pub shape: u32,
    fingerprint: Option<Vec<u8>>,
    pub state: State,
    /// It belongs to the callers of `once`.
    pub for_callers: bool,
    pub run_at: i64,
    pub attempts: u32,
    pub reason: Option<String>,
    result: Option<String>,
    result_note: Option<String>,
    error_class: Option<String>,
    error_text: Option<String>,
    /// Who holds its lease.
    pub holder: Option<i64>,
    pub claims: i64,
    pub is_suspect: bool,
    pub deadline: Option<i64>,
    pub ordering_key: Option<String>,
    pub idempotency: Option<String>,
    corrects: Option<i64>,
    pub created_at: i64,
}

impl Known {
    pub(crate) fn read(row: &Row<'_>) -> rusqlite::Result<Known> {
        let holder: Option<i64> = row.get(14)?;
        Ok(Known {
            id: row.get(0)?,
            kind: row.get(1)?,
            payload: text(row, 2)?,
            shape: row.get(3)?,
            fingerprint: row.get(4)?,
            state: State::stored(row.get(5)?, holder.is_some()),
            for_callers: row.get(6)?,
            run_at: row.get(7)?,
            attempts: row.get(8)?,
            reason: row.get(9)?,
            result: text(row, 10)?,
            result_note: row.get(11)?,
            error_class: row.get(12)?,
            error_text: row.get(13)?,
            holder,
            claims: row.get(15)?,
            is_suspect: row.get::<_, Option<i64>>(16)?.is_some(),
            deadline: row.get(17)?,
            ordering_key: row.get(18)?,
            idempotency: row.get(19)?,
            corrects: row.get(20)?,
            created_at: row.get(21)?,
        })
    }

    pub(crate) fn job_ref(&self) -> JobRef {
        JobRef { id: self.id, state: self.state }
    }

    pub(crate) fn failure(&self) -> Failure {
        Failure {
            class: Class::stored(self.error_class.as_deref().unwrap_or_default()),
            text: self.error_text.clone().unwrap_or_default(),
        }
    }

    /// The stored output, decoded.
    pub(crate) fn output<T: serde::de::DeserializeOwned>(&self, key: &str) -> Result<T> {
        let (kind, key) = (self.kind.clone(), key.to_owned());
        match &self.result {
            // A deserialiser of the user's may panic; the job is done all the same.
            Some(result) => match catch_unwind(AssertUnwindSafe(|| serde_json::from_str(result))) {
                Ok(read) => read.map_err(|source| Error::ResultUnreadable { kind, key, source: source.into() }),
                Err(panic) => Err(Error::ResultUnreadable { kind, key, source: panicked(panic).into() }),
            },
            None => {
                let note = self.result_note.clone().unwrap_or_else(|| "retired".to_owned());
                Err(Error::ResultGone { kind, key, note })
            }
        }
    }

    fn standing<T: serde::de::DeserializeOwned>(&self, key: &str) -> Standing<T> {
        match self.state {
            State::Waiting => Standing::Waiting { run_at: instant(self.run_at), attempts: self.attempts },
            State::Running => Standing::Running,
            State::Parked => Standing::Parked { reason: self.reason.clone().unwrap_or_default() },
            State::Done => Standing::Done(self.output(key)),
            State::Dead => Standing::Dead(self.failure()),
            State::Cancelled => Standing::Cancelled,
        }
    }
}

/// Text that another language may have bound as bytes.
pub(crate) fn text(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<String>> {
    use rusqlite::types::ValueRef;
    Ok(match row.get_ref(column)? {
        ValueRef::Null => None,
        ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(String::from_utf8_lossy(bytes).into_owned()),
        other => Some(format!("{other:?}")),
    })
}

impl Answer {
    pub(crate) fn typed<J: Job>(&self, key: &str) -> Enqueued<J::Output> {
        Enqueued {
            id: self.id,
            fresh: self.fresh,
            compared: self.compared,
            for_callers: self.row.for_callers,
            standing: self.row.standing(key),
        }
    }
}

/// A stored payload that must be looked at by the user's code, which does not run while the pen is held.
#[derive(Debug)]
pub(crate) struct ToCompare {
    id: i64,
    shape: u32,
    payload: String,
    recompute: fn(u32, &str) -> Option<Fingerprint>,
}

/// Fingerprints of stored payloads as today's types see them; `None` where they cannot tell.
pub(crate) type Compared = HashMap<i64, Option<Fingerprint>>;

pub(crate) fn compare(questions: Vec<ToCompare>, known: &mut Compared) {
    for question in questions {
        known.insert(question.id, (question.recompute)(question.shape, &question.payload));
    }
}

/// What storing a job came to.
pub(crate) enum Stored {
    Answered(Box<Answer>),
    MustCompare(ToCompare),
}

/// Inserts `job`, or meets the one that has its key. `for_callers` makes it one that no runner claims.
pub(crate) fn store(group: &mut Group<'_>, job: &NewJob, compared: &Compared, for_callers: bool) -> OpResult<Stored> {
    for kind in job.names() {
        if let Some(known) = find(group, kind, &job.key)? {
            return meet(group, job, known, compared);
        }
    }
    let run_at = job.run_at.unwrap_or(group.now);
    let gate = match for_callers {
        true => 4,
        false => i64::from(run_at <= group.now),
    };
    let inserted = group.statement(sql::INSERT_JOB)?.execute(params![
        &*job.kind,
        job.key,
        job.payload,
        job.shape,
        job.fingerprint.bytes(),
        gate,
        run_at,
        job.priority,
        job.ordering_key,
        job.version,
        group.now,
        for_callers,
        job.idempotency,
        job.holds_key,
        job.label,
        job.origin,
        job.corrects.as_ref().map(|name| &name.kind),
        job.corrects.as_ref().map(|name| &name.key),
    ])?;
    if inserted == 1 {
        let id = group.tx().last_insert_rowid();
        if let Some(corrected) = &job.corrects
            && group.statement(sql::UNDO_INSERT)?.execute([id])? == 1
        {
            let (kind, key) = (job.kind.clone().into_owned(), job.key.clone());
            return Err(Error::NothingToCorrect { kind, key, corrected: corrected.clone() }.into());
        }
        if !for_callers {
            group.note_due(run_at);
        }
        group.tell_job(id, &job.kind, &job.key, |job| Happened::Enqueued { job, run_at: instant(run_at) });
        return Ok(Stored::Answered(Box::new(fresh(id, job, (group.now, run_at), for_callers))));
    }
    match find(group, &job.kind, &job.key)? {
        Some(known) => meet(group, job, known, compared),
        // The row that was in the way has gone within one transaction: a trigger of the app's.
        None => Err(rusqlite::Error::QueryReturnedNoRows.into()),
    }
}

pub(crate) fn find(group: &Group<'_>, kind: &str, key: &str) -> rusqlite::Result<Option<Known>> {
    group.statement(sql::JOB_BY_KEY)?.query_row([kind, key], Known::read).optional()
}

fn fresh(id: i64, job: &NewJob, (now, run_at): (i64, i64), for_callers: bool) -> Answer {
    let row = Known {
        id,
        kind: job.kind.clone().into_owned(),
        payload: None,
        shape: job.shape,
        fingerprint: None,
        state: State::Waiting,
        for_callers,
        run_at,
        attempts: 0,
        reason: None,
        result: None,
        result_note: None,
        error_class: None,
        error_text: None,
        holder: None,
        claims: 0,
        is_suspect: false,
        deadline: None,
        ordering_key: job.ordering_key.clone(),
        idempotency: job.idempotency.clone(),
        corrects: None,
        created_at: now,
    };
    Answer { id, fresh: true, compared: true, row }
}

/// Whether both name a job that they correct, and not the same one.
fn other_correction(group: &Group<'_>, job: &NewJob, known: &Known) -> rusqlite::Result<bool> {
    let (Some(name), Some(stored)) = (&job.corrects, known.corrects) else { return Ok(false) };
    Ok(find(group, &name.kind, &name.key)?.is_none_or(|corrected| corrected.id != stored))
}

fn meet(group: &Group<'_>, job: &NewJob, mut known: Known, compared: &Compared) -> OpResult<Stored> {
    if known.run_at == 0 {
        // A plain INSERT that no runner has looked at yet.
        known.run_at = group.now;
    }
    let new = job.fingerprint.bytes();
    let reused = |row: &Known| Error::KeyReused {
        kind: job.kind.clone().into_owned(),
        key: job.key.clone(),
        existing: row.job_ref(),
    };
    if other_correction(group, job, &known)? {
        return Err(reused(&known).into());
    }
    let same =
        |row: Known, compared| Ok(Stored::Answered(Box::new(Answer { id: row.id, fresh: false, compared, row })));
    if known.fingerprint.as_deref() == Some(new) {
        return same(known, true);
    }
    let Some(payload) = &known.payload else {
        // Only a fingerprint of the same shape can tell.
        let can_tell = known.shape == job.shape && known.fingerprint.is_some();
        return if can_tell { Err(reused(&known).into()) } else { same(known, false) };
    };
    match compared.get(&known.id) {
        None => Ok(Stored::MustCompare(ToCompare {
            id: known.id,
            shape: known.shape,
            payload: payload.clone(),
            recompute: job.recompute,
        })),
        Some(Some(stored)) => {
            // What was upgraded before it was compared has the fingerprint of another shape.
            if known.shape == job.shape {
                group.statement(sql::SET_FINGERPRINT)?.execute(params![known.id, stored.bytes()])?;
            }
            if stored.bytes() == new { same(known, true) } else { Err(reused(&known).into()) }
        }
        Some(None) if known.shape == job.shape => Err(reused(&known).into()),
        Some(None) => same(known, false),
    }
}
