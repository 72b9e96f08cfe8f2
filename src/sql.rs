//! Every statement that birkez runs, in the order of a job's life. Values are always bound, never pasted.

mod copies;
mod deeds;
mod explain;
mod holds;
mod health;
mod notices;
mod numbers;
mod schedules;
mod watching;

pub(crate) use self::copies::*;
pub(crate) use self::deeds::*;
pub(crate) use self::explain::*;
pub(crate) use self::health::*;
pub(crate) use self::holds::*;
pub(crate) use self::notices::*;
pub(crate) use self::numbers::*;
pub(crate) use self::schedules::*;
pub(crate) use self::watching::*;

/// Which jobs are in the line of an ordering key: the condition of `birkez_job_line`, word for word, or SQLite would walk
/// all jobs.
macro_rules! in_line {
    ($job:literal) => {
        concat!(
            $job,
            ".for_callers = 0 AND (",
            $job,
            ".state < 2 OR (",
            $job,
            ".state = 3 AND ",
            $job,
            ".holds_key = 1))"
        )
    };
}

// After the condition, which it names too.
mod upkeep;
pub(crate) use self::upkeep::*;

/// Whether this program may write, asked of a file whose version is not known yet.
pub(crate) const VERSION: &str = "SELECT version, oldest_writer FROM main.birkez_version WHERE one = 1";

// ---- enqueue

