//! The walk: night by night from where the file stands, each night's statements posted before the next.

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::bail;
use birkez::calendar::{Calendar, CatchUp, Due, Mark, Zone};
use birkez::testing::{Drain, ManualClock};
use birkez::{Context, Error, Job, Occurrence, Overlap, Runner, Schedule, ScheduleInfo, Store};
use chrono::{DateTime, NaiveDate, NaiveDateTime, TimeDelta, Utc};

use crate::book::{Book, Statement, difference, split_key};
use crate::failure::Failure;
use crate::ledger::{self, Ledger};
use crate::refund::Refund;

const SCHEDULE: &str = "card-statements";
const LINE: &str = "0 3 * * *";
const ZONE: &str = "Europe/Istanbul";
/// A statement with a hundred thousand rows is still one job.
const PAYLOAD_LIMIT: usize = 256 * 1024 * 1024;
/// Another run on the same file may be posting what this one has found.
const OTHERS: Duration = Duration::from_secs(30);

/// What a run has come to.
#[derive(Debug, Default)]
pub struct Walked {
    pub nights: usize,
    pub statements: usize,
    pub rows: usize,
    /// Every statement up to this date has closed.
    pub closed_by: Option<NaiveDate>,
}

/// What the handler has committed in this process.
#[derive(Default)]
struct Posted {
    statements: AtomicUsize,
    rows: AtomicUsize,
    refunds: AtomicUsize,
}

impl Posted {
    fn jobs(&self) -> usize {
        self.statements.load(Ordering::Acquire) + self.refunds.load(Ordering::Acquire)
    }
}

/// A file of statements, and the purchases that they are made of.
pub struct Nightly {
    pub store: Store,
    pub ledger: Ledger,
    pub book: Arc<Book>,
    pub clock: Arc<ManualClock>,
    calendar: Calendar,
    zone: Zone,
    posted: Arc<Posted>,
}

/// Posts all statements that close through a date, and answers what was left to post. `progress` is told the night, how
/// many nights are behind it and how many there are.
pub fn run(
    file: &Path,
    book: Book,
    through: Option<NaiveDate>,
    progress: impl FnMut(NaiveDate, usize, usize),
) -> anyhow::Result<(Walked, Ledger)> {
    let nightly = Nightly::open(file, book)?;
    let mark = nightly.mark()?;
    let closed_by = mark.map(last_closed);
    if let Some(date) = closed_by {
        nightly.offer_again(date)?;
    }
    let nights = nightly.nights_after(closed_by, through);
    let owed = nightly.ledger.open_job(DateTime::<Utc>::MAX_UTC)?.is_some();
    if owed || !nights.is_empty() {
        nightly.clock.set(nightly.start(mark, &nights)?);
        nightly.walk(&nights, progress)?;
    }
    let walked = Walked {
        nights: nights.len(),
        statements: nightly.posted.statements.load(Ordering::Acquire),
        rows: nightly.posted.rows.load(Ordering::Acquire),
        closed_by: nights.last().map(Due::date).or(closed_by),
    };
    Ok((walked, nightly.ledger))
}

/// The last date whose night is behind a mark.
pub fn last_closed(mark: NaiveDateTime) -> NaiveDate {
    (mark - TimeDelta::hours(3)).date()
}

impl Nightly {
    pub fn open(file: &Path, book: Book) -> anyhow::Result<Nightly> {
        let clock = ManualClock::at(DateTime::UNIX_EPOCH);
        let store = Store::builder(file).clock(clock.clone()).payload_limit(PAYLOAD_LIMIT).open()?;
        ledger::create_tables(&store)?;
        Ok(Nightly {
            ledger: Ledger::open(store.path())?,
            store,
            book: Arc::new(book),
            clock,
            calendar: Calendar::cron(LINE)?,
            zone: Zone::parse(ZONE)?,
            posted: Arc::default(),
        })
    }

    /// How far the file has been walked.
    pub fn mark(&self) -> anyhow::Result<Option<NaiveDateTime>> {
        match self.schedule()?.map(|schedule| schedule.mark.parse()).transpose()? {
            Some(Mark::Wall(time)) => Ok(Some(time)),
            None => Ok(None),
            Some(Mark::Interval(_)) => bail!("the file's schedule {SCHEDULE} is not one of nights"),
        }
    }

    fn schedule(&self) -> anyhow::Result<Option<ScheduleInfo>> {
        Ok(self.store.schedules()?.into_iter().find(|schedule| schedule.name == SCHEDULE))
    }

    /// Offers the statements that have closed again: a repeat is harmless, and other content under a known key shows
    /// that the purchases have been changed since.
    pub fn offer_again(&self, closed_by: NaiveDate) -> anyhow::Result<()> {
        let offered = self.book.closed_by(closed_by);
        self.check_keys(&offered)?;
        match self.store.enqueue_all(&offered) {
            Ok(_) => Ok(()),
            Err(Error::KeyReused { key, .. }) => Err(self.reused(&key, &offered, 0)?),
            Err(error) => Err(error.into()),
        }
    }

    /// The statements of a closed night were stored together with the mark. One that is not among them would be new, not
    /// a repeat, and one that is no longer offered would go unnoticed.
    fn check_keys(&self, offered: &[Statement]) -> anyhow::Result<()> {
        let known: BTreeSet<String> = self.ledger.statement_keys()?.into_iter().collect();
        let keys: BTreeSet<String> = offered.iter().map(Job::key).collect();
        let different = known.symmetric_difference(&keys);
        let oldest = different.clone().min_by_key(|key| split_key(key).map(|(card, date)| (date, card)));
        match oldest {
            Some(key) => Err(self.reused(key, offered, different.count() - 1)?),
            None => Ok(()),
        }
    }

