//! Files that are no fit place for a store. What can go wrong: one is opened all the same, is changed by the attempt,
//! or is refused without naming the file, the cause and what to do.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use birkez::rusqlite::Connection;
use birkez::testing::TempStore;
use birkez::{Error, Store};
use common::app::{app_database, chain, note, rollback_database, use_it, what_the_app_sees};

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap()
}

/// Names in the folder of `path`.
fn names_beside(path: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder_of(path)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

/// Opens `path` in vain: the error has this code and names the file and all of `words`, and everything is as it was.
#[track_caller]
fn assert_refused(path: &Path, code: &str, words: &[&str], open: impl FnOnce() -> birkez::Result<Store>) -> Error {
    let before = (fs::read(path).ok(), names_beside(path));
    let error = open().expect_err("the file is not fit");
    // Read when no connection is left: reading a file drops the locks that this process has on it.
    assert!((fs::read(path).ok(), names_beside(path)) == before, "{} was changed", path.display());
    assert_eq!(error.code(), code, "{error}");
    let text = chain(&error);
    for word in words.iter().chain([&path.to_str().unwrap()]) {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    error
}

#[test]
fn a_file_in_another_journal_mode_is_refused_until_either_cure_is_taken() {
    let cures: [fn(&Path) -> birkez::Result<Store>; 2] = [
        |path| Store::builder(path).switch_to_wal().open(),
        |path| {
            Connection::open(path).unwrap().execute_batch("PRAGMA journal_mode = WAL").unwrap();
            Store::open(path)
        },
    ];
    for cure in cures {
        let folder = TempStore::new().unwrap();
        let path = folder.path();
        rollback_database(path);
        let words = ["`delete`", "switch_to_wal()", "PRAGMA journal_mode = WAL"];
        assert_refused(path, "NOT_WAL", &words, || Store::open(path));
        use_it(&cure(path).unwrap());
        let name: String =
            Connection::open(path).unwrap().query_row("SELECT name FROM card", [], |row| row.get(0)).unwrap();
        assert_eq!(name, "bonus");
        // It stays in WAL mode, so that from now on nothing needs to be said.
        drop(Store::open(path).unwrap());
    }
}

#[test]
fn what_is_not_a_database_file_is_refused_and_stays_as_it_was() {
    let folder = TempStore::new().unwrap();
    let beside = |name: &str| folder_of(folder.path()).join(name);

    let directory = beside("directory.db");
    fs::create_dir(&directory).unwrap();
    assert_refused(&directory, "NOT_A_FILE", &["not a regular file", "give"], || Store::open(&directory));
    let device = Path::new("/dev/null");
    assert_refused(device, "NOT_A_FILE", &["not a regular file"], || Store::open(device));

    let text = beside("text.db");
    fs::write(&text, "Dear birkez,\n".repeat(1_000)).unwrap();
    assert_refused(&text, "NOT_A_DATABASE", &["not an SQLite database", "give"], || Store::open(&text));

    let nowhere = beside("no/such/folder.db");
    let error = Store::open(&nowhere).unwrap_err();
    assert_eq!(error.code(), "IO");
    assert!(chain(&error).contains("folder does not exist") && chain(&error).contains(nowhere.to_str().unwrap()));
    assert!(!beside("no").exists());

    let dangling = beside("dangling.db");
    std::os::unix::fs::symlink(beside("gone.db"), &dangling).unwrap();
    assert_refused(&dangling, "IO", &["No such file"], || Store::open(&dangling));
    assert_eq!(Store::open("").unwrap_err().code(), "IO");
}

/// A store's own file, closed, with its bytes changed by `harm`.
fn harmed(folder: &TempStore, harm: impl FnOnce(&mut Vec<u8>)) -> &Path {
    use_it(&folder.open().unwrap());
    let mut bytes = fs::read(folder.path()).unwrap();
    harm(&mut bytes);
    fs::write(folder.path(), bytes).unwrap();
    folder.path()
}

#[test]
fn a_damaged_file_is_refused_and_never_repaired() {
    let salvage = ["damaged", "backup", ".recover"];
    let folder = TempStore::new().unwrap();
    let path = harmed(&folder, |bytes| bytes[..16].fill(0));
    assert_refused(path, "NOT_A_DATABASE", &[], || Store::open(path));

    let folder = TempStore::new().unwrap();
    let path = harmed(&folder, |bytes| bytes.truncate(bytes.len() / 2));
    assert_refused(path, "DAMAGED", &salvage, || Store::open(path));

    // In a file that birkez has made the second page maps pages to their parents; the third is the version's.
    let folder = TempStore::new().unwrap();
    let path = harmed(&folder, |bytes| bytes[8192..12288].fill(0xA5));
    assert_refused(path, "DAMAGED", &salvage, || Store::open(path));

    let folder = TempStore::new().unwrap();
    let path = harmed(&folder, |bytes| bytes[100..108].fill(0xFF));
    assert_refused(path, "DAMAGED", &salvage, || Store::open(path));
}

/// Damage that the opening does not meet is met by the first call that reads there.
#[test]
fn damage_that_is_found_later_is_named_too() {
    let folder = TempStore::new().unwrap();
    let path = harmed(&folder, |bytes| {
        let pages = bytes.len() / 4096;
        // All but the schema and the version.
        (2..pages).for_each(|page| bytes[page * 4096..page * 4096 + 64].fill(0xA5));
    });
    let before = fs::read(path).unwrap();
    let result = Store::open(path).and_then(|store| store.enqueue(&note("a")).map(|_| ()));
    let error = result.unwrap_err();
    assert_eq!(error.code(), "DAMAGED", "{}", chain(&error));
    assert!(error.to_string().contains(path.to_str().unwrap()), "{error}");
    assert!(fs::read(path).unwrap() == before);
}

#[test]
fn a_table_of_the_apps_with_one_of_birkezs_names_is_refused() {
    let foreign = [
        ("birkez_job", "CREATE TABLE birkez_job (id INTEGER PRIMARY KEY, title TEXT)"),
        ("birkez_version", "CREATE TABLE birkez_version (major TEXT)"),
        ("birkez_jobs", "CREATE VIEW birkez_jobs AS SELECT 1 AS id"),
    ];
    for (table, sql) in foreign {
        let folder = TempStore::new().unwrap();
        app_database(folder.path(), "UTF-8");
        Connection::open(folder.path()).unwrap().execute_batch(sql).unwrap();
        let before = what_the_app_sees(folder.path());
        let words = [table, "not birkez's", "move it"];
        assert_refused(folder.path(), "FOREIGN_SCHEMA", &words, || folder.open());
        assert_eq!(what_the_app_sees(folder.path()), before);
    }
}

/// Makes `path` so that nobody writes to it, also not root, until this is dropped. `None` where that cannot be done.
struct Frozen(PathBuf, u32);

impl Frozen {
    fn new(path: &Path) -> Option<Frozen> {
        let mode = fs::metadata(path).unwrap().permissions().mode();
        let frozen = Frozen(path.to_owned(), mode);
        fs::set_permissions(path, fs::Permissions::from_mode(mode & !0o222)).unwrap();
        let is_frozen = |path: &Path| match path.is_dir() {
            true => fs::write(path.join("probe"), "").map(|()| fs::remove_file(path.join("probe"))).is_err(),
            false => fs::File::options().append(true).open(path).is_err(),
        };
        if !is_frozen(path) {
            let _ = std::process::Command::new("chattr").arg("+i").arg(path).output();
        }
        if is_frozen(path) {
            return Some(frozen);
        }
        eprintln!("skipped: modes do not bind this user, and chattr +i is not to be had for {}", path.display());
        None
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        let _ = std::process::Command::new("chattr").arg("-i").arg(&self.0).output();
        let _ = fs::set_permissions(&self.0, fs::Permissions::from_mode(self.1));
    }
}

#[test]
fn a_folder_that_cannot_be_written_is_named_for_a_fresh_file_and_for_an_old_one() {
    let folder = TempStore::new().unwrap();
    let words = ["cannot be written", "write access"];
    if let Some(_frozen) = Frozen::new(folder_of(folder.path())) {
        assert_refused(folder.path(), "UNWRITABLE", &words, || folder.open());
    }
    use_it(&folder.open().unwrap());
    if let Some(_frozen) = Frozen::new(folder_of(folder.path())) {
        assert_refused(folder.path(), "UNWRITABLE", &words, || folder.open());
    }
    use_it_again(&folder);
}

#[test]
fn a_file_that_cannot_be_written_is_refused_at_the_opening() {
    let folder = TempStore::new().unwrap();
    use_it(&folder.open().unwrap());
    if let Some(_frozen) = Frozen::new(folder.path()) {
        let words = ["cannot be written", "write access"];
        assert_refused(folder.path(), "UNWRITABLE", &words, || folder.open());
    }
    use_it_again(&folder);
}

fn use_it_again(folder: &TempStore) {
    let store = folder.open().unwrap();
    assert!(!store.enqueue(&note("ran")).unwrap().fresh);
    assert!(store.enqueue(&note("later")).unwrap().fresh);
}
