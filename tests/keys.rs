//! What an enqueue answers. What can go wrong: a repeat makes a second job, or says nothing of the first; other content
//! under a known key is taken silently, or changes something; half of a refused call is stored; two keys that people
//! take for one are one, or one that they take for one is two.

mod common;

use std::path::Path;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{
    Class, Context, Enqueued, EnqueuedIn, Error, Failure, Job, MAX_KEY, MAX_KIND, RetryPolicy, Runner, Standing, State,
    Store, Verdicts,
};
use chrono::{DateTime, Utc};
use common::{rows, run_sql};
use serde::{Deserialize, Serialize};

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Pay {
    key: String,
    minor: i64,
    /// What its handler does.
    fate: String,
}

impl Job for Pay {
    const KIND: &'static str = "pay";
    type Output = i64;
    fn key(&self) -> String {
        self.key.clone()
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().max_attempts(1)
    }
}

fn pay(key: &str, minor: i64, fate: &str) -> Pay {
    Pay { key: key.to_owned(), minor, fate: fate.to_owned() }
}

fn handler(job: Pay, cx: &Context) -> anyhow::Result<i64> {
    match job.fate.as_str() {
        "done" => Ok(job.minor * 2),
        "dead" => Err(anyhow::anyhow!("no such account")).permanent(),
        "parked" => Err(anyhow::anyhow!("401")).park("auth:bank"),
        // Its own key while it runs.
        "ask" => {
            let met = cx.store().enqueue(&job)?;
            anyhow::ensure!(!met.fresh && matches!(met.standing, Standing::Running), "{met:?}");
            let other = cx.store().enqueue(&Pay { minor: 0, ..job }).unwrap_err();
            anyhow::ensure!(other.existing() == Some(State::Running), "{other:?}");
            Ok(1)
        }
        other => unreachable!("{other}"),
    }
}

fn drain(store: &Store) -> usize {
    Drain::new(Runner::builder(store).handle(handler)).unwrap().drain().unwrap()
}

/// One job in each state a job can rest in; its key is the state's name.
fn one_in_each_state(store: &Store) -> Vec<Pay> {
    let mut jobs: Vec<_> = ["done", "dead", "parked"].map(|fate| pay(fate, 21, fate)).into();
    store.enqueue_all(&jobs).unwrap();
    assert_eq!(drain(store), 3);
    jobs.extend([pay("waiting", 21, "done"), pay("cancelled", 21, "done"), pay("later", 21, "done")]);
    store.enqueue_all(&jobs[3..]).unwrap();
    run_sql(store.path(), "UPDATE birkez_job SET state = 4, gate = NULL, finished_at = 1 WHERE key = 'cancelled'");
    run_sql(store.path(), "UPDATE birkez_job SET attempts = 2, run_at = 9000000000000, gate = 0 WHERE key = 'later'");
    jobs
}

/// All that is stored of jobs.
fn all_of(path: &Path) -> Vec<String> {
    ["job", "lease", "attempt", "count"]
        .iter()
        .flat_map(|table| rows(path, &format!("SELECT * FROM birkez_{table}")))
        .collect()
}

fn assert_standing(job: &Pay, met: &Enqueued<i64>) {
    assert!(!met.fresh && met.compared, "{met:?}");
    let as_expected = match (job.key.as_str(), &met.standing) {
        ("done", Standing::Done(output)) => *output.as_ref().unwrap() == 42,
        ("dead", Standing::Dead(Failure { class, text })) => *class == Class::Permanent && text == "no such account",
        ("parked", Standing::Parked { reason }) => reason == "auth:bank",
        ("waiting", Standing::Waiting { attempts, run_at }) => *attempts == 0 && *run_at <= Utc::now(),
        ("later", Standing::Waiting { attempts, run_at }) => {
            *attempts == 2 && run_at.timestamp_millis() == 9_000_000_000_000
        }
        ("cancelled", Standing::Cancelled) => true,
        _ => false,
    };
    assert!(as_expected, "{}: {met:?}", job.key);
    let state = if job.key == "later" { "waiting" } else { &job.key };
    assert_eq!(met.standing.state().as_str(), state);
}

#[test]
fn a_known_key_is_answered_with_its_state_and_what_is_stored_and_nothing_changes() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let jobs = one_in_each_state(&store);
    let before = all_of(store.path());
    let mut ids = Vec::new();
    for job in &jobs {
        let met = store.enqueue(job).unwrap();
        assert_standing(job, &met);
        ids.push(met.id);
    }
    for (at, met) in store.enqueue_all(&jobs).unwrap().iter().enumerate() {
        assert_standing(&jobs[at], met);
        assert_eq!(met.id, ids[at], "answers come in the order of the jobs");
        assert_eq!(store.job(met.id).unwrap().unwrap().key, jobs[at].key, "the id is of a job that is there");
    }
    store
        .write(|tx| {
            for job in &jobs {
                match store.enqueue_in(tx, job)? {
                    EnqueuedIn::Existing(met) => assert_standing(job, &met),
                    EnqueuedIn::Fresh => panic!("{} is fresh", job.key),
                }
            }
            Ok(())
        })
        .unwrap();
    assert_eq!(all_of(store.path()), before);
}

