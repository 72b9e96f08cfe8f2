//! A copy that is put in the place of the file. What can go wrong: it does again what was done after the copy, or forgets
//! what it held; it goes on by itself; it takes the place of something; nobody can let it go on.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use birkez::calendar::CatchUp;
use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{Class, Context, DeedPage, Filter, Page, Runner, Schedule, State, Store, Verdicts};
use common::copies::{Pay, Text, beside, is_exists, look, pay, put};
use common::{Child, ask, given, rows, run_sql, tell};

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("run") => running(),
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

/// A child that holds a job of each kind until it is killed.
fn running() {
    let store = Store::open(given("DB")).unwrap();
    fn hold() -> ! {
        tell("holds");
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
    let runner = Runner::builder(&store)
        .workers(3)
        .handle(|_: Pay, _: &Context| hold())
        .handle(|_: Text, _: &Context| hold())
        .start()
        .unwrap();
    std::mem::forget(runner);
    common::await_go();
}

struct Panel {
    folder: TempStore,
    clock: Arc<ManualClock>,
}

impl Panel {
    fn new() -> Panel {
        let clock = ManualClock::at("2026-05-30T12:00:00Z".parse().unwrap());
        Panel { folder: TempStore::new().unwrap(), clock }
    }

    fn open(&self, path: &Path) -> Store {
        Store::builder(path).clock(self.clock.clone()).open().unwrap()
    }

    /// Runs everything that is due; answers the keys in the order in which they ran.
    fn drain(&self, store: &Store) -> Vec<u32> {
        let ran = Arc::new(std::sync::Mutex::new(Vec::new()));
        let (pays, texts) = (Arc::clone(&ran), Arc::clone(&ran));
        let runner = Runner::builder(store)
            .handle(move |job: Pay, _: &Context| {
                pays.lock().unwrap().push(job.n);
                match job.n {
                    n if n < 100 => Ok(n),
                    _ => Err(anyhow::anyhow!("no money")).park("auth"),
                }
            })
            .handle(move |job: Text, _: &Context| {
                texts.lock().unwrap().push(job.n);
                Ok(())
            });
        Drain::new(runner).unwrap().drain().unwrap();
        std::mem::take(&mut ran.lock().unwrap())
    }

    fn backup(&self, store: &Store) -> PathBuf {
        let copy = beside(&self.folder, "copy.db");
        store.backup(&copy).unwrap();
        copy
    }
}

#[test]
fn what_was_done_after_the_copy_is_not_done_again_by_a_restored_file() {
    let panel = Panel::new();
    let store = panel.open(panel.folder.path());
    put(&store, &pay(1));
    panel.drain(&store);
    for n in 2..=11 {
        put(&store, &Pay { n, line: (n > 8).then(|| "line".to_owned()) });
    }
    let keys: Vec<_> = store.list(&Filter::all(), Page::first(50)).unwrap();
    let copy = panel.backup(&store);
    assert_eq!(panel.drain(&store).len(), 10, "the work of after the copy");
    drop(store);

    let back = beside(&panel.folder, "back.db");
    let held = Store::builder(&back).clock(panel.clock.clone()).restore(&copy).unwrap();
    assert_eq!((held.generation, held.parked, held.unknown_outcome), (1, 10, 0));
    assert_eq!(held.copied_at, panel.clock.now());
    let store = panel.open(&back);
    assert_eq!(store.restored().unwrap(), Some(held));
    assert!(panel.drain(&store).is_empty(), "a restored file has begun by itself");
    // What is new runs, and a repeat of what is held is a repeat.
    assert!(!store.enqueue(&pay(2)).unwrap().fresh);
    put(&store, &pay(50));
    assert_eq!(panel.drain(&store), [50]);
    assert_eq!(store.list(&Filter::parked_for("restored"), Page::first(50)).unwrap().len(), 10);

    let released = store.release_restored("Ada").unwrap();
    assert_eq!((released.jobs, released.schedules.len()), (10, 0));
    let ran = panel.drain(&store);
    assert_eq!(ran.len(), 10);
    let line: Vec<_> = ran.iter().filter(|n| **n > 8).collect();
    assert_eq!(line, [&9, &10, &11], "the order of a line");
    for job in keys {
        let now = store.job(job.id).unwrap().unwrap();
        assert_eq!((&now.key, &now.idempotency_key), (&job.key, &job.idempotency_key));
        assert_eq!((now.state, now.attempts), (State::Done, 1));
    }
    let verbs: Vec<_> = store.deeds(DeedPage { below: None, limit: 9 }).unwrap();
    let verbs: Vec<_> = verbs.iter().map(|deed| (deed.verb.as_str(), deed.jobs)).collect();
    assert_eq!(verbs, [("resume", 10), ("restore", 10)]);
}

#[test]
fn a_copy_put_in_place_by_hand_is_held_back_once_and_opens_as_it_was() {
    let panel = Panel::new();
    let store = panel.open(panel.folder.path());
    put(&store, &pay(100));
    panel.drain(&store);
    put(&store, &pay(1));
    let copy = panel.backup(&store);
    let back = beside(&panel.folder, "back.db");
    std::fs::copy(&copy, &back).unwrap();
    let store = panel.open(&back);
    assert_eq!(store.generation().unwrap(), 1);
    assert_eq!(store.find("pay", "1").unwrap().unwrap().parked_for.as_deref(), Some("restored"));
    assert_eq!(store.find("pay", "100").unwrap().unwrap().parked_for.as_deref(), Some("auth"), "it keeps its reason");
    // Single ones are released as from any other parking.
    assert_eq!(store.release(Filter::parked_for("restored").kind("pay"), "Ada").unwrap(), 1);
    drop(store);
    let store = panel.open(&back);
    assert_eq!(store.generation().unwrap(), 1, "opened again, it is no copy any more");
    assert_eq!(panel.drain(&store), [1]);
    assert_eq!(ask::<String>(&back, "PRAGMA journal_mode"), "wal");
    // A copy of the restored file is one generation further.
    let second = beside(&panel.folder, "second.db");
    assert_eq!(store.backup(&second).unwrap().generation, 1);
    assert_eq!(panel.open(&second).generation().unwrap(), 2);
}

#[test]
fn what_ran_when_the_copy_was_made_is_held_by_what_a_second_run_would_mean() {
    let panel = Panel::new();
    let path = panel.folder.path();
    let store = panel.open(path);
    for n in [1, 2] {
        put(&store, &pay(n));
    }
    put(&store, &Text { n: 3 });
    let mut child = Child::start("run", &[("DB", path.to_str().unwrap())]);
    for _ in 0..3 {
        child.expect("holds");
    }
    let stopping = store.find("pay", "2").unwrap().unwrap().id;
    store.cancel(stopping, "Ada").unwrap();
    let tokens = rows(path, "SELECT job_id, token FROM birkez_lease ORDER BY job_id");
    assert_eq!(tokens.len(), 3);
    let copy = panel.backup(&store);
    child.kill();

    let back = beside(&panel.folder, "back.db");
    let held = Store::builder(&back).clock(panel.clock.clone()).restore(&copy).unwrap();
    assert_eq!((held.parked, held.unknown_outcome), (1, 1));
    let store = panel.open(&back);
    assert_eq!(store.find("pay", "1").unwrap().unwrap().parked_for.as_deref(), Some("restored"));
    assert_eq!(store.job(stopping).unwrap().unwrap().state, State::Cancelled, "what was asked to stop");
    assert_eq!(store.finished().unwrap(), [("pay".to_owned(), State::Cancelled, 1)]);
    let text = store.find("text", "3").unwrap().unwrap();
    assert_eq!(text.parked_for.as_deref(), Some("unknown_outcome"));
    assert_eq!(store.attempts(text.id).unwrap()[0].failure.class, Class::UnknownOutcome);
    assert_eq!(ask::<u32>(&back, "SELECT count(*) FROM birkez_lease"), 0);
    assert_eq!(ask::<u32>(&back, "SELECT count(*) FROM birkez_runner WHERE ended_at IS NULL"), 0);
    let fenced = rows(&back, "SELECT id, claims - 1 FROM birkez_job ORDER BY id");
    assert_eq!(fenced, tokens, "each claim is above the token that was out");
    store.release_restored("Ada").unwrap();
    assert_eq!(panel.drain(&store), [1], "of unknown outcome is for a person to decide");
}

/// Daily at three; the occurrences become jobs.
fn nightly(store: &Store) -> Vec<u32> {
    let ran = Arc::new(std::sync::Mutex::new(Vec::new()));
    let noted = Arc::clone(&ran);
    let cron = Schedule::cron("nightly", "0 3 * * *").unwrap();
    let schedule = cron.zone("UTC").unwrap().catch_up(CatchUp::each());
    let runner = Runner::builder(store)
        .handle(move |job: Pay, _: &Context| {
            noted.lock().unwrap().push(job.n);
            Ok(job.n)
        })
        .schedule(schedule, |at: &birkez::Occurrence| {
            use chrono::Datelike;
            [pay(at.date().day())]
        });
    Drain::new(runner).unwrap().drain().unwrap();
    std::mem::take(&mut ran.lock().unwrap())
}

#[test]
fn a_restored_schedule_waits_for_its_release_and_records_what_it_left_out() {
    let panel = Panel::new();
    let store = panel.open(panel.folder.path());
    assert!(nightly(&store).is_empty());
    panel.clock.advance(Duration::from_secs(86_400));
    assert_eq!(nightly(&store), [31]);
    store.run_schedule("nightly", Some("2026-06-01T03:00:00"), "Ada").unwrap();
    let copy = panel.backup(&store);
    let copied_at = panel.clock.now();
    drop(store);

    let back = beside(&panel.folder, "back.db");
    panel.clock.advance(Duration::from_secs(2 * 86_400));
    let held = Store::builder(&back).clock(panel.clock.clone()).restore(&copy).unwrap();
    assert_eq!((held.schedules, held.requests), (1, 1));
    let store = panel.open(&back);
    assert!(nightly(&store).is_empty(), "what was asked for, or came due, may have run");
    let paused = &store.schedules().unwrap()[0];
    assert_eq!((paused.paused_at, paused.paused_by.as_deref()), (Some(copied_at), Some("restored")));
    assert!(store.schedule_requests("nightly", 9).unwrap()[0].done_at.is_some());

    assert_eq!(store.release_restored("Ada").unwrap().schedules, ["nightly"]);
    assert!(nightly(&store).is_empty());
    let [gap] = &store.missed("nightly", 9).unwrap()[..] else { panic!("one record") };
    assert_eq!((gap.reason.as_str(), gap.count), ("paused", 2));
    assert_eq!((gap.first.as_str(), gap.last.as_str()), ("2026-06-01T03:00:00", "2026-06-02T03:00:00"));
    panel.clock.advance(Duration::from_secs(86_400));
    assert_eq!(nightly(&store), [3], "it goes on");
}

#[test]
fn a_plain_insert_that_nobody_has_looked_at_is_held_back_too() {
    let panel = Panel::new();
    let store = panel.open(panel.folder.path());
    run_sql(panel.folder.path(), "INSERT INTO birkez_job (kind, key, payload) VALUES ('pay', '7', '{\"n\":7}')");
    let copy = panel.backup(&store);
    let store = panel.open(&copy);
    let held = store.find("pay", "7").unwrap().unwrap();
    assert_eq!((held.parked_for.as_deref(), held.created_at), (Some("restored"), Some(panel.clock.now())));
    store.release_restored("Ada").unwrap();
    assert_eq!(panel.drain(&store), [7]);
}

#[test]
fn a_backup_is_a_job_like_any_other() {
    let panel = Panel::new();
    let store = panel.open(panel.folder.path());
    put(&store, &pay(1));
    let target = beside(&panel.folder, "nightly.db");
    let to = target.clone();
    let backup = move |_: Pay, cx: &Context| -> anyhow::Result<u32> {
        cx.store().backup(&to)?;
        Ok(1)
    };
    Drain::new(Runner::builder(&store).handle(backup)).unwrap().drain().unwrap();
    // In its own copy it runs: what it has done is not in it.
    let held = Store::builder(beside(&panel.folder, "back.db")).restore(&target).unwrap();
    assert_eq!((held.parked, store.find("pay", "1").unwrap().unwrap().state), (1, State::Done));
}

#[test]
fn a_schedule_that_a_person_paused_stays_paused() {
    let panel = Panel::new();
    let store = panel.open(panel.folder.path());
    nightly(&store);
    store.pause_schedule("nightly", "Ada").unwrap();
    let copy = panel.backup(&store);
    let back = beside(&panel.folder, "back.db");
    let held = Store::builder(&back).clock(panel.clock.clone()).restore(&copy).unwrap();
    assert_eq!(held.schedules, 0);
    let store = panel.open(&back);
    assert!(store.release_restored("Ada").unwrap().schedules.is_empty());
    assert_eq!(store.schedules().unwrap()[0].paused_by.as_deref(), Some("Ada"));
}

#[test]
fn a_restore_replaces_nothing_and_takes_over_no_log() {
    let panel = Panel::new();
    let store = panel.open(panel.folder.path());
    let copy = panel.backup(&store);
    assert!(is_exists(&Store::restore(&copy, panel.folder.path()).unwrap_err()));
    let back = beside(&panel.folder, "back.db");
    for log in ["back.db-wal", "back.db-journal"] {
        let log = beside(&panel.folder, log);
        std::fs::write(&log, "of a file that was here").unwrap();
        assert!(is_exists(&Store::restore(&copy, &back).unwrap_err()), "{}", log.display());
        std::fs::remove_file(&log).unwrap();
    }
    assert!(!back.exists());
    std::fs::write(beside(&panel.folder, "text"), "no database, however long it may be").unwrap();
    let error = Store::restore(beside(&panel.folder, "text"), &back).unwrap_err();
    assert_eq!(error.code(), "NOT_A_DATABASE");
    assert!(Store::restore(beside(&panel.folder, "nothing"), &back).is_err() && !back.exists());
    let newer = beside(&panel.folder, "newer.db");
    std::fs::copy(&copy, &newer).unwrap();
    run_sql(&newer, "UPDATE birkez_version SET version = 99, oldest_writer = 99");
    assert_eq!(Store::restore(&newer, &back).unwrap_err().code(), "NEWER_SCHEMA");
    assert!(!back.exists() && !beside(&panel.folder, "back.db.part").exists());
    Store::restore(&copy, &back).unwrap();
    assert_eq!(look::<i64>(&copy, "SELECT copied_at IS NOT NULL FROM birkez_version"), 1, "the copy is as it was");
}

#[test]
fn a_copy_made_by_other_means_is_held_back_by_restore() {
    let panel = Panel::new();
    let store = panel.open(panel.folder.path());
    put(&store, &pay(1));
    let copy = beside(&panel.folder, "copy.db");
    run_sql(panel.folder.path(), &format!("VACUUM INTO '{}'", copy.display()));
    let back = beside(&panel.folder, "back.db");
    let held = Store::builder(&back).clock(panel.clock.clone()).restore(&copy).unwrap();
    assert_eq!((held.parked, held.copied_at), (1, panel.clock.now()), "as of the last that stands in it");
}

#[test]
fn a_copy_that_an_older_version_made_is_brought_up_to_date_and_held_back() {
    for version in 1..=4 {
        let copy = Path::new(env!("CARGO_MANIFEST_DIR")).join(format!("tests/fixtures/v{version}.db"));
        let folder = TempStore::new().unwrap();
        // SQLite makes files beside a copy in WAL mode, which has no place in the repository.
        let old = beside(&folder, "old.db");
        std::fs::copy(&copy, &old).unwrap();
        let open = look::<i64>(&old, "SELECT count(*) FROM birkez_job WHERE state = 0");
        let held = Store::restore(&old, folder.path()).unwrap();
        assert!(open > 0, "version {version} has nothing to hold back");
        assert_eq!((held.parked + held.unknown_outcome, held.generation), (open as u64, 1), "version {version}");
        let left = "SELECT count(*) FROM birkez_job WHERE state = 0";
        assert_eq!(ask::<u32>(folder.path(), left), 0, "version {version}");
    }
}

#[test]
fn whoever_opens_a_copy_at_the_same_moment_finds_one_new_generation() {
    let panel = Panel::new();
    let store = panel.open(panel.folder.path());
    for n in 0..50 {
        put(&store, &pay(n));
    }
    let copy = panel.backup(&store);
    let stores: Vec<Store> = std::thread::scope(|threads| {
        let all: Vec<_> = (0..4).map(|_| threads.spawn(|| panel.open(&copy))).collect();
        all.into_iter().map(|one| one.join().unwrap()).collect()
    });
    for store in &stores {
        assert_eq!(store.generation().unwrap(), 1);
    }
    assert_eq!(stores[0].deeds(DeedPage { below: None, limit: 9 }).unwrap().len(), 1);
}
