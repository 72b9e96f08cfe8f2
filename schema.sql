-- birkez, schema version 5.
--
-- These tables live in the app's own database, beside the app's tables. birkez touches nothing else in the file: not
-- user_version, not application_id, not another table. They are not STRICT, since one STRICT table makes a whole file
-- unreadable for SQLite before 3.37; the CHECKs hold the types instead (without IN lists of three or more, for which
-- SQLite makes a b-tree at each write). All times are integer milliseconds since 1970-01-01 UTC.
--
-- A script in any language may enqueue with
--     INSERT INTO birkez_job (kind, key, payload) VALUES ('mail', 'invoice-17', '{"to":"…"}');
-- on a connection with a busy timeout. Every other column has a default, and what it leaves out is filled in when a
-- runner first looks at the row. `ON CONFLICT DO NOTHING` makes the script's own repeat harmless.

-- One row. A program that knows a version below `oldest_writer` must not write to this file.
CREATE TABLE birkez_version (
    one           INTEGER PRIMARY KEY CHECK (one = 1),
    version       INTEGER NOT NULL CHECK (typeof(version) = 'integer'),
    oldest_writer INTEGER NOT NULL CHECK (typeof(oldest_writer) = 'integer' AND oldest_writer <= version),
    schedules     INTEGER NOT NULL DEFAULT 0, -- raised when a schedule, or what is asked of one, changes
    holds         INTEGER NOT NULL DEFAULT 0, -- raised when a pause or a limit changes, or a running job is to stop
    generation    INTEGER NOT NULL DEFAULT 0, -- raised when a copy is put in the place of the file
    copied_at     INTEGER                     -- when this copy was made, in one that has not been put in place yet
);

-- One row per (kind, key), for as long as the key must be known: it stays when the payload and the result are retired.
CREATE TABLE birkez_job (
    id           INTEGER PRIMARY KEY AUTOINCREMENT,  -- never reused; order of enqueueing
    -- The library keeps kinds to 128 bytes and keys to 512. Here it is characters: how many bytes one has depends on the
    -- encoding of the app's file.
    kind         TEXT NOT NULL CHECK (typeof(kind) = 'text' AND length(kind) BETWEEN 1 AND 128),
    key          TEXT NOT NULL CHECK (typeof(key) = 'text' AND length(key) BETWEEN 1 AND 512
                                      AND instr(key, char(0)) = 0),
    -- JSON. NULL only once retired: a job that is to run needs one.
    payload      TEXT CHECK (typeof(payload) <> 'integer' AND typeof(payload) <> 'real'),
    -- Which form of the payload it is.
    shape        INTEGER NOT NULL DEFAULT 1 CHECK (typeof(shape) = 'integer' AND shape BETWEEN 0 AND 4294967295),
    -- A format byte and 16 bytes of SHA-256 over the content that must not change under a key. NULL: not computed yet.
    fingerprint  BLOB CHECK (fingerprint IS NULL OR (typeof(fingerprint) = 'blob' AND length(fingerprint) = 17)),

    -- 0 waiting, 1 parked, 2 done, 3 dead, 4 cancelled. *Running* is stored nowhere: it is waiting with a row in
    -- birkez_lease.
    state        INTEGER NOT NULL DEFAULT 0 CHECK (typeof(state) = 'integer' AND state BETWEEN 0 AND 4),
    -- Where a waiting job stands. It exists so that no claim walks rows it cannot take; every change of state, run_at
    -- or ordering_key sets it anew.
    --   0 not yet looked at, or not yet due        1 claimable, unless it runs: has a row in birkez_lease
    --   2 in the line of its ordering key, behind  3 suspect: was claimed by a process that died, claimed by itself
    --   4 belongs to the callers of `once`: `for_callers` is 1
    gate         INTEGER DEFAULT 0 CHECK (gate IS NULL OR (typeof(gate) = 'integer' AND gate BETWEEN 0 AND 4)),
    run_at       INTEGER NOT NULL DEFAULT 0 CHECK (typeof(run_at) = 'integer'),  -- 0: as soon as it is looked at
    priority     INTEGER NOT NULL DEFAULT 0 CHECK (typeof(priority) = 'integer'),  -- larger is sooner
    ordering_key TEXT CHECK (typeof(ordering_key) IN ('text', 'null')),
    version      INTEGER CHECK (typeof(version) IN ('integer', 'null')),

    -- Charged ones since enqueue, resume or replay.
    attempts     INTEGER NOT NULL DEFAULT 0 CHECK (typeof(attempts) = 'integer' AND attempts BETWEEN 0 AND 4294967295),
    -- Fencing counter: the highest token that has been settled or taken back. Never reset, so tokens only rise.
    claims       INTEGER NOT NULL DEFAULT 0 CHECK (typeof(claims) = 'integer' AND claims BETWEEN 0 AND 4611686018427387904),
    deadline     INTEGER CHECK (typeof(deadline) IN ('integer', 'null')),  -- a failure after this ends the job; set by its first failed attempt
    suspect      INTEGER,        -- when a process died that held this job; NULL: never, or settled since
    reason       TEXT,           -- why it is parked
    result       TEXT,           -- JSON; what a repeat of the key is answered with
    result_note  TEXT,           -- why a done job has no result: 'too_large', 'unserialisable', 'retired'
    error_class  TEXT,           -- of the last failure
    error_text   TEXT,
    created_at   INTEGER NOT NULL DEFAULT 0 CHECK (typeof(created_at) = 'integer'),
    finished_at  INTEGER,
    for_callers  INTEGER NOT NULL DEFAULT 0 CHECK (for_callers BETWEEN 0 AND 1),  -- 1: born by `once`, no runner runs it
    idempotency  TEXT,           -- what the world outside tells repeats by; never changes. NULL: not computed yet
    holds_key    INTEGER NOT NULL DEFAULT 1 CHECK (holds_key BETWEEN 0 AND 1),  -- once dead: 1 holds its ordering key back
    corrects     INTEGER,        -- id of the job that this one corrects
    label        TEXT,           -- what people call it
    origin       TEXT,           -- what enqueued it, in words. NULL: a plain INSERT
    one_attempt  INTEGER NOT NULL DEFAULT 0,  -- 1: whatever its kind allows, the next failure is its last
    handed_at    INTEGER,        -- when a person has handed it to support; NULL again once it goes on

    UNIQUE (kind, key),          -- what makes a job the same job
    CHECK ((state = 0) = (gate IS NOT NULL)),
    CHECK (gate IS NULL OR (gate = 4) = for_callers),
    CHECK ((state >= 2) = (finished_at IS NOT NULL)),
    CHECK ((state = 1) = (reason IS NOT NULL))
);

