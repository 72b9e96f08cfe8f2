//! A handler can panic, hang, or be missing; its payload can be one that nobody can read. Each must cost its own job alone:
//! no worker is lost, no slot stays used, no other job waits.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use birkez::testing::TempStore;
use birkez::{Class, Context, Error, Job, JobInfo, RetryPolicy, Runner, State, Store};
use common::{Child, ask, given, run_sql, tell, wait_until, wait_within};
use serde::{Deserialize, Serialize};

/// How the handler of [`Work`] ends.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum End {
    Well,
    PanicStr,
    PanicString,
    PanicOther,
    PanicInCommit,
    FailAfterCommit,
    PanicAfterCommit,
    CommitTwice,
    Fail,
}

#[derive(Serialize, Deserialize)]
struct Work {
    n: u32,
    end: End,
}

impl Job for Work {
    const KIND: &'static str = "work";
    type Output = u32;

    fn key(&self) -> String {
        format!("{:?}-{}", self.end, self.n)
    }

    fn retry() -> RetryPolicy {
        RetryPolicy::default().max_attempts(1)
    }
}

/// Hangs until it is let go.
#[derive(Serialize, Deserialize)]
struct Hang {
    n: u32,
}

impl Job for Hang {
    const KIND: &'static str = "hang";
    type Output = u32;

    fn key(&self) -> String {
        format!("hang-{}", self.n)
    }

    fn timeout() -> Option<Duration> {
        Some(Duration::from_secs(1))
    }

    fn retry() -> RetryPolicy {
        RetryPolicy::default().max_attempts(3).base(Duration::ZERO)
    }
}

/// Fails for ever and is due again at once.
#[derive(Serialize, Deserialize)]
struct Flap;

impl Job for Flap {
    const KIND: &'static str = "flap";
    type Output = ();

    fn key(&self) -> String {
        "flap".to_owned()
    }

    fn retry() -> RetryPolicy {
        RetryPolicy::default().unlimited_attempts().base(Duration::ZERO)
    }
}

fn folder() -> (TempStore, Store) {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    run_sql(folder.path(), "CREATE TABLE effect (key TEXT)");
    (folder, store)
}

fn insert(cx: &Context) -> anyhow::Result<u32> {
    cx.commit(|tx| {
        tx.execute("INSERT INTO effect VALUES (?1)", [cx.key()])?;
        Ok(cx.attempt())
    })
}

fn work(job: Work, cx: &Context) -> anyhow::Result<u32> {
    match job.end {
        End::Well => insert(cx),
        End::PanicStr => panic!("said as str"),
        End::PanicString => panic!("said as {}", "String"),
        End::PanicOther => std::panic::panic_any(42_u64),
        End::PanicInCommit => cx.commit(|tx| {
            tx.execute("INSERT INTO effect VALUES (?1)", [cx.key()])?;
            panic!("inside the transaction")
        }),
        End::FailAfterCommit => insert(cx).and_then(|_| anyhow::bail!("too late to fail")),
        End::PanicAfterCommit => insert(cx).map(|_| panic!("too late to panic")),
        End::CommitTwice => insert(cx).and_then(|_| insert(cx)),
        End::Fail => anyhow::bail!("no"),
    }
}

fn find(store: &Store, kind: &str, key: &str) -> JobInfo {
    store.find(kind, key).unwrap().expect("it exists")
}

/// Waits for the end of a job of `Work`.
fn ended(store: &Store, end: End, n: u32) -> JobInfo {
    let key = Work { n, end }.key();
    let is_over = |job: JobInfo| matches!(job.state, State::Done | State::Dead);
    wait_until(&format!("{key} comes to an end"), || is_over(find(store, "work", &key)));
    find(store, "work", &key)
}

