//! Schedules under several processes and under kills. What can go wrong: two that evaluate one due occurrence at the same
//! moment both make it, or neither does; a process that dies in the middle leaves an occurrence without its jobs, or jobs
//! that are made again.

mod common;

use std::path::Path;
use std::sync::{Arc, Barrier};
use std::time::Duration;

use birkez::calendar::CatchUp;
use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{Job, Occurrence, Overlap, Runner, Schedule, Store};
use common::{Child, ask, given, rounds, tell};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Post(String);

impl Job for Post {
    const KIND: &'static str = "post";
    type Output = ();
    fn key(&self) -> String {
        self.0.clone()
    }
}

/// A clock that starts at midnight.
fn midnight() -> Arc<ManualClock> {
    ManualClock::at("2026-05-31T00:00:00Z".parse().unwrap())
}

fn minutely() -> Schedule {
    Schedule::cron("minutely", "* * * * *")
        .unwrap()
        .zone("Europe/Istanbul")
        .unwrap()
        .catch_up(CatchUp::each())
        .overlap(Overlap::Allow)
}

fn two_of_a_minute(at: &Occurrence) -> [Post; 2] {
    ["a", "b"].map(|card| Post(format!("{card} {}", at.id())))
}

/// Evaluates the schedule on its own clock; no handler is there, so that the jobs stay where they can be counted.
fn drain_of(path: &Path) -> (Arc<ManualClock>, Drain) {
    let clock = midnight();
    let store = Store::builder(path).clock(clock.clone()).open().unwrap();
    (clock, Drain::new(Runner::builder(&store).schedule(minutely(), two_of_a_minute)).unwrap())
}

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("evaluate") => evaluate_each_minute(),
        Some("map-and-hang") => map_and_hang(),
        Some("walk") => walk_the_minutes(),
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

const EVALUATORS: usize = 4;

/// In a child: each time it may, a minute has passed on its clock.
fn evaluate_each_minute() {
    let (clock, drain) = drain_of(given("FILE").as_ref());
    for _ in 0..given("ROUNDS").parse().unwrap() {
        tell("ready");
        common::await_go();
        clock.advance(Duration::from_secs(60));
        drain.drain().unwrap();
        tell("made");
    }
}

#[track_caller]
fn assert_two_a_minute(path: &Path, minutes: u32) {
    let sum: String = ask(
        path,
        "SELECT (SELECT count(*) FROM birkez_occurrence WHERE jobs = 2 AND conflicts IS NULL)
             || ' ' || (SELECT count(*) FROM birkez_occurrence)
             || ' ' || (SELECT count(*) FROM birkez_job) || ' ' || (SELECT count(DISTINCT key) FROM birkez_job)",
    );
    assert_eq!(sum, format!("{minutes} {minutes} {} {}", 2 * minutes, 2 * minutes));
}

#[test]
fn processes_that_evaluate_one_due_occurrence_at_once_make_it_once() {
    let folder = TempStore::new().unwrap();
    let rounds = rounds("BIRKEZ_SCHEDULE_ROUNDS", 100);
    let given = [("FILE", folder.path().to_str().unwrap()), ("ROUNDS", &rounds.to_string())];
    let mut children: Vec<_> = (0..EVALUATORS).map(|_| Child::start("evaluate", &given)).collect();
    for _ in 0..rounds {
        children.iter_mut().for_each(|child| child.expect("ready"));
        children.iter_mut().for_each(Child::go);
        children.iter_mut().for_each(|child| child.expect("made"));
    }
    children.into_iter().for_each(|child| drop(child.finish()));
    assert_two_a_minute(folder.path(), rounds);
}

#[test]
fn stores_of_one_process_that_evaluate_at_once_make_it_once() {
    let folder = TempStore::new().unwrap();
    let (rounds, start) = (rounds("BIRKEZ_SCHEDULE_ROUNDS", 100), Barrier::new(3));
    let drains = [(); 3].map(|()| drain_of(folder.path()));
    std::thread::scope(|scope| {
        for (clock, drain) in &drains {
            let start = &start;
            // Whatever happens to one, the others must not wait for it in vain: errors are looked at after the rounds.
            let evaluate = move |_| {
                start.wait();
                clock.advance(Duration::from_secs(60));
                drain.drain()
            };
            scope.spawn(move || {
                let errors: Vec<_> = (0..rounds).map(evaluate).filter_map(Result::err).collect();
                assert!(errors.is_empty(), "{errors:?}");
            });
        }
    });
    assert_two_a_minute(folder.path(), rounds);
}

/// In a child: hangs in the mapping, which runs before anything is written.
fn map_and_hang() {
    let clock = midnight();
    let store = Store::builder(given("FILE")).clock(clock.clone()).open().unwrap();
    let map = |_: &Occurrence| -> [Post; 2] {
        tell("mapping");
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    };
    let drain = Drain::new(Runner::builder(&store).schedule(minutely(), map)).unwrap();
    clock.advance(Duration::from_secs(60));
    drain.drain().unwrap();
}

#[test]
fn a_process_killed_while_it_maps_has_made_nothing_and_the_next_makes_it() {
    let folder = TempStore::new().unwrap();
    let mut child = Child::start("map-and-hang", &[("FILE", folder.path())]);
    child.expect("mapping");
    child.kill();
    assert_two_a_minute(folder.path(), 0);
    let (clock, drain) = drain_of(folder.path());
    clock.advance(Duration::from_secs(90));
    drain.drain().unwrap();
    assert_two_a_minute(folder.path(), 1);
}

/// In a child: walks its clock over the minutes, from wherever the mark stands.
fn walk_the_minutes() {
    let (clock, drain) = drain_of(given("FILE").as_ref());
    tell("walking");
    for _ in 0..given("MINUTES").parse().unwrap() {
        clock.advance(Duration::from_secs(60));
        drain.drain().unwrap();
    }
    tell("arrived");
}

#[test]
fn kills_at_random_moments_lose_no_occurrence_and_double_none() {
    let (kills, minutes) = (rounds("BIRKEZ_SCHEDULE_KILLS", 12), 300);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut chance = fastrand::Rng::with_seed(seed);
    let folder = TempStore::new().unwrap();
    let given = [("FILE", folder.path().to_str().unwrap()), ("MINUTES", &minutes.to_string())];
    let (mut killed, mut arrived) = (0, false);
    while !arrived {
        let mut child = Child::start("walk", &given);
        child.expect("walking");
        if killed < kills {
            // Within what the whole walk takes.
            std::thread::sleep(Duration::from_micros(chance.u64(0..60_000)));
            killed += 1;
            arrived = !child.kill().is_empty();
        } else {
            child.expect("arrived");
            arrived = true;
        }
        let state: String = ask(
            folder.path(),
            "SELECT coalesce(group_concat(jobs), '') FROM birkez_occurrence
             WHERE jobs <> (SELECT count(*) FROM birkez_job WHERE key LIKE '% ' || occurrence)",
        );
        assert_eq!(state, "", "an occurrence and its jobs are one");
    }
    println!("{killed} kills on the way");
    assert!(killed >= 3, "only {killed} kills: the walk was over too soon");
    assert_two_a_minute(folder.path(), minutes);
}
