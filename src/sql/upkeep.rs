//! The statements that keep the file small, and bring jobs of former names under the present one.

// ---- whose turn it is

pub(crate) const UPKEEP: &str = "SELECT at, place FROM main.birkez_upkeep WHERE what = ?1";

pub(crate) const TAKE_TURN: &str = "
INSERT INTO main.birkez_upkeep (what, at, place) VALUES (?1, ?2, ?3)
ON CONFLICT (what) DO UPDATE SET at = excluded.at, place = excluded.place";

/// Only while nobody else has taken it over.
pub(crate) const KEEP_TURN: &str = "UPDATE main.birkez_upkeep SET at = ?3, place = ?4 WHERE what = ?1 AND at = ?2";

/// When a process was heard of last, of those that began before a time.
pub(crate) const HEARD_BEFORE: &str =
    "SELECT max(heard_at) FROM main.birkez_runner WHERE started_at <= ?1 AND heard_at <= ?1";

// ---- finished jobs

/// What is there of each job that could go. Nothing is said of those that are not finished.
pub(crate) const FINISHED_FROM: &str = "
SELECT id, state, created_at, finished_at,
       CASE WHEN state >= 2 THEN payload IS NOT NULL
            OR EXISTS (SELECT 1 FROM main.birkez_event_job WHERE job_id = job.id AND payload IS NOT NULL) ELSE 0 END,
       CASE WHEN state >= 2 THEN (result IS NOT NULL AND result <> 'null')
            OR EXISTS (SELECT 1 FROM main.birkez_step WHERE job_id = job.id) ELSE 0 END,
       CASE WHEN state >= 2 THEN (state = 2 AND error_class IS NOT NULL)
            OR EXISTS (SELECT 1 FROM main.birkez_attempt WHERE job_id = job.id)
            OR EXISTS (SELECT 1 FROM main.birkez_progress WHERE job_id = job.id) ELSE 0 END
FROM main.birkez_job AS job WHERE id > ?1 ORDER BY id LIMIT 1000";

/// How many of a stretch of jobs are done, and where it begins: from the newest back.
pub(crate) const DONE_BEFORE: &str = "
SELECT id, state FROM main.birkez_job WHERE id < ?1 ORDER BY id DESC LIMIT 2000";

pub(crate) const DEAD_BEYOND: &str =
    "SELECT id FROM main.birkez_job WHERE state = 3 ORDER BY id DESC LIMIT 1 OFFSET ?1";

pub(crate) const CANCELLED_BEYOND: &str =
    "SELECT id FROM main.birkez_job WHERE state = 4 ORDER BY id DESC LIMIT 1 OFFSET ?1";

/// What a decision about a finished job rests on.
pub(crate) const FINISHED_JOB: &str = concat!(
    "
SELECT kind, state, finished_at, corrects,
       EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = job.id),
       CASE WHEN ordering_key IS NOT NULL AND for_callers = 0 AND state = 3 AND holds_key = 1
            THEN EXISTS (SELECT 1 FROM main.birkez_job AS behind
                         WHERE behind.ordering_key = job.ordering_key AND behind.id > job.id AND ",
    in_line!("behind"),
    ") ELSE 0 END
FROM main.birkez_job AS job WHERE id = ?1"
);

/// Its fingerprint stays: a repeat with other content is still told apart. An output of nothing says nothing and stays.
pub(crate) const RETIRE: &str = "
UPDATE main.birkez_job
SET payload = CASE WHEN ?2 THEN NULL ELSE payload END,
    result_note = CASE WHEN ?3 AND result <> 'null' THEN 'retired' ELSE result_note END,
    result = CASE WHEN ?3 AND result <> 'null' THEN NULL ELSE result END,
    error_class = CASE WHEN ?4 AND state = 2 THEN NULL ELSE error_class END,
    error_text = CASE WHEN ?4 AND state = 2 THEN NULL ELSE error_text END
WHERE id = ?1 AND state >= 2";

pub(crate) const DROP_KEPT_PAYLOADS: &str =
    "UPDATE main.birkez_event_job SET payload = NULL WHERE job_id = ?1 AND payload IS NOT NULL";