#[test]
fn a_panic_is_a_failed_attempt_and_the_worker_goes_on() {
    let (folder, store) = folder();
    let runner = Runner::builder(&store).workers(1).handle(work).start().unwrap();
    let panics = [
        (End::PanicStr, "said as str"),
        (End::PanicString, "said as String"),
        (End::PanicOther, "a panic without text"),
        (End::PanicInCommit, "inside the transaction"),
    ];
    for (n, (end, said)) in (0..).zip(panics) {
        let _ = store.enqueue(&Work { n, end }).unwrap();
        let job = ended(&store, end, n);
        let failure = job.last_failure.unwrap();
        assert_eq!((job.state, failure.class, failure.text.as_str()), (State::Dead, Class::Panic, said));
        let _ = store.enqueue(&Work { n, end: End::Well }).unwrap();
        assert_eq!(ended(&store, End::Well, n).state, State::Done, "the worker goes on after {end:?}");
    }
    assert_eq!(ask::<u32>(folder.path(), "SELECT count(*) FROM effect WHERE key NOT LIKE 'Well%'"), 0);
    assert_eq!(runner.given_up(), 0);
}

#[test]
fn what_a_handler_does_after_its_commit_changes_nothing() {
    let (folder, store) = folder();
    let _runner = Runner::builder(&store).workers(1).handle(work).start().unwrap();
    for end in [End::FailAfterCommit, End::PanicAfterCommit, End::CommitTwice] {
        let _ = store.enqueue(&Work { n: 1, end }).unwrap();
        let job = ended(&store, end, 1);
        assert_eq!((job.state, job.attempts), (State::Done, 1), "{end:?}");
        assert!(store.attempts(job.id).unwrap().is_empty(), "{end:?}");
    }
    assert_eq!(ask::<u32>(folder.path(), "SELECT count(*) FROM effect"), 3);
    let twice = store.enqueue(&Work { n: 1, end: End::CommitTwice }).unwrap();
    assert!(matches!(twice.standing, birkez::Standing::Done(Ok(1))), "{twice:?}");
}

/// A handler that hangs until `release`, and what it has seen.
#[derive(Clone, Default)]
struct Hanging {
    release: Arc<AtomicBool>,
    starts: Arc<AtomicUsize>,
    told: Arc<AtomicUsize>,
    refused: Arc<AtomicUsize>,
}

impl Hanging {
    fn run(&self, cx: &Context) -> anyhow::Result<u32> {
        self.starts.fetch_add(1, Ordering::SeqCst);
        while !self.release.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        self.told.fetch_add(usize::from(cx.is_cancelled()), Ordering::SeqCst);
        let result = insert(cx);
        let refused = result
            .as_ref()
            .is_err_and(|error| error.downcast_ref::<Error>().is_some_and(|error| error.code() == "LEASE_LOST"));
        self.refused.fetch_add(usize::from(refused), Ordering::SeqCst);
        result
    }

    fn starts(&self) -> usize {
        self.starts.load(Ordering::SeqCst)
    }
}

fn start_hanging(store: &Store, workers: usize, hanging: &Hanging) -> Runner {
    let hanging = hanging.clone();
    let handler = move |_: Hang, cx: &Context| hanging.run(cx);
    Runner::builder(store).workers(workers).handle(handler).handle(work).start().unwrap()
}

