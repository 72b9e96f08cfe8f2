//! A thousand lines at once, in two processes that are killed again and again, with failures by chance: effects could come
//! out of order, twice or not at all, and one line that is stuck could hold up the others or hide among them.
//!
//! `BIRKEZ_LINES` (default 1,000) and `BIRKEZ_SEED` change how much is tried, and what. How much a stuck line costs the
//! others is measured, side by side in one run, by
//!
//! ```text
//! BIRKEZ_RATIO=1.15 cargo test --release --test order_kills -- --nocapture full_speed
//! ```
//!
//! which fails if they take longer by more than that factor; without the variable the test allows a busy machine and a
//! slow build a factor of three.

mod common;

use std::path::Path;
use std::time::{Duration, Instant};

use birkez::rusqlite::Connection;
use birkez::testing::{Drain, TempStore};
use birkez::{Class, Context, Durability, Job, RetryPolicy, Runner, State, Store, Verdicts};
use common::{Child, ask, given, rounds, run_sql, tell};
use fastrand::Rng;
use serde::{Deserialize, Serialize};

/// Jobs of one line.
const JOBS: u32 = 20;
/// Which line stops for good, and at which of its jobs.
const STUCK: (u32, u32) = (13, 7);

/// The `n`th change of something.
#[derive(Serialize, Deserialize)]
struct Change {
    line: u32,
    n: u32,
}

impl Job for Change {
    const KIND: &'static str = "change";
    type Output = ();

    fn key(&self) -> String {
        format!("{}/{}", self.line, self.n)
    }

    fn ordering_key(&self) -> Option<String> {
        Some(line(self.line))
    }

    fn retry() -> RetryPolicy {
        // Whatever chance and kills do to it, only its own word ends it.
        let policy = RetryPolicy::default().unlimited_attempts().unlimited_total();
        policy.base(Duration::from_millis(1)).cap(Duration::from_millis(4)).jitter(0.5)
    }
}

fn line(of: u32) -> String {
    format!("line-{of}")
}

fn open(path: &Path) -> Store {
    // SIGKILL takes nothing that was handed to the system; without syncs more happens between two kills.
    Store::builder(path).durability(Durability::Normal).open().unwrap()
}

/// Enqueues `JOBS` of each line, the lines in turn.
fn enqueue(store: &Store, lines: u32) {
    for n in 0..JOBS {
        let round: Vec<_> = (0..lines).map(|line| Change { line, n }).collect();
        assert_eq!(store.enqueue_all(&round).unwrap().len(), lines as usize);
    }
}

/// One attempt. It fails by chance before its effect, or after it in the same transaction.
fn attempt(job: &Change, cx: &Context, seed: u64) -> anyhow::Result<()> {
    let mut chance = Rng::with_seed(seed ^ u64::from(job.line * JOBS + job.n) << 20 ^ u64::from(cx.attempt()));
    let fails = chance.u32(..100);
    anyhow::ensure!(fails >= 5, "by chance, before its effect");
    if (job.line, job.n) == STUCK {
        return Err(anyhow::anyhow!("no such account")).permanent();
    }
    cx.commit(|tx| {
        tx.execute("INSERT INTO effect (line, n) VALUES (?1, ?2)", (job.line, job.n))?;
        anyhow::ensure!(fails >= 8, "by chance, after its effect");
        Ok(())
    })
}

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("work") => {
            let (path, seed) = (given("DB"), given("SEED").parse().unwrap());
            let store = open(Path::new(&path));
            let handler = move |job: Change, cx: &Context| attempt(&job, cx, seed);
            let _runner = Runner::builder(&store).workers(2).handle(handler).start().unwrap();
            tell("ready");
            loop {
                common::await_go();
            }
        }
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

