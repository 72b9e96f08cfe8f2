//! The command line.

mod next;

use std::io::{self, Write};
use std::process::ExitCode;

use clap::error::ErrorKind;
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
        Err(error) if !error.use_stderr() => {
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            // Nobody has to be there to read it.
            let _ = writeln!(io::stderr(), "{}", one_line(&printable(error)));
            return ExitCode::from(USAGE);
        }
    };
    match args.verb {
        Verb::Next(next) => next.run(),
    }
}

/// The same error about the same arguments with their control characters escaped: what it quotes goes to a terminal.
fn printable(error: clap::Error) -> clap::Error {
    let escape = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    let escaped = std::env::args_os().map(|arg| arg.to_string_lossy().chars().map(escape).collect::<String>());
    match Args::try_parse_from(escaped) {
        // What is no UTF-8 has become readable on the way.
        Err(again) if again.kind() == error.kind() => again,
        _ => error,
    }
}

/// Scripts log what they are told as a line.
fn one_line(error: &clap::Error) -> String {
    if error.kind() == ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand {
        return "error: no verb is given; `birkez next EXPR` shows when a cron line fires, `birkez --help` more"
            .to_owned();
    }
    let text = error.to_string();
    let first = text.lines().take_while(|line| !line.trim().is_empty());
    let line = first.map(str::trim).collect::<Vec<_>>().join(" ");
    let takes_no_text = matches!(error.kind(), ErrorKind::MissingRequiredArgument | ErrorKind::UnknownArgument);
    let hint =
        if takes_no_text { "; a text that begins with -- goes after --, as in `birkez next -- --5`" } else { "" };
    format!("{line}{hint}")
}
