//! The decision of one evaluation: from a schedule's stored marks and the time, to what runs, what is recorded as
//! missed, and where the mark goes.
//!
//! Waking late, sleeping, a skipped hour and a flight to the east are all one case here: occurrences lie between the
//! mark and the time read. A flight to the west and a clock set back are the other: the mark lies ahead of the time
//! read. A repeated hour is neither, since readings stand still during its second pass.

use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};

use super::policy::{CatchUp, Count, Missed, MissedReason, Policy};
use super::{Calendar, Due, Mark, Zone};

#[cfg(test)]
mod tests;

/// Wall jobs wait for a clock that is behind the mark by no more than this, as Vixie's cron does.
const SMALL_STEP: TimeDelta = TimeDelta::hours(3);

/// A clock that has been behind the mark for so long is believed.
const BELIEVED_AFTER: Duration = Duration::from_secs(48 * 60 * 60);

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
    /// For how long, by a monotonic clock, evaluations have found [`Clock::Behind`] without a break; zero otherwise.
    /// Need not be stored: a restart only makes a wrong clock believed later.
    pub behind_for: Duration,
}

impl ScheduleState {
    /// A schedule that begins at a mark.
    pub fn new(created: Mark) -> ScheduleState {
        ScheduleState { created, mark: created, high: None, behind_for: Duration::ZERO }
    }

    /// The state after a plan was carried out.
    #[must_use]
    pub fn after(self, plan: &Plan) -> ScheduleState {
        ScheduleState { mark: plan.mark, high: plan.high, ..self }
    }
}

/// What one evaluation decides.
///
/// Runs, records and marks belong in one transaction, stored only if mark and high are still those that were read. An
/// occurrence whose id is already stored with its schedule has run and is left out; that happens when the time has
/// been here before.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// What runs, oldest first.
    pub runs: Vec<Run>,
    /// What does not run, oldest first.
    pub missed: Vec<Missed>,
    /// The mark to store. The same as before if nothing was due.
    pub mark: Mark,
    /// The high mark to store.
    pub high: Option<Mark>,
    /// How the time that was read stands to the mark.
    pub clock: Clock,
    /// More was due than one batch: evaluate again once these have been dealt with.
    pub more: bool,
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
///   under `Latest`: if any was missed (later than the grace), the newest due occurrence runs for all; else each
///   runs, except that of several at one instant (a skipped hour) the newest runs. Under `Each`: all run, oldest
///   first, after a maximum has cut the oldest missed off. Under `Skip`: those missed are recorded, the others run.
/// * Behind by at most three hours: wall jobs wait. For interval jobs what is on time runs, in case it never has.
/// * Behind by more: what is on time runs, in case it never has; the mark stays. After 48 hours of this the lower
///   clock is believed: the mark follows it, the old one is kept as `high`, and once the time reaches that again,
///   what was dealt with before is not caught up a second time.
///
/// It costs a few steps of the calendar for each run, 1,000 for each record, and `max` for `Each`; the length of the
/// absence costs nothing.
pub fn plan(calendar: &Calendar, zone: &Zone, state: &ScheduleState, now: DateTime<Utc>, policy: &Policy) -> Plan {
    let own = |mark| calendar.rule.own(zone, mark);
    let view = View { calendar, zone, now, policy, reading: calendar.rule.reading(zone, now) };
    let (created, mark, high) = (own(state.created), own(state.mark), state.high.map(own));
    let regained = high.filter(|high| *high <= view.reading);
    let mark = regained.map_or(mark, |high| mark.later(high));
    let high = if regained.is_some() { None } else { high };

    let behind = mark.ahead_of(view.reading);
    if behind.is_zero() {
        let taken = view.catch_up(created.later(mark));
        let mark = taken.upto.unwrap_or(mark);
        return Plan { runs: taken.runs, missed: taken.missed, mark, high, clock: Clock::Steady, more: taken.more };
    }
    let clock = if behind > SMALL_STEP { Clock::Behind } else { Clock::Waiting };
    let waits = clock == Clock::Waiting && calendar.is_wall();
    let runs = if waits { Vec::new() } else { view.on_time_only(created) };
    let believed = clock == Clock::Behind && state.behind_for >= BELIEVED_AFTER;
    let (mark, high) =
        if believed { (view.reading, Some(high.map_or(mark, |high| high.later(mark)))) } else { (mark, high) };
    Plan { runs, missed: Vec::new(), mark, high, clock, more: false }
}

/// One schedule at one moment.
struct View<'a> {
    calendar: &'a Calendar,
    zone: &'a Zone,
    now: DateTime<Utc>,
    policy: &'a Policy,
    reading: Mark,
}

