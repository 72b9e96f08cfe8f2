-- From version 2 to 3: order by ordering key, what the world outside tells repeats by, corrections, steps, progress; of
-- schedules what waits, clocks that are behind, and what a person has taken note of.
ALTER TABLE birkez_job ADD COLUMN idempotency TEXT;
ALTER TABLE birkez_job ADD COLUMN holds_key INTEGER NOT NULL DEFAULT 1 CHECK (holds_key BETWEEN 0 AND 1);
ALTER TABLE birkez_job ADD COLUMN corrects INTEGER;

CREATE INDEX birkez_job_line ON birkez_job (ordering_key)
WHERE ordering_key IS NOT NULL AND for_callers = 0 AND (state < 2 OR (state = 3 AND holds_key = 1));
CREATE INDEX birkez_job_corrects ON birkez_job (corrects) WHERE corrects IS NOT NULL;

CREATE INDEX birkez_job_dead ON birkez_job (state) WHERE state = 3;
CREATE INDEX birkez_job_cancelled ON birkez_job (state) WHERE state = 4;

-- A version 2 program kept no order: its dead hold nobody back, and whoever is not the first of its line waits behind.
UPDATE birkez_job SET holds_key = 0 WHERE state = 3;
UPDATE birkez_job SET gate = 2
WHERE state = 0 AND ordering_key IS NOT NULL AND for_callers = 0
  AND EXISTS (SELECT 1 FROM birkez_job AS ahead
              WHERE ahead.ordering_key = birkez_job.ordering_key AND ahead.for_callers = 0
                AND (ahead.state < 2 OR (ahead.state = 3 AND ahead.holds_key = 1)) AND ahead.id < birkez_job.id);

CREATE TABLE birkez_step (
    job_id INTEGER NOT NULL,
    name   TEXT NOT NULL,
    output TEXT NOT NULL,
    at     INTEGER NOT NULL,
    PRIMARY KEY (job_id, name)
) WITHOUT ROWID;

CREATE TABLE birkez_progress (
    job_id INTEGER PRIMARY KEY,
    done   INTEGER NOT NULL,
    total  INTEGER NOT NULL,
    note   TEXT NOT NULL,
    at     INTEGER NOT NULL
);

CREATE TABLE birkez_order (
    ordering_key TEXT PRIMARY KEY,
    version      INTEGER NOT NULL
) WITHOUT ROWID;
-- What a version 2 program has completed.
INSERT INTO birkez_order (ordering_key, version)
SELECT ordering_key, max(version) FROM birkez_job
WHERE state = 2 AND ordering_key IS NOT NULL AND version IS NOT NULL GROUP BY ordering_key;

ALTER TABLE birkez_schedule ADD COLUMN found_at INTEGER;
ALTER TABLE birkez_schedule ADD COLUMN seen_at INTEGER;
ALTER TABLE birkez_schedule ADD COLUMN behind_ms INTEGER NOT NULL DEFAULT 0;
ALTER TABLE birkez_schedule ADD COLUMN acknowledged TEXT;
ALTER TABLE birkez_schedule ADD COLUMN orphan_acknowledged INTEGER NOT NULL DEFAULT 0;
ALTER TABLE birkez_occurrence ADD COLUMN attention INTEGER NOT NULL DEFAULT 0;
ALTER TABLE birkez_request ADD COLUMN failures INTEGER NOT NULL DEFAULT 0;
ALTER TABLE birkez_request ADD COLUMN error TEXT;
ALTER TABLE birkez_request ADD COLUMN try_at INTEGER;
ALTER TABLE birkez_request ADD COLUMN acknowledged INTEGER NOT NULL DEFAULT 0;
UPDATE birkez_occurrence SET attention = 1 WHERE conflicts IS NOT NULL;

CREATE INDEX birkez_occurrence_due ON birkez_occurrence (schedule, due_at);
CREATE INDEX birkez_occurrence_attention ON birkez_occurrence (schedule) WHERE attention = 1;
CREATE INDEX birkez_missed_last ON birkez_missed (schedule, last);
CREATE INDEX birkez_missed_attention ON birkez_missed (schedule) WHERE attention = 1;