#[test]
fn a_done_key_is_answered_with_its_output_after_a_restart_and_is_not_run_again() {
    let folder = TempStore::new().unwrap();
    let job = pay("done", 21, "done");
    let first = folder.open().unwrap();
    let id = first.enqueue(&job).unwrap().id;
    assert_eq!(drain(&first), 1);
    drop(first);
    let store = folder.open().unwrap();
    let met = store.enqueue(&job).unwrap();
    assert_eq!(met.id, id);
    assert_standing(&job, &met);
    assert_eq!(store.once(&job, |_cx| unreachable!("it is done")).unwrap(), 42);
    assert_eq!(drain(&store), 0);
}

#[test]
fn a_running_job_is_answered_as_running_also_from_its_own_handler() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let id = store.enqueue(&pay("own", 3, "ask")).unwrap().id;
    assert_eq!(drain(&store), 1);
    assert_eq!(store.attempts(id).unwrap(), []);
    assert_eq!(store.job(id).unwrap().unwrap().state, State::Done);
}

#[test]
fn other_content_under_a_known_key_is_refused_in_every_state_and_changes_nothing() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let jobs = one_in_each_state(&store);
    let before = all_of(store.path());
    for job in &jobs {
        let other = Pay { minor: 22, ..job.clone() };
        let there = store.find("pay", &job.key).unwrap().unwrap();
        let refusals = [
            store.enqueue(&other).unwrap_err(),
            store.enqueue_all([&pay("fresh", 1, "done"), &other]).unwrap_err(),
            store.once(&other, |_cx| unreachable!("it is refused")).unwrap_err(),
            store.write(|tx| Ok(store.enqueue_in(tx, &other).unwrap_err())).unwrap(),
        ];
        for error in refusals {
            let Error::KeyReused { kind, key, existing } = &error else { panic!("{error:?}") };
            assert_eq!((kind.as_str(), key), ("pay", &job.key));
            assert_eq!((existing.id, existing.state), (there.id, there.state));
            let text = error.to_string();
            for word in ["`pay`", &format!("`{key}`"), &there.id.to_string(), there.state.as_str()] {
                assert!(text.contains(word), "`{word}` is not in: {text}");
            }
        }
    }
    assert_eq!(all_of(store.path()), before);
}

#[test]
fn one_refused_job_undoes_its_whole_call_and_no_other() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let known = pay("known", 1, "done");
    let _ = store.enqueue(&known).unwrap();
    let before = all_of(store.path());

    // The refused one first, in the middle, last, and refused by another of the same call.
    let (a, b, other) = (pay("a", 1, "done"), pay("b", 1, "done"), pay("known", 2, "done"));
    let twin = pay("a", 2, "done");
    for (call, key) in [([&other, &a, &b], "known"), ([&a, &other, &b], "known"), ([&a, &b, &twin], "a")] {
        let error = store.enqueue_all(call).unwrap_err();
        assert_eq!((error.code(), error.job().unwrap().1), ("KEY_REUSED", key));
        assert_eq!(all_of(store.path()), before);
    }
    let unfit = store.enqueue_all([&a, &pay("", 1, "done")]).unwrap_err();
    assert_eq!(unfit.code(), "KEY_REQUIRED");
    assert_eq!(all_of(store.path()), before);

    let answers = store.enqueue_all([&a, &known, &a, &b]).unwrap();
    let fresh: Vec<_> = answers.iter().map(|answer| answer.fresh).collect();
    assert_eq!(fresh, [true, false, false, true]);
    assert_eq!(answers[0].id, answers[2].id);
    assert!(store.enqueue_all::<Pay>([]).unwrap().is_empty());
}

