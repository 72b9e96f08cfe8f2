//! What can go wrong: a run lost to a short delay, a storm after a long one, a record that does not add up, a run
//! before the schedule existed, a wrong clock that is believed too soon or not at all.

use super::*;
use crate::calendar::ShortMonths;

fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn berlin() -> Zone {
    Zone::parse("Europe/Berlin").unwrap()
}

fn policy(catch_up: CatchUp) -> Policy {
    Policy { catch_up, ..Policy::default() }
}

/// The plan for a schedule in UTC that was evaluated at one time, and now is another.
fn planned(line: &str, since: &str, now: &str, policy: Policy) -> Plan {
    let calendar = Calendar::cron_with(line, ShortMonths::Skip).unwrap();
    let state = ScheduleState::new(calendar.mark_at(&Zone::UTC, at(since)));
    plan(&calendar, &Zone::UTC, &state, at(now), &policy)
}

fn runs(plan: &Plan) -> Vec<String> {
    plan.runs.iter().map(|run| run.due.occurrence()).collect()
}

fn gaps(plan: &Plan) -> Vec<(String, String, u32, MissedReason)> {
    let gap = |gap: &Missed| (gap.from.occurrence(), gap.to.occurrence(), gap.count.get(), gap.reason);
    plan.missed.iter().map(gap).collect()
}

const HOURLY: &str = "0 * * * *";

#[test]
fn nothing_is_due_and_nothing_moves_between_occurrences() {
    let plan = planned(HOURLY, "2026-05-01T10:00:00Z", "2026-05-01T10:59:59.999Z", Policy::default());
    assert_eq!((plan.runs.len(), plan.missed.len(), plan.clock), (0, 0, Clock::Steady));
    assert_eq!(plan.mark.to_string(), "2026-05-01T10:00:00Z");
}

#[test]
fn an_occurrence_is_due_from_its_very_instant_on() {
    let plan = planned(HOURLY, "2026-05-01T10:30:00Z", "2026-05-01T11:00:00Z", Policy::default());
    assert_eq!(runs(&plan), ["2026-05-01T11:00:00Z"]);
    assert_eq!((plan.runs[0].lateness, plan.runs[0].late), (Duration::ZERO, false));
    assert_eq!(plan.mark.to_string(), "2026-05-01T11:00:00Z");
}

#[test]
fn latest_runs_the_newest_of_an_absence_and_records_the_others() {
    let plan = planned(HOURLY, "2026-05-01T10:00:00Z", "2026-05-01T15:20:00Z", Policy::default());
    assert_eq!(runs(&plan), ["2026-05-01T15:00:00Z"]);
    let first = "2026-05-01T11:00:00Z";
    assert_eq!(gaps(&plan), [(first.into(), "2026-05-01T14:00:00Z".into(), 4, MissedReason::Newer)]);
    let run = plan.runs[0];
    assert_eq!((run.missed_count.get(), run.missed_since.unwrap().occurrence().as_str()), (4, first));
    assert!(run.late && !plan.more);
}

#[test]
fn latest_runs_once_for_an_absence_that_ends_at_an_occurrence() {
    let plan = planned(HOURLY, "2026-05-01T10:00:00Z", "2026-05-01T15:00:00Z", Policy::default());
    assert_eq!(runs(&plan), ["2026-05-01T15:00:00Z"]);
    assert_eq!((plan.runs[0].missed_count.get(), plan.runs[0].late), (4, false));
}

#[test]
fn a_delay_within_the_grace_loses_no_run_and_latest_runs_the_newest_for_all() {
    for (catch_up, expected) in [(CatchUp::Latest, 1), (CatchUp::each(), 3), (CatchUp::Skip, 3)] {
        let plan = planned("* * * * *", "2026-05-01T10:00:00Z", "2026-05-01T10:03:10Z", policy(catch_up));
        assert_eq!(plan.runs.len(), expected, "{catch_up:?}");
        assert_eq!(runs(&plan).last().unwrap(), "2026-05-01T10:03:00Z");
        assert_eq!(plan.missed.iter().map(|gap| gap.count.get()).sum::<u32>(), 3 - expected as u32);
    }
}

