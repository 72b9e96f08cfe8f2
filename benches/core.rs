//! birkez beside a hand-written loop over its own schema, in one run, on one disk, at equal durability.
//!
//! `cargo bench --bench core`: three rounds, interleaved; medians and spread. The loop is the least that a durable queue
//! can do with one transaction a job: claim one, settle it, commit.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use birkez::rusqlite::{Connection, OptionalExtension, TransactionBehavior, params};
use birkez::{Context, Durability, Job, Runner, Store};
use serde::{Deserialize, Serialize};

const JOBS: u64 = 20_000;
const PICKUPS: u64 = 300;
const ROUNDS: usize = 3;

#[derive(Serialize, Deserialize)]
struct Noop {
    n: u64,
    pad: String,
}

impl Job for Noop {
    const KIND: &'static str = "noop";
    type Output = ();
    fn key(&self) -> String {
        self.n.to_string()
    }
}

fn noop(n: u64) -> Noop {
    Noop { n, pad: "x".repeat(80) }
}

fn main() -> anyhow::Result<()> {
    for durability in [Durability::Normal, Durability::Full] {
        let (mut drains, mut loops, mut pickups) = (Vec::new(), Vec::new(), Vec::new());
        for _ in 0..ROUNDS {
            loops.push(in_new_folder(|path| hand_written(path, durability))?);
            drains.push(in_new_folder(|path| drain(path, durability))?);
            pickups.push(in_new_folder(|path| pickup(path, durability))?);
        }
        let (drained, looped) = (median(&drains), median(&loops));
        println!("{durability:?}: drain, 4 workers  {}", spread(&drains, "jobs/s"));
        println!("{durability:?}: hand-written loop {}", spread(&loops, "jobs/s"));
        println!("{durability:?}: ratio             {:.1}", drained / looped);
        println!("{durability:?}: pickup p50        {}", spread(&pickups, "us"));
    }
    Ok(())
}

fn in_new_folder(f: impl FnOnce(&Path) -> anyhow::Result<f64>) -> anyhow::Result<f64> {
    // Beside the build, not in the temporary folder: that may be memory.
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(format!("bench-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let result = f(&folder.join("bench.db"));
    std::fs::remove_dir_all(&folder)?;
    result
}

fn filled(path: &Path, durability: Durability) -> anyhow::Result<Store> {
    let store = Store::builder(path).durability(durability).open()?;
    let jobs: Vec<_> = (0..JOBS).map(noop).collect();
    let _ = store.enqueue_all(&jobs)?;
    Ok(store)
}

fn drain(path: &Path, durability: Durability) -> anyhow::Result<f64> {
    let store = filled(path, durability)?;
    let start = Instant::now();
    let runner = Runner::builder(&store).workers(4).handle(|_: Noop, _: &Context| Ok(())).start()?;
    while store.finished()?.iter().map(|(_, _, n)| n).sum::<i64>() < JOBS as i64 {
        std::thread::sleep(Duration::from_millis(1));
    }
    let took = start.elapsed();
    runner.stop(Duration::from_secs(1))?;
    Ok(JOBS as f64 / took.as_secs_f64())
}

/// Time from before the enqueue to the start of the job's handler, on a runner with nothing else to do.
fn pickup(path: &Path, durability: Durability) -> anyhow::Result<f64> {
    let store = Store::builder(path).durability(durability).open()?;
    let epoch = Instant::now();
    let started = Arc::new(AtomicU64::new(0));
    let note = Arc::clone(&started);
    let handler = move |_: Noop, _: &Context| {
        note.store(epoch.elapsed().as_nanos() as u64, Ordering::Release);
        Ok(())
    };
    let runner = Runner::builder(&store).workers(4).handle(handler).start()?;
    let mut waits = Vec::new();
    for n in 0..PICKUPS {
        std::thread::sleep(Duration::from_millis(3));
        started.store(0, Ordering::Release);
        let before = epoch.elapsed().as_nanos() as u64;
        let _ = store.enqueue(&noop(n))?;
        while started.load(Ordering::Acquire) == 0 {
            std::thread::sleep(Duration::from_micros(200));
        }
        waits.push((started.load(Ordering::Acquire) - before) as f64 / 1_000.0);
    }
    runner.stop(Duration::from_secs(1))?;
    Ok(median(&waits))
}

/// The statements that the work needs, prepared once, by one thread.
fn hand_written(path: &Path, durability: Durability) -> anyhow::Result<f64> {
    drop(filled(path, durability)?);
    let mut connection = Connection::open(path)?;
    connection.pragma_update(None, "synchronous", format!("{durability:?}").to_uppercase())?;
    let mut done = 0;
    let start = Instant::now();
    while one(&mut connection)? {
        done += 1;
    }
    let took = start.elapsed();
    anyhow::ensure!(done == JOBS, "{done} jobs were done");
    Ok(JOBS as f64 / took.as_secs_f64())
}

fn one(connection: &mut Connection) -> anyhow::Result<bool> {
    let tx = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    let mut pick = tx.prepare_cached(
        "SELECT id, payload, claims FROM birkez_job WHERE gate = 1 AND kind = 'noop'
         ORDER BY priority DESC, run_at, id LIMIT 1",
    )?;
    let job = pick.query_row([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?))).optional()?;
    drop(pick);
    let Some((id, payload, claims)): Option<(i64, String, i64)> = job else { return Ok(false) };
    tx.prepare_cached("INSERT INTO birkez_lease VALUES (?1, 1, ?2, 1, 0, 0, 0)")?.execute(params![id, claims + 1])?;
    let _job: Noop = serde_json::from_str(&payload)?;
    tx.prepare_cached("DELETE FROM birkez_lease WHERE job_id = ?1 AND token = ?2")?.execute(params![id, claims + 1])?;
    tx.prepare_cached(
        "UPDATE birkez_job SET state = 2, gate = NULL, claims = ?2, attempts = 1, result = 'null', finished_at = 1
         WHERE id = ?1",
    )?
    .execute(params![id, claims + 1])?;
    tx.commit()?;
    Ok(true)
}

fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    sorted[sorted.len() / 2]
}

fn spread(values: &[f64], unit: &str) -> String {
    let least = values.iter().copied().fold(f64::INFINITY, f64::min);
    let most = values.iter().copied().fold(0.0, f64::max);
    format!("{:>9.0} {unit} ({least:.0}-{most:.0})", median(values))
}
