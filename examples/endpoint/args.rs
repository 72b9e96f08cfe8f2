//! The command line.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::time::Duration;

pub const USAGE: &str = "\
Takes sales over HTTP, each once.

usage: endpoint [--db FILE] [--listen ADDRESS] [--slow MS] | --drive

  --db FILE         the database, created if it is missing (default: panel.db)
  --listen ADDRESS  where to listen (default: 127.0.0.1:0, a free port; it is printed)
  --slow MS         how long a sale takes, to see what happens meanwhile (default: 0)
  --drive           drives itself in a folder of its own, and checks what came of it

It stops at the end of its input.";

/// What was asked for.
pub struct Args {
    pub db: PathBuf,
    pub listen: SocketAddr,
    pub slow: Duration,
    pub drive: bool,
}

impl Args {
    /// The error says what is wrong.
    pub fn parse(mut words: impl Iterator<Item = String>) -> Result<Args, String> {
        let mut args = Args {
            db: PathBuf::from("panel.db"),
            listen: (Ipv4Addr::LOCALHOST, 0).into(),
            slow: Duration::ZERO,
            drive: false,
        };
        while let Some(word) = words.next() {
            let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
            match word.as_str() {
                "--db" => args.db = value()?.into(),
                "--listen" => args.listen = value()?.parse().map_err(|wrong| format!("--listen: {wrong}"))?,
                "--slow" => {
                    args.slow = Duration::from_millis(value()?.parse().map_err(|wrong| format!("--slow: {wrong}"))?);
                }
                "--drive" => args.drive = true,
                _ => return Err(format!("unknown argument {word:?}")),
            }
        }
        Ok(args)
    }
}
