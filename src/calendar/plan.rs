//! The decision of one evaluation: from a schedule's stored marks and the time, to what runs, what is recorded as
//! missed, and where the mark goes.
//!
//! Waking late, sleeping, a skipped hour and a flight to the east are all one case here: occurrences lie between the
//! mark and the time read. A flight to the west and a clock set back are the other: the mark lies ahead of the time
//! read. A repeated hour is neither, since readings stand still during its second pass.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::dealt::Dealt;
use super::policy::{CatchUp, Count, Missed, MissedReason, Policy};
use super::{Calendar, Due, Mark, Zone};

#[cfg(test)]
mod tests;

/// Wall jobs wait for a clock that is behind the mark by no more than this, as Vixie's cron does.
const SMALL_STEP: TimeDelta = TimeDelta::hours(3);

/// A clock that has been behind the mark for so long is believed.
pub(crate) const BELIEVED_AFTER: Duration = Duration::from_secs(48 * 60 * 60);

/// What is stored about how far a schedule has been evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ScheduleState {
    /// The mark when the schedule came to be ([`Calendar::mark_at`]). Nothing at or before it ever fires, so that a
    /// machine that starts in the year 2000 does not.
    pub created: Mark,
    /// Everything up to and including this has been dealt with.
    pub mark: Mark,
    /// The highest mark there was, where a clock set back has been believed since; everything up to it was dealt with
    /// once.
    pub high: Option<Mark>,
    /// For how long in sum, by a monotonic clock, evaluations have found [`Clock::Behind`] and nothing else; zero
    /// otherwise. Stored, or a machine that is switched off each night would never believe its clock.
    pub behind_for: Duration,
    /// When what still waits was found; `None` if nothing does.
    pub found: Option<Found>,
}

/// When occurrences were found that have yet to run. They keep the lateness that they had then.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    /// The look that found the oldest.
    pub at: DateTime<Utc>,
    /// The newest look that found one. Whatever was due by then has been judged: what is not recorded runs. What came
    /// due after [`at`](Found::at) was found on time.
    pub seen: DateTime<Utc>,
}

impl ScheduleState {
    /// A schedule that begins at a mark.
    pub fn new(created: Mark) -> ScheduleState {
        ScheduleState { created, mark: created, high: None, behind_for: Duration::ZERO, found: None }
    }

    /// The state after a plan was carried out.
    #[must_use]
    pub fn after(self, plan: &Plan) -> ScheduleState {
        let found = plan.found.filter(|_| plan.more);
        ScheduleState { mark: plan.mark, high: plan.high, found, ..self }
    }
}

/// What one evaluation decides.
///
/// A run and its mark belong in one transaction, stored only if mark and high are still those that were read.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What runs, oldest first.
    pub runs: Vec<Run>,
    /// What does not run, oldest first.
    pub missed: Vec<Missed>,
    /// The mark to store once all that is due has been dealt with: the newest of it. The same as before if nothing was
    /// due.
    pub mark: Mark,
    /// The mark to store with the records alone: nothing that runs lies at or before it.
    pub passed: Mark,
    /// The high mark to store.
    pub high: Option<Mark>,
    /// How the time that was read stands to the mark.
    pub clock: Clock,
    /// More was due than one batch: evaluate again once these have been dealt with.
    pub more: bool,
    /// What to store for as long as any of the runs is left to do.
    pub found: Option<Found>,
}

/// One occurrence to run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// The occurrence.
    pub due: Due,
    /// How long after its instant it was found.
    pub lateness: Duration,
    /// It counts as missed: later than the grace. Such a run under [`CatchUp::Each`] is never skipped for overlap.
    pub late: bool,
    /// How many occurrences this run stands for beside its own.
    pub missed_count: Count,
    /// The oldest of those.
    pub missed_since: Option<Due>,
}

/// How the time stands to what has been evaluated.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Clock {
    /// Not behind the mark.
    Steady,
    /// Behind it by at most three hours: a short flight west, a small correction. Wall jobs wait (Vixie cron's rule).
    /// Interval jobs follow the clock: what is on time runs.
    Waiting,
    /// Behind it by more: set back, or a long flight west. What is on time runs, nothing is caught up. Worth one line
    /// in the log at the first.
    Behind,
}

