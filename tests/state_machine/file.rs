//! What the file says, in plain SQL, against the model.

use std::collections::BTreeMap;

use birkez::rusqlite::types::Value;
use birkez::rusqlite::{Connection, Row};

use crate::model::{Gate, Job, Model, State};

/// A lease as it stands in the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Held {
    pub job: i64,
    pub runner: i64,
    pub token: i64,
    pub attempt: u32,
    pub since: i64,
    pub on_crash: i64,
}

pub fn leases(file: &Connection) -> BTreeMap<i64, Held> {
    let sql = "SELECT job_id, runner, token, attempt, since, on_crash FROM birkez_lease";
    let read = |row: &Row<'_>| {
        let (job, runner, token) = (row.get(0)?, row.get(1)?, row.get(2)?);
        Ok((job, Held { job, runner, token, attempt: row.get(3)?, since: row.get(4)?, on_crash: row.get(5)? }))
    };
    file.prepare_cached(sql).unwrap().query_map([], read).unwrap().map(Result::unwrap).collect()
}

/// The highest token of a job that was settled or taken back.
pub fn claims(file: &Connection, job: i64) -> i64 {
    let mut ask = file.prepare_cached("SELECT claims FROM birkez_job WHERE id = ?1").unwrap();
    ask.query_row([job], |row| row.get(0)).unwrap()
}

/// Jobs that were called off since a newer version was done.
pub fn superseded(file: &Connection) -> Vec<i64> {
    ids(file, "SELECT id FROM birkez_job WHERE state = 4 AND error_class = 'superseded'")
}

/// Jobs whose last attempt did not decode.
pub fn undecodable(file: &Connection) -> Vec<i64> {
    let sql = "SELECT id FROM birkez_job JOIN birkez_attempt ON job_id = id AND token = claims
               WHERE state >= 3 AND class = 'undecodable'";
    ids(file, sql)
}

fn ids(file: &Connection, sql: &str) -> Vec<i64> {
    file.prepare_cached(sql).unwrap().query_map([], |row| row.get(0)).unwrap().map(Result::unwrap).collect()
}

const COLUMNS: [&str; 26] = [
    "id",
    "kind",
    "key",
    "payload IS NOT NULL",
    "fingerprint IS NOT NULL",
    "state",
    "gate",
    "run_at",
    "priority",
    "ordering_key",
    "version",
    "attempts",
    "claims",
    "deadline",
    "suspect",
    "reason",
    "result",
    "error_class",
    "created_at",
    "finished_at",
    "for_callers",
    "holds_key",
    "one_attempt",
    "runner",
    "token",
    "cancel",
];

fn expected(job: &Job) -> [Value; 26] {
    let text = |text: &Option<String>| text.clone().map_or(Value::Null, Value::Text);
    let number = |number: Option<i64>| number.map_or(Value::Null, Value::Integer);
    let (state, gate, reason) = match &job.state {
        State::Waiting(gate) => (0, Some(*gate as i64), None),
        State::Parked(reason) => (1, None, Some(reason.clone())),
        State::Done => (2, None, None),
        State::Dead => (3, None, None),
        State::Cancelled => (4, None, None),
    };
    [
        job.id.into(),
        job.kind.name.to_owned().into(),
        job.key.clone().into(),
        job.has_payload.into(),
        job.has_fingerprint.into(),
        state.into(),
        number(gate),
        job.run_at.into(),
        job.priority.into(),
        text(&job.line),
        number(job.version),
        i64::from(job.attempts).into(),
        job.claims.into(),
        number(job.deadline),
        number(job.suspect),
        text(&reason),
        text(&job.result),
        text(&job.class.map(str::to_owned)),
        job.created_at.into(),
        number(job.finished_at),
        job.for_callers.into(),
        job.holds_key.into(),
        job.one_attempt.into(),
        number(job.lease.as_ref().map(|lease| lease.runner)),
        number(job.lease.as_ref().map(|lease| lease.token)),
        number(job.lease.as_ref().map(|lease| lease.cancel.into())),
    ]
}

/// Every job and every lease.
pub fn compare_jobs(file: &Connection, model: &Model) -> Result<(), String> {
    let sql = format!(
        "SELECT {} FROM birkez_job AS job LEFT JOIN birkez_lease ON job_id = job.id ORDER BY job.id",
        COLUMNS.join(", ")
    );
    let mut ask = file.prepare_cached(&sql).unwrap();
    let mut rows = ask.query([]).unwrap();
    for job in model.jobs.values() {
        let row = rows.next().unwrap().ok_or_else(|| format!("job {} is not in the file", job.id))?;
        for (at, wanted) in expected(job).into_iter().enumerate() {
            let found: Value = row.get(at).unwrap();
            if found != wanted {
                let column = COLUMNS[at];
                return Err(format!("job {} has {column} {found:?}, and should have {wanted:?}: {job:?}", job.id));
            }
        }
    }
    match rows.next().unwrap() {
        Some(row) => Err(format!("the file has a job {} that nobody stored", row.get::<_, i64>(0).unwrap())),
        None => Ok(()),
    }
}