#[test]
fn a_handler_that_hangs_costs_the_jobs_behind_it_no_more_than_its_timeout() {
    let (folder, store) = folder();
    let hanging = Hanging::default();
    let runner = start_hanging(&store, 1, &hanging);
    let _ = store.enqueue(&Hang { n: 1 }).unwrap();
    wait_until("it hangs", || hanging.starts() == 1);
    let hung = Instant::now();
    for n in 0..5 {
        let _ = store.enqueue(&Work { n, end: End::Well }).unwrap();
    }
    for n in 0..5 {
        ended(&store, End::Well, n);
    }
    assert!(hung.elapsed() < Duration::from_secs(3), "{:?}", hung.elapsed());
    assert!(hung.elapsed() > Duration::from_millis(900), "the only worker was not hanging: {:?}", hung.elapsed());

    let job = find(&store, "hang", "hang-1");
    assert_eq!((job.state, job.attempts, job.last_failure.unwrap().class), (State::Waiting, 1, Class::Timeout));
    assert_eq!(runner.given_up(), 1);
    // It is due again, and not started here while a thread is still in it.
    let again = wait_within(Duration::from_millis(300), || hanging.starts() > 1);
    assert!(again.is_none() && job.run_at <= chrono::Utc::now());

    hanging.release.store(true, Ordering::SeqCst);
    wait_until("it is retried once the thread has come back", || find(&store, "hang", "hang-1").state == State::Done);
    assert_eq!(hanging.told.load(Ordering::SeqCst), 1, "the hanging attempt was told");
    assert_eq!(hanging.refused.load(Ordering::SeqCst), 1, "its late commit was refused");
    assert_eq!(ask::<String>(folder.path(), "SELECT result FROM birkez_job WHERE kind = 'hang'"), "2");
    assert_eq!(ask::<u32>(folder.path(), "SELECT count(*) FROM effect WHERE key = 'hang-1'"), 1);
    wait_until("the thread is no longer counted", || runner.given_up() == 0);
}

#[test]
fn a_kind_in_which_as_many_threads_hang_as_there_are_workers_is_closed_until_they_come_back() {
    let (_folder, store) = folder();
    let hanging = Hanging::default();
    let runner = start_hanging(&store, 2, &hanging);
    for n in 1..=2 {
        let _ = store.enqueue(&Hang { n }).unwrap();
    }
    wait_until("both are given up", || runner.given_up() == 2);
    assert_eq!(runner.closed_kinds(), ["hang"]);
    let _ = store.enqueue(&Hang { n: 3 }).unwrap();
    for n in 0..20 {
        let _ = store.enqueue(&Work { n, end: End::Well }).unwrap();
        ended(&store, End::Well, n);
    }
    assert_eq!(hanging.starts(), 2, "a third thread was given to it");
    assert_eq!(find(&store, "hang", "hang-3").state, State::Waiting);

    hanging.release.store(true, Ordering::SeqCst);
    wait_until("the threads come back", || runner.given_up() == 0);
    assert!(runner.closed_kinds().is_empty());
    let _ = store.enqueue(&Hang { n: 4 }).unwrap();
    wait_until("the kind is open again", || find(&store, "hang", "hang-4").state == State::Done);
    for n in 1..=3 {
        wait_until("what hung is done", || find(&store, "hang", &format!("hang-{n}")).state == State::Done);
    }
    assert_eq!(hanging.refused.load(Ordering::SeqCst), 2, "late results are refused");
}

#[test]
fn a_job_is_not_retried_beside_an_attempt_of_it_that_still_runs_but_in_another_process() {
    let (folder, store) = folder();
    let hanging = Hanging::default();
    let runner = start_hanging(&store, 2, &hanging);
    let _ = store.enqueue(&Hang { n: 1 }).unwrap();
    wait_until("it is given up", || runner.given_up() == 1);
    // It is due before this one, and a worker is free.
    let _ = store.enqueue(&Hang { n: 2 }).unwrap();
    wait_until("the kind is open", || find(&store, "hang", "hang-2").state == State::Running);
    // Its lease is there before its thread has taken it up.
    wait_until("it has started", || hanging.starts() >= 2);
    let job = find(&store, "hang", "hang-1");
    assert_eq!((job.state, job.attempts, hanging.starts()), (State::Waiting, 1, 2));

    let mut other = Child::start("elsewhere", &[("DB", folder.path())]);
    other.expect("ready");
    wait_until("it is done elsewhere", || find(&store, "hang", "hang-1").state == State::Done);
    hanging.release.store(true, Ordering::SeqCst);
    wait_until("the thread comes back", || hanging.refused.load(Ordering::SeqCst) > 0);
    assert_eq!(ask::<u32>(folder.path(), "SELECT count(*) FROM effect WHERE key = 'hang-1'"), 1);
}

