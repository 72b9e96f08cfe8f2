//! The command line.

mod next;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

/// A job runs once per key.
#[derive(Parser)]
#[command(name = "birkez", version, about)]
struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    /// Shows the next occurrences of a cron line.
    Next(next::Next),
}

/// A call that cannot be understood.
const USAGE: u8 = 2;

fn main() -> ExitCode {
    let args = match Args::try_parse() {
        Ok(args) => args,
        Err(error) => {
            let _ = error.print();
            return ExitCode::from(if error.use_stderr() { USAGE } else { 0 });
        }
    };
    match args.verb {
        Verb::Next(next) => next.run(),
    }
}
