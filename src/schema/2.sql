-- From version 1 to 2: what schedules do about lateness and overlap, schedules kept in the file, and what people ask of them.
ALTER TABLE birkez_version ADD COLUMN schedules INTEGER NOT NULL DEFAULT 0;
ALTER TABLE birkez_schedule ADD COLUMN high TEXT;
ALTER TABLE birkez_schedule ADD COLUMN anchor INTEGER NOT NULL DEFAULT 0;
ALTER TABLE birkez_schedule ADD COLUMN catch_up TEXT NOT NULL DEFAULT 'latest';
ALTER TABLE birkez_schedule ADD COLUMN grace_ms INTEGER NOT NULL DEFAULT 300000;
ALTER TABLE birkez_schedule ADD COLUMN max_age_ms INTEGER;
ALTER TABLE birkez_schedule ADD COLUMN overlap TEXT NOT NULL DEFAULT 'skip';
ALTER TABLE birkez_schedule ADD COLUMN kind TEXT;
ALTER TABLE birkez_schedule ADD COLUMN payload TEXT;
ALTER TABLE birkez_schedule ADD COLUMN key_template TEXT;
ALTER TABLE birkez_schedule ADD COLUMN paused_at INTEGER;
ALTER TABLE birkez_schedule ADD COLUMN paused_by TEXT;
ALTER TABLE birkez_schedule ADD COLUMN program TEXT;
ALTER TABLE birkez_schedule ADD COLUMN registered_by INTEGER;
ALTER TABLE birkez_schedule ADD COLUMN orphaned_at INTEGER;
ALTER TABLE birkez_schedule ADD COLUMN last_run TEXT;
ALTER TABLE birkez_occurrence ADD COLUMN cause TEXT NOT NULL DEFAULT 'due';
-- What a version 1 program has made was made one after another.
UPDATE birkez_schedule SET catch_up = 'each', overlap = 'allow';

CREATE TABLE birkez_occurrence_job (
    schedule   INTEGER NOT NULL,
    occurrence TEXT NOT NULL,
    job_id     INTEGER NOT NULL,
    PRIMARY KEY (schedule, occurrence, job_id)
) WITHOUT ROWID;

CREATE TABLE birkez_missed (
    id        INTEGER PRIMARY KEY,
    schedule  INTEGER NOT NULL,
    first     TEXT NOT NULL,
    last      TEXT NOT NULL,
    count     INTEGER NOT NULL,
    reason    TEXT NOT NULL,
    at        INTEGER NOT NULL,
    attention INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX birkez_missed_of ON birkez_missed (schedule, id);

CREATE TABLE birkez_request (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    schedule INTEGER NOT NULL,
    verb     TEXT NOT NULL,
    first    TEXT,
    last     TEXT,
    asked_at INTEGER NOT NULL,
    done_at  INTEGER,
    answer   TEXT
);
CREATE INDEX birkez_request_open ON birkez_request (schedule) WHERE done_at IS NULL;