/// The attempts of each job, what was done to it by people, and what it has written.
pub fn compare_history(file: &Connection, model: &Model) -> Result<(), String> {
    let mut attempts = BTreeMap::<i64, Vec<(i64, u32, String, bool)>>::new();
    each(file, "SELECT job_id, token, attempt, class, charged FROM birkez_attempt ORDER BY job_id, token", |row| {
        attempts.entry(row.get(0)?).or_default().push((row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?));
        Ok(())
    });
    let mut deeds = BTreeMap::<i64, Vec<(String, i64, Option<String>, u32)>>::new();
    let sql = "SELECT job_id, verb, state, class, attempts FROM birkez_event_job JOIN birkez_event ON id = event
               ORDER BY event";
    each(file, sql, |row| {
        deeds.entry(row.get(0)?).or_default().push((row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?));
        Ok(())
    });
    let mut effects = BTreeMap::<i64, u32>::new();
    each(file, "SELECT job, count(*) FROM effect GROUP BY job", |row| {
        effects.insert(row.get(0)?, row.get(1)?);
        Ok(())
    });
    for job in model.jobs.values() {
        let wanted: Vec<_> =
            job.history.iter().map(|&(t, n, class, charged)| (t, n, class.to_owned(), charged)).collect();
        same(job.id, "attempts", attempts.remove(&job.id).unwrap_or_default(), wanted)?;
        let class = |class: &Option<&str>| class.map(str::to_owned);
        let wanted: Vec<_> = job.deeds.iter().map(|(verb, s, c, n)| ((*verb).to_owned(), *s, class(c), *n)).collect();
        same(job.id, "deeds", deeds.remove(&job.id).unwrap_or_default(), wanted)?;
        same(job.id, "effects", effects.remove(&job.id).unwrap_or_default(), job.effects)?;
    }
    if let Some(left) = attempts.keys().next() {
        return Err(format!("attempts of job {left} are kept, which is gone"));
    }
    let recorded: i64 = file.query_row("SELECT count(*) FROM birkez_event", [], |row| row.get(0)).unwrap();
    same(0, "record of deeds", recorded as usize, model.deeds)?;
    let mut newest = BTreeMap::new();
    each(file, "SELECT ordering_key, version FROM birkez_order", |row| {
        newest.insert(row.get::<_, String>(0)?, row.get::<_, i64>(1)?);
        Ok(())
    });
    same(0, "newest versions", newest, model.newest.clone())
}

fn each(file: &Connection, sql: &str, mut f: impl FnMut(&Row<'_>) -> birkez::rusqlite::Result<()>) {
    let mut ask = file.prepare_cached(sql).unwrap();
    let mut rows = ask.query([]).unwrap();
    while let Some(row) = rows.next().unwrap() {
        f(row).unwrap();
    }
}

fn same<T: PartialEq + std::fmt::Debug>(job: i64, what: &str, found: T, wanted: T) -> Result<(), String> {
    if found == wanted { Ok(()) } else { Err(format!("job {job}: {what} {found:?}, and should be {wanted:?}")) }
}

/// What is never so, whatever has happened.
const NEVER: [(&str, &str); 6] = [
    (
        "a lease without a waiting job",
        "SELECT job_id FROM birkez_lease AS lease
      WHERE NOT EXISTS (SELECT 1 FROM birkez_job WHERE id = job_id AND state = 0 AND claims < token)",
    ),
    (
        "two of one line that run",
        "SELECT ordering_key FROM birkez_lease JOIN birkez_job ON id = job_id
      WHERE ordering_key IS NOT NULL AND for_callers = 0 GROUP BY ordering_key HAVING count(*) > 1",
    ),
    (
        "one that is open or behind against its place in the line",
        "SELECT id FROM birkez_job AS job
      WHERE ordering_key IS NOT NULL AND gate BETWEEN 1 AND 3
        AND (gate = 2) <> EXISTS (SELECT 1 FROM birkez_job AS ahead
             WHERE ahead.ordering_key = job.ordering_key AND ahead.id < job.id AND ahead.for_callers = 0
               AND (ahead.state < 2 OR (ahead.state = 3 AND ahead.holds_key = 1)))
        -- A replayed one may have come to stand in front of one that runs.
        AND NOT EXISTS (SELECT 1 FROM birkez_lease JOIN birkez_job AS running ON running.id = job_id
                        WHERE running.ordering_key = job.ordering_key AND running.for_callers = 0)",
    ),
    (
        "a count that is not the number of rows",
        "SELECT kind FROM
      (SELECT kind, state, n FROM birkez_count UNION ALL
       SELECT kind, state, -count(*) FROM birkez_job WHERE state >= 2 GROUP BY kind, state)
      GROUP BY kind, state HAVING sum(n) <> 0",
    ),
    (
        "an attempt with a token that is still out",
        "SELECT job_id FROM birkez_attempt JOIN birkez_job ON id = job_id
      WHERE token > claims",
    ),
    (
        "an end that is no end",
        "SELECT id FROM birkez_job
      WHERE (state >= 2) <> (finished_at IS NOT NULL) OR (state = 0 AND payload IS NULL)",
    ),
];

pub fn check_invariants(file: &Connection) -> Result<(), String> {
    for (what, sql) in NEVER {
        let mut ask = file.prepare_cached(sql).unwrap();
        if let Some(row) = ask.query([]).unwrap().next().unwrap() {
            return Err(format!("{what}: {:?}", row.get::<_, Value>(0).unwrap()));
        }
    }
    Ok(())
}

/// Jobs that a runner should have run, or called off.
pub fn left(model: &Model) -> Option<&Job> {
    let is_due = |job: &&Job| job.state == State::Waiting(Gate::Later) && job.run_at <= model.now;
    let mut open = model.jobs.values().filter(|job| !model.paused.contains(job.kind.name));
    open.find(|job| job.is_claimable() || is_due(job))
}
