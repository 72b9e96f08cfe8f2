//! Posts card instalments to a ledger on the night each statement closes.
//!
//! A schedule comes due every night at 03:00 in Istanbul and makes one job for each card whose statement closes, named by
//! card and statement date. The job's handler writes the statement's rows and the job's completion in one transaction, so
//! that no row is written twice, whatever moment the program is killed at: it is started again and goes on.
//!
//! What is posted is never edited. A refund is a job of its own, too, which writes a compensating row and names the
//! statement's job that it corrects.
//!
//! The nights are walked by hand, on a clock that is set from one to the next; a panel that runs all day would start the
//! runner instead, and change nothing else.

mod args;
mod book;
mod failure;
mod input;
mod ledger;
mod nightly;
mod refund;
mod report;
mod rules;

use std::io::{Write, stdout};
use std::process::ExitCode;

use crate::args::{Args, USAGE};
use crate::report::{Bar, Report, card_list};

fn main() -> ExitCode {
    let args = match Args::parse(std::env::args_os().skip(1)) {
        Ok(args) => args,
        Err(wrong) => {
            eprintln!("card_statements: {wrong}\n\n{USAGE}");
            return ExitCode::from(2);
        }
    };
    let outcome = match args.help {
        true => Ok(USAGE.to_owned()),
        false => run(&args),
    };
    let (text, code) = match outcome {
        Ok(text) => (Some(text), ExitCode::SUCCESS),
        Err(error) => {
            eprintln!("card_statements: {error:#}");
            let json = || format!("{:#}", serde_json::json!({ "error": failure::shape(&error) }));
            (args.json.then(json), ExitCode::FAILURE)
        }
    };
    // Whoever reads may have gone; the ledger is written all the same.
    if let Some(text) = text {
        let _ = writeln!(stdout(), "{text}");
    }
    code
}

/// Walks the nights, or refunds a purchase; answers what there is to print.
fn run(args: &Args) -> anyhow::Result<String> {
    let book = input::read(&args.purchases)?;
    if let Some(wish) = &args.refund {
        let refunded = refund::run(&args.db, book, wish)?;
        return if args.json { refunded.json() } else { Ok(refunded.line()) };
    }
    let through = args.through.or(book.last_statement());
    let known = (book.purchases(), card_list(&book));
    let mut bar = Bar::new();
    let walked = nightly::run(&args.db, book, through, |night, behind, nights| bar.draw(night, behind, nights));
    drop(bar);
    let (walked, ledger) = walked?;
    let report = Report::new(&args.db, known, through, &walked, ledger.balances()?);
    if args.json { report.json() } else { Ok(report.line()) }
}
