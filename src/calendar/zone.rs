//! Zones, asked in one direction only: which local time is it at this instant.
//!
//! The other direction is worked out here, from the stretches of constant offset around a local time. `chrono::Local`
//! answers it wrongly at the edges of daylight saving on Linux (03:00 on a fold day becomes one hour early; chrono
//! 0.4.45), and a library's "ambiguous" and "none" are not the questions that a calendar asks.

use std::fmt;
use std::path::Path;
use std::str::FromStr;

use chrono::{DateTime, FixedOffset, Local, NaiveDateTime, Offset, TimeDelta, TimeZone, Utc};
use chrono_tz::{IANA_TZDB_VERSION, TZ_VARIANTS, Tz};

use super::error::Excerpt;

/// Local time is never further than this from UTC, and no clock change is greater.
pub(super) const REACH: TimeDelta = TimeDelta::hours(26);

/// How far apart offsets are sampled: clock changes closer than this that cancel each other would be overlooked.
const PROBE: TimeDelta = TimeDelta::hours(13);

const SECOND: TimeDelta = TimeDelta::seconds(1);

/// Where a schedule's wall clock hangs.
///
/// Named zones use the zone data compiled in ([`chrono_tz::IANA_TZDB_VERSION`]); the machine's own zone uses the
/// operating system's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Zone {
    /// The machine's zone as it is at each evaluation, so that it follows a traveller (within about a second, as
    /// `chrono` does).
    Local,
    /// A zone of the IANA database.
    Named(Tz),
}

impl Zone {
    /// Coordinated universal time.
    pub const UTC: Zone = Zone::Named(Tz::UTC);

    /// Reads `local` or an IANA name (`Europe/Istanbul`), in any case; old aliases (`Europe/Kiev`, `Turkey`) are
    /// known too.
    ///
    /// # Errors
    ///
    /// [`ZoneError`] for any other text, a Windows zone name or an offset among them.
    pub fn parse(name: &str) -> Result<Zone, ZoneError> {
        if name.eq_ignore_ascii_case("local") {
            return Ok(Zone::Local);
        }
        let same = |zone: &&Tz| zone.name().eq_ignore_ascii_case(name);
        let found = Tz::from_str(name).ok().or_else(|| TZ_VARIANTS.iter().find(same).copied());
        found.map(Zone::Named).ok_or_else(|| ZoneError(Excerpt::new(name)))
    }

    /// What is doubtful about it: `TZ` names a zone that this machine does not have, so that its times are UTC.
    pub fn warning(&self) -> Option<String> {
        let tz = std::env::var("TZ").ok().filter(|_| *self == Zone::Local && cfg!(unix))?;
        let name = tz.strip_prefix(':').unwrap_or(&tz);
        let folders = ["/usr/share/zoneinfo", "/usr/lib/zoneinfo", "/usr/share/lib/zoneinfo", "/etc/zoneinfo"];
        // Joined to a folder, a whole path stays what it is.
        let is_file = || folders.iter().any(|folder| Path::new(folder).join(name).is_file());
        // Such as `EST5EDT,M3.2.0,M11.1.0`.
        let has_rules = !name.contains('/') && name.contains(|c: char| c.is_ascii_digit());
        let known = name.is_empty() || name == "localtime" || has_rules || Tz::from_str(name).is_ok() || is_file();
        (!known)
            .then(|| format!("TZ names {}, which is no zone on this machine: local times are UTC", Excerpt::new(name)))
    }

    /// The wall clock's reading at an instant, with its offset.
    pub fn local(&self, at: DateTime<Utc>) -> DateTime<FixedOffset> {
        at.with_timezone(&self.offset(at.naive_utc()))
    }

    fn offset(&self, utc: NaiveDateTime) -> FixedOffset {
        match self {
            Zone::Local => Local.offset_from_utc_datetime(&utc),
            Zone::Named(zone) => zone.offset_from_utc_datetime(&utc).fix(),
        }
    }

    /// The stretches of constant offset that make up the instants from `from` (included) to `to` (excluded), in
    /// order.
    pub(super) fn stretches(&self, from: NaiveDateTime, to: NaiveDateTime) -> Vec<Stretch> {
        let mut found = Vec::with_capacity(2);
        let mut start = from;
        let mut offset = self.offset(from);
        let mut known = from;
        while known < to {
            let probe = to.min(known + PROBE);
            known = if self.offset(probe) == offset {
                probe
            } else {
                let end = self.change(known, probe, offset);
                found.push(Stretch { start, end, offset });
                offset = self.offset(end);
                start = end;
                end
            };
        }
        if start < to {
            found.push(Stretch { start, end: to, offset });
        }
        found
    }

    /// The first second after `before` that no longer has `offset`, given that `after` has not.
    fn change(&self, mut before: NaiveDateTime, mut after: NaiveDateTime, offset: FixedOffset) -> NaiveDateTime {
        while after - before > SECOND {
            let middle = before + TimeDelta::seconds((after - before).num_seconds() / 2);
            if self.offset(middle) == offset { before = middle } else { after = middle }
        }
        after
    }

