//! Pauses and limits. What can go wrong: a paused kind runs all the same, after a restart, by the recovery from a crash, or
//! in another process; a pause is forgotten, and nobody knows of it; what is paused or at its limit stands in the way of
//! the rest; a limit stays used up when its holder is killed, or lets more run than it says.

mod common;

use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use birkez::testing::{Drain, TempStore};
use birkez::{Context, Deed, DeedPage, Durability, Job, Runner, RunnerBuilder, Scope, State, Store};
use common::{Child, Log, ask, given, run_sql, tell, wait_until, wait_within};
use serde::{Deserialize, Serialize};

/// "At once", on a busy machine: far below the minute after which a runner looks by itself.
const AT_ONCE: Duration = Duration::from_secs(10);

macro_rules! kind {
    ($name:ident, $kind:literal, $queue:literal, $former:expr) => {
        #[derive(Clone, Serialize, Deserialize)]
        struct $name {
            name: String,
            #[serde(default)]
            priority: i32,
        }

        impl Job for $name {
            const KIND: &'static str = $kind;
            const QUEUE: &'static str = $queue;
            const FORMER_KINDS: &'static [&'static str] = $former;
            type Output = ();
            fn key(&self) -> String {
                self.name.clone()
            }
            fn priority(&self) -> i32 {
                self.priority
            }
        }

        impl $name {
            fn new(name: impl ToString) -> $name {
                $name { name: name.to_string(), priority: 0 }
            }
        }
    };
}

kind!(Fetch, "fetch", "bank", &[]);
kind!(Post, "post", "bank", &[]);
kind!(Mail, "mail", "default", &["letter"]);
kind!(Letter, "letter", "default", &[]);

fn open(path: &Path) -> Store {
    Store::builder(path).durability(Durability::Normal).open().unwrap()
}

fn store() -> (TempStore, Store) {
    let folder = TempStore::new().unwrap();
    let store = open(folder.path());
    (folder, store)
}

fn states(store: &Store, kind: &str, state: State) -> usize {
    let filter = birkez::Filter::state(state).kind(kind);
    store.list(&filter, birkez::Page::first(100_000)).unwrap().len()
}

/// A runner that handles all kinds and notes what it starts.
fn noting(store: &Store, ran: &Arc<Mutex<Vec<String>>>) -> RunnerBuilder {
    let note = |ran: &Arc<Mutex<Vec<String>>>| {
        let ran = Arc::clone(ran);
        move |name: &str| ran.lock().unwrap().push(name.to_owned())
    };
    let (fetch, post, mail) = (note(ran), note(ran), note(ran));
    Runner::builder(store)
        .workers(2)
        .handle(move |job: Fetch, _: &Context| {
            fetch(&job.name);
            Ok(())
        })
        .handle(move |job: Post, _: &Context| {
            post(&job.name);
            Ok(())
        })
        .handle(move |job: Mail, _: &Context| {
            mail(&job.name);
            Ok(())
        })
}

fn drain(store: &Store) -> Vec<String> {
    let ran = Arc::default();
    Drain::new(noting(store, &ran)).unwrap().drain().unwrap();
    let mut names = std::mem::take(&mut *ran.lock().unwrap());
    names.sort_unstable();
    names
}

