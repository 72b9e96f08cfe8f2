//! Seeing that something changed, and what there is to see.

use super::JOB_COLUMNS;

/// What is raised by those commits that change nothing for anybody.
pub(crate) const BEATS: &str = "
SELECT (SELECT coalesce(sum(beat), 0) FROM main.birkez_runner WHERE ended_at IS NULL)
     + (SELECT coalesce(sum(at), 0) FROM main.birkez_upkeep)";

/// What other commits change, as far as a few reads of small tables and of the ends of indices show it.
pub(crate) const DIGEST: &str = "
SELECT (SELECT max(id) FROM main.birkez_job),
       (SELECT count(*) FROM main.birkez_lease),
       (SELECT sum(token + since + cancel) FROM main.birkez_lease),
       (SELECT total(progress.done) + total(progress.total)
        FROM main.birkez_lease AS lease CROSS JOIN main.birkez_progress AS progress ON progress.job_id = lease.job_id),
       (SELECT sum(progress.at)
        FROM main.birkez_lease AS lease CROSS JOIN main.birkez_progress AS progress ON progress.job_id = lease.job_id),
       (SELECT sum(n) FROM main.birkez_count),
       (SELECT max(id) FROM main.birkez_event),
       (SELECT sum(n) FROM main.birkez_tally WHERE slot >= (SELECT max(slot) FROM main.birkez_tally) - 1),
       (SELECT schedules + holds + generation FROM main.birkez_version),
       (SELECT max(id) FROM main.birkez_runner),
       (SELECT count(*) FROM main.birkez_runner WHERE ended_at IS NULL),
       (SELECT run_at FROM main.birkez_job WHERE gate = 0 ORDER BY run_at LIMIT 1)";

/// Waiting or running, running, parked: each counted in an index that holds nothing else.
pub(crate) const COUNT_OPEN: &str = "
SELECT (SELECT count(*) FROM main.birkez_job WHERE gate = 0) + (SELECT count(*) FROM main.birkez_job WHERE gate = 1)
           + (SELECT count(*) FROM main.birkez_job
              WHERE ordering_key IS NOT NULL AND for_callers = 0 AND (state < 2 OR (state = 3 AND holds_key = 1))
                AND gate = 2)
           + (SELECT count(*) FROM main.birkez_job WHERE gate = 3) + (SELECT count(*) FROM main.birkez_job WHERE gate = 4),
       (SELECT count(*) FROM main.birkez_lease),
       (SELECT count(*) FROM main.birkez_job WHERE state = 1)";

pub(crate) const COUNT_FINISHED: &str = "SELECT state, sum(n) FROM main.birkez_count GROUP BY state";

/// Longest first.
pub(crate) fn running_jobs() -> String {
    format!("{JOB_COLUMNS} WHERE job.id IN (SELECT job_id FROM main.birkez_lease) ORDER BY lease.since, job.id")
}

pub(crate) fn newest_dead() -> String {
    newest("SELECT id FROM main.birkez_job INDEXED BY birkez_job_dead WHERE state = 3 ORDER BY id DESC LIMIT ?1")
}

/// By the index of reasons, which SQLite leaves for the order of the table.
pub(crate) fn newest_parked() -> String {
    newest("SELECT id FROM main.birkez_job INDEXED BY birkez_job_parked WHERE state = 1 ORDER BY id DESC LIMIT ?1")
}

fn newest(ids: &str) -> String {
    format!("{JOB_COLUMNS} WHERE job.id IN ({ids}) ORDER BY job.id DESC")
}

/// Of the 1,000 that are due next, those that have failed before.
pub(crate) fn retrying_jobs() -> String {
    format!(
        "{JOB_COLUMNS} WHERE job.id IN (
             SELECT id FROM (SELECT id, error_class FROM main.birkez_job WHERE gate = 0 ORDER BY run_at LIMIT 1000)
             WHERE error_class IS NOT NULL LIMIT ?1)
         ORDER BY job.run_at, job.id"
    )
}

/// Of the 1,000 newest jobs, those that were done last.
pub(crate) fn completed_jobs() -> String {
    format!(
        "{JOB_COLUMNS} WHERE job.id IN (
             SELECT id FROM main.birkez_job
             WHERE id > (SELECT max(id) FROM main.birkez_job) - 1000 AND state = 2
             ORDER BY finished_at DESC, id DESC LIMIT ?1)
         ORDER BY job.finished_at DESC, job.id DESC"
    )
}
