//! What a handler writes in the middle of its job: rows, progress, jobs that follow, corrections. Some of it could be
//! stored for a worker whose job is somebody else's, or be lost though the job went on.

mod common;

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use birkez::testing::{Drain, TempStore};
use birkez::{Context, Error, Job, JobName, RetryPolicy, Runner, State, Store};
use common::{Child, Log, ask, given, rows, run_sql, signal, tell, wait_until};
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
struct Import {
    file: String,
    from: u32,
}

impl Job for Import {
    const KIND: &'static str = "import";
    type Output = u32;
    fn key(&self) -> String {
        format!("{}/{}", self.file, self.from)
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().base(Duration::ZERO).jitter(0.0)
    }
}

fn import(file: &str) -> Import {
    Import { file: file.to_owned(), from: 0 }
}

/// Corrects an import.
#[derive(Clone, Serialize, Deserialize)]
struct Refund {
    of: String,
    n: u32,
}

impl Job for Refund {
    const KIND: &'static str = "refund";
    type Output = ();
    fn key(&self) -> String {
        format!("{}/{}", self.of, self.n)
    }
    fn corrects(&self) -> Option<JobName> {
        Some(JobName::new("import", &self.of))
    }
}

fn folder() -> (TempStore, Store) {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    run_sql(folder.path(), "CREATE TABLE line (file TEXT, n INTEGER, PRIMARY KEY (file, n))");
    (folder, store)
}

fn run(store: &Store, f: impl Fn(Import, &Context) -> anyhow::Result<u32> + Send + Sync + 'static) -> usize {
    Drain::new(Runner::builder(store).handle(f)).unwrap().drain().unwrap()
}

fn add(cx: &Context, job: &Import, n: u32) -> anyhow::Result<()> {
    cx.transaction(|tx| {
        tx.execute("INSERT INTO line VALUES (?1, ?2)", (&job.file, n))?;
        Ok(())
    })
}

#[test]
fn rows_of_a_transaction_in_the_middle_stay_and_those_of_one_that_fails_do_not() {
    let (folder, store) = folder();
    let _ = store.enqueue(&import("a")).unwrap();
    let attempts = run(&store, |job, cx| {
        add(cx, &job, cx.attempt())?;
        let failed = cx.transaction(|tx| -> anyhow::Result<()> {
            tx.execute("INSERT INTO line VALUES ('none', 1)", [])?;
            anyhow::bail!("not this one")
        });
        assert_eq!(failed.unwrap_err().to_string(), "not this one");
        anyhow::ensure!(cx.attempt() == 2, "after the first");
        Ok(2)
    });
    assert_eq!(attempts, 2);
    assert_eq!(rows(folder.path(), "SELECT * FROM line").len(), 2);
}

#[test]
fn after_its_commit_a_handler_cannot_fail_its_job_any_more() {
    let (folder, store) = folder();
    let _ = store.enqueue(&import("a")).unwrap();
    assert_eq!(
        run(&store, |job, cx| {
            cx.commit(|tx| Ok(tx.execute("INSERT INTO line VALUES (?1, 1)", [&job.file])? as u32))?;
            anyhow::bail!("too late")
        }),
        1
    );
    let job = store.find("import", "a/0").unwrap().unwrap();
    assert_eq!((job.state, job.last_failure), (State::Done, None));
    assert_eq!(ask::<u32>(folder.path(), "SELECT count(*) FROM line"), 1);
}

#[test]
fn a_job_that_hands_over_stores_the_next_with_what_it_has_done() {
    let (folder, store) = folder();
    let _ = store.enqueue(&import("a")).unwrap();
    let attempts = run(&store, |job, cx| {
        let crash = cx.attempt() == 1 && job.from == 2;
        let n = cx.commit(|tx| {
            tx.execute("INSERT INTO line VALUES (?1, ?2)", (&job.file, job.from))?;
            if job.from < 4 {
                let next = Import { from: job.from + 1, ..job.clone() };
                assert!(cx.enqueue_in(tx, &next)?.is_fresh());
            }
            anyhow::ensure!(!crash, "after both were written");
            Ok(job.from)
        })?;
        Ok(n)
    });
    assert_eq!(attempts, 6, "five, and one that failed once");
    assert_eq!(ask::<String>(folder.path(), "SELECT group_concat(n) FROM line"), "0,1,2,3,4");
    assert_eq!(ask::<u32>(folder.path(), "SELECT count(*) FROM birkez_job WHERE state = 2"), 5);
}

