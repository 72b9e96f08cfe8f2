//! The rules of card instalments: when a statement closes, and which part of a purchase falls on it. No clock, no file.

use chrono::{Datelike, NaiveDate};

/// The years that a nightly calendar knows.
pub const YEARS: std::ops::RangeInclusive<i32> = 1970..=2100;

/// A day of the years that a calendar knows, written `YYYY-MM-DD` and in no other way.
pub fn read_date(text: &str) -> Option<NaiveDate> {
    let date = NaiveDate::parse_from_str(text, "%Y-%m-%d").ok()?;
    (date.to_string() == text && YEARS.contains(&date.year())).then_some(date)
}

/// A month, counted from January of the year 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Month(i32);

impl Month {
    /// The month that a date lies in.
    pub fn of(date: NaiveDate) -> Month {
        Month(date.year() * 12 + date.month0() as i32)
    }

    /// The day on which a card's statement closes in this month: its statement day, or the month's last day where that
    /// comes first.
    pub fn closing(self, statement_day: u32) -> NaiveDate {
        let (year, month) = (self.0.div_euclid(12), self.0.rem_euclid(12) as u32 + 1);
        let day = |day| NaiveDate::from_ymd_opt(year, month, day);
        (1..=statement_day.min(31)).rev().find_map(day).unwrap_or(NaiveDate::MAX)
    }

    /// `None` beyond the years that a calendar knows.
    pub fn plus(self, months: u32) -> Option<Month> {
        self.0.checked_add_unsigned(months).filter(|month| month / 12 <= *YEARS.end()).map(Month)
    }

    fn since(self, earlier: Month) -> Option<u32> {
        u32::try_from(self.0 - earlier.0).ok()
    }
}

/// How a purchase is paid off: one instalment on each statement from the first on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Instalments {
    first: Month,
    last: Month,
    total_minor: i64,
    count: u32,
}

impl Instalments {
    /// `None` if the last would fall after the years that a calendar knows. The total and the count are at least 1.
    pub fn new(statement_day: u32, bought: NaiveDate, total_minor: i64, count: u32) -> Option<Instalments> {
        let month = Month::of(bought);
        let first = if bought <= month.closing(statement_day) { month } else { month.plus(1)? };
        let last = first.plus(count.checked_sub(1)?)?;
        Some(Instalments { first, last, total_minor, count })
    }

    /// What it comes to in all.
    pub fn total_minor(&self) -> i64 {
        self.total_minor
    }

    /// The month of the first.
    pub fn first(&self) -> Month {
        self.first
    }

    /// The month of the last.
    pub fn last(&self) -> Month {
        self.last
    }

    /// Number and amount of the one on this month's statement. Each is the total over the count, rounded down; the first
    /// carries the remainder too, so that they add up to the total.
    pub fn on(&self, month: Month) -> Option<(u32, i64)> {
        let number = month.since(self.first)? + 1;
        let share = self.total_minor / i64::from(self.count);
        let remainder = self.total_minor % i64::from(self.count);
        (number <= self.count).then_some((number, if number == 1 { share + remainder } else { share }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn date(text: &str) -> NaiveDate {
        read_date(text).unwrap()
    }

    fn closing(month: &str, day: u32) -> String {
        Month::of(date(&format!("{month}-01"))).closing(day).to_string()
    }

    #[test]
    fn a_statement_day_that_a_month_lacks_is_its_last_day_and_comes_back_afterwards() {
        assert_eq!(closing("2024-02", 31), "2024-02-29");
        assert_eq!(closing("2023-02", 29), "2023-02-28");
        assert_eq!(closing("2100-02", 30), "2100-02-28");
        assert_eq!(closing("2024-03", 31), "2024-03-31");
        assert_eq!(closing("2024-04", 31), "2024-04-30");
        assert_eq!(closing("2024-12", 5), "2024-12-05");
    }

    #[test]
    fn a_purchase_of_the_statement_date_falls_on_that_statement_and_one_a_day_later_on_the_next() {
        let first = |day, bought| Instalments::new(day, date(bought), 1, 1).unwrap().first().closing(day).to_string();
        assert_eq!(first(25, "2024-01-25"), "2024-01-25");
        assert_eq!(first(25, "2024-01-26"), "2024-02-25");
        assert_eq!(first(31, "2024-02-29"), "2024-02-29");
        assert_eq!(first(30, "2024-02-29"), "2024-02-29");
        assert_eq!(first(30, "2024-01-31"), "2024-02-29");
        assert_eq!(first(1, "2024-12-02"), "2025-01-01");
    }

    #[test]
    fn instalments_add_up_to_the_total_whatever_it_is_and_only_the_first_differs() {
        for total in [1, 5, 6, 7, 1_000_003, i64::MAX - 1, i64::MAX] {
            for count in [1, 2, 3, 7, 18, 900] {
                let bought = date("2024-01-31");
                let plan = Instalments::new(31, bought, total, count).unwrap();
                let months = (0..count + 2).filter_map(|ahead| Month::of(bought).plus(ahead));
                let parts: Vec<_> = months.filter_map(|month| plan.on(month)).collect();
                assert_eq!(parts.len() as u32, count);
                assert!(parts.iter().zip(1..).all(|(part, number)| part.0 == number));
                assert_eq!(parts.iter().map(|part| i128::from(part.1)).sum::<i128>(), i128::from(total));
                assert!(parts[1..].iter().all(|part| part.1 == total / i64::from(count)));
                assert!(plan.on(Month(plan.first.0 - 1)).is_none());
            }
        }
    }

    #[test]
    fn instalments_beyond_the_calendar_are_refused_and_not_wrapped_around() {
        let plan = |bought, count| Instalments::new(31, date(bought), 1, count).map(|plan| plan.last().closing(31));
        assert_eq!(plan("2100-12-31", 1), Some(date("2100-12-31")));
        assert_eq!(plan("2100-12-31", 2), None);
        assert_eq!(Instalments::new(5, date("2100-12-06"), 1, 1), None);
        assert_eq!(plan("1970-01-01", 131 * 12), Some(date("2100-12-31")));
        assert_eq!(plan("1970-01-01", u32::MAX), None);
    }

    #[test]
    fn a_date_is_read_in_one_spelling_only() {
        assert!(read_date("2024-02-29").is_some());
        for text in
            ["2023-02-29", "2024-2-29", "24-02-29", " 2024-02-29", "2024-02-29T00:00", "1969-12-31", "2101-01-01", ""]
        {
            assert_eq!(read_date(text), None, "{text}");
        }
    }
}