#[test]
fn latest_runs_one_of_two_nominal_times_that_a_skipped_hour_brings_to_one_instant() {
    let calendar = Calendar::cron("0,30 2 * * *").unwrap();
    let state = ScheduleState::new(calendar.mark_at(&berlin(), at("2026-03-28T12:00:00Z")));
    let jump = at("2026-03-29T01:00:00Z");
    let latest = plan(&calendar, &berlin(), &state, jump, &Policy::default());
    assert_eq!(runs(&latest), ["2026-03-29T02:30:00"]);
    assert_eq!(latest.missed[0].from.occurrence(), "2026-03-29T02:00:00");
    assert!(!latest.runs[0].late);
    let each = plan(&calendar, &berlin(), &state, jump, &policy(CatchUp::each()));
    assert_eq!(runs(&each), ["2026-03-29T02:00:00", "2026-03-29T02:30:00"]);
}

/// The plan of a later look, at which what the first has found still waits.
fn looked_again(line: &str, times: [&str; 3], policy: Policy) -> Plan {
    let calendar = Calendar::cron(line).unwrap();
    let state = ScheduleState::new(calendar.mark_at(&Zone::UTC, at(times[0])));
    let first = plan(&calendar, &Zone::UTC, &state, at(times[1]), &policy);
    let state = ScheduleState { mark: first.passed, found: first.found, ..state };
    plan(&calendar, &Zone::UTC, &state, at(times[2]), &policy)
}

#[test]
fn what_was_found_on_time_keeps_its_lateness_however_long_it_waits() {
    let times = ["2026-05-01T09:30:00Z", "2026-05-01T10:00:01Z", "2026-05-01T10:40:00Z"];
    for catch_up in [CatchUp::Latest, CatchUp::each(), CatchUp::Skip] {
        let policy = Policy { max_age: Some(Duration::from_secs(600)), ..policy(catch_up) };
        let again = looked_again(HOURLY, times, policy);
        assert_eq!((runs(&again), again.missed.len()), (vec!["2026-05-01T10:00:00Z".to_owned()], 0), "{catch_up:?}");
        assert_eq!((again.runs[0].lateness, again.runs[0].late), (Duration::from_secs(1), false));
    }
}

#[test]
fn what_is_found_late_beside_what_waits_is_judged_by_itself() {
    let times = ["2026-05-01T09:30:00Z", "2026-05-01T10:00:01Z", "2026-05-01T12:40:00Z"];
    let skip = looked_again(HOURLY, times, policy(CatchUp::Skip));
    assert_eq!((runs(&skip), skip.missed[0].count.get()), (vec!["2026-05-01T10:00:00Z".to_owned()], 2));
    assert_eq!(skip.passed.to_string(), "2026-05-01T09:30:00Z", "the records alone move no mark");
    let each = looked_again(HOURLY, times, policy(CatchUp::each()));
    assert_eq!((each.runs.len(), each.missed.len()), (3, 0));
    assert_eq!(each.found.map(|found| found.at), Some(at(times[2])), "all of it is one backlog now");
    let newest = looked_again(HOURLY, times, policy(CatchUp::each_of_newest(1)));
    assert_eq!((runs(&newest), newest.missed[0].count.get()), (vec!["2026-05-01T12:00:00Z".to_owned()], 2));
}

