//! A schedule's row in the file, and the words that its settings are stored as.

use std::time::Duration;

use rusqlite::Row;
use rusqlite::types::FromSql;

use super::{Overlap, Schedule};
use crate::calendar::{Calendar, CatchUp, Found, Mark, Policy, ScheduleState, Zone};
use crate::clock::millis;
use crate::job::instant;

/// See the module. What cannot be read breaks this schedule alone: [`ScheduleRow::definition`] says so.
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
    pub orphan_acknowledged: bool,
    pub last_run: Option<String>,
    pub failures: u32,
    pub error: Option<String>,
    pub try_at: Option<i64>,
    pub found_at: Option<i64>,
    pub seen_at: Option<i64>,
    pub behind_ms: i64,
    pub acknowledged: Option<String>,
    /// A column that holds what it should not.
    pub unreadable: Option<&'static str>,
}

/// The values of a row, of which some may be of another type than they should.
struct Cells<'a, 'b> {
    row: &'a Row<'b>,
    /// Which comes next.
    at: usize,
    unreadable: Option<&'static str>,
}

impl Cells<'_, '_> {
    /// The next one, which is called so.
    fn get<T: FromSql + Default>(&mut self, column: &'static str) -> T {
        self.at += 1;
        self.row.get(self.at - 1).unwrap_or_else(|_| {
            self.unreadable.get_or_insert(column);
            T::default()
        })
    }
}

impl ScheduleRow {
    pub(super) fn read(row: &Row<'_>) -> rusqlite::Result<ScheduleRow> {
        let mut cells = Cells { row, at: 1, unreadable: None };
        Ok(ScheduleRow {
            id: row.get(0)?,
            name: cells.get("name"),
            calendar: cells.get("calendar"),
            zone: cells.get("zone"),
            born: cells.get("born"),
            mark: cells.get("mark"),
            high: cells.get("high"),
            anchor: cells.get("anchor"),
            catch_up: cells.get("catch_up"),
            grace_ms: cells.get("grace_ms"),
            max_age_ms: cells.get("max_age_ms"),
            overlap: cells.get("overlap"),
            kind: cells.get("kind"),
            payload: cells.get("payload"),
            key_template: cells.get("key_template"),
            paused_at: cells.get("paused_at"),
            paused_by: cells.get("paused_by"),
            orphaned_at: cells.get("orphaned_at"),
            orphan_acknowledged: cells.get("orphan_acknowledged"),
            last_run: cells.get("last_run"),
            failures: cells.get("failures"),
            error: cells.get("error"),
            try_at: cells.get("try_at"),
            found_at: cells.get("found_at"),
            seen_at: cells.get("seen_at"),
            behind_ms: cells.get("behind_ms"),
            acknowledged: cells.get("acknowledged"),
            unreadable: cells.unreadable,
        })
    }

    /// What the row says, or why it cannot be understood.
    pub(super) fn definition(&self) -> Result<Schedule, String> {
        if let Some(column) = self.unreadable {
            return Err(format!("its column `{column}` cannot be read"));
        }
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

    /// Why it cannot make its jobs.
    pub(super) fn trouble(&self) -> Option<String> {
        self.error.clone().or_else(|| self.definition().err())
    }

    /// How far it has been evaluated.
    pub(super) fn state(&self, behind_for: Duration) -> Result<ScheduleState, String> {
        let mark = |text: &str| text.parse::<Mark>().map_err(|error| format!("mark: {error}"));
        Ok(ScheduleState {
            created: mark(&self.born)?,
            mark: mark(&self.mark)?,
            high: self.high.as_deref().map(mark).transpose()?,
            behind_for,
            found: self.found(),
        })
    }

    /// When what waits was found.
    pub(super) fn found(&self) -> Option<Found> {
        Some(Found { at: instant(self.found_at?), seen: instant(self.seen_at?) })
    }

    /// Whether its calendar has the same occurrences as another, however they are written.
    pub(super) fn means(&self, calendar: &Calendar) -> bool {
        self.calendar == calendar.to_string()
            || self.calendar.parse::<Calendar>().is_ok_and(|stored| stored.means(calendar))
    }

    /// Whether it calls the same late, and does the same about it.
    pub(super) fn judges_as(&self, words: &Words) -> bool {
        self.catch_up == words.catch_up && self.grace_ms == words.grace_ms && self.max_age_ms == words.max_age_ms
    }

    /// Whether a program's schedule is the one that stands in the file: the newest definition counts.
    pub(super) fn is(&self, schedule: &Schedule) -> bool {
        let words = Words::of(schedule);
        self.kind.is_none()
            && self.unreadable.is_none()
            && self.means(&schedule.calendar)
            && self.zone == words.zone
            && self.judges_as(&words)
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
