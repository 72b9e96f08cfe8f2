//! Storage that fails. What can go wrong: half of a transaction is stored when the disk is full, or what follows in it
//! runs by itself; a claim that was not stored is handed out; a failed COMMIT is taken for "not stored", and the repeat
//! has a second effect; a job is blamed for its disk.

mod common;

use std::fs::{self, File};
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use birkez::testing::{Drain, TempStore};
use birkez::{Class, Context, Enqueued, Job, RetryPolicy, Runner, State, Store};
use common::{Child, Log, ask, given, rows, run_sql, tell, wait_until};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Blob {
    key: String,
    fill: String,
}

impl Job for Blob {
    const KIND: &'static str = "blob";
    type Output = ();
    fn key(&self) -> String {
        self.key.clone()
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().max_attempts(1)
    }
}

fn blob(key: impl ToString, size: usize) -> Blob {
    Blob { key: key.to_string(), fill: "x".repeat(size) }
}

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("enqueue-to-the-limit") => enqueue_to_the_limit(),
        Some("work-on-a-bad-disk") => work_on_a_bad_disk(),
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

/// A small file system of its own, gone when this is dropped.
struct Disk {
    folder: TempStore,
    mounted: PathBuf,
}

impl Disk {
    fn new(size: &str) -> Option<Disk> {
        let folder = TempStore::new().unwrap();
        let mounted = folder.path().with_file_name("disk");
        fs::create_dir(&mounted).unwrap();
        let mount =
            Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"]).arg(&mounted).output();
        if mount.as_ref().is_ok_and(|mount| mount.status.success()) {
            return Some(Disk { folder, mounted });
        }
        eprintln!("skipped: no small disk can be mounted here ({mount:?})");
        None
    }

    fn database(&self) -> PathBuf {
        self.mounted.join("panel.db")
    }

    /// Takes all space but this many bytes.
    fn fill_but(&self, left: u64) {
        let mut filler = File::create(self.mounted.join("filler")).unwrap();
        while filler.write_all(&[b'f'; 4096]).is_ok() {}
        let size = filler.metadata().unwrap().len();
        assert!(size > left, "the disk is smaller than what is to be left of it");
        filler.set_len((size - left) / 4096 * 4096).unwrap();
    }

    fn free(&self) {
        fs::remove_file(self.mounted.join("filler")).unwrap();
    }

    /// Its log lies on the other disk.
    fn log(&self) -> Log {
        Log::beside(self.folder.path())
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(&self.mounted).output();
    }
}

/// Whether a thread of this process sleeps, waiting for something.
fn sleeps(thread: &Path) -> bool {
    let stat = fs::read_to_string(Path::new("/proc").join(thread).join("stat")).unwrap();
    stat.rsplit_once(')').unwrap().1.trim_start().starts_with('S')
}

type Answer = birkez::Result<Enqueued<()>>;

/// Enqueues `jobs` in this order in one transaction, with a row of the app's in front: a closure holds the pen until all
/// of them have lined up. Answers whether the app's row went through, and what each enqueue was told.
fn enqueue_as_one_group(store: &Store, jobs: &[Blob]) -> (birkez::Result<()>, Vec<Answer>) {
    let ((held, is_held), (let_go, may_go)) = (channel(), channel::<()>());
    std::thread::scope(|scope| {
        let holder = scope.spawn(move || {
            store.write(|tx| {
                tx.execute("INSERT INTO app VALUES ('in front')", [])?;
                held.send(())?;
                Ok(may_go.recv()?)
            })
        });
        is_held.recv().unwrap();
        let line_up = |job| {
            let (begun, has_begun) = channel();
            let thread = scope.spawn(move || {
                begun.send(fs::read_link("/proc/thread-self").unwrap()).unwrap();
                store.enqueue(job)
            });
            let id = has_begun.recv().unwrap();
            wait_until("it has lined up", || sleeps(&id));
            thread
        };
        let line: Vec<_> = jobs.iter().map(line_up).collect();
        let_go.send(()).unwrap();
        (holder.join().unwrap(), line.into_iter().map(|thread| thread.join().unwrap()).collect())
    })
}