    /// Says how a closed statement would differ from what it was posted with. `more` others differ too.
    fn reused(&self, key: &str, offered: &[Statement], more: usize) -> anyhow::Result<anyhow::Error> {
        let Some((card_id, statement_date)) = split_key(key) else {
            bail!("the file has a job of statements with the key {key:?}, which is not a card and a date");
        };
        let stored: Option<Statement> = self.ledger.stored(key)?;
        let now = offered.iter().find(|statement| statement.key() == key);
        let mut text = difference(stored.as_ref(), now);
        if more > 0 {
            text += &format!(" (and {more} more statements)");
        }
        Ok(Failure::Reused { card_id: card_id.to_owned(), statement_date, text }.into())
    }

    /// The nights that are left to walk.
    fn nights_after(&self, closed_by: Option<NaiveDate>, through: Option<NaiveDate>) -> Vec<Due> {
        let first = closed_by.map_or(self.book.first_purchase(), |date| date.succ_opt());
        match (first, through) {
            (Some(first), Some(through)) => self.calendar.on_dates(&self.zone, first, through).collect(),
            _ => Vec::new(),
        }
    }

    /// Where the clock begins: at the mark; for a new file just before the first night, since a schedule owes nothing
    /// from before its first registration. An attempt that failed in an earlier run is due again by then.
    pub fn start(&self, mark: Option<NaiveDateTime>, nights: &[Due]) -> anyhow::Result<DateTime<Utc>> {
        let at_mark = mark.and_then(|mark| self.calendar.find(&self.zone, Mark::Wall(mark))).map(|due| due.at);
        let before_first = nights.first().map(|night| night.at - TimeDelta::seconds(1));
        let again = self.ledger.last_due()?;
        Ok(at_mark.or(before_first).max(again).unwrap_or(DateTime::UNIX_EPOCH))
    }

    fn walk(&self, nights: &[Due], mut progress: impl FnMut(NaiveDate, usize, usize)) -> anyhow::Result<()> {
        let drain = self.drain()?;
        // What an earlier run has left.
        self.post_due(&drain)?;
        for (behind, night) in nights.iter().enumerate() {
            progress(night.date(), behind, nights.len());
            self.clock.set(self.clock.now().max(night.at));
            self.post_due(&drain)?;
            self.check_mark(night)?;
        }
        self.await_others(&drain)
    }

    /// Runs what is due, without walking on.
    pub fn finish(&self) -> anyhow::Result<()> {
        let drain = self.drain()?;
        self.post_due(&drain)?;
        self.await_others(&drain)
    }

    fn drain(&self) -> anyhow::Result<Drain> {
        let (posted, clock) = (Arc::clone(&self.posted), Arc::clone(&self.clock));
        let post = move |statement: Statement, cx: &Context| {
            let rows = cx.commit(|tx| ledger::post(tx, &statement, cx.job_id(), clock.now()))?;
            posted.statements.fetch_add(1, Ordering::AcqRel);
            posted.rows.fetch_add(rows, Ordering::AcqRel);
            Ok(rows)
        };
        let (refunded, clock) = (Arc::clone(&self.posted), Arc::clone(&self.clock));
        let refund = move |refund: Refund, cx: &Context| {
            cx.commit(|tx| ledger::post(tx, &refund.statement(), cx.job_id(), clock.now()).map(drop))?;
            refunded.refunds.fetch_add(1, Ordering::AcqRel);
            Ok(())
        };
        let book = Arc::clone(&self.book);
        let closing = move |at: &Occurrence| book.closing_on(at.date()).collect::<Vec<_>>();
        let schedule = Schedule::cron(SCHEDULE, LINE)?.zone(ZONE)?.catch_up(CatchUp::each()).overlap(Overlap::Allow);
        Ok(Drain::new(Runner::builder(&self.store).handle(post).handle(refund).schedule(schedule, closing))?)
    }

    /// Runs what is due. A statement that cannot be posted ends the run; the next run tries it again.
    fn post_due(&self, drain: &Drain) -> anyhow::Result<()> {
        let before = self.posted.jobs();
        let attempts = drain.drain()?;
        if self.posted.jobs() - before != attempts {
            self.check_jobs(|_| false)?;
        }
        Ok(())
    }

    fn check_jobs(&self, is_fine: impl Fn(&str) -> bool) -> anyhow::Result<()> {
        match self.ledger.open_job(self.clock.now())? {
            Some(job) if !is_fine(&job.state) => {
                Err(Failure::NotPosted { kind: job.kind, key: job.key, state: job.state, text: job.text }.into())
            }
            _ => Ok(()),
        }
    }

    /// A night whose jobs could not be made leaves the mark where it was.
    fn check_mark(&self, night: &Due) -> anyhow::Result<()> {
        if self.mark()?.is_some_and(|mark| mark >= night.nominal) {
            return Ok(());
        }
        let why = self.schedule()?.and_then(|schedule| schedule.error);
        let why = why.unwrap_or_else(|| "its jobs could not be stored".to_owned());
        bail!("the statements of {} could not be made: {why}", night.date())
    }

    /// Another run that walks the same file holds what it is posting.
    fn await_others(&self, drain: &Drain) -> anyhow::Result<()> {
        let start = Instant::now();
        while self.ledger.open_job(self.clock.now())?.is_some() {
            self.check_jobs(|state| state == "running" && start.elapsed() < OTHERS)?;
            std::thread::sleep(Duration::from_millis(10));
            self.post_due(drain)?;
        }
        Ok(())
    }
}
