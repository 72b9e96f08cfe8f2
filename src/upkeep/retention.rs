//! What is kept of what is over, and for how long: pure.

use std::time::Duration;

use crate::clock::millis;

const DAY: Duration = Duration::from_secs(86_400);

/// How long something is kept: it goes once it is too old, or beyond the newest so many, whichever comes first.
///
/// ```
/// use birkez::Keep;
/// let _ = Keep::days(30).and_newest(10_000);
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Keep {
    age: Option<Duration>,
    newest: Option<u64>,
}

impl Keep {
    /// For ever.
    pub const fn forever() -> Keep {
        Keep { age: None, newest: None }
    }

    /// For so many days, of 24 hours each.
    pub const fn days(days: u32) -> Keep {
        Keep::age(Duration::from_secs(days as u64 * 86_400))
    }

    /// For so long after its end, by the machine's clock. What is removed by itself is removed with care: a clock that jumps
    /// ahead by more than two days counts only once it has stood for a day, and an end before 2025 tells no age. Whoever
    /// calls [`upkeep`](crate::Store::upkeep) or [`prune`](crate::Store::prune) believes the clock.
    pub const fn age(age: Duration) -> Keep {
        Keep { age: Some(age), newest: None }
    }

    /// The newest so many, by their numbers.
    pub const fn newest(count: u64) -> Keep {
        Keep { age: None, newest: Some(count) }
    }

    /// And no more than the newest so many, by their numbers.
    pub const fn and_newest(self, count: u64) -> Keep {
        Keep { newest: Some(count), ..self }
    }

    pub(super) fn is_forever(self) -> bool {
        self.age.is_none() && self.newest.is_none()
    }

    pub(super) fn most(self) -> Option<u64> {
        self.newest
    }

    /// What ended then or before is too old.
    pub(super) fn cut(self, now: i64) -> Option<i64> {
        self.age.map(|age| now.saturating_sub(millis(age)))
    }
}

/// What is kept of the finished jobs of one state. Defaults to everything, for ever.
///
/// ```
/// use birkez::{Keep, Kept};
/// let _ = Kept::default().payload(Keep::days(7)).result(Keep::days(90));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[must_use]
pub struct Kept {
    parts: [Keep; PARTS],
}

impl Kept {
    /// The payload, and the earlier ones that the record of deeds holds. A dead or cancelled job without one cannot be
    /// replayed.
    pub fn payload(self, keep: Keep) -> Kept {
        self.with(Part::Payload, keep)
    }

    /// The stored output, and those of its steps. A repeat of a done job's key is then answered with
    /// [`ResultGone`](crate::Error::ResultGone), but where the output was nothing (`null`), which stays. A dead or cancelled
    /// job that is replayed runs all its steps again.
    pub fn result(self, keep: Keep) -> Kept {
        self.with(Part::Result, keep)
    }

    /// The attempts that did not end well, and the last progress.
    pub fn history(self, keep: Keep) -> Kept {
        self.with(Part::History, keep)
    }

    /// The whole job with its key. A repeat of the work is then new work, and runs: keep keys for as long as anybody may
    /// repeat it.
    ///
    /// A dead job that holds its line stays while others wait behind it; a job and those that [correct](crate::Job::corrects)
    /// it go together, once all of them may; the last success of each schedule stays. What a schedule has made is
    /// never forgotten: no occurrence runs twice, whatever becomes of its jobs.
    pub fn key(self, keep: Keep) -> Kept {
        self.with(Part::Key, keep)
    }

    fn with(mut self, part: Part, keep: Keep) -> Kept {
        self.parts[part as usize] = keep;
        self
    }
}

/// What a store keeps of what is over. What waits, runs or is parked is never touched.
///
/// By default, payloads and outputs of done jobs are kept for 30 days and their failed attempts for 400; dead and
/// cancelled jobs whole and for ever; all keys for ever; the record of deeds for ever; the history of runners and of
/// schedules for 400 days; numbers over time for 8 days.
///
/// ```
/// # fn main() -> anyhow::Result<()> {
/// # let folder = birkez::testing::TempStore::new()?;
/// # let path = folder.path();
/// use birkez::{Keep, Kept, Retention, Store};
/// let retention = Retention::default()
///     .done(Kept::default().payload(Keep::days(7)).result(Keep::days(30)).key(Keep::days(800)))
///     .cancelled(Kept::default().payload(Keep::days(90)));
/// let store = Store::builder(path).retention(retention).open()?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub struct Retention {
    /// Done, dead, cancelled.
    jobs: [Kept; 3],
    pub(super) deeds: Keep,
    pub(super) schedules: Option<Duration>,
    pub(super) runners: Option<Duration>,
    pub(super) numbers: Option<Duration>,
}