/// A store on the disk, with a runner that is known to work.
fn running_store(disk: &Disk) -> (Store, Runner) {
    let store = Store::builder(disk.database()).payload_limit(8 << 20).open().unwrap();
    run_sql(&disk.database(), "CREATE TABLE app (text TEXT)");
    let log = disk.log();
    let handler = move |job: Blob, _cx: &Context| {
        log.note(format!("started {}", job.key));
        Ok(())
    };
    let runner = Runner::builder(&store).workers(2).handle(handler).start().unwrap();
    let _ = store.enqueue(&blob("first", 10)).unwrap();
    wait_until("the first job is done", || store.find("blob", "first").unwrap().unwrap().state == State::Done);
    // An empty log needs space again for whatever comes.
    run_sql(&disk.database(), "PRAGMA wal_checkpoint(TRUNCATE)");
    (store, runner)
}

fn eight_with_a_large_one_in_the_middle(size: usize) -> Vec<Blob> {
    (0..8).map(|at| blob(at, if at == 3 { size } else { 10 })).collect()
}

fn assert_disk_full(answer: &Answer) {
    let error = answer.as_ref().expect_err("there is no room for it");
    assert_eq!((error.code(), error.is_retryable()), ("DISK_FULL", true), "{error}");
    assert!(error.to_string().contains("nothing was stored"), "{error}");
}

/// The same eight again, with room: stored, run, and each once.
fn assert_the_group_works(store: &Store, runner: Runner, disk: &Disk, jobs: &[Blob], fresh: usize) {
    let (holder, answers) = enqueue_as_one_group(store, jobs);
    holder.unwrap();
    assert_eq!(answers.iter().filter(|answer| answer.as_ref().unwrap().fresh).count(), fresh);
    let done = "SELECT count(*) FROM birkez_job WHERE state = 2";
    wait_until("all are done", || ask::<i64>(store.path(), done) == 9);
    runner.stop(Duration::from_secs(5)).unwrap();
    let mut started = disk.log().lines();
    started.sort_unstable();
    let each = ["0", "1", "2", "3", "4", "5", "6", "7", "first"].map(|key| format!("started {key}"));
    assert_eq!(started, each);
}