/// Decides what one evaluation of a schedule does. `every` calendars must be [anchored](Calendar::anchored).
///
/// * The clock is not behind the mark: what lies between them is due. What is older than `max_age` is recorded. Then,
///   under `Latest`: the newest due occurrence runs for all, whether the others are missed (later than the grace) or
///   were found with it on time. Under `Each`: all run, oldest first, after a maximum has cut the oldest missed off.
///   Under `Skip`: those missed are recorded, the others run.
/// * Behind by at most three hours: wall jobs wait. For interval jobs what is on time runs, in case it never has.
/// * Behind by more: what is on time runs, in case it never has; the mark stays. After 48 hours of this the lower
///   clock is believed: the mark follows it, the old one is kept as `high`, and once the time reaches that again,
///   what was dealt with before is not caught up a second time.
///
/// What was found before and has yet to run ([`ScheduleState::found`]) is not judged again.
///
/// It costs a few steps of the calendar for each run, 1,000 for each record, and `max` for the evaluation of `Each` that
/// finds something missed; the length of the absence costs nothing.
pub fn plan(calendar: &Calendar, zone: &Zone, state: &ScheduleState, now: DateTime<Utc>, policy: &Policy) -> Plan {
    plan_around(&Dealt::default(), calendar, zone, state, now, policy)
}

/// As [`plan`], where some occurrences after the mark have been dealt with: they are passed.
pub(crate) fn plan_around(
    dealt: &Dealt,
    calendar: &Calendar,
    zone: &Zone,
    state: &ScheduleState,
    now: DateTime<Utc>,
    policy: &Policy,
) -> Plan {
    let own = |mark| calendar.rule.own(zone, mark);
    let reading = calendar.rule.reading(zone, now);
    // One that was found in the future was found by a clock that has been set back since.
    let found = state.found.filter(|found| found.seen <= now);
    let view = View { calendar, zone, now, policy, reading, found, dealt };
    let (created, mark, high) = (own(state.created), own(state.mark), state.high.map(own));
    let regained = high.filter(|high| *high <= reading);
    let mark = regained.map_or(mark, |high| mark.later(high));
    let high = if regained.is_some() { None } else { high };

    let clock = clock(calendar, zone, mark, now);
    if clock == Clock::Steady {
        let taken = view.catch_up(created.later(mark));
        let newest = view.falling(created.later(mark), reading).next().map(|due| due.mark());
        let upto = if taken.more { taken.runs.last().map(|run| run.due.mark()) } else { newest };
        let passed = taken.passed(mark);
        let mark = upto.unwrap_or(mark);
        let Taken { runs, missed, more, found } = taken;
        return Plan { runs, missed, mark, passed, high, clock, more, found };
    }
    let waits = clock == Clock::Waiting && calendar.is_wall();
    let Taken { runs, more, found, .. } = if waits { Taken::default() } else { view.on_time_only(created) };
    let believed = clock == Clock::Behind && state.behind_for >= BELIEVED_AFTER;
    let (mark, high) =
        if believed { (reading, Some(high.map_or(mark, |high| high.later(mark)))) } else { (mark, high) };
    Plan { runs, missed: Vec::new(), mark, passed: mark, high, clock, more, found }
}

/// How the time stands to a mark.
pub(crate) fn clock(calendar: &Calendar, zone: &Zone, mark: Mark, now: DateTime<Utc>) -> Clock {
    let behind = calendar.rule.own(zone, mark).ahead_of(calendar.rule.reading(zone, now));
    match behind {
        none if none.is_zero() => Clock::Steady,
        small if small <= SMALL_STEP => Clock::Waiting,
        _ => Clock::Behind,
    }
}

/// The marks between which an evaluation looks for what runs.
pub(crate) fn window(
    calendar: &Calendar,
    zone: &Zone,
    state: &ScheduleState,
    now: DateTime<Utc>,
    grace: Duration,
) -> (Mark, Mark) {
    let (mark, reading) = (calendar.rule.own(zone, state.mark), calendar.rule.reading(zone, now));
    if mark <= reading {
        return (mark, reading);
    }
    let looked = state.found.map_or(now, |found| found.at.min(now));
    let grace = TimeDelta::from_std(grace).unwrap_or(TimeDelta::MAX);
    let from = looked.checked_sub_signed(grace).unwrap_or(DateTime::UNIX_EPOCH);
    (calendar.rule.reading(zone, from).second_before(), reading)
}