#[test]
fn progress_is_seen_while_the_job_runs_and_costs_next_to_nothing() {
    let (_folder, store) = folder();
    let _ = store.enqueue(&import("a")).unwrap();
    let (go, told) = std::sync::mpsc::channel::<()>();
    let told = std::sync::Mutex::new(told);
    let handler = move |_: Import, cx: &Context| {
        let (started, calls) = (Instant::now(), 100_000);
        for n in 0..calls {
            cx.progress(n, calls, "rows")?;
        }
        let each = started.elapsed() / calls as u32;
        cx.progress(calls, calls, "the last\u{1b}[31m")?;
        told.lock().unwrap().recv()?;
        Ok(u32::try_from(each.as_nanos())?)
    };
    let runner = Runner::builder(&store).workers(1).look_every(None).handle(handler).start().unwrap();
    let progress = || store.find("import", "a/0").unwrap().unwrap().progress;
    // The handler says nothing more: the keeper writes its last word.
    wait_until("the last word is written", || progress().is_some_and(|progress| progress.done == 100_000));
    let seen = progress().unwrap();
    assert_eq!((seen.total, &*seen.note), (100_000, "the last\\u{1b}[31m"));
    go.send(()).unwrap();
    wait_until("it is done", || store.find("import", "a/0").unwrap().unwrap().state == State::Done);
    let each: u32 = ask::<String>(store.path(), "SELECT result FROM birkez_job").parse().unwrap();
    println!("a call of progress took {each} ns");
    assert!(each < 50_000, "{each} ns");
    drop(runner);
}

#[test]
fn a_correction_is_a_job_of_its_own_and_both_sides_show_the_other() {
    let (_folder, store) = folder();
    let refund = |n| Refund { of: "a/0".to_owned(), n };
    let nothing = store.enqueue(&refund(1)).unwrap_err();
    assert_eq!((nothing.code(), nothing.job()), ("NOTHING_TO_CORRECT", Some(("refund", "a/0/1"))), "{nothing}");
    let refused = store.enqueue_all(&[refund(1), refund(2)]).unwrap_err();
    assert_eq!(refused.code(), "NOTHING_TO_CORRECT");
    assert_eq!(ask::<u32>(store.path(), "SELECT count(*) FROM birkez_job"), 0);

    let _ = store.enqueue(&import("a")).unwrap();
    run(&store, |_, _| Ok(1));
    let corrected = store.find("import", "a/0").unwrap().unwrap();
    let first = store.enqueue(&refund(1)).unwrap();
    let second = store.write(|tx| Ok(store.enqueue_in(tx, &refund(2))?.is_fresh())).unwrap();
    assert!(first.fresh && second && !store.enqueue(&refund(1)).unwrap().fresh);
    let known: Vec<_> = store.corrections(corrected.id).unwrap().into_iter().map(|job| (job.id, job.state)).collect();
    assert_eq!(known, [(first.id, State::Waiting), (first.id + 1, State::Waiting)]);
    let back = store.job(first.id).unwrap().unwrap().corrects.unwrap();
    assert_eq!((back.id, back.state), (corrected.id, State::Done));
    assert_eq!(store.job(corrected.id).unwrap().unwrap(), corrected, "what is corrected is not touched");
}

fn open(path: &Path, lease: Duration) -> Store {
    Store::builder(path).lease(lease).open().unwrap()
}

const LEASE: Duration = Duration::from_millis(600);

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("away") => {
            let path = PathBuf::from(given("DB"));
            let (store, log) = (open(&path, LEASE), Log::beside(&path));
            let handler = move |job: Import, cx: &Context| {
                log.note(format!("away starts {}", job.file));
                wait_until("the parent lets it go on", || log.count("go on") > 0);
                log.note(format!("{} {}", job.file, try_to_write(&job, cx)));
                Ok(0)
            };
            let _running = Runner::builder(&store).workers(ATTEMPTS.len()).handle(handler).start().unwrap();
            tell("ready");
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

/// Each way in which a handler writes.
const ATTEMPTS: [&str; 7] =
    ["commit", "transaction", "step", "progress", "enqueue", "enqueue_in", "the app's enqueue_in"];

/// What the one way that the job names came to.
fn try_to_write(job: &Import, cx: &Context) -> &'static str {
    let child = Import { from: 1, ..job.clone() };
    let row = "INSERT INTO line VALUES ('stale', 1)";
    let result: anyhow::Result<()> = match &*job.file {
        "commit" => cx.commit(|tx| Ok(tx.execute(row, [])? as u32)).map(drop),
        "transaction" => cx.transaction(|tx| Ok(tx.execute(row, [])?)).map(drop),
        "step" => cx.step("charge", || Ok(())),
        "progress" => cx.progress(1, 2, "stale").map_err(Into::into),
        "enqueue" => cx.enqueue(&child).map(drop).map_err(Into::into),
        "enqueue_in" => cx.transaction(|tx| Ok(cx.enqueue_in(tx, &child)?)).map(drop),
        _ => in_the_apps(cx, &child),
    };
    let code = result.as_ref().err().map_or("ok", |error| error.downcast_ref::<Error>().map_or("?", Error::code));
    if code != "LEASE_LOST" || cx.is_cancelled() { code } else { "LEASE_LOST without being told to stop" }
}

