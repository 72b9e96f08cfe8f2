//! The statements of schedules, in the order of a schedule's life.

/// A row that begins now, if there is none. Its number was never another's: what a removed schedule has made stays.
pub(crate) const INSERT_SCHEDULE: &str = "
INSERT INTO main.birkez_schedule (id, name, calendar, zone, born, mark, anchor)
SELECT 1 + max((SELECT coalesce(max(id), 0) FROM main.birkez_schedule),
               (SELECT coalesce(max(schedule), 0) FROM main.birkez_occurrence),
               (SELECT coalesce(max(schedule), 0) FROM main.birkez_missed),
               (SELECT coalesce(max(schedule), 0) FROM main.birkez_request)), ?1, ?2, ?3, ?4, ?4, ?5
WHERE true ON CONFLICT (name) DO NOTHING";

/// The newest definition wins at once, and whatever failed is tried again.
pub(crate) const SET_SCHEDULE: &str = "
UPDATE main.birkez_schedule
SET calendar = ?2, zone = ?3, catch_up = ?4, grace_ms = ?5, max_age_ms = ?6, overlap = ?7, kind = ?8, payload = ?9,
    key_template = ?10, mark = ?11, high = ?12, born = ?13, anchor = ?14, found_at = ?15, seen_at = ?16,
    failures = 0, error = NULL, error_at = NULL, try_at = NULL, acknowledged = NULL
WHERE name = ?1";

pub(crate) const SCHEDULE_REGISTERED: &str = "
UPDATE main.birkez_schedule
SET program = ?2, registered_by = ?3, orphaned_at = NULL, orphan_acknowledged = 0 WHERE name = ?1";

/// What an earlier process of the program registered and this one, the first alive since, does not.
pub(crate) const NOTE_ORPHANS: &str = "
UPDATE main.birkez_schedule SET orphaned_at = ?3
WHERE kind IS NULL AND program = ?1 AND registered_by <> ?2 AND orphaned_at IS NULL
  AND NOT EXISTS (SELECT 1 FROM main.birkez_runner WHERE id = birkez_schedule.registered_by AND ended_at IS NULL)";

pub(crate) const HAS_ORPHANS: &str = "
SELECT EXISTS (SELECT 1 FROM main.birkez_schedule
               WHERE kind IS NULL AND program = ?1 AND registered_by <> ?2 AND orphaned_at IS NULL
                 AND NOT EXISTS (SELECT 1 FROM main.birkez_runner
                                 WHERE id = birkez_schedule.registered_by AND ended_at IS NULL))";

/// In the order in which [`crate::schedule`] reads them.
macro_rules! schedules {
    ($which:literal) => {
        concat!(
            "
SELECT id, name, calendar, zone, born, mark, high, anchor, catch_up, grace_ms, max_age_ms, overlap, kind, payload, key_template,
       paused_at, paused_by, orphaned_at, orphan_acknowledged, last_run, failures, error, try_at, found_at, seen_at, behind_ms,
       acknowledged
FROM main.birkez_schedule ",
            $which
        )
    };
}

pub(crate) const SCHEDULES: &str = schedules!("ORDER BY name");

pub(crate) const SCHEDULE_BY_NAME: &str = schedules!("WHERE name = ?1");

pub(crate) const REMOVE_SCHEDULE: &str = "DELETE FROM main.birkez_schedule WHERE name = ?1";

pub(crate) const PAUSE_SCHEDULE: &str =
    "UPDATE main.birkez_schedule SET paused_at = ?2, paused_by = ?3 WHERE name = ?1 AND paused_at IS NULL";

pub(crate) const RESUME_SCHEDULE: &str =
    "UPDATE main.birkez_schedule SET paused_at = NULL, paused_by = NULL, mark = ?2, high = ?3 WHERE name = ?1";