/// The record of all occurrences after one mark and up to another that have not been dealt with; `None` if there are none.
pub(crate) fn left_out(
    dealt: &Dealt,
    calendar: &Calendar,
    zone: &Zone,
    (after, upto): (Mark, Mark),
    reason: MissedReason,
) -> Option<Missed> {
    let open = |due: &Due| !dealt.has(due);
    let falling = || calendar.falling(*zone, after, upto).filter(open);
    let to = falling().next()?;
    let from = calendar.rising(*zone, after, upto).find(open)?;
    Some(Missed { from, to, count: Count::new(falling().take(Count::EXACT as usize + 1).count()), reason })
}

/// One schedule at one moment.
struct View<'a> {
    calendar: &'a Calendar,
    zone: &'a Zone,
    now: DateTime<Utc>,
    policy: &'a Policy,
    reading: Mark,
    found: Option<Found>,
    dealt: &'a Dealt,
}

/// What was done with the occurrences after a mark.
#[derive(Default)]
struct Taken {
    runs: Vec<Run>,
    missed: Vec<Missed>,
    more: bool,
    found: Option<Found>,
}

impl Taken {
    /// The newest of what is dropped before the first run. What a run stands for is recorded with the run.
    fn passed(&self, mark: Mark) -> Mark {
        let is_dropped = |gap: &Missed| gap.reason != MissedReason::Newer;
        let before =
            |gap: &&Missed| is_dropped(gap) && self.runs.first().is_none_or(|run| gap.to.mark() < run.due.mark());
        self.missed.iter().filter(before).fold(mark, |passed, gap| passed.later(gap.to.mark()))
    }
}

/// Where what is due lies: what was judged at an earlier look, and what is new. Each after one mark and up to another.
#[derive(Clone, Copy)]
struct Reach {
    judged: (Mark, Mark),
    fresh: (Mark, Mark),
}