pub(crate) const DROP_STEPS: &str = "DELETE FROM main.birkez_step WHERE job_id = ?1";
pub(crate) const DROP_ATTEMPTS: &str = "DELETE FROM main.birkez_attempt WHERE job_id = ?1";
pub(crate) const DROP_PROGRESS: &str = "DELETE FROM main.birkez_progress WHERE job_id = ?1";
pub(crate) const REMOVE_JOB: &str = "DELETE FROM main.birkez_job WHERE id = ?1 AND state >= 2";

/// The newest success of each schedule, which tells that it works, and its last run, which tells whether another may be made.
pub(crate) const LAST_SUCCESSES: &str = "
SELECT (SELECT job.id
        FROM main.birkez_occurrence AS made
        CROSS JOIN main.birkez_occurrence_job AS link
              ON link.schedule = made.schedule AND link.occurrence = made.occurrence
        CROSS JOIN main.birkez_job AS job ON job.id = link.job_id
        WHERE made.schedule = schedule.id AND job.state = 2
        ORDER BY made.due_at DESC, made.occurrence DESC LIMIT 1)
FROM main.birkez_schedule AS schedule
UNION ALL
SELECT link.job_id FROM main.birkez_schedule AS schedule
JOIN main.birkez_occurrence_job AS link ON link.schedule = schedule.id AND link.occurrence = schedule.last_run";

// ---- records: each is found by reading, from a number on, and removed by its number

pub(crate) const OLD_DEEDS: &str = "
SELECT id, (SELECT count(*) FROM main.birkez_event_job WHERE event = deed.id)
FROM main.birkez_event AS deed WHERE id > ?1 AND at <= ?2 ORDER BY id LIMIT 200";

pub(crate) const DEEDS_BEYOND: &str = "SELECT id FROM main.birkez_event ORDER BY id DESC LIMIT 1 OFFSET ?1";

pub(crate) const DEEDS_UP_TO: &str = "
SELECT id, (SELECT count(*) FROM main.birkez_event_job WHERE event = deed.id)
FROM main.birkez_event AS deed WHERE id > ?1 AND id <= ?2 ORDER BY id LIMIT 200";

pub(crate) const DROP_TOUCHED: &str = "
DELETE FROM main.birkez_event_job
WHERE event = ?1 AND job_id IN (SELECT job_id FROM main.birkez_event_job WHERE event = ?1 LIMIT 200)";

pub(crate) const DROP_DEED: &str = "
DELETE FROM main.birkez_event
WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM main.birkez_event_job WHERE event = ?1)";

/// One above the mark is what keeps its occurrences from being dealt with again.
pub(crate) const OLD_MISSED: &str = "
SELECT id FROM main.birkez_missed AS gap
WHERE id > ?1 AND at <= ?2 AND attention <> 1
  AND NOT EXISTS (SELECT 1 FROM main.birkez_schedule WHERE id = gap.schedule AND mark < gap.last)
ORDER BY id LIMIT 200";

pub(crate) const DROP_MISSED: &str = "
DELETE FROM main.birkez_missed
WHERE id = ?1 AND at <= ?2 AND attention <> 1
  AND NOT EXISTS (SELECT 1 FROM main.birkez_schedule WHERE id = birkez_missed.schedule AND mark < birkez_missed.last)";

pub(crate) const OLD_REQUESTS: &str = "
SELECT id FROM main.birkez_request WHERE id > ?1 AND done_at <= ?2 ORDER BY id LIMIT 200";

pub(crate) const DROP_REQUEST: &str = "DELETE FROM main.birkez_request WHERE id = ?1 AND done_at <= ?2";

/// What was in somebody's hands until then; one without an end has ended with its process.
pub(crate) const OLD_PRESENCE: &str = "
SELECT id FROM main.birkez_presence AS present
WHERE id > ?1 AND (until <= ?2 OR NOT EXISTS (SELECT 1 FROM main.birkez_runner
                                              WHERE id = present.runner AND (ended_at IS NULL OR ended_at > ?2)))
ORDER BY id LIMIT 200";

