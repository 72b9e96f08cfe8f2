//! Copies of a file in use, and what becomes of one that is put in its place. What can go wrong: a copy lacks jobs that were
//! acknowledged, or is half a file under a good name; it makes writers wait; a restored file does again what was done after
//! the copy, or forgets what it held.

mod common;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use birkez::calendar::CatchUp;
use birkez::rusqlite::{Connection, OpenFlags};
use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{
    Class, Context, DeedPage, Durability, Error, Filter, Job, Page, Runner, Schedule, State, Store, Verdicts,
};
use common::{Child, ask, given, rows, run_sql, tell, wait_until};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Pay {
    n: u32,
    #[serde(default)]
    line: Option<String>,
}

impl Job for Pay {
    const KIND: &'static str = "pay";
    type Output = u32;
    fn key(&self) -> String {
        self.n.to_string()
    }
    fn ordering_key(&self) -> Option<String> {
        self.line.clone()
    }
}

/// Runs once at most.
#[derive(Serialize, Deserialize)]
struct Text {
    n: u32,
}

impl Job for Text {
    const KIND: &'static str = "text";
    const AT_MOST_ONCE: bool = true;
    type Output = ();
    fn key(&self) -> String {
        self.n.to_string()
    }
}

fn pay(n: u32) -> Pay {
    Pay { n, line: None }
}

fn put<J: Job>(store: &Store, job: &J) -> i64 {
    store.enqueue(job).unwrap().id
}

fn beside(folder: &TempStore, name: &str) -> PathBuf {
    folder.path().with_file_name(name)
}

fn is_exists(error: &Error) -> bool {
    matches!(error, Error::Io { source, .. } if source.kind() == std::io::ErrorKind::AlreadyExists)
}

/// A copy read without a change to it.
fn look<T: birkez::rusqlite::types::FromSql>(copy: &Path, sql: &str) -> T {
    let copy = Connection::open_with_flags(copy, OpenFlags::SQLITE_OPEN_READ_ONLY).unwrap();
    copy.query_row(sql, [], |row| row.get(0)).unwrap_or_else(|error| panic!("{sql}: {error}"))
}

/// A ledger with rows that are wide enough for the copy to take a while.
fn fill(store: &Store, rows: u32) {
    let sql = format!(
        "CREATE TABLE ledger (n INTEGER PRIMARY KEY);
         CREATE TABLE album (picture BLOB);
         WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < {rows})
         INSERT INTO album SELECT zeroblob(3000) FROM n"
    );
    store.write(|tx| Ok(tx.execute_batch(&sql)?)).unwrap();
}

fn paying(store: &Store) -> Runner {
    Runner::builder(store)
        .workers(2)
        .handle(|job: Pay, cx: &Context| {
            cx.commit(|tx| {
                tx.execute("INSERT INTO ledger VALUES (?1)", [job.n])?;
                Ok(job.n)
            })
        })
        .start()
        .unwrap()
}

#[test]
fn a_backup_under_load_holds_every_job_acknowledged_before_and_each_with_its_effect() {
    let folder = TempStore::new().unwrap();
    let store = folder.builder().durability(Durability::Normal).open().unwrap();
    fill(&store, 4_000);
    let runner = paying(&store);
    let (acknowledged, over) = (AtomicU32::new(0), AtomicBool::new(false));
    std::thread::scope(|threads| {
        threads.spawn(|| {
            while !over.load(Ordering::Acquire) {
                let n = acknowledged.load(Ordering::Acquire) + 1;
                put(&store, &pay(n));
                acknowledged.store(n, Ordering::Release);
            }
        });
        for round in 0..4 {
            wait_until("the load has begun", || acknowledged.load(Ordering::Acquire) > 50 * (round + 1));
            let copy = beside(&folder, &format!("copy-{round}.db"));
            let before = acknowledged.load(Ordering::Acquire);
            let mut meanwhile = 0;
            let made = store.backup_with(&copy, |_, _| meanwhile = acknowledged.load(Ordering::Acquire)).unwrap();
            assert!(meanwhile > before, "nothing was written while the copy was made: this showed nothing");
            assert_eq!((made.path.as_path(), made.generation), (std::fs::canonicalize(&copy).unwrap().as_path(), 0));
            assert_eq!(made.bytes, std::fs::metadata(&copy).unwrap().len());
            assert_eq!(look::<String>(&copy, "PRAGMA integrity_check"), "ok");
            let kept = format!("SELECT count(*) FROM birkez_job WHERE CAST(key AS INTEGER) <= {before}");
            assert_eq!(look::<u32>(&copy, &kept), before, "an acknowledged job is missing");
            let done = "SELECT CAST(key AS INTEGER) FROM birkez_job WHERE state = 2";
            let apart = format!(
                "SELECT (SELECT count(*) FROM ({done} EXCEPT SELECT n FROM ledger))
                        + (SELECT count(*) FROM (SELECT n FROM ledger EXCEPT {done}))"
            );
            assert_eq!(look::<u32>(&copy, &apart), 0, "effects and done marks differ");
            assert_eq!(look::<u32>(&copy, "SELECT count(*) FROM album"), 4_000, "the app's own rows");
            assert_eq!(look::<i64>(&copy, "SELECT copied_at FROM birkez_version"), made.copied_at.timestamp_millis());
        }
        over.store(true, Ordering::Release);
    });
    runner.stop(Duration::from_secs(10)).unwrap();
    assert_eq!(ask::<Option<i64>>(folder.path(), "SELECT copied_at FROM birkez_version"), None, "the file is no copy");
}