/// `gate` is bound, since a job that is due at once needs no look before it can be claimed; behind others in its line it
/// is 2. What is corrected stays NULL if it is not there.
pub(crate) const INSERT_JOB: &str = concat!(
    "
INSERT INTO main.birkez_job (kind, key, payload, shape, fingerprint, gate, run_at, priority, ordering_key, version, created_at,
                             for_callers, idempotency, holds_key, label, origin, corrects)
VALUES (?1, ?2, ?3, ?4, ?5,
        CASE WHEN ?9 IS NOT NULL AND ?12 = 0
                  AND EXISTS (SELECT 1 FROM main.birkez_job AS ahead WHERE ahead.ordering_key = ?9 AND ",
    in_line!("ahead"),
    ") THEN 2 ELSE ?6 END,
        ?7, ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16,
        CASE WHEN ?17 IS NOT NULL THEN (SELECT id FROM main.birkez_job WHERE kind = ?17 AND key = ?18) END)
ON CONFLICT (kind, key) DO NOTHING"
);

/// Takes back an INSERT of this transaction's.
pub(crate) const UNDO_INSERT: &str = "DELETE FROM main.birkez_job WHERE id = ?1 AND corrects IS NULL";

/// Whether a transaction that stored a job has committed.
pub(crate) const IS_THERE: &str = "SELECT EXISTS (SELECT 1 FROM main.birkez_job WHERE id = ?1)";

const KNOWN_JOB_COLUMNS: &str = "
SELECT job.id, job.kind, job.payload, job.shape, job.fingerprint, job.state, job.for_callers, job.run_at, job.attempts,
       job.reason, job.result, job.result_note, job.error_class, job.error_text, lease.runner, job.claims, job.suspect,
       job.deadline, job.ordering_key, job.idempotency, job.corrects, job.created_at
FROM main.birkez_job AS job LEFT JOIN main.birkez_lease AS lease ON lease.job_id = job.id
WHERE job.kind = ?1 AND job.key = ?2";

/// The job that has a key.
pub(crate) const JOB_BY_KEY: &str = KNOWN_JOB_COLUMNS;

/// A row of another language's script has no fingerprint until it is first compared.
pub(crate) const SET_FINGERPRINT: &str =
    "UPDATE main.birkez_job SET fingerprint = ?2 WHERE id = ?1 AND fingerprint IS NULL";

// ---- let in what has come due

/// Also the first look at a plain INSERT: what it left out is filled in, and whatever has others in front of it in its line
/// waits behind them. At most 1,000 at a time, so that a flood of due jobs does not hold the writer lock;
/// [`crate::claim::let_in`] knows the number too. It is no parameter: SQLite looks at a bound LIMIT while it plans, and
/// prepares the statement anew each time that it is bound.
pub(crate) const LET_IN: &str = concat!(
    "
UPDATE main.birkez_job
SET gate = CASE WHEN ordering_key IS NOT NULL
                     AND EXISTS (SELECT 1 FROM main.birkez_job AS ahead
                                 WHERE ahead.ordering_key = birkez_job.ordering_key AND ahead.id < birkez_job.id AND ",
    in_line!("ahead"),
    ") THEN 2
                WHEN suspect IS NOT NULL THEN 3 ELSE 1 END,
    run_at = CASE run_at WHEN 0 THEN ?1 ELSE run_at END,
    created_at = CASE created_at WHEN 0 THEN ?1 ELSE created_at END
WHERE id IN (SELECT id FROM main.birkez_job WHERE gate = 0 AND run_at <= ?1 ORDER BY run_at LIMIT 1000)"
);

pub(crate) const NEXT_DUE: &str = "SELECT run_at FROM main.birkez_job WHERE gate = 0 ORDER BY run_at LIMIT 1";

// ---- ordering keys

/// The first in the line of an ordering key.
pub(crate) const HEAD_OF_LINE: &str = concat!(
    "SELECT id, gate, run_at, suspect IS NOT NULL FROM main.birkez_job WHERE ordering_key = ?1 AND ",
    in_line!("birkez_job"),
    " ORDER BY id LIMIT 1"
);

/// Whether a job of an ordering key runs. From the leases, which are few.
pub(crate) const LINE_RUNS: &str = "
SELECT 1 FROM main.birkez_lease AS lease CROSS JOIN main.birkez_job AS job ON job.id = lease.job_id
WHERE job.ordering_key = ?1 AND job.for_callers = 0";

/// Whether a newer version of an ordering key's state has been completed.
pub(crate) const IS_SUPERSEDED: &str = "SELECT 1 FROM main.birkez_order WHERE ordering_key = ?1 AND version > ?2";

pub(crate) const NOTE_VERSION: &str = "
INSERT INTO main.birkez_order (ordering_key, version) VALUES (?1, ?2)
ON CONFLICT (ordering_key) DO UPDATE SET version = max(version, excluded.version)";

/// Those of a line that are older than what is done, wherever they stand in it.
pub(crate) const SUPERSEDED: &str = concat!(
    "
SELECT job.id, job.kind, job.version FROM main.birkez_job AS job
WHERE job.ordering_key = ?1 AND ",
    in_line!("job"),
    " AND job.state = 0 AND job.version < (SELECT version FROM main.birkez_order WHERE ordering_key = ?1)
  AND NOT EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = job.id)
ORDER BY job.id LIMIT 500"
);

pub(crate) const SUPERSEDE: &str = "
UPDATE main.birkez_job
SET state = 4, gate = NULL, suspect = NULL, error_class = ?2, error_text = ?3, finished_at = ?4
WHERE id = ?1 AND state = 0 AND NOT EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = ?1)";

/// The heads that hold others back, one a line: from line to line by the index, whatever their length.
pub(crate) fn held_lines() -> String {
    let in_line = in_line!("birkez_job");
    format!(
        "WITH RECURSIVE line (ordering_key) AS (
             SELECT min(ordering_key) FROM main.birkez_job WHERE ordering_key IS NOT NULL AND {in_line}
             UNION ALL
             SELECT (SELECT min(ordering_key) FROM main.birkez_job
                     WHERE ordering_key > line.ordering_key AND {in_line})
             FROM line WHERE line.ordering_key IS NOT NULL),
         head (ordering_key, id) AS (
             SELECT ordering_key, (SELECT id FROM main.birkez_job
                                   WHERE ordering_key = line.ordering_key AND {in_line} ORDER BY id LIMIT 1)
             FROM line WHERE ordering_key IS NOT NULL)
         {JOB_COLUMNS}
         JOIN head ON head.id = job.id
         WHERE (job.state <> 0 OR (lease.job_id IS NULL AND job.run_at > ?1))
           AND EXISTS (SELECT 1 FROM main.birkez_job
                       WHERE ordering_key = head.ordering_key AND id > head.id AND {in_line})
         ORDER BY job.id"
    )
}

