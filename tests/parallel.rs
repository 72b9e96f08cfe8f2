//! One job called from several sides in the same moment could be stored twice, run twice, or run once with two answers.
//!
//! The handlers insert blindly into a table without constraints, so that nothing but birkez keeps an effect from being
//! doubled, and the file is asked with plain SQL.

mod common;

use std::collections::HashMap;
use std::fmt::Debug;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use birkez::testing::TempStore;
use birkez::{Context, Durability, Error, Job, Runner, Store};
use common::{Child, Log, ask, given, rounds, run_sql, tell, wait_until, wait_within};
use serde::{Deserialize, Serialize};

const CALLERS: usize = 3;

#[derive(Serialize, Deserialize)]
struct Post {
    round: u32,
}

impl Job for Post {
    const KIND: &'static str = "post";
    type Output = u64;

    fn key(&self) -> String {
        format!("round-{}", self.round)
    }
}

/// Its output is another one at each run: callers that got the same were answered from one run.
fn post(log: &Log, cx: &Context) -> anyhow::Result<u64> {
    log.note(format!("start {}", cx.key()));
    cx.commit(|tx| {
        tx.execute("INSERT INTO effect (key) VALUES (?1)", [cx.key()])?;
        Ok(fastrand::u64(..))
    })
}

fn open(path: &Path) -> Store {
    // What is at stake here is who comes first, not the loss of power.
    Store::builder(path).durability(Durability::Normal).open().unwrap()
}

fn folder() -> (TempStore, Log, u32) {
    let folder = TempStore::new().unwrap();
    drop(open(folder.path()));
    run_sql(folder.path(), "CREATE TABLE effect (key TEXT)");
    let log = Log::beside(folder.path());
    (folder, log, rounds("BIRKEZ_PARALLEL_ROUNDS", 200))
}

fn start_runner(store: &Store, log: &Log) -> Runner {
    let log = log.clone();
    Runner::builder(store).workers(2).handle(move |_: Post, cx: &Context| post(&log, cx)).start().unwrap()
}

/// The file and the log agree: every round's job was run once, with one effect.
#[track_caller]
fn assert_one_effect_each(path: &Path, log: &Log, rounds: u32) {
    let count = |sql: &str| ask::<u32>(path, sql);
    assert_eq!(count("SELECT count(*) FROM birkez_job"), rounds);
    assert_eq!(count("SELECT count(*) FROM birkez_job WHERE state = 2"), rounds);
    assert_eq!(count("SELECT count(DISTINCT key) FROM effect"), rounds);
    assert_eq!(count("SELECT count(*) FROM effect"), rounds, "an effect was doubled");
    assert_eq!(count("SELECT sum(n) FROM birkez_count WHERE state = 2"), rounds, "a job was completed twice");
    assert_eq!(count("SELECT count(*) FROM birkez_lease"), 0);
    assert_eq!(log.count("start "), rounds as usize, "a job was started twice");
}

/// In each round all callers were answered about one and the same job, and one of them made it.
#[track_caller]
fn assert_one_was_fresh(answers: impl IntoIterator<Item = (u32, i64, bool)>, rounds: u32) {
    let mut by_round: HashMap<u32, Vec<(i64, bool)>> = HashMap::new();
    for (round, id, fresh) in answers {
        by_round.entry(round).or_default().push((id, fresh));
    }
    assert_eq!(by_round.len(), rounds as usize);
    for (round, answers) in by_round {
        assert_eq!(answers.len(), CALLERS, "round {round}");
        assert!(answers.iter().all(|(id, _)| *id == answers[0].0), "round {round}: {answers:?}");
        assert_eq!(answers.iter().filter(|(_, fresh)| *fresh).count(), 1, "round {round}: {answers:?}");
    }
}

/// Runs `call` with each round's number in `CALLERS` threads, which all start a round in the same moment.
fn in_threads<T: Send>(rounds: u32, call: impl Fn(usize, u32) -> T + Sync) -> Vec<T> {
    let barrier = Barrier::new(CALLERS);
    std::thread::scope(|scope| {
        let callers = [0, 1, 2].map(|caller| {
            let (barrier, call) = (&barrier, &call);
            scope.spawn(move || {
                let mut answers = Vec::new();
                for round in 0..rounds {
                    barrier.wait();
                    answers.push(call(caller, round));
                }
                answers
            })
        });
        callers.into_iter().flat_map(|caller| caller.join().unwrap()).collect()
    })
}

/// Threads share a store in one round and have a store of their own each in the next.
fn store_for(stores: &[Store], caller: usize, round: u32) -> &Store {
    if round.is_multiple_of(2) { &stores[0] } else { &stores[caller] }
}

#[test]
fn a_job_enqueued_by_three_threads_at_once_is_one_job_with_one_effect() {
    let (folder, log, rounds) = folder();
    let stores = [0, 1, 2].map(|_| open(folder.path()));
    let runners = [0, 1, 2].map(|at| start_runner(&stores[at], &log));
    let answers = in_threads(rounds, |caller, round| {
        let enqueued = store_for(&stores, caller, round).enqueue(&Post { round }).unwrap();
        (round, enqueued.id, enqueued.fresh)
    });
    assert_one_was_fresh(answers, rounds);
    wait_until("every job is done", || all_done(&stores[0], rounds));
    drop(runners);
    assert_one_effect_each(folder.path(), &log, rounds);
}

