//! Opening a store. What can go wrong: an app's database changed beyond birkez's own tables; a race of first openings;
//! a neighbour's lock taken for a fault; a path that SQLite takes for something else than a file; a connection that the
//! host's hook has not seen. Files that are not fit have a file of their own.

mod common;

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use birkez::rusqlite::{self, Connection};
use birkez::testing::TempStore;
use birkez::{Context, Runner, State, Store};
use common::app::{Note, app_database, chain, note, rollback_database, use_it, what_the_app_sees};
use common::{Child, await_go, given, rounds, tell};

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("open-fresh") => open_again_and_again(),
        Some("relative-path") => open_a_relative_path(),
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

fn folder_of(path: &Path) -> &Path {
    path.parent().unwrap()
}

/// Names in the folder of `path`.
fn names_beside(path: &Path) -> BTreeSet<String> {
    let entries = fs::read_dir(folder_of(path)).unwrap();
    entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
}

#[test]
fn a_fresh_file_and_what_lies_beside_it_are_private() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    use_it(&store);
    let mode = |suffix: &str| {
        let mut name = folder.path().as_os_str().to_owned();
        name.push(suffix);
        fs::metadata(PathBuf::from(name)).unwrap().permissions().mode() & 0o777
    };
    assert_eq!([mode(""), mode("-wal"), mode("-shm"), mode("-birkez.d")], [0o600, 0o600, 0o600, 0o700]);
}

#[test]
fn an_app_database_gets_the_tables_and_is_touched_nowhere_else() {
    for encoding in ["UTF-8", "UTF-16le"] {
        let folder = TempStore::new().unwrap();
        app_database(folder.path(), encoding);
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o640)).unwrap();
        let before = what_the_app_sees(folder.path());
        let store = folder.open().unwrap();
        use_it(&store);
        drop(store);
        assert_eq!(what_the_app_sees(folder.path()), before, "{encoding}");
        let mode = fs::metadata(folder.path()).unwrap().permissions().mode() & 0o777;
        assert_eq!(mode, 0o640, "the app's own file keeps its mode");
    }
}

#[test]
fn the_longest_key_fits_whatever_the_encoding_of_the_apps_database() {
    for encoding in ["UTF-8", "UTF-16le"] {
        let folder = TempStore::new().unwrap();
        app_database(folder.path(), encoding);
        let store = folder.open().unwrap();
        for key in ["k".repeat(birkez::MAX_KEY), "é".repeat(birkez::MAX_KEY / 2)] {
            assert!(store.enqueue(&note(&key)).unwrap().fresh, "{encoding}");
        }
    }
}

#[test]
fn switching_to_wal_waits_for_a_reader_that_is_in_the_way() {
    let folder = TempStore::new().unwrap();
    rollback_database(folder.path());
    let reader = Connection::open(folder.path()).unwrap();
    reader.execute_batch("BEGIN; SELECT * FROM card;").unwrap();
    let open = |limit| folder.builder().switch_to_wal().busy_deadline(limit).open();

    let start = Instant::now();
    let error = open(Duration::from_millis(300)).unwrap_err();
    let took = start.elapsed();
    assert_eq!(error.code(), "BUSY", "{error}");
    assert!(error.is_retryable());
    assert!((300..2_000).contains(&took.as_millis()), "a deadline of 300 ms was kept in {took:?}");
    let mode: String = reader.query_row("PRAGMA journal_mode", [], |row| row.get(0)).unwrap();
    assert_eq!(mode, "delete", "nothing was switched under the reader");

    std::thread::scope(|scope| {
        let opening = scope.spawn(|| open(Duration::from_secs(30)));
        // Long enough for many tries in vain; whatever the reader's length, the outcome is the same.
        std::thread::sleep(Duration::from_millis(150));
        assert!(!opening.is_finished(), "it opened beside the reader");
        reader.execute_batch("COMMIT").unwrap();
        use_it(&opening.join().unwrap().unwrap());
    });
}