#[test]
fn one_refused_job_of_many_threads_leaves_the_others_of_its_commit_alone() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let _ = store.enqueue(&pay("known", 1, "done")).unwrap();
    let (before, counts) = (Barrier::new(17), common::rounds("BIRKEZ_KEY_ROUNDS", 10));
    std::thread::scope(|scope| {
        for thread in 0..16 {
            let (store, before) = (&store, &before);
            scope.spawn(move || {
                before.wait();
                for round in 0..counts {
                    let fresh = pay(&format!("{thread}-{round}"), 1, "done");
                    match thread % 4 {
                        0 => assert_eq!(store.enqueue(&pay("known", 2, "done")).unwrap_err().code(), "KEY_REUSED"),
                        1 => assert!(store.enqueue_all([&fresh, &pay("known", 2, "done")]).is_err()),
                        _ => assert!(store.enqueue(&fresh).unwrap().fresh),
                    }
                }
            });
        }
        before.wait();
    });
    let stored: i64 = common::ask(store.path(), "SELECT count(*) FROM birkez_job");
    assert_eq!(stored, i64::from(1 + 8 * counts));
}

#[test]
fn fifty_threads_that_enqueue_one_key_get_one_job() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    for round in 0..common::rounds("BIRKEZ_KEY_ROUNDS", 10) {
        let job = pay(&format!("card7#{round}"), 1, "done");
        let start = Barrier::new(50);
        let answers: Vec<_> = std::thread::scope(|scope| {
            let enqueue = || {
                start.wait();
                store.enqueue(&job).unwrap()
            };
            let threads: Vec<_> = (0..50).map(|_| scope.spawn(enqueue)).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        assert_eq!(answers.iter().filter(|answer| answer.fresh).count(), 1);
        let id = store.find("pay", &job.key).unwrap().unwrap().id;
        assert!(answers.iter().all(|answer| answer.id == id && answer.compared));
    }
}

/// A job whose kind and key are what a test wants.
#[derive(Serialize, Deserialize)]
struct Unnamed<const N: usize>(String);

impl<const N: usize> Job for Unnamed<N> {
    const KIND: &'static str = ["", "two\nlines", "k\u{0}", TOO_LONG, LONGEST, "🎫 bilet"][N];
    type Output = ();
    fn key(&self) -> String {
        self.0.clone()
    }
}

const LONGEST: &str = match std::str::from_utf8(&[b'k'; MAX_KIND]) {
    Ok(text) => text,
    Err(_) => "",
};
const TOO_LONG: &str = match std::str::from_utf8(&[b'k'; MAX_KIND + 1]) {
    Ok(text) => text,
    Err(_) => "",
};

/// Every call that takes a job refuses this one with `code`, while another connection holds the writer lock: nothing is
/// written, and nothing is waited for.
#[track_caller]
fn assert_refused_before_any_write<J: Job<Output: std::fmt::Debug>>(store: &Store, job: &J, code: &str) -> Error {
    let writer = birkez::rusqlite::Connection::open(store.path()).unwrap();
    writer.execute_batch("BEGIN IMMEDIATE").unwrap();
    let start = Instant::now();
    let errors = [
        store.enqueue_all([job]).unwrap_err(),
        store.once(job, |_cx| unreachable!("it is refused")).unwrap_err(),
        store.enqueue(job).unwrap_err(),
    ];
    assert!(start.elapsed() < Duration::from_secs(5), "it waited for the lock");
    for error in &errors {
        assert_eq!(error.code(), code);
        assert!(!error.is_retryable());
    }
    let [.., error] = errors;
    error
}

#[test]
fn a_name_that_cannot_be_kept_is_refused_before_any_write() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    assert_refused_before_any_write(&store, &pay("", 1, "done"), "KEY_REQUIRED");
    let long = assert_refused_before_any_write(&store, &pay(&"k".repeat(MAX_KEY + 1), 1, "done"), "KEY_TOO_LONG");
    assert!(long.to_string().contains("513 bytes") && long.to_string().contains("512"), "{long}");
    // 171 characters of three bytes.
    assert_refused_before_any_write(&store, &pay(&"€".repeat(171), 1, "done"), "KEY_TOO_LONG");
    for nul in ["\0", "a\0", "\0b", "a\0b"] {
        assert_refused_before_any_write(&store, &pay(nul, 1, "done"), "KEY_INVALID");
    }
    assert_refused_before_any_write(&store, &Unnamed::<0>("a".into()), "KIND_INVALID");
    assert_refused_before_any_write(&store, &Unnamed::<1>("a".into()), "KIND_INVALID");
    assert_refused_before_any_write(&store, &Unnamed::<2>("a".into()), "KIND_INVALID");
    assert_refused_before_any_write(&store, &Unnamed::<3>("a".into()), "KIND_INVALID");
    assert_eq!(all_of(store.path()), Vec::<String>::new());

    for key in ["k".repeat(MAX_KEY), "€".repeat(170) + "ab"] {
        assert!(store.enqueue(&pay(&key, 1, "done")).unwrap().fresh);
    }
    assert!(store.enqueue(&Unnamed::<4>("a".into())).unwrap().fresh);
    assert!(store.enqueue(&Unnamed::<5>("a".into())).unwrap().fresh);
}

