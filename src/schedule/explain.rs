//! Why a schedule's occurrences of a day ran, or did not: what never became a job leaves no job to ask.

mod fate;

use std::path::Path;
use std::time::Duration;

use chrono::{DateTime, NaiveDate, TimeDelta, Utc};
use rusqlite::{OptionalExtension, Row, Transaction, params};

pub use self::fate::{Fate, OccurrenceFate};
use super::Schedule;
use super::look::{behind, next, waits};
use super::row::ScheduleRow;
use super::verbs::subject;
use crate::calendar::{Due, Mark, ScheduleState};
use crate::enqueue::text;
use crate::error::{Error, Result};
use crate::explain::DeedRef;
use crate::job::instant;
use crate::presence::{Absence, Subject};
use crate::sql;
use crate::state::{JobRef, State};
use crate::store::Store;

/// Most occurrences of a day that are told of.
const MOST: usize = 1_000;
/// The verb of the deed.
const PAUSE: &str = "pause schedule";
const RESUME: &str = "resume schedule";
/// A runner looks at least as often as this.
const LOOKS: TimeDelta = TimeDelta::seconds(60);

impl Store {
    /// Says of each occurrence that is due on a date whether it ran, and if it did not, why; at least one answer, which
    /// says when the schedule is due next if it is not due that day. The date is the nominal one, in the schedule's own
    /// zone. At most the first 1,000 occurrences of a day are told of.
    ///
    /// Whether somebody was there to run it is told by the history of what runners had in their hands; that begins with
    /// the first runner of a program of this version.
    ///
    /// ```
    /// # fn main() -> anyhow::Result<()> {
    /// # let folder = birkez::testing::TempStore::new()?;
    /// # let store = folder.open()?;
    /// # use birkez::{KeptSchedule, Schedule};
    /// let nightly = Schedule::daily("nightly", "02:30")?.zone("Europe/Istanbul")?;
    /// store.set_schedule(&KeptSchedule::new(nightly, "backup", &serde_json::json!({}))?)?;
    /// for told in store.explain_schedule("nightly", "2020-02-01".parse()?)? {
    ///     println!("{told}");
    ///     assert_eq!(told.fate.code(), "before_its_time");
    /// }
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Errors
    ///
    /// [`Error::NoSuchSchedule`]; those of reading the file.
    pub fn explain_schedule(&self, name: &str, date: NaiveDate) -> Result<Vec<OccurrenceFate>> {
        let now = instant(self.inner.clock.wall());
        let told = self.read("explaining a schedule", |tx| {
            let row = tx.prepare_cached(sql::SCHEDULE_BY_NAME)?.query_row([name], ScheduleRow::read).optional()?;
            row.map(|row| explain(tx, self.path(), row, date, now)).transpose()
        })?;
        told.ok_or_else(|| Error::NoSuchSchedule { name: name.escape_debug().to_string() })
    }
}

fn explain(
    tx: &Transaction<'_>,
    database: &Path,
    row: ScheduleRow,
    date: NaiveDate,
    now: DateTime<Utc>,
) -> rusqlite::Result<Vec<OccurrenceFate>> {
    let name = row.name.clone();
    let understood = row.definition().and_then(|schedule| Ok((schedule, row.state(Duration::ZERO)?)));
    let (schedule, state) = match understood {
        Ok(understood) => understood,
        Err(text) => return Ok(vec![OccurrenceFate::of_day(name, Fate::Broken { text })]),
    };
    let view = View { tx, database, row, schedule, state, now };
    let mut told = Vec::new();
    let Schedule { calendar, zone, .. } = &view.schedule;
    for due in calendar.on_dates(zone, date, date).take(MOST) {
        told.push(view.due(due)?);
    }
    view.others_of(date, &mut told)?;
    if told.is_empty() {
        told.push(OccurrenceFate::of_day(name, Fate::NotDue { next: next(tx, &view.row, now)? }));
    }
    told.sort_by_key(|told| told.due_at);
    Ok(told)
}