impl Default for Retention {
    fn default() -> Self {
        let content = Keep::days(30);
        Retention {
            jobs: [
                Kept::default().payload(content).result(content).history(Keep::days(400)),
                Kept::default(),
                Kept::default(),
            ],
            deeds: Keep::forever(),
            schedules: Some(400 * DAY),
            runners: Some(400 * DAY),
            numbers: Some(8 * DAY),
        }
    }
}

impl Retention {
    /// Keeps everything for ever.
    pub fn keep_all() -> Retention {
        let jobs = [Kept::default(); 3];
        Retention { jobs, deeds: Keep::forever(), schedules: None, runners: None, numbers: None }
    }

    /// Of jobs that are done.
    pub fn done(mut self, kept: Kept) -> Retention {
        self.jobs[0] = kept;
        self
    }

    /// Of dead letters.
    pub fn dead(mut self, kept: Kept) -> Retention {
        self.jobs[1] = kept;
        self
    }

    /// Of jobs that were called off.
    pub fn cancelled(mut self, kept: Kept) -> Retention {
        self.jobs[2] = kept;
        self
    }

    /// The record of what people did ([`Store::deeds`](crate::Store::deeds)).
    pub fn deeds(mut self, keep: Keep) -> Retention {
        self.deeds = keep;
        self
    }

    /// Of schedules: records of occurrences that did not run, and what was asked of them. What still needs attention
    /// stays, and so does what a schedule must know. `None`: for ever.
    pub fn schedule_history(mut self, age: Option<Duration>) -> Retention {
        self.schedules = age;
        self
    }

    /// Which processes ran, when, and what they handled. `None`: for ever.
    pub fn runner_history(mut self, age: Option<Duration>) -> Retention {
        self.runners = age;
        self
    }

    /// How long users waited and how often work failed, in slots of five minutes. `None`: for ever.
    pub fn numbers(mut self, age: Option<Duration>) -> Retention {
        self.numbers = age;
        self
    }

    pub(super) fn of(&self, state: i64, part: Part) -> Keep {
        slot(state).map_or(Keep::forever(), |slot| self.jobs[slot].parts[part as usize])
    }

    /// Whether there is a rule for any of these parts.
    pub(super) fn has_rule(&self, parts: Parts) -> bool {
        FINISHED.iter().any(|&state| parts.each().any(|part| !self.of(state, part).is_forever()))
    }
}

/// A time before this, the first of 2025, is that of a machine which did not know it: it tells no age.
pub(super) const FIRST_TIME: i64 = 1_735_689_600_000;

/// The finished states, as they are stored.
pub(super) const FINISHED: [i64; 3] = [2, 3, 4];
const PARTS: usize = 4;

fn slot(state: i64) -> Option<usize> {
    FINISHED.iter().position(|&finished| finished == state)
}

/// What can go of a finished job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Part {
    Payload,
    Result,
    History,
    Key,
}

pub(super) const EACH: [Part; PARTS] = [Part::Payload, Part::Result, Part::History, Part::Key];

/// Some of them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Parts(u8);

impl Parts {
    pub(super) const ALL: Parts = Parts(0b1111);

    pub(super) fn only(part: Part) -> Parts {
        Parts(1 << part as u8)
    }

    pub(super) fn has(self, part: Part) -> bool {
        self.0 & (1 << part as u8) != 0
    }

    pub(super) fn add(&mut self, part: Part) {
        self.0 |= 1 << part as u8;
    }

    pub(super) fn and(self, other: Parts) -> Parts {
        Parts(self.0 & other.0)
    }

    pub(super) fn is_empty(self) -> bool {
        self.0 == 0
    }

    fn each(self) -> impl Iterator<Item = Part> {
        EACH.into_iter().filter(move |&part| self.has(part))
    }
}

/// The rules of one pass: by state and part, up to which end and up to which number it goes.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Cuts {
    now: i64,
    age: [[Option<i64>; PARTS]; 3],
    number: [[Option<i64>; PARTS]; 3],
}

impl Cuts {
    /// `beyond` answers the number of the newest job of a state that is not among its newest so many.
    pub(super) fn new<E>(
        retention: &Retention,
        parts: Parts,
        now: i64,
        mut beyond: impl FnMut(i64, u64) -> Result<Option<i64>, E>,
    ) -> Result<Cuts, E> {
        let mut cuts = Cuts { now, ..Cuts::default() };
        for (at, state) in FINISHED.into_iter().enumerate() {
            for part in parts.each() {
                let keep = retention.of(state, part);
                cuts.age[at][part as usize] = keep.cut(now);
                if let Some(most) = keep.most() {
                    cuts.number[at][part as usize] = beyond(state, most)?;
                }
            }
        }
        Ok(cuts)
    }

