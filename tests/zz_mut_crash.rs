//! A process can die at any moment: between claiming a job and finishing it, between the handler's last line and the
//! commit, in the middle of an enqueue. Jobs could get lost, stay "running" for ever, be done twice, or kill the next
//! process too.
//!
//! Children are killed with SIGKILL. What they did is read from a log outside the database and from the file with plain
//! SQL; a trigger of the app's counts completions.

mod common;

use std::collections::HashSet;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use birkez::rusqlite::Connection;
use birkez::testing::TempStore;
use birkez::{Class, Context, Durability, Error, Job, RetryPolicy, Runner, State, Store};
use common::{Child, Log, ask, given, rounds, run_sql, tell, wait_until, wait_within};
use serde::{Deserialize, Serialize};

/// "Within about two seconds", on a busy machine.
const SOON: Duration = Duration::from_millis(2_500);

/// Its handler writes its effect and its completion in one transaction.
#[derive(Serialize, Deserialize)]
struct Pay {
    key: String,
}

impl Job for Pay {
    const KIND: &'static str = "pay";
    type Output = ();

    fn key(&self) -> String {
        self.key.clone()
    }

    fn retry() -> RetryPolicy {
        // However often a round's kill meets the same job, it must not die of it.
        RetryPolicy::default().unlimited_attempts()
    }
}

/// Its handler's end and its completion are two moments.
#[derive(Serialize, Deserialize)]
struct Tell {
    key: String,
}

impl Job for Tell {
    const KIND: &'static str = "tell";
    type Output = ();

    fn key(&self) -> String {
        self.key.clone()
    }

    fn retry() -> RetryPolicy {
        RetryPolicy::default().unlimited_attempts()
    }
}

/// One that is in the hands of a process for as long as that lives.
#[derive(Serialize, Deserialize)]
struct Hold {
    n: u32,
}

impl Job for Hold {
    const KIND: &'static str = "hold";
    type Output = u32;

    fn key(&self) -> String {
        format!("hold-{}", self.n)
    }
}

/// Kills its process at its start.
#[derive(Serialize, Deserialize)]
struct Poison;

impl Job for Poison {
    const KIND: &'static str = "poison";
    type Output = ();

    fn key(&self) -> String {
        "poison".to_owned()
    }

    fn retry() -> RetryPolicy {
        RetryPolicy::default().max_attempts(3)
    }
}

fn open(path: &Path) -> Store {
    // SIGKILL takes nothing that was handed to the system; without syncs more happens between two kills.
    Store::builder(path).durability(Durability::Normal).open().unwrap()
}

fn start(role: &str, path: &Path, more: &[(&str, &str)]) -> Child {
    let mut variables = vec![("DB", path.to_str().unwrap())];
    variables.extend_from_slice(more);
    Child::start(role, &variables)
}

fn keys(path: &Path, sql: &str) -> HashSet<String> {
    let connection = Connection::open(path).unwrap();
    let mut statement = connection.prepare(sql).unwrap();
    statement.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap()
}

/// What the kills of all rounds have met.
#[derive(Debug, Default)]
struct Met {
    during_enqueue: u32,
    between_claim_and_finish: u32,
    between_handler_and_finish: u32,
    acknowledged: HashSet<String>,
    /// Jobs that were done at a kill, with the log's length then.
    done: Vec<(usize, HashSet<String>)>,
}

impl Met {
    /// Looks at what a process that was killed just now has left behind.
    fn look(&mut self, path: &Path, log: &Log, said: &[String]) {
        let lines = log.lines();
        let before = self.done.last().map_or(0, |(lines, _)| *lines);
        let noted = |word| after(&lines[before..], word);
        let acknowledged = after(said, "ACK ");
        let done = keys(path, "SELECT key FROM birkez_job WHERE state = 2");
        let is_left = |word, of: &HashSet<String>| u32::from(!noted(word).is_subset(of));
        self.during_enqueue += is_left("enqueue ", &acknowledged);
        self.between_claim_and_finish += is_left("start ", &done);
        self.between_handler_and_finish += is_left("end ", &done);
        self.acknowledged.extend(acknowledged);
        self.done.push((lines.len(), done));
    }

