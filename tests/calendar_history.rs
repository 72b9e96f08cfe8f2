//! Schedules as they are lived with: ten months of sleep, travel over nine zones, daylight saving and wrong clocks,
//! planned without a database.
//!
//! What can go wrong: a run lost or done twice, a missed one that is recorded nowhere, a highest mark that falls, a
//! machine that starts in the year 2000.
//!
//! `BIRKEZ_HISTORIES` (default 2) and `BIRKEZ_SEED` change how much is tried, and what.

use std::collections::BTreeSet;
use std::env;
use std::time::Duration;

use birkez::calendar::{Calendar, CatchUp, Clock, Mark, Plan, Policy, ScheduleState, Zone, plan};
use chrono::{DateTime, NaiveDateTime, TimeDelta, Utc};
use fastrand::Rng;

fn setting(name: &str, default: u64) -> u64 {
    env::var(name).ok().and_then(|value| value.parse().ok()).unwrap_or(default)
}

/// A machine that sleeps, travels and has its clock set wrong, for ten months.
struct History {
    rng: Rng,
    zone: Zone,
    /// What the clock shows less what it should.
    error: TimeDelta,
    behind_since: Option<DateTime<Utc>>,
    state: ScheduleState,
    ran: BTreeSet<String>,
    missed: Vec<(Mark, Mark)>,
    /// Runs that were planned again because the clock showed their time again.
    stopped_by_key: usize,
}

impl History {
    fn policy(catch_up: CatchUp) -> Policy {
        Policy { catch_up, batch: 50, ..Policy::default() }
    }

    fn evaluate(&mut self, calendar: &Calendar, truth: DateTime<Utc>, policy: &Policy) {
        loop {
            let now = truth + self.error;
            let behind_for = self.behind_since.map(|since| truth - since).unwrap_or_default();
            self.state.behind_for = behind_for.to_std().unwrap_or(Duration::ZERO);
            let plan = plan(calendar, &self.zone, &self.state, now, policy);
            self.behind_since = (plan.clock == Clock::Behind).then(|| self.behind_since.unwrap_or(truth));
            self.assert_plan(&plan, now);
            self.state = self.state.after(&plan);
            if !plan.more {
                return;
            }
        }
    }

    fn assert_plan(&mut self, plan: &Plan, now: DateTime<Utc>) {
        let highest = |mark: Mark, high: Option<Mark>| high.map_or(mark, |high| high.later(mark));
        assert!(highest(plan.mark, plan.high) >= highest(self.state.mark, self.state.high), "the highest mark fell");
        for run in &plan.runs {
            assert!(run.due.at <= now && run.due.mark() > self.state.created, "{run:?} at {now}");
            if !self.ran.insert(run.due.occurrence()) {
                let again = plan.clock != Clock::Steady || self.state.high.is_some();
                assert!(again, "{} planned twice at {now} without cause", run.due.occurrence());
                self.stopped_by_key += 1;
            }
        }
        self.missed.extend(plan.missed.iter().map(|gap| (gap.from.mark(), gap.to.mark())));
    }

    /// Time passes; sometimes the machine sleeps, travels, loses its clock or has it put right.
    fn live(&mut self, truth: DateTime<Utc>) -> DateTime<Utc> {
        let rng = &mut self.rng;
        if rng.u16(..200) == 0 {
            let zones = [
                "Europe/Istanbul",
                "Europe/Berlin",
                "America/New_York",
                "America/Los_Angeles",
                "Pacific/Kiritimati",
                "Pacific/Pago_Pago",
                "Asia/Kathmandu",
                "Australia/Lord_Howe",
                "UTC",
            ];
            self.zone = Zone::parse(zones[rng.usize(..zones.len())]).unwrap();
        }
        let right = self.error.is_zero();
        match rng.u16(..600) {
            0 if right => self.error = "2000-01-01T00:00:00Z".parse::<DateTime<Utc>>().unwrap() - truth,
            1 if right => self.error = TimeDelta::minutes(rng.i64(-40 * 1440..-1)),
            2 if right => self.error = TimeDelta::minutes(rng.i64(1..9 * 1440)),
            3..30 => self.error = TimeDelta::zero(),
            _ => {}
        }
        let asleep = if rng.u8(..50) == 0 { rng.i64(1..4 * 86_400) } else { 0 };
        truth + TimeDelta::seconds(asleep + rng.i64(1..2_400))
    }
}