pub(crate) const DROP_PRESENCE: &str = "
DELETE FROM main.birkez_presence
WHERE id = ?1 AND (until <= ?2 OR NOT EXISTS (SELECT 1 FROM main.birkez_runner
                                              WHERE id = birkez_presence.runner
                                                AND (ended_at IS NULL OR ended_at > ?2)))";

pub(crate) const OLD_RUNNERS: &str = "
SELECT id FROM main.birkez_runner AS old
WHERE id > ?1 AND ended_at <= ?2 AND NOT EXISTS (SELECT 1 FROM main.birkez_lease WHERE runner = old.id)
ORDER BY id LIMIT 200";

pub(crate) const DROP_RUNNER: &str = "
DELETE FROM main.birkez_runner
WHERE id = ?1 AND ended_at <= ?2 AND NOT EXISTS (SELECT 1 FROM main.birkez_lease WHERE runner = ?1)";

/// By its slot; the numbers of one slot go together.
pub(crate) const OLD_SLOTS: &str = "
SELECT DISTINCT slot FROM main.birkez_tally WHERE slot > ?1 AND slot <= ?2 ORDER BY slot LIMIT 200";

pub(crate) const DROP_SLOT: &str = "DELETE FROM main.birkez_tally WHERE slot = ?1 AND slot <= ?2";

/// Which jobs an occurrence had, from one on, and whether the job is gone.
pub(crate) const LINKS_FROM: &str = "
SELECT schedule, occurrence, job_id, NOT EXISTS (SELECT 1 FROM main.birkez_job WHERE id = link.job_id)
FROM main.birkez_occurrence_job AS link
WHERE (schedule, occurrence, job_id) > (?1, ?2, ?3)
ORDER BY schedule, occurrence, job_id LIMIT 1000";

/// Numbers are never given twice: a job that is gone stays so.
pub(crate) const DROP_LINK: &str = "
DELETE FROM main.birkez_occurrence_job WHERE schedule = ?1 AND occurrence = ?2 AND job_id = ?3";

// ---- names

/// Former names, as the programs that know the kinds have said.
pub(crate) const FORMER_NAMES: &str =
    "SELECT kind, goes_by FROM main.birkez_kind WHERE goes_by IS NOT NULL AND goes_by <> kind";

pub(crate) const JOBS_NAMED: &str = "
SELECT key, id FROM main.birkez_job WHERE kind = ?1 AND key > ?2 ORDER BY key LIMIT 500";

pub(crate) const ANY_NAMED: &str = "SELECT EXISTS (SELECT 1 FROM main.birkez_job WHERE kind = ?1)";

/// What is held back under a name stays under it, or it would be let go.
pub(crate) const IS_HELD: &str = "
SELECT EXISTS (SELECT 1 FROM main.birkez_pause WHERE scope = 'kind' AND name = ?1)
    OR EXISTS (SELECT 1 FROM main.birkez_limit WHERE scope = 'kind' AND name = ?1)";

pub(crate) const TWIN: &str = "
SELECT id, kind, state, EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = job.id),
       attempts > 0 OR claims > 0 OR suspect IS NOT NULL, ordering_key, for_callers, shape, fingerprint
FROM main.birkez_job AS job WHERE kind = ?1 AND key = ?2";

pub(crate) const RENAME: &str = "
UPDATE main.birkez_job SET kind = ?2
WHERE id = ?1 AND NOT EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = ?1)";

/// Not what is done, and not what runs.
pub(crate) const CLOSE_TWIN: &str = "
UPDATE main.birkez_job
SET state = 4, gate = NULL, reason = NULL, suspect = NULL, error_class = ?2, error_text = ?3, finished_at = ?4
WHERE id = ?1 AND (state < 2 OR state = 3) AND NOT EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = ?1)";

// ---- space

/// Whether nobody but birkez has a table in the file.
pub(crate) const IS_OWN_FILE: &str = "
SELECT NOT EXISTS (SELECT 1 FROM main.sqlite_schema
                   WHERE type = 'table' AND name NOT LIKE 'birkez\\_%' ESCAPE '\\' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\')";
