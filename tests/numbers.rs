//! What a store counts. What can go wrong: a number that no row stands for, or a row in no number; a duration that is
//! told wrongly; numbers that cost a walk over all that was ever done.

mod common;

use std::sync::Arc;
use std::time::{Duration, Instant};

use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{Context, Filter, Job, Numbers, Replay, Resolution, RetryPolicy, Runner, Stats, Store, Verdicts};
use common::{ask, rows, run_sql, wait_until};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Post {
    name: String,
    #[serde(default)]
    line: Option<String>,
    /// How long its handler takes, in milliseconds.
    #[serde(default)]
    takes: u64,
}

impl Job for Post {
    const KIND: &'static str = "post";
    type Output = ();
    fn key(&self) -> String {
        self.name.clone()
    }
    fn ordering_key(&self) -> Option<String> {
        self.line.clone()
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().jitter(0.0)
    }
}

struct Desk {
    folder: TempStore,
    clock: Arc<ManualClock>,
    store: Store,
}

impl Desk {
    fn new() -> Desk {
        let folder = TempStore::new().unwrap();
        let clock = ManualClock::at("2026-05-30T12:00:00Z".parse().unwrap());
        let store = folder.builder().clock(clock.clone()).open().unwrap();
        Desk { folder, clock, store }
    }

    fn post(&self, name: &str) -> i64 {
        self.store.enqueue(&Post { name: name.into(), line: None, takes: 0 }).unwrap().id
    }

    /// What a name begins with says how its job ends.
    fn drain(&self) {
        let clock = Arc::clone(&self.clock);
        let handler = move |post: Post, _: &Context| {
            clock.advance(Duration::from_millis(post.takes));
            let failed: anyhow::Result<()> = Err(anyhow::anyhow!("no stamp"));
            match post.name.split('/').next() {
                Some("dead") => failed.permanent(),
                Some("parked") => failed.park("auth"),
                Some("fails") => failed,
                _ => Ok(()),
            }
        };
        Drain::new(Runner::builder(&self.store).handle(handler)).unwrap().drain().unwrap();
    }

    fn total(&self) -> Numbers {
        self.store.stats().unwrap().total
    }

    /// Every number against the rows themselves.
    #[track_caller]
    fn check(&self) {
        let stats = self.store.stats().unwrap();
        let is = "FROM birkez_job AS job WHERE ";
        let runs = "EXISTS (SELECT 1 FROM birkez_lease WHERE job_id = job.id)";
        let count =
            |what: &str| u64::try_from(ask::<i64>(self.folder.path(), &format!("SELECT count(*) {is}{what}"))).unwrap();
        let now = self.clock.now().timestamp_millis();
        let total = &stats.total;
        let all = [
            (total.running, runs.to_owned()),
            (total.ready, format!("state = 0 AND NOT {runs} AND (gate IN (1, 3) OR gate = 0 AND run_at <= {now})")),
            (total.scheduled, format!("state = 0 AND NOT {runs} AND gate = 0 AND run_at > {now}")),
            (total.behind, format!("gate = 2 AND NOT {runs}")),
            (total.for_callers, format!("gate = 4 AND NOT {runs}")),
            (total.parked, "state = 1".to_owned()),
            (total.done, "state = 2".to_owned()),
            (total.dead, "state = 3".to_owned()),
            (total.cancelled, "state = 4".to_owned()),
            (total.all(), "true".to_owned()),
        ];
        for (told, what) in all {
            assert_eq!(told, count(&what), "{what}");
        }
        assert_eq!(self.store.check_counts().unwrap(), []);
        assert_eq!(stats.kinds.iter().map(|kind| kind.numbers.all()).sum::<u64>(), total.all());
        assert_eq!(stats.queues.iter().map(|queue| queue.numbers.all()).sum::<u64>(), total.all());
    }
}