    /// The first instant at which the wall clock shows `local` or later: the first pass of a repeated hour, and the
    /// jump itself for a time that is skipped. Never falls as `local` rises.
    pub(super) fn reaches(&self, local: NaiveDateTime) -> NaiveDateTime {
        let (from, to) = (local - REACH, local + REACH);
        let shown = |stretch: &Stretch| Some(stretch.instant(local).max(stretch.start)).filter(|at| *at < stretch.end);
        self.stretches(from, to).iter().find_map(shown).unwrap_or(to)
    }

    /// The last instant at which the wall clock shows exactly `local`; `None` for a time that is skipped.
    pub(super) fn shows_last(&self, local: NaiveDateTime) -> Option<NaiveDateTime> {
        let shown = |stretch: &Stretch| Some(stretch.instant(local)).filter(|at| stretch.has(*at));
        self.stretches(local - REACH, local + REACH).iter().rev().find_map(shown)
    }

    /// The latest reading that the wall clock has shown up to `at`: within a repeated hour, the end of its first
    /// pass. So a local time has come exactly when it is not later than this.
    pub(super) fn highest(&self, at: NaiveDateTime) -> NaiveDateTime {
        let stretches = self.stretches(at - REACH, at + SECOND);
        stretches.iter().map(|stretch| stretch.reading(stretch.end - SECOND)).max().unwrap_or(at)
    }
}

impl fmt::Display for Zone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Zone::Local => f.write_str("local"),
            Zone::Named(zone) => f.write_str(zone.name()),
        }
    }
}

impl FromStr for Zone {
    type Err = ZoneError;

    fn from_str(name: &str) -> Result<Zone, ZoneError> {
        Zone::parse(name)
    }
}

/// A zone name that the compiled-in zone data does not have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no zone is named {0}; wanted is `local` or an IANA name like Europe/Istanbul (data of {IANA_TZDB_VERSION})")]
pub struct ZoneError(Excerpt);

/// Instants from `start` (included) to `end` (excluded), in UTC, over which a zone's offset does not change.
#[derive(Clone, Copy, Debug)]
pub(super) struct Stretch {
    pub(super) start: NaiveDateTime,
    pub(super) end: NaiveDateTime,
    offset: FixedOffset,
}

impl Stretch {
    pub(super) fn has(&self, at: NaiveDateTime) -> bool {
        self.start <= at && at < self.end
    }

    /// What the wall clock shows at an instant.
    pub(super) fn reading(&self, at: NaiveDateTime) -> NaiveDateTime {
        at + self.offset
    }

    /// When the wall clock shows a time, if that lies in this stretch.
    pub(super) fn instant(&self, local: NaiveDateTime) -> NaiveDateTime {
        local - self.offset
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn time(text: &str) -> NaiveDateTime {
        text.parse().unwrap()
    }

    #[test]
    fn a_zone_is_found_by_its_name_an_old_alias_or_another_case() {
        for name in
            ["Europe/Istanbul", "europe/istanbul", "Turkey", "Europe/Kiev", "Asia/Calcutta", "US/Eastern", "UTC"]
        {
            assert!(matches!(Zone::parse(name), Ok(Zone::Named(_))), "{name}");
        }
        assert_eq!(Zone::parse("LOCAL"), Ok(Zone::Local));
        assert_eq!(Zone::parse("Europe/Istanbul").unwrap().to_string(), "Europe/Istanbul");
    }

    #[test]
    fn an_unknown_zone_is_an_error_of_one_short_line() {
        for name in ["", "FLE Standard Time", "+03:00", "Europe/\nBerlin", &"x".repeat(100_000)] {
            let text = Zone::parse(name).unwrap_err().to_string();
            assert!(text.len() < 250 && !text.contains('\n'), "{text}");
        }
    }

    #[test]
    fn a_skipped_time_is_reached_at_the_jump_and_a_repeated_one_in_the_first_pass() {
        let berlin = Zone::parse("Europe/Berlin").unwrap();
        assert_eq!(berlin.reaches(time("2026-03-29T02:30:00")), time("2026-03-29T01:00:00"));
        assert_eq!(berlin.reaches(time("2026-10-25T02:30:00")), time("2026-10-25T00:30:00"));
        assert_eq!(berlin.shows_last(time("2026-10-25T02:30:00")), Some(time("2026-10-25T01:30:00")));
        assert_eq!(berlin.shows_last(time("2026-03-29T02:30:00")), None);
        let apia = Zone::parse("Pacific/Apia").unwrap();
        assert_eq!(apia.reaches(time("2011-12-30T12:00:00")), time("2011-12-30T10:00:00"));
    }

    #[test]
    fn the_highest_reading_stands_still_during_a_second_pass() {
        let berlin = Zone::parse("Europe/Berlin").unwrap();
        assert_eq!(berlin.highest(time("2026-10-25T00:59:59")), time("2026-10-25T02:59:59"));
        assert_eq!(berlin.highest(time("2026-10-25T01:30:00")), time("2026-10-25T02:59:59"));
        assert_eq!(berlin.highest(time("2026-10-25T02:00:00")), time("2026-10-25T03:00:00"));
    }
}