#[test]
fn a_job_called_with_once_by_three_threads_at_once_runs_once_and_all_get_its_output() {
    let (folder, log, rounds) = folder();
    let stores = [0, 1, 2].map(|_| open(folder.path()));
    let answers = in_threads(rounds, |caller, round| {
        let (output, met) = insist(store_for(&stores, caller, round), &log, round);
        (round, output, met)
    });
    assert_one_output(answers, rounds);
    assert_one_effect_each(folder.path(), &log, rounds);
}

#[test]
fn a_job_enqueued_by_three_processes_at_once_is_one_job_with_one_effect() {
    let (folder, log, rounds) = folder();
    let answers = in_processes("enqueue", folder.path(), rounds);
    assert_one_was_fresh(answers, rounds);
    assert_one_effect_each(folder.path(), &log, rounds);
}

#[test]
fn a_job_called_with_once_by_three_processes_at_once_runs_once_and_all_get_its_output() {
    let (folder, log, rounds) = folder();
    let answers = in_processes("once", folder.path(), rounds);
    assert_one_output(answers, rounds);
    assert_one_effect_each(folder.path(), &log, rounds);
}

/// Calls `once` until it is answered; also how often the job was met running elsewhere.
fn insist(store: &Store, log: &Log, round: u32) -> (u64, u32) {
    let refusal = format!("refused {round}");
    let run = |cx: &Context| {
        // Stays for another caller to come, so that calls do meet; that one may be late.
        wait_within(Duration::from_millis(20), || log.lines().contains(&refusal));
        post(log, cx)
    };
    let mut met = 0;
    loop {
        match store.once(&Post { round }, run) {
            Ok(output) => return (output, met),
            Err(Error::InProgress { .. }) => met += 1,
            Err(error) => panic!("round {round}: {error}"),
        }
        log.note(&refusal);
        std::thread::sleep(Duration::from_micros(200));
    }
}

#[track_caller]
fn assert_one_output(answers: Vec<(u32, u64, u32)>, rounds: u32) {
    let met: u32 = answers.iter().map(|(_, _, met)| met).sum();
    println!("{met} calls met the job running elsewhere in {rounds} rounds");
    assert!(met >= rounds / 2, "calls hardly ever met: this showed nothing");
    let mut outputs: HashMap<u32, Vec<u64>> = HashMap::new();
    for (round, output, _) in answers {
        outputs.entry(round).or_default().push(output);
    }
    assert_eq!(outputs.len(), rounds as usize);
    for (round, outputs) in outputs {
        assert!(outputs.len() == CALLERS && outputs.iter().all(|output| *output == outputs[0]), "{round}: {outputs:?}");
    }
}

fn all_done(store: &Store, rounds: u32) -> bool {
    store.finished().unwrap().iter().map(|(_, _, n)| n).sum::<i64>() == i64::from(rounds)
}

/// Runs `CALLERS` children in a role through all rounds; each says three words a round.
fn in_processes<A, B, C>(role: &str, path: &Path, rounds: u32) -> Vec<(A, B, C)>
where
    A: FromStr<Err: Debug>,
    B: FromStr<Err: Debug>,
    C: FromStr<Err: Debug>,
{
    let rounds = rounds.to_string();
    let variables = [("DB", path.to_str().unwrap()), ("ROUNDS", &rounds)];
    let children: Vec<_> = (0..CALLERS).map(|_| Child::start(role, &variables)).collect();
    let read = |line: String| {
        let words: Vec<_> = line.split(' ').collect();
        (words[0].parse().unwrap(), words[1].parse().unwrap(), words[2].parse().unwrap())
    };
    children.into_iter().flat_map(Child::finish).map(read).collect()
}

/// Waits until all processes have come to this round: each adds a line, and all go on in the moment the last has.
fn await_round(barrier: &Log, round: u32) {
    barrier.note("here");
    let started = Instant::now();
    while barrier.count("here") < CALLERS * (round as usize + 1) {
        assert!(started.elapsed() < common::PATIENCE, "a process is missing in round {round}");
        std::thread::yield_now();
    }
}

#[test]
fn child_role() {
    let Some(role) = common::role() else { return };
    let path = PathBuf::from(given("DB"));
    let rounds: u32 = given("ROUNDS").parse().unwrap();
    let (log, barrier) = (Log::beside(&path), Log::beside(&path.with_file_name("barrier")));
    let store = open(&path);
    match role.as_str() {
        "enqueue" => {
            let _runner = start_runner(&store, &log);
            for round in 0..rounds {
                await_round(&barrier, round);
                let enqueued = store.enqueue(&Post { round }).unwrap();
                tell(format!("{round} {} {}", enqueued.id, enqueued.fresh));
            }
            wait_until("every job is done", || all_done(&store, rounds));
        }
        "once" => {
            for round in 0..rounds {
                await_round(&barrier, round);
                let (output, met) = insist(&store, &log, round);
                tell(format!("{round} {output} {met}"));
            }
        }
        other => panic!("no role {other}"),
    }
}
