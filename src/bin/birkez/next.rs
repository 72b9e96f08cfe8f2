//! `birkez next`: the next occurrences of a cron line, without any database.

use std::fmt::Display;
use std::io::{self, Write};
use std::process::ExitCode;

use birkez::calendar::{Calendar, Due, ShortMonths, Zone};
use chrono::{DateTime, SecondsFormat, Utc};
use clap::{Args, ValueEnum};
use serde_json::json;

use crate::USAGE;

/// See [`ShortMonths`].
#[derive(Clone, Copy, ValueEnum)]
enum Short {
    /// A day that a month does not have is its last.
    LastDay,
    /// A month without the day is left out, as cron does.
    Skip,
}

#[derive(Args)]
pub struct Next {
    /// Five fields, six with seconds in front, or a shorthand such as @daily.
    #[arg(allow_hyphen_values = true)]
    expr: String,
    /// An IANA zone such as Europe/Istanbul, or local.
    #[arg(long, default_value = "local")]
    zone: String,
    /// Occurrences strictly after this time (RFC 3339). Defaults to now.
    #[arg(long)]
    after: Option<String>,
    /// How many to show.
    #[arg(long, default_value_t = 5)]
    count: usize,
    /// What happens to days that a month does not have.
    #[arg(long, value_enum, default_value = "skip")]
    short_months: Short,
    /// One JSON object a line: `nominal` (what the line asked for; not for lines that run by the minute or hour) and `at`.
    #[arg(long)]
    json: bool,
}

impl Next {
    pub fn run(self) -> ExitCode {
        match self.show() {
            Ok(()) => ExitCode::SUCCESS,
            Err(Failure::Usage(text)) => {
                say(text);
                ExitCode::from(USAGE)
            }
            // Whoever reads has had enough, such as `head`.
            Err(Failure::Output(error)) if error.kind() == io::ErrorKind::BrokenPipe => ExitCode::SUCCESS,
            Err(Failure::Output(error)) => {
                say(format_args!("writing the result: {error}"));
                ExitCode::FAILURE
            }
        }
    }

    fn show(&self) -> Result<(), Failure> {
        let short = match self.short_months {
            Short::LastDay => ShortMonths::LastDay,
            Short::Skip => ShortMonths::Skip,
        };
        let calendar = Calendar::cron_with(&self.expr, short).map_err(|error| Failure::Usage(error.to_string()))?;
        let zone = Zone::parse(&self.zone).map_err(|error| Failure::Usage(error.to_string()))?;
        for warning in calendar.warnings() {
            say(format_args!("warning: {warning}"));
        }
        if let Some(warning) = zone.warning() {
            say(format_args!("warning: {warning}"));
        }
        let mut out = io::stdout().lock();
        let mut upcoming = calendar.upcoming(&zone, self.after()?).take(self.count).peekable();
        if self.count > 0 && upcoming.peek().is_none() {
            say("no occurrence is left: calendars end with the year 2100");
        }
        for due in upcoming {
            writeln!(out, "{}", self.line(&due, calendar.is_wall())).map_err(Failure::Output)?;
        }
        out.flush().map_err(Failure::Output)
    }

    fn after(&self) -> Result<DateTime<Utc>, Failure> {
        let Some(text) = &self.after else { return Ok(Utc::now()) };
        let parsed = DateTime::parse_from_rfc3339(text).map(|at| at.with_timezone(&Utc));
        let shown: String = text.chars().take(40).flat_map(char::escape_default).collect();
        let wanted = "wanted is a date and a time with an offset (RFC 3339), such as 2026-03-29T02:30:00+01:00";
        parsed.map_err(|error| Failure::Usage(format!("--after \"{shown}\": {error}; {wanted}")))
    }

    fn line(&self, due: &Due, wall: bool) -> String {
        let at = due.local().to_rfc3339_opts(SecondsFormat::Secs, false);
        let nominal = due.nominal.format("%Y-%m-%dT%H:%M:%S").to_string();
        match (self.json, wall) {
            (true, true) => json!({ "nominal": nominal, "at": at }).to_string(),
            (true, false) => json!({ "at": at }).to_string(),
            // A nominal time that daylight saving moved is shown beside the time it runs.
            (false, true) if !at.starts_with(&nominal) => format!("{at}  (for {nominal})"),
            (false, _) => at,
        }
    }
}

/// A line on stderr. Nobody has to be there to read it.
fn say(text: impl Display) {
    let _ = writeln!(io::stderr(), "birkez next: {text}");
}

enum Failure {
    Usage(String),
    Output(io::Error),
}