#[test]
fn writers_do_not_wait_for_a_backup() {
    let folder = TempStore::new().unwrap();
    let store = folder.builder().durability(Durability::Normal).open().unwrap();
    fill(&store, 8_000);
    let (made, ended) = (AtomicU32::new(0), AtomicBool::new(false));
    let longest = std::thread::scope(|threads| {
        let writer = threads.spawn(|| {
            let mut all = Vec::new();
            while !ended.load(Ordering::Acquire) {
                let start = Instant::now();
                put(&store, &pay(made.fetch_add(1, Ordering::AcqRel)));
                all.push(start.elapsed());
            }
            all.sort();
            all
        });
        let began = Instant::now();
        // Each report comes in the middle of the copy: what is written from one to the next waited for none of it.
        let mut between = Vec::new();
        store
            .backup_with(beside(&folder, "copy.db"), |_, _| {
                let seen = made.load(Ordering::Acquire);
                wait_until("a write while the copy is being made", || made.load(Ordering::Acquire) > seen + 1);
                between.push(seen);
            })
            .unwrap();
        ended.store(true, Ordering::Release);
        assert!(between.len() > 10, "{} reports in {:?}: this showed nothing", between.len(), began.elapsed());
        writer.join().unwrap()
    });
    let typical = longest[longest.len() * 9 / 10];
    assert!(typical < Duration::from_millis(50), "of {} writes a tenth took over {typical:?}", longest.len());
}

#[test]
fn a_copy_is_one_private_file_that_any_sqlite_reads() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    put(&store, &pay(1));
    let copy = beside(&folder, "copy.db");
    store.backup(&copy).unwrap();
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        assert_eq!(std::fs::metadata(&copy).unwrap().permissions().mode() & 0o777, 0o600);
    }
    assert_eq!(look::<String>(&copy, "PRAGMA journal_mode"), "delete");
    assert_eq!(look::<u32>(&copy, "SELECT count(*) FROM birkez_job WHERE state = 0"), 1);
    let names = std::fs::read_dir(copy.parent().unwrap()).unwrap().map(|entry| entry.unwrap().file_name());
    let beside_it: Vec<_> = names.filter(|name| name.to_string_lossy().starts_with("copy.db")).collect();
    assert_eq!(beside_it, ["copy.db"]);
}

#[test]
fn a_backup_replaces_nothing_and_says_so() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let target = beside(&folder, "copy.db");
    std::fs::write(&target, "somebody's").unwrap();
    let error = store.backup(&target).unwrap_err();
    assert!(is_exists(&error), "{error:?}");
    assert_eq!(std::fs::read(&target).unwrap(), b"somebody's");
    assert!(is_exists(&store.backup(folder.path()).unwrap_err()), "a backup onto the file itself");
    let nowhere = store.backup(beside(&folder, "no/folder/copy.db")).unwrap_err();
    assert_eq!(nowhere.code(), "IO");
    // What comes to the place while the copy is made stays, too.
    let late = beside(&folder, "late.db");
    let error = store.backup_with(&late, |_, _| std::fs::write(&late, "somebody's").unwrap()).unwrap_err();
    assert!(is_exists(&error), "{error:?}");
    assert_eq!(std::fs::read(&late).unwrap(), b"somebody's");
    assert!(!beside(&folder, "late.db.part").exists(), "its beginnings were left behind");
}

#[test]
fn two_backups_to_one_path_make_one() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let target = beside(&folder, "copy.db");
    let mut second = None;
    store
        .backup_with(&target, |_, _| {
            second.get_or_insert_with(|| store.backup(&target).unwrap_err().code());
        })
        .unwrap();
    assert_eq!(second, Some("BUSY"));
    assert_eq!(look::<String>(&target, "PRAGMA integrity_check"), "ok");
}

/// A child that makes one backup after another until it is killed.
fn backing_up() {
    let store = Store::open(given("DB")).unwrap();
    let target = PathBuf::from(given("COPY"));
    tell("ready");
    loop {
        store.backup(&target).unwrap();
        std::fs::remove_file(&target).unwrap();
    }
}

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("back up") => backing_up(),
        Some("run") => running(),
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

#[test]
fn a_backup_killed_in_the_middle_leaves_no_half_copy_under_its_name() {
    let folder = TempStore::new().unwrap();
    let store = folder.builder().durability(Durability::Normal).open().unwrap();
    fill(&store, 1_500);
    let copy = beside(&folder, "copy.db");
    let mut broken_off = 0;
    for round in 0..8 {
        let variables = [("DB", folder.path().to_str().unwrap()), ("COPY", copy.to_str().unwrap())];
        let mut child = Child::start("back up", &variables);
        child.expect("ready");
        std::thread::sleep(Duration::from_millis(7 * round + 3));
        child.kill();
        broken_off += u32::from(beside(&folder, "copy.db.part").exists());
        if copy.exists() {
            assert_eq!(look::<String>(&copy, "PRAGMA integrity_check"), "ok");
            assert_eq!(look::<u32>(&copy, "SELECT count(*) FROM album"), 1_500);
            std::fs::remove_file(&copy).unwrap();
        }
    }
    assert!(broken_off > 0, "no kill has met a backup in the middle: this showed nothing");
    // The next one clears away what was left.
    store.backup(&copy).unwrap();
    assert!(!beside(&folder, "copy.db.part").exists());
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
    store.run_schedule("nightly", Some("2026-06-01T03:00:00")).unwrap();
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
