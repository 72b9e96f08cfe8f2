//! What an answer means for the message that was posted: pure.

use std::time::Duration;

use chrono::{DateTime, Datelike, NaiveDate, NaiveDateTime, NaiveTime, Utc};

/// The longest wait that is taken from a receiver. Real ones ask for seconds, at most for the rest of a day's quota; more
/// is a slip (milliseconds, a wrong clock), and a message must not sleep through the three days that it has by default.
pub(super) const LONGEST_WAIT: Duration = Duration::from_secs(86_400);

/// What becomes of a message.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum Fate {
    /// Accepted.
    Delivered,
    /// May go through later, not sooner than this if the receiver named a time.
    Again(Option<Duration>),
    /// Waits for a person with a better credential.
    Unauthorized,
    /// Lives elsewhere.
    Redirected,
    /// Will not go through.
    Refused,
}

/// Decides by the status and the text of `Retry-After`.
pub(super) fn fate(status: u16, retry_after: Option<&str>, now: DateTime<Utc>) -> Fate {
    match status {
        200..=299 => Fate::Delivered,
        300..=399 => Fate::Redirected,
        401 | 403 => Fate::Unauthorized,
        408 | 425 | 429 => Fate::Again(retry_after.and_then(|text| wait(text, now))),
        400..=499 => Fate::Refused,
        // Also what is no status at all: it counts as a 5xx (RFC 9110, 15).
        _ => Fate::Again(retry_after.and_then(|text| wait(text, now))),
    }
}

/// How long `Retry-After` asks to wait. `None` if it asks for nothing: a zero, a time gone by, what is neither a number nor
/// a date. The attempt is charged then, so that a receiver that says "at once" for ever does not get one for ever.
fn wait(text: &str, now: DateTime<Utc>) -> Option<Duration> {
    let text = text.trim();
    let wait = if !text.is_empty() && text.bytes().all(|c| c.is_ascii_digit()) {
        // More digits than fit are more than the longest wait, too.
        text.parse().map_or(LONGEST_WAIT, Duration::from_secs)
    } else {
        (http_date(text, now)? - now).to_std().ok()?
    };
    (!wait.is_zero()).then(|| wait.min(LONGEST_WAIT))
}

/// A date in one of the three forms of RFC 9110, 5.6.7. The day of the week is not looked at: it adds nothing, and its
/// being wrong does not make the date unreadable.
fn http_date(text: &str, now: DateTime<Utc>) -> Option<DateTime<Utc>> {
    let time = match text.split_once(", ") {
        Some((_, rest)) => {
            NaiveDateTime::parse_from_str(rest, "%d %b %Y %H:%M:%S GMT").ok().or_else(|| rfc850(rest, now))
        }
        None => NaiveDateTime::parse_from_str(text.split_once(' ')?.1, "%b %e %H:%M:%S %Y").ok(),
    };
    time.map(|time| time.and_utc())
}