#[test]
fn child_role() {
    let Some(role) = common::role() else { return };
    assert_eq!(role, "elsewhere");
    let store = Store::open(given("DB")).unwrap();
    let _runner = Runner::builder(&store).workers(1).handle(|_: Hang, cx: &Context| insert(cx)).start().unwrap();
    tell("ready");
    common::await_go();
}

#[test]
fn a_job_whose_kind_nobody_handles_here_waits_for_a_runner_that_does() {
    let (_folder, store) = folder();
    let _ = store.enqueue(&Work { n: 1, end: End::Well }).unwrap();
    let flapless = Runner::builder(&store).workers(1).handle(|_: Hang, _: &Context| Ok(1)).start().unwrap();
    let _ = store.enqueue(&Hang { n: 1 }).unwrap();
    wait_until("the runner works", || find(&store, "hang", "hang-1").state == State::Done);
    let job = find(&store, "work", "Well-1");
    assert_eq!((job.state, job.attempts), (State::Waiting, 0));
    drop(flapless);
    let _runner = Runner::builder(&store).workers(1).handle(work).start().unwrap();
    assert_eq!(ended(&store, End::Well, 1).state, State::Done);
}

#[test]
fn a_payload_that_does_not_decode_is_dead_at_once_and_kept() {
    let (folder, store) = folder();
    let sent = r#"{"n":"seven","end":"Sideways"}"#;
    let foreign =
        "INSERT INTO birkez_job (kind, key, payload) VALUES ('work', 'bad', '{\"n\":\"seven\",\"end\":\"Sideways\"}'),
                   ('work', 'torn', '{\"n\":'), ('work', 'none', NULL)";
    run_sql(folder.path(), foreign);
    let _runner = Runner::builder(&store).workers(1).handle(work).start().unwrap();
    for key in ["bad", "torn", "none"] {
        wait_until("it is dead", || find(&store, "work", key).state == State::Dead);
        let failure = find(&store, "work", key).last_failure.unwrap();
        assert_eq!(failure.class, Class::Undecodable, "{key}: {}", failure.text);
        assert!(failure.text.contains("payload"), "{}", failure.text);
    }
    assert_eq!(ask::<String>(folder.path(), "SELECT payload FROM birkez_job WHERE key = 'bad'"), sent);
    let _ = store.enqueue(&Work { n: 1, end: End::Well }).unwrap();
    assert_eq!(ended(&store, End::Well, 1).state, State::Done);
}

#[test]
fn two_handlers_for_one_kind_are_refused_at_the_start() {
    #[derive(Serialize, Deserialize)]
    struct Renamed;
    impl Job for Renamed {
        const KIND: &'static str = "labour";
        const FORMER_KINDS: &'static [&'static str] = &["work"];
        type Output = ();
        fn key(&self) -> String {
            "x".to_owned()
        }
    }
    let (_folder, store) = folder();
    let twice = Runner::builder(&store).handle(work).handle(work).start().unwrap_err();
    assert_eq!((twice.code(), twice.to_string().contains("`work`")), ("DUPLICATE_KIND", true), "{twice}");
    let former = Runner::builder(&store).handle(work).handle(|_: Renamed, _: &Context| Ok(())).start().unwrap_err();
    assert_eq!(former.code(), "DUPLICATE_KIND", "{former}");
}