/// The row of the app's own transaction is the app's; the child in it is not stored.
fn in_the_apps(cx: &Context, child: &Import) -> anyhow::Result<()> {
    let mut app = birkez::rusqlite::Connection::open(cx.store().path())?;
    app.busy_timeout(Duration::from_secs(10))?;
    let tx = app.transaction()?;
    let result = cx.enqueue_in(&tx, child).map(drop);
    tx.commit()?;
    Ok(result?)
}

#[test]
fn a_worker_that_was_away_past_its_lease_leaves_no_trace_in_whatever_way_it_writes() {
    let folder = TempStore::new().unwrap();
    let store = open(folder.path(), LEASE);
    run_sql(folder.path(), "CREATE TABLE line (file TEXT, n INTEGER)");
    let log = Log::beside(folder.path());
    let mut away = Child::start("away", &[("DB", folder.path())]);
    away.expect("ready");
    let _ = store.enqueue_all(&ATTEMPTS.map(import)).unwrap();
    wait_until("it has them all", || log.count("away starts") == ATTEMPTS.len());
    // Not while it holds the writer lock, which nobody could take from it.
    let probe = birkez::rusqlite::Connection::open(folder.path()).unwrap();
    probe.busy_timeout(Duration::from_millis(300)).unwrap();
    loop {
        signal(away.id(), "STOP");
        if probe.execute_batch("BEGIN IMMEDIATE; ROLLBACK").is_ok() {
            break;
        }
        signal(away.id(), "CONT");
    }
    let here = Runner::builder(&store).workers(4).handle(|_: Import, _: &Context| Ok(1)).start().unwrap();
    let done = || ask::<isize>(folder.path(), "SELECT count(*) FROM birkez_job WHERE state = 2");
    wait_until("all are done here", || done().unsigned_abs() == ATTEMPTS.len());
    here.stop(Duration::from_secs(5)).unwrap();
    log.note("go on");
    signal(away.id(), "CONT");
    for way in ATTEMPTS {
        wait_until("it has tried", || log.count(&format!("{way} ")) > 0);
        assert_eq!(log.count(&format!("{way} LEASE_LOST")), 1, "{:?}", log.lines());
        assert_eq!(log.count(&format!("{way} LEASE_LOST without")), 0, "{:?}", log.lines());
    }
    for table in ["line", "birkez_step", "birkez_progress"] {
        assert_eq!(ask::<u32>(folder.path(), &format!("SELECT count(*) FROM {table}")), 0, "{table}");
    }
    assert_eq!(
        ask::<isize>(folder.path(), "SELECT count(*) FROM birkez_job").unsigned_abs(),
        ATTEMPTS.len(),
        "no child"
    );
    assert_eq!(ask::<u32>(folder.path(), "SELECT count(*) FROM birkez_job WHERE result <> '1'"), 0);
}

#[test]
fn four_seconds_in_a_closure_cost_no_lease_of_a_second() {
    let lease = Duration::from_secs(1);
    let folder = TempStore::new().unwrap();
    let store = open(folder.path(), lease);
    run_sql(folder.path(), "CREATE TABLE line (file TEXT, n INTEGER)");
    let starts = Log::beside(folder.path());
    let start = |name: &'static str| {
        let (store, starts) = (open(folder.path(), lease), starts.clone());
        let handler = move |job: Import, cx: &Context| {
            starts.note(format!("{name} starts {}", job.file));
            match &*job.file {
                "long" => cx.transaction(|_| {
                    std::thread::sleep(Duration::from_secs(4));
                    Ok(())
                })?,
                _ => wait_until("the long one is over", || starts.count("over") == 1),
            }
            starts.note("over");
            cx.commit(|tx| Ok(tx.execute("INSERT INTO line VALUES (?1, 1)", [&job.file])? as u32))
        };
        (Runner::builder(&store).workers(2).handle(handler).start().unwrap(), store)
    };
    let _first = start("first");
    let _ = store.enqueue_all(&["long", "beside"].map(import)).unwrap();
    wait_until("both run", || starts.count("first starts") == 2);
    let _others: Vec<_> = (0..3).map(|_| start("other")).collect();
    wait_until("both are done", || ask::<u32>(folder.path(), "SELECT count(*) FROM birkez_job WHERE state = 2") == 2);
    assert_eq!(starts.count("other starts"), 0, "{:?}", starts.lines());
    assert_eq!(ask::<u32>(folder.path(), "SELECT count(*) FROM birkez_runner WHERE ending = 'gone'"), 0);
    assert_eq!(ask::<u32>(folder.path(), "SELECT max(attempts) FROM birkez_job"), 1);
}
