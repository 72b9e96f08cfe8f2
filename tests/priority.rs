//! What is claimed, and in which order. An urgent job could wait behind what was claimed before it, a humble one for ever, a
//! second process could find nothing left to do, and a claim could get slow behind rows that it cannot take.

mod common;

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use birkez::testing::{Drain, TempStore};
use birkez::{Context, Durability, Job, Runner, State, Store};
use chrono::{DateTime, Utc};
use common::{Child, Log, ask, given, run_sql, tell, wait_until};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Work {
    name: String,
    priority: i32,
    at: Option<DateTime<Utc>>,
}

impl Job for Work {
    const KIND: &'static str = "work";
    type Output = ();

    fn key(&self) -> String {
        self.name.clone()
    }

    fn priority(&self) -> i32 {
        self.priority
    }

    fn run_at(&self) -> Option<DateTime<Utc>> {
        self.at
    }
}

fn work(name: impl ToString, priority: i32) -> Work {
    Work { name: name.to_string(), priority, at: None }
}

fn folder() -> (TempStore, Store, Log) {
    let folder = TempStore::new().unwrap();
    let store = folder.builder().durability(Durability::Normal).open().unwrap();
    let log = Log::beside(folder.path());
    (folder, store, log)
}

/// Names of the started jobs, in order.
fn starts(log: &Log) -> Vec<String> {
    log.lines().iter().filter_map(|line| line.strip_prefix("start ")).map(str::to_owned).collect()
}

#[test]
fn jobs_start_by_priority_then_time_then_number() {
    let (_folder, store, log) = folder();
    let at = |text: &str| Some(text.parse::<DateTime<Utc>>().unwrap());
    let mut jobs = vec![
        Work { at: at("2026-01-01T00:00:00Z"), ..work("low-old", -1) },
        work("plain-1", 0),
        Work { at: at("2026-03-01T00:00:00Z"), ..work("older", 0) },
        Work { at: at("2026-02-01T00:00:00Z"), ..work("oldest", 0) },
        work("plain-2", 0),
        work("high", i32::MAX),
        Work { at: at("2999-01-01T00:00:00Z"), ..work("later", i32::MAX) },
        Work { at: at("2026-02-01T00:00:00Z"), ..work("oldest-too", 0) },
        work("lowest", i32::MIN),
    ];
    // All in one time, so that nothing but their order of enqueueing parts the plain ones.
    let expected = ["high", "oldest", "oldest-too", "older", "plain-1", "plain-2", "low-old", "lowest"];
    let _ = store.enqueue_all(&jobs).unwrap();
    let noted = log.clone();
    let handler = move |job: Work, _: &Context| {
        noted.note(format!("start {}", job.name));
        Ok(())
    };
    let drain = Drain::new(Runner::builder(&store).handle(handler)).unwrap();
    assert_eq!(drain.drain().unwrap(), expected.len());
    assert_eq!(starts(&log), expected);
    jobs.retain(|job| job.name == "later");
    assert_eq!(store.find("work", &jobs[0].name).unwrap().unwrap().state, State::Waiting);
}

#[test]
fn a_humble_job_has_its_turn_in_the_middle_of_a_stream_of_urgent_ones() {
    let (_folder, store, log) = folder();
    let stream: Vec<_> = (0..40).map(|n| work(format!("urgent-{n}"), 9)).collect();
    let _ = store.enqueue_all(&stream).unwrap();
    for (n, priority) in [1, 0, 1, -5, 0, 1, -5, 0].into_iter().enumerate() {
        let _ = store.enqueue(&work(format!("humble-{n}"), priority)).unwrap();
    }
    let noted = log.clone();
    let next = Mutex::new(40);
    let handler = move |job: Work, cx: &Context| {
        noted.note(format!("start {}", job.name));
        if job.priority == 9 {
            // The stream never ends: each urgent one brings another.
            let mut next = next.lock().unwrap();
            let _ = cx.store().enqueue(&work(format!("urgent-{next}"), 9))?;
            *next += 1;
        }
        Ok(())
    };
    let runner = Runner::builder(&store).workers(2).handle(handler).start().unwrap();
    wait_until("all humble ones have started", || log.count("start humble") == 8);
    let waiting: i64 = ask(store.path(), "SELECT count(*) FROM birkez_job WHERE priority = 9 AND state = 0");
    assert!(waiting > 0, "the stream has dried up");
    runner.stop(Duration::from_secs(5)).unwrap();
    let starts = starts(&log);
    let longest = starts.split(|name| name.starts_with("humble")).map(<[String]>::len).max().unwrap();
    println!("at most {longest} urgent ones between two humble ones");
    // 16 for each of the lower levels, and what starts in between.
    assert!(longest <= 200, "{longest}");
    // It may overtake what was claimed before it and lies in the buffer.
    let first = starts.iter().position(|name| name.starts_with("humble")).unwrap();
    assert!(first >= 8, "a humble one came after {first}");
}

