//! A refund: what was posted stays as it is, and a compensating row is added, by a job of its own that names the
//! statement's job that it corrects.

use std::path::Path;

use anyhow::{Context as _, bail, ensure};
use birkez::{Error, Job, JobName};
use chrono::{DateTime, NaiveDate, Utc};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use crate::book::{Book, Row, Statement};
use crate::failure::Failure;
use crate::nightly::{Nightly, last_closed};

/// What is asked for.
#[derive(Debug)]
pub struct Wish {
    pub purchase_id: String,
    /// `None`: all of it.
    pub amount_minor: Option<i64>,
}

/// The job.
#[derive(Debug, PartialEq, Serialize, Deserialize)]
pub struct Refund {
    pub purchase_id: String,
    pub amount_minor: i64,
    pub currency: String,
    pub card_id: String,
    /// Of the statement that the row is shown on: the next to close when it was asked for. A closed one is not edited.
    pub statement_date: NaiveDate,
    /// The statement that it corrects: the first that the purchase is on.
    pub corrected: String,
}

impl Job for Refund {
    const KIND: &'static str = "refund";
    type Output = ();

    /// A purchase is refunded once. For several refunds of one the key would have their number behind it.
    fn key(&self) -> String {
        self.purchase_id.clone()
    }

    /// Asked for again a month later it would be shown on another statement, and it is the same refund all the same.
    fn fingerprint(&self) -> Option<Value> {
        Some(json!({ "amount_minor": self.amount_minor }))
    }

    /// Each of the two jobs shows the other. One that the file does not know cannot be corrected.
    fn corrects(&self) -> Option<JobName> {
        Some(JobName::new(Statement::KIND, &self.corrected))
    }
}

impl Refund {
    fn new(book: &Book, wish: &Wish, closed_by: Option<NaiveDate>) -> anyhow::Result<Refund> {
        let Some((card_id, card, plan)) = book.purchase(&wish.purchase_id) else {
            return Err(Failure::UnknownPurchase { purchase_id: wish.purchase_id.clone() }.into());
        };
        let (purchase_id, total) = (wish.purchase_id.clone(), plan.total_minor());
        let amount_minor = wish.amount_minor.unwrap_or(total);
        if !(1..=total).contains(&amount_minor) {
            return Err(Failure::BadAmount { purchase_id, amount_minor, total_minor: total }.into());
        }
        let first = plan.first().closing(card.statement_day);
        let next = card.closes_after(closed_by.unwrap_or(first)).context("the calendar has no later statement")?;
        Ok(Refund {
            purchase_id,
            amount_minor,
            currency: card.currency.clone(),
            card_id: card_id.to_owned(),
            statement_date: next,
            corrected: format!("{card_id}/{first}"),
        })
    }

    /// Its row, as a part of the statement that it is shown on.
    pub fn statement(&self) -> Statement {
        let row = Row { purchase_id: self.purchase_id.clone(), instalment: 0, amount_minor: -self.amount_minor };
        Statement {
            card_id: self.card_id.clone(),
            statement_date: self.statement_date,
            currency: self.currency.clone(),
            rows: vec![row],
        }
    }
}

/// What has come of it.
#[derive(Debug, Serialize)]
pub struct Refunded {
    db: String,
    /// Whether this run wrote it.
    fresh: bool,
    job: i64,
    corrects_job: i64,
    /// All corrections of that job, as it shows them itself.
    corrections: Vec<i64>,
    #[serde(flatten)]
    refund: Refund,
}

/// Refunds a purchase in the file as it stands; no night is walked.
pub fn run(file: &Path, book: Book, wish: &Wish) -> anyhow::Result<Refunded> {
    // What is wrong with the wish itself is found before the file is opened.
    Refund::new(&book, wish, None)?;
    ensure!(file.try_exists()?, "there is no {}: no statement has been posted", file.display());
    let nightly = Nightly::open(file, book)?;
    let mark = nightly.mark()?;
    let closed_by = mark.map(last_closed);
    if let Some(date) = closed_by {
        nightly.offer_again(date)?;
    }
    let refund = Refund::new(&nightly.book, wish, closed_by)?;
    nightly.clock.set(nightly.start(mark, &[])?);
    let answer = match nightly.store.enqueue(&refund) {
        Err(Error::KeyReused { .. }) => return Err(other(&nightly, refund)?),
        answer => answer?,
    };
    // Fresh, or left by a run that was killed.
    if nightly.ledger.open_job(DateTime::<Utc>::MAX_UTC)?.is_some() {
        nightly.finish()?;
    }

    let job = nightly.store.job(answer.id)?.context("the refund's job is gone")?;
    let Some(corrected) = job.corrects else { bail!("the refund's job {} corrects nothing", job.id) };
    let corrections: Vec<i64> = nightly.store.corrections(corrected.id)?.iter().map(|job| job.id).collect();
    // A repeat is answered with what was written, which may be on an earlier statement than it would be now.
    let refund = nightly.ledger.stored(&refund.purchase_id)?.context("the refund's payload does not decode")?;
    let db = file.display().to_string();
    Ok(Refunded { db, fresh: answer.fresh, job: job.id, corrects_job: corrected.id, corrections, refund })
}

fn other(nightly: &Nightly, asked: Refund) -> anyhow::Result<anyhow::Error> {
    let stored: Option<Refund> = nightly.ledger.stored(&asked.purchase_id)?;
    let Refund { purchase_id, amount_minor, .. } = asked;
    Ok(Failure::OtherRefund { purchase_id, amount_minor, stored: stored.map(|refund| refund.amount_minor) }.into())
}

impl Refunded {
    /// The whole of it as one JSON object.
    pub fn json(&self) -> anyhow::Result<String> {
        Ok(serde_json::to_string_pretty(self)?)
    }

    /// One line.
    pub fn line(&self) -> String {
        let Refund { purchase_id, amount_minor, currency, card_id, statement_date, corrected } = &self.refund;
        let begin = match self.fresh {
            true => format!("Refunded purchase {purchase_id}"),
            false => format!("Nothing to write: purchase {purchase_id} is refunded"),
        };
        format!(
            "{begin}: {amount_minor} minor units of {currency} on the statement of card {card_id} of {statement_date}; job {} \
             corrects job {}, the statement {corrected}.",
            self.job, self.corrects_job
        )
    }
}