/// Only if the marks are still where they were read, and nobody else has looked in the meantime.
pub(crate) const MOVE_MARK: &str = "
UPDATE main.birkez_schedule
SET mark = ?6, high = ?7, found_at = ?8, seen_at = ?9, last_run = coalesce(?10, last_run),
    failures = CASE ?11 WHEN 1 THEN 0 ELSE failures END, error = CASE ?11 WHEN 1 THEN NULL ELSE error END,
    error_at = CASE ?11 WHEN 1 THEN NULL ELSE error_at END, try_at = CASE ?11 WHEN 1 THEN NULL ELSE try_at END,
    acknowledged = CASE ?11 WHEN 1 THEN NULL ELSE acknowledged END
WHERE id = ?1 AND mark = ?2 AND high IS ?3 AND found_at IS ?4 AND seen_at IS ?5 AND paused_at IS NULL";

/// How long the clock has been behind, in sum. Of several processes that count the same hours none adds to another's.
pub(crate) const SET_BEHIND: &str = "
UPDATE main.birkez_schedule SET behind_ms = CASE ?2 WHEN 0 THEN 0 ELSE max(behind_ms, ?2) END WHERE id = ?1";

pub(crate) const MAKE_OCCURRENCE: &str = "
INSERT INTO main.birkez_occurrence (schedule, occurrence, due_at, made_at, jobs, cause) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (schedule, occurrence) DO NOTHING";

pub(crate) const HAS_OCCURRENCE: &str = "SELECT 1 FROM main.birkez_occurrence WHERE schedule = ?1 AND occurrence = ?2";

/// What stands in the file between two marks.
pub(crate) const MADE_BETWEEN: &str = "
SELECT occurrence FROM main.birkez_occurrence WHERE schedule = ?1 AND occurrence > ?2 AND occurrence <= ?3";

pub(crate) const LEFT_OUT_BETWEEN: &str = "
SELECT first, last, reason FROM main.birkez_missed WHERE schedule = ?1 AND last > ?2 AND first <= ?3";

pub(crate) const HAS_RECORD: &str = "
SELECT 1 FROM main.birkez_missed WHERE schedule = ?1 AND first = ?2 AND last = ?3 AND reason = ?4";

pub(crate) const LINK_JOB: &str = "
INSERT INTO main.birkez_occurrence_job (schedule, occurrence, job_id) VALUES (?1, ?2, ?3) ON CONFLICT DO NOTHING";

pub(crate) const NOTE_CONFLICTS: &str =
    "UPDATE main.birkez_occurrence SET conflicts = ?3, attention = 1 WHERE schedule = ?1 AND occurrence = ?2";

/// When a run was made, whether it has a job that is waiting, running or parked, and when the last of the others ended.
pub(crate) const LAST_RUN: &str = "
SELECT made.made_at, coalesce(max(job.state < 2), 0), max(job.finished_at)
FROM main.birkez_occurrence AS made
LEFT JOIN main.birkez_occurrence_job AS link ON link.schedule = made.schedule AND link.occurrence = made.occurrence
LEFT JOIN main.birkez_job AS job ON job.id = link.job_id
WHERE made.schedule = ?1 AND made.occurrence = ?2";

/// The newest occurrence with a job that is done: walked from the newest.
pub(crate) const LAST_SUCCESS: &str = "
SELECT made.occurrence, job.finished_at
FROM main.birkez_occurrence AS made
CROSS JOIN main.birkez_occurrence_job AS link ON link.schedule = made.schedule AND link.occurrence = made.occurrence
CROSS JOIN main.birkez_job AS job ON job.id = link.job_id
WHERE made.schedule = ?1 AND job.state = 2
ORDER BY made.due_at DESC, made.occurrence DESC LIMIT 1";

pub(crate) const RECORD_MISSED: &str = "
INSERT INTO main.birkez_missed (schedule, first, last, count, reason, at, attention) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)";

pub(crate) const MISSED: &str = "
SELECT gap.first, gap.last, gap.count, gap.reason, gap.at, gap.attention
FROM main.birkez_missed AS gap JOIN main.birkez_schedule AS schedule ON schedule.id = gap.schedule
WHERE schedule.name = ?1 ORDER BY gap.id DESC LIMIT ?2";