pub(crate) const SET_GATE: &str = "UPDATE main.birkez_job SET gate = ?2 WHERE id = ?1";

// ---- claim

const CANDIDATE: &str = "
SELECT id, kind, key, payload, shape, priority, run_at, attempts, claims, deadline, gate, ordering_key, idempotency,
       version, created_at, one_attempt
FROM main.birkez_job
WHERE gate = {gate} AND kind = ?{kind} AND NOT EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = birkez_job.id)";

/// Claimable jobs of `kinds` kinds (parameters 1 to `kinds`) in claiming order: a merge of one index range a kind, read
/// only as far as it is stepped. Jobs that run already are passed over; there are never more of those than leases.
pub(crate) fn candidates(kinds: usize, suspects: bool) -> String {
    let gate = if suspects { "3" } else { "1" };
    let branches: Vec<_> =
        (1..=kinds).map(|n| CANDIDATE.replace("{gate}", gate).replace("{kind}", &n.to_string())).collect();
    format!("{} ORDER BY priority DESC, run_at, id", branches.join(" UNION ALL "))
}

/// The next priority below `?2` that has a claimable job of the kind.
pub(crate) const PRIORITY_BELOW: &str = "
SELECT priority FROM main.birkez_job WHERE gate = 1 AND kind = ?1 AND priority < ?2 ORDER BY priority DESC LIMIT 1";

/// The claimable jobs of a kind at a priority, oldest first.
pub(crate) const CANDIDATES_AT: &str = "
SELECT id, kind, key, payload, shape, priority, run_at, attempts, claims, deadline, gate, ordering_key, idempotency,
       version, created_at, one_attempt
FROM main.birkez_job
WHERE gate = 1 AND kind = ?1 AND priority = ?2
  AND NOT EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = birkez_job.id)
ORDER BY run_at, id";

/// The claim. The primary key keeps a job from being claimed twice; a lease that is there is taken over only when its
/// runner has ended or was never there, and with a higher token.
///
/// No RETURNING: SQLite buffers its rows in a b-tree made for each statement, a quarter of all instructions of a drain.
pub(crate) const CLAIM: &str = "
INSERT INTO main.birkez_lease (job_id, runner, token, attempt, since, on_crash)
VALUES (?1, ?2, ?3, ?4, ?5, ?6)
ON CONFLICT (job_id) DO UPDATE
SET runner = excluded.runner, token = excluded.token, attempt = excluded.attempt, since = excluded.since,
    on_crash = excluded.on_crash
WHERE token < excluded.token
  AND NOT EXISTS (SELECT 1 FROM main.birkez_runner WHERE id = birkez_lease.runner AND ended_at IS NULL)";

/// A suspect is charged in its claim's commit, so that a crash finds it charged.
pub(crate) const CHARGE: &str = "UPDATE main.birkez_job SET attempts = ?2 WHERE id = ?1";

/// Once it is claimed, the type that runs it counts.
pub(crate) const SET_HOLDS_KEY: &str = "UPDATE main.birkez_job SET holds_key = ?2 WHERE id = ?1 AND holds_key <> ?2";

/// For a row that another program stored.
pub(crate) const SET_IDEMPOTENCY: &str =
    "UPDATE main.birkez_job SET idempotency = ?2 WHERE id = ?1 AND idempotency IS NULL";

// ---- in the middle of an attempt

/// What a step has stored, and whether the attempt still holds its lease.
pub(crate) const STEP: &str = "
SELECT (SELECT output FROM main.birkez_step WHERE job_id = ?1 AND name = ?4),
       EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = ?1 AND runner = ?2 AND token = ?3)";