    fn report(&self, rounds: u32) {
        println!(
            "{rounds} kills: {} during an enqueue, {} between claim and finish, {} between handler and finish; {} jobs",
            self.during_enqueue,
            self.between_claim_and_finish,
            self.between_handler_and_finish,
            self.acknowledged.len()
        );
        for met in [self.during_enqueue, self.between_claim_and_finish, self.between_handler_and_finish] {
            assert!(met >= rounds / 16, "hardly a kill has met that moment: this showed nothing");
        }
    }
}

/// What follows `word` in the lines that begin with it.
fn after(lines: &[String], word: &str) -> HashSet<String> {
    lines.iter().filter_map(|line| line.strip_prefix(word)).map(str::to_owned).collect()
}

#[test]
fn a_process_killed_at_any_moment_loses_no_acknowledged_job_and_doubles_no_effect() {
    let seed =
        std::env::var("BIRKEZ_SEED").ok().and_then(|seed| seed.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("seed {seed} (BIRKEZ_SEED)");
    let mut chance = fastrand::Rng::with_seed(seed);
    let rounds = rounds("BIRKEZ_CRASH_ROUNDS", 50);
    let folder = TempStore::new().unwrap();
    let path = folder.path();
    drop(open(path));
    run_sql(
        path,
        "CREATE TABLE effect (key TEXT);
         CREATE TABLE completion (key TEXT);
         CREATE TRIGGER completed AFTER UPDATE OF state ON birkez_job WHEN new.state = 2
         BEGIN INSERT INTO completion VALUES (new.key); END;",
    );
    let log = Log::beside(path);
    let mut met = Met::default();
    for round in 0..rounds {
        let mut child = start("work", path, &[("ROUND", &round.to_string())]);
        child.expect("ready");
        std::thread::sleep(Duration::from_micros(chance.u64(..60_000)));
        met.look(path, &log, &child.kill());
    }
    met.report(rounds);
    let mut last = start("work", path, &[("ROUND", "last")]);
    last.expect("ready");
    wait_until("the last process has done all", || {
        ask::<u32>(path, "SELECT count(*) FROM birkez_job WHERE key LIKE 'last/%'") == WORK
            && ask::<u32>(path, "SELECT count(*) FROM birkez_job WHERE state <> 2") == 0
    });
    met.look(path, &log, &last.kill());
    assert_kept_and_single(path, &log, &met);
}

#[track_caller]
fn assert_kept_and_single(path: &Path, log: &Log, met: &Met) {
    let jobs = keys(path, "SELECT key FROM birkez_job WHERE state = 2");
    let lost: Vec<_> = met.acknowledged.difference(&jobs).collect();
    assert!(lost.is_empty(), "acknowledged and lost: {lost:?}");
    let count = |sql: &str| ask::<u32>(path, sql);
    let total = u32::try_from(jobs.len()).unwrap();
    assert_eq!(count("SELECT count(DISTINCT key) FROM completion"), total);
    assert_eq!(count("SELECT count(*) FROM completion"), total, "a job was completed twice");
    assert_eq!(count("SELECT sum(n) FROM birkez_count"), total);
    let paid = count("SELECT count(*) FROM birkez_job WHERE kind = 'pay'");
    assert_eq!(count("SELECT count(DISTINCT key) FROM effect"), paid);
    assert_eq!(count("SELECT count(*) FROM effect"), paid, "an effect was doubled");
    assert_eq!(count("SELECT count(*) FROM birkez_lease"), 0);
    assert_eq!(ask::<String>(path, "PRAGMA integrity_check"), "ok");
    let torn =
        "SELECT count(*) FROM (SELECT 1 FROM birkez_job WHERE kind = 'tell' GROUP BY substr(key, 1, instr(key, '+'))
                HAVING key LIKE '%+%' AND count(*) <> 5)";
    assert_eq!(count(torn), 0, "a part of an enqueue_all was stored");
    let lines = log.lines();
    for (at, done) in &met.done {
        let again: Vec<_> = after(&lines[*at..], "start ").intersection(done).cloned().collect();
        assert!(again.is_empty(), "started again after they were done: {again:?}");
    }
}

