//! A schedule's row in the file, and the words that its settings are stored as.

use std::time::Duration;

use rusqlite::Row;

use super::{Overlap, Schedule};
use crate::calendar::{Calendar, CatchUp, Mark, Policy, ScheduleState, Zone};
use crate::clock::millis;
use crate::job::instant;

/// See the module. Texts are parsed by [`ScheduleRow::definition`]: one that cannot be read breaks this schedule alone.
#[derive(Clone, Debug)]
pub(super) struct ScheduleRow {
    pub id: i64,
    pub name: String,
    pub calendar: String,
    pub zone: String,
    pub born: String,
    pub mark: String,
    pub high: Option<String>,
    pub anchor: i64,
    pub catch_up: String,
    pub grace_ms: i64,
    pub max_age_ms: Option<i64>,
    pub overlap: String,
    pub kind: Option<String>,
    pub payload: Option<String>,
    pub key_template: Option<String>,
    pub paused_at: Option<i64>,
    pub paused_by: Option<String>,
    pub orphaned_at: Option<i64>,
    pub last_run: Option<String>,
    pub failures: u32,
    pub error: Option<String>,
    pub try_at: Option<i64>,
}

impl ScheduleRow {
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<ScheduleRow> {
        Ok(ScheduleRow {
            id: row.get("id")?,
            name: row.get("name")?,
            calendar: row.get("calendar")?,
            zone: row.get("zone")?,
            born: row.get("born")?,
            mark: row.get("mark")?,
            high: row.get("high")?,
            anchor: row.get("anchor")?,
            catch_up: row.get("catch_up")?,
            grace_ms: row.get("grace_ms")?,
            max_age_ms: row.get("max_age_ms")?,
            overlap: row.get("overlap")?,
            kind: row.get("kind")?,
            payload: row.get("payload")?,
            key_template: row.get("key_template")?,
            paused_at: row.get("paused_at")?,
            paused_by: row.get("paused_by")?,
            orphaned_at: row.get("orphaned_at")?,
            last_run: row.get("last_run")?,
            failures: row.get("failures")?,
            error: row.get("error")?,
            try_at: row.get("try_at")?,
        })
    }

    /// What the row says, or why it cannot be understood.
    pub(super) fn definition(&self) -> Result<Schedule, String> {
        let calendar: Calendar = self.calendar.parse().map_err(|error| format!("calendar: {error}"))?;
        let zone = Zone::parse(&self.zone).map_err(|error| format!("zone: {error}"))?;
        let catch_up = catch_up(&self.catch_up).ok_or_else(|| format!("catch-up `{}` is not known", self.catch_up))?;
        let overlap = overlap(&self.overlap).ok_or_else(|| format!("overlap `{}` is not known", self.overlap))?;
        let time = |ms: i64| Duration::from_millis(ms.unsigned_abs());
        let grace = time(self.grace_ms);
        let policy = Policy { catch_up, grace, max_age: self.max_age_ms.map(time), ..Policy::default() };
        Ok(Schedule {
            name: self.name.clone(),
            calendar: calendar.anchored(instant(self.anchor)),
            zone,
            policy,
            overlap,
        })
    }

    /// How far it has been evaluated.
    pub(super) fn state(&self, behind_for: Duration) -> Result<ScheduleState, String> {
        let mark = |text: &str| text.parse::<Mark>().map_err(|error| format!("mark: {error}"));
        Ok(ScheduleState {
            created: mark(&self.born)?,
            mark: mark(&self.mark)?,
            high: self.high.as_deref().map(mark).transpose()?,
            behind_for,
        })
    }

    /// Whether a program's schedule is the one that stands in the file: the newest definition counts.
    pub(super) fn is(&self, schedule: &Schedule) -> bool {
        let words = Words::of(schedule);
        self.kind.is_none()
            && self.calendar == words.calendar
            && self.zone == words.zone
            && self.catch_up == words.catch_up
            && self.grace_ms == words.grace_ms
            && self.max_age_ms == words.max_age_ms
            && self.overlap == words.overlap
    }
}

/// A definition as it is stored.
#[derive(Clone, Debug)]
pub(super) struct Words {
    pub calendar: String,
    pub zone: String,
    pub catch_up: String,
    pub grace_ms: i64,
    pub max_age_ms: Option<i64>,
    pub overlap: &'static str,
}

impl Words {
    pub(super) fn of(schedule: &Schedule) -> Words {
        Words {
            calendar: schedule.calendar.to_string(),
            zone: schedule.zone.to_string(),
            catch_up: match schedule.policy.catch_up {
                CatchUp::Latest => "latest".to_owned(),
                CatchUp::Skip => "skip".to_owned(),
                CatchUp::Each { max: None } => "each".to_owned(),
                CatchUp::Each { max: Some(max) } => format!("each {max}"),
            },
            grace_ms: millis(schedule.policy.grace),
            max_age_ms: schedule.policy.max_age.map(millis),
            overlap: match schedule.overlap {
                Overlap::Skip => "skip",
                Overlap::QueueOne => "queue_one",
                Overlap::Allow => "allow",
            },
        }
    }
}

fn catch_up(word: &str) -> Option<CatchUp> {
    match word {
        "latest" => Some(CatchUp::Latest),
        "skip" => Some(CatchUp::Skip),
        "each" => Some(CatchUp::each()),
        other => other.strip_prefix("each ")?.parse().ok().map(CatchUp::each_of_newest),
    }
}

fn overlap(word: &str) -> Option<Overlap> {
    match word {
        "skip" => Some(Overlap::Skip),
        "queue_one" => Some(Overlap::QueueOne),
        "allow" => Some(Overlap::Allow),
        _ => None,
    }
}
