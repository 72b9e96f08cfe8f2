//! Jobs that tell of deaths and of occurrences that did not run.

/// Whom to tell of a death of a job of kind `?1`: nobody, if that is a notice itself.
pub(crate) const NOTICES_OF_DEATH: &str = "
SELECT kind, shape FROM main.birkez_notice
WHERE what = 'dead' AND NOT EXISTS (SELECT 1 FROM main.birkez_notice WHERE kind = ?1) ORDER BY kind";

pub(crate) const NOTICES_OF_MISS: &str =
    "SELECT kind, shape FROM main.birkez_notice WHERE what = 'missed' ORDER BY kind";

/// A job that has just died. It may have an error of its last failure only.
pub(crate) const DIED: &str = "SELECT key, label, error_class, error_text, attempts FROM main.birkez_job WHERE id = ?1";

/// Its fingerprint and idempotency key are computed when it is first compared or claimed, as those of a plain INSERT.
pub(crate) const INSERT_NOTICE: &str = "
INSERT INTO main.birkez_job (kind, key, payload, shape, gate, run_at, created_at, origin)
VALUES (?1, ?2, ?3, ?4, 1, ?5, ?5, ?6) ON CONFLICT (kind, key) DO NOTHING";

pub(crate) const SET_NOTICE: &str = "
INSERT INTO main.birkez_notice (what, kind, shape, program) VALUES (?1, ?2, ?3, ?4)
ON CONFLICT (what, kind) DO UPDATE SET shape = excluded.shape, program = excluded.program";

pub(crate) const NOTICES_OF_PROGRAM: &str =
    "SELECT what, kind, shape FROM main.birkez_notice WHERE program = ?1 ORDER BY what, kind";

/// Whether another process of the program lives by its row: what that one asked for stays.
pub(crate) const HAS_SIBLING: &str =
    "SELECT 1 FROM main.birkez_runner WHERE ended_at IS NULL AND program = ?1 AND id <> ?2";

pub(crate) const DROP_NOTICE: &str = "DELETE FROM main.birkez_notice WHERE what = ?1 AND kind = ?2 AND program = ?3";

pub(crate) const SCHEDULE_NAME: &str = "SELECT name FROM main.birkez_schedule WHERE id = ?1";

pub(crate) const CLAIMS: &str = "SELECT claims FROM main.birkez_job WHERE id = ?1";

pub(crate) const JOB_KEY: &str = "SELECT key FROM main.birkez_job WHERE id = ?1";