/// How many jobs one `work` process enqueues in all.
const WORK: u32 = 400;

/// Enqueues and runs jobs at once, and says what it was told.
fn work(path: &Path, log: &Log) {
    let store = open(path);
    let (paying, telling) = (log.clone(), log.clone());
    let _runner = Runner::builder(&store)
        .workers(3)
        .handle(move |_: Pay, cx: &Context| {
            paying.note(format!("start {}", cx.key()));
            cx.commit(|tx| {
                tx.execute("INSERT INTO effect VALUES (?1)", [cx.key()])?;
                paying.note(format!("end {}", cx.key()));
                std::thread::sleep(Duration::from_millis(1));
                Ok(())
            })
        })
        .handle(move |_: Tell, cx: &Context| {
            telling.note(format!("start {}", cx.key()));
            std::thread::sleep(Duration::from_millis(1));
            telling.note(format!("end {}", cx.key()));
            Ok(())
        })
        .start()
        .unwrap();
    tell("ready");
    let round = given("ROUND");
    for n in 0..200 {
        let keys: Vec<_> = match n % 4 {
            3 => (0..5).map(|part| format!("{round}/{n}+{part}")).collect(),
            _ => vec![format!("{round}/{n}")],
        };
        keys.iter().for_each(|key| log.note(format!("enqueue {key}")));
        match keys.as_slice() {
            [key] if n % 4 == 0 => drop(store.enqueue(&Tell { key: key.clone() }).unwrap()),
            [key] => drop(store.enqueue(&Pay { key: key.clone() }).unwrap()),
            keys => {
                let jobs: Vec<_> = keys.iter().map(|key| Tell { key: key.clone() }).collect();
                assert_eq!(store.enqueue_all(&jobs).unwrap().len(), 5);
            }
        }
        keys.iter().for_each(|key| tell(format!("ACK {key}")));
    }
    common::await_go();
}

/// Takes `jobs` and keeps them for as long as this process lives.
fn hold(path: &Path, log: &Log) {
    let store = open(path);
    let log = log.clone();
    let pace = std::env::var("BLIND").is_err().then_some(Duration::from_millis(25));
    let _runner = Runner::builder(&store)
        .workers(3)
        .look_every(pace)
        .handle(move |_: Hold, cx: &Context| {
            log.note(format!("held {} {}", cx.key(), std::process::id()));
            loop {
                std::thread::park();
            }
        })
        .start()
        .unwrap();
    tell("ready");
    common::await_go();
}

/// A runner whose handlers note that they ran and return.
fn start_taker(store: &Store, log: &Log) -> Runner {
    let log = log.clone();
    let handler = move |job: Hold, cx: &Context| {
        log.note(format!("took {}", cx.key()));
        Ok(job.n)
    };
    Runner::builder(store).workers(3).handle(handler).start().unwrap()
}

/// A process that holds three jobs.
fn start_holder(store: &Store, log: &Log, first: u32) -> Child {
    let mut holder = start("hold", store.path(), &[]);
    holder.expect("ready");
    let before = log.count("held ");
    for n in first..first + 3 {
        assert!(store.enqueue(&Hold { n }).unwrap().fresh);
    }
    wait_until("the process has started all three", || log.count("held ") == before + 3);
    holder
}