/// One look at a schedule.
struct View<'a> {
    tx: &'a Transaction<'a>,
    database: &'a Path,
    row: ScheduleRow,
    schedule: Schedule,
    state: ScheduleState,
    now: DateTime<Utc>,
}

/// An occurrence that stands in the file.
struct Made {
    id: String,
    due_at: i64,
    made_at: i64,
    cause: String,
    conflicts: Vec<String>,
    jobs: u32,
}

impl Made {
    fn read(row: &Row<'_>) -> rusqlite::Result<Made> {
        let conflicts = text(row, 4)?.and_then(|json| serde_json::from_str(&json).ok());
        Ok(Made {
            id: text(row, 0)?.unwrap_or_default(),
            due_at: row.get(1)?,
            made_at: row.get(2)?,
            cause: text(row, 3)?.unwrap_or_default(),
            conflicts: conflicts.unwrap_or_default(),
            jobs: row.get(5)?,
        })
    }
}

impl View<'_> {
    /// What stands in the file of that date and is in the calendar no longer, or never was.
    fn others_of(&self, date: NaiveDate, told: &mut Vec<OccurrenceFate>) -> rusqlite::Result<()> {
        let day = date.and_time(chrono::NaiveTime::MIN).and_utc();
        // Wherever its zone is, the date lies within.
        let [from, until] = [day - TimeDelta::hours(15), day + TimeDelta::hours(39)].map(|at| at.timestamp_millis());
        let mut ask = self.tx.prepare_cached(sql::OCCURRENCES_DUE)?;
        let made = ask.query_map(params![self.row.id, from, until], Made::read)?;
        for made in made {
            let made = made?;
            let is_told = told.iter().any(|told| told.occurrence.as_ref() == Some(&made.id));
            if !is_told && self.schedule.zone.local(instant(made.due_at)).date_naive() == date {
                told.push(self.made(made)?);
            }
        }
        Ok(())
    }

    fn due(&self, due: Due) -> rusqlite::Result<OccurrenceFate> {
        let id = due.occurrence();
        let row = params![self.row.id, id];
        if let Some(made) = self.tx.prepare_cached(sql::OCCURRENCE)?.query_row(row, Made::read).optional()? {
            return self.made(made);
        }
        let mut fates = match self.left_out(&due)? {
            Some(fates) => fates,
            None => self.not_made(&due)?,
        };
        let fate = fates.remove(0);
        let (schedule, due_at) = (self.row.name.clone(), Some(due.at));
        Ok(OccurrenceFate { schedule, occurrence: Some(id), due_at, fate, others: fates })
    }

    fn made(&self, made: Made) -> rusqlite::Result<OccurrenceFate> {
        let (due, at) = (instant(made.due_at), instant(made.made_at));
        let mut others = Vec::new();
        let fate = if made.cause == "marked_done" {
            Fate::MarkedDone { at, by: self.deed("mark occurrence done", at)? }
        } else {
            let late =
                (at - due).to_std().ok().filter(|late| made.cause == "due" && *late > self.schedule.policy.grace);
            if late.is_some() {
                others.extend(self.nobody_at(due)?);
            }
            let (jobs, conflicts) = (self.jobs(&made.id)?, made.conflicts);
            let (late_ms, of) = (late.map(crate::clock::millis), made.jobs);
            Fate::Ran { at, cause: made.cause, late_ms, of, jobs, conflicts }
        };
        let schedule = self.row.name.clone();
        Ok(OccurrenceFate { schedule, occurrence: Some(made.id), due_at: Some(due), fate, others })
    }

    /// What the records say of one that does not run: why it was not found in time, then what was done about it.
    fn left_out(&self, due: &Due) -> rusqlite::Result<Option<Vec<Fate>>> {
        let id = due.occurrence();
        let mut ask = self.tx.prepare_cached(sql::MISSED_WITH)?;
        let row = |row: &Row<'_>| {
            Ok((text(row, 1)?.unwrap_or_default(), text(row, 3)?.unwrap_or_default(), instant(row.get(4)?)))
        };
        let Some((last, reason, at)) = ask.query_row(params![self.row.id, id], row).optional()? else {
            return Ok(None);
        };
        let fate = match reason.as_str() {
            "paused" => {
                // Resumed before this one was due, that pause was over: the record is of another, such as a restore's.
                let resumed = self.deed(RESUME, due.at)?;
                let by = self.deed(PAUSE, at)?;
                let by = by.filter(|by| resumed.is_none_or(|resumed| resumed.at <= by.at));
                return Ok(Some(vec![Fate::Paused { since: by.as_ref().map(|by| by.at), by, is_over: true }]));
            }
            "changed" => return Ok(Some(vec![Fate::Changed { at }])),
            "overlap" => {
                let before = self.neighbour(sql::MADE_BEFORE, &id)?;
                let jobs = before.as_deref().map(|id| self.jobs(id)).transpose()?.unwrap_or_default();
                return Ok(Some(vec![Fate::Overlap { before, jobs }]));
            }
            "newer" => Fate::Newer { instead: self.neighbour(sql::MADE_AFTER, &last)? },
            "over_max" => Fate::OverMax { at },
            "too_old" => Fate::TooOld { at },
            _ => Fate::Skipped { at },
        };
        let late = (at - due.at).to_std().is_ok_and(|late| late > self.schedule.policy.grace);
        let missed = if late { self.not_found_in_time(due.at, at)? } else { None };
        Ok(Some(missed.into_iter().chain([fate]).collect()))
    }

    fn not_found_in_time(&self, due: DateTime<Utc>, found: DateTime<Utc>) -> rusqlite::Result<Option<Fate>> {
        Ok(match self.absence(due)? {
            Absence::Nobody(spell) => Some(Fate::NobodyThere { since: spell.until, until: spell.again }),
            Absence::There => Some(Fate::Asleep { found }),
            Absence::Untold => None,
        })
    }

    /// Neither made nor recorded.
    fn not_made(&self, due: &Due) -> rusqlite::Result<Vec<Fate>> {
        let Schedule { calendar, zone, .. } = &self.schedule;
        let own = |mark: Mark| calendar.carry_over(zone, mark, zone);
        let mark = due.mark();
        if due.at > self.now {
            let mut fates = vec![Fate::NotYet { at: due.at }];
            fates.extend(self.held()?);
            return Ok(fates);
        }
        if mark <= own(self.state.created) {
            return Ok(vec![Fate::BeforeItsTime { began: self.row.born.clone() }]);
        }
        let passed = self.state.high.map_or(own(self.state.mark), |high| own(self.state.mark).later(own(high)));
        if mark <= passed {
            let behind = behind(&self.row, self.now).map(|behind| waits(&self.row.mark, behind));
            let passed = || Fate::Passed { mark: passed.to_string() };
            return Ok(vec![behind.map_or_else(passed, |text| Fate::ClockBehind { text })]);
        }
        let mut fates = self.held()?;
        fates.extend(self.asked(due)?);
        fates.extend(self.unfinished()?);
        if fates.is_empty() {
            let is_soon = self.now - due.at <= LOOKS;
            fates.push(if is_soon { Fate::AboutToRun } else { Fate::Overdue { since: due.at } });
        }
        Ok(fates)
    }

    /// What keeps the schedule as a whole from making anything.
    fn held(&self) -> rusqlite::Result<Vec<Fate>> {
        let row = &self.row;
        let mut fates = Vec::new();
        if let Some(at) = row.paused_at.map(instant) {
            fates.push(Fate::Paused { since: Some(at), by: self.paused_by(at)?, is_over: false });
        }
        fates.extend(row.orphaned_at.map(|at| Fate::Orphaned { since: instant(at) }));
        if self.subject().held_by(self.tx, self.database, self.now.timestamp_millis())? == 0 {
            fates.push(match self.absence(self.now)? {
                Absence::Nobody(spell) => Fate::NobodyThere { since: spell.until, until: None },
                _ => Fate::NobodyThere { since: None, until: None },
            });
        }
        if let Some(text) = row.error.clone() {
            fates.push(Fate::Failing { text, failures: row.failures, try_at: row.try_at.map(instant) });
        }
        Ok(fates)
    }

    /// Who has paused it. What was paused otherwise than by a deed, such as by a restore, has no reason on record.
    fn paused_by(&self, at: DateTime<Utc>) -> rusqlite::Result<Option<DeedRef>> {
        let known = self.deed(PAUSE, at)?.filter(|deed| deed.at == at);
        let row = self.row.paused_by.clone();
        Ok(known.or_else(|| row.map(|who| DeedRef { verb: PAUSE.to_owned(), who, at, why: None })))
    }

    /// An open request that it is in.
    fn asked(&self, due: &Due) -> rusqlite::Result<Option<Fate>> {
        let (id, date) = (due.occurrence(), due.date().to_string());
        let mut ask = self.tx.prepare_cached(sql::OPEN_REQUESTS)?;
        let mut rows = ask.query([self.row.id])?;
        while let Some(row) = rows.next()? {
            let word = |column| Ok::<_, rusqlite::Error>(text(row, column)?.unwrap_or_default());
            let (verb, first, last) = (word(1)?, word(2)?, word(3)?);
            if verb == "run" && first == id || verb == "backfill" && (first..=last).contains(&date) {
                let (request, at) = (row.get(0)?, instant(row.get(4)?));
                return Ok(Some(Fate::Asked { request, at, error: text(row, 5)? }));
            }
        }
        Ok(None)
    }

    /// The run that it waits for.
    fn unfinished(&self) -> rusqlite::Result<Option<Fate>> {
        let Some(before) = self.row.last_run.clone().filter(|_| self.row.found_at.is_some()) else { return Ok(None) };
        let mut ask = self.tx.prepare_cached(sql::UNFINISHED_OF)?;
        let job = ask.query_row(params![self.row.id, before], read_ref).optional()?;
        Ok(job.map(|job| Fate::Unfinished { before, job }))
    }

    fn jobs(&self, occurrence: &str) -> rusqlite::Result<Vec<JobRef>> {
        let mut ask = self.tx.prepare_cached(sql::JOBS_OF_OCCURRENCE)?;
        ask.query_map(params![self.row.id, occurrence], read_ref)?.collect()
    }

    fn neighbour(&self, sql: &str, occurrence: &str) -> rusqlite::Result<Option<String>> {
        self.tx
            .prepare_cached(sql)?
            .query_row(params![self.row.id, occurrence], |row| text(row, 0))
            .optional()
            .map(Option::flatten)
    }

    fn deed(&self, verb: &str, at: DateTime<Utc>) -> rusqlite::Result<Option<DeedRef>> {
        let asked = params![verb, subject(&self.row.name), at.timestamp_millis()];
        self.tx.prepare_cached(sql::LAST_DEED)?.query_row(asked, DeedRef::read).optional()
    }

    fn nobody_at(&self, at: DateTime<Utc>) -> rusqlite::Result<Option<Fate>> {
        Ok(match self.absence(at)? {
            Absence::Nobody(spell) => Some(Fate::NobodyThere { since: spell.until, until: spell.again }),
            _ => None,
        })
    }

    fn absence(&self, at: DateTime<Utc>) -> rusqlite::Result<Absence> {
        let times = (at.timestamp_millis(), self.now.timestamp_millis());
        self.subject().nobody_at(self.tx, self.database, times)
    }

    /// Who evaluates it: whoever registered it, or handles its kind if it is kept in the file.
    fn subject(&self) -> Subject<'_> {
        self.row.kind.as_deref().map_or_else(|| Subject::schedule(&self.row.name), Subject::kind)
    }
}

fn read_ref(row: &Row<'_>) -> rusqlite::Result<JobRef> {
    Ok(JobRef { id: row.get(0)?, state: State::stored(row.get(1)?, row.get(2)?) })
}
