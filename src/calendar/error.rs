//! Why a calendar was refused, in one line that is safe to print.

use std::fmt;

use super::field::Field;

/// The longest text that is read, in bytes.
pub(super) const LONGEST: usize = 512;

/// A calendar that was refused: which field, and why.
///
/// Its `Display` is one line: the text (control and non-ASCII characters escaped, at most 60 of them shown), the
/// field where one is to blame, and the reason.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("calendar {text}: {}{reason}", Label(*field))]
pub struct CalendarError {
    text: Excerpt,
    field: Option<Field>,
    reason: CalendarFault,
}

impl CalendarError {
    pub(super) fn new(text: &str, field: Option<Field>, reason: CalendarFault) -> Self {
        CalendarError { text: Excerpt::new(text), field, reason }
    }

    /// The field that is to blame; `None` where the text as a whole is.
    pub fn field(&self) -> Option<Field> {
        self.field
    }

    /// The reason.
    pub fn fault(&self) -> &CalendarFault {
        &self.reason
    }
}

/// What is wrong with a calendar.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum CalendarFault {
    /// Nothing but white space.
    #[error("is empty")]
    Empty,
    /// Longer than 512 bytes.
    #[error("is {bytes} bytes long, at most {} are read", LONGEST)]
    TooLong {
        /// Its length.
        bytes: usize,
    },
    /// Neither 5 fields nor 6.
    #[error("has {found} field{}, not 5 (minute hour day month weekday) or 6 with the second first", plural(*found))]
    FieldCount {
        /// How many there are.
        found: usize,
    },
    /// A character that no calendar has: a control character, or one outside ASCII.
    #[error("character {at} is {}, only printable ASCII is read", Escaped(*found))]
    Character {
        /// The character.
        found: char,
        /// Its place, counted in characters from 1.
        at: usize,
    },
    /// A word that begins with `@` and is none of the seven shorthands.
    #[error("is none of @yearly, @annually, @monthly, @weekly, @daily, @midnight and @hourly")]
    Shorthand,
    /// Two commas in a row, or one at an end.
    #[error("an item of the list is missing")]
    MissingItem,
    /// Neither a number nor a name of this field.
    #[error("{item} is not {expected}")]
    NotAValue {
        /// The item.
        item: Excerpt,
        /// What the field takes.
        expected: &'static str,
    },
    /// A number outside the field's range.
    #[error("{item} is outside {min}-{max}")]
    OutOfRange {
        /// The number as written.
        item: Excerpt,
        /// The least that is allowed.
        min: u8,
        /// The greatest that is allowed.
        max: u8,
    },
    /// A step that is no number from 1 to the field's greatest value.
    #[error("step {item} is not a number from 1 to {max}")]
    Step {
        /// The step as written.
        item: Excerpt,
        /// The greatest step allowed.
        max: u8,
    },
    /// A range that ends before it begins.
    #[error("the range {item} runs backwards; write {instead}")]
    Backward {
        /// The range as written.
        item: Excerpt,
        /// The same in ranges that run forwards.
        instead: String,
    },
    /// A `?` that is not the whole of a day or weekday field.
    #[error("? stands alone, and only for the day or the weekday")]
    QuestionMark,
    /// An `L` elsewhere than as an item of the day field.
    #[error("L (the last day of the month) is an item of the day field, without range or step")]
    LastDay,
    /// No day of any year matches.
    #[error("no such day ever comes")]
    NeverFires,
    /// A time of day that is not `HH:MM` or `HH:MM:SS`.
    #[error("{item} is not a time of day (HH:MM or HH:MM:SS)")]
    TimeOfDay {
        /// The time as written.
        item: Excerpt,
    },
    /// A day of the month outside 1 to 31.
    #[error("day {day} is outside 1-31")]
    DayOfMonth {
        /// The day.
        day: u32,
    },
    /// A period that is no whole number of seconds from one second to 366 days.
    #[error("a period is a whole number of seconds, from 1 second to 366 days")]
    Period,
    /// A text that is neither a cron line nor another form of calendar.
    #[error("is neither a cron line nor one of: daily TIME, weekly DAY TIME, monthly DAY TIME, every SECONDSs")]
    Form,
}

/// A piece of foreign text made safe for one line: escaped, and cut after 60 characters.
#[derive(Clone, PartialEq, Eq, Hash)]
pub struct Excerpt(String);

impl Excerpt {
    const LONGEST: usize = 60;

    pub(super) fn new(text: &str) -> Self {
        let shown: String = text.chars().take(Self::LONGEST).flat_map(char::escape_default).collect();
        let cut = if text.chars().nth(Self::LONGEST).is_some() { "…" } else { "" };
        Excerpt(format!("\"{shown}{cut}\""))
    }
}

impl fmt::Display for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for Excerpt {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

fn plural(number: usize) -> &'static str {
    if number == 1 { "" } else { "s" }
}

struct Label(Option<Field>);

impl fmt::Display for Label {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.map_or(Ok(()), |field| write!(f, "{field}: "))
    }
}

struct Escaped(char);

impl fmt::Display for Escaped {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "'{}'", self.0.escape_default())
    }
}