#[test]
fn the_jobs_of_a_killed_process_run_again_in_another_within_about_two_seconds() {
    let folder = TempStore::new().unwrap();
    let (store, log) = (open(folder.path()), Log::beside(folder.path()));
    // The jobs lie in the other process before this one works on the file.
    let mut holders: Vec<_> = (0..3).map(|round| start_holder(&store, &log, round * 3)).collect();
    let _runner = start_taker(&store, &log);
    for round in 1..=3 {
        let alive = wait_within(Duration::from_millis(fastrand::u64(..1_000)), || log.count("took ") > (round - 1) * 3);
        assert!(alive.is_none(), "a living process's jobs were taken");
        holders.remove(0).kill();
        let took = wait_within(common::PATIENCE, || log.count("took ") == round * 3).expect("they run again");
        println!("taken over in {took:?}");
        assert!(took < SOON, "{took:?}");
    }
    for n in 0..9 {
        wait_until("it is done", || store.find("hold", &format!("hold-{n}")).unwrap().unwrap().state == State::Done);
    }
}

#[test]
fn a_lease_whose_runner_row_was_deleted_by_hand_is_taken_over() {
    let folder = TempStore::new().unwrap();
    let (store, log) = (open(folder.path()), Log::beside(folder.path()));
    // Once before anybody looks, once under the eyes of a runner that has seen the row.
    for first in [0, 3] {
        let holder = start_holder(&store, &log, first);
        let early = (first > 0).then(|| start_taker(&store, &log));
        if early.is_some() {
            std::thread::sleep(Duration::from_millis(100));
        }
        holder.kill();
        let row = "DELETE FROM birkez_runner WHERE id IN (SELECT runner FROM birkez_lease)";
        run_sql(folder.path(), row);
        let started = Instant::now();
        let _runner = early.unwrap_or_else(|| start_taker(&store, &log));
        let jobs = first as usize + 3;
        wait_until("they run again", || log.count("took ") == jobs);
        assert!(started.elapsed() < SOON, "{:?}", started.elapsed());
    }
}

#[test]
fn a_second_start_of_the_same_program_takes_over_what_the_first_left() {
    let folder = TempStore::new().unwrap();
    let (store, log) = (open(folder.path()), Log::beside(folder.path()));
    start_holder(&store, &log, 0).kill();
    for start in 1..=2 {
        // Blind, it has nothing but its own clock to tell it that the next suspect may start.
        let mut again = crate::start("hold", folder.path(), &[("BLIND", "yes")]);
        again.expect("ready");
        let took = wait_within(common::PATIENCE, || log.count("held ") == 3 * (start + 1)).expect("it has them all");
        println!("all three in {took:?}");
        assert!(took < SOON, "long ones start within a second of each other: {took:?}");
        again.kill();
    }
    let _runner = start_taker(&store, &log);
    wait_until("the last start has done them", || log.count("took ") == 3);
    for n in 0..3 {
        let key = format!("hold-{n}");
        wait_until("it is done", || store.find("hold", &key).unwrap().unwrap().state == State::Done);
        let id = store.find("hold", &key).unwrap().unwrap().id;
        let crashes: Vec<_> = store.attempts(id).unwrap().into_iter().map(|a| (a.failure.class, a.charged)).collect();
        // The first death blames nobody; each later one met a suspect, which was charged in its claim.
        assert_eq!(crashes, [(Class::Crashed, true), (Class::Crashed, true)], "{key}");
    }
}

#[test]
fn once_takes_over_from_a_process_that_died_in_its_closure() {
    let folder = TempStore::new().unwrap();
    let store = open(folder.path());
    for n in 0..2 {
        let mut other = start("once", folder.path(), &[("N", &n.to_string())]);
        other.expect("inside");
        let met = store.once(&Hold { n }, |_| Ok(0)).unwrap_err();
        assert!(matches!(met, Error::InProgress { .. }), "{met}");
        other.kill();
        if n == 1 {
            run_sql(folder.path(), "DELETE FROM birkez_runner WHERE id IN (SELECT runner FROM birkez_lease)");
        }
        assert_eq!(store.once(&Hold { n }, |_| Ok(7)).unwrap(), 7, "a caller need not wait for a runner to look");
        assert_eq!(store.once(&Hold { n }, |_| Ok(8)).unwrap(), 7);
    }
}