#[test]
fn every_number_is_that_of_the_rows_after_every_step() {
    let desk = Desk::new();
    desk.check();
    for name in ["fine/1", "fine/2", "dead/1", "dead/2", "dead/3", "parked/1", "parked/2", "parked/3", "fails/1"] {
        desk.post(name);
        desk.check();
    }
    for name in ["dead/head", "second", "third"] {
        let _ = desk.store.enqueue(&Post { name: name.into(), line: Some("line".into()), takes: 0 }).unwrap();
        desk.check();
    }
    run_sql(desk.folder.path(), "INSERT INTO birkez_job (kind, key, payload) VALUES ('script', 'a', '{}')");
    desk.check();
    let later = desk.post("later");
    desk.store.reschedule(later, desk.clock.now() + Duration::from_secs(60), "Ada").unwrap();
    desk.check();
    let failed = desk.store.once(&Post { name: "mine".into(), line: None, takes: 0 }, |_| {
        desk.check();
        anyhow::bail!("not today")
    });
    assert_eq!(failed.unwrap_err().code(), "FAILED");
    desk.check();
    desk.drain();
    desk.check();
    let parked = |name: &str| desk.store.find("post", name).unwrap().unwrap().id;
    for (name, resolution) in
        [("1", Resolution::Dead), ("2", Resolution::Done(().into_json())), ("3", Resolution::Retry)]
    {
        desk.store.resolve(parked(&format!("parked/{name}")), resolution, "Ada").unwrap();
        desk.check();
    }
    desk.store.discard(Filter::dead().key_prefix("dead/"), "Ada").unwrap();
    desk.check();
    desk.store.cancel(later, "Ada").unwrap();
    desk.check();
    desk.clock.advance(Duration::from_secs(120));
    desk.check();
    desk.drain();
    desk.check();
    let replayed = desk.store.replay(later, Replay::new(), "Ada").unwrap();
    assert_eq!(replayed.replayed.len(), 1);
    desk.check();
    desk.drain();
    desk.check();
    let total = desk.total();
    assert_eq!((total.done, total.dead, total.cancelled, total.parked), (6, 1, 4, 1), "{total:?}");
}

trait IntoJson {
    fn into_json(self) -> serde_json::Value;
}

impl IntoJson for () {
    fn into_json(self) -> serde_json::Value {
        serde_json::Value::Null
    }
}

#[test]
fn numbers_of_one_read_are_of_one_moment_while_jobs_run() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let jobs: Vec<_> = (0..2_000).map(|n| Post { name: n.to_string(), line: None, takes: 0 }).collect();
    store.enqueue_all(&jobs).unwrap();
    let runner = Runner::builder(&store).workers(2).handle(|_: Post, _: &Context| Ok(())).start().unwrap();
    let mut last = 0;
    wait_until("all are done", || {
        let total = store.stats().unwrap().total;
        assert_eq!(total.all(), 2_000, "{total:?}");
        assert!(total.done >= last);
        last = total.done;
        total.done == 2_000
    });
    runner.stop(Duration::from_secs(5)).unwrap();
    let total = store.stats().unwrap().total;
    assert_eq!((total.from_enqueue.count, total.run_time.count, total.rates.failure()), (2_000, 2_000, Some(0.0)));
    assert_eq!(total.oldest_ready, None);
}

#[test]
fn durations_are_told_within_a_tenth() {
    let desk = Desk::new();
    let jobs: Vec<_> = (1..=100).map(|n| Post { name: format!("{n:03}"), line: None, takes: n * 10 }).collect();
    for job in &jobs {
        let _ = desk.store.enqueue(job).unwrap();
        desk.drain();
    }
    let spread = desk.total().run_time;
    for (told, real) in [(spread.p50, 500.0), (spread.p95, 950.0), (spread.p99, 990.0)] {
        let told = told.unwrap().as_secs_f64() * 1_000.0;
        assert!((told - real).abs() <= real / 10.0, "{real} ms is told as {told}");
    }
    assert_eq!(spread.count, 100);
    // Nothing waited: from enqueue to done is the run.
    assert_eq!(desk.total().from_enqueue, spread);
}