pub(crate) const STORE_STEP: &str = "
INSERT INTO main.birkez_step (job_id, name, output, at)
SELECT ?1, ?4, ?5, ?6 WHERE EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = ?1 AND runner = ?2 AND token = ?3)
ON CONFLICT (job_id, name) DO UPDATE SET output = excluded.output, at = excluded.at";

pub(crate) const NOTE_PROGRESS: &str = "
INSERT INTO main.birkez_progress (job_id, done, total, note, at)
SELECT ?1, ?4, ?5, ?6, ?7 WHERE EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = ?1 AND runner = ?2 AND token = ?3)
ON CONFLICT (job_id) DO UPDATE SET done = excluded.done, total = excluded.total, note = excluded.note, at = excluded.at";

// ---- settle

pub(crate) const HOLDS_LEASE: &str = "SELECT 1 FROM main.birkez_lease WHERE job_id = ?1 AND runner = ?2 AND token = ?3";

/// Whether a running job has been asked to stop.
pub(crate) const IS_STOPPING: &str =
    "SELECT 1 FROM main.birkez_lease WHERE job_id = ?1 AND runner = ?2 AND token = ?3 AND cancel = 1";

/// The fence: no row, no settling.
pub(crate) const END_LEASE: &str = "DELETE FROM main.birkez_lease WHERE job_id = ?1 AND runner = ?2 AND token = ?3";

/// Whether a settle that found no lease has been applied before (its COMMIT was reported as failed).
pub(crate) const WAS_SETTLED: &str = "
SELECT 1 FROM main.birkez_job
WHERE id = ?1 AND claims = ?2 AND NOT EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = ?1)";

pub(crate) const SETTLE_DONE: &str = "
UPDATE main.birkez_job
SET state = 2, gate = NULL, claims = ?2, attempts = ?3, result = ?4, result_note = ?5, suspect = NULL, finished_at = ?6
WHERE id = ?1";

/// Every other ending. A gate of NULL asks for the one the job had.
pub(crate) const SETTLE: &str = "
UPDATE main.birkez_job
SET state = ?2, gate = ?3, run_at = ?4, claims = ?5, attempts = ?6, deadline = ?7, reason = ?8,
    error_class = coalesce(?9, error_class), error_text = coalesce(?10, error_text), finished_at = ?11,
    suspect = CASE WHEN ?12 THEN suspect END
WHERE id = ?1";

pub(crate) const RECORD_ATTEMPT: &str = "
INSERT INTO main.birkez_attempt (job_id, token, attempt, class, text, charged, started_at, ended_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8) ON CONFLICT (job_id, token) DO NOTHING";

pub(crate) const COUNT: &str = "
INSERT INTO main.birkez_count (kind, state, n) VALUES (?1, ?2, ?3)
ON CONFLICT (kind, state) DO UPDATE SET n = n + excluded.n";

pub(crate) const RESUME: &str = "
UPDATE main.birkez_job SET state = 0, gate = ?3, reason = NULL, run_at = ?2, deadline = NULL, handed_at = NULL,
    one_attempt = 0
WHERE id = ?1 AND state = 1";

/// It may be the first look at a plain INSERT.
pub(crate) const RESCHEDULE: &str = "
UPDATE main.birkez_job
SET run_at = ?2, gate = ?3, created_at = CASE created_at WHEN 0 THEN ?4 ELSE created_at END
WHERE id = ?1 AND state = 0";

/// Its fingerprint stays: a repeat with other content is still told apart.
pub(crate) const DISCARD: &str =
    "UPDATE main.birkez_job SET state = 4, payload = NULL, finished_at = ?2 WHERE id = ?1 AND state = 3";

/// What a person has decided of a parked job. `claims` stays: its token is out with nobody.
pub(crate) const RESOLVE: &str = "
UPDATE main.birkez_job
SET state = ?2, gate = ?3, run_at = ?4, reason = NULL, attempts = CASE ?2 WHEN 0 THEN 0 ELSE attempts END, deadline = NULL,
    result = ?5, result_note = NULL, suspect = NULL, finished_at = ?6, handed_at = NULL, one_attempt = 0