impl View<'_> {
    fn catch_up(&self, after: Mark) -> Taken {
        let mut taken = Taken::default();
        let seen = self.found.map_or(after, |found| after.later(self.reading_at(found.seen)));
        let mut reach = Reach { judged: (after, seen), fresh: (seen, self.reading) };
        if let Some(age) = self.policy.max_age {
            let gap = self.gap((seen, self.older_than(self.now, age)), MissedReason::TooOld);
            reach.fresh.0 = gap.map_or(seen, |gap| gap.to.mark());
            taken.missed.extend(gap);
        }
        let late = self.older_than(self.now, self.policy.grace);
        match self.policy.catch_up {
            CatchUp::Latest => self.latest(&mut taken, reach),
            CatchUp::Each { max } => {
                let found_late = self.open_falling((reach.fresh.0, late)).next().is_some();
                let cut = max.filter(|_| found_late || self.found.is_none());
                taken.missed.extend(cut.and_then(|max| self.cut(&mut reach, late, max)));
                self.one_by_one(&mut taken, reach);
            }
            CatchUp::Skip => {
                let gap = self.gap((reach.fresh.0, late), MissedReason::Skipped);
                reach.fresh.0 = gap.map_or(reach.fresh.0, |gap| gap.to.mark());
                taken.missed.extend(gap);
                self.one_by_one(&mut taken, reach);
            }
        }
        taken.found = self.finding(&reach);
        taken
    }

    /// One run stands for all that is due. One that was made before its time does as well.
    fn latest(&self, taken: &mut Taken, reach: Reach) {
        let newest = |(after, upto)| self.falling(after, upto).find(|due| !self.dealt.has_left_out(due));
        let Some(newest) = newest(reach.fresh).or_else(|| newest(reach.judged)) else { return };
        let others = self.gap_upto(&reach, newest.mark().second_before(), MissedReason::Newer);
        taken.missed.extend(others);
        if !self.dealt.has_made(&newest) {
            let missed_count = others.map_or(Count::default(), |gap| gap.count);
            taken.runs.push(Run { missed_count, missed_since: others.map(|gap| gap.from), ..self.run(newest) });
        }
    }

    /// Leaves out all but the newest `max` of those that are late.
    fn cut(&self, reach: &mut Reach, late: Mark, max: u32) -> Option<Missed> {
        let judged = (reach.judged.0, earlier(reach.judged.1, late));
        let mut late = self.open_falling((reach.fresh.0, late)).chain(self.open_falling(judged));
        let newest = late.nth(max as usize)?.mark();
        let gap = self.gap_upto(reach, newest, MissedReason::OverMax);
        reach.judged.0 = newest;
        reach.fresh.0 = reach.fresh.0.later(newest);
        gap
    }

    fn one_by_one(&self, taken: &mut Taken, reach: Reach) {
        let mut due = self.open_rising(reach.judged).chain(self.open_rising(reach.fresh));
        due.by_ref().take(self.batch()).for_each(|due| taken.runs.push(self.run(due)));
        taken.more = due.next().is_some();
    }

    /// What is due and on time, wherever the mark is.
    fn on_time_only(&self, created: Mark) -> Taken {
        let oldest = self.policy.max_age.map_or(self.policy.grace, |age| age.min(self.policy.grace));
        let start = |at| created.later(self.older_than(at, oldest));
        let judged = self.found.map(|found| (start(found.at), self.reading_at(found.seen)));
        let fresh = judged.map_or(start(self.now), |(_, seen)| start(self.now).later(seen));
        let reach = Reach { judged: judged.unwrap_or((fresh, fresh)), fresh: (fresh, self.reading) };
        let mut taken = Taken::default();
        if self.policy.catch_up == CatchUp::Latest {
            self.latest(&mut taken, reach);
            taken.missed.clear();
        } else {
            self.one_by_one(&mut taken, reach);
        }
        taken.found = self.finding(&reach);
        taken
    }

    /// What is to be stored about the moment of finding, while something waits.
    fn finding(&self, reach: &Reach) -> Option<Found> {
        let now = Found { at: self.now, seen: self.now };
        let Some(found) = self.found else { return Some(now) };
        let Some(oldest) = self.open_rising(reach.fresh).next() else { return Some(found) };
        let late = self.run(oldest).late && matches!(self.policy.catch_up, CatchUp::Each { .. });
        Some(if late { now } else { Found { seen: self.now, ..found } })
    }

    fn run(&self, due: Due) -> Run {
        let looked = match self.found {
            Some(found) if due.at <= found.at => found.at,
            Some(found) if due.at <= found.seen => due.at,
            _ => self.now,
        };
        let lateness = (looked - due.at).to_std().unwrap_or_default();
        let late = lateness > self.policy.grace;
        Run { due, lateness, late, missed_count: Count::default(), missed_since: None }
    }

    fn gap(&self, within: (Mark, Mark), reason: MissedReason) -> Option<Missed> {
        left_out(self.dealt, self.calendar, self.zone, within, reason)
    }

    /// One record over both parts, up to a mark.
    fn gap_upto(&self, reach: &Reach, upto: Mark, reason: MissedReason) -> Option<Missed> {
        let part = |(after, end): (Mark, Mark)| self.gap((after, earlier(end, upto)), reason);
        match (part(reach.judged), part(reach.fresh)) {
            (Some(judged), Some(fresh)) => {
                let count = Count::new((judged.count.get() + fresh.count.get()) as usize);
                Some(Missed { from: judged.from, count, ..fresh })
            }
            (judged, fresh) => judged.or(fresh),
        }
    }

    /// The mark up to which occurrences are later than `age` at a moment.
    fn older_than(&self, at: DateTime<Utc>, age: Duration) -> Mark {
        let age = TimeDelta::from_std(age).unwrap_or(TimeDelta::MAX);
        let instant = at.checked_sub_signed(age).unwrap_or(DateTime::UNIX_EPOCH);
        let before = instant.checked_sub_signed(TimeDelta::nanoseconds(1)).unwrap_or(instant);
        self.reading_at(before)
    }

    fn reading_at(&self, at: DateTime<Utc>) -> Mark {
        self.calendar.rule.reading(self.zone, at)
    }

    fn batch(&self) -> usize {
        self.policy.batch.max(1)
    }

    fn falling(&self, after: Mark, upto: Mark) -> impl Iterator<Item = Due> {
        self.calendar.falling(*self.zone, after, upto)
    }

    fn open_rising(&self, (after, upto): (Mark, Mark)) -> impl Iterator<Item = Due> {
        self.calendar.rising(*self.zone, after, upto).filter(|due| !self.dealt.has(due))
    }

    fn open_falling(&self, (after, upto): (Mark, Mark)) -> impl Iterator<Item = Due> {
        self.falling(after, upto).filter(|due| !self.dealt.has(due))
    }
}

fn earlier(one: Mark, other: Mark) -> Mark {
    if other < one { other } else { one }
}