#[test]
fn what_is_older_than_the_window_does_not_count_and_comes_back_with_a_longer_one() {
    let desk = Desk::new();
    desk.post("fine");
    desk.post("fails/1");
    desk.drain();
    let rates = desk.total().rates;
    assert_eq!((rates.done, rates.failed, rates.retried, rates.failure()), (1, 1, 1, Some(0.5)));
    desk.clock.advance(Duration::from_secs(2 * 3_600));
    let total = desk.total();
    assert_eq!((total.rates.done, total.rates.failure(), total.run_time.p50, total.done), (0, None, None, 1));
    let longer = desk.store.stats_over(Duration::from_secs(3 * 3_600)).unwrap();
    assert_eq!((longer.total.rates.done, longer.total.rates.failed), (1, 1));
}

#[test]
fn the_oldest_ready_job_has_the_age_since_it_could_run() {
    let desk = Desk::new();
    let job = desk.post("later");
    desk.store.reschedule(job, desk.clock.now() + Duration::from_secs(60), "Ada").unwrap();
    desk.clock.advance(Duration::from_secs(50));
    assert_eq!((desk.total().oldest_ready, desk.total().scheduled), (None, 1));
    desk.clock.advance(Duration::from_secs(40));
    assert_eq!((desk.total().oldest_ready, desk.total().ready), (Some(Duration::from_secs(30)), 1));
}

#[test]
fn a_job_taken_from_a_dead_process_is_a_lost_lease_and_no_failure_of_its_own() {
    let desk = Desk::new();
    let job = desk.post("fine");
    let lease = format!("INSERT INTO birkez_lease VALUES ({job}, 4711, 1, 1, 0, 0, 0)");
    run_sql(desk.folder.path(), &lease);
    assert_eq!(desk.total().running, 1);
    desk.drain();
    let total = desk.total();
    assert_eq!((total.rates.leases_lost, total.rates.failed, total.done), (1, 0, 1));
}

/// Endings of one transaction are written again one by one when one of them cannot be.
#[test]
fn what_was_undone_is_not_counted_twice() {
    let desk = Desk::new();
    desk.post("fine");
    desk.post("poison");
    run_sql(
        desk.folder.path(),
        "CREATE TRIGGER refuse BEFORE UPDATE ON birkez_job WHEN NEW.key = 'poison' AND NEW.state = 2
         BEGIN SELECT RAISE(ABORT, 'not this one'); END",
    );
    desk.drain();
    let total = desk.total();
    assert_eq!((total.done, total.from_enqueue.count, total.run_time.count), (1, 1, 1));
    desk.check();
}

#[test]
fn counts_that_lie_are_found_and_mended() {
    let desk = Desk::new();
    for name in ["fine/1", "fine/2", "dead/1"] {
        desk.post(name);
    }
    desk.drain();
    let sql = "DELETE FROM birkez_job WHERE key = 'fine/1'; INSERT INTO birkez_count VALUES ('ghost', 4, 7)";
    run_sql(desk.folder.path(), sql);
    let found = desk.store.check_counts().unwrap();
    let told: Vec<_> =
        found.iter().map(|diff| (diff.kind.as_str(), diff.state.as_str(), diff.counted, diff.scanned)).collect();
    assert_eq!(told, [("ghost", "cancelled", 7, 0), ("post", "done", 2, 1)]);
    assert_eq!(desk.store.mend_counts().unwrap(), found);
    assert_eq!(desk.store.check_counts().unwrap(), []);
    assert_eq!((desk.total().done, desk.total().dead, desk.total().cancelled), (1, 1, 0));
}

#[test]
fn counts_are_mended_rightly_beside_jobs_that_end_in_the_same_transaction() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let jobs: Vec<_> = (0..3_000).map(|n| Post { name: n.to_string(), line: None, takes: 0 }).collect();
    store.enqueue_all(&jobs).unwrap();
    let runner = Runner::builder(&store).workers(2).handle(|_: Post, _: &Context| Ok(())).start().unwrap();
    wait_until("all are done", || {
        store.mend_counts().unwrap();
        store.stats().unwrap().total.done == 3_000
    });
    runner.stop(Duration::from_secs(5)).unwrap();
    assert_eq!(store.check_counts().unwrap(), []);
}

