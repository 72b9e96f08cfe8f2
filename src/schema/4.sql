-- From version 3 to 4: what people call a job, what enqueued it, and the record of what people did.
ALTER TABLE birkez_job ADD COLUMN label TEXT;
ALTER TABLE birkez_job ADD COLUMN origin TEXT;

CREATE TABLE birkez_event (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    at      INTEGER NOT NULL,
    who     TEXT NOT NULL,
    verb    TEXT NOT NULL,
    subject TEXT,
    why     TEXT,
    detail  TEXT
);
CREATE TABLE birkez_event_job (
    event   INTEGER NOT NULL,
    job_id  INTEGER NOT NULL,
    state   INTEGER NOT NULL,
    class   TEXT,
    text    TEXT,
    attempts INTEGER NOT NULL,
    PRIMARY KEY (event, job_id)
) WITHOUT ROWID;
CREATE INDEX birkez_event_job_of ON birkez_event_job (job_id);