#[test]
fn a_job_that_fails_for_ever_without_a_delay_starves_nobody() {
    let (_folder, store) = folder();
    let failures = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&failures);
    let flap = move |_: Flap, _: &Context| {
        counted.fetch_add(1, Ordering::SeqCst);
        anyhow::bail!("again")
    };
    let _ = store.enqueue(&Flap).unwrap();
    let _runner = Runner::builder(&store).workers(1).handle(flap).handle(work).start().unwrap();
    wait_until("it flaps", || failures.load(Ordering::SeqCst) > 10);
    let before = failures.load(Ordering::SeqCst);
    for n in 0..100 {
        let end = if n % 10 == 9 { End::Fail } else { End::Well };
        let _ = store.enqueue(&Work { n, end }).unwrap();
    }
    for n in 0..100 {
        ended(&store, if n % 10 == 9 { End::Fail } else { End::Well }, n);
    }
    let after = failures.load(Ordering::SeqCst);
    println!("it failed {} times beside 100 others", after - before);
    wait_until("it goes on", || failures.load(Ordering::SeqCst) > after);
    assert!(matches!(find(&store, "flap", "flap").state, State::Waiting | State::Running));
}

/// A store that counts the commits of all its connections.
fn counting(folder: &TempStore) -> (Store, Arc<AtomicUsize>) {
    let commits = Arc::new(AtomicUsize::new(0));
    let counted = Arc::clone(&commits);
    let hook = move |connection: &birkez::rusqlite::Connection| {
        let counted = Arc::clone(&counted);
        let count = move || counted.fetch_add(1, Ordering::SeqCst) == usize::MAX;
        connection.commit_hook(Some(count))
    };
    (folder.builder().on_connect(hook).open().unwrap(), commits)
}

#[test]
fn a_runner_that_can_start_nothing_leaves_the_file_alone() {
    let folder = TempStore::new().unwrap();
    let (store, commits) = counting(&folder);
    let hanging = Hanging::default();
    let stay = hanging.clone();
    let handler = move |job: Work, cx: &Context| if job.n < 2 { stay.run(cx) } else { Ok(0) };
    let _runner = Runner::builder(&store).workers(2).handle(handler).start().unwrap();
    let jobs: Vec<_> = (0..200).map(|n| Work { n, end: End::Well }).collect();
    let _ = store.enqueue_all(&jobs).unwrap();
    wait_until("both workers are held up", || hanging.starts() == 2);
    std::thread::sleep(Duration::from_millis(100));
    let before = commits.load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(500));
    let busy = commits.load(Ordering::SeqCst) - before;
    assert!(busy <= 5, "{busy} commits in half a second with nothing to write");
    hanging.release.store(true, Ordering::SeqCst);
    for n in 2..200 {
        ended(&store, End::Well, n);
    }
    wait_until("the runner is idle", || ask::<u32>(folder.path(), "SELECT count(*) FROM birkez_lease") == 0);
    std::thread::sleep(Duration::from_millis(100));
    let before = commits.load(Ordering::SeqCst);
    std::thread::sleep(Duration::from_millis(500));
    assert_eq!(commits.load(Ordering::SeqCst), before, "an idle runner writes");
}

/// Issue 4: a look at what another process had committed did not learn when the next job becomes due.
#[test]
fn a_job_that_another_connection_stores_for_later_runs_when_it_is_due() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let (done, seen) = std::sync::mpsc::channel();
    let runner = Runner::builder(&store)
        .handle(move |job: Work, _: &Context| {
            done.send(job.n).unwrap();
            Ok(job.n)
        })
        .start()
        .unwrap();
    wait_until("the runner is idle", || runner.running() == 0);
    std::thread::sleep(Duration::from_millis(100));
    let at = chrono::Utc::now().timestamp_millis() + 400;
    let stored = Instant::now();
    let payload = r#"{"n":7,"end":"Well"}"#;
    let columns = "birkez_job (kind, key, payload, run_at)";
    run_sql(folder.path(), &format!("INSERT INTO {columns} VALUES ('work', 'later', '{payload}', {at})"));
    assert_eq!(seen.recv_timeout(Duration::from_secs(5)), Ok(7));
    assert!(stored.elapsed() >= Duration::from_millis(350));
}
