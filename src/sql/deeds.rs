//! The record of what people did.

pub(crate) const RECORD_DEED: &str = "
INSERT INTO main.birkez_event (at, who, verb, subject, why, detail) VALUES (?1, ?2, ?3, ?4, ?5, ?6)";

pub(crate) const RECORD_TOUCHED: &str = "
INSERT INTO main.birkez_event_job (event, job_id, state, class, text, attempts, payload)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

pub(crate) const CALL_OFF: &str = "
UPDATE main.birkez_job
SET state = 4, gate = NULL, reason = NULL, suspect = NULL, handed_at = NULL, finished_at = ?2
WHERE id = ?1 AND state < 2";

pub(crate) const ASK_TO_STOP: &str = "UPDATE main.birkez_lease SET cancel = 1 WHERE job_id = ?1";

/// Which jobs of a runner are asked to stop.
pub(crate) const STOPPING: &str = "SELECT job_id FROM main.birkez_lease WHERE runner = ?1 AND cancel = 1";

/// Whether a job that its caller runs is asked to stop.
pub(crate) const IS_ASKED: &str =
    "SELECT EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = ?1 AND token = ?2 AND cancel = 1)";

/// Runs again, with fresh attempts. Its history stays: the tokens of its attempts only rise. `?5`: under a new
/// idempotency key, which no attempt has had.
pub(crate) const REPLAY: &str = "
UPDATE main.birkez_job
SET state = 0, gate = ?2, run_at = ?3, attempts = 0, one_attempt = ?4, deadline = NULL, reason = NULL, suspect = NULL,
    result = NULL, result_note = NULL, finished_at = NULL, handed_at = NULL, holds_key = 1,
    idempotency = CASE WHEN ?5 THEN idempotency || '-' || claims ELSE idempotency END
WHERE id = ?1 AND state >= 3";

pub(crate) const FORGET_STEPS: &str = "DELETE FROM main.birkez_step WHERE job_id = ?1";

/// A payload is put right: only the one that was looked at, so that no other fix is undone. The fingerprint stays the one of
/// what the sender sent.
pub(crate) const FIX_PAYLOAD: &str = "
UPDATE main.birkez_job SET payload = ?3, fingerprint = coalesce(fingerprint, ?4)
WHERE id = ?1 AND CAST(payload AS TEXT) = ?2 AND state >= 3";

pub(crate) const HAS_PAYLOAD: &str = "SELECT 1 FROM main.birkez_job WHERE id = ?1 AND payload IS NOT NULL";

/// What a sender has sent, for a payload that is to be put right.
pub(crate) const SENT: &str = "SELECT id, kind, key, shape, payload FROM main.birkez_job WHERE id = ?1";

pub(crate) const PAYLOAD_BEFORE: &str = "SELECT payload FROM main.birkez_event_job WHERE event = ?1 AND job_id = ?2";

pub(crate) const DEEDS: &str = "
SELECT id, at, who, verb, subject, why, detail, (SELECT count(*) FROM main.birkez_event_job WHERE event = event.id)
FROM main.birkez_event AS event WHERE id < ?1 ORDER BY id DESC LIMIT ?2";

pub(crate) const DEEDS_OF_JOB: &str = "
SELECT event.id, event.at, event.who, event.verb, event.subject, event.why, event.detail,
       (SELECT count(*) FROM main.birkez_event_job WHERE event = event.id),
       touched.state, touched.class, touched.text, touched.attempts
FROM main.birkez_event_job AS touched JOIN main.birkez_event AS event ON event.id = touched.event
WHERE touched.job_id = ?1 ORDER BY event.id";
