//! From a walk over zone-free time to occurrences in a zone.
//!
//! Wall jobs lie along nominal local time: each nominal time is one occurrence, whatever the zone does to it.
//! Interval jobs lie along UTC: real time passes between them, so a skipped hour has none and a repeated hour has
//! them twice.

use std::sync::Arc;

use chrono::{DateTime, Datelike, NaiveDateTime, TimeDelta, Utc};

use super::mark::within_years;
use super::walk::Walk;
use super::zone::REACH;
use super::{Due, Mark, Zone};

const SECOND: TimeDelta = TimeDelta::seconds(1);

/// What a calendar asks for, ready to be walked.
#[derive(Clone)]
pub(super) enum Rule {
    Wall(Arc<Walk>),
    Interval(Arc<Walk>),
    Every { period: TimeDelta, anchor: NaiveDateTime },
}

impl Rule {
    /// How far along its line time has come at `now`: an occurrence is due exactly when its mark is not later than
    /// this.
    pub(super) fn reading(&self, zone: &Zone, now: DateTime<Utc>) -> Mark {
        let now = within_years(now.naive_utc());
        match self {
            Rule::Wall(_) => Mark::Wall(zone.highest(now)),
            Rule::Interval(_) | Rule::Every { .. } => Mark::Interval(now.and_utc()),
        }
    }

    /// The first occurrence later than `mark`.
    pub(super) fn first_after(&self, zone: &Zone, mark: Mark) -> Option<Due> {
        let from = self.place(zone, mark) + SECOND;
        match self {
            Rule::Wall(walk) => walk.at_or_after(from).map(|nominal| wall(zone, nominal)),
            Rule::Interval(walk) => first_instant(walk, zone, from).map(|at| interval(zone, at)),
            Rule::Every { period, anchor } => {
                within(lattice(*anchor, *period, from, true)).map(|at| interval(zone, at))
            }
        }
    }

    /// The last occurrence not later than `mark`.
    pub(super) fn last_upto(&self, zone: &Zone, mark: Mark) -> Option<Due> {
        let upto = self.place(zone, mark);
        match self {
            Rule::Wall(walk) => walk.at_or_before(upto).map(|nominal| wall(zone, nominal)),
            Rule::Interval(walk) => last_instant(walk, zone, upto).map(|at| interval(zone, at)),
            Rule::Every { period, anchor } => {
                within(lattice(*anchor, *period, upto, false)).map(|at| interval(zone, at))
            }
        }
    }

    /// A mark of this rule's kind. One of the other kind is carried over, so that what was done before it stays done.
    pub(super) fn own(&self, zone: &Zone, mark: Mark) -> Mark {
        match self {
            Rule::Wall(_) => Mark::Wall(self.place(zone, mark)),
            Rule::Interval(_) | Rule::Every { .. } => Mark::Interval(self.place(zone, mark).and_utc()),
        }
    }

    fn place(&self, zone: &Zone, mark: Mark) -> NaiveDateTime {
        match (self, mark) {
            (Rule::Wall(_), Mark::Wall(time)) => within_years(time),
            (Rule::Wall(_), Mark::Interval(at)) => zone.highest(within_years(at.naive_utc())),
            (Rule::Interval(_) | Rule::Every { .. }, Mark::Interval(at)) => within_years(at.naive_utc()),
            (Rule::Interval(_) | Rule::Every { .. }, Mark::Wall(time)) => zone.reaches(within_years(time)),
        }
    }
}

fn wall(zone: &Zone, nominal: NaiveDateTime) -> Due {
    let at = zone.reaches(nominal).and_utc();
    Due { nominal, at, offset: *zone.local(at).offset(), wall: true }
}

fn interval(zone: &Zone, at: NaiveDateTime) -> Due {
    let local = zone.local(at.and_utc());
    Due { nominal: local.naive_local(), at: at.and_utc(), offset: *local.offset(), wall: false }
}

/// The first instant from `from` on at which the wall clock shows a matching time.
fn first_instant(walk: &Walk, zone: &Zone, mut from: NaiveDateTime) -> Option<NaiveDateTime> {
    loop {
        let mut beyond = None;
        for stretch in zone.stretches(from, from + REACH) {
            let local = walk.at_or_after(stretch.reading(stretch.start))?;
            let at = stretch.instant(local);
            if at < stretch.end {
                return Some(at);
            }
            beyond = Some(local);
        }
        // The next matching time is further off than any clock change reaches back, so nothing before it can match,
        // and it need not be approached step by step. If it is skipped when it comes, the search goes on from the
        // jump.
        let local = beyond?;
        let at = zone.reaches(local);
        if zone.local(at.and_utc()).naive_local() == local {
            return Some(at);
        }
        from = at.max(from + SECOND);
    }
}

/// The last instant up to and including `upto` at which the wall clock shows a matching time.
fn last_instant(walk: &Walk, zone: &Zone, upto: NaiveDateTime) -> Option<NaiveDateTime> {
    let mut end = upto + SECOND;
    loop {
        let mut beyond = None;
        for stretch in zone.stretches(end - REACH, end).iter().rev() {
            let local = walk.at_or_before(stretch.reading(stretch.end - SECOND))?;
            let at = stretch.instant(local);
            if at >= stretch.start {
                return Some(at);
            }
            beyond = Some(local);
        }
        let local = beyond?;
        if let Some(at) = zone.shows_last(local) {
            return Some(at);
        }
        end = zone.reaches(local).min(end - SECOND);
    }
}

/// The first point of `anchor + n * period` (any whole n) not before `time`, or the last not after it.
fn lattice(anchor: NaiveDateTime, period: TimeDelta, time: NaiveDateTime, later: bool) -> NaiveDateTime {
    let over = (time - anchor).num_seconds().rem_euclid(period.num_seconds());
    match (over, later) {
        (0, _) => time,
        (over, true) => time + period - TimeDelta::seconds(over),
        (over, false) => time - TimeDelta::seconds(over),
    }
}

/// Holds periods to the years that cron lines have.
fn within(at: NaiveDateTime) -> Option<NaiveDateTime> {
    (1970..=2100).contains(&at.year()).then_some(at)
}
