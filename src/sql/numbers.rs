//! Numbers. What is finished is counted and never scanned; each other statement names the partial index that holds
//! nothing else, so that it fails rather than walk all jobs.

pub(crate) const TALLY: &str = "
INSERT INTO main.birkez_tally (slot, kind, what, bucket, n) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (slot, kind, what, bucket) DO UPDATE SET n = n + excluded.n";

pub(crate) const TALLIED: &str = "
SELECT kind, what, bucket, sum(n) FROM main.birkez_tally WHERE slot >= ?1 AND slot <= ?2 GROUP BY kind, what, bucket
ORDER BY kind, what, bucket";

pub(crate) const QUEUES: &str = "SELECT kind, queue FROM main.birkez_kind";

/// Those that wait, by kind: how many, and since when the oldest that does not run could.
macro_rules! waiting {
    ($index:literal, $gate:literal) => {
        concat!(
            "
SELECT kind, count(*),
       min(CASE WHEN NOT EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = birkez_job.id) THEN run_at END)
FROM main.birkez_job INDEXED BY ",
            $index,
            " WHERE gate = ",
            $gate,
            " GROUP BY kind"
        )
    };
}

pub(crate) const WAITING_READY: &str = waiting!("birkez_job_claim", "1");
pub(crate) const WAITING_SUSPECT: &str = waiting!("birkez_job_suspect", "3");

/// What has come due and was not let in yet, and what has yet to come due.
pub(crate) const WAITING_DUE: &str = "
SELECT kind, count(*), sum(run_at <= ?1), min(CASE WHEN run_at BETWEEN 1 AND ?1 THEN run_at END)
FROM main.birkez_job INDEXED BY birkez_job_due WHERE gate = 0 GROUP BY kind";

pub(crate) const WAITING_BEHIND: &str = "
SELECT kind, count(*) FROM main.birkez_job INDEXED BY birkez_job_line
WHERE ordering_key IS NOT NULL AND for_callers = 0 AND (state < 2 OR (state = 3 AND holds_key = 1)) AND gate = 2
GROUP BY kind";

pub(crate) const WAITING_FOR_CALLERS: &str = "
SELECT kind, count(*) FROM main.birkez_job INDEXED BY birkez_job_callers WHERE gate = 4 GROUP BY kind";

pub(crate) const PARKED: &str = "
SELECT kind, count(*) FROM main.birkez_job INDEXED BY birkez_job_parked WHERE state = 1 GROUP BY kind";

/// What runs, by the gate that its job has meanwhile; `due` says whether gate 0 has come due.
pub(crate) const RUNNING: &str = "
SELECT job.kind, job.gate, job.run_at <= ?1 AS due, count(*)
FROM main.birkez_lease AS lease CROSS JOIN main.birkez_job AS job ON job.id = lease.job_id
GROUP BY job.kind, job.gate, due";

/// Kinds that a runner which lives by its row has in hand.
pub(crate) const HANDLED_KINDS: &str = "
SELECT held.name, runner.uuid, runner.has_lock, runner.boot, runner.heard_at, runner.lease_ms
FROM main.birkez_runner AS runner CROSS JOIN main.birkez_presence AS held ON held.runner = runner.id
WHERE runner.ended_at IS NULL AND held.until IS NULL AND held.what = 'kind' ORDER BY runner.id";

pub(crate) const MISSED_ATTENTION: &str = "
SELECT count(*), coalesce(sum(count), 0) FROM main.birkez_missed INDEXED BY birkez_missed_attention WHERE attention = 1";

pub(crate) const PAGE_SIZE: &str = "PRAGMA main.page_size";

pub(crate) const PAGE_COUNT: &str = "PRAGMA main.page_count";

pub(crate) const FREE_PAGES: &str = "PRAGMA main.freelist_count";

pub(crate) const JOB_RANGE: &str =
    "SELECT (SELECT min(id) FROM main.birkez_job), (SELECT max(id) FROM main.birkez_job)";

/// One job of a sample: what is left of it, in bytes, without what a retirement has taken.
pub(crate) const SAMPLE: &str = "
SELECT state, payload IS NULL, 2 * (length(kind) + length(key)) + coalesce(length(fingerprint), 0)
       + coalesce(length(label), 0) + coalesce(length(origin), 0) + coalesce(length(idempotency), 0)
       + coalesce(length(error_class), 0) + coalesce(length(error_text), 0) + coalesce(length(result), 0)
FROM main.birkez_job WHERE id >= ?1 ORDER BY id LIMIT 1";

/// Every finished job, looked at: what the counts ought to say.
pub(crate) const SCANNED: &str = "
SELECT kind, state, count(*) FROM main.birkez_job WHERE state >= 2 GROUP BY kind, state";

pub(crate) const COUNTED: &str = "SELECT kind, state, n FROM main.birkez_count";

pub(crate) const SET_COUNT: &str = "
INSERT INTO main.birkez_count (kind, state, n) VALUES (?1, ?2, ?3) ON CONFLICT (kind, state) DO UPDATE SET n = excluded.n";
