//! What a kind says of its dead letters, kept in the file so that every process can show it.

use std::collections::BTreeMap;
use std::fmt;

use rusqlite::OptionalExtension;
use serde::{Deserialize, Serialize};

use crate::enqueue::text;
use crate::error::Result;
use crate::failure::Class;
use crate::job::Job;
use crate::sql;
use crate::store::{JobInfo, Store};

/// What is to be done before a job that failed so is replayed ([`Job::advice`]).
///
/// ```
/// use birkez::Advice;
/// assert_eq!(Advice::mend_first("sign in to the bank again").to_string(), "mend first: sign in to the bank again");
/// ```
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Advice {
    /// It can be replayed as it is.
    SafeToReplay,
    /// This is to be put right before.
    MendFirst(String),
}

impl Advice {
    /// This is to be put right before.
    pub fn mend_first(what: impl Into<String>) -> Advice {
        Advice::MendFirst(what.into())
    }
}

impl fmt::Display for Advice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Advice::SafeToReplay => f.write_str("safe to replay"),
            Advice::MendFirst(what) => write!(f, "mend first: {what}"),
        }
    }
}

/// What a kind says of its failures, as it stands in `birkez_kind.advice`.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(crate) struct Sayings {
    /// How many attempts it allows; `None`: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempts: Option<u32>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    classes: BTreeMap<String, Advice>,
}

impl Sayings {
    pub(crate) fn of<J: Job>() -> Sayings {
        let advice = |class: Class| Some((class.as_str().to_owned(), J::advice(class)?));
        Sayings { attempts: J::retry().max_attempts, classes: Class::ALL.into_iter().filter_map(advice).collect() }
    }

    pub(crate) fn json(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }

    /// What it says of a class.
    pub(crate) fn advice(mut self, class: Option<Class>) -> Option<Advice> {
        self.classes.remove(class?.as_str())
    }

    /// What stands in the file; what cannot be read says nothing.
    pub(crate) fn stored(json: Option<&str>) -> Sayings {
        json.and_then(|json| serde_json::from_str(json).ok()).unwrap_or_default()
    }
}

impl Store {
    /// What the kind of a job says of its last failure's class: whether it is safe to replay, or what is to be mended
    /// first. `None` if it says nothing, or the job has not failed. A program that handled the kind last has said it; this
    /// one need not know the kind.
    ///
    /// ```
    /// # use birkez::{Advice, Class, Context, Filter, Job, Page, Runner, Verdicts, testing::{Drain, TempStore}};
    /// #[derive(serde::Serialize, serde::Deserialize)]
    /// struct Fetch { bank: String }
    /// impl Job for Fetch {
    ///     const KIND: &'static str = "fetch";
    ///     type Output = ();
    ///     fn key(&self) -> String { self.bank.clone() }
    ///     fn advice(class: Class) -> Option<Advice> {
    ///         match class {
    ///             Class::Transient | Class::Timeout => Some(Advice::SafeToReplay),
    ///             Class::Permanent => Some(Advice::mend_first("the account's number")),
    ///             _ => None,
    ///         }
    ///     }
    /// }
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = TempStore::new()?;
    /// # let store = folder.open()?;
    /// # let _ = store.enqueue(&Fetch { bank: "north".into() })?;
    /// # let refuse = |_: Fetch, _: &Context| anyhow::Result::<()>::Err(anyhow::anyhow!("no such account")).permanent();
    /// # Drain::new(Runner::builder(&store).handle(refuse))?.drain()?;
    /// for job in store.list(&Filter::dead(), Page::first(20))? {
    ///     let advice = store.advice(&job)?;
    ///     assert_eq!(advice.unwrap().to_string(), "mend first: the account's number");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// Those of reading the file.
    pub fn advice(&self, job: &JobInfo) -> Result<Option<Advice>> {
        let Some(failure) = &job.last_failure else { return Ok(None) };
        let said = self.read("reading what a kind advises", |tx| {
            tx.prepare_cached(sql::KIND_SAYS)?.query_row([&job.kind], |row| text(row, 2)).optional()
        })?;
        Ok(Sayings::stored(said.flatten().as_deref()).advice(Some(failure.class)))
    }
}
