//! The statements of pauses and limits, and of what runners say of their kinds.

/// Whether this program may write, and how often pauses and limits have changed: asked in every write transaction.
pub(crate) const VERSION_AND_HOLDS: &str =
    "SELECT version, oldest_writer, holds FROM main.birkez_version WHERE one = 1";

pub(crate) const HOLDS_STATE: &str = "SELECT holds FROM main.birkez_version WHERE one = 1";

pub(crate) const HOLDS_CHANGED: &str = "UPDATE main.birkez_version SET holds = holds + 1";

pub(crate) const PAUSE: &str = "
INSERT INTO main.birkez_pause (scope, name, at, who, why) VALUES (?1, ?2, ?3, ?4, ?5) ON CONFLICT (scope, name) DO NOTHING";

pub(crate) const UNPAUSE: &str = "DELETE FROM main.birkez_pause WHERE scope = ?1 AND name = ?2";

pub(crate) const PAUSES: &str = "SELECT scope, name, at, who, why FROM main.birkez_pause ORDER BY at, scope, name";

pub(crate) const SET_LIMIT: &str = "
INSERT INTO main.birkez_limit (scope, name, most) VALUES (?1, ?2, ?3)
ON CONFLICT (scope, name) DO UPDATE SET most = excluded.most WHERE most <> excluded.most";

pub(crate) const REMOVE_LIMIT: &str = "DELETE FROM main.birkez_limit WHERE scope = ?1 AND name = ?2";

pub(crate) const LIMITS: &str = "SELECT scope, name, most FROM main.birkez_limit ORDER BY scope, name";

/// What programs have said of kinds, as far as it decides what holds them back.
pub(crate) const KINDS_SAID: &str = "SELECT kind, queue, goes_by FROM main.birkez_kind ORDER BY kind";

/// From kind to kind by the index of names, however many jobs each has.
pub(crate) const KINDS_STORED: &str = "
WITH RECURSIVE stored (kind) AS (
    SELECT min(kind) FROM main.birkez_job
    UNION ALL
    SELECT (SELECT min(kind) FROM main.birkez_job WHERE kind > stored.kind) FROM stored WHERE stored.kind IS NOT NULL)
SELECT kind FROM stored WHERE kind IS NOT NULL";

/// What runs now, with its kind: one row a lease.
pub(crate) const RUNNING_KINDS: &str = "
SELECT job.kind, job.id FROM main.birkez_lease AS lease CROSS JOIN main.birkez_job AS job ON job.id = lease.job_id
ORDER BY lease.job_id";

/// How many jobs of a kind could run at this time. One term a gate: a partial index serves only a literal.
pub(crate) const READY_OF_KIND: &str = "
SELECT (SELECT count(*) FROM main.birkez_job
        WHERE gate = 1 AND kind = ?1 AND NOT EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = birkez_job.id))
     + (SELECT count(*) FROM main.birkez_job
        WHERE gate = 3 AND kind = ?1 AND NOT EXISTS (SELECT 1 FROM main.birkez_lease WHERE job_id = birkez_job.id))
     + (SELECT count(*) FROM main.birkez_job INDEXED BY birkez_job_due WHERE gate = 0 AND run_at <= ?2 AND kind = ?1)";

// ---- what runners say

/// Writes only what differs from what is known.
pub(crate) const SAY_KIND: &str = "
INSERT INTO main.birkez_kind (kind, queue, goes_by, advice, said_at) VALUES (?1, ?2, ?3, ?4, ?5)
ON CONFLICT (kind) DO UPDATE
SET queue = excluded.queue, goes_by = excluded.goes_by, advice = excluded.advice, said_at = excluded.said_at
WHERE queue <> excluded.queue OR goes_by IS NOT excluded.goes_by OR advice IS NOT excluded.advice";

pub(crate) const KIND_SAYS: &str = "SELECT queue, goes_by, advice FROM main.birkez_kind WHERE kind = ?1";

pub(crate) const BEGIN_PRESENCE: &str =
    "INSERT INTO main.birkez_presence (runner, what, name, since) VALUES (?1, ?2, ?3, ?4)";

pub(crate) const END_PRESENCE: &str = "
UPDATE main.birkez_presence SET until = ?3 WHERE id BETWEEN ?1 AND ?2 AND until IS NULL";

pub(crate) const CLOSE_PRESENCE: &str = "
UPDATE main.birkez_presence SET until = ?3 WHERE runner = ?1 AND until IS NULL AND what = 'kind' AND name = ?2";

/// Whose hands something is in, as far as the rows tell: by way of the living, however long its history is.
pub(crate) const HANDLED_BY: &str = "
SELECT runner.uuid, runner.has_lock, runner.boot, runner.heard_at, runner.lease_ms
FROM main.birkez_runner AS runner
WHERE runner.ended_at IS NULL
  AND EXISTS (SELECT 1 FROM main.birkez_presence AS presence
              WHERE presence.runner = runner.id AND presence.until IS NULL AND presence.what = ?1 AND presence.name = ?2)";

/// Who had something that began at this time or before, the latest first: since when, and until when as far as the rows
/// tell. Whoever was found gone was there until it was last heard of.
pub(crate) const PRESENCES_UPTO: &str = "
SELECT presence.since, presence.until, runner.ended_at, runner.ending, runner.heard_at,
       runner.uuid, runner.has_lock, runner.boot, runner.lease_ms
FROM main.birkez_presence AS presence LEFT JOIN main.birkez_runner AS runner ON runner.id = presence.runner
WHERE presence.what = ?1 AND presence.name = ?2 AND presence.since <= ?3
ORDER BY presence.since DESC LIMIT 500";

pub(crate) const PRESENCE_AFTER: &str = "
SELECT min(since) FROM main.birkez_presence WHERE what = ?1 AND name = ?2 AND since > ?3";

/// When the history of who had what begins.
pub(crate) const FIRST_PRESENCE: &str = "SELECT since FROM main.birkez_presence ORDER BY id LIMIT 1";