WHERE id = ?1 AND state = 1";

/// A dead job leaves its line.
pub(crate) const PASS_OVER: &str =
    "UPDATE main.birkez_job SET holds_key = 0 WHERE id = ?1 AND state = 3 AND holds_key = 1";

// ---- owners

pub(crate) const REGISTER_RUNNER: &str = "
INSERT INTO main.birkez_runner (uuid, has_lock, boot, host, pid, program, lease_ms, started_at, heard_at)
VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?8)";

/// Nobody beats in a file that only newer programs may write to.
pub(crate) const BEAT: &str = "
UPDATE main.birkez_runner SET beat = beat + 1, heard_at = ?2
WHERE id = ?1 AND ended_at IS NULL AND EXISTS (SELECT 1 FROM main.birkez_version WHERE one = 1 AND oldest_writer <= ?3)";

/// Whoever is found gone was there until it was last heard of.
pub(crate) const END_RUNNER: &str = "
UPDATE main.birkez_runner SET ended_at = ?2, heard_at = CASE ?3 WHEN 'gone' THEN heard_at ELSE ?2 END, ending = ?3
WHERE id = ?1 AND ended_at IS NULL";

/// Owners other than `?1` that hold leases; one whose row is missing or ended has no uuid here.
pub(crate) const FOREIGN_HOLDERS: &str = "
SELECT held.runner, live.uuid, live.has_lock, live.boot, live.beat, live.lease_ms
FROM (SELECT DISTINCT runner FROM main.birkez_lease WHERE runner <> ?1) AS held
LEFT JOIN main.birkez_runner AS live ON live.id = held.runner AND live.ended_at IS NULL";

/// Rows of owners that are live by their row, leases or none.
pub(crate) const LIVE_RUNNERS: &str = "
SELECT id, uuid, has_lock, boot, beat, lease_ms FROM main.birkez_runner WHERE ended_at IS NULL AND id <> ?1";

pub(crate) const RUNNER_BEAT: &str = "SELECT beat FROM main.birkez_runner WHERE id = ?1 AND ended_at IS NULL";

pub(crate) const LEASES_OF: &str = "
SELECT lease.job_id, lease.token, lease.attempt, lease.since, lease.on_crash, job.kind, job.attempts, job.for_callers,
       job.ordering_key, lease.cancel
FROM main.birkez_lease AS lease JOIN main.birkez_job AS job ON job.id = lease.job_id
WHERE lease.runner = ?1";

pub(crate) const DROP_LEASES_OF: &str = "DELETE FROM main.birkez_lease WHERE runner = ?1";

/// `claims` goes above the token that was out, so that whoever held it can tell this from its own settling.
pub(crate) const TAKE_BACK: &str = "
UPDATE main.birkez_job
SET state = ?2, gate = ?3, claims = ?4, suspect = ?5, reason = ?6,
    error_class = coalesce(?7, error_class), error_text = coalesce(?8, error_text), finished_at = ?9
WHERE id = ?1";

// ---- look

/// One term a gate: a partial index serves only a literal.
pub(crate) const ANYTHING_CLAIMABLE: &str = "
SELECT EXISTS (SELECT 1 FROM main.birkez_job
               WHERE gate = 1 AND kind = ?1
                 AND NOT EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = birkez_job.id))
    OR EXISTS (SELECT 1 FROM main.birkez_job
               WHERE gate = 3 AND kind = ?1
                 AND NOT EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = birkez_job.id))";