#[test]
fn an_urgent_job_overtakes_quick_ones_that_were_claimed_ahead() {
    let (_folder, store, log) = folder();
    let many: Vec<_> = (0..1_500).map(|n| work(n, 0)).collect();
    let _ = store.enqueue_all(&many).unwrap();
    let noted = log.clone();
    let handler = move |job: Work, _: &Context| {
        noted.note(format!("start {}", job.name));
        std::thread::sleep(Duration::from_millis(1));
        Ok(())
    };
    let _runner = Runner::builder(&store).workers(1).handle(handler).start().unwrap();
    let mut passed = Vec::new();
    for turn in 1..=5 {
        wait_until("it is in the middle", || starts(&log).len() > turn * 150);
        let leases: i64 = ask(store.path(), "SELECT count(*) FROM birkez_lease");
        let _ = store.enqueue(&work(format!("urgent-{turn}"), 5)).unwrap();
        log.note("enqueued");
        let name = format!("start urgent-{turn}");
        wait_until("it starts", || log.lines().contains(&name));
        let lines = log.lines();
        let from = lines.iter().rposition(|line| line == "enqueued").unwrap();
        let until = lines.iter().position(|line| *line == name).unwrap();
        passed.push((leases, until.saturating_sub(from + 1)));
    }
    println!("(leases then, quick ones started before it): {passed:?}");
    assert!(starts(&log).len() < 1_500, "the queue ran dry before the last turn");
    // What the workers start within about 20 ms may be before it.
    assert!(passed.iter().all(|(_, before)| *before <= 30), "{passed:?}");
}

#[test]
fn what_was_claimed_ahead_and_is_held_up_by_a_slow_job_goes_to_another_process() {
    let (folder, store, log) = folder();
    let quick = |from: u32| (from..from + 300).map(|n| work(n, 0)).collect::<Vec<_>>();
    let _ = store.enqueue_all(&quick(0)).unwrap();
    let release = Arc::new(AtomicBool::new(false));
    let (noted, released) = (log.clone(), Arc::clone(&release));
    let handler = move |job: Work, _: &Context| {
        noted.note(format!("start {}", job.name));
        while job.name == "400" && !released.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    let _here = Runner::builder(&store).workers(1).handle(handler).start().unwrap();
    wait_until("the kind is known to be quick", || starts(&log).len() == 300);
    let _ = store.enqueue_all(&quick(300)).unwrap();
    wait_until("the only worker is held up", || starts(&log).len() == 401);
    let ahead = "SELECT count(*) FROM birkez_lease";
    wait_until("more were claimed", || ask::<i64>(folder.path(), ahead) > 1);
    let other = Store::open(folder.path()).unwrap();
    let noted = log.clone();
    let elsewhere = move |job: Work, _: &Context| {
        noted.note(format!("start {}", job.name));
        Ok(())
    };
    let _elsewhere = Runner::builder(&other).workers(1).handle(elsewhere).start().unwrap();
    wait_until("the others are done elsewhere", || starts(&log).len() == 600);
    release.store(true, Ordering::SeqCst);
    let left = "SELECT count(*) FROM birkez_job WHERE state <> 2";
    wait_until("all are done", || ask::<i64>(folder.path(), left) == 0);
    assert_eq!(ask::<i64>(folder.path(), "SELECT max(attempts) FROM birkez_job"), 1);
    assert_eq!(ask::<i64>(folder.path(), "SELECT count(*) FROM birkez_attempt"), 0, "giving back leaves no trace");
    let mut names = starts(&log);
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), 600, "one was started twice");
}

const WORKERS: usize = 4;

fn start_slow_process(path: &Path) -> Child {
    let mut child = Child::start("slow", &[("DB", path)]);
    child.expect("ready");
    child
}

/// Enqueues an urgent job at a moment when no worker is about to be free; it must be the next to start.
fn assert_urgent_is_next(store: &Store, log: &Log, name: &str) {
    let quiet = Duration::from_millis(150);
    let (mut known, mut since) = (starts(log).len(), Instant::now());
    wait_until("a moment between two waves of starts", || {
        let now = starts(log).len();
        if now != known {
            (known, since) = (now, Instant::now());
        }
        since.elapsed() > quiet
    });
    let _ = store.enqueue(&work(name, 1)).unwrap();
    let is_it = |line: &String| line.starts_with(&format!("{name} "));
    wait_until("it has started", || starts(log)[known..].iter().any(is_it));
    // Workers that come free in one moment write their lines in any order.
    let later: Vec<_> = starts(log)[known..].to_vec();
    let at = |line: &String| line.rsplit(' ').next().unwrap().parse::<i64>().unwrap();
    let urgent = at(later.iter().find(|line| is_it(line)).unwrap());
    let first = later.iter().map(at).min().unwrap();
    assert!(urgent - first < 50, "others started {} ms before it: {later:?}", urgent - first);
}