fn relive(calendar: &Calendar, catch_up: CatchUp, seed: u64) -> (History, DateTime<Utc>) {
    let mut truth: DateTime<Utc> = "2026-02-10T09:17:31Z".parse().unwrap();
    let zone = Zone::parse("Europe/Istanbul").unwrap();
    let state = ScheduleState::new(calendar.mark_at(&zone, truth));
    let mut history = History {
        rng: Rng::with_seed(seed),
        zone,
        error: TimeDelta::zero(),
        behind_since: None,
        state,
        ran: BTreeSet::new(),
        missed: Vec::new(),
        stopped_by_key: 0,
    };
    let policy = History::policy(catch_up);
    let end = truth + TimeDelta::days(300);
    while truth < end {
        truth = history.live(truth);
        history.evaluate(calendar, truth, &policy);
    }
    // Beyond all that a clock set forward can have reached, by the right time.
    history.error = TimeDelta::zero();
    truth += TimeDelta::days(12);
    history.evaluate(calendar, truth, &policy);
    (history, truth)
}

/// All marks a history should have dealt with. Wall marks have no zone, and these interval calendars match in every
/// zone at once, so UTC can be asked for all of them.
fn all_marks(calendar: &Calendar, history: &History) -> Vec<Mark> {
    let last = match history.state.mark {
        Mark::Wall(time) => time.and_utc(),
        Mark::Interval(at) => at,
    };
    calendar.due_oldest_first(&Zone::UTC, history.state.created, last).map(|due| due.mark()).collect()
}

fn reliving(check: impl Fn(&Calendar, &str, u64)) {
    let first = setting("BIRKEZ_SEED", 20_261_025);
    println!("BIRKEZ_SEED={first}");
    for seed in first..first + setting("BIRKEZ_HISTORIES", 2) {
        for text in ["30 2 * * *", "0,20,59 0-3,23 * * *", "monthly 31 02:30", "*/15 * * * *", "every 4000s"] {
            let calendar: Calendar = text.parse().unwrap();
            check(&calendar, text, seed);
        }
    }
}

#[test]
fn ten_months_of_sleep_travel_and_wrong_clocks_run_each_occurrence_once_under_each() {
    reliving(|calendar, text, seed| {
        let (history, truth) = relive(calendar, CatchUp::each(), seed);
        let missing: Vec<String> = all_marks(calendar, &history)
            .iter()
            .map(Mark::to_string)
            .filter(|mark| !history.ran.contains(mark))
            .collect();
        assert!(
            missing.is_empty(),
            "seed {seed}, `{text}` to {truth}: lost {} from {:?} on",
            missing.len(),
            missing[0]
        );
        assert!(history.missed.is_empty(), "seed {seed}, `{text}`");
        println!(
            "`{text}`: {} ran, {} planned again and stopped by their id",
            history.ran.len(),
            history.stopped_by_key
        );
    });
}

#[test]
fn ten_months_of_sleep_travel_and_wrong_clocks_run_or_record_each_occurrence_under_latest() {
    reliving(|calendar, text, seed| {
        let (history, _) = relive(calendar, CatchUp::Latest, seed);
        let recorded = |mark: &Mark| history.missed.iter().any(|(from, to)| from <= mark && mark <= to);
        let ran = |mark: &Mark| history.ran.contains(&mark.to_string());
        for mark in all_marks(calendar, &history) {
            assert!(ran(&mark) || recorded(&mark), "seed {seed}, `{text}`: {mark} neither ran nor was recorded");
        }
    });
}

#[test]
fn a_machine_that_starts_in_the_year_2000_runs_nothing_from_before_the_schedule() {
    let zone = Zone::parse("Europe/Berlin").unwrap();
    let calendar = Calendar::cron("* * * * *").unwrap();
    let created: NaiveDateTime = "2026-05-01T00:00:00".parse().unwrap();
    let mut state = ScheduleState::new(calendar.mark_at(&zone, created.and_utc()));
    state.behind_for = Duration::from_secs(1_000_000);
    let reset: DateTime<Utc> = "2000-01-01T00:00:00Z".parse().unwrap();
    for hours in 0..200 {
        let plan = plan(&calendar, &zone, &state, reset + TimeDelta::hours(hours), &Policy::default());
        assert!(plan.runs.is_empty() && plan.missed.is_empty());
        state = state.after(&plan);
    }
    assert_eq!(state.high, Some(state.created));
}