#[test]
fn what_keys_cost_is_told_and_a_kept_payload_is_none_of_it() {
    let desk = Desk::new();
    for n in 0..40 {
        desk.post(&format!("fine/{n}"));
    }
    desk.drain();
    assert_eq!(desk.store.stats().unwrap().keys.jobs, 0);
    run_sql(desk.folder.path(), "UPDATE birkez_job SET payload = NULL WHERE id <= 30");
    let keys = desk.store.stats().unwrap().keys;
    assert_eq!(keys.jobs, 30);
    assert!((30 * 90..30 * 400).contains(&keys.bytes), "{keys:?}");
}

#[test]
fn a_large_file_is_sampled_for_what_keys_cost() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    run_sql(
        folder.path(),
        "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
         INSERT INTO birkez_job (kind, key, payload, state, gate, created_at, finished_at)
         SELECT 'old', i, CASE WHEN i > 5000 THEN '{}' END, 2, NULL, 1, 2 FROM n;
         INSERT INTO birkez_count VALUES ('old', 2, 20000)",
    );
    let keys = store.stats().unwrap().keys;
    assert!((4_500..5_500).contains(&keys.jobs), "{keys:?}");
}

#[test]
fn whoever_waits_for_a_locked_file_is_counted_with_its_wait() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let calm = store.stats().unwrap();
    assert_eq!((calm.busy.count, calm.busy.time), (0, Duration::ZERO));
    let other = birkez::rusqlite::Connection::open(folder.path()).unwrap();
    other.execute_batch("BEGIN IMMEDIATE").unwrap();
    std::thread::scope(|scope| {
        let began = Instant::now();
        scope.spawn(|| store.enqueue(&Post { name: "a".into(), line: None, takes: 0 }).map(|_| ()).unwrap());
        while began.elapsed() < Duration::from_millis(40) {
            std::thread::sleep(Duration::from_millis(5));
        }
        other.execute_batch("COMMIT").unwrap();
    });
    let busy = store.stats().unwrap().busy;
    assert!(busy.count == 1 && busy.time > Duration::from_millis(5), "{busy:?}");
}

#[test]
fn a_kind_that_no_live_runner_handles_is_named() {
    let desk = Desk::new();
    desk.post("fine");
    run_sql(desk.folder.path(), "INSERT INTO birkez_job (kind, key, payload) VALUES ('unknown', 'a', '{}')");
    run_sql(desk.folder.path(), "INSERT INTO birkez_kind VALUES ('post', 'letters', NULL, NULL, 0)");
    let named = |stats: &Stats| stats.unhandled.clone();
    assert_eq!(named(&desk.store.stats().unwrap()), ["post", "unknown"]);
    let now = desk.clock.now().timestamp_millis();
    run_sql(
        desk.folder.path(),
        &format!(
            "INSERT INTO birkez_runner (id, uuid, has_lock, host, pid, program, lease_ms, started_at, heard_at)
             VALUES (900, 'u', 0, 'h', 1, 'p', 30000, {now}, {now});
             INSERT INTO birkez_presence (runner, what, name, since) VALUES (900, 'kind', 'post', {now})"
        ),
    );
    let stats = desk.store.stats().unwrap();
    assert_eq!(named(&stats), ["unknown"]);
    let queues: Vec<_> = stats.queues.iter().map(|queue| (queue.queue.as_str(), queue.numbers.ready)).collect();
    assert_eq!(queues, [("default", 1), ("letters", 1)]);
    desk.clock.advance(Duration::from_secs(61));
    assert_eq!(named(&desk.store.stats().unwrap()), ["post", "unknown"], "it has not been heard of for two leases");
}

#[test]
fn the_sizes_are_those_of_the_files() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let jobs: Vec<_> = (0..200).map(|n| Post { name: n.to_string(), line: None, takes: 0 }).collect();
    store.enqueue_all(&jobs).unwrap();
    let file = store.stats().unwrap().file;
    let wal = std::fs::metadata(folder.path().with_extension("db-wal")).unwrap().len();
    assert_eq!((file.wal, file.database % 512, file.free % 512), (wal, 0, 0));
    assert!(file.database > 40_000 && file.free < file.database, "{file:?}");
    let counted = rows(folder.path(), "SELECT page_count * 4096 FROM pragma_page_count()");
    assert_eq!(counted, [format!("[Integer({})]", file.database)]);
}

