//! Copies of the file, and what becomes of one that is put in its place.

/// When this copy was made, if it is one that has not been put in place yet.
pub(crate) const COPIED_AT: &str = "SELECT copied_at FROM main.birkez_version WHERE one = 1";

pub(crate) const GENERATION: &str = "SELECT generation FROM main.birkez_version WHERE one = 1";

pub(crate) const MARK_AS_COPY: &str = "UPDATE main.birkez_version SET copied_at = ?1 WHERE one = 1";

pub(crate) const IS_COPY: &str = "SELECT EXISTS (SELECT 1 FROM main.birkez_version WHERE copied_at IS NOT NULL)";

/// The last that a copy without a mark knows of.
pub(crate) const LAST_HEARD: &str = "
SELECT max(coalesce((SELECT max(heard_at) FROM main.birkez_runner), 0),
           coalesce((SELECT created_at FROM main.birkez_job ORDER BY id DESC LIMIT 1), 0))";

// ---- a copy comes to its place

/// What may have begun an effect outside that must not be begun again.
pub(crate) const NOTE_UNKNOWN_ATTEMPTS: &str = "
INSERT INTO main.birkez_attempt (job_id, token, attempt, class, text, charged, started_at, ended_at)
SELECT lease.job_id, lease.token, lease.attempt, ?1, ?2, job.attempts >= lease.attempt, lease.since, max(lease.since, ?3)
FROM main.birkez_lease AS lease CROSS JOIN main.birkez_job AS job ON job.id = lease.job_id
WHERE lease.on_crash = 1
ON CONFLICT (job_id, token) DO NOTHING";

/// What ran when the copy was made, as whoever takes back a job would leave it; what was asked to stop does not run again.
/// What a suspect was charged at its claim is given back: nobody knows of a crash.
pub(crate) const TAKE_BACK_ALL: &str = "
UPDATE main.birkez_job
SET claims = lease.token + 1, suspect = NULL, gate = NULL,
    state = CASE WHEN lease.cancel = 1 AND lease.on_crash <> 1 THEN 4 ELSE 1 END,
    finished_at = CASE WHEN lease.cancel = 1 AND lease.on_crash <> 1 THEN ?4 END,
    reason = CASE WHEN lease.on_crash = 1 THEN ?1 WHEN lease.cancel = 1 THEN NULL ELSE ?2 END,
    attempts = CASE lease.on_crash WHEN 1 THEN attempts ELSE min(attempts, max(lease.attempt - 1, 0)) END,
    error_class = CASE lease.on_crash WHEN 1 THEN ?1 ELSE error_class END,
    error_text = CASE lease.on_crash WHEN 1 THEN ?3 ELSE error_text END
FROM main.birkez_lease AS lease
WHERE birkez_job.id IN (SELECT job_id FROM main.birkez_lease) AND lease.job_id = birkez_job.id AND birkez_job.state = 0";

pub(crate) const RECORD_ALL_LEASED: &str = "
INSERT INTO main.birkez_event_job (event, job_id, state, class, text, attempts)
SELECT ?1, job.id, 5, job.error_class, job.error_text, job.attempts
FROM main.birkez_lease AS lease CROSS JOIN main.birkez_job AS job ON job.id = lease.job_id WHERE job.state = 0";

pub(crate) const DROP_ALL_LEASES: &str = "DELETE FROM main.birkez_lease";

/// Where a waiting job may stand, each as the index says that holds it.
pub(crate) const GATES: [&str; 5] = [
    "gate = 0",
    "gate = 1",
    "ordering_key IS NOT NULL AND for_callers = 0 AND (state < 2 OR (state = 3 AND holds_key = 1)) AND gate = 2",
    "gate = 3",
    "gate = 4",
];

pub(crate) fn record_waiting(gate: &str) -> String {
    format!(
        "INSERT INTO main.birkez_event_job (event, job_id, state, class, text, attempts)
         SELECT ?1, id, 0, error_class, error_text, attempts FROM main.birkez_job WHERE {gate}"
    )
}

/// A row that nobody has looked at yet gets its time of enqueueing: nobody will look at it as one that is new.
pub(crate) fn park_waiting(gate: &str) -> String {
    format!(
        "UPDATE main.birkez_job
         SET state = 1, gate = NULL, reason = ?1, suspect = NULL,
             created_at = CASE created_at WHEN 0 THEN ?2 ELSE created_at END
         WHERE {gate}"
    )
}

pub(crate) const STOPPING_KINDS: &str = "
SELECT job.kind FROM main.birkez_lease AS lease CROSS JOIN main.birkez_job AS job ON job.id = lease.job_id
WHERE lease.cancel = 1 AND lease.on_crash <> 1 AND job.state = 0";

pub(crate) const COUNT_UNKNOWN: &str = "SELECT count(*) FROM main.birkez_lease WHERE on_crash = 1";

pub(crate) const SET_DETAIL: &str = "UPDATE main.birkez_event SET detail = ?2 WHERE id = ?1";

pub(crate) const END_ALL_RUNNERS: &str = "
UPDATE main.birkez_runner SET ended_at = max(started_at, ?1), ending = 'gone' WHERE ended_at IS NULL";

pub(crate) const PAUSE_ALL_SCHEDULES: &str =
    "UPDATE main.birkez_schedule SET paused_at = ?1, paused_by = ?2 WHERE paused_at IS NULL";

/// They may have been carried out after the copy was made.
pub(crate) const CLOSE_REQUESTS: &str =
    "UPDATE main.birkez_request SET done_at = ?1, answer = ?2, try_at = NULL WHERE done_at IS NULL";

pub(crate) const NEXT_GENERATION: &str = "
UPDATE main.birkez_version
SET generation = generation + 1, copied_at = NULL, schedules = schedules + 1, holds = holds + 1 WHERE one = 1";

pub(crate) const NEWEST_RESTORE: &str =
    "SELECT detail FROM main.birkez_event WHERE verb = 'restore' ORDER BY id DESC LIMIT 1";

// ---- and is released

pub(crate) const RESTORED_SCHEDULES: &str =
    "SELECT name FROM main.birkez_schedule WHERE paused_at IS NOT NULL AND paused_by = ?1 ORDER BY name";
