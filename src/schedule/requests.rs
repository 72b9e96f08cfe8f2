//! What people ask of a schedule: stored as a request, and carried out by a process that can map it.

use chrono::{DateTime, NaiveDate, Utc};
use rusqlite::params;

use super::planner::{Mine, Planner};
use super::write::{Counts, Made};
use crate::calendar::{Due, Mark};
use crate::error::Result;
use crate::failure::safe_text;
use crate::pen::{Act, Mode};
use crate::sql;

const ANSWER: Act = Act { name: "answering a request", instead: "nothing" };
/// A back-fill of more would fill the file before anyone sees what was asked for.
pub(super) const MOST: usize = 10_000;

/// What was asked of a schedule.
pub(super) enum Asked {
    /// Something was carried out, or has failed: look again.
    Done,
    /// Nothing is to be done until then.
    Until(Option<DateTime<Utc>>),
}

/// A request that is open.
struct Request {
    id: i64,
    verb: String,
    first: Option<String>,
    last: Option<String>,
    try_at: Option<i64>,
    failures: u32,
}

/// What came of a request, or why its mapping failed.
type Answer = std::result::Result<String, String>;

impl Planner {
    /// Carries out the first open request of a schedule whose time has come. One that fails has a backoff of its own.
    pub(super) fn carry_out_asked(&self, mine: &Mine) -> Result<Asked> {
        let open: Vec<Request> = self.store.read("looking for requests", |tx| {
            let mut ask = tx.prepare_cached(sql::ASKED)?;
            let read = |row: &rusqlite::Row<'_>| {
                Ok(Request {
                    id: row.get(0)?,
                    verb: row.get(1)?,
                    first: row.get(2)?,
                    last: row.get(3)?,
                    try_at: row.get(4)?,
                    failures: row.get(5)?,
                })
            };
            ask.query_map(params![mine.row.id], read)?.collect()
        })?;
        let Some(asked) = self.ready(mine, &open)? else {
            return Ok(Asked::Until(open.iter().filter_map(|asked| self.later(asked.try_at)).min()));
        };
        let answer = match asked.verb.as_str() {
            "run" => self.run_asked(mine, asked)?,
            "backfill" => self.backfill(mine, asked)?,
            other => Ok(format!("this program knows no request `{}`", other.escape_debug())),
        };
        let (id, delay) = (asked.id, self.backoff(asked.failures));
        self.store.inner.pen.write(ANSWER, Mode::default(), move |group| {
            match answer {
                Ok(text) => group.statement(sql::ANSWER)?.execute(params![id, group.now, text])?,
                Err(text) => {
                    let try_at = group.now.saturating_add(delay);
                    group.statement(sql::REQUEST_FAILED)?.execute(params![id, safe_text(&text), try_at])?
                }
            };
            Ok(())
        })?;
        Ok(Asked::Done)
    }

    /// The first whose time has come. One whose occurrence stands in the file by now waits for no backoff.
    fn ready<'a>(&self, mine: &Mine, open: &'a [Request]) -> Result<Option<&'a Request>> {
        for asked in open {
            let stands = match &asked.first {
                Some(id) if asked.verb == "run" => self.exists(mine, id)?,
                _ => false,
            };
            if stands || self.later(asked.try_at).is_none() {
                return Ok(Some(asked));
            }
        }
        Ok(None)
    }

    /// One occurrence by its id, or one of its own that is due now.
    fn run_asked(&self, mine: &Mine, asked: &Request) -> Result<Answer> {
        let (calendar, zone) = (&mine.schedule.calendar, &mine.schedule.zone);
        let Some(id) = &asked.first else {
            let (local, id) = (zone.local(self.now()), format!("asked-{}", asked.id));
            if self.exists(mine, &id)? {
                // It was made, and a kill came before the answer.
                return Ok(Ok("ran".to_owned()));
            }
            let due = Due::now(local.naive_local(), self.now(), *local.offset());
            return Ok(self.make_asked(mine, due, id, "asked")?.map(told));
        };
        if self.exists(mine, id)? {
            return Ok(Ok(told(Made::Stood)));
        }
        let found = id.parse::<Mark>().ok().and_then(|mark| calendar.find(zone, mark));
        let Some(due) = found else { return Ok(Ok(format!("it has no occurrence `{}`", id.escape_debug()))) };
        Ok(self.make_asked(mine, due, due.occurrence(), "asked")?.map(told))
    }

    /// Every occurrence of the dates that is due and does not stand in the file yet, oldest first.
    fn backfill(&self, mine: &Mine, asked: &Request) -> Result<Answer> {
        let date = |text: &Option<String>| text.as_ref().and_then(|text| text.parse::<NaiveDate>().ok());
        let (Some(first), Some(last)) = (date(&asked.first), date(&asked.last)) else {
            return Ok(Ok("its dates cannot be read".to_owned()));
        };
        let now = self.now();
        let (mut made, mut existing) = (0, 0);
        let due = mine.schedule.calendar.on_dates(&mine.schedule.zone, first, last);
        for due in due.take_while(|due| due.at <= now).take(MOST) {
            if self.exists(mine, &due.occurrence())? {
                continue;
            }
            match self.make_asked(mine, due, due.occurrence(), "backfill")? {
                Ok(Made::New(counts)) => {
                    made += 1;
                    existing += counts.existing;
                }
                Ok(_) => {}
                Err(text) => return Ok(Err(format!("occurrence {}: {text}", due.occurrence()))),
            }
        }
        let met = if existing == 0 { String::new() } else { format!("; {existing} of their jobs existed already") };
        Ok(Ok(format!("made {made}{met}")))
    }

    fn exists(&self, mine: &Mine, occurrence: &str) -> Result<bool> {
        self.store.read("looking for an occurrence", |tx| {
            tx.prepare_cached(sql::HAS_OCCURRENCE)?.exists(params![mine.row.id, occurrence])
        })
    }
}

/// What came of one occurrence.
fn told(made: Made) -> String {
    let Made::New(Counts { jobs, existing, conflicts }) = made else { return "stood in the file already".to_owned() };
    let mut text = match (jobs, existing) {
        (_, 0) => "ran".to_owned(),
        (1, 1) => "its job existed already".to_owned(),
        (jobs, existing) if jobs == existing => format!("its {jobs} jobs existed already"),
        (jobs, existing) => format!("ran; {existing} of its {jobs} jobs existed already"),
    };
    if conflicts > 0 {
        text += &format!("; keys with other content: {conflicts}");
    }
    text
}
