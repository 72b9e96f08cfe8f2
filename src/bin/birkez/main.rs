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
            let code = if error.use_stderr() { USAGE } else { 0 };
            let _ = printable(error).print();
            return ExitCode::from(code);
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
    Args::try_parse_from(escaped).err().unwrap_or(error)
}
