//! The file over the versions of the program. What can go wrong: an upgraded file differs from a fresh one, or loses
//! what people were promised; a program writes to a file that only newer ones may write to, or refuses one that it could
//! use; two programs of different versions fight over a file.
//!
//! Each of `fixtures/` was written once, by `BIRKEZ_WRITE_FIXTURE=1 cargo test --test schema` of its version, and is not
//! rewritten: it stands for the files that are out there. A new version of the schema adds a fixture of its own.

mod common;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use birkez::calendar::CatchUp;
use birkez::rusqlite::Connection;
use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{Class, Context, Job, Overlap, RetryPolicy, Runner, Schedule, Standing, State, Store, Verdicts};
use common::app::note;
use common::{Child, ask, given, rows, run_sql, tell, wait_until};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Statement {
    card: String,
    minor: i64,
}

impl Job for Statement {
    const KIND: &'static str = "statement";
    type Output = i64;
    fn key(&self) -> String {
        self.card.clone()
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().jitter(0.0)
    }
    fn ordering_key(&self) -> Option<String> {
        self.card.starts_with("line/").then(|| "line".to_owned())
    }
}

fn statement(card: &str) -> Statement {
    Statement { card: card.to_owned(), minor: 150 }
}

/// What the handler of the program that wrote the fixture did; the key says it.
fn as_the_key_says(job: Statement, cx: &Context) -> anyhow::Result<i64> {
    match job.card.as_str() {
        "dead" => Err(anyhow::anyhow!("no such card")).permanent(),
        "parked" => Err(anyhow::anyhow!("401")).park("auth:bank"),
        "line/1" => Err(anyhow::anyhow!("not yet")).park("line"),
        "stepped" => {
            cx.step("charge", || Ok(7))?;
            cx.progress(1, 2, "charged")?;
            anyhow::bail!("no route")
        }
        "failed" => anyhow::bail!("no route"),
        "held" => {
            tell("held");
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        _ => Ok(job.minor * 2),
    }
}

fn nightly() -> Schedule {
    Schedule::cron("nightly", "0 3 * * *")
        .unwrap()
        .zone("Europe/Istanbul")
        .unwrap()
        .catch_up(CatchUp::each())
        .overlap(Overlap::Allow)
}

/// The moment at which the fixture ends: the nightly occurrence of 31 May was made a second ago.
fn end_of_the_fixture() -> Arc<ManualClock> {
    ManualClock::at("2026-05-31T00:00:01Z".parse().unwrap())
}

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("hold") => {
            let store = Store::builder(given("FILE")).clock(end_of_the_fixture()).lease(LEASE).open().unwrap();
            Drain::new(Runner::builder(&store).handle(as_the_key_says)).unwrap().drain().unwrap();
        }
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

/// Short, since a machine that has no boot id finds the fixture's process gone by its beat.
const LEASE: Duration = Duration::from_millis(200);

/// Writes a file with jobs in all states, leases, attempts, runners, schedules and occurrences.
fn write_fixture(path: &Path) {
    let clock = ManualClock::at("2026-05-30T12:00:00Z".parse().unwrap());
    let store = Store::builder(path).clock(clock.clone()).lease(LEASE).open().unwrap();
    let broken = Schedule::cron("broken", "0 * * * *").unwrap().zone("UTC").unwrap();
    let runner = Runner::builder(&store)
        .handle(as_the_key_says)
        .schedule(nightly(), |at| vec![statement(&format!("night/{}", at.date()))])
        .try_schedule(broken, |_| Err::<Vec<Statement>, _>(anyhow::anyhow!("no cards file")));
    let drain = Drain::new(runner).unwrap();
    store.enqueue_all(&["done", "dead", "parked", "retired", "cancelled"].map(statement)).unwrap();
    drain.drain().unwrap();
    clock.set(end_of_the_fixture().now());
    let _ = store.enqueue_all(&["failed", "stepped", "line/1", "line/2"].map(statement)).unwrap();
    drain.drain().unwrap();
    assert_eq!(store.once(&statement("once"), |_cx| Ok(7)).unwrap(), 7);
    assert!(store.once(&statement("once-failed"), |_cx| anyhow::bail!("not today")).is_err());
    drop((drain, store));
    run_sql(
        path,
        r#"UPDATE birkez_job SET payload = NULL, result = NULL, result_note = 'retired' WHERE key = 'retired';
           UPDATE birkez_job SET state = 4, result = NULL WHERE key = 'cancelled';
           INSERT INTO birkez_job (kind, key, payload) VALUES ('statement', 'held', '{"card":"held","minor":150}');"#,
    );
    let mut holder = Child::start("hold", &[("FILE", path)]);
    holder.expect("held");
    holder.kill();
    run_sql(
        path,
        r#"INSERT INTO birkez_job (kind, key, payload) VALUES ('statement', 'script', '{ "minor": 150, "card": "script" }');
           UPDATE birkez_runner SET host = 'host', program = 'fixture', boot = 'another boot', pid = 1;
           VACUUM;
           PRAGMA wal_checkpoint(TRUNCATE);"#,
    );
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures")
}

/// Copies of the files that each version has left, with their version.
fn old_files() -> Vec<(i64, TempStore)> {
    if std::env::var_os("BIRKEZ_WRITE_FIXTURE").is_some() {
        static ONCE: std::sync::Once = std::sync::Once::new();
        ONCE.call_once(|| {
            let folder = TempStore::new().unwrap();
            write_fixture(folder.path());
            let version: i64 = ask(folder.path(), "SELECT version FROM birkez_version");
            fs::write(fixtures().join(format!("v{version}.db")), fs::read(folder.path()).unwrap()).unwrap();
        });
    }
    let copy = |version: i64| {
        let folder = TempStore::new().unwrap();
        fs::copy(fixtures().join(format!("v{version}.db")), folder.path()).ok()?;
        Some((version, folder))
    };
    let all: Vec<_> = (1..).map_while(copy).collect();
    assert!(!all.is_empty(), "tests/fixtures/v1.db is missing");
    all
}

/// The schema as SQLite has it, without comments and line ends.
fn schema_of(path: &Path) -> Vec<(String, String)> {
    let connection = Connection::open(path).unwrap();
    let mut ask = connection.prepare("SELECT type || ' ' || name, sql FROM sqlite_schema ORDER BY name").unwrap();
    let plain = |sql: Option<String>| {
        let sql = sql.unwrap_or_default();
        let lines: Vec<_> = sql.lines().map(|line| line.split("--").next().unwrap().trim()).collect();
        let line = lines.join(" ").split_whitespace().collect::<Vec<_>>().join(" ");
        line.replace("( ", "(").replace(" )", ")").replace(" ,", ",")
    };
    let rows = ask.query_map([], |row| Ok((row.get(0)?, plain(row.get(1)?)))).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

#[test]
fn an_upgraded_file_has_the_schema_of_a_fresh_one() {
    let fresh = TempStore::new().unwrap();
    drop(fresh.open().unwrap());
    for (version, old) in old_files() {
        assert_eq!(ask::<i64>(old.path(), "SELECT version FROM birkez_version"), version, "which file is it");
        drop(old.open().unwrap());
        let (old_schema, fresh_schema) = (schema_of(old.path()), schema_of(fresh.path()));
        let names = |schema: &[(String, String)]| schema.iter().map(|(name, _)| name.clone()).collect::<Vec<_>>();
        assert_eq!(names(&old_schema), names(&fresh_schema), "version {version}");
        for ((name, old), (_, fresh)) in old_schema.iter().zip(&fresh_schema) {
            assert_eq!(old, fresh, "version {version}: {name}");
        }
        let versions = "SELECT version, oldest_writer FROM birkez_version";
        assert_eq!(rows(old.path(), versions), rows(fresh.path(), versions));
        assert_eq!(ask::<String>(old.path(), "PRAGMA integrity_check"), "ok");
    }
}

#[test]
fn the_tables_can_be_read_by_an_old_sqlite() {
    let fresh = TempStore::new().unwrap();
    drop(fresh.open().unwrap());
    assert_eq!(ask::<i64>(fresh.path(), "SELECT count(*) FROM pragma_table_list WHERE strict"), 0);
}

#[test]
fn keys_outputs_and_dead_letters_survive_every_upgrade() {
    for (version, old) in old_files() {
        let store = old.builder().clock(end_of_the_fixture()).open().unwrap();
        let met = |card: &str| {
            let met = store.enqueue(&statement(card)).unwrap();
            assert!(!met.fresh && met.compared, "version {version}, {card}: {met:?}");
            met.standing
        };
        assert!(matches!(met("done"), Standing::Done(Ok(300))));
        assert!(matches!(met("night/2026-05-31"), Standing::Done(Ok(300))));
        assert!(matches!(met("once"), Standing::Done(Ok(7))));
        assert!(matches!(met("retired"), Standing::Done(Err(error)) if error.code() == "RESULT_GONE"));
        assert!(matches!(met("cancelled"), Standing::Cancelled));
        assert!(matches!(met("parked"), Standing::Parked { reason } if reason == "auth:bank"));
        assert!(matches!(met("held"), Standing::Running));
        assert!(matches!(met("script"), Standing::Waiting { attempts: 0, .. }));
        assert!(matches!(met("failed"), Standing::Waiting { attempts: 1, .. }));
        let Standing::Dead(failure) = met("dead") else { panic!("it is dead") };
        assert_eq!((failure.class, failure.text.as_str()), (Class::Permanent, "no such card"));
        let dead = store.find("statement", "dead").unwrap().unwrap();
        assert_eq!(store.attempts(dead.id).unwrap()[0].failure, failure);
        for card in ["done", "dead", "parked", "retired", "failed", "script"] {
            let error = store.enqueue(&Statement { minor: 151, ..statement(card) }).unwrap_err();
            assert_eq!(error.code(), "KEY_REUSED", "version {version}, {card}");
        }
        let counted = store.finished().unwrap();
        assert!(counted.contains(&("statement".into(), State::Dead, 1)), "{counted:?}");
    }
}

#[test]
fn schedules_and_jobs_of_an_old_file_go_on_where_they_stood() {
    for (version, old) in old_files() {
        let clock = end_of_the_fixture();
        let store = old.builder().clock(clock.clone()).lease(LEASE).open().unwrap();
        let [broken, marked] = &store.schedules().unwrap()[..] else { panic!("two schedules") };
        assert_eq!((broken.name.as_str(), broken.error.as_deref()), ("broken", Some("no cards file")));
        assert_eq!((marked.name.as_str(), marked.mark.as_str()), ("nightly", "2026-05-31T03:00:00"));
        let made = |card: &str| store.find("statement", card).unwrap().map(|job| job.state);
        let builder = || {
            let map = |at: &birkez::Occurrence| vec![statement(&format!("night/{}", at.date()))];
            Runner::builder(&store)
                .workers(1)
                .handle(|job: Statement, _cx: &Context| Ok(job.minor))
                .schedule(nightly(), map)
        };
        // What a dead process held is found by a runner with threads.
        let runner = builder().start().unwrap();
        wait_until("the held job and the script's are done", || {
            [made("held"), made("script")] == [Some(State::Done); 2]
        });
        runner.stop(Duration::from_secs(5)).unwrap();
        clock.set("2026-06-01T00:00:00Z".parse().unwrap());
        let drain = Drain::new(builder()).unwrap();
        drain.drain().unwrap();
        drain.drain().unwrap();
        assert_eq!([made("night/2026-06-01"), made("failed")], [Some(State::Done); 2], "version {version}");
        let nights: Vec<_> = store.occurrences("nightly", 10).unwrap().into_iter().map(|made| made.id).collect();
        assert_eq!(nights, ["2026-06-01T03:00:00", "2026-05-31T03:00:00"]);
        assert_eq!(store.once(&statement("once-failed"), |cx| Ok(i64::from(cx.attempt()))).unwrap(), 2);
    }
}

#[test]
fn steps_and_lines_of_an_old_file_go_on_where_they_stood() {
    for (version, old) in old_files().into_iter().filter(|(version, _)| *version >= 3) {
        let clock = end_of_the_fixture();
        clock.advance(Duration::from_secs(3_600));
        let store = old.builder().clock(clock).lease(LEASE).open().unwrap();
        let ran = Arc::new(std::sync::Mutex::new(Vec::new()));
        let noted = Arc::clone(&ran);
        let handler = move |job: Statement, cx: &Context| {
            noted.lock().unwrap().push(job.card.clone());
            match job.card.as_str() {
                "stepped" => cx.step("charge", || -> anyhow::Result<i64> { panic!("its output is stored") }),
                _ => Ok(job.minor),
            }
        };
        let drain = Drain::new(Runner::builder(&store).handle(handler)).unwrap();
        drain.drain().unwrap();
        assert!(matches!(store.enqueue(&statement("stepped")).unwrap().standing, Standing::Done(Ok(7))));
        let stepped = store.find("statement", "stepped").unwrap().unwrap();
        assert_eq!(stepped.progress.map(|progress| (progress.done, progress.total)), Some((1, 2)));
        assert!(!ran.lock().unwrap().iter().any(|card| card.starts_with("line/")), "version {version}");
        store.resume("line", "a person").unwrap();
        drain.drain().unwrap();
        let ran = ran.lock().unwrap();
        let line: Vec<_> = ran.iter().filter(|card| card.starts_with("line/")).collect();
        assert_eq!(line, ["line/1", "line/2"], "version {version}");
    }
}

#[test]
fn jobs_of_one_ordering_key_stand_in_line_once_a_file_that_kept_no_order_is_upgraded() {
    let (_, old) = old_files().into_iter().find(|(version, _)| *version == 2).unwrap();
    // As a version 2 program left them: a dead one, and three that could all be claimed.
    run_sql(
        old.path(),
        r#"INSERT INTO birkez_job (kind, key, payload, ordering_key, state, gate, run_at, finished_at, priority) VALUES
               ('statement', 'line/0', '{"card":"line/0","minor":1}', 'line', 3, NULL, 5, 6, 0),
               ('statement', 'line/1', '{"card":"line/1","minor":1}', 'line', 0, 1, 5, NULL, 0),
               ('statement', 'line/2', '{"card":"line/2","minor":1}', 'line', 0, 1, 5, NULL, 7),
               ('statement', 'line/3', '{"card":"line/3","minor":1}', 'line', 0, 0, 5, NULL, 9);"#,
    );
    let store = old.builder().clock(end_of_the_fixture()).open().unwrap();
    assert_eq!(
        rows(old.path(), "SELECT gate FROM birkez_job WHERE ordering_key = 'line'").join(" "),
        "[Null] [Integer(1)] [Integer(2)] [Integer(2)]"
    );
    let ran = Arc::new(std::sync::Mutex::new(String::new()));
    let noted = Arc::clone(&ran);
    let handler = move |job: Statement, _: &Context| {
        noted.lock().unwrap().extend(job.card.strip_prefix("line"));
        Ok(job.minor)
    };
    Drain::new(Runner::builder(&store).handle(handler)).unwrap().drain().unwrap();
    assert_eq!(*ran.lock().unwrap(), "/1/2/3");
}

/// A file of this version in which a newer program has left its mark.
fn newer_file(version: i64, oldest_writer: i64) -> TempStore {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let _ = store.enqueue(&statement("old")).unwrap();
    drop(store);
    run_sql(folder.path(), "ALTER TABLE birkez_job ADD COLUMN colour TEXT; UPDATE birkez_job SET colour = 'red';");
    raise(folder.path(), version, oldest_writer);
    folder
}

fn raise(path: &Path, version: i64, oldest_writer: i64) {
    run_sql(path, &format!("UPDATE birkez_version SET version = {version}, oldest_writer = {oldest_writer}"));
}

#[test]
fn a_file_that_only_newer_programs_may_write_is_refused_and_stays_as_it_was() {
    let folder = newer_file(1007, 1005);
    let before = fs::read(folder.path()).unwrap();
    let error = folder.open().unwrap_err();
    assert_eq!(error.code(), "NEWER_SCHEMA");
    let text = error.to_string();
    for word in [folder.path().to_str().unwrap(), "1007", "1005", "knows 5", "update the program"] {
        assert!(text.contains(word), "`{word}` is not in: {text}");
    }
    assert!(fs::read(folder.path()).unwrap() == before);
}

#[test]
fn a_newer_file_that_takes_older_writers_opens_and_what_is_unknown_stays() {
    let folder = newer_file(1007, 1);
    let store = folder.open().unwrap();
    common::app::use_it(&store);
    assert!(!store.enqueue(&statement("old")).unwrap().fresh);
    drop(store);
    assert_eq!(
        rows(folder.path(), "SELECT one, version, oldest_writer, schedules FROM birkez_version"),
        ["[Integer(1), Integer(1007), Integer(1), Integer(0)]"]
    );
    assert_eq!(ask::<String>(folder.path(), "SELECT colour FROM birkez_job WHERE key = 'old'"), "red");
}

/// All that this version keeps in the file.
fn everything(connection: &Connection) -> Vec<String> {
    let tables = ["job", "lease", "attempt", "runner", "schedule", "occurrence", "count", "version"];
    let dump = |table: &&str| {
        let columns = connection.prepare(&format!("SELECT * FROM birkez_{table}")).unwrap();
        let names =
            columns.column_names().iter().map(|name| format!("quote({name})")).collect::<Vec<_>>().join("|| ',' ||");
        let mut ask = connection.prepare(&format!("SELECT {names} FROM birkez_{table}")).unwrap();
        ask.query_map([], |row| row.get::<_, String>(0)).unwrap().map(Result::unwrap).collect::<Vec<_>>()
    };
    tables.iter().flat_map(dump).collect()
}

#[test]
fn a_store_that_became_too_old_writes_nothing_more_and_says_so() {
    let folder = TempStore::new().unwrap();
    let store = folder.builder().lease(Duration::from_millis(60)).open().unwrap();
    let _ = store.enqueue(&note("old")).unwrap();
    assert!(store.once(&note("once"), |_cx| anyhow::bail!("no")).is_err());
    raise(folder.path(), 1007, 1007);
    let host = Connection::open(folder.path()).unwrap();
    let before = everything(&host);
    let tx = host.unchecked_transaction().unwrap();
    let errors = [
        store.enqueue(&note("new")).unwrap_err(),
        store.enqueue(&note("old")).unwrap_err(),
        store.enqueue_all([&note("new")]).unwrap_err(),
        store.once(&note("once"), |_cx| unreachable!("it is refused")).unwrap_err(),
        store.write(|_tx| Ok(())).unwrap_err(),
        Runner::builder(&store).schedule(nightly(), |_| Vec::<Statement>::new()).start().unwrap_err(),
        store.enqueue_in(&tx, &note("new")).unwrap_err(),
    ];
    for error in errors {
        assert_eq!((error.code(), error.is_retryable()), ("NEWER_SCHEMA", false), "{error}");
    }
    tx.commit().unwrap();
    assert!(store.find("note", "old").unwrap().is_some(), "reading goes on");
    // Long enough for several beats, of which none may come.
    std::thread::sleep(Duration::from_millis(150));
    drop(store);
    assert_eq!(everything(&host), before);
}

#[test]
fn a_runner_that_became_too_old_tells_its_handlers_stops_claiming_and_writes_nothing_more() {
    // A beat that plays no part, and one that comes all the time.
    for lease in [Duration::from_secs(30), Duration::from_millis(60)] {
        let folder = TempStore::new().unwrap();
        let store = folder.builder().lease(lease).open().unwrap();
        let (started, told) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicUsize::new(0)));
        let counts = (Arc::clone(&started), Arc::clone(&told));
        let handler = move |_: Statement, cx: &Context| {
            counts.0.fetch_add(1, Ordering::SeqCst);
            let was_told = common::wait_within(Duration::from_secs(20), || cx.is_cancelled());
            counts.1.fetch_add(usize::from(was_told.is_some()), Ordering::SeqCst);
            Ok(1)
        };
        let runner = Runner::builder(&store).workers(2).handle(handler).start().unwrap();
        let _ = store.enqueue(&statement("running")).unwrap();
        wait_until("the job runs", || started.load(Ordering::SeqCst) == 1);

        let host = Connection::open(folder.path()).unwrap();
        host.execute_batch(
            r#"BEGIN IMMEDIATE;
               UPDATE birkez_version SET version = 1007, oldest_writer = 1007;
               INSERT INTO birkez_job (kind, key, payload) VALUES ('statement', 'new', '{"card":"new","minor":1}');"#,
        )
        .unwrap();
        // Read before the commit: nothing of this may change afterwards.
        let before = everything(&host);
        host.execute_batch("COMMIT").unwrap();
        wait_until("the handler is told", || told.load(Ordering::SeqCst) == 1);
        wait_until("the runner says why it ended", || runner.fault().is_some());
        assert!(runner.fault().unwrap().contains("1007"), "{:?}", runner.fault());
        assert_eq!(runner.stop(Duration::from_secs(5)).unwrap_err().code(), "STOPPED");
        drop(store);
        assert_eq!(started.load(Ordering::SeqCst), 1, "nothing was claimed any more");
        assert_eq!(everything(&host), before, "lease {lease:?}");
    }
}

#[test]
fn a_runner_without_work_that_became_too_old_says_so_too() {
    let folder = TempStore::new().unwrap();
    // So long that no beat comes: it is a look at the file that tells.
    let store = folder.builder().lease(Duration::from_secs(600)).open().unwrap();
    let runner = Runner::builder(&store).handle(as_the_key_says).start().unwrap();
    let _ = store.enqueue(&statement("first")).unwrap();
    wait_until("it has no work", || store.find("statement", "first").unwrap().unwrap().state == State::Done);
    // Several looks at the file, so that nothing of the first job is left to write.
    std::thread::sleep(Duration::from_millis(200));
    assert_eq!(runner.fault(), None);
    raise(folder.path(), 1007, 1007);
    wait_until("the runner says why it ended", || runner.fault().is_some());
}
