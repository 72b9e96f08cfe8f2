//! The fields of a cron line: their ranges, their names, and the values chosen in one.

use std::fmt;

use super::ShortMonths;

/// A field of a cron line.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Field {
    /// 0 to 59; there in lines of 6 fields only.
    Second,
    /// 0 to 59.
    Minute,
    /// 0 to 23.
    Hour,
    /// The day of the month, 1 to 31.
    Day,
    /// 1 to 12, or `jan` to `dec`.
    Month,
    /// 0 to 7, where 0 and 7 are Sunday, or `sun` to `sat`.
    Weekday,
}

impl Field {
    pub(super) const ALL: [Field; 6] =
        [Field::Second, Field::Minute, Field::Hour, Field::Day, Field::Month, Field::Weekday];

    pub(super) fn min(self) -> u8 {
        match self {
            Field::Second | Field::Minute | Field::Hour | Field::Weekday => 0,
            Field::Day | Field::Month => 1,
        }
    }

    /// The greatest number a text may hold, which is also the greatest step.
    pub(super) fn max(self) -> u8 {
        match self {
            Field::Second | Field::Minute => 59,
            Field::Hour => 23,
            Field::Day => 31,
            Field::Month => 12,
            Field::Weekday => 7,
        }
    }

    /// The greatest value there is: where `*` and `a/n` end. Sunday as 7 is a spelling, not an eighth day.
    pub(super) fn last(self) -> u8 {
        if self == Field::Weekday { 6 } else { self.max() }
    }

    fn names(self) -> &'static [&'static str] {
        match self {
            Field::Month => &["jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec"],
            Field::Weekday => &["sun", "mon", "tue", "wed", "thu", "fri", "sat"],
            _ => &[],
        }
    }

    /// The value that a three-letter name stands for, in any case.
    pub(super) fn named(self, name: &str) -> Option<u8> {
        let place = self.names().iter().position(|known| known.eq_ignore_ascii_case(name))?;
        u8::try_from(place).ok().map(|place| place + self.min())
    }

    /// The name of a value, where this field has names.
    pub(super) fn name_of(self, value: u8) -> Option<&'static str> {
        self.names().get(usize::from(value.checked_sub(self.min())?)).copied()
    }

    pub(super) fn expected(self) -> &'static str {
        match self {
            Field::Month => "a number or one of jan-dec",
            Field::Weekday => "a number or one of sun-sat",
            _ => "a number",
        }
    }
}

impl fmt::Display for Field {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Field::Second => "second",
            Field::Minute => "minute",
            Field::Hour => "hour",
            Field::Day => "day",
            Field::Month => "month",
            Field::Weekday => "weekday",
        })
    }
}

/// A set of small numbers, one bit each.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Set(u64);

impl Set {
    pub(super) fn of(value: u8) -> Set {
        Set(1 << value)
    }

    pub(super) fn range(from: u8, to: u8, step: u8) -> Set {
        (from..=to).step_by(usize::from(step.max(1))).map(Set::of).fold(Set::default(), Set::with)
    }

    pub(super) fn with(self, other: Set) -> Set {
        Set(self.0 | other.0)
    }

    pub(super) fn has(self, value: u8) -> bool {
        self.0 & Set::of(value).0 != 0
    }

    /// Whether anything greater than `value` is in it.
    pub(super) fn reaches_beyond(self, value: u8) -> bool {
        self.0 >> value > 1
    }

    pub(super) fn iter(self) -> impl Iterator<Item = u8> {
        (0..64).filter(move |&value| self.has(value))
    }
}

/// What one field of a line chooses.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Values {
    pub(super) set: Set,
    /// The text begins with `*` or `?`. Vixie's rule for the two day fields, and what makes an interval job, look at
    /// the spelling, not at the set: `*/2` has a star, `0-59` has none.
    pub(super) star: bool,
    /// `L` is among the items (day field only).
    pub(super) last: bool,
}

impl Values {
    pub(super) fn any(field: Field) -> Values {
        Values { set: Set::range(field.min(), field.last(), 1), star: true, last: false }
    }

    pub(super) fn one(value: u8) -> Values {
        Values { set: Set::of(value), star: false, last: false }
    }

    /// Whether every value of `field` is chosen, however it was written.
    pub(super) fn covers(&self, field: Field) -> bool {
        self.set == Values::any(field).set
    }

    /// The value, where exactly one number is chosen.
    pub(super) fn single(&self) -> Option<u8> {
        let mut values = self.set.iter();
        values.next().filter(|_| values.next().is_none() && !self.last)
    }
}

/// See [`Fields::meaning`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Meaning {
    wall: bool,
    sets: [Set; 6],
    last: bool,
    either: bool,
    clamps: bool,
}

/// The six fields of a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Fields {
    pub(super) second: Values,
    pub(super) minute: Values,
    pub(super) hour: Values,
    pub(super) day: Values,
    pub(super) month: Values,
    pub(super) weekday: Values,
    /// The line had 6 fields.
    pub(super) six: bool,
}

impl Fields {
    /// Every day at one time.
    pub(super) fn daily(hour: u8, minute: u8, second: u8) -> Fields {
        Fields {
            second: Values::one(second),
            minute: Values::one(minute),
            hour: Values::one(hour),
            day: Values::any(Field::Day),
            month: Values::any(Field::Month),
            weekday: Values::any(Field::Weekday),
            six: false,
        }
    }

    pub(super) fn of(&mut self, field: Field) -> &mut Values {
        match field {
            Field::Second => &mut self.second,
            Field::Minute => &mut self.minute,
            Field::Hour => &mut self.hour,
            Field::Day => &mut self.day,
            Field::Month => &mut self.month,
            Field::Weekday => &mut self.weekday,
        }
    }

    /// Whether the line names times of day (each happens once) rather than a rhythm (real time passes between runs).
    pub(super) fn is_wall(&self) -> bool {
        !(self.second.star || self.minute.star || self.hour.star)
    }

    /// What the line means: equal where two lines have the same occurrences.
    pub(super) fn meaning(&self, short_months: ShortMonths) -> Meaning {
        let (all_days, all_weekdays) = (self.day.covers(Field::Day), self.weekday.covers(Field::Weekday));
        let every_day = if self.either_day() { all_days || all_weekdays } else { all_days && all_weekdays };
        let all = (Values::any(Field::Day).set, Values::any(Field::Weekday).set);
        let (day, weekday) = if every_day { all } else { (self.day.set, self.weekday.set) };
        let clamps = short_months == ShortMonths::LastDay && !all_days && self.day.set.reaches_beyond(28);
        Meaning {
            wall: self.is_wall(),
            sets: [self.second.set, self.minute.set, self.hour.set, day, self.month.set, weekday],
            last: self.day.last && !all_days,
            either: self.either_day() && !every_day,
            clamps: clamps && !every_day,
        }
    }

    /// Whether a day needs only one of the two day fields to match (Vixie cron's rule).
    pub(super) fn either_day(&self) -> bool {
        !(self.day.star || self.weekday.star)
    }
}