#[test]
fn what_has_been_dealt_with_is_passed_and_not_counted() {
    let calendar = Calendar::cron(HOURLY).unwrap();
    let state = ScheduleState::new(calendar.mark_at(&Zone::UTC, at("2026-05-01T10:00:00Z")));
    let mut dealt = Dealt::default();
    dealt.note_made("2026-05-01T12:00:00Z".parse().unwrap());
    dealt.note_left_out("2026-05-01T14:00:00Z".parse().unwrap(), "2026-05-01T15:00:00Z".parse().unwrap());
    let planned =
        |catch_up| plan_around(&dealt, &calendar, &Zone::UTC, &state, at("2026-05-01T15:20:00Z"), &policy(catch_up));
    let latest = planned(CatchUp::Latest);
    assert_eq!((runs(&latest), latest.missed[0].count.get()), (vec!["2026-05-01T13:00:00Z".to_owned()], 1));
    let each = planned(CatchUp::each());
    assert_eq!(runs(&each), ["2026-05-01T11:00:00Z", "2026-05-01T13:00:00Z"]);
    let skip = planned(CatchUp::Skip);
    assert_eq!((skip.runs.len(), skip.missed[0].count.get()), (0, 2));
    assert_eq!(skip.mark.to_string(), "2026-05-01T15:00:00Z", "all of it is behind");
}

#[test]
fn where_the_newest_was_made_before_its_time_latest_runs_none_in_its_place() {
    let calendar = Calendar::cron(HOURLY).unwrap();
    let state = ScheduleState::new(calendar.mark_at(&Zone::UTC, at("2026-05-01T10:00:00Z")));
    let mut dealt = Dealt::default();
    dealt.note_made("2026-05-01T12:00:00Z".parse().unwrap());
    let plan = plan_around(&dealt, &calendar, &Zone::UTC, &state, at("2026-05-01T12:30:00Z"), &Policy::default());
    assert_eq!((plan.runs.len(), plan.missed[0].count.get()), (0, 1));
}

#[test]
fn each_goes_on_batch_by_batch_until_nothing_is_left() {
    let policy = Policy { batch: 2, ..policy(CatchUp::each()) };
    let calendar = Calendar::cron(HOURLY).unwrap();
    let mut state = ScheduleState::new(calendar.mark_at(&Zone::UTC, at("2026-05-01T10:00:00Z")));
    let mut all = Vec::new();
    for more in [true, true, false] {
        let plan = plan(&calendar, &Zone::UTC, &state, at("2026-05-01T15:20:00Z"), &policy);
        assert_eq!(plan.more, more);
        all.extend(runs(&plan));
        state = state.after(&plan);
    }
    assert_eq!(all.len(), 5);
    assert!(all.is_sorted());
}

#[test]
fn a_maximum_keeps_the_newest_missed_and_those_on_time() {
    let plan = planned(HOURLY, "2026-05-01T10:00:00Z", "2026-05-01T15:01:00Z", policy(CatchUp::each_of_newest(2)));
    assert_eq!(runs(&plan), ["2026-05-01T13:00:00Z", "2026-05-01T14:00:00Z", "2026-05-01T15:00:00Z"]);
    let dropped = ("2026-05-01T11:00:00Z".into(), "2026-05-01T12:00:00Z".into(), 2, MissedReason::OverMax);
    assert_eq!(gaps(&plan), [dropped]);
    assert!(plan.missed[0].reason.needs_attention());
    assert_eq!(plan.runs.iter().map(|run| run.late).collect::<Vec<_>>(), [true, true, false]);
}

#[test]
fn skip_records_what_was_missed_and_runs_what_is_on_time() {
    let plan = planned(HOURLY, "2026-05-01T10:00:00Z", "2026-05-01T15:01:00Z", policy(CatchUp::Skip));
    assert_eq!(runs(&plan), ["2026-05-01T15:00:00Z"]);
    assert_eq!((plan.missed[0].count.get(), plan.missed[0].reason), (4, MissedReason::Skipped));
    let plan = planned(HOURLY, "2026-05-01T10:00:00Z", "2026-05-01T14:31:00Z", policy(CatchUp::Skip));
    assert!(plan.runs.is_empty());
    assert_eq!(plan.mark.to_string(), "2026-05-01T14:00:00Z", "they are recorded once only");
}

