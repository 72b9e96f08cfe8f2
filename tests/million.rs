//! A long history. What can go wrong: a million finished jobs slow the next one; removing half of them holds up those that
//! run.
//!
//! By default a small history, in a debug build. At full size, with its figures:
//!
//! ```text
//! BIRKEZ_MILLION=1000000 cargo test --release --test million -- --nocapture --test-threads=1
//! ```

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use birkez::testing::{Drain, TempStore};
use birkez::{Context, Job, Keep, Kept, Retention, Runner, Store};
use common::{ask, rounds};
use serde::{Deserialize, Serialize};

/// How long jobs are measured without anything beside them.
const ALONE: Duration = Duration::from_secs(2);

#[derive(Serialize, Deserialize)]
struct Post {
    n: u64,
    pad: String,
}

impl Job for Post {
    const KIND: &'static str = "post";
    type Output = ();
    fn key(&self) -> String {
        format!("new/{}", self.n)
    }
}

fn post(n: u64) -> Post {
    Post { n, pad: "x".repeat(80) }
}

/// How many finished jobs there are.
fn history() -> u32 {
    rounds("BIRKEZ_MILLION", 20_000)
}

/// So many done jobs, the older half of them finished long ago.
fn fill(path: &Path, jobs: u32) {
    let file = birkez::rusqlite::Connection::open(path).unwrap();
    file.execute_batch(&format!(
        "PRAGMA synchronous = OFF; BEGIN;
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < {jobs})
         INSERT INTO birkez_job (kind, key, payload, fingerprint, state, gate, run_at, created_at, claims, attempts,
                                 finished_at, result, idempotency, origin)
         SELECT 'post', 'old/' || i, '{{\"n\":' || i || ',\"pad\":\"' || printf('%.*c', 80, 'x') || '\"}}',
                zeroblob(17), 2, NULL, 1000, 1000, 1, 1, CASE WHEN i <= {jobs} / 2 THEN 1750000000000 ELSE 4000000000000 END, '7',
                hex(randomblob(16)), 'app'
         FROM n;
         INSERT INTO birkez_count VALUES ('post', 2, {jobs});
         COMMIT; PRAGMA wal_checkpoint(TRUNCATE);"
    ))
    .unwrap();
}

fn old_ones_go() -> Retention {
    Retention::keep_all().done(Kept::default().key(Keep::days(1)))
}

/// Enqueues and runs one job after another for a while; answers how long each took, longest last.
fn work(store: &Store, from: u64, go_on: impl Fn(u64) -> bool) -> Vec<Duration> {
    let drain = Drain::new(Runner::builder(store).handle(|_: Post, _: &Context| Ok(()))).unwrap();
    let mut took = Vec::new();
    for n in from.. {
        if !go_on(n - from) {
            break;
        }
        let began = Instant::now();
        assert!(store.enqueue(&post(n)).unwrap().fresh);
        assert_eq!(drain.drain().unwrap(), 1);
        took.push(began.elapsed());
    }
    took.sort_unstable();
    took
}

fn at(took: &[Duration], part: f64) -> Duration {
    took[((took.len() - 1) as f64 * part) as usize]
}

#[test]
fn the_next_job_is_as_quick_as_in_an_empty_file() {
    let [empty, full] = [(); 2].map(|()| TempStore::new().unwrap());
    let stores = [&empty, &full].map(|folder| folder.builder().retention(Retention::keep_all()).open().unwrap());
    fill(full.path(), history());
    let mut best = [Duration::MAX; 2];
    for round in 0..10 {
        for (store, best) in stores.iter().zip(&mut best) {
            *best = (*best).min(at(&work(store, round * 1_000, |n| n < 100), 0.5));
        }
    }
    let ratio = best[1].as_secs_f64() / best[0].as_secs_f64();
    println!("enqueue, claim and settle: empty {:?}, with {} done {:?}, ratio {ratio:.2}", best[0], history(), best[1]);
    // At full size in a release build it is 1.2; small ones beside other tests say less.
    let most = if history() >= 1_000_000 { 1.2 } else { 3.0 };
    assert!(ratio < most, "{ratio}");
}

#[test]
fn half_of_a_long_history_goes_while_jobs_run_and_none_of_them_waits_for_it() {
    let folder = TempStore::new().unwrap();
    let store = folder.builder().retention(Retention::keep_all()).open().unwrap();
    fill(folder.path(), history());
    // What this machine does to the same jobs without it.
    let alone = Instant::now();
    let before = work(&store, 1 << 32, |_| alone.elapsed() < ALONE);
    let is_over = AtomicBool::new(false);
    let (report, took) = std::thread::scope(|scope| {
        let worker = scope.spawn(|| work(&store, 0, |_| !is_over.load(Ordering::Acquire)));
        let report = store.prune(&old_ones_go());
        is_over.store(true, Ordering::Release);
        (report.unwrap(), worker.join().unwrap())
    });
    println!("{report}; longest transaction {} ms", report.longest_ms);
    for (when, took) in [("before", &before), ("meanwhile", &took)] {
        let [half, most, longest] = [0.5, 0.99, 1.0].map(|part| at(took, part));
        println!("{} jobs {when}: p50 {half:?}, p99 {most:?}, longest {longest:?}", took.len());
    }
    assert_eq!(report.keys, u64::from(history() / 2));
    let left = ask::<i64>(folder.path(), "SELECT count(*) FROM birkez_job");
    assert_eq!(left, i64::from(history() - history() / 2) + i64::try_from(before.len() + took.len()).unwrap());
    assert_eq!(ask::<i64>(folder.path(), "SELECT n FROM birkez_count WHERE kind = 'post' AND state = 2"), left);
    // From before the enqueue to after the completion, so that it is more than one wait.
    let patience = if history() >= 1_000_000 { 100 } else { 1_000 };
    let longest = at(&took, 1.0).saturating_sub(at(&before, 1.0));
    assert!(longest < Duration::from_millis(patience), "{longest:?} longer than without it");
}
