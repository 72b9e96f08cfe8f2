//! What strangers found in the operations of issue 5: an answer that was not true, a canary that was passed over, a refused
//! call that changed something.

mod common;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{
    AfterCrash, Context, Error, Filter, Job, Keep, Kept, Occurrence, Reason, Replay, Resolution, Retention,
    RetryPolicy, Runner, Schedule, Scope, State, Store, Verdicts,
};
use common::{ask, run_sql, wait_until};
use serde::{Deserialize, Serialize};

/// A name `line:n` stands in that line; what it begins with says how it ends.
#[derive(Serialize, Deserialize)]
struct Post {
    name: String,
    #[serde(default)]
    minor: i64,
}

impl Job for Post {
    const KIND: &'static str = "post";
    type Output = i64;
    fn key(&self) -> String {
        self.name.clone()
    }
    fn ordering_key(&self) -> Option<String> {
        self.name.split_once(':').map(|(line, _)| line.to_owned())
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().jitter(0.0).max_attempts(3)
    }
}

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("run") => {
            let store = Store::open(common::given("FILE")).unwrap();
            let _runner = Runner::builder(&store).handle(as_its_name_says).start().unwrap();
            std::thread::sleep(common::PATIENCE);
        }
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

fn enqueue(store: &Store, name: &str) -> i64 {
    store.enqueue(&Post { name: name.into(), minor: 1 }).unwrap().id
}

fn as_its_name_says(post: Post, _: &Context) -> anyhow::Result<i64> {
    let failed: anyhow::Result<i64> = Err(anyhow::anyhow!("no stamp"));
    match post.name.split('/').next() {
        Some("dead") => failed.permanent(),
        Some("parked") => failed.park("auth"),
        Some("fails") => failed,
        _ => Ok(post.minor),
    }
}

fn drain(store: &Store) {
    Drain::new(Runner::builder(store).handle(as_its_name_says)).unwrap().drain().unwrap();
}

fn state(store: &Store, id: i64) -> State {
    store.job(id).unwrap().unwrap().state
}

fn desk() -> (TempStore, Arc<ManualClock>, Store) {
    let folder = TempStore::new().unwrap();
    let clock = ManualClock::at("2026-05-30T12:00:00Z".parse().unwrap());
    let store = folder.builder().clock(clock.clone()).open().unwrap();
    (folder, clock, store)
}

/// A lease as another process holds it.
fn lease(folder: &TempStore, job: i64, on_crash: i64) {
    let row = format!("INSERT INTO birkez_lease VALUES ({job}, 99, 9, 1, 1, {on_crash}, 0)");
    run_sql(folder.path(), &row);
}

#[test]
fn a_job_that_came_back_in_front_of_one_that_runs_waits_behind_that_one_and_is_explained() {
    let (folder, _clock, store) = desk();
    let ids = ["l:1", "l:2", "l:3"].map(|name| enqueue(&store, name));
    store.cancel(ids[0], "Ada").unwrap();
    lease(&folder, ids[1], 0);
    store.replay(ids[0], Replay::new(), "Ada").unwrap();
    assert_eq!(store.job(ids[0]).unwrap().unwrap().behind, Some(ids[1]));
    let Reason::Behind { job, because, .. } = store.explain(ids[0]).unwrap().reason else { panic!("not behind") };
    assert_eq!((job, because.code()), (ids[1], "running"));
    let last = store.explain(ids[2]).unwrap().to_string();
    assert!(last.contains("behind job 1") && last.contains("behind job 2"), "{last}");
}

#[test]
fn a_canary_is_made_up_of_jobs_that_can_be_replayed_and_a_limit_too() {
    let (_folder, _clock, store) = desk();
    let gone: Vec<_> = (0..3).map(|n| enqueue(&store, &format!("dead/gone/{n}"))).collect();
    let dead: Vec<_> = (0..6).map(|n| enqueue(&store, &format!("dead/{n}"))).collect();
    drain(&store);
    store.discard(Filter::dead().key_prefix("dead/gone"), "Ada").unwrap();
    for id in &dead {
        run_sql(store.path(), &format!("UPDATE birkez_job SET state = 4 WHERE id = {id}"));
    }
    store.mend_counts().unwrap();
    let meant = Filter::state(State::Cancelled).kind("post");
    let dry = store.replay(&meant, Replay::new().limit(4).dry_run(), "Ada").unwrap();
    assert_eq!((dry.left, dry.would_go), (9, 4));
    let runner = Runner::builder(&store).handle(as_its_name_says).start().unwrap();
    let report = store.replay(&meant, Replay::new().canary(2).limit(4), "Ada").unwrap();
    runner.stop(Duration::from_secs(5)).unwrap();
    assert_eq!((report.refused.len(), report.replayed.len()), (gone.len(), 2), "{report:?}");
    assert!(report.stopped.is_some(), "the canary has failed");
    assert!(dead[2..].iter().all(|&id| state(&store, id) == State::Cancelled));
    let rest = store.replay(&meant, Replay::new().limit(3), "Ada").unwrap();
    assert_eq!(rest.replayed, dead[2..5]);
}