#[test]
fn a_job_that_kills_its_process_dies_and_its_neighbours_are_not_blamed() {
    let folder = TempStore::new().unwrap();
    let path = folder.path();
    let (store, log) = (open(path), Log::beside(path));
    let quick = |from: u32| (from..from + 100).map(|n| Pay { key: format!("quick-{n}") }).collect::<Vec<_>>();
    let _ = store.enqueue_all(&quick(0)).unwrap();
    let _ = store.enqueue(&Poison).unwrap();
    let _ = store.enqueue_all(&quick(100)).unwrap();
    let mut crashes = 0;
    while ask::<u32>(path, "SELECT count(*) FROM birkez_job WHERE state = 0") > 0 {
        assert!(crashes < 10, "it kills its process for ever");
        let mut child = start("poisoned", path, &[]);
        if child.hear().is_some() {
            break;
        }
        crashes += 1;
        if crashes == 1 {
            assert_some_were_claimed_ahead(path, &log);
        }
    }
    let starts = log.count("start poison");
    println!("{crashes} crashes, {starts} starts");
    assert!(crashes >= 3 && starts == crashes && starts <= 4, "{starts} starts, {crashes} crashes");
    let poison = store.find("poison", "poison").unwrap().unwrap();
    assert_eq!(poison.state, State::Dead);
    assert_eq!(poison.last_failure.unwrap().class, Class::Crashed);
    assert_eq!(poison.attempts, 3);
    let count = |sql: &str| ask::<u32>(path, sql);
    assert_eq!(count("SELECT count(*) FROM birkez_job WHERE kind = 'pay' AND state = 2"), 200);
    assert_eq!(count("SELECT max(attempts) FROM birkez_job WHERE kind = 'pay'"), 1, "a neighbour was charged");
    let blamed = "SELECT count(*) FROM birkez_attempt JOIN birkez_job ON id = job_id WHERE kind = 'pay'";
    assert_eq!(count(blamed), 0, "a neighbour has a crash on record");
}

/// The dead process has left more leases than it had started jobs.
#[track_caller]
fn assert_some_were_claimed_ahead(path: &Path, log: &Log) {
    let leases = keys(path, "SELECT key FROM birkez_job JOIN birkez_lease ON job_id = id");
    let lines = log.lines();
    let started = after(&lines, "start ");
    let ahead = leases.difference(&started).count();
    println!("at the first crash: {} leases, {ahead} of them not started", leases.len());
    assert!(ahead > 0, "nothing was claimed ahead: this showed nothing");
}

fn run_poisoned(path: &Path, log: &Log) {
    let store = open(path);
    let (quick, poison) = (log.clone(), log.clone());
    let _runner = Runner::builder(&store)
        .workers(2)
        .handle(move |_: Pay, cx: &Context| {
            quick.note(format!("start {}", cx.key()));
            Ok(())
        })
        .handle(move |_: Poison, cx: &Context| {
            poison.note(format!("start {}", cx.key()));
            std::process::abort()
        })
        .start()
        .unwrap();
    wait_until("all are at their end", || ask::<u32>(path, "SELECT count(*) FROM birkez_job WHERE state = 0") == 0);
    tell("through");
}

#[test]
fn child_role() {
    let Some(role) = common::role() else { return };
    let path = PathBuf::from(given("DB"));
    let log = Log::beside(&path);
    match role.as_str() {
        "work" => work(&path, &log),
        "hold" => hold(&path, &log),
        "poisoned" => run_poisoned(&path, &log),
        "once" => {
            let job = Hold { n: given("N").parse().unwrap() };
            let _ = open(&path).once(&job, |_| {
                tell("inside");
                common::await_go();
                Ok(1)
            });
        }
        other => panic!("no role {other}"),
    }
}