#[test]
fn a_writer_that_is_in_the_way_at_the_opening_is_waited_for_and_then_named() {
    let folder = TempStore::new().unwrap();
    app_database(folder.path(), "UTF-8");
    let writer = Connection::open(folder.path()).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let start = Instant::now();
    let error = folder.builder().busy_deadline(Duration::from_millis(300)).open().unwrap_err();
    let took = start.elapsed();
    assert_eq!(error.code(), "BUSY", "{}", chain(&error));
    assert!((300..2_000).contains(&took.as_millis()), "{took:?}");
    writer.execute_batch("COMMIT").unwrap();
    use_it(&folder.open().unwrap());
}

#[test]
fn an_empty_file_is_as_good_as_none() {
    let folder = TempStore::new().unwrap();
    fs::write(folder.path(), "").unwrap();
    use_it(&folder.open().unwrap());
}

const OPENERS: usize = 8;

/// In a child: opens the file of each round as soon as it may, and enqueues.
fn open_again_and_again() {
    let (folder, rounds) = (PathBuf::from(given("FOLDER")), given("ROUNDS").parse::<u32>().unwrap());
    for round in 0..rounds {
        let path = folder.join(format!("{round}.db"));
        tell("ready");
        await_go();
        // Only the last kind of file needs the switch, and no other may.
        // A disk that takes seconds for one sync is no matter of this test.
        let builder = Store::builder(&path).busy_deadline(common::PATIENCE);
        let opened = if round % 4 == 3 { builder.switch_to_wal() } else { builder }.open();
        let answer = opened.and_then(|store| Ok(store.enqueue(&note("the one"))?.fresh));
        match answer {
            Ok(fresh) => tell(format!("fresh={fresh}")),
            Err(error) => tell(chain(&error)),
        }
    }
}

#[test]
fn eight_processes_that_open_one_fresh_file_at_once_all_succeed() {
    let folder = TempStore::new().unwrap();
    let place = folder_of(folder.path());
    let rounds = rounds("BIRKEZ_OPEN_ROUNDS", 40);
    // In turn: no file, an empty one, an app's in WAL mode, an app's that must be switched first.
    for round in 0..rounds {
        let path = place.join(format!("{round}.db"));
        match round % 4 {
            1 => fs::write(&path, "").unwrap(),
            2 => app_database(&path, "UTF-8"),
            3 => rollback_database(&path),
            _ => {}
        }
    }
    let given = [("FOLDER", place.to_str().unwrap()), ("ROUNDS", &rounds.to_string())];
    let mut children: Vec<_> = (0..OPENERS).map(|_| Child::start("open-fresh", &given)).collect();
    for round in 0..rounds {
        children.iter_mut().for_each(|child| child.expect("ready"));
        children.iter_mut().for_each(Child::go);
        let answers: Vec<_> = children.iter_mut().map(|child| child.hear().unwrap()).collect();
        let fresh = answers.iter().filter(|answer| *answer == "fresh=true").count();
        let known = answers.iter().filter(|answer| *answer == "fresh=false").count();
        assert_eq!((fresh, known), (1, OPENERS - 1), "round {round}: {answers:?}");
    }
    children.into_iter().for_each(|child| drop(child.finish()));
}

/// In a child, which may change its folder: SQLite takes a relative path that begins with `file:` for a URI.
fn open_a_relative_path() {
    std::env::set_current_dir(given("FOLDER")).unwrap();
    let store = Store::open(given("NAME")).unwrap();
    use_it(&store);
    tell(store.path().display());
}