/// What was done with the occurrences after a mark, as far as `upto`.
#[derive(Default)]
struct Taken {
    runs: Vec<Run>,
    missed: Vec<Missed>,
    upto: Option<Mark>,
    more: bool,
}

impl Taken {
    fn leave_out(&mut self, gap: Option<Missed>) {
        self.upto = gap.map(|gap| gap.to.mark()).or(self.upto);
        self.missed.extend(gap);
    }

    fn take(&mut self, run: Run) {
        self.upto = Some(run.due.mark());
        self.runs.push(run);
    }
}

impl View<'_> {
    fn catch_up(&self, after: Mark) -> Taken {
        let mut taken = Taken::default();
        if let Some(age) = self.policy.max_age {
            taken.leave_out(self.gap(after, self.older_than(age), MissedReason::TooOld));
        }
        let after = taken.upto.unwrap_or(after);
        let late = self.older_than(self.policy.grace);
        match self.policy.catch_up {
            CatchUp::Latest => self.latest(&mut taken, after, late),
            CatchUp::Each { max } => {
                let over = max.and_then(|max| self.falling(after, late).nth(max as usize));
                taken.leave_out(over.and_then(|newest| self.gap(after, newest.mark(), MissedReason::OverMax)));
                self.one_by_one(&mut taken, after);
            }
            CatchUp::Skip => {
                taken.leave_out(self.gap(after, late, MissedReason::Skipped));
                self.one_by_one(&mut taken, after);
            }
        }
        taken
    }

    fn latest(&self, taken: &mut Taken, mut after: Mark, late: Mark) {
        while taken.runs.len() < self.batch() {
            let Some(oldest) = self.rising(after).next() else { return };
            // If any is missed, one run stands for all that is due; else one stands for those of its instant.
            let upto =
                if oldest.mark() <= late { self.reading } else { self.calendar.rule.reading(self.zone, oldest.at) };
            let newest = self.falling(after, upto).next().unwrap_or(oldest);
            let others = self.gap(after, newest.mark().second_before(), MissedReason::Newer);
            taken.leave_out(others);
            taken.take(Run {
                missed_count: others.map_or(Count::default(), |gap| gap.count),
                missed_since: others.map(|gap| gap.from),
                ..self.run(newest)
            });
            after = newest.mark();
        }
        taken.more = self.rising(after).next().is_some();
    }

    fn one_by_one(&self, taken: &mut Taken, after: Mark) {
        let mut due = self.rising(taken.upto.unwrap_or(after));
        due.by_ref().take(self.batch()).for_each(|due| taken.take(self.run(due)));
        taken.more = due.next().is_some();
    }

    /// What is due and on time, wherever the mark is.
    fn on_time_only(&self, created: Mark) -> Vec<Run> {
        let oldest = self.policy.max_age.map_or(self.policy.grace, |age| age.min(self.policy.grace));
        let due = self.falling(created.later(self.older_than(oldest)), self.reading);
        let mut runs: Vec<Run> = due.take(self.batch()).map(|due| self.run(due)).collect();
        if self.policy.catch_up == CatchUp::Latest {
            runs.dedup_by_key(|run| run.due.at);
        }
        runs.reverse();
        runs
    }

    fn run(&self, due: Due) -> Run {
        let lateness = (self.now - due.at).to_std().unwrap_or_default();
        let late = lateness > self.policy.grace;
        Run { due, lateness, late, missed_count: Count::default(), missed_since: None }
    }

    /// The record of all occurrences after one mark and up to another; `None` if there are none.
    fn gap(&self, after: Mark, upto: Mark, reason: MissedReason) -> Option<Missed> {
        let to = self.falling(after, upto).next()?;
        let from = self.rising(after).next()?;
        let counted = self.falling(after, upto).take(Count::EXACT as usize + 1).count();
        Some(Missed { from, to, count: Count::new(counted), reason })
    }

    /// The mark up to which occurrences are later than `age`.
    fn older_than(&self, age: Duration) -> Mark {
        let age = TimeDelta::from_std(age).unwrap_or(TimeDelta::MAX);
        let instant = self.now.checked_sub_signed(age).unwrap_or(DateTime::UNIX_EPOCH);
        let before = instant.checked_sub_signed(TimeDelta::nanoseconds(1)).unwrap_or(instant);
        self.calendar.rule.reading(self.zone, before)
    }

    fn batch(&self) -> usize {
        self.policy.batch.max(1)
    }

    fn rising(&self, after: Mark) -> impl Iterator<Item = Due> {
        self.calendar.rising(*self.zone, after, self.reading)
    }

    fn falling(&self, after: Mark, upto: Mark) -> impl Iterator<Item = Due> {
        self.calendar.falling(*self.zone, after, upto)
    }
}