#[test]
fn a_thousand_lines_keep_their_order_through_failures_and_kills_and_only_the_one_with_a_dead_head_stops() {
    let lines = rounds("BIRKEZ_LINES", 1_000);
    let seed =
        std::env::var("BIRKEZ_SEED").ok().and_then(|text| text.parse().ok()).unwrap_or_else(|| fastrand::u64(..));
    println!("BIRKEZ_SEED={seed}");
    let folder = TempStore::new().unwrap();
    let store = open(folder.path());
    run_sql(folder.path(), "CREATE TABLE effect (at INTEGER PRIMARY KEY AUTOINCREMENT, line INTEGER, n INTEGER)");
    enqueue(&store, lines);
    let met = run_and_kill(folder.path(), lines * JOBS - (JOBS - STUCK.1), &mut Rng::with_seed(seed));
    println!("{lines} lines: {met:?}");
    assert!(met.kills > 0 && met.held_at_kills > 0, "no kill met a job at work: {met:?}");
    assert!(met.failures > u64::from(lines * JOBS) / 50, "chance let nearly all through: {met:?}");
    assert_order(folder.path(), lines);
    assert_stuck(&store);
    let unfinished = "SELECT count(*) FROM birkez_job WHERE state <> 2 AND ordering_key <> 'line-13'";
    assert_eq!(ask::<u32>(folder.path(), unfinished), 0, "a line was held up by another");
    assert_eq!(ask::<String>(folder.path(), "PRAGMA integrity_check"), "ok");
}

/// What the run has met.
#[derive(Debug, Default)]
struct Met {
    kills: u32,
    held_at_kills: u32,
    failures: u64,
    took: Duration,
}

/// Two processes of two workers each, until `done` jobs are done. One of the two is killed now and then, and replaced.
fn run_and_kill(path: &Path, done: u32, chance: &mut Rng) -> Met {
    let seed = chance.u64(..).to_string();
    let begin = || {
        let mut child = Child::start("work", &[("DB", path.to_str().unwrap()), ("SEED", &seed)]);
        child.expect("ready");
        child
    };
    let (start, mut met) = (Instant::now(), Met::default());
    let mut workers = vec![begin(), begin()];
    let file = Connection::open(path).unwrap();
    let one = |sql: &str| file.query_row(sql, [], |row| row.get::<_, u32>(0)).unwrap();
    while one("SELECT coalesce(sum(n), 0) FROM birkez_count WHERE state = 2") < done {
        assert!(start.elapsed() < 3 * common::PATIENCE, "not done in time: {met:?}");
        std::thread::sleep(Duration::from_millis(chance.u64(300..1_200)));
        let victim = workers.remove(chance.usize(..2));
        let pid = victim.id();
        drop(victim.kill());
        met.kills += 1;
        met.held_at_kills += one(&format!(
            "SELECT count(*) FROM birkez_lease JOIN birkez_runner AS runner ON runner.id = runner WHERE pid = {pid}"
        ));
        workers.push(begin());
    }
    met.took = start.elapsed();
    met.failures = u64::from(one("SELECT count(*) FROM birkez_attempt WHERE class = 'transient'"));
    met
}

#[track_caller]
fn assert_order(path: &Path, lines: u32) {
    let file = Connection::open(path).unwrap();
    let mut ask = file.prepare("SELECT line, n FROM effect ORDER BY at").unwrap();
    let mut next = vec![0; lines as usize];
    let effects = ask.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap();
    for (line, n) in effects.map(Result::<(u32, u32), _>::unwrap) {
        assert_eq!(n, next[line as usize], "the next effect of line {line}");
        next[line as usize] += 1;
    }
    for (line, next) in (0..).zip(next) {
        let all = if line == STUCK.0 { STUCK.1 } else { JOBS };
        assert_eq!(next, all, "effects of line {line}");
    }
}