#[test]
fn with_ten_thousand_slow_jobs_waiting_an_urgent_one_is_next_and_a_second_process_gets_its_half() {
    let (folder, store, log) = folder();
    let many: Vec<_> = (0..10_000).map(|n| work(n, 0)).collect();
    let _ = store.enqueue_all(&many).unwrap();
    let first = start_slow_process(folder.path());
    wait_until("all its workers are at work", || starts(&log).len() >= WORKERS);
    assert_urgent_is_next(&store, &log, "urgent-1");
    let started = Utc::now().timestamp_millis();
    let second = start_slow_process(folder.path());
    let (from, until) = (started + 2_000, started + 6_500);
    let marker = std::cell::Cell::new(false);
    wait_until("the time in question is over", || {
        if !marker.replace(true) {
            assert_urgent_is_next(&store, &log, "urgent-2");
        }
        Utc::now().timestamp_millis() > until
    });
    let by = |process: u32| {
        let in_question = |line: &String| {
            let words: Vec<_> = line.split(' ').collect();
            let at: i64 = words[2].parse().unwrap();
            words[1].parse() == Ok(process) && (from..until).contains(&at)
        };
        starts(&log).iter().filter(|line| in_question(line)).count()
    };
    let (one, two) = (by(first.id()), by(second.id()));
    println!("later than 2 s after the second process was started, {one} jobs started in the first and {two} in it");
    assert!(one + two >= 24, "8 workers, 4.5 s, one second each");
    let share = two as f64 / (one + two) as f64;
    assert!((0.4..=0.6).contains(&share), "its share is {share}");
    // Nobody may have started one that another had.
    let mut names: Vec<_> = starts(&log).iter().map(|line| line.split(' ').next().unwrap().to_owned()).collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
}

#[test]
fn child_role() {
    let Some(role) = common::role() else { return };
    assert_eq!(role, "slow");
    let path = PathBuf::from(given("DB"));
    let (store, log) = (Store::open(&path).unwrap(), Log::beside(&path));
    let handler = move |job: Work, _: &Context| {
        log.note(format!("start {} {} {}", job.name, std::process::id(), Utc::now().timestamp_millis()));
        std::thread::sleep(Duration::from_secs(1));
        Ok(())
    };
    let _runner = Runner::builder(&store).workers(WORKERS).handle(handler).start().unwrap();
    tell("ready");
    common::await_go();
}

/// Rows that a claim cannot take, all of a higher priority than what it can.
fn obstacles() -> Vec<(&'static str, String)> {
    let rows = common::rounds("BIRKEZ_OBSTACLES", 100_000);
    let insert = |columns: &str, values: &str| {
        format!(
            "INSERT INTO birkez_job (key, payload, priority, {columns})
             WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < {rows})
             SELECT hex(randomblob(8)), '{{}}', 9, {values} FROM n;
             PRAGMA wal_checkpoint(TRUNCATE);"
        )
    };
    vec![
        ("due much later", insert("kind, run_at", "'work', 32503680000000 + i")),
        ("of a kind that nobody handles", insert("kind, gate, run_at", "'other' || i % 3, 1, i")),
        ("done and dead", insert("kind, state, gate, finished_at", "'work', 2 + i % 2, NULL, 5")),
        ("parked", insert("kind, state, gate, reason", "'work', 1, NULL, 'auth'")),
        ("of callers of once", insert("kind, gate, for_callers", "'work', 4, 1")),
    ]
}

/// How long fifty jobs take that are enqueued and run one by one; the best of three.
fn fifty(store: &Store, drain: &Drain, name: &str) -> Duration {
    let once = |turn: u32| {
        let started = Instant::now();
        for n in 0..50 {
            let _ = store.enqueue(&work(format!("{name} {turn} {n}"), 0)).unwrap();
            assert_eq!(drain.drain().unwrap(), 1);
        }
        started.elapsed()
    };
    (0..3).map(once).min().unwrap()
}

#[test]
fn a_claim_is_as_quick_behind_a_hundred_thousand_rows_that_it_cannot_take() {
    let (folder, store, _) = folder();
    let drain = Drain::new(Runner::builder(&store).handle(|_: Work, _: &Context| Ok(()))).unwrap();
    let free = fifty(&store, &drain, "free");
    println!("nothing in the way: {free:?}");
    for (what, sql) in obstacles() {
        let started = Instant::now();
        run_sql(folder.path(), &sql);
        let inserted = started.elapsed();
        let took = fifty(&store, &drain, what);
        println!("{what}: {took:?} (inserted in {inserted:?})");
        assert!(took < free * 6, "{what}: {took:?}, without {free:?}");
    }
}
