//! What people ask of a schedule: stored as a request, and carried out by a process that can map it.

use chrono::NaiveDate;
use rusqlite::params;

use super::planner::{Mine, Planner};
use crate::calendar::{Due, Mark};
use crate::error::Result;
use crate::pen::{Act, Mode};
use crate::sql;

const ANSWER: Act = Act { name: "answering a request", instead: "nothing" };

/// A request that is open.
struct Asked {
    id: i64,
    verb: String,
    first: Option<String>,
    last: Option<String>,
}

impl Planner {
    /// Carries out the first open request of a schedule. False if there is none, or it has to be tried again later.
    pub(super) fn carry_out_asked(&self, mine: &Mine) -> Result<bool> {
        let asked = self.store.read("looking for requests", |tx| {
            let mut ask = tx.prepare_cached(sql::ASKED)?;
            let read = |row: &rusqlite::Row<'_>| {
                Ok(Asked { id: row.get(0)?, verb: row.get(1)?, first: row.get(2)?, last: row.get(3)? })
            };
            ask.query_map(params![mine.row.id], read)?.next().transpose()
        })?;
        let Some(asked) = asked else { return Ok(false) };
        let answer = match asked.verb.as_str() {
            "run" => self.run_asked(mine, &asked)?,
            "backfill" => self.backfill(mine, &asked)?,
            other => Some(format!("this program knows no request `{}`", other.escape_debug())),
        };
        let Some(answer) = answer else { return Ok(false) };
        self.store.inner.pen.write(ANSWER, Mode::default(), move |group| {
            group.statement(sql::ANSWER)?.execute(params![asked.id, group.now, answer])?;
            Ok(())
        })?;
        Ok(true)
    }

    /// One occurrence by its id, or one of its own that is due now. `None` if the mapping failed.
    fn run_asked(&self, mine: &Mine, asked: &Asked) -> Result<Option<String>> {
        let (calendar, zone) = (&mine.schedule.calendar, &mine.schedule.zone);
        let Some(id) = &asked.first else {
            let local = zone.local(self.now());
            let due = Due::now(local.naive_local(), self.now(), *local.offset());
            let made = self.make_asked(mine, due, format!("asked-{}", asked.id), "asked")?;
            return Ok(made.is_ok().then(|| "ran".to_owned()));
        };
        let found = id.parse::<Mark>().ok().and_then(|mark| calendar.find(zone, mark));
        let Some(due) = found else { return Ok(Some(format!("it has no occurrence `{}`", id.escape_debug()))) };
        let made = self.make_asked(mine, due, due.occurrence(), "asked")?;
        Ok(made.is_ok().then(|| "ran".to_owned()))
    }

    /// Every occurrence of the dates that is due and stands not in the file yet, oldest first.
    fn backfill(&self, mine: &Mine, asked: &Asked) -> Result<Option<String>> {
        let date = |text: &Option<String>| text.as_ref().and_then(|text| text.parse::<NaiveDate>().ok());
        let (Some(first), Some(last)) = (date(&asked.first), date(&asked.last)) else {
            return Ok(Some("its dates cannot be read".to_owned()));
        };
        let now = self.now();
        let mut made = 0;
        let due = mine.schedule.calendar.on_dates(&mine.schedule.zone, first, last);
        for due in due.take_while(|due| due.at <= now) {
            if self.exists(mine, &due.occurrence())? {
                continue;
            }
            if self.make_asked(mine, due, due.occurrence(), "backfill")?.is_err() {
                return Ok(None);
            }
            made += 1;
        }
        Ok(Some(format!("made {made}")))
    }
}