#[test]
fn child_role() {
    match common::role().as_deref() {
        // Holds one job until it is killed.
        Some("hold") => {
            let store = open(Path::new(&given("DB")));
            let handler = |job: Fetch, _: &Context| -> anyhow::Result<()> {
                tell(format!("start {}", job.name));
                std::thread::sleep(Duration::from_secs(600));
                Ok(())
            };
            let _runner = Runner::builder(&store).workers(1).handle(handler).start().unwrap();
            std::thread::sleep(Duration::from_secs(600));
        }
        // Runs what there is, and notes when each begins and ends.
        Some("work") => {
            let store = open(Path::new(&given("DB")));
            let runner = busy(&store).start().unwrap();
            tell("ready");
            common::await_go();
            runner.stop(Duration::from_secs(10)).unwrap();
        }
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

fn busy(store: &Store) -> RunnerBuilder {
    let log = Log::beside(store.path());
    let handler = move |job: Fetch, _: &Context| {
        log.note(format!("start {}", job.name));
        std::thread::sleep(Duration::from_millis(3));
        log.note(format!("end {}", job.name));
        Ok(())
    };
    Runner::builder(store).workers(4).handle(handler)
}

/// The most that were between their start and their end at one time.
fn most_at_once(log: &Log) -> usize {
    let (mut now, mut most) = (0usize, 0);
    for line in log.lines() {
        if line.starts_with("start ") {
            now += 1
        } else {
            now -= 1
        }
        most = most.max(now);
    }
    most
}

#[test]
fn a_hundred_paused_jobs_in_front_stand_in_nobodys_way() {
    let (_folder, store) = store();
    store.pause(Scope::kind("fetch"), "Ada").unwrap();
    let paused: Vec<_> = (0..100).map(|n| Fetch { name: n.to_string(), priority: 9 }).collect();
    store.enqueue_all(&paused).unwrap();
    let _ = store.enqueue(&Mail::new("a")).unwrap();
    assert_eq!(drain(&store), ["a"]);
    assert_eq!(states(&store, "fetch", State::Waiting), 100);
    assert!(store.unpause(Scope::kind("fetch"), "Ada").unwrap());
    assert_eq!(drain(&store).len(), 100);
}

#[test]
fn a_pause_survives_kill_and_restart_and_the_recovery_keeps_to_it() {
    let (folder, store) = store();
    let jobs: Vec<_> = (0..12).map(Fetch::new).collect();
    store.enqueue_all(&jobs).unwrap();
    let mut child = Child::start("hold", &[("DB", folder.path())]);
    child.expect("start 0");
    let deed = Deed::by("Ada").because("their interface is down");
    assert!(store.pause(Scope::kind("fetch"), &deed).unwrap());
    drop(store);
    child.kill();
    let store = open(folder.path());
    let ran = Arc::default();
    let runner = noting(&store, &ran).start().unwrap();
    let lease = "SELECT count(*) FROM birkez_lease";
    wait_until("the killed one's job is taken back", || ask::<i64>(folder.path(), lease) == 0);
    for n in 0..20 {
        let _ = store.enqueue(&Mail::new(n)).unwrap();
    }
    wait_until("the mails are done", || states(&store, "mail", State::Done) == 20);
    assert_eq!(ran.lock().unwrap().len(), 20, "no paused job has started");
    let [pause] = &store.pauses().unwrap()[..] else { panic!("one pause") };
    assert_eq!((&pause.scope, pause.who.as_str(), pause.waiting), (&Scope::kind("fetch"), "Ada", 12));
    assert_eq!(pause.why.as_deref(), Some("their interface is down"));
    assert!(store.unpause(Scope::kind("fetch"), "Ada").unwrap());
    assert!(wait_within(AT_ONCE, || states(&store, "fetch", State::Done) == 12).is_some(), "all run once it has ended");
    runner.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn another_process_sees_a_pause_and_its_end_without_being_told() {
    let (folder, store) = store();
    store.pause(Scope::queue("bank"), "Ada").unwrap();
    let mut child = Child::start("work", &[("DB", folder.path())]);
    child.expect("ready");
    let log = Log::beside(folder.path());
    store.enqueue_all(&(0..5).map(Fetch::new).collect::<Vec<_>>()).unwrap();
    store.unpause(Scope::queue("bank"), "Ada").unwrap();
    assert!(wait_within(AT_ONCE, || log.count("end ") == 5).is_some(), "{:?}", log.lines());
    store.pause(Scope::kind("fetch"), "Ada").unwrap();
    // It has seen the pause once it has written anything since, such as what it gives back.
    let (jobs, writes) = ((5..9).map(Fetch::new).collect::<Vec<_>>(), log.lines().len());
    store.enqueue_all(&jobs).unwrap();
    let looks = Duration::from_millis(300);
    assert_eq!(wait_within(looks, || log.lines().len() > writes), None, "{:?}", log.lines());
    store.unpause(Scope::kind("fetch"), "Ada").unwrap();
    assert!(wait_within(AT_ONCE, || log.count("end ") == 9).is_some(), "{:?}", log.lines());
    child.go();
    child.finish();
}

#[test]
fn what_was_claimed_ahead_is_given_back_uncharged_when_a_pause_comes() {
    let (folder, store) = store();
    let (gate, started, waits) =
        (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default(), Arc::<AtomicBool>::default());
    let leases = {
        let path = folder.path().to_owned();
        move || ask::<i64>(&path, "SELECT count(*) FROM birkez_lease")
    };
    let (open, counted, held, ahead) = (Arc::clone(&gate), Arc::clone(&started), Arc::clone(&waits), leases.clone());
    let handler = move |_: Fetch, _: &Context| {
        counted.fetch_add(1, Ordering::SeqCst);
        // Holds on once enough lies behind it in the hands of this process.
        while !open.load(Ordering::SeqCst) && ahead() > 5 {
            held.store(true, Ordering::SeqCst);
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    store.enqueue_all(&(0..2_000).map(Fetch::new).collect::<Vec<_>>()).unwrap();
    let runner = Runner::builder(&store).workers(1).handle(handler).start().unwrap();
    wait_until("some are claimed ahead, and one runs", || waits.load(Ordering::SeqCst));
    store.pause(Scope::queue("bank"), "Ada").unwrap();
    let started_by_then = started.load(Ordering::SeqCst);
    gate.store(true, Ordering::SeqCst);
    wait_until("the running one goes on to its end, and all others are given back", || leases() == 0);
    let done = states(&store, "fetch", State::Done);
    assert_eq!((started.load(Ordering::SeqCst), done), (started_by_then, started_by_then), "nothing else has started");
    assert_eq!(ask::<i64>(folder.path(), "SELECT count(*) FROM birkez_job WHERE attempts > 0 AND state = 0"), 0);
    store.unpause(Scope::queue("bank"), "Ada").unwrap();
    wait_until("the rest is done", || states(&store, "fetch", State::Done) == 2_000);
    assert_eq!(started.load(Ordering::SeqCst), 2_000, "each has started once");
    runner.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_queue_is_its_kinds_and_a_kind_is_all_its_names() {
    let (folder, store) = store();
    let fill = |n: u32| {
        let _ = store.enqueue(&Fetch::new(format!("fetch {n}"))).unwrap();
        let _ = store.enqueue(&Post::new(format!("post {n}"))).unwrap();
        let _ = store.enqueue(&Mail::new(format!("mail {n}"))).unwrap();
        run_sql(
            folder.path(),
            &format!(
                "INSERT INTO birkez_job (kind, key, payload) VALUES ('letter', 'l{n}', '{{\"name\":\"letter {n}\"}}')"
            ),
        );
    };
    drain(&store);
    for (n, scope, runs) in [
        (1, Scope::queue("bank"), vec!["letter 1", "mail 1"]),
        (2, Scope::queue("default"), vec!["fetch 2", "post 2"]),
        (3, Scope::kind("mail"), vec!["fetch 3", "post 3"]),
        (4, Scope::kind("letter"), vec!["fetch 4", "post 4"]),
        (5, Scope::kind("fetch"), vec!["letter 5", "mail 5", "post 5"]),
    ] {
        fill(n);
        store.pause(scope.clone(), "Ada").unwrap();
        assert_eq!(drain(&store), runs, "{scope}");
        assert_eq!(store.pauses().unwrap()[0].waiting, 4 - runs.len() as u64, "{scope}");
        store.unpause(scope.clone(), "Ada").unwrap();
        assert_eq!(drain(&store).len(), 4 - runs.len(), "{scope}");
    }
}

#[test]
fn a_kind_that_nobody_has_handled_yet_counts_to_the_default_queue() {
    let (_folder, store) = store();
    let _ = store.enqueue(&Letter::new("old")).unwrap();
    store.pause(Scope::queue("default"), "Ada").unwrap();
    store.pause(Scope::queue("bank"), "Ada").unwrap();
    let mut waiting: Vec<_> = store.pauses().unwrap().into_iter().map(|pause| (pause.scope, pause.waiting)).collect();
    waiting.sort();
    assert_eq!(waiting, [(Scope::queue("bank"), 0), (Scope::queue("default"), 1)]);
}

#[test]
fn a_caller_of_once_is_not_held_back_and_counts() {
    let (_folder, store) = store();
    store.pause(Scope::kind("fetch"), "Ada").unwrap();
    store.set_limit(Scope::kind("fetch"), Some(0), "Ada").unwrap();
    let seen = store.clone();
    let running = |_: &Context| {
        assert_eq!(seen.limits().unwrap()[0].running.len(), 1);
        Ok(())
    };
    store.once(&Fetch::new("now"), running).unwrap();
    assert_eq!(states(&store, "fetch", State::Done), 1);
}

#[test]
fn pauses_and_limits_stand_in_the_record_of_deeds_once_each() {
    let (_folder, store) = store();
    let kind = || Scope::kind("fetch");
    assert!(store.pause(kind(), Deed::by("Ada").because("of the bank")).unwrap());
    assert!(!store.pause(kind(), "Ben").unwrap(), "the first stands");
    assert_eq!(store.pauses().unwrap()[0].who, "Ada");
    assert!(store.unpause(kind(), "Ben").unwrap() && !store.unpause(kind(), "Ben").unwrap());
    assert!(store.set_limit(kind(), Some(2), "Ada").unwrap() && !store.set_limit(kind(), Some(2), "Ada").unwrap());
    assert!(store.set_limit(kind(), None, "Ada").unwrap() && !store.set_limit(kind(), None, "Ada").unwrap());
    let deeds = store.deeds(DeedPage { below: None, limit: 9 }).unwrap();
    let told: Vec<_> = deeds.iter().rev().map(|deed| (deed.who.as_str(), deed.verb.as_str())).collect();
    assert_eq!(told, [("Ada", "pause"), ("Ben", "unpause"), ("Ada", "set limit"), ("Ada", "set limit")]);
    assert!(deeds.iter().all(|deed| deed.subject.as_deref() == Some("kind fetch")));
    assert_eq!(store.pause(Scope::queue(""), "Ada").unwrap_err().code(), "KIND_INVALID");
}

#[test]
fn two_processes_together_keep_to_a_limit() {
    let (folder, store) = store();
    store.set_limit(Scope::queue("bank"), Some(2), "Ada").unwrap();
    let runner = busy(&store).start().unwrap();
    let mut child = Child::start("work", &[("DB", folder.path())]);
    child.expect("ready");
    store.enqueue_all(&(0..120).map(Fetch::new).collect::<Vec<_>>()).unwrap();
    let log = Log::beside(folder.path());
    assert!(wait_within(AT_ONCE * 3, || log.count("end ") == 120).is_some(), "{} done", log.count("end "));
    assert_eq!(most_at_once(&log), 2, "no more than two, and two where there are two to run");
    child.go();
    child.finish();
    runner.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_killed_holder_leaves_no_limit_used_up() {
    let (folder, store) = store();
    store.set_limit(Scope::kind("fetch"), Some(1), "Ada").unwrap();
    store.enqueue_all(&[Fetch::new("held"), Fetch::new("next")]).unwrap();
    let mut child = Child::start("hold", &[("DB", folder.path())]);
    child.expect("start held");
    let runner = busy(&store).start().unwrap();
    let log = Log::beside(folder.path());
    assert_eq!(wait_within(Duration::from_millis(300), || !log.lines().is_empty()), None, "the limit is used up");
    child.kill();
    assert!(wait_within(AT_ONCE, || log.count("end ") == 2).is_some(), "{:?}", log.lines());
    assert_eq!(most_at_once(&log), 1);
    runner.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_process_keeps_no_part_of_a_limit_for_workers_that_are_busy() {
    let (folder, store) = store();
    let gate = Arc::new(AtomicBool::new(true));
    let open = Arc::clone(&gate);
    let handler = move |_: Fetch, _: &Context| {
        while !open.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    let runner = Runner::builder(&store).workers(1).handle(handler).start().unwrap();
    store.enqueue_all(&(0..300).map(Fetch::new).collect::<Vec<_>>()).unwrap();
    wait_until("the kind is measured, and claimed ahead from now on", || states(&store, "fetch", State::Done) == 300);
    store.set_limit(Scope::kind("fetch"), Some(4), "Ada").unwrap();
    gate.store(false, Ordering::SeqCst);
    store.enqueue_all(&(300..400).map(Fetch::new).collect::<Vec<_>>()).unwrap();
    let leases = || ask::<i64>(folder.path(), "SELECT count(*) FROM birkez_lease");
    wait_until("one runs", || leases() > 0);
    assert_eq!(wait_within(Duration::from_millis(200), || leases() > 1), None, "the rest of the limit is for others");
    gate.store(true, Ordering::SeqCst);
    wait_until("the rest is done", || states(&store, "fetch", State::Done) == 400);
    runner.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_kind_at_its_limit_holds_up_no_other() {
    let (_folder, store) = store();
    store.set_limit(Scope::kind("fetch"), Some(1), "Ada").unwrap();
    let urgent: Vec<_> = (0..500).map(|n| Fetch { name: n.to_string(), priority: 9 }).collect();
    store.enqueue_all(&urgent).unwrap();
    store.enqueue_all(&(0..300).map(Mail::new).collect::<Vec<_>>()).unwrap();
    let gate = Arc::new(AtomicBool::new(false));
    let (open, most) = (Arc::clone(&gate), Arc::new((AtomicUsize::new(0), AtomicUsize::new(0))));
    let running = Arc::clone(&most);
    let slow = move |_: Fetch, _: &Context| {
        let now = running.0.fetch_add(1, Ordering::SeqCst) + 1;
        running.1.fetch_max(now, Ordering::SeqCst);
        while !open.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(1));
        }
        running.0.fetch_sub(1, Ordering::SeqCst);
        Ok(())
    };
    let runner = Runner::builder(&store).workers(2).handle(slow).handle(|_: Mail, _: &Context| Ok(())).start().unwrap();
    assert!(wait_within(AT_ONCE, || states(&store, "mail", State::Done) == 300).is_some(), "the mails go on beside it");
    assert_eq!(states(&store, "fetch", State::Running), 1);
    gate.store(true, Ordering::SeqCst);
    assert!(wait_within(AT_ONCE * 3, || states(&store, "fetch", State::Done) == 500).is_some());
    assert_eq!(most.1.load(Ordering::SeqCst), 1);
    runner.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn whoever_ends_lets_in_the_next_at_once_wherever_its_end_is_written() {
    let (_folder, store) = store();
    store.set_limit(Scope::kind("fetch"), Some(1), "Ada").unwrap();
    let handler = |job: Fetch, cx: &Context| match job.name.parse::<u32>()? % 2 {
        0 => Ok(()),
        _ => cx.commit(|_| Ok(())),
    };
    // It never looks by itself: a wake that is lost would cost a minute.
    let runner = Runner::builder(&store).workers(3).look_every(None).handle(handler).start().unwrap();
    store.enqueue_all(&(0..200).map(Fetch::new).collect::<Vec<_>>()).unwrap();
    let caller = store.clone();
    let others = std::thread::spawn(move || {
        for n in 0..200 {
            let _ = caller.enqueue(&Letter::new(n)).unwrap();
        }
    });
    assert!(wait_within(AT_ONCE * 2, || states(&store, "fetch", State::Done) == 200).is_some());
    others.join().unwrap();
    runner.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_limit_of_none_lets_none_start_and_the_end_of_it_lets_all() {
    let (_folder, store) = store();
    let runner = busy(&store).look_every(None).start().unwrap();
    store.set_limit(Scope::queue("bank"), Some(0), "Ada").unwrap();
    store.enqueue_all(&(0..10).map(Fetch::new).collect::<Vec<_>>()).unwrap();
    assert_eq!(wait_within(Duration::from_millis(150), || states(&store, "fetch", State::Waiting) < 10), None);
    store.set_limit(Scope::queue("bank"), None, "Ada").unwrap();
    assert!(wait_within(AT_ONCE, || states(&store, "fetch", State::Done) == 10).is_some());
    runner.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn the_lower_priorities_of_a_limited_kind_have_their_turn() {
    let (_folder, store) = store();
    store.set_limit(Scope::kind("fetch"), Some(1), "Ada").unwrap();
    let _ = store.enqueue(&Fetch { name: "humble".into(), priority: 0 }).unwrap();
    let urgent: Vec<_> = (0..60).map(|n| Fetch { name: n.to_string(), priority: 9 }).collect();
    store.enqueue_all(&urgent).unwrap();
    let runner = busy(&store).start().unwrap();
    let log = Log::beside(store.path());
    wait_until("all are done", || log.count("end ") == 61);
    let starts: Vec<_> = log.lines().into_iter().filter(|line| line.starts_with("start ")).collect();
    let turn = starts.iter().position(|line| line == "start humble").unwrap();
    assert!(turn <= 20, "it had its turn after {turn} others");
    assert_eq!(most_at_once(&log), 1);
    runner.stop(Duration::from_secs(5)).unwrap();
}