/// A family with its type and its samples: labels and value.
type Family = (String, Vec<(Vec<(String, String)>, f64)>);

/// Reads the text format as strictly as its description: every sample after its own HELP and TYPE, names and labels of the
/// permitted letters, only the three escapes, and a number.
fn parse(text: &str) -> std::collections::BTreeMap<String, Family> {
    let is_name = |name: &str| !name.is_empty() && name.chars().all(|c| c.is_ascii_alphanumeric() || c == '_');
    let mut families = std::collections::BTreeMap::<String, Family>::new();
    let (mut helped, mut current) = (String::new(), String::new());
    assert!(text.ends_with('\n'));
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# HELP ") {
            helped = rest.split_once(' ').unwrap().0.to_owned();
        } else if let Some(rest) = line.strip_prefix("# TYPE ") {
            let (name, kind) = rest.split_once(' ').unwrap();
            assert!(name == helped && is_name(name) && ["gauge", "counter", "summary"].contains(&kind), "{line}");
            assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
            assert!(families.insert(name.to_owned(), (kind.to_owned(), Vec::new())).is_none(), "{name} twice");
            current = name.to_owned();
        } else {
            let (labels, value) = sample(line, &current);
            let value: f64 = value.parse().unwrap_or_else(|_| panic!("no number in {line}"));
            let family = families.get_mut(&current).unwrap();
            assert!(family.1.iter().all(|(known, _)| *known != labels), "twice: {line}");
            family.1.push((labels, value));
        }
    }
    families
}

fn sample<'a>(line: &'a str, name: &str) -> (Vec<(String, String)>, &'a str) {
    let rest = line.strip_prefix(name).unwrap_or_else(|| panic!("{line} is not of {name}"));
    let mut labels = Vec::new();
    let Some(mut rest) = rest.strip_prefix('{') else { return (labels, rest.strip_prefix(' ').unwrap()) };
    loop {
        let (label, after) = rest.split_once("=\"").unwrap();
        let mut value = String::new();
        let mut chars = after.char_indices();
        let end = loop {
            match chars.next().unwrap() {
                (at, '"') => break at,
                (_, '\\') => value.push(match chars.next().unwrap().1 {
                    'n' => '\n',
                    c @ ('\\' | '"') => c,
                    c => panic!("\\{c} in {line}"),
                }),
                (_, c) => value.push(c),
            }
        };
        labels.push((label.to_owned(), value));
        match after[end + 1..].strip_prefix(',') {
            Some(more) => rest = more,
            None => return (labels, after[end + 1..].strip_prefix("} ").unwrap()),
        }
    }
}

#[test]
fn the_text_for_prometheus_parses_whatever_a_kind_is_called() {
    let desk = Desk::new();
    desk.post("fine");
    desk.post("dead/1");
    desk.drain();
    let strange = "a \"quoted\\ kind\nof two lines";
    run_sql(
        desk.folder.path(),
        "INSERT INTO birkez_job (kind, key, payload) VALUES ('a \"quoted\\ kind' || char(10) || 'of two lines', 'k', '{}')",
    );
    let families = parse(&desk.store.metrics().unwrap());
    let value = |family: &str, wanted: &[(&str, &str)]| {
        let of_it = families[family].1.iter().filter(|(labels, _)| {
            wanted.iter().all(|(name, value)| labels.iter().any(|(n, v)| n == name && v == value))
        });
        of_it.map(|(_, value)| *value).sum::<f64>()
    };
    assert_eq!(value("birkez_jobs", &[("kind", strange), ("state", "ready")]), 1.0);
    assert_eq!(value("birkez_jobs", &[("state", "dead")]), 1.0);
    assert_eq!(value("birkez_window_failed", &[("kind", "post"), ("queue", "default")]), 1.0);
    assert_eq!(value("birkez_window_done", &[]), 1.0);
    assert_eq!(families["birkez_run_seconds"].0, "summary");
    assert_eq!(families["birkez_busy_waits_total"].0, "counter");
    assert!(value("birkez_file_bytes", &[]) > 0.0);
}
