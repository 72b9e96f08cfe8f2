//! Jobs that tell a person: enqueued in the transaction of a death, or of the record of what did not run, so that there
//! is exactly one whatever crashes.

use chrono::{DateTime, Utc};
use rusqlite::params;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::failure::Class;
use crate::job::{Job, check_kind, instant};
use crate::pen::{Act, Group, Mode};
use crate::platform;
use crate::sql;
use crate::store::Store;

const REGISTER: Act = Act { name: "runner.start", instead: "start before the transaction" };

/// A job that died: the payload of the jobs of [`on_dead`](crate::RunnerBuilder::on_dead).
///
/// A program's own type wraps it, transparently:
///
/// ```
/// # use birkez::{Context, Death, Job, Runner, Verdicts, testing::{Drain, TempStore}};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Mail { to: String }
/// # impl Job for Mail {
/// #     const KIND: &'static str = "mail";
/// #     type Output = ();
/// #     fn key(&self) -> String { self.to.clone() }
/// # }
/// #[derive(serde::Serialize, serde::Deserialize)]
/// #[serde(transparent)]
/// struct TellDeath(Death);
///
/// impl Job for TellDeath {
///     const KIND: &'static str = "tell-death";
///     type Output = ();
///     fn key(&self) -> String { self.0.key() }
/// }
/// # fn main() -> anyhow::Result<()> {
/// # let folder = TempStore::new()?;
/// # let store = folder.open()?;
/// let runner = Runner::builder(&store)
///     .handle(|mail: Mail, _cx: &Context| anyhow::Result::<()>::Err(anyhow::anyhow!("no such address")).permanent())
///     .on_dead::<TellDeath>()
///     .handle(|TellDeath(death): TellDeath, _cx: &Context| {
///         println!("{} {} failed for good: {}", death.kind, death.key, death.text);
///         Ok(())
///     });
/// # let _ = store.enqueue(&Mail { to: "a@b.c".into() })?;
/// # assert_eq!(Drain::new(runner)?.drain()?, 2);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Death {
    /// Number of the job.
    pub job: i64,
    /// Its kind.
    pub kind: String,
    /// Its key.
    #[serde(rename = "job_key")]
    pub key: String,
    /// What people call it.
    pub label: Option<String>,
    /// Class of its last failure.
    pub class: Option<Class>,
    /// What that said.
    pub text: String,
    /// Attempts charged to it.
    pub attempts: u32,
    /// When it died.
    pub at: DateTime<Utc>,
    /// Which of its claims ended so. A job that is replayed and dies again has a higher one.
    pub token: i64,
}

impl Death {
    /// The key of the job that tells of it: another death, also of the same job, has another.
    pub fn key(&self) -> String {
        format!("{}/{}/{}", self.job, self.token, self.at.timestamp_millis())
    }
}

/// Occurrences of a schedule that did not run and need attention: the payload of the jobs of
/// [`on_missed`](crate::RunnerBuilder::on_missed). A program's own type wraps it as one wraps a [`Death`].
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[non_exhaustive]
pub struct Missed {
    /// Name of the schedule.
    pub schedule: String,
    /// Id of the oldest.
    pub first: String,
    /// Id of the newest.
    pub last: String,
    /// How many; 1,001 stands for any number above 1,000.
    pub count: u32,
    /// Why, as in [`MissedInfo`](crate::MissedInfo).
    pub reason: String,
    /// When this was recorded.
    pub at: DateTime<Utc>,
    /// Number of the record.
    pub record: i64,
}

impl Missed {
    /// The key of the job that tells of it: another record has another.
    pub fn key(&self) -> String {
        format!("{}/{}/{}", self.record, self.first, self.at.timestamp_millis())
    }
}

/// What a notice is of.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum What {
    Dead,
    Missed,
}

impl What {
    fn as_str(self) -> &'static str {
        match self {
            What::Dead => "dead",
            What::Missed => "missed",
        }
    }
}

/// A kind of job that tells.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Notice {
    what: What,
    kind: &'static str,
    shape: u32,
    check: fn() -> std::result::Result<(), String>,
}

impl Notice {
    pub(crate) fn of_death<J: Job>() -> Notice {
        Notice { what: What::Dead, kind: J::KIND, shape: J::SHAPE, check: check_death::<J> }
    }

    pub(crate) fn of_miss<J: Job>() -> Notice {
        Notice { what: What::Missed, kind: J::KIND, shape: J::SHAPE, check: check_miss::<J> }
    }
}

fn check_death<J: Job>() -> std::result::Result<(), String> {
    let sample = Death {
        job: 17,
        kind: "mail".into(),
        key: "invoice \"17\"".into(),
        label: None,
        class: Some(Class::Permanent),
        text: "no such address".into(),
        attempts: 3,
        at: instant(1_780_000_000_123),
        token: 5,
    };
    check::<J, _>(&sample, &sample.key())
}

fn check_miss<J: Job>() -> std::result::Result<(), String> {
    let sample = Missed {
        schedule: "nightly".into(),
        first: "2026-05-30T03:00:00".into(),
        last: "2026-05-31T03:00:00".into(),
        count: 2,
        reason: "skipped".into(),
        at: instant(1_780_000_000_123),
        record: 9,
    };
    check::<J, _>(&sample, &sample.key())
}

