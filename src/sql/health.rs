//! What needs attention.

/// The newest deaths stand at the end of the index, unless old jobs have died since: the newest of the last thousand.
pub(crate) const NEWEST_DEATH: &str = "
SELECT id, kind, key, error_class, finished_at
FROM (SELECT id, kind, key, error_class, finished_at FROM main.birkez_job INDEXED BY birkez_job_dead
      WHERE state = 3 ORDER BY id DESC LIMIT 1000)
ORDER BY finished_at DESC, id DESC LIMIT 1";

pub(crate) const PARKED_BY_REASON: &str = "
SELECT reason, count(*) FROM main.birkez_job INDEXED BY birkez_job_parked WHERE state = 1 GROUP BY reason ORDER BY reason";

/// Who lives by its row and has something in hand, and what tells whether it lives.
pub(crate) const SIGNS: &str = "
SELECT uuid, has_lock, boot, heard_at, lease_ms FROM main.birkez_runner AS runner
WHERE ended_at IS NULL
  AND EXISTS (SELECT 1 FROM main.birkez_presence WHERE runner = runner.id AND until IS NULL)
ORDER BY id";

/// Who holds leases, how many, and what tells whether it lives.
pub(crate) const HOLDERS: &str = "
SELECT count(*), runner.uuid, runner.has_lock, runner.boot, runner.heard_at, runner.lease_ms, runner.ended_at
FROM main.birkez_lease AS lease LEFT JOIN main.birkez_runner AS runner ON runner.id = lease.runner
GROUP BY lease.runner";

pub(crate) const MISSED_OF: &str = "
SELECT count(*), coalesce(sum(count), 0), max(last) FROM main.birkez_missed INDEXED BY birkez_missed_attention
WHERE attention = 1 AND schedule = (SELECT id FROM main.birkez_schedule WHERE name = ?1)";