const JOB_COLUMNS: &str = concat!(
    "
SELECT job.id, job.kind, job.key, job.state, lease.job_id IS NOT NULL, job.run_at, job.priority, job.attempts,
       job.reason, job.error_class, job.error_text, job.created_at, job.finished_at, lease.since, job.ordering_key,
       job.version, job.suspect, job.for_callers, job.idempotency, job.corrects, corrected.state,
       EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = job.corrects), progress.done, progress.total, progress.note,
       progress.at,
       CASE WHEN job.gate = 2
            THEN (SELECT CASE ahead.id
                         WHEN job.id THEN (SELECT held.job_id FROM main.birkez_lease AS held
                                           CROSS JOIN main.birkez_job AS other ON other.id = held.job_id
                                           WHERE other.ordering_key = job.ordering_key AND other.for_callers = 0)
                         ELSE ahead.id END
                  FROM main.birkez_job AS ahead WHERE ahead.ordering_key = job.ordering_key AND ",
    in_line!("ahead"),
    " ORDER BY ahead.id LIMIT 1) END,
       job.label, job.origin, job.handed_at, lease.cancel
FROM main.birkez_job AS job
LEFT JOIN main.birkez_lease AS lease ON lease.job_id = job.id
LEFT JOIN main.birkez_job AS corrected ON corrected.id = job.corrects
LEFT JOIN main.birkez_progress AS progress ON progress.job_id = job.id"
);

/// A page of a list, newest first; the last two of `parameters` are where it begins and how long it is.
pub(crate) fn list_jobs(condition: &str, parameters: usize) -> String {
    let and = if condition.is_empty() { "" } else { " AND " };
    let (below, limit) = (parameters - 1, parameters);
    format!("{JOB_COLUMNS} WHERE {condition}{and}job.id < ?{below} ORDER BY job.id DESC LIMIT ?{limit}")
}

/// The queue of a job's kind, in a condition about `job`.
pub(crate) const QUEUE_OF_JOB: &str = "coalesce((SELECT queue FROM main.birkez_kind WHERE kind = job.kind), 'default')";

/// The numbers of the jobs that are meant, lowest first.
pub(crate) fn select_jobs(condition: &str) -> String {
    let condition = if condition.is_empty() { "true" } else { condition };
    format!(
        "SELECT job.id FROM main.birkez_job AS job LEFT JOIN main.birkez_lease AS lease ON lease.job_id = job.id
         WHERE {condition} ORDER BY job.id"
    )
}

/// One job, if it is still meant; the last of `parameters` is its number.
pub(crate) fn job_if(condition: &str, parameters: usize) -> String {
    let and = if condition.is_empty() { "" } else { " AND " };
    format!("{JOB_COLUMNS} WHERE {condition}{and}job.id = ?{parameters}")
}

pub(crate) fn count_by_class(condition: &str) -> String {
    let condition = if condition.is_empty() { "true" } else { condition };
    format!(
        "SELECT job.error_class, count(*)
         FROM main.birkez_job AS job LEFT JOIN main.birkez_lease AS lease ON lease.job_id = job.id
         WHERE {condition} GROUP BY job.error_class ORDER BY job.error_class"
    )
}

pub(crate) const PAYLOAD: &str = "SELECT payload FROM main.birkez_job WHERE id = ?1";

pub(crate) fn job_by_id() -> String {
    format!("{JOB_COLUMNS} WHERE job.id = ?1")
}

pub(crate) fn job_by_name() -> String {
    format!("{JOB_COLUMNS} WHERE job.kind = ?1 AND job.key = ?2")
}

pub(crate) const CORRECTED_BY: &str = "
SELECT job.id, job.state, EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = job.id)
FROM main.birkez_job AS job WHERE job.corrects = ?1 ORDER BY job.id";

pub(crate) const STEPS: &str = "SELECT name, output, at FROM main.birkez_step WHERE job_id = ?1 ORDER BY at, name";

pub(crate) const LAST_ATTEMPT: &str = "SELECT max(ended_at) FROM main.birkez_attempt WHERE job_id = ?1";

pub(crate) const ATTEMPTS: &str = "
SELECT attempt, class, text, charged, started_at, ended_at FROM main.birkez_attempt WHERE job_id = ?1 ORDER BY token";

pub(crate) const COUNTS: &str = "SELECT kind, state, n FROM main.birkez_count WHERE n > 0 ORDER BY kind, state";

#[cfg(test)]
mod tests;