#[test]
fn a_canary_that_has_failed_is_not_waited_for_any_longer() {
    let (_folder, _clock, store) = desk();
    let ids = ["dead/a:1", "dead/a:2"].map(|name| enqueue(&store, name));
    drain(&store);
    store.pass_over(ids[0], "Ada").unwrap();
    drain(&store);
    let runner = Runner::builder(&store).handle(as_its_name_says).start().unwrap();
    let began = std::time::Instant::now();
    let report = store.replay(Filter::dead().kind("post"), Replay::new().canary(2), "Ada").unwrap();
    assert!(began.elapsed() < Duration::from_secs(30), "one of the two stands behind the dead one for ever");
    assert!(report.stopped.unwrap().contains("is dead"));
    drop(runner);
}

#[test]
fn a_replay_that_is_refused_changes_no_payload() {
    let (_folder, _clock, store) = desk();
    let waits = enqueue(&store, "waits");
    let fix = || Replay::new().fix(|_| Ok(serde_json::json!({ "name": "waits", "minor": 99 })));
    assert!(matches!(store.replay(waits, fix(), "Ada"), Err(Error::WrongState { .. })));
    assert!(matches!(store.replay(waits, fix().dry_run(), "Ada"), Err(Error::WrongState { .. })));
    assert_eq!(store.payload(waits).unwrap().unwrap(), r#"{"name":"waits","minor":1}"#);
    drain(&store);
    assert!(matches!(store.replay(waits, fix(), "Ada"), Err(Error::WrongState { .. })));
    assert_eq!(store.payload(waits).unwrap().unwrap(), r#"{"name":"waits","minor":1}"#);
}

#[test]
fn what_becomes_of_a_job_whose_process_is_gone_is_told_as_it_will_be() {
    let (folder, _clock, store) = desk();
    for (on_crash, stops, then, words) in [
        (0, false, AfterCrash::RunsAgain, "runs again"),
        (1, false, AfterCrash::Parked, "is parked for a person"),
        (1, true, AfterCrash::Parked, "is parked for a person"),
        (2, false, AfterCrash::Dead, "is dead"),
        (0, true, AfterCrash::Cancelled, "is called off"),
    ] {
        let id = enqueue(&store, &format!("{on_crash}/{stops}"));
        lease(&folder, id, on_crash);
        if stops {
            store.cancel(id, "Ada").unwrap();
        }
        let why = store.explain(id).unwrap();
        assert!(matches!(why.reason, Reason::Running { then: told, .. } if told == then), "{why:?}");
        assert!(why.to_string().contains(words), "{why}");
    }
    drain(&store);
    let parked = ["1/false", "1/true"].map(|key| store.find("post", key).unwrap().unwrap().state);
    assert_eq!(parked, [State::Parked; 2]);
    assert_eq!(store.find("post", "0/true").unwrap().unwrap().state, State::Cancelled);
}

#[test]
fn a_kind_in_which_all_workers_hang_is_in_nobodys_hands_until_one_comes_back() {
    #[derive(Serialize, Deserialize)]
    struct Hang(u32);
    impl Job for Hang {
        const KIND: &'static str = "hang";
        type Output = ();
        fn key(&self) -> String {
            self.0.to_string()
        }
        fn timeout() -> Option<Duration> {
            Some(Duration::from_millis(50))
        }
        fn retry() -> RetryPolicy {
            RetryPolicy::default().base(Duration::ZERO)
        }
    }
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let go_on = Arc::new(AtomicBool::new(false));
    let may_go = Arc::clone(&go_on);
    let handler = move |_: Hang, _: &Context| {
        while !may_go.load(Ordering::Acquire) {
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    };
    let runner = Runner::builder(&store).workers(1).handle(handler).start().unwrap();
    let ids = [0, 1].map(|n| store.enqueue(&Hang(n)).unwrap().id);
    wait_until("the kind is closed", || runner.closed_kinds() == ["hang"]);
    let code = |id| store.explain(id).unwrap().reason.code();
    wait_until("it is said so", || code(ids[1]) == "no_handler");
    wait_until("health names it", || store.health().unwrap().to_string().contains("hang"));
    go_on.store(true, Ordering::Release);
    wait_until("both are done", || ids.iter().all(|&id| state(&store, id) == State::Done));
    runner.stop(Duration::from_secs(5)).unwrap();
    let open = "SELECT count(*) FROM birkez_presence WHERE until IS NULL";
    assert_eq!(ask::<i64>(folder.path(), open), 0, "what was taken up again ends with the runner");
}

#[test]
fn a_person_gives_a_canary_all_its_attempts_back() {
    let (_folder, clock, store) = desk();
    let id = enqueue(&store, "parked/1");
    drain(&store);
    for decide in
        [(|store: &Store, id| store.resolve(id, Resolution::Retry, "Ada").unwrap()) as fn(&Store, i64), |store, id| {
            assert_eq!(store.release(id, "Ada").unwrap(), 1)
        }]
    {
        run_sql(store.path(), &format!("UPDATE birkez_job SET one_attempt = 1 WHERE id = {id}"));
        decide(&store, id);
        assert_eq!(ask::<i64>(store.path(), "SELECT one_attempt FROM birkez_job"), 0);
        clock.advance(Duration::from_secs(1));
        drain(&store);
    }
}

#[test]
fn a_time_that_the_job_has_set_itself_is_not_put_down_to_a_person() {
    let (_folder, clock, store) = desk();
    let id = enqueue(&store, "snoozes");
    let later = clock.now() + Duration::from_secs(60);
    store.reschedule(id, later, "Ada").unwrap();
    assert!(store.explain(id).unwrap().to_string().contains("set by Ada"));
    clock.set(later);
    let handler = |_: Post, _: &Context| Err::<i64, _>(birkez::snooze(Duration::from_secs(3_600)));
    Drain::new(Runner::builder(&store).handle(handler)).unwrap().drain().unwrap();
    let why = store.explain(id).unwrap();
    assert!(matches!(&why.reason, Reason::Scheduled { by: None, .. }), "{why}");
}

#[test]
fn what_is_paused_or_limited_to_none_is_not_late() {
    let (_folder, clock, store) = desk();
    let runner = || Drain::new(Runner::builder(&store).handle(as_its_name_says)).unwrap();
    let drain = runner();
    let codes = || store.health().unwrap().needs.iter().map(|need| need.code).collect::<Vec<_>>();
    let scope = || Scope::kind("post");
    for hold in [true, false] {
        if hold {
            store.pause(scope(), "Ada").unwrap();
        } else {
            store.set_limit(scope(), Some(0), "Ada").unwrap();
        }
        enqueue(&store, &format!("waits/{hold}"));
        drain.drain().unwrap();
        clock.advance(Duration::from_secs(600));
        assert_eq!(codes(), [""; 0], "held since ten minutes on purpose");
        store.unpause(scope(), "Ada").unwrap();
        store.set_limit(scope(), None, "Ada").unwrap();
        drain.drain().unwrap();
    }
}

#[test]
fn an_occurrence_whose_jobs_are_not_kept_any_more_says_so() {
    let (_folder, clock, store) = desk();
    let schedule = Schedule::cron("nightly", "0 3 * * *").unwrap().zone("UTC").unwrap();
    let map = |at: &Occurrence| vec![Post { name: at.date().to_string(), minor: 1 }];
    let drain = Drain::new(Runner::builder(&store).handle(as_its_name_says).schedule(schedule, map)).unwrap();
    for _ in 0..3 {
        drain.drain().unwrap();
        clock.advance(Duration::from_secs(86_400));
    }
    drain.drain().unwrap();
    let told = |date: &str| store.explain_schedule("nightly", date.parse().unwrap()).unwrap()[0].to_string();
    assert!(told("2026-05-31").contains("job 1"), "{}", told("2026-05-31"));
    store.prune(&Retention::keep_all().done(Kept::default().key(Keep::newest(0)))).unwrap();
    assert!(told("2026-05-31").contains("one job that is not kept any more"), "{}", told("2026-05-31"));
}

#[test]
fn who_died_is_nobodys_runner_for_health_and_explain_alike() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let child = common::Child::start("run", &[("FILE", folder.path())]);
    let is_handled = || store.stats().unwrap().kinds.iter().any(|kind| kind.kind == "post" && kind.is_handled);
    wait_until("it is there", is_handled);
    child.kill();
    enqueue(&store, "waits");
    assert_eq!(store.explain(1).unwrap().reason.code(), "no_handler");
    assert!(!is_handled());
    let needs = store.health().unwrap().to_string();
    assert!(needs.contains("no live runner handles it") && needs.contains("no runner is alive"), "{needs}");
}

/// Nobody is left to take it back.
#[test]
fn a_job_that_was_left_running_by_the_only_process_needs_attention() {
    let (folder, _clock, store) = desk();
    assert!(store.health().unwrap().is_fine());
    let id = enqueue(&store, "a");
    lease(&folder, id, 0);
    let needs = store.health().unwrap().to_string();
    assert!(needs.contains("no runner is alive") && needs.contains("left in processes that are gone"), "{needs}");
}

#[test]
fn what_is_held_for_days_is_named_by_whatever_name_and_rule_it_is_held() {
    #[derive(Serialize, Deserialize)]
    struct New(u32);
    impl Job for New {
        const KIND: &'static str = "new";
        const FORMER_KINDS: &'static [&'static str] = &["old"];
        type Output = ();
        fn key(&self) -> String {
            self.0.to_string()
        }
    }
    let (_folder, clock, store) = desk();
    let runner = || Runner::builder(&store).handle(|_: New, _: &Context| Ok(()));
    let drain = Drain::new(runner()).unwrap();
    let codes = || store.health().unwrap().needs.iter().map(|need| need.code).collect::<Vec<_>>();
    store.pause(Scope::kind("old"), "Ada").unwrap();
    let _ = store.enqueue(&New(1)).unwrap();
    drain.drain().unwrap();
    clock.advance(Duration::from_secs(3 * 86_400));
    assert_eq!(codes(), ["paused"]);
    store.set_limit(Scope::kind("new"), Some(0), "Ada").unwrap();
    store.unpause(Scope::kind("old"), "Ada").unwrap();
    assert_eq!(codes(), ["late"]);
    assert!(store.health().unwrap().to_string().contains("for a limit of none"));
}

#[test]
fn an_empty_text_in_a_filter_narrows_no_replay() {
    let (_folder, _clock, store) = desk();
    enqueue(&store, "dead/1");
    drain(&store);
    let empty = [Filter::dead().key_prefix(""), Filter::dead().error_contains(""), Filter::all().at_least_attempts(0)];
    for filter in empty {
        let refused = store.replay(filter, Replay::new(), "Ada");
        assert!(matches!(refused, Err(Error::ReplayRefused { .. })), "{refused:?}");
    }
}

#[test]
fn a_discarded_job_has_no_payload_in_the_record_of_deeds_either() {
    let (folder, _clock, store) = desk();
    let id = enqueue(&store, "dead/1");
    drain(&store);
    let fix = Replay::new().fix(|_| Ok(serde_json::json!({ "name": "dead/1", "minor": 2 })));
    let deed = store.replay(id, fix, "Ada").unwrap().deed.unwrap();
    assert!(store.payload_before(deed, id).unwrap().is_some());
    drain(&store);
    store.discard(id, "Ada").unwrap();
    assert!(store.payload_before(deed, id).unwrap().is_none());
    let kept = "SELECT count(*) FROM birkez_event_job WHERE payload IS NOT NULL";
    assert_eq!(ask::<i64>(folder.path(), kept), 0);
}

#[test]
fn the_last_hour_has_nothing_of_a_clock_that_was_ahead() {
    let (_folder, clock, store) = desk();
    clock.advance(Duration::from_secs(10 * 365 * 86_400));
    enqueue(&store, "a");
    drain(&store);
    assert_eq!(store.stats().unwrap().total.rates.done, 1);
    clock.set("2026-05-30T12:00:00Z".parse().unwrap());
    assert_eq!(store.stats().unwrap().total.rates.done, 0);
}

#[test]
fn a_copy_that_is_empty_or_not_there_is_refused_for_what_it_is() {
    let folder = TempStore::new().unwrap();
    let (copy, target) = (folder.path().with_file_name("copy.db"), folder.path().with_file_name("panel.db"));
    let missing = Store::restore(&copy, &target).unwrap_err();
    assert!(missing.code() == "IO" && missing.to_string().contains("copy.db"), "{missing}");
    std::fs::write(&copy, "").unwrap();
    assert_eq!(Store::restore(&copy, &target).unwrap_err().code(), "DAMAGED");
    assert!(!target.exists());
}

#[test]
fn a_function_whose_handle_is_dropped_is_not_called_after_that() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let (begun, go_on, called) = (flag(), flag(), flag());
    let (has_begun, may_go, was_called) = (Arc::clone(&begun), Arc::clone(&go_on), Arc::clone(&called));
    let slow = store
        .on_change(move || {
            has_begun.store(true, Ordering::Release);
            while !may_go.load(Ordering::Acquire) {
                std::thread::sleep(Duration::from_millis(1));
            }
        })
        .unwrap();
    let second = store.on_change(move || was_called.store(true, Ordering::Release)).unwrap();
    enqueue(&store, "a");
    wait_until("the first is at it", || begun.load(Ordering::Acquire));
    drop(second);
    go_on.store(true, Ordering::Release);
    drop(slow);
    assert!(!called.load(Ordering::Acquire));
}

fn flag() -> Arc<AtomicBool> {
    Arc::new(AtomicBool::new(false))
}
