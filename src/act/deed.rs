//! The record of what people did: who, when, what, why.

use chrono::{DateTime, Utc};
use rusqlite::{OptionalExtension, Row, params};
use serde::Serialize;

use crate::enqueue::text;
use crate::error::Result;
use crate::failure::{Class, safe_text};
use crate::job::{Failure, instant};
use crate::pen::Group;
use crate::sql;
use crate::state::State;
use crate::store::{JobInfo, Store};
use crate::telling::Happened;

/// Who does something to jobs, and why. It stands in the record ([`Store::deeds`]).
///
/// A text alone says who: `store.discard(17, "nightly clean-up")`.
///
/// ```
/// let deed = birkez::Deed::by("Ada").because("the bank has opened the account again");
/// ```
#[derive(Clone, Debug, PartialEq)]
#[must_use]
pub struct Deed {
    who: String,
    why: Option<String>,
}

impl Deed {
    /// Done by a person or a program.
    pub fn by(who: impl Into<String>) -> Deed {
        Deed { who: safe_text(&who.into()).into_owned(), why: None }
    }

    /// For this reason.
    pub fn because(self, why: impl Into<String>) -> Deed {
        Deed { why: Some(safe_text(&why.into()).into_owned()), ..self }
    }

    pub(crate) fn who(&self) -> &str {
        &self.who
    }

    pub(crate) fn why(&self) -> Option<&str> {
        self.why.as_deref()
    }
}

impl From<&str> for Deed {
    fn from(who: &str) -> Deed {
        Deed::by(who)
    }
}

impl From<String> for Deed {
    fn from(who: String) -> Deed {
        Deed::by(who)
    }
}

impl From<&Deed> for Deed {
    fn from(deed: &Deed) -> Deed {
        deed.clone()
    }
}

/// A deed as it was recorded.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct DeedInfo {
    /// Its number; a later one has a higher one.
    pub id: i64,
    /// When.
    pub at: DateTime<Utc>,
    /// Who.
    pub who: String,
    /// What was done, such as `discard` or `resolve`.
    pub verb: String,
    /// To which jobs, in words.
    pub subject: Option<String>,
    /// Why.
    pub why: Option<String>,
    /// What else is to be known, as JSON.
    pub detail: Option<String>,
    /// How many jobs it touched.
    pub jobs: u64,
}

/// What a job was when a deed touched it.
#[derive(Clone, Debug, PartialEq, Serialize)]
#[non_exhaustive]
pub struct Touched {
    /// The deed.
    pub deed: DeedInfo,
    /// Where the job was before.
    pub state: State,
    /// Its last failure then.
    pub last_failure: Option<Failure>,
    /// Attempts that were charged to it then.
    pub attempts: u32,
}

/// A part of the record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeedPage {
    /// Only deeds with a number below this. `None` for the newest.
    pub below: Option<i64>,
    /// How many at most.
    pub limit: u32,
}

impl Store {
    /// The record of what people did, newest first.
    ///
    /// ```
    /// # use birkez::DeedPage;
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// for deed in store.deeds(DeedPage { below: None, limit: 20 })? {
    ///     println!("{} {} {} {:?} ({} jobs)", deed.at, deed.who, deed.verb, deed.subject, deed.jobs);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn deeds(&self, page: DeedPage) -> Result<Vec<DeedInfo>> {
        let below = page.below.unwrap_or(i64::MAX);
        self.read("reading the record of deeds", |tx| {
            tx.prepare_cached(sql::DEEDS)?.query_map(params![below, page.limit], read_deed)?.collect()
        })
    }

    /// What people did to a job, oldest first.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn deeds_of(&self, job: i64) -> Result<Vec<Touched>> {
        self.read("reading what was done to a job", |tx| {
            tx.prepare_cached(sql::DEEDS_OF_JOB)?.query_map([job], read_touched)?.collect()
        })
    }

    /// The payload that a job had before a deed changed it, as JSON. `None` if that deed has not.
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn payload_before(&self, deed: i64, job: i64) -> Result<Option<String>> {
        self.read("reading a payload from before a deed", |tx| {
            let kept = tx.prepare_cached(sql::PAYLOAD_BEFORE)?.query_row([deed, job], |row| text(row, 0)).optional();
            Ok(kept?.flatten())
        })
    }
}

fn read_deed(row: &Row<'_>) -> rusqlite::Result<DeedInfo> {
    Ok(DeedInfo {
        id: row.get(0)?,
        at: instant(row.get(1)?),
        who: text(row, 2)?.unwrap_or_default(),
        verb: text(row, 3)?.unwrap_or_default(),
        subject: text(row, 4)?,
        why: text(row, 5)?,
        detail: text(row, 6)?,
        jobs: u64::try_from(row.get::<_, i64>(7)?).unwrap_or(0),
    })
}

pub(crate) fn read_touched(row: &Row<'_>) -> rusqlite::Result<Touched> {
    let class = text(row, 9)?;
    let said = text(row, 10)?.unwrap_or_default();
    Ok(Touched {
        deed: read_deed(row)?,
        state: State::stored(row.get(8)?, false),
        last_failure: class.map(|class| Failure { class: Class::stored(&class), text: said }),
        attempts: row.get(11)?,
    })
}

/// Records a deed; answers its number, for [`record_job`].
pub(crate) fn record(
    group: &mut Group<'_>,
    verb: &str,
    subject: &str,
    deed: &Deed,
    detail: Option<&str>,
) -> rusqlite::Result<i64> {
    let row = params![group.now, deed.who(), verb, safe_text(subject), deed.why(), detail];
    group.statement(sql::RECORD_DEED)?.execute(row)?;
    let id = group.tx().last_insert_rowid();
    group.tell(|| Happened::Deed { id, verb: verb.to_owned(), who: deed.who().to_owned() });
    Ok(id)
}

/// Records that a deed has touched a job, which was `before`, with its payload from before if the deed has changed that.
pub(crate) fn record_job(
    group: &Group<'_>,
    event: i64,
    before: &JobInfo,
    payload: Option<&str>,
) -> rusqlite::Result<()> {
    let failure = before.last_failure.as_ref();
    group.statement(sql::RECORD_TOUCHED)?.execute(params![
        event,
        before.id,
        before.state.number(),
        failure.map(|failure| failure.class.as_str()),
        failure.map(|failure| &failure.text),
        before.attempts,
        payload,
    ])?;
    Ok(())
}