-- What can be claimed now, in claiming order within a kind: gate 1 or 3 without a row in birkez_lease (and gate 0 whose
-- run_at has come, which the next claim lets in). The rowid ends every index, so id needs no column.
CREATE INDEX birkez_job_claim ON birkez_job (kind, priority DESC, run_at) WHERE gate = 1;
CREATE INDEX birkez_job_suspect ON birkez_job (kind, priority DESC, run_at) WHERE gate = 3;
-- What becomes claimable by the passing of time.
CREATE INDEX birkez_job_due ON birkez_job (run_at) WHERE gate = 0;

-- The line of an ordering key, in the order of ids. Only its head runs: whatever is behind has gate 2 until what is in
-- front has left the line, done or cancelled, or dead without holding its key.
CREATE INDEX birkez_job_line ON birkez_job (ordering_key)
WHERE ordering_key IS NOT NULL AND for_callers = 0 AND (state < 2 OR (state = 3 AND holds_key = 1));

-- What gave up or was called off, in the order of ids.
CREATE INDEX birkez_job_dead ON birkez_job (state) WHERE state = 3;
CREATE INDEX birkez_job_cancelled ON birkez_job (state) WHERE state = 4;
-- What waits for a repeat of its caller's: counted, never claimed.
CREATE INDEX birkez_job_callers ON birkez_job (kind) WHERE gate = 4;

-- The newest version of an ordering key's state that a job has completed: an older one is not applied any more.
CREATE TABLE birkez_order (
    ordering_key TEXT PRIMARY KEY,
    version      INTEGER NOT NULL
) WITHOUT ROWID;

-- Who corrects a job.
CREATE INDEX birkez_job_corrects ON birkez_job (corrects) WHERE corrects IS NOT NULL;

-- What waits for a person or a signal, by what it waits for.
CREATE INDEX birkez_job_parked ON birkez_job (reason) WHERE state = 1;

