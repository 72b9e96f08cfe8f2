-- From version 4 to 5: pauses, limits, what a runner handles and when, notices, numbers over time, housekeeping, copies.
ALTER TABLE birkez_version ADD COLUMN holds INTEGER NOT NULL DEFAULT 0;
ALTER TABLE birkez_version ADD COLUMN generation INTEGER NOT NULL DEFAULT 0;
ALTER TABLE birkez_version ADD COLUMN copied_at INTEGER;
ALTER TABLE birkez_job ADD COLUMN one_attempt INTEGER NOT NULL DEFAULT 0;
ALTER TABLE birkez_job ADD COLUMN handed_at INTEGER;
ALTER TABLE birkez_lease ADD COLUMN cancel INTEGER NOT NULL DEFAULT 0;
ALTER TABLE birkez_event_job ADD COLUMN payload TEXT;
CREATE INDEX birkez_job_callers ON birkez_job (kind) WHERE gate = 4;

CREATE TABLE birkez_pause (
    scope TEXT NOT NULL CHECK (scope IN ('kind', 'queue')),
    name  TEXT NOT NULL,
    at    INTEGER NOT NULL,
    who   TEXT NOT NULL,
    why   TEXT,
    PRIMARY KEY (scope, name)
) WITHOUT ROWID;
CREATE TABLE birkez_limit (
    scope TEXT NOT NULL CHECK (scope IN ('kind', 'queue')),
    name  TEXT NOT NULL,
    most  INTEGER NOT NULL CHECK (most >= 0),
    PRIMARY KEY (scope, name)
) WITHOUT ROWID;
CREATE TABLE birkez_kind (
    kind    TEXT PRIMARY KEY,
    queue   TEXT NOT NULL,
    goes_by TEXT,
    advice  TEXT,
    said_at INTEGER NOT NULL
) WITHOUT ROWID;
CREATE TABLE birkez_presence (
    id     INTEGER PRIMARY KEY,
    runner INTEGER NOT NULL,
    what   TEXT NOT NULL CHECK (what IN ('kind', 'schedule')),
    name   TEXT NOT NULL,
    since  INTEGER NOT NULL,
    until  INTEGER
);
CREATE INDEX birkez_presence_of ON birkez_presence (what, name, since);
CREATE INDEX birkez_presence_open ON birkez_presence (runner) WHERE until IS NULL;
CREATE TABLE birkez_notice (
    what    TEXT NOT NULL CHECK (what IN ('dead', 'missed')),
    kind    TEXT NOT NULL,
    shape   INTEGER NOT NULL,
    program TEXT NOT NULL,
    PRIMARY KEY (what, kind)
) WITHOUT ROWID;
CREATE TABLE birkez_tally (
    slot   INTEGER NOT NULL,
    kind   TEXT NOT NULL,
    what   INTEGER NOT NULL,
    bucket INTEGER NOT NULL,
    n      INTEGER NOT NULL,
    PRIMARY KEY (slot, kind, what, bucket)
) WITHOUT ROWID;
CREATE TABLE birkez_upkeep (
    what  TEXT PRIMARY KEY,
    at    INTEGER NOT NULL,
    place INTEGER NOT NULL
) WITHOUT ROWID;