#[test]
fn a_path_that_looks_like_a_uri_is_a_file_name() {
    let folder = TempStore::new().unwrap();
    let place = fs::canonicalize(folder_of(folder.path())).unwrap();
    for name in ["file:x?mode=memory", "file:y?immutable=1&nolock=1#z", ":memory:"] {
        let mut child = Child::start("relative-path", &[("FOLDER", place.to_str().unwrap()), ("NAME", name)]);
        child.expect(place.join(name).to_str().unwrap());
        child.finish();
        assert!(fs::metadata(place.join(name)).unwrap().is_file());
        let store = Store::open(place.join(name)).unwrap();
        assert_eq!(store.find("note", "ran").unwrap().unwrap().state, State::Done, "{name}");
    }
}

#[test]
fn a_symlink_and_its_target_are_one_store() {
    let folder = TempStore::new().unwrap();
    let place = fs::canonicalize(folder_of(folder.path())).unwrap();
    fs::create_dir(place.join("elsewhere")).unwrap();
    let (link, by_folder) = (place.join("elsewhere/link.db"), place.join("door"));
    let target = folder.open().unwrap();
    std::os::unix::fs::symlink(folder.path(), &link).unwrap();
    std::os::unix::fs::symlink(&place, &by_folder).unwrap();
    let id = target.enqueue(&note("a")).unwrap().id;
    for path in [&link, &by_folder.join("test.db")] {
        let store = Store::open(path).unwrap();
        assert_eq!(store.path(), target.path());
        assert_eq!(store.enqueue(&note("a")).unwrap().id, id);
        use_once(&store, path);
    }
    assert_eq!(names_beside(&link), BTreeSet::from(["link.db".to_owned()]), "nothing lies beside the link");
}

/// Registers this store as an owner, which makes its lock file.
fn use_once(store: &Store, path: &Path) {
    assert_eq!(store.once(&note(path.to_str().unwrap()), |_cx| Ok(1)).unwrap(), 1);
}

#[test]
fn the_hosts_hook_runs_first_on_every_connection() {
    let folder = TempStore::new().unwrap();
    let calls = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&calls);
    let store = folder.builder().on_connect(move |connection| {
        count.fetch_add(1, Ordering::SeqCst);
        // Whatever birkez sets on its connections comes later.
        let trusted: bool = connection.query_row("PRAGMA trusted_schema", [], |row| row.get(0))?;
        assert!(trusted, "birkez was here first");
        connection.execute_batch("CREATE TEMP TABLE hooked (x)")
    });
    let store = store.open().unwrap();
    assert_eq!(calls.load(Ordering::SeqCst), 1);
    let hooked = |tx: &rusqlite::Transaction<'_>| Ok(tx.execute("INSERT INTO temp.hooked VALUES (1)", [])?);
    assert_eq!(store.write(hooked).unwrap(), 1);
    assert!(store.find("note", "none").unwrap().is_none());
    assert_eq!(calls.load(Ordering::SeqCst), 2, "the pool's connection");
    let runner = Runner::builder(&store).handle(move |_note: Note, cx: &Context| cx.commit(hooked)).start();
    let _ = store.enqueue(&note("a")).unwrap();
    common::wait_until("the job is done", || store.find("note", "a").unwrap().unwrap().state == State::Done);
    assert!(calls.load(Ordering::SeqCst) >= 4, "the beat's and the keeper's");
    runner.unwrap().stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_hook_that_fails_refuses_the_store_with_its_own_error() {
    let folder = TempStore::new().unwrap();
    let open = || folder.builder().on_connect(|connection| connection.execute_batch("PRAGMA key(")).open();
    let error = open().unwrap_err();
    assert_eq!(error.code(), "STORAGE");
    assert!(chain(&error).contains("incomplete input") || chain(&error).contains("syntax error"), "{}", chain(&error));
}

#[test]
fn the_engine_of_this_build_has_the_wal_reset_fix() {
    assert!(rusqlite::version_number() >= 3_051_003, "SQLite {}", rusqlite::version());
    let folder = TempStore::new().unwrap();
    use_it(&folder.builder().accept_engine().open().unwrap());
}