-- One row per running job: the claim. A worker changes a job only while (job_id, runner, token) is here.
CREATE TABLE birkez_lease (
    job_id   INTEGER PRIMARY KEY,
    runner   INTEGER NOT NULL,   -- birkez_runner.id
    token    INTEGER NOT NULL,   -- above the job's `claims`; a later claim of the job always has a higher one
    attempt  INTEGER NOT NULL,   -- number of this attempt; charged already if the job's `attempts` has reached it
    since    INTEGER NOT NULL,
    -- What a crash of this attempt means, so that whoever takes it back needs no handler to know:
    -- 0 runs again, 1 is parked as unknown_outcome, 2 is dead.
    on_crash INTEGER NOT NULL CHECK (on_crash BETWEEN 0 AND 2),
    cancel   INTEGER NOT NULL DEFAULT 0  -- 1: it is asked to stop, and ends as cancelled unless it is done
);

-- Attempts that did not end well, and only those.
CREATE TABLE birkez_attempt (
    job_id     INTEGER NOT NULL,
    token      INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    class      TEXT NOT NULL,
    text       TEXT NOT NULL,
    charged    INTEGER NOT NULL CHECK (charged IN (0, 1)),
    started_at INTEGER NOT NULL,
    ended_at   INTEGER NOT NULL,
    PRIMARY KEY (job_id, token)
) WITHOUT ROWID;

-- Steps of a job that are not run again: the stored output answers instead.
CREATE TABLE birkez_step (
    job_id INTEGER NOT NULL,
    name   TEXT NOT NULL,
    output TEXT NOT NULL,        -- JSON
    at     INTEGER NOT NULL,
    PRIMARY KEY (job_id, name)
) WITHOUT ROWID;

-- How far a job says that it is. Written a few times a second at most, however often it says so.
CREATE TABLE birkez_progress (
    job_id INTEGER PRIMARY KEY,
    done   INTEGER NOT NULL,
    total  INTEGER NOT NULL,     -- 0: not known
    note   TEXT NOT NULL,
    at     INTEGER NOT NULL
);

-- Who works on this file: a row per process and store, kept afterwards as history. A live one has no ended_at and holds
-- an operating-system lock on <database>-birkez.d/<uuid>.lock; host and pid are for people to read.
CREATE TABLE birkez_runner (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,
    uuid       TEXT NOT NULL UNIQUE,
    has_lock   INTEGER NOT NULL CHECK (has_lock IN (0, 1)),
    boot       TEXT,             -- id of the boot it runs under, where the system has one
    host       TEXT NOT NULL,
    pid        INTEGER NOT NULL,
    program    TEXT NOT NULL,
    lease_ms   INTEGER NOT NULL CHECK (lease_ms > 0),
    beat       INTEGER NOT NULL DEFAULT 0,  -- raised about every third of the lease; compared, never subtracted from a clock
    started_at INTEGER NOT NULL,
    heard_at   INTEGER NOT NULL,
    ended_at   INTEGER,
    ending     TEXT CHECK (ending IN ('stopped', 'gone'))
);
CREATE INDEX birkez_runner_live ON birkez_runner (id) WHERE ended_at IS NULL;

-- A named schedule. Every occurrence up to `mark` has been dealt with.
CREATE TABLE birkez_schedule (
    id        INTEGER PRIMARY KEY,
    name      TEXT NOT NULL UNIQUE,
    calendar  TEXT NOT NULL,
    zone      TEXT NOT NULL,     -- IANA name, or 'local'
    born      TEXT NOT NULL,     -- occurrence ids compare as text: nominal local time, or UTC ending in Z
    mark      TEXT NOT NULL,
    failures  INTEGER NOT NULL DEFAULT 0,  -- of its mapping, in a row
    error     TEXT,
    error_at  INTEGER,
    try_at    INTEGER,           -- not before this, after a failure
    high         TEXT,           -- the highest mark there was, while a clock set back is believed
    anchor       INTEGER NOT NULL DEFAULT 0,  -- `every` counts from here
    catch_up     TEXT NOT NULL DEFAULT 'latest',  -- 'latest', 'skip', 'each', or 'each N': the newest N
    grace_ms     INTEGER NOT NULL DEFAULT 300000,  -- later than this is missed
    max_age_ms   INTEGER,        -- later than this never runs
    overlap      TEXT NOT NULL DEFAULT 'skip',  -- 'skip', 'queue_one' or 'allow', while the last run is unfinished
    kind         TEXT,           -- of one kept in this file: what it enqueues. NULL: a program's function knows
    payload      TEXT,
    key_template TEXT,
    paused_at    INTEGER,
    paused_by    TEXT,
    program      TEXT,           -- the program that registers it
    registered_by INTEGER,       -- birkez_runner.id of the process that did so last
    orphaned_at  INTEGER,        -- when that program started without registering it
    last_run     TEXT,           -- the newest occurrence that ran
    found_at     INTEGER,        -- when the oldest of what is due and has yet to run was found. NULL: nothing waits
    seen_at      INTEGER,        -- the newest look that found one: what was due by then is not judged again
    behind_ms    INTEGER NOT NULL DEFAULT 0,  -- how long the clock has been far behind the mark, in sum
    acknowledged TEXT,           -- the error that a person has taken note of
    orphan_acknowledged INTEGER NOT NULL DEFAULT 0
);