#[test]
fn of_a_group_that_finds_the_disk_full_at_its_commit_nothing_is_stored_and_nothing_handed_out() {
    let Some(disk) = Disk::new("4m") else { return };
    let (store, runner) = running_store(&disk);
    let jobs = eight_with_a_large_one_in_the_middle(600_000);
    disk.fill_but(200_000);
    for _ in 0..3 {
        let (holder, answers) = enqueue_as_one_group(&store, &jobs);
        assert_eq!(holder.unwrap_err().code(), "DISK_FULL");
        answers.iter().for_each(assert_disk_full);
        assert_eq!(rows(store.path(), "SELECT key FROM birkez_job"), [r#"[Text("first")]"#]);
        assert_eq!(
            ask::<i64>(store.path(), "SELECT (SELECT count(*) FROM app) + (SELECT count(*) FROM birkez_lease)"),
            0
        );
        assert_eq!(disk.log().lines(), ["started first"]);
    }
    assert!(store.find("blob", "0").unwrap().is_none(), "reading goes on");
    disk.free();
    assert_the_group_works(&store, runner, &disk, &jobs, 8);
    // Written in one transaction, they have one time.
    assert_eq!(ask::<i64>(store.path(), "SELECT count(DISTINCT created_at) FROM birkez_job WHERE key <> 'first'"), 1);
    assert_eq!(ask::<i64>(store.path(), "SELECT count(*) FROM app"), 1);
}

/// A payload larger than SQLite's cache meets the full disk while it is inserted, and SQLite may roll the whole
/// transaction back then and there: what comes after it must not run by itself.
#[test]
fn of_a_group_that_finds_the_disk_full_in_its_middle_nothing_that_was_refused_is_stored() {
    let Some(disk) = Disk::new("16m") else { return };
    let (store, runner) = running_store(&disk);
    let jobs = eight_with_a_large_one_in_the_middle(6_000_000);
    disk.fill_but(1_000_000);
    let (holder, answers) = enqueue_as_one_group(&store, &jobs);
    assert_disk_full(&answers[3]);
    let stored = |key: &str| store.find("blob", key).unwrap().is_some();
    let mut refused = 0;
    for (job, answer) in jobs.iter().zip(&answers) {
        match answer {
            Ok(answer) => assert!(answer.fresh && stored(&job.key), "{} was acknowledged", job.key),
            Err(_) => {
                assert_disk_full(answer);
                assert!(!stored(&job.key), "{} was refused", job.key);
                refused += 1;
            }
        }
    }
    // What stood in front of it in its transaction shares its fate.
    assert_eq!(holder.unwrap_err().code(), "DISK_FULL");
    assert_eq!(ask::<i64>(store.path(), "SELECT count(*) FROM app"), 0);
    answers[..4].iter().for_each(assert_disk_full);
    disk.free();
    assert_the_group_works(&store, runner, &disk, &jobs, refused);
}

#[test]
fn a_full_disk_is_never_a_jobs_failure_and_work_goes_on_when_there_is_room() {
    let Some(disk) = Disk::new("4m") else { return };
    let store = Store::open(disk.database()).unwrap();
    run_sql(&disk.database(), "CREATE TABLE app (text TEXT)");
    let is_full = Arc::new(AtomicBool::new(false));
    let (has_begun, seen) = (disk.log(), Arc::clone(&is_full));
    let handler = move |job: Blob, cx: &Context| {
        has_begun.note("started");
        wait_until("the disk is full", || seen.load(Ordering::SeqCst));
        cx.commit(|tx| Ok(tx.execute("INSERT INTO app VALUES (?1)", [&job.fill]).map(|_| ())?))
    };
    let runner = Runner::builder(&store).workers(1).handle(handler).start().unwrap();
    let id = store.enqueue(&blob("a", 100)).unwrap().id;
    wait_until("it runs", || disk.log().count("started") == 1);
    run_sql(&disk.database(), "PRAGMA wal_checkpoint(TRUNCATE)");
    disk.fill_but(0);
    is_full.store(true, Ordering::SeqCst);

    let error = store.enqueue(&blob("b", 10)).unwrap_err();
    assert_eq!((error.code(), error.is_retryable()), ("DISK_FULL", true), "{error}");
    let error = store.once(&blob("c", 10), |_cx| unreachable!("it was not claimed")).unwrap_err();
    assert_eq!(error.code(), "DISK_FULL");
    let says = |fault: Option<String>| fault.is_some_and(|text| text.contains("disk is full"));
    wait_until("the runner says what keeps it from writing", || says(runner.fault()));
    assert_eq!(store.job(id).unwrap().unwrap().state, State::Running);
    disk.free();
    let freed = Instant::now();
    wait_until("it is done after all", || store.job(id).unwrap().unwrap().state == State::Done);
    assert!(freed.elapsed() < Duration::from_secs(5), "{:?} after there was room", freed.elapsed());
    wait_until("the runner is well again", || runner.fault().is_none());
    runner.stop(Duration::from_secs(5)).unwrap();
    for attempt in store.attempts(id).unwrap() {
        assert_eq!((attempt.charged, attempt.failure.class), (false, Class::Transient), "{attempt:?}");
    }
    assert_eq!(store.job(id).unwrap().unwrap().attempts, 1);
    assert_eq!(ask::<i64>(store.path(), "SELECT count(*) FROM app"), 1);
}

#[test]
fn a_store_on_a_full_disk_is_refused_by_that_name_and_opens_when_there_is_room() {
    let Some(disk) = Disk::new("1m") else { return };
    for is_there in [false, true] {
        disk.fill_but(0);
        let error = Store::open(disk.database()).unwrap_err();
        assert_eq!((error.code(), error.is_retryable()), ("DISK_FULL", true), "{error:?}");
        disk.free();
        let store = Store::open(disk.database()).unwrap();
        assert_eq!(store.enqueue(&blob("a", 10)).unwrap().fresh, !is_there);
    }
}

/// In a child whose files cannot grow beyond a limit: enqueues until it is met, and some more.
fn enqueue_to_the_limit() {
    let store = Store::open(given("FILE")).unwrap();
    let mut refused = 0;
    for at in 0..10_000 {
        match store.enqueue(&blob(at, 2_000)) {
            Ok(answer) => tell(format!("kept {at} {}", answer.fresh)),
            Err(error) => {
                tell(format!("{} {at} {} {error}", error.code(), error.is_retryable()));
                refused += 1;
            }
        }
        if refused == 5 {
            return;
        }
    }
}

#[test]
fn a_commit_that_failed_says_that_its_outcome_is_unknown_and_a_repeat_is_safe() {
    let folder = TempStore::new().unwrap();
    drop(folder.open().unwrap());
    // The limit's unit differs between shells; the log file meets it in any case before its first checkpoint.
    let mut limited = Command::new("sh");
    limited.args(["-c", "trap '' XFSZ; ulimit -f 1500 && exec \"$0\" \"$@\""]);
    let mut child = Child::run(common::as_child(limited, "enqueue-to-the-limit", &[("FILE", folder.path())]));
    let (mut kept, mut unknown) = (Vec::new(), Vec::new());
    while let Some(line) = child.hear() {
        let mut words = line.split(' ');
        let (code, key) = (words.next().unwrap(), words.next().unwrap().to_owned());
        if code == "kept" {
            kept.push(key);
            continue;
        }
        assert_eq!((code, words.next()), ("OUTCOME_UNKNOWN", Some("true")), "{line}");
        assert!(line.contains("unknown") && line.contains("repeating it under its key is safe"), "{line}");
        unknown.push(key);
    }
    child.finish();
    assert_eq!(unknown.len(), 5);
    assert!(kept.len() > 10, "{}", kept.len());
    let store = folder.open().unwrap();
    assert!(kept.iter().all(|key| store.find("blob", key).unwrap().is_some()), "what was acknowledged is there");
    for key in unknown {
        let first = store.enqueue(&blob(&key, 2_000)).unwrap();
        assert_eq!(store.enqueue(&blob(&key, 2_000)).unwrap().id, first.id);
    }
    assert_eq!(ask::<String>(folder.path(), "PRAGMA integrity_check"), "ok");
}

const JOBS: u32 = 40;

/// In a child on a disk where every now and then a sync fails: repeats each call until it is told that it is done.
fn work_on_a_bad_disk() {
    let again = |call: &dyn Fn() -> birkez::Result<()>| {
        while let Err(error) = call() {
            assert!(error.code() == "OUTCOME_UNKNOWN" && error.is_retryable(), "{error:?}");
            tell("unknown");
        }
    };
    let store = Store::open(given("FILE")).unwrap();
    for at in 0..JOBS {
        again(&|| store.enqueue(&blob(at, 10)).map(|_| ()));
    }
    let handler = |job: Blob, cx: &Context| {
        // An effect without a constraint: a second one would show.
        cx.commit(|tx| Ok(tx.execute("INSERT INTO app VALUES (?1)", [&job.key]).map(|_| ())?))
    };
    let drain = Drain::new(Runner::builder(&store).handle(handler)).unwrap();
    let finished = || store.finished().unwrap().iter().map(|(_, _, n)| *n).sum::<i64>();
    let deadline = Instant::now() + common::PATIENCE;
    while finished() < i64::from(JOBS) {
        assert!(Instant::now() < deadline, "{} of {JOBS} are finished", finished());
        again(&|| drain.drain().map(|_| ()));
        std::thread::sleep(Duration::from_millis(20));
    }
}

#[test]
fn on_a_disk_whose_syncs_fail_now_and_then_every_job_has_one_effect() {
    let folder = TempStore::new().unwrap();
    drop(folder.open().unwrap());
    run_sql(folder.path(), "CREATE TABLE app (text TEXT)");
    let mut traced = Command::new("strace");
    traced.args(["-f", "-qq", "-o", "/dev/null", "-e", "trace=fsync,fdatasync"]);
    traced.args(["-e", "inject=fsync,fdatasync:error=EIO:when=9+5"]);
    if !Command::new("strace").args(["-qq", "-o", "/dev/null", "true"]).status().is_ok_and(|status| status.success()) {
        eprintln!("skipped: strace, which makes syncs fail, is not to be had here");
        return;
    }
    let child = Child::run(common::as_child(traced, "work-on-a-bad-disk", &[("FILE", folder.path())]));
    let unknown = child.finish().len();
    println!("{unknown} outcomes were unknown");
    assert!(unknown >= 5, "only {unknown} syncs failed where somebody was told");
    let sum = "SELECT count(*) || ' ' || count(DISTINCT text) FROM app";
    assert_eq!(ask::<String>(folder.path(), sum), format!("{JOBS} {JOBS}"));
    let states = "SELECT group_concat(DISTINCT state) || ' ' || count(*) || ' ' || max(attempts) FROM birkez_job";
    assert_eq!(ask::<String>(folder.path(), states), format!("2 {JOBS} 1"));
}
