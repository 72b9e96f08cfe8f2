//! Schedules that are kept in the file and have no function: a kind, a payload, and a template for keys.

use std::time::Duration;

use chrono::{DateTime, Offset};
use serde_json::Value;

use super::{Occurrence, Schedule, invalid, reason};
use crate::calendar::{Count, Due, Run};
use crate::enqueue::{NewJob, Terms};
use crate::error::Result;
use crate::job::{check_kind, check_name};

const DEFAULT_TEMPLATE: &str = "{schedule}/{nominal}";
const PLACES: [&str; 4] = ["schedule", "nominal", "date", "at"];

/// A schedule that is kept in the file: each occurrence enqueues one job of a kind, with a fixed payload, under a key made
/// from a template. Any runner that handles the kind evaluates it.
///
/// ```
/// # fn main() -> anyhow::Result<()> {
/// # let folder = birkez::testing::TempStore::new()?;
/// # let store = folder.open()?;
/// use birkez::{KeptSchedule, Schedule};
/// let nightly = Schedule::daily("nightly-backup", "02:30")?.zone("Europe/Istanbul")?;
/// store.set_schedule(&KeptSchedule::new(nightly, "backup", &serde_json::json!({"to": "/mnt/disk"}))?)?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
pub struct KeptSchedule {
    pub(super) schedule: Schedule,
    pub(super) kind: String,
    pub(super) payload: String,
    pub(super) template: String,
}

impl KeptSchedule {
    /// A schedule that enqueues jobs of `kind` with `payload`.
    ///
    /// # Errors
    ///
    /// [`Error::KindInvalid`](crate::Error::KindInvalid) if there can be no such kind.
    pub fn new(schedule: Schedule, kind: &str, payload: &Value) -> Result<KeptSchedule> {
        check_kind(kind)?;
        let (kind, payload) = (kind.to_owned(), payload.to_string());
        Ok(KeptSchedule { schedule, kind, payload, template: DEFAULT_TEMPLATE.to_owned() })
    }

    /// How its keys are made. `{schedule}` is the name, `{nominal}` the occurrence's time on the wall clock (for interval
    /// jobs its instant), `{date}` its nominal date, `{at}` its instant in UTC. Defaults to `{schedule}/{nominal}`.
    ///
    /// # Errors
    ///
    /// [`Error::ScheduleInvalid`](crate::Error::ScheduleInvalid) if it names another place, or none that differs from
    /// one occurrence to the next.
    pub fn key_template(mut self, template: &str) -> Result<KeptSchedule> {
        let name = &self.schedule.name;
        let places =
            places(template).ok_or_else(|| invalid(name, reason("a brace of the key template is not closed")))?;
        if let Some(unknown) = places.iter().find(|place| !PLACES.contains(place)) {
            let text = format!(
                "the key template knows no `{{{}}}`; it knows {{{}}}",
                unknown.escape_debug(),
                PLACES.join("}, {")
            );
            return Err(invalid(name, reason(&text)));
        }
        if !places.iter().any(|place| *place != "schedule") {
            return Err(invalid(name, reason("the key template gives every occurrence the same key; add {nominal}")));
        }
        self.template = template.to_owned();
        Ok(self)
    }

    /// Makes a job as its occurrences will, for what can never work.
    pub(super) fn check(&self, terms: &Terms) -> Result<()> {
        let Schedule { name, calendar, zone, .. } = &self.schedule;
        let at = DateTime::UNIX_EPOCH;
        let due = Due::now(at.naive_utc(), at, at.fixed_offset().offset().fix());
        let run =
            Run { due, lateness: Duration::ZERO, late: false, missed_count: Count::default(), missed_since: None };
        let id = if calendar.is_wall() { "2000-01-01T00:00:00" } else { "2000-01-01T00:00:00Z" }.to_owned();
        let occurrence = Occurrence { schedule: name.clone(), zone: *zone, run, id };
        job(&occurrence, &self.kind, 1, &self.payload, Some(&self.template), terms).map(drop)
    }
}

/// The names in braces; `None` if a brace is not closed.
fn places(template: &str) -> Option<Vec<&str>> {
    let mut places = Vec::new();
    let mut rest = template;
    while let Some(open) = rest.find('{') {
        let close = rest[open..].find('}')? + open;
        places.push(&rest[open + 1..close]);
        rest = &rest[close + 1..];
    }
    Some(places)
}

/// The job of one occurrence.
pub(super) fn job(
    occurrence: &Occurrence,
    kind: &str,
    shape: u32,
    payload: &str,
    template: Option<&str>,
    terms: &Terms,
) -> Result<NewJob> {
    let key = template
        .unwrap_or(DEFAULT_TEMPLATE)
        .replace("{nominal}", occurrence.id())
        .replace("{date}", &occurrence.date().to_string())
        .replace("{at}", &occurrence.at().format("%Y-%m-%dT%H:%M:%SZ").to_string())
        // Last: a name may look like one of the others.
        .replace("{schedule}", occurrence.schedule());
    check_name(kind, &key)?;
    NewJob::raw(kind, key, payload, shape, terms)
}
