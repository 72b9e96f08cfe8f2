//! Processes that are killed while they evaluate schedules. What can go wrong: an occurrence whose mark has moved and whose
//! jobs are lost, one with a part of its jobs, one that is made again by the next process, work that is done twice.
//!
//! `BIRKEZ_KILLS` (default 30) and `BIRKEZ_STEPS` (default 40) say how often.

mod common;

use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use birkez::calendar::CatchUp;
use birkez::rusqlite::{Connection, OptionalExtension};
use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{Context, Durability, Job, Occurrence, Overlap, Runner, RunnerBuilder, Schedule, Store};
use chrono::{DateTime, TimeDelta, Timelike, Utc};
use chrono_tz::Tz;
use common::{Child, ask, given, rounds, rows, run_sql, tell};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Tick {
    schedule: String,
    slot: String,
    part: char,
}

impl Job for Tick {
    const KIND: &'static str = "tick";
    type Output = ();
    fn key(&self) -> String {
        format!("{}/{}/{}", self.schedule, self.slot, self.part)
    }
}

fn two_ticks(at: &Occurrence) -> [Tick; 2] {
    ['a', 'b'].map(|part| Tick { schedule: at.schedule().to_owned(), slot: at.id().to_owned(), part })
}

fn utc(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn schedule(name: &str, text: &str) -> Schedule {
    Schedule::cron(name, text).unwrap().zone("Europe/Berlin").unwrap()
}

/// Its work is a row in a table of the app, stored with the job's completion.
fn with_handler(store: &Store) -> RunnerBuilder {
    Runner::builder(store).handle(|tick: Tick, cx: &Context| {
        cx.commit(|tx| {
            tx.execute("INSERT INTO effect (tick) VALUES (?1)", [tick.key()])?;
            Ok(())
        })
    })
}

const EFFECTS: &str = "CREATE TABLE effect (tick TEXT NOT NULL)";

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("walk") => walk(),
        Some("evaluate") => evaluate_until_the_kill(),
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

// ---- killed at random moments of five weeks

const BEGIN: &str = "2026-10-10T09:17:31Z";
const END: &str = "2026-11-14T09:17:31Z";

/// In a child: walks its clock from where the mark stands, hour by hour with a sleep now and then.
fn walk() {
    let path = given("FILE");
    let reached: Option<String> = Connection::open(&path)
        .unwrap()
        .query_row("SELECT mark FROM birkez_schedule WHERE name = 'two-hourly'", [], |row| row.get(0))
        .optional()
        .unwrap();
    let clock = ManualClock::at(utc(reached.as_deref().unwrap_or(BEGIN)));
    let store = Store::builder(&path).durability(Durability::Normal).clock(clock.clone()).open().unwrap();
    // A kill leaves the last run unfinished; by default one that is on time then would be skipped, rightly.
    let each = |schedule: Schedule| schedule.catch_up(CatchUp::each()).overlap(Overlap::Allow);
    let builder = with_handler(&store)
        .schedule(each(schedule("two-hourly", "0 */2 * * *")), two_ticks)
        .schedule(each(schedule("nightly", "30 2 * * *")), two_ticks);
    let drain = Drain::new(builder).unwrap();
    tell("walking");
    while clock.now() < utc(END) {
        let hours = if fastrand::u8(..40) == 0 { fastrand::u64(2..40) } else { 1 };
        clock.set((clock.now() + Duration::from_secs(hours * 3_600)).min(utc(END)));
        drain.drain().unwrap();
    }
    tell("arrived");
}

/// All there is to be done in the five weeks, minute by minute.
fn expected() -> BTreeSet<String> {
    let mut ticks = BTreeSet::new();
    let mut add =
        |schedule: &str, slot: String| ticks.extend(['a', 'b'].map(|part| format!("{schedule}/{slot}/{part}")));
    let mut at = utc(BEGIN) + TimeDelta::seconds(29);
    while at <= utc(END) {
        let local = at.with_timezone(&Tz::Europe__Berlin);
        if local.minute() == 0 && local.hour().is_multiple_of(2) {
            add("two-hourly", at.format("%Y-%m-%dT%H:%M:%SZ").to_string());
        }
        // Twice on the day of the repeated hour, under one name.
        if (local.hour(), local.minute()) == (2, 30) {
            add("nightly", local.format("%Y-%m-%dT%H:%M:%S").to_string());
        }
        at += TimeDelta::minutes(1);
    }
    ticks
}

/// Whatever a kill has left, an occurrence has all of its jobs or does not exist.
fn assert_whole(path: &Path) {
    let parts = "SELECT occurrence, jobs FROM birkez_occurrence AS made
                 WHERE 2 <> (SELECT count(*) FROM birkez_occurrence_job AS link JOIN birkez_job ON birkez_job.id = job_id
                             WHERE link.schedule = made.schedule AND link.occurrence = made.occurrence)";
    assert_eq!(rows(path, parts), [""; 0], "an occurrence and its jobs are one");
    let strays = "SELECT key FROM birkez_job WHERE id NOT IN (SELECT job_id FROM birkez_occurrence_job)";
    assert_eq!(rows(path, strays), [""; 0]);
    let ahead =
        "SELECT name, mark, (SELECT max(occurrence) FROM birkez_occurrence WHERE schedule = id) FROM birkez_schedule
                 WHERE mark <> born AND mark <> (SELECT max(occurrence) FROM birkez_occurrence WHERE schedule = id)";
    assert_eq!(rows(path, ahead), [""; 0], "the mark is the last occurrence that was made");
}

#[test]
fn thirty_kills_at_random_moments_lose_no_occurrence_and_double_no_work() {
    let kills = rounds("BIRKEZ_KILLS", 30);
    let seed = fastrand::u64(..);
    println!("seed {seed}");
    let mut chance = fastrand::Rng::with_seed(seed);
    let folder = TempStore::new().unwrap();
    let clock = ManualClock::at(utc(BEGIN));
    drop(folder.builder().clock(clock).open().unwrap());
    run_sql(folder.path(), EFFECTS);
    let (mut killed, mut caught_at_work) = (0, 0);
    loop {
        let mut child = Child::start("walk", &[("FILE", folder.path())]);
        child.expect("walking");
        if killed == kills {
            child.expect("arrived");
            drop(child.finish());
            break;
        }
        std::thread::sleep(Duration::from_micros(chance.u64(0..60_000)));
        let arrived = !child.kill().is_empty();
        killed += 1;
        caught_at_work += ask::<u32>(folder.path(), "SELECT count(*) > 0 FROM birkez_job WHERE state <> 2");
        assert_whole(folder.path());
        if arrived {
            break;
        }
    }
    println!("{killed} kills on the way, {caught_at_work} with jobs that were made and not done");
    assert!(killed >= kills.min(20), "only {killed} kills: the walk was over too soon");
    assert_whole(folder.path());
    let wanted: BTreeSet<_> = expected().iter().map(|tick| format!("[Text({tick:?}), Integer(1)]")).collect();
    assert!(wanted.len() > 900, "{}", wanted.len());
    let done: BTreeSet<_> =
        rows(folder.path(), "SELECT tick, count(*) FROM effect GROUP BY tick").into_iter().collect();
    let wrong: Vec<_> = done.symmetric_difference(&wanted).collect();
    assert!(wrong.is_empty(), "{} lost, doubled or not asked for: {:?}", wrong.len(), &wrong[..wrong.len().min(8)]);
    let sum =
        "SELECT (SELECT count(*) FROM birkez_occurrence) || ' ' || (SELECT count(*) FROM birkez_job WHERE state = 2)
                   || ' ' || (SELECT count(*) FROM birkez_job)";
    let jobs = wanted.len();
    assert_eq!(ask::<String>(folder.path(), sum), format!("{} {jobs} {jobs}", jobs / 2));
}

// ---- killed at each step of one evaluation

/// In a child: evaluates what has come due and is killed at a step of SQLite's that the parent has chosen.
fn evaluate_until_the_kill() {
    static STEPS: AtomicU64 = AtomicU64::new(0);
    static LAST: AtomicU64 = AtomicU64::new(0);
    let clock = ManualClock::at(utc(MORNING));
    let count = || {
        let last = LAST.load(Ordering::Acquire);
        if last > 0 && STEPS.fetch_add(1, Ordering::AcqRel) + 1 == last {
            common::signal(std::process::id(), "KILL");
            loop {
                std::thread::park();
            }
        }
        false
    };
    let hook = move |connection: &Connection| connection.progress_handler(1, Some(count));
    let store = Store::builder(given("FILE")).on_connect(hook).clock(clock.clone()).open().unwrap();
    let drain = Drain::new(three_kinds(Runner::builder(&store))).unwrap();
    clock.set(utc(NOON));
    LAST.store(given("LAST").parse().unwrap(), Ordering::Release);
    drain.drain().unwrap();
    tell(STEPS.load(Ordering::Acquire));
}

const MORNING: &str = "2026-05-04T05:00:30Z";
const NOON: &str = "2026-05-04T10:00:30Z";

/// One that makes five occurrences, one that makes the newest and records four, one that only records.
fn three_kinds(builder: RunnerBuilder) -> RunnerBuilder {
    let on_time = |schedule: Schedule| {
        schedule.catch_up(CatchUp::each()).grace(Duration::from_secs(86_400)).overlap(Overlap::Allow)
    };
    builder
        .schedule(on_time(schedule("five", "0 * * * *")), two_ticks)
        .schedule(schedule("newest", "0 * * * *"), two_ticks)
        .schedule(schedule("none", "1 * * * *").catch_up(CatchUp::Skip), two_ticks)
}

fn before_the_evaluation() -> TempStore {
    let folder = TempStore::new().unwrap();
    let store = folder.builder().clock(ManualClock::at(utc(MORNING))).open().unwrap();
    drop(Drain::new(three_kinds(Runner::builder(&store))).unwrap());
    run_sql(folder.path(), EFFECTS);
    folder
}

/// What the file tells in the end, whoever has written which part of it.
fn told(path: &Path) -> Vec<String> {
    [
        "SELECT name, mark, high, last_run, error FROM birkez_schedule ORDER BY name",
        "SELECT schedule, occurrence, jobs, conflicts, cause FROM birkez_occurrence ORDER BY schedule, occurrence",
        "SELECT schedule, first, last, count, reason FROM birkez_missed ORDER BY schedule, first",
        "SELECT key, state FROM birkez_job ORDER BY key",
        "SELECT tick FROM effect ORDER BY tick",
    ]
    .iter()
    .flat_map(|sql| rows(path, sql))
    .collect()
}

/// The next process evaluates, and does the work.
fn go_on(folder: &TempStore) {
    let clock: Arc<ManualClock> = ManualClock::at(utc(NOON));
    let store = folder.builder().clock(clock).open().unwrap();
    Drain::new(three_kinds(with_handler(&store))).unwrap().drain().unwrap();
}

#[test]
fn a_kill_at_any_step_of_an_evaluation_changes_nothing_of_what_comes_out() {
    let evaluate = |folder: &TempStore, last: u64| {
        let last = last.to_string();
        Child::start("evaluate", &[("FILE", folder.path().to_str().unwrap()), ("LAST", &last)])
    };
    let undisturbed = before_the_evaluation();
    let mut child = evaluate(&undisturbed, u64::MAX);
    let steps: u64 = child.hear().unwrap().parse().unwrap();
    drop(child.finish());
    go_on(&undisturbed);
    let wanted = told(undisturbed.path());
    let count = |table: &str| ask::<i64>(undisturbed.path(), &format!("SELECT count(*) FROM {table}"));
    assert_eq!(["birkez_occurrence", "birkez_missed", "effect"].map(count), [6, 2, 12]);

    let seed = fastrand::u64(..);
    println!("seed {seed}, {steps} steps");
    let (mut chance, mut half_done) = (fastrand::Rng::with_seed(seed), 0);
    for _ in 0..rounds("BIRKEZ_STEPS", 40) {
        let (folder, last) = (before_the_evaluation(), chance.u64(1..=steps));
        let mut child = evaluate(&folder, last);
        assert_eq!(child.hear(), None, "killed at step {last}");
        drop(child);
        assert_whole(folder.path());
        let made: i64 = ask(folder.path(), "SELECT count(*) FROM birkez_occurrence");
        half_done += u32::from(made > 0 && made < 6);
        go_on(&folder);
        assert_eq!(told(folder.path()), wanted, "killed at step {last} of {steps}");
    }
    assert!(half_done > 5, "only {half_done} kills have met an evaluation that had made something");
}