#[test]
fn a_payload_over_the_limit_is_refused_before_any_write_and_one_at_it_is_kept() {
    let folder = TempStore::new().unwrap();
    let payload = |fill: usize| pay("a", 1, &"€".repeat(fill));
    let size = |job: &Pay| serde_json::to_string(job).unwrap().len();
    for limit in [size(&payload(50)), 256 * 1024] {
        let store = if limit < 1024 { folder.builder().payload_limit(limit).open() } else { folder.open() }.unwrap();
        let fill = (limit - size(&payload(0))) / 3;
        let mut fits = payload(fill);
        // Bytes count, not characters.
        fits.fate += &"x".repeat(limit - size(&fits));
        fits.key = "b".to_owned();
        let over = Pay { fate: fits.fate.clone() + "x", ..fits.clone() };
        let error = assert_refused_before_any_write(&store, &over, "PAYLOAD_TOO_LARGE");
        let text = error.to_string();
        assert!(text.contains(&limit.to_string()) && text.contains(&(limit + 1).to_string()), "{text}");
        assert!(store.enqueue(&fits).unwrap().fresh);
        run_sql(store.path(), "DELETE FROM birkez_job");
    }
}

#[test]
fn a_payload_that_is_no_json_is_refused_before_any_write() {
    #[derive(Serialize, Deserialize)]
    struct Pairs(std::collections::HashMap<Vec<u8>, u8>);
    impl Job for Pairs {
        const KIND: &'static str = "pairs";
        type Output = ();
        fn key(&self) -> String {
            "a".into()
        }
    }
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let error = assert_refused_before_any_write(&store, &Pairs([(vec![1], 1)].into()), "PAYLOAD_INVALID");
    assert!(std::error::Error::source(&error).unwrap().to_string().contains("key must be a string"));
}

/// Keys that one could take for another.
#[rustfmt::skip]
const KEYS: &[&str] = &[
    "café", "cafe\u{301}", "Café", "CAFÉ", "café ", " café", "café\n", "café\t", "café\u{200b}", "ｃａｆé",
    "1", "01", "1.0", "+1", "1e0", "%", "_", "*", "?", "''", "\"\"", "'; DROP TABLE birkez_job; --", "a/b", "a//b",
    "ß", "ss", "İ", "i", "I", "ı", "null", "NULL", "🎫", "\u{7f}", "\u{1b}[31m",
];

#[test]
fn keys_differ_by_their_bytes() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let jobs: Vec<_> = KEYS.iter().map(|key| pay(key, 1, "done")).collect();
    let answers = store.enqueue_all(&jobs).unwrap();
    assert!(answers.iter().all(|answer| answer.fresh));
    for (at, key) in KEYS.iter().enumerate() {
        let found = store.find("pay", key).unwrap().unwrap();
        assert_eq!((found.id, found.key.as_str()), (answers[at].id, *key));
        assert_eq!(store.enqueue(&jobs[at]).unwrap().id, answers[at].id);
    }
    assert!(store.find("Pay", "1").unwrap().is_none(), "kinds differ by their bytes too");
}

#[test]
fn what_a_job_says_of_itself_is_stored_and_its_time_is_waited_for() {
    #[derive(Serialize, Deserialize)]
    struct Planned;
    impl Job for Planned {
        const KIND: &'static str = "planned";
        type Output = ();
        fn key(&self) -> String {
            "a".into()
        }
        fn priority(&self) -> i32 {
            -7
        }
        fn run_at(&self) -> Option<DateTime<Utc>> {
            "2026-03-29T01:00:00.500Z".parse().ok()
        }
        fn ordering_key(&self) -> Option<String> {
            Some("card 7".into())
        }
        fn version(&self) -> Option<i64> {
            Some(i64::MIN)
        }
    }
    let folder = TempStore::new().unwrap();
    let clock = ManualClock::at("2026-03-29T01:00:00.499Z".parse().unwrap());
    let store = folder.builder().clock(clock.clone()).open().unwrap();
    let drain = Drain::new(Runner::builder(&store).handle(|_: Planned, _cx: &Context| Ok(()))).unwrap();
    let id = store.enqueue(&Planned).unwrap().id;
    let job = store.job(id).unwrap().unwrap();
    assert_eq!((job.priority, job.version), (-7, Some(i64::MIN)));
    assert_eq!(job.ordering_key.as_deref(), Some("card 7"));
    assert_eq!((Some(job.run_at), job.created_at), (Planned.run_at(), Some(clock.now())));
    assert_eq!(drain.drain().unwrap(), 0);
    clock.advance(Duration::from_millis(1));
    assert_eq!(drain.drain().unwrap(), 1);
}