/// `06-Nov-94 08:49:37 GMT`. Of the years that end so, the one within half a century from now is meant.
fn rfc850(text: &str, now: DateTime<Utc>) -> Option<NaiveDateTime> {
    let (date, time) = text.split_once(' ')?;
    let (day, year) = date.rsplit_once('-')?;
    if year.len() != 2 {
        return None;
    }
    let ending: i32 = year.parse().ok()?;
    let earliest = now.year() - 49;
    let year = earliest + (ending - earliest).rem_euclid(100);
    let date = NaiveDate::parse_from_str(&format!("{day}-{year}"), "%d-%b-%Y").ok()?;
    Some(date.and_time(NaiveTime::parse_from_str(time, "%H:%M:%S GMT").ok()?))
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    /// Ten seconds before the date that RFC 9110 writes in its three forms.
    fn then() -> DateTime<Utc> {
        "1994-11-06T08:49:27Z".parse().unwrap()
    }

    const FORMS: [&str; 3] =
        ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"];

    fn seconds(text: &str, now: DateTime<Utc>) -> Option<u64> {
        wait(text, now).map(|wait| wait.as_secs())
    }

    #[test]
    fn every_status_has_a_fate() {
        for status in 0..=999 {
            let expected = match status {
                200..=299 => Fate::Delivered,
                300..=399 => Fate::Redirected,
                401 | 403 => Fate::Unauthorized,
                408 | 425 | 429 => Fate::Again(None),
                400..=499 => Fate::Refused,
                _ => Fate::Again(None),
            };
            assert_eq!(fate(status, None, then()), expected, "{status}");
        }
    }

    #[test]
    fn retry_after_counts_only_where_there_is_a_retry() {
        let asked = Some(Duration::from_secs(7));
        for status in [408, 425, 429, 500, 501, 503, 505, 599] {
            assert_eq!(fate(status, Some("7"), then()), Fate::Again(asked), "{status}");
        }
        for status in [200, 301, 401, 404] {
            assert_eq!(fate(status, Some("7"), then()), fate(status, None, then()), "{status}");
        }
    }

    #[test]
    fn all_forms_of_a_time_are_understood() {
        assert_eq!(seconds("120", then()), Some(120));
        assert_eq!(seconds(" 007 ", then()), Some(7));
        for form in FORMS {
            assert_eq!(seconds(form, then()), Some(10), "{form}");
        }
        assert_eq!(seconds("Tue, 06 Nov 1994 08:49:37 GMT", then()), Some(10), "the wrong day of the week");
        let leap: DateTime<Utc> = "2028-02-28T23:59:57Z".parse().unwrap();
        assert_eq!(seconds("Tue, 29 Feb 2028 00:00:00 GMT", leap), Some(3));
        assert_eq!(seconds("Tuesday, 29-Feb-28 00:00:00 GMT", leap), Some(3));
        assert_eq!(seconds("Tue Feb 29 00:00:00 2028", leap), Some(3));
    }

    #[test]
    fn a_year_of_two_digits_is_the_one_near_now() {
        let year = |text: &str, now: &str| {
            http_date(&format!("Friday, 01-Jan-{text} 00:00:00 GMT"), now.parse().unwrap()).unwrap().year()
        };
        assert_eq!(year("94", "1994-11-06T00:00:00Z"), 1994);
        assert_eq!(year("27", "2026-11-30T00:00:00Z"), 2027);
        assert_eq!(year("76", "2026-11-30T00:00:00Z"), 2076);
        assert_eq!(year("77", "2026-11-30T00:00:00Z"), 1977);
        assert_eq!(year("00", "2099-12-31T23:59:59Z"), 2100);
    }

    #[test]
    fn a_time_gone_by_asks_for_nothing() {
        assert_eq!(wait("0", then()), None);
        for form in FORMS {
            assert_eq!(wait(form, then() + TimeDelta::seconds(10)), None, "{form}");
            assert_eq!(wait(form, then() + TimeDelta::days(3000)), None, "{form}");
        }
    }

    #[test]
    fn no_wait_is_longer_than_a_day() {
        let (digits, more) = ("9".repeat(19), "9".repeat(4000));
        for text in ["86401", "4294967296", &digits, &more, "Fri, 31 Dec 9999 23:59:59 GMT"] {
            assert_eq!(wait(text, then()), Some(LONGEST_WAIT), "{text}");
        }
    }

    #[test]
    fn garbage_asks_for_nothing_and_breaks_nothing() {
        let garbage = [
            "",
            " ",
            "-1",
            "+5",
            "1.5",
            "5s",
            "soon",
            "0x10",
            "١٢",
            ",",
            ", ",
            "GMT",
            "Sun, 06 Nov 1994 08:49:37",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 31 Feb 1994 08:49:37 GMT",
            "Sun, 06 Nov 1994 25:49:37 GMT",
            "Sunday, 06-Nov-1994 08:49:37 GMT",
            "Sunday, 06-Nov--9 08:49:37 GMT",
            "1994-11-06T08:49:37Z",
            "Sun Nov 06 1994",
            "Sun, 06 Nov 999999999999 08:49:37 GMT",
            "😀, 😀-😀-😀 😀",
        ];
        for text in garbage {
            assert_eq!(wait(text, then()), None, "{text:?}");
        }
    }

    #[test]
    fn no_text_panics_at_any_time() {
        let seed = fastrand::u64(..);
        println!("seed {seed}");
        let mut chance = fastrand::Rng::with_seed(seed);
        for _ in 0..20_000 {
            let mut text: Vec<char> = chance.choice(FORMS).unwrap().chars().collect();
            for _ in 0..chance.usize(1..4) {
                let at = chance.usize(..text.len());
                text[at] = chance.choice(['0', '9', ' ', ',', '-', ':', 'N', 'é']).unwrap();
            }
            for now in [DateTime::<Utc>::MIN_UTC, then(), DateTime::<Utc>::MAX_UTC] {
                let text: String = text.iter().collect();
                assert!(wait(&text, now).is_none_or(|wait| wait <= LONGEST_WAIT && !wait.is_zero()));
            }
        }
    }
}