-- What a schedule has made. UNIQUE (schedule, occurrence) is what keeps an occurrence from being made twice.
CREATE TABLE birkez_occurrence (
    schedule   INTEGER NOT NULL,
    occurrence TEXT NOT NULL,
    due_at     INTEGER NOT NULL,
    made_at    INTEGER NOT NULL,
    jobs       INTEGER NOT NULL, -- how many it mapped to
    conflicts  TEXT,             -- keys it mapped to that exist with other content; not NULL needs attention
    cause      TEXT NOT NULL DEFAULT 'due',  -- 'due', 'asked', 'backfill', or 'marked_done': it did not run
    attention  INTEGER NOT NULL DEFAULT 0,  -- 1: it has conflicts that nobody has taken note of
    PRIMARY KEY (schedule, occurrence)
) WITHOUT ROWID;
CREATE INDEX birkez_occurrence_due ON birkez_occurrence (schedule, due_at);
CREATE INDEX birkez_occurrence_attention ON birkez_occurrence (schedule) WHERE attention = 1;

-- Which jobs an occurrence was mapped to, met or made.
CREATE TABLE birkez_occurrence_job (
    schedule   INTEGER NOT NULL,
    occurrence TEXT NOT NULL,
    job_id     INTEGER NOT NULL,
    PRIMARY KEY (schedule, occurrence, job_id)
) WITHOUT ROWID;

-- Occurrences that did not run: one record a gap.
CREATE TABLE birkez_missed (
    id        INTEGER PRIMARY KEY,
    schedule  INTEGER NOT NULL,
    first     TEXT NOT NULL,
    last      TEXT NOT NULL,
    count     INTEGER NOT NULL,  -- 1001 stands for any number above 1,000
    reason    TEXT NOT NULL,     -- 'newer', 'skipped', 'over_max', 'too_old', 'overlap', 'paused' or 'changed'
    at        INTEGER NOT NULL,
    attention INTEGER NOT NULL DEFAULT 0  -- 1: a person should look; 2: one has
);
CREATE INDEX birkez_missed_of ON birkez_missed (schedule, id);
CREATE INDEX birkez_missed_last ON birkez_missed (schedule, last);
CREATE INDEX birkez_missed_attention ON birkez_missed (schedule) WHERE attention = 1;

-- What people ask of a schedule; carried out by a process that can map it.
CREATE TABLE birkez_request (
    id       INTEGER PRIMARY KEY AUTOINCREMENT,
    schedule INTEGER NOT NULL,
    verb     TEXT NOT NULL,      -- 'run': the occurrence `first`, or one of its own; 'backfill': the dates from first to last
    first    TEXT,
    last     TEXT,
    asked_at INTEGER NOT NULL,
    done_at  INTEGER,
    answer   TEXT,
    failures INTEGER NOT NULL DEFAULT 0,  -- of the mapping, in a row
    error    TEXT,
    try_at   INTEGER,            -- not before this, after a failure
    acknowledged INTEGER NOT NULL DEFAULT 0  -- a person has taken note of the failure
);
CREATE INDEX birkez_request_open ON birkez_request (schedule) WHERE done_at IS NULL;

-- Finished jobs by kind and state, raised once per transaction: counted, not scanned.
CREATE TABLE birkez_count (
    kind  TEXT NOT NULL,
    state INTEGER NOT NULL,
    n     INTEGER NOT NULL,
    PRIMARY KEY (kind, state)
) WITHOUT ROWID;

