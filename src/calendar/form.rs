//! The ways to write a calendar, and the one text that each is kept as.

use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use chrono::{NaiveTime, TimeDelta, Timelike, Weekday};

use super::error::{CalendarError, CalendarFault, Excerpt, LONGEST};
use super::field::{Field, Fields, Values};
use super::{ShortMonths, text};

const LONGEST_PERIOD: u64 = 366 * 24 * 60 * 60;

/// What a calendar was made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Cron { text: String, fields: Box<Fields> },
    Daily(NaiveTime),
    Weekly(Weekday, NaiveTime),
    Monthly(u8, NaiveTime),
    Every(u32),
}

impl Form {
    pub(super) fn cron(input: &str) -> Result<Form, CalendarError> {
        let line = text::read(input)?;
        Ok(Form::Cron { text: line.text, fields: Box::new(line.fields) })
    }

    pub(super) fn monthly(day: u32, time: &str) -> Result<Form, CalendarError> {
        let shown = format!("monthly {day} {time}");
        let wanted = u8::try_from(day).ok().filter(|day| (1..=31).contains(day));
        let wanted = wanted.ok_or_else(|| CalendarError::new(&shown, None, CalendarFault::DayOfMonth { day }))?;
        Ok(Form::Monthly(wanted, time_of_day(&shown, time)?))
    }

    pub(super) fn daily(time: &str) -> Result<Form, CalendarError> {
        Ok(Form::Daily(time_of_day(&format!("daily {time}"), time)?))
    }

    pub(super) fn weekly(day: Weekday, time: &str) -> Result<Form, CalendarError> {
        Ok(Form::Weekly(day, time_of_day(&format!("weekly {day} {time}"), time)?))
    }

    pub(super) fn every(period: Duration) -> Result<Form, CalendarError> {
        let seconds = u32::try_from(period.as_secs()).ok().filter(|_| period.subsec_nanos() == 0);
        match seconds.filter(|seconds| (1..=LONGEST_PERIOD).contains(&u64::from(*seconds))) {
            Some(seconds) => Ok(Form::Every(seconds)),
            None => Err(CalendarError::new(&format!("every {period:?}"), None, CalendarFault::Period)),
        }
    }

    /// What happens in short months if nobody says: a cron line means what it means elsewhere, "monthly on the 31st"
    /// means every month.
    pub(super) fn short_months(&self) -> ShortMonths {
        match self {
            Form::Monthly(..) => ShortMonths::LastDay,
            _ => ShortMonths::Skip,
        }
    }

    /// Whether it can have a day of the month at all.
    pub(super) fn has_month_days(&self) -> bool {
        matches!(self, Form::Cron { .. } | Form::Monthly(..))
    }

    /// The form as a cron line, or the period.
    pub(super) fn fields(&self) -> Result<Fields, TimeDelta> {
        let daily = |time: &NaiveTime| Fields::daily(time.hour() as u8, time.minute() as u8, time.second() as u8);
        match self {
            Form::Cron { fields, .. } => Ok(**fields),
            Form::Daily(time) => Ok(daily(time)),
            Form::Weekly(day, time) => {
                Ok(Fields { weekday: Values::one(day.num_days_from_sunday() as u8), ..daily(time) })
            }
            Form::Monthly(day, time) => Ok(Fields { day: Values::one(*day), ..daily(time) }),
            Form::Every(seconds) => Err(TimeDelta::seconds(i64::from(*seconds))),
        }
    }
}

impl fmt::Display for Form {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Form::Cron { text, .. } => f.write_str(text),
            Form::Daily(time) => write!(f, "daily {}", Clock(time)),
            Form::Weekly(day, time) => write!(f, "weekly {} {}", day.to_string().to_lowercase(), Clock(time)),
            Form::Monthly(day, time) => write!(f, "monthly {day} {}", Clock(time)),
            Form::Every(seconds) => write!(f, "every {seconds}s"),
        }
    }
}

impl FromStr for Form {
    type Err = CalendarError;

    fn from_str(input: &str) -> Result<Form, CalendarError> {
        let other = || CalendarError::new(input, None, CalendarFault::Form);
        if input.len() > LONGEST {
            return Form::cron(input);
        }
        let words: Vec<&str> = input.split_ascii_whitespace().collect();
        match words[..] {
            ["daily", time] => Form::daily(time),
            ["weekly", day, time] => {
                // chrono counts from Monday, lines from Sunday.
                let number = Field::Weekday.named(day).map(|day| (day + 6) % 7);
                Form::weekly(number.and_then(|day| Weekday::try_from(day).ok()).ok_or_else(other)?, time)
            }
            ["monthly", day, time] => Form::monthly(day.parse().map_err(|_| other())?, time),
            ["every", period] => {
                let seconds = period.strip_suffix('s').and_then(|number| number.parse().ok()).ok_or_else(other)?;
                Form::every(Duration::from_secs(seconds))
            }
            ["daily" | "weekly" | "monthly" | "every", ..] => Err(other()),
            _ => Form::cron(input),
        }
    }
}

/// `HH:MM`, with seconds only where there are any.
struct Clock<'a>(&'a NaiveTime);

impl fmt::Display for Clock<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let seconds = if self.0.second() == 0 { "" } else { ":%S" };
        write!(f, "{}", self.0.format(&format!("%H:%M{seconds}")))
    }
}

/// Reads `HH:MM` or `HH:MM:SS`; the hour may have one digit.
fn time_of_day(shown: &str, time: &str) -> Result<NaiveTime, CalendarError> {
    let number = |(place, text): (usize, &str)| {
        let right_length = text.len() == 2 || (text.len() == 1 && place == 0);
        let digits = right_length && text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse::<u32>().ok().filter(|_| digits)
    };
    let numbers: Option<Vec<u32>> = time.splitn(4, ':').enumerate().map(number).collect();
    let read = match numbers.as_deref() {
        Some([hour, minute]) => NaiveTime::from_hms_opt(*hour, *minute, 0),
        Some([hour, minute, second]) => NaiveTime::from_hms_opt(*hour, *minute, *second),
        _ => None,
    };
    read.ok_or_else(|| CalendarError::new(shown, None, CalendarFault::TimeOfDay { item: Excerpt::new(time) }))
}