#[test]
fn what_is_too_old_never_runs_whatever_the_policy() {
    for (catch_up, expected) in [(CatchUp::Latest, 1), (CatchUp::each(), 2), (CatchUp::Skip, 0)] {
        let policy = Policy { max_age: Some(Duration::from_secs(2 * 3600)), ..policy(catch_up) };
        let plan = planned(HOURLY, "2026-05-01T10:00:00Z", "2026-05-01T15:30:00Z", policy);
        assert_eq!(plan.runs.len(), expected, "{catch_up:?}");
        assert_eq!((plan.missed[0].count.get(), plan.missed[0].reason), (3, MissedReason::TooOld));
    }
    let second = Policy { max_age: Some(Duration::from_secs(1)), ..Policy::default() };
    let plan = planned(HOURLY, "2026-05-01T10:30:00Z", "2026-05-01T11:00:01.600Z", second);
    assert_eq!((plan.runs.len(), plan.missed[0].reason), (0, MissedReason::TooOld));
}

#[test]
fn a_long_absence_is_counted_to_a_thousand() {
    let plan = planned("* * * * *", "2025-05-01T10:00:00Z", "2026-05-01T10:00:00Z", Policy::default());
    assert_eq!(runs(&plan), ["2026-05-01T10:00:00Z"]);
    assert_eq!(plan.missed[0].count.to_string(), "more than 1,000");
    assert_eq!(plan.missed[0].from.occurrence(), "2025-05-01T10:01:00Z");
    let exact = planned("* * * * *", "2026-05-01T10:00:00Z", "2026-05-02T02:41:00Z", Policy::default());
    assert_eq!(exact.missed[0].count.to_string(), "1000");
}

#[test]
fn a_repeated_hour_runs_wall_jobs_once_and_interval_jobs_twice() {
    for (line, expected) in [("30 2 * * *", 1), ("*/30 2 * * *", 4)] {
        let calendar = Calendar::cron(line).unwrap();
        let mut now = at("2026-10-24T20:00:00Z");
        let mut state = ScheduleState::new(calendar.mark_at(&berlin(), now));
        let mut count = 0;
        while now < at("2026-10-25T12:00:00Z") {
            now += TimeDelta::seconds(59);
            let plan = plan(&calendar, &berlin(), &state, now, &Policy::default());
            count += plan.runs.len();
            state = state.after(&plan);
        }
        assert_eq!(count, expected, "{line}");
    }
}

#[test]
fn waking_in_the_second_pass_runs_what_the_first_pass_missed_at_once() {
    let calendar = Calendar::cron("30 2 * * *").unwrap();
    let state = ScheduleState::new(calendar.mark_at(&berlin(), at("2026-10-24T20:00:00Z")));
    let plan = plan(&calendar, &berlin(), &state, at("2026-10-25T01:05:00Z"), &Policy::default());
    assert_eq!(runs(&plan), ["2026-10-25T02:30:00"]);
    assert_eq!(plan.runs[0].lateness, Duration::from_secs(35 * 60));
}

#[test]
fn a_flight_east_catches_up_what_it_jumped_over_and_one_west_repeats_nothing() {
    let calendar = Calendar::cron("30 2 * * *").unwrap();
    let state = ScheduleState::new(calendar.mark_at(&berlin(), at("2026-05-01T20:00:00Z")));
    let tokyo = Zone::parse("Asia/Tokyo").unwrap();
    let landed = plan(&calendar, &tokyo, &state, at("2026-05-01T21:00:00Z"), &Policy::default());
    assert_eq!(runs(&landed), ["2026-05-02T02:30:00"]);
    let home = plan(&calendar, &berlin(), &state.after(&landed), at("2026-05-01T22:00:00Z"), &Policy::default());
    assert_eq!((home.runs.len(), home.clock), (0, Clock::Waiting));
}

#[test]
fn interval_jobs_follow_a_clock_that_was_corrected_by_two_hours() {
    let calendar = Calendar::cron("* * * * *").unwrap();
    let mut state = ScheduleState::new(calendar.mark_at(&Zone::UTC, at("2026-05-01T14:00:00Z")));
    state.mark = calendar.mark_at(&Zone::UTC, at("2026-05-01T17:00:00Z"));
    let plan = plan(&calendar, &Zone::UTC, &state, at("2026-05-01T15:02:00Z"), &Policy::default());
    assert_eq!(plan.clock, Clock::Waiting);
    assert_eq!(runs(&plan).last().unwrap(), "2026-05-01T15:02:00Z");
    assert_eq!(plan.mark, state.mark);
}