pub(crate) const NEEDS_ATTENTION: &str = "
SELECT EXISTS (SELECT 1 FROM main.birkez_missed WHERE schedule = ?1 AND attention = 1)
    OR EXISTS (SELECT 1 FROM main.birkez_occurrence WHERE schedule = ?1 AND attention = 1)
    OR EXISTS (SELECT 1 FROM main.birkez_request
               WHERE schedule = ?1 AND done_at IS NULL AND failures > 0 AND acknowledged = 0)";

pub(crate) const ACKNOWLEDGE_MISSED: &str =
    "UPDATE main.birkez_missed SET attention = 2 WHERE schedule = ?1 AND attention = 1";

pub(crate) const ACKNOWLEDGE_CONFLICTS: &str =
    "UPDATE main.birkez_occurrence SET attention = 0 WHERE schedule = ?1 AND attention = 1";

pub(crate) const ACKNOWLEDGE_REQUESTS: &str = "
UPDATE main.birkez_request SET acknowledged = 1
WHERE schedule = ?1 AND done_at IS NULL AND failures > 0 AND acknowledged = 0";

pub(crate) const ACKNOWLEDGE_SCHEDULE: &str = "
UPDATE main.birkez_schedule SET acknowledged = ?2, orphan_acknowledged = orphaned_at IS NOT NULL
WHERE id = ?1 AND (acknowledged IS NOT ?2 OR orphan_acknowledged <> (orphaned_at IS NOT NULL))";

pub(crate) const SCHEDULE_FAILED: &str = "
UPDATE main.birkez_schedule
SET failures = failures + 1, error = ?3, error_at = ?4, try_at = ?5, found_at = ?6, seen_at = ?7
WHERE id = ?1 AND mark = ?2";

pub(crate) const TRY_AT_ONCE: &str = "UPDATE main.birkez_schedule SET try_at = NULL WHERE id = ?1";

pub(crate) const SCHEDULES_CHANGED: &str = "UPDATE main.birkez_version SET schedules = schedules + 1";

pub(crate) const SCHEDULES_STATE: &str = "SELECT schedules FROM main.birkez_version";

pub(crate) const ASK: &str = "
INSERT INTO main.birkez_request (schedule, verb, first, last, asked_at)
SELECT id, ?2, ?3, ?4, ?5 FROM main.birkez_schedule WHERE name = ?1";

pub(crate) const ASKED: &str = "
SELECT id, verb, first, last, try_at, failures
FROM main.birkez_request WHERE schedule = ?1 AND done_at IS NULL ORDER BY id";

pub(crate) const ANSWER: &str = "
UPDATE main.birkez_request SET done_at = ?2, answer = ?3, try_at = NULL WHERE id = ?1 AND done_at IS NULL";

pub(crate) const REQUEST_FAILED: &str = "
UPDATE main.birkez_request SET failures = failures + 1, error = ?2, try_at = ?3 WHERE id = ?1 AND done_at IS NULL";

pub(crate) const RETRY_REQUESTS: &str = "
UPDATE main.birkez_request SET try_at = NULL WHERE schedule = ?1 AND done_at IS NULL AND try_at IS NOT NULL";

pub(crate) const REQUESTS: &str = "
SELECT asked.id, asked.verb, asked.first, asked.last, asked.asked_at, asked.done_at, asked.answer, asked.failures,
       asked.error, asked.try_at
FROM main.birkez_request AS asked JOIN main.birkez_schedule AS schedule ON schedule.id = asked.schedule
WHERE schedule.name = ?1 ORDER BY asked.id DESC LIMIT ?2";

pub(crate) const OCCURRENCES: &str = "
SELECT made.occurrence, made.due_at, made.made_at, made.jobs, made.conflicts, made.cause
FROM main.birkez_occurrence AS made JOIN main.birkez_schedule AS schedule ON schedule.id = made.schedule
WHERE schedule.name = ?1 ORDER BY made.due_at DESC, made.occurrence DESC LIMIT ?2";

pub(crate) const REQUEST_OF: &str = "
SELECT schedule.name FROM main.birkez_request AS asked JOIN main.birkez_schedule AS schedule ON schedule.id = asked.schedule
WHERE asked.id = ?1";