    /// What is to go of a job.
    pub(super) fn due(&self, id: i64, state: i64, finished_at: Option<i64>) -> Parts {
        let mut due = Parts::default();
        let (Some(slot), Some(finished_at)) = (slot(state), finished_at) else { return due };
        for part in EACH {
            let cut = self.age[slot][part as usize].filter(|_| finished_at >= FIRST_TIME);
            let too_old = cut.is_some_and(|cut| finished_at <= cut);
            let beyond = self.number[slot][part as usize].is_some_and(|last| id <= last);
            if too_old || beyond {
                due.add(part);
            }
        }
        due
    }

    /// Whether nothing of a job can be due that was enqueued then, nor of any after it: it has ended later still.
    pub(super) fn is_young(&self, id: i64, created_at: i64) -> bool {
        let ages = self.age.iter().flatten().flatten();
        let numbers = self.number.iter().flatten().flatten();
        // What a clock that was ahead has stored says nothing of those after it.
        let is_known = (1..=self.now).contains(&created_at);
        is_known && ages.max().is_none_or(|&cut| created_at > cut) && numbers.max().is_none_or(|&last| id > last)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The time is so many milliseconds after the first that counts.
    fn cuts(retention: &Retention, now: i64) -> Cuts {
        Cuts::new(retention, Parts::ALL, FIRST_TIME + now, |_, most| Ok::<_, ()>(Some(100 - most as i64))).unwrap()
    }

    #[test]
    fn what_is_too_old_or_beyond_the_newest_goes_and_nothing_else() {
        let kept = Kept::default().payload(Keep::age(Duration::from_millis(10)).and_newest(40)).key(Keep::newest(90));
        let cuts = cuts(&Retention::keep_all().done(kept), 1_000);
        let payload = Parts::only(Part::Payload);
        assert_eq!(cuts.due(61, 2, Some(FIRST_TIME + 990)), payload, "as old as it may be is too old");
        assert_eq!(cuts.due(61, 2, Some(FIRST_TIME + 991)), Parts::default());
        assert_eq!(cuts.due(60, 2, Some(FIRST_TIME + 991)), payload, "beyond the newest");
        let mut both = payload;
        both.add(Part::Key);
        assert_eq!(cuts.due(10, 2, Some(FIRST_TIME + 999)), both);
        for state in [0, 1, 3, 4] {
            assert_eq!(cuts.due(1, state, Some(FIRST_TIME)), Parts::default(), "state {state} has no rule");
        }
    }

    #[test]
    fn by_default_only_done_jobs_lose_anything_and_never_their_keys() {
        let month = 30 * 86_400_000;
        let cuts = cuts(&Retention::default(), 500 * 86_400_000);
        assert_eq!(cuts.due(1, 2, Some(FIRST_TIME + 500 * 86_400_000 - month)), Parts(0b0011));
        assert_eq!(cuts.due(1, 2, Some(FIRST_TIME + 500 * 86_400_000 - month + 1)), Parts::default());
        assert_eq!(cuts.due(1, 2, Some(FIRST_TIME)), Parts(0b0111));
        assert_eq!(cuts.due(1, 3, Some(FIRST_TIME)), Parts::default());
        assert_eq!(cuts.due(1, 4, Some(FIRST_TIME)), Parts::default());
    }

    #[test]
    fn a_time_that_no_clock_can_have_meant_tells_no_age() {
        let cuts = cuts(&Retention::default(), 500 * 86_400_000);
        for end in [0, 1, FIRST_TIME - 1] {
            assert_eq!(cuts.due(1, 2, Some(end)), Parts::default());
        }
    }

    #[test]
    fn a_walk_ends_only_where_no_rule_reaches() {
        let kept = Kept::default().payload(Keep::age(Duration::from_millis(10))).key(Keep::newest(40));
        let cuts = cuts(&Retention::keep_all().done(kept), 1_000);
        assert!(cuts.is_young(61, FIRST_TIME + 991));
        assert!(!cuts.is_young(60, FIRST_TIME + 991), "it may be beyond the newest");
        assert!(!cuts.is_young(61, FIRST_TIME + 990), "it may be too old");
        assert!(!cuts.is_young(61, 0), "nobody has looked at it");
        assert!(!cuts.is_young(61, FIRST_TIME + 1_001), "the clock was ahead");
    }
}
