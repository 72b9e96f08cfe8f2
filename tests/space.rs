//! The file stays small. What can go wrong: what was removed takes up room for ever; the log grows behind a reader and
//! nobody says so; cleaning needs room that is not there; what was removed can still be read in the file.

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;

use birkez::rusqlite::Connection;
use birkez::testing::TempStore;
use birkez::{Keep, Kept, Retention, Store};
use common::{ask, run_sql};

fn gone_at_once() -> Retention {
    Retention::keep_all().done(Kept::default().key(Keep::age(std::time::Duration::ZERO)))
}

/// Done jobs of two kilobytes each.
fn fill(store: &Store, from: u32, jobs: u32) {
    store
        .write(|tx| {
            Ok(tx.execute_batch(&format!(
                "WITH RECURSIVE n (i) AS (SELECT {from} UNION ALL SELECT i + 1 FROM n WHERE i < {from} + {jobs} - 1)
                 INSERT INTO birkez_job (kind, key, payload, state, gate, run_at, created_at, finished_at, result)
                 SELECT 'big', 'f' || i, '{{\"secret\":\"' || printf('%.*c', 2000, 's') || '\"}}', 2, NULL, 1, 1, 1750000000000, '1'
                 FROM n;
                 INSERT INTO birkez_count VALUES ('big', 2, {jobs}) ON CONFLICT DO UPDATE SET n = n + {jobs};"
            ))?)
        })
        .unwrap();
}

fn size(path: &Path) -> u64 {
    fs::metadata(path).map_or(0, |file| file.len())
}

fn log_of(path: &Path) -> PathBuf {
    PathBuf::from(format!("{}-wal", path.display()))
}

#[test]
fn a_file_that_birkez_made_shrinks_with_what_is_removed() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    assert_eq!(ask::<i64>(folder.path(), "PRAGMA auto_vacuum"), 2);
    fill(&store, 0, 2_500);
    run_sql(folder.path(), "PRAGMA wal_checkpoint(TRUNCATE)");
    let before = size(folder.path());
    let report = store.prune(&gone_at_once()).unwrap();
    assert_eq!(report.keys, 2_500);
    assert!(report.pages_given_back > 800 && report.to_string().contains("pages given back"), "{report}");
    run_sql(folder.path(), "PRAGMA wal_checkpoint(TRUNCATE)");
    let after = size(folder.path());
    assert!(before > 5 << 20 && after < 3 << 20, "{before} to {after}");
    let compacted = store.compact().unwrap();
    assert_eq!((store.free_bytes().unwrap(), compacted.after <= compacted.before), (0, true), "{compacted:?}");
    assert_eq!(ask::<String>(folder.path(), "PRAGMA integrity_check"), "ok");
}

#[test]
fn room_that_was_freed_in_an_apps_file_is_used_again_and_compacting_gives_it_back() {
    let folder = TempStore::new().unwrap();
    run_sql(folder.path(), "PRAGMA journal_mode = WAL; CREATE TABLE mine (text TEXT); INSERT INTO mine VALUES ('x')");
    let store = folder.open().unwrap();
    assert_eq!(ask::<i64>(folder.path(), "PRAGMA auto_vacuum"), 0, "the app's file is as the app made it");
    fill(&store, 0, 1_500);
    let pages = ask::<i64>(folder.path(), "PRAGMA page_count");
    assert_eq!(store.prune(&gone_at_once()).unwrap().keys, 1_500);
    assert!(store.free_bytes().unwrap() > 3 << 20);
    fill(&store, 1_500, 1_500);
    assert!(ask::<i64>(folder.path(), "PRAGMA page_count") < pages + pages / 20, "the room is used again");
    store.prune(&gone_at_once()).unwrap();
    assert!(store.compact_needs().unwrap() > 0);
    let compacted = store.compact().unwrap();
    assert!(compacted.after < compacted.before / 10, "{compacted:?}");
    assert_eq!(ask::<String>(folder.path(), "SELECT text FROM mine"), "x");
    assert_eq!(ask::<i64>(folder.path(), "PRAGMA auto_vacuum"), 0);
}

#[test]
fn what_was_removed_from_a_file_of_birkez_alone_cannot_be_read_in_it() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    fill(&store, 0, 50);
    run_sql(folder.path(), "PRAGMA wal_checkpoint(TRUNCATE)");
    let holds = || String::from_utf8_lossy(&fs::read(folder.path()).unwrap()).contains("ssssssss");
    assert!(holds());
    store.prune(&Retention::keep_all().done(Kept::default().payload(Keep::newest(0)))).unwrap();
    run_sql(folder.path(), "PRAGMA wal_checkpoint(TRUNCATE)");
    assert!(!holds());
}

#[test]
fn a_log_behind_a_reader_is_named_and_cut_once_the_reader_is_gone() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    fill(&store, 0, 10);
    let reader = Connection::open(folder.path()).unwrap();
    reader.execute_batch("BEGIN; SELECT count(*) FROM birkez_job;").unwrap();
    fill(&store, 10, 6_000);
    let report = store.upkeep().unwrap();
    assert!(report.wal.bytes > 8 << 20 && report.wal.pinned_pages > 1_000, "{report:?}");
    assert!(report.to_string().contains("a reader pins"), "{report}");
    reader.execute_batch("COMMIT").unwrap();
    let report = store.upkeep().unwrap();
    assert_eq!(report.wal.pinned_pages, 0, "{report}");
    assert!(size(&log_of(folder.path())) <= 4 << 20, "{} bytes of log", size(&log_of(folder.path())));
}

#[test]
fn on_a_disk_that_is_nearly_full_old_jobs_still_go() {
    let folder = TempStore::new().unwrap();
    let disk = folder.path().with_file_name("disk");
    fs::create_dir(&disk).unwrap();
    let mount = Command::new("mount").args(["-t", "tmpfs", "-o", "size=24m", "tmpfs"]).arg(&disk).output();
    if !mount.as_ref().is_ok_and(|mount| mount.status.success()) {
        eprintln!("skipped: no small disk can be mounted here ({mount:?})");
        return;
    }
    let outcome = std::panic::catch_unwind(|| {
        let store = Store::open(disk.join("panel.db")).unwrap();
        for part in 0..10 {
            fill(&store, part * 300, 300);
            run_sql(store.path(), "PRAGMA wal_checkpoint(TRUNCATE)");
        }
        let mut filler = File::create(disk.join("filler")).unwrap();
        while filler.write_all(&[b'f'; 4096]).is_ok() {}
        let full = filler.metadata().unwrap().len();
        filler.set_len(full - (256 << 10)).unwrap();
        let report = store.prune(&gone_at_once()).unwrap();
        assert_eq!(report.keys, 3_000, "{report}");
        assert!(report.pages_given_back > 0, "{report}");
    });
    let _ = Command::new("umount").arg("-l").arg(&disk).output();
    assert!(outcome.is_ok());
}