/// Whether `J` reads what birkez writes, loses nothing of it, and has its key.
fn check<J: Job, T: Serialize + DeserializeOwned>(sample: &T, key: &str) -> std::result::Result<(), String> {
    let json = |value: serde_json::Result<serde_json::Value>| value.map_err(|error| error.to_string());
    let written = json(serde_json::to_value(sample))?;
    let read: J = serde_json::from_value(written.clone()).map_err(|error| format!("it does not decode: {error}"))?;
    if json(serde_json::to_value(&read))? != written {
        return Err("it does not encode to what it was decoded from; wrap it with #[serde(transparent)]".into());
    }
    if read.key() != key {
        return Err(format!("its key is `{}` and not the description's `{key}`", read.key()));
    }
    Ok(())
}

/// Writes down which jobs are to tell, for all processes: whoever writes a death reads it there. What an earlier start of
/// this program asked for and this one does not ends, unless another process of it is alive.
pub(crate) fn register(store: &Store, runner: i64, notices: &[Notice]) -> Result<()> {
    for notice in notices {
        check_kind(notice.kind)?;
        let kind = notice.kind.to_owned();
        (notice.check)().map_err(|why| Error::NoticeInvalid { kind, source: why.into() })?;
    }
    let wanted = {
        // Another runner of this store may have asked for some.
        let mut all = store.inner.notices.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        for notice in notices {
            all.retain(|(what, kind, _)| (*what, *kind) != (notice.what.as_str(), notice.kind));
            all.push((notice.what.as_str(), notice.kind, notice.shape));
        }
        all.sort_unstable();
        all.clone()
    };
    let program = platform::program_name();
    let stored: Vec<Stored> = store.read("reading which jobs tell", |tx| stored(tx, &program))?;
    if stored.iter().map(|(what, kind, shape)| (what.as_str(), kind.as_str(), *shape)).eq(wanted.iter().copied()) {
        return Ok(());
    }
    store.inner.pen.write(REGISTER, Mode { atomic: true, ..Mode::default() }, move |group| {
        write(group, runner, &program, &wanted)?;
        Ok(())
    })
}

type Stored = (String, String, u32);

fn stored(tx: &rusqlite::Transaction<'_>, program: &str) -> rusqlite::Result<Vec<Stored>> {
    let row = |row: &rusqlite::Row<'_>| Ok((row.get(0)?, row.get(1)?, row.get(2)?));
    tx.prepare_cached(sql::NOTICES_OF_PROGRAM)?.query_map([program], row)?.collect()
}

fn write(
    group: &Group<'_>,
    runner: i64,
    program: &str,
    wanted: &[(&'static str, &'static str, u32)],
) -> rusqlite::Result<()> {
    if !group.statement(sql::HAS_SIBLING)?.exists(params![program, runner])? {
        for (what, kind, _) in stored(group.tx(), program)? {
            if !wanted.iter().any(|(w, k, _)| (*w, *k) == (what.as_str(), kind.as_str())) {
                group.statement(sql::DROP_NOTICE)?.execute(params![what, kind, program])?;
            }
        }
    }
    for (what, kind, shape) in wanted {
        group.statement(sql::SET_NOTICE)?.execute(params![what, kind, shape, program])?;
    }
    Ok(())
}

/// Enqueues what tells of a death.
pub(super) fn of_death(group: &mut Group<'_>, death: &Death) -> rusqlite::Result<()> {
    let kinds = kinds(group, sql::NOTICES_OF_DEATH, [&death.kind])?;
    enqueue(group, kinds, death, &death.key(), &format!("death of job {}", death.job))
}

/// Enqueues what tells of a record of occurrences that did not run.
pub(crate) fn missed(group: &mut Group<'_>, missed: &Missed) -> rusqlite::Result<()> {
    let kinds = kinds(group, sql::NOTICES_OF_MISS, [])?;
    enqueue(group, kinds, missed, &missed.key(), &format!("schedule {}", missed.schedule))
}

fn kinds(group: &Group<'_>, sql: &str, values: impl rusqlite::Params) -> rusqlite::Result<Vec<(String, u32)>> {
    group.statement(sql)?.query_map(values, |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

fn enqueue(
    group: &mut Group<'_>,
    kinds: Vec<(String, u32)>,
    description: &impl Serialize,
    key: &str,
    origin: &str,
) -> rusqlite::Result<()> {
    if kinds.is_empty() {
        return Ok(());
    }
    let payload =
        serde_json::to_string(description).map_err(|error| rusqlite::Error::ToSqlConversionFailure(Box::new(error)))?;
    for (kind, shape) in kinds {
        let row = params![kind, key, payload, shape, group.now, origin];
        if group.statement(sql::INSERT_NOTICE)?.execute(row)? == 1 {
            let (id, now) = (group.tx().last_insert_rowid(), group.now);
            group.note_due(now);
            group.tell_job(id, &kind, key, |job| super::Happened::Enqueued { job, run_at: instant(now) });
        }
    }
    Ok(())
}
