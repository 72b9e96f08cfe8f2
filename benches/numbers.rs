//! What numbers, health, lists and explanations cost in a file with a million finished jobs: `cargo bench --bench numbers`.

use std::time::{Duration, Instant};

use birkez::rusqlite::Connection;
use birkez::testing::TempStore;
use birkez::{Filter, Page, State};

/// A million done jobs, a thousand of each other sort, and a day of tallies of five kinds.
const FILL: &str = "
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000)
INSERT INTO birkez_job (kind, key, payload, state, gate, created_at, finished_at, result)
SELECT 'kind-' || (i % 5), i, CASE WHEN i > 500000 THEN '{\"card\":\"card-01\",\"date\":\"2026-01-31\"}' END, 2, NULL, 1, 2, '1'
FROM n;
INSERT INTO birkez_count SELECT kind, state, count(*) FROM birkez_job GROUP BY kind, state;
WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000)
INSERT INTO birkez_job (kind, key, payload, state, gate, run_at, created_at, finished_at, reason, error_class)
SELECT 'kind-' || (i % 5), what || i, '{}', state, gate, 1, 1, CASE WHEN state > 1 THEN 2 END,
       CASE state WHEN 1 THEN 'auth' END, CASE state WHEN 3 THEN 'permanent' END
FROM n, (SELECT 'r' AS what, 0 AS state, 1 AS gate UNION ALL SELECT 's', 0, 0 UNION ALL SELECT 'p', 1, NULL
         UNION ALL SELECT 'd', 3, NULL);
INSERT INTO birkez_count SELECT kind, state, count(*) FROM birkez_job WHERE state = 3 GROUP BY kind, state;
WITH RECURSIVE slot (i) AS (SELECT 0 UNION ALL SELECT i + 1 FROM slot WHERE i < 288),
     bucket (b) AS (SELECT 0 UNION ALL SELECT b + 1 FROM bucket WHERE b < 60)
INSERT INTO birkez_tally
SELECT unixepoch() / 300 - i, 'kind-' || (b % 5), b % 2, b, 10 FROM slot, bucket;";

fn main() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let file = Connection::open(folder.path()).unwrap();
    file.execute_batch(&format!("PRAGMA synchronous = OFF; BEGIN; {FILL} COMMIT; PRAGMA wal_checkpoint(TRUNCATE);"))
        .unwrap();
    let total = store.stats().unwrap().total;
    println!("{} done, {} dead, {} ready, {} parked", total.done, total.dead, total.ready, total.parked);
    measure("stats, the last hour", || drop(store.stats().unwrap()));
    measure("stats, a day", || drop(store.stats_over(Duration::from_secs(86_400)).unwrap()));
    measure("health", || drop(store.health().unwrap()));
    let dead = Filter::dead().kind("kind-3").error_contains("no route");
    let page = || store.list(&Filter::dead().kind("kind-3"), Page::first(50)).unwrap();
    measure("a page of dead letters", || drop(page()));
    measure("dead letters by text", || drop(store.list(&dead, Page::first(50)).unwrap()));
    let (done, dead) = (1, page()[0].id);
    let waits = store.list(&Filter::state(State::Waiting), Page::first(1)).unwrap()[0].id;
    measure("explain, 3 jobs", || [done, dead, waits].into_iter().for_each(|job| drop(store.explain(job).unwrap())));
    measure("snapshot", || drop(store.snapshot(50).unwrap()));
    measure("metrics", || drop(store.metrics().unwrap()));
    let began = Instant::now();
    assert!(store.check_counts().unwrap().is_empty());
    println!("{:<24} {:>9.2?} (it reads every job)", "check_counts", began.elapsed());
}

fn measure(what: &str, f: impl Fn()) {
    let mut took: Vec<Duration> = (0..50)
        .map(|_| {
            let began = Instant::now();
            f();
            began.elapsed()
        })
        .collect();
    took.sort_unstable();
    println!("{what:<24} p50 {:>9.2?}, slowest {:>9.2?}", took[25], took[49]);
}