/// The line with the dead head is listed with its reason, and what stands behind the head is as it was enqueued.
#[track_caller]
fn assert_stuck(store: &Store) {
    let blocked = store.blocked_keys().unwrap();
    let [stuck] = &blocked[..] else { panic!("one line is stuck: {blocked:?}") };
    let head = &stuck.head;
    assert_eq!((stuck.ordering_key.as_str(), head.key.as_str(), head.state), ("line-13", "13/7", State::Dead));
    assert_eq!(stuck.why, "is dead (permanent: no such account)");
    assert_eq!(head.last_failure.as_ref().unwrap().class, Class::Permanent);
    assert_eq!(stuck.since, head.finished_at);
    for n in STUCK.1 + 1..JOBS {
        let follower = store.find(Change::KIND, &format!("13/{n}")).unwrap().unwrap();
        assert_eq!((follower.state, follower.attempts, follower.behind), (State::Waiting, 0, Some(head.id)), "13/{n}");
        assert!(store.attempts(follower.id).unwrap().is_empty() && follower.suspect_since.is_none());
    }
    let touched = "SELECT count(*) FROM birkez_job WHERE ordering_key = 'line-13' AND id > (SELECT id FROM birkez_job
                   WHERE key = '13/7') AND (claims > 0 OR gate <> 2)";
    assert_eq!(ask::<u32>(store.path(), touched), 0, "none of them was claimed");
}

/// Behind the head of a line that is stuck.
const BEHIND: u32 = 20_000;

#[test]
fn beside_thousands_of_lines_one_that_is_stuck_lets_the_others_run_at_full_speed() {
    let most = std::env::var("BIRKEZ_RATIO").ok().and_then(|text| text.parse().ok()).unwrap_or(3.0);
    let lines = rounds("BIRKEZ_LINES", if cfg!(debug_assertions) { 300 } else { 5_000 });
    let mut took = [Duration::MAX; 2];
    for round in 0..3 {
        for (at, behind) in [0, BEHIND].into_iter().enumerate() {
            let one = drain_beside(lines, behind);
            println!("round {round}: {lines} lines beside {behind} jobs behind a dead head in {one:?}");
            took[at] = took[at].min(one);
        }
    }
    let ratio = took[1].as_secs_f64() / took[0].as_secs_f64();
    println!("{lines} lines of 2: {:?} alone, {:?} beside a stuck one: {ratio:.2}", took[0], took[1]);
    assert!(ratio < most, "a stuck line slows the others by {ratio:.2}");
}

/// How long it takes to run two jobs of each of `lines` lines, with `behind` jobs in front of them in a line whose head is
/// dead.
fn drain_beside(lines: u32, behind: u32) -> Duration {
    let folder = TempStore::new().unwrap();
    let store = open(folder.path());
    let handler = |job: Change, _: &Context| match job.line {
        u32::MAX => Err(anyhow::anyhow!("no such account")).permanent(),
        _ => Ok(()),
    };
    let drain = Drain::new(Runner::builder(&store).handle(handler)).unwrap();
    assert!(store.enqueue(&Change { line: u32::MAX, n: 0 }).unwrap().fresh);
    assert_eq!(drain.drain().unwrap(), 1);
    // By a script, which is quicker; the first look puts them behind the head.
    run_sql(
        folder.path(),
        &format!(
            "WITH RECURSIVE row (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM row WHERE n < {behind})
             INSERT INTO birkez_job (kind, key, payload, ordering_key, priority)
             SELECT 'change', 'stuck/' || n, '{{\"line\":0,\"n\":0}}', 'line-{}', 9 FROM row WHERE {behind} > 0",
            u32::MAX
        ),
    );
    assert_eq!(drain.drain().unwrap(), 0);
    assert_eq!(ask::<u32>(folder.path(), "SELECT count(*) FROM birkez_job WHERE gate = 2"), behind);
    for n in 0..2 {
        let round: Vec<_> = (0..lines).map(|line| Change { line, n }).collect();
        let _ = store.enqueue_all(&round).unwrap();
    }
    let start = Instant::now();
    assert_eq!(drain.drain().unwrap(), 2 * lines as usize);
    start.elapsed()
}
