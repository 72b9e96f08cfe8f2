//! What explanations ask: everything by a number or a name, so that no history makes them slow.

/// Who runs a job, for people.
pub(crate) const HELD_IN: &str = "
SELECT lease.attempt, lease.since, runner.host, runner.pid, runner.program, runner.ended_at,
       runner.uuid, runner.has_lock, runner.boot, runner.heard_at, runner.lease_ms, lease.on_crash
FROM main.birkez_lease AS lease LEFT JOIN main.birkez_runner AS runner ON runner.id = lease.runner
WHERE lease.job_id = ?1";

/// What people did to a job last.
pub(crate) const LAST_DEED_OF: &str = "
SELECT event.verb, event.who, event.at, event.why, event.detail
FROM main.birkez_event_job AS touched CROSS JOIN main.birkez_event AS event ON event.id = touched.event
WHERE touched.job_id = ?1 ORDER BY touched.event DESC LIMIT 1";

pub(crate) const HAND_TO_SUPPORT: &str = "
UPDATE main.birkez_job SET handed_at = ?2 WHERE id = ?1 AND handed_at IS NULL AND (state = 1 OR state = 3)";

/// What stands in the file of one occurrence.
pub(crate) const OCCURRENCE: &str = "
SELECT occurrence, due_at, made_at, cause, conflicts, jobs FROM main.birkez_occurrence WHERE schedule = ?1 AND occurrence = ?2";

/// What was made of a stretch of time, in order.
pub(crate) const OCCURRENCES_DUE: &str = "
SELECT occurrence, due_at, made_at, cause, conflicts, jobs FROM main.birkez_occurrence
WHERE schedule = ?1 AND due_at >= ?2 AND due_at < ?3 ORDER BY due_at, occurrence LIMIT 1000";

pub(crate) const JOBS_OF_OCCURRENCE: &str = "
SELECT job.id, job.state, EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = job.id)
FROM main.birkez_occurrence_job AS link CROSS JOIN main.birkez_job AS job ON job.id = link.job_id
WHERE link.schedule = ?1 AND link.occurrence = ?2 ORDER BY job.id";

/// The record that an occurrence is in, the newest first.
pub(crate) const MISSED_WITH: &str = "
SELECT first, last, count, reason, at FROM main.birkez_missed
WHERE schedule = ?1 AND last >= ?2 AND first <= ?2 ORDER BY id DESC LIMIT 1";

/// Jobs of a run that are waiting, running or parked.
pub(crate) const UNFINISHED_OF: &str = "
SELECT job.id, job.state, EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = job.id)
FROM main.birkez_occurrence_job AS link CROSS JOIN main.birkez_job AS job ON job.id = link.job_id
WHERE link.schedule = ?1 AND link.occurrence = ?2 AND job.state < 2 ORDER BY job.id LIMIT 1";

/// Who did something to what is called so, last before a time: walked from the newest deed.
pub(crate) const LAST_DEED: &str = "
SELECT verb, who, at, why FROM main.birkez_event
WHERE verb = ?1 AND subject = ?2 AND at <= ?3 ORDER BY id DESC LIMIT 1";

pub(crate) const MADE_BEFORE: &str = "
SELECT occurrence FROM main.birkez_occurrence
WHERE schedule = ?1 AND occurrence < ?2 AND cause <> 'marked_done' ORDER BY occurrence DESC LIMIT 1";

pub(crate) const MADE_AFTER: &str = "
SELECT occurrence FROM main.birkez_occurrence
WHERE schedule = ?1 AND occurrence > ?2 AND cause <> 'marked_done' ORDER BY occurrence LIMIT 1";

pub(crate) const OPEN_REQUESTS: &str = "
SELECT id, verb, first, last, asked_at, error FROM main.birkez_request
WHERE schedule = ?1 AND done_at IS NULL ORDER BY id";

/// Since when this file has been worked on.
pub(crate) const FIRST_RUNNER: &str = "SELECT started_at FROM main.birkez_runner ORDER BY id LIMIT 1";