-- What people did: a row per deed, and one per job that it touched. Only ever added to.
CREATE TABLE birkez_event (
    id      INTEGER PRIMARY KEY AUTOINCREMENT,
    at      INTEGER NOT NULL,
    who     TEXT NOT NULL,
    verb    TEXT NOT NULL,
    subject TEXT,                -- which jobs, in words
    why     TEXT,
    detail  TEXT                 -- JSON
);
CREATE TABLE birkez_event_job (
    event   INTEGER NOT NULL,    -- birkez_event.id
    job_id  INTEGER NOT NULL,
    state   INTEGER NOT NULL,    -- where it was before: as in birkez_job, and 5 for running
    class   TEXT,                -- of its last failure then
    text    TEXT,
    attempts INTEGER NOT NULL,
    payload  TEXT,               -- what it was before, where the deed has changed it
    PRIMARY KEY (event, job_id)
) WITHOUT ROWID;
CREATE INDEX birkez_event_job_of ON birkez_event_job (job_id);

-- What is held back until further notice, in all processes.
CREATE TABLE birkez_pause (
    scope TEXT NOT NULL CHECK (scope IN ('kind', 'queue')),
    name  TEXT NOT NULL,
    at    INTEGER NOT NULL,
    who   TEXT NOT NULL,
    why   TEXT,
    PRIMARY KEY (scope, name)
) WITHOUT ROWID;

-- How many jobs may run at once, in all processes together. Counted from the leases that are there.
CREATE TABLE birkez_limit (
    scope TEXT NOT NULL CHECK (scope IN ('kind', 'queue')),
    name  TEXT NOT NULL,
    most  INTEGER NOT NULL CHECK (most >= 0),
    PRIMARY KEY (scope, name)
) WITHOUT ROWID;

-- What the programs that handle a kind have said of it.
CREATE TABLE birkez_kind (
    kind    TEXT PRIMARY KEY,
    queue   TEXT NOT NULL,
    goes_by TEXT,                -- its present name, if this is a former one
    advice  TEXT,                -- JSON: how many attempts it allows; by class of failure, what to do before a replay
    said_at INTEGER NOT NULL
) WITHOUT ROWID;

-- Which kinds and schedules were in whose hands, and when: a row for each time that a runner took them up. One without
-- an end has ended with its process (birkez_runner).
CREATE TABLE birkez_presence (
    id     INTEGER PRIMARY KEY,
    runner INTEGER NOT NULL,     -- birkez_runner.id
    what   TEXT NOT NULL CHECK (what IN ('kind', 'schedule')),
    name   TEXT NOT NULL,
    since  INTEGER NOT NULL,
    until  INTEGER
);
CREATE INDEX birkez_presence_of ON birkez_presence (what, name, since);
CREATE INDEX birkez_presence_open ON birkez_presence (runner) WHERE until IS NULL;

-- Which jobs are enqueued with each death, or with each occurrence that did not run, in the same transaction.
CREATE TABLE birkez_notice (
    what    TEXT NOT NULL CHECK (what IN ('dead', 'missed')),
    kind    TEXT NOT NULL,       -- of the job that tells
    shape   INTEGER NOT NULL,
    program TEXT NOT NULL,       -- which asked for it
    PRIMARY KEY (what, kind)
) WITHOUT ROWID;

-- How long users wait and how often work fails, in slots of five minutes; raised once per transaction.
CREATE TABLE birkez_tally (
    slot   INTEGER NOT NULL,     -- milliseconds since 1970 over 300,000
    kind   TEXT NOT NULL,
    what   INTEGER NOT NULL,     -- 0 from enqueue to done, 1 run time, 2 failed attempts, 3 leases lost
    bucket INTEGER NOT NULL,     -- of 0 and 1: which range of durations
    n      INTEGER NOT NULL,
    PRIMARY KEY (slot, kind, what, bucket)
) WITHOUT ROWID;

-- What keeps the file small: when each part of it was done last, and how far it is.
CREATE TABLE birkez_upkeep (
    what  TEXT PRIMARY KEY,
    at    INTEGER NOT NULL,
    place INTEGER NOT NULL
) WITHOUT ROWID;

-- For people and scripts: the six states in words.
CREATE VIEW birkez_jobs AS
SELECT job.id, job.kind, job.key,
       CASE WHEN lease.job_id IS NOT NULL THEN 'running'
            ELSE CASE job.state WHEN 0 THEN 'waiting' WHEN 1 THEN 'parked' WHEN 2 THEN 'done' WHEN 3 THEN 'dead'
                                ELSE 'cancelled' END END AS state,
       job.run_at, job.priority, job.attempts, job.reason, job.error_class, job.error_text, job.result,
       job.created_at, job.finished_at, lease.since AS running_since, lease.runner
FROM birkez_job AS job LEFT JOIN birkez_lease AS lease ON lease.job_id = job.id;