#[test]
fn a_clock_set_far_back_runs_what_is_on_time_and_catches_nothing_up() {
    let calendar = Calendar::cron("0 3 * * *").unwrap();
    let mut state = ScheduleState::new(calendar.mark_at(&Zone::UTC, at("2026-04-01T00:00:00Z")));
    state.mark = calendar.mark_at(&Zone::UTC, at("2026-05-01T03:00:00Z"));
    let on_time = plan(&calendar, &Zone::UTC, &state, at("2026-04-10T03:01:00Z"), &Policy::default());
    assert_eq!((runs(&on_time), on_time.clock), (vec!["2026-04-10T03:00:00".to_owned()], Clock::Behind));
    assert_eq!((on_time.mark, on_time.high), (state.mark, None));
    let later = plan(&calendar, &Zone::UTC, &state, at("2026-04-10T04:00:00Z"), &Policy::default());
    assert!(later.runs.is_empty() && later.missed.is_empty());
    let before = plan(&calendar, &Zone::UTC, &state, at("2026-03-20T03:00:00Z"), &Policy::default());
    assert!(before.runs.is_empty(), "the schedule did not exist yet");
}

#[test]
fn a_lower_clock_is_believed_after_48_hours_and_the_old_mark_is_not_caught_up_again() {
    let calendar = Calendar::cron("0 3 * * *").unwrap();
    let mut state = ScheduleState::new(calendar.mark_at(&Zone::UTC, at("2026-04-01T00:00:00Z")));
    let old = calendar.mark_at(&Zone::UTC, at("2026-05-01T03:00:00Z"));
    state.mark = old;
    state.behind_for = Duration::from_secs(48 * 3600);
    let believed = plan(&calendar, &Zone::UTC, &state, at("2026-04-10T12:00:00Z"), &Policy::default());
    assert_eq!((believed.mark.to_string().as_str(), believed.high), ("2026-04-10T12:00:00", Some(old)));

    let state = ScheduleState { behind_for: Duration::ZERO, ..state.after(&believed) };
    let asleep = plan(&calendar, &Zone::UTC, &state, at("2026-04-13T12:00:00Z"), &policy(CatchUp::each()));
    assert_eq!((asleep.runs.len(), asleep.high), (3, Some(old)));

    let right =
        plan(&calendar, &Zone::UTC, &state.after(&asleep), at("2026-05-03T12:00:00Z"), &policy(CatchUp::each()));
    assert_eq!(runs(&right), ["2026-05-02T03:00:00", "2026-05-03T03:00:00"]);
    assert_eq!(right.high, None);
}

#[test]
fn a_mark_of_the_other_kind_is_carried_over() {
    let calendar = Calendar::cron("0 3 * * *").unwrap();
    let state = ScheduleState::new(Mark::Interval(at("2026-05-01T00:59:59Z")));
    let plan = plan(&calendar, &berlin(), &state, at("2026-05-01T01:00:00Z"), &Policy::default());
    assert_eq!(runs(&plan), ["2026-05-01T03:00:00"]);
}

#[test]
fn no_instant_and_no_duration_makes_planning_panic() {
    let endless = Some(Duration::MAX);
    for now in [DateTime::<Utc>::MIN_UTC, DateTime::UNIX_EPOCH, DateTime::<Utc>::MAX_UTC] {
        for line in ["* * * * * *", "0 3 L * *"] {
            let calendar = Calendar::cron(line).unwrap();
            let mut state = ScheduleState::new(calendar.mark_at(&berlin(), at("2026-05-01T00:00:00Z")));
            state.behind_for = Duration::MAX;
            let policy = Policy { grace: Duration::MAX, max_age: endless, batch: 0, ..Policy::default() };
            let _ = plan(&calendar, &berlin(), &state, now, &policy);
            let _ = plan(&calendar, &berlin(), &state, now, &Policy { catch_up: CatchUp::Skip, ..policy });
        }
    }
}
