//! Copies of a file in use. What can go wrong: a copy lacks jobs that were acknowledged, or is half a file under a good name;
//! it takes the place of something; it makes writers wait.

mod common;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

use birkez::testing::TempStore;
use birkez::{Context, Durability, Runner, Store};
use common::copies::{Pay, beside, is_exists, look, pay, put};
use common::{Child, ask, given, tell, wait_until};

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
