//! Replaying dead letters. What can go wrong: a poisonous class floods what has just come up; more runs than was meant; a
//! job loses its history, its steps or its place in line, and two of one line run at once; a fix makes another job of it.

mod common;

use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{Class, Context, Deed, Error, Filter, Job, Page, Replay, RetryPolicy, Runner, State, Store, Verdicts};
use common::{ask, counts_equal_the_rows, run_sql, wait_until};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Post {
    name: String,
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
        RetryPolicy::default().jitter(0.0).base(Duration::from_millis(1)).max_attempts(2)
    }
}

fn post(name: &str) -> Post {
    Post { name: name.to_owned(), minor: 150 }
}

/// What a name begins with says how its job fails, until the trouble is over.
fn fails(name: &str) -> anyhow::Result<()> {
    let failed: anyhow::Result<()> = Err(anyhow::anyhow!("trouble with {name}"));
    match name.split('/').next() {
        Some("permanent") => failed.permanent(),
        Some("panic") => panic!("trouble with {name}"),
        Some("transient") => failed,
        _ => Ok(()),
    }
}

struct Desk {
    folder: TempStore,
    clock: Arc<ManualClock>,
    store: Store,
    trouble: Arc<AtomicBool>,
    ran: Arc<Mutex<Vec<String>>>,
}

impl Desk {
    fn new() -> Desk {
        let folder = TempStore::new().unwrap();
        let clock = ManualClock::at("2026-05-30T12:00:00Z".parse().unwrap());
        let store = folder.builder().clock(clock.clone()).open().unwrap();
        Desk { folder, clock, store, trouble: Arc::new(AtomicBool::new(true)), ran: Arc::default() }
    }

    fn drain(&self) {
        let (trouble, ran) = (Arc::clone(&self.trouble), Arc::clone(&self.ran));
        let handler = move |post: Post, _: &Context| {
            ran.lock().unwrap().push(post.name.clone());
            if trouble.load(Ordering::Acquire) {
                fails(&post.name)?;
            }
            Ok(post.minor)
        };
        Drain::new(Runner::builder(&self.store).handle(handler)).unwrap().drain().unwrap();
    }

    /// Runs until nothing is left to be retried.
    fn exhaust(&self) {
        for _ in 0..4 {
            self.drain();
            self.clock.advance(Duration::from_secs(1));
        }
        self.ran.lock().unwrap().clear();
    }

    fn dead(&self, names: &[&str]) -> Vec<i64> {
        let ids: Vec<_> = names.iter().map(|name| self.store.enqueue(&post(name)).unwrap().id).collect();
        self.exhaust();
        ids.iter().for_each(|&id| assert_eq!(self.state(id), State::Dead));
        ids
    }

    fn state(&self, id: i64) -> State {
        self.store.job(id).unwrap().unwrap().state
    }

    fn ran(&self) -> Vec<String> {
        std::mem::take(&mut self.ran.lock().unwrap())
    }
}

/// 10,000 dead jobs of three classes, made by plain SQL.
fn ten_thousand_dead(store: &Store) {
    run_sql(
        store.path(),
        r#"WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 10000)
        INSERT INTO birkez_job (kind, key, payload, state, gate, attempts, error_class, error_text, created_at, finished_at)
        SELECT 'post', 'dead/' || i, '{"name":"dead/' || i || '","minor":1}', 3, NULL, 2,
               CASE i % 3 WHEN 0 THEN 'transient' WHEN 1 THEN 'timeout' ELSE 'undecodable' END, 'trouble', 1, 2 FROM n;
        INSERT INTO birkez_count VALUES ('post', 3, 10000)"#,
    );
}

#[test]
fn a_canary_that_fails_stops_the_replay_of_its_class_and_leaves_the_rest_untouched() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    ten_thousand_dead(&store);
    let timeouts = Filter::dead().kind("post").class(Class::Timeout);
    let meant = store.replay(&timeouts, Replay::new().dry_run(), "Ada").unwrap();
    assert_eq!((meant.by_class, meant.left), (vec![(Some(Class::Timeout), 3334)], 3334));
    let ran = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&ran);
    let handler = move |_: Post, _: &Context| -> anyhow::Result<i64> {
        count.fetch_add(1, Ordering::AcqRel);
        anyhow::bail!("still down")
    };
    let runner = Runner::builder(&store).workers(2).handle(handler).start().unwrap();
    let report = store.replay(&timeouts, Replay::new().canary(5).limit(100), "Ada").unwrap();
    runner.stop(Duration::from_secs(5)).unwrap();
    assert_eq!((report.replayed.len(), report.left), (5, 3329));
    let stopped = report.stopped.unwrap();
    assert!(stopped.starts_with("5 of 5 in the canary were not done"), "{stopped}");
    assert!(stopped.contains("still down") && report.canary.iter().all(|job| job.state == State::Dead), "{stopped}");
    assert_eq!(ran.load(Ordering::Acquire), 5, "one attempt each");
    assert_eq!(ask::<i64>(folder.path(), "SELECT count(*) FROM birkez_job WHERE state = 3"), 10_000);
    assert_eq!(ask::<i64>(folder.path(), "SELECT count(*) FROM birkez_job WHERE error_text = 'trouble'"), 9_995);
    let touched = store.list(&Filter::all().touched_by(report.deed.unwrap()), Page::first(10)).unwrap();
    assert_eq!(touched.len(), 5);
    counts_equal_the_rows(folder.path());
}

#[test]
fn a_canary_that_is_done_is_followed_by_the_others_up_to_the_limit() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    ten_thousand_dead(&store);
    let runner = Runner::builder(&store).workers(2).handle(|post: Post, _: &Context| Ok(post.minor)).start().unwrap();
    let which = Filter::dead().class(Class::Transient);
    let report = store.replay(&which, Replay::new().canary(5).limit(100), "Ada").unwrap();
    assert_eq!((report.replayed.len(), report.left, report.stopped), (100, 3_233, None));
    wait_until("all are done", || store.list(&Filter::state(State::Done), Page::first(200)).unwrap().len() == 100);
    runner.stop(Duration::from_secs(5)).unwrap();
    counts_equal_the_rows(folder.path());
}

#[test]
fn a_canary_that_nobody_runs_stops_the_replay_and_the_report_says_so() {
    let desk = Desk::new();
    let ids = desk.dead(&["permanent/1", "permanent/2"]);
    let how = Replay::new().canary(1).patience(Duration::from_millis(50));
    let report = desk.store.replay(Filter::dead().kind("post"), how, "Ada").unwrap();
    assert!(report.stopped.unwrap().contains("still waiting"));
    assert_eq!(desk.state(ids[1]), State::Dead);
}

#[test]
fn everything_is_replayed_only_if_that_is_said() {
    let desk = Desk::new();
    let ids = desk.dead(&["permanent/1"]);
    for filter in [Filter::dead(), Filter::all(), Filter::state(State::Cancelled)] {
        let refused = desk.store.replay(filter, Replay::new(), "Ada");
        assert!(matches!(refused, Err(Error::ReplayRefused { .. })), "{refused:?}");
    }
    let waiting = desk.store.replay(Filter::state(State::Waiting).kind("post"), Replay::new(), "Ada");
    assert!(matches!(waiting, Err(Error::ReplayRefused { .. })), "{waiting:?}");
    assert_eq!(desk.store.replay(Filter::all(), Replay::new().everything(), "Ada").unwrap().replayed, ids);
}

#[test]
fn a_replayed_job_has_all_its_attempts_and_one_that_dies_again_shows_both_histories() {
    let desk = Desk::new();
    let id = desk.dead(&["transient/1"])[0];
    assert_eq!(desk.store.attempts(id).unwrap().len(), 2);
    let report = desk.store.replay(id, Replay::new(), Deed::by("Ada").because("the server is back")).unwrap();
    assert_eq!((report.replayed, report.left), (vec![id], 0));
    assert_eq!(desk.store.job(id).unwrap().unwrap().attempts, 0);
    desk.exhaust();
    assert_eq!(desk.state(id), State::Dead);
    let numbers: Vec<_> = desk.store.attempts(id).unwrap().iter().map(|attempt| attempt.number).collect();
    assert_eq!(numbers, [1, 2, 1, 2]);
    let history = desk.store.history(id).unwrap().unwrap();
    assert_eq!((history.attempts.len(), history.deeds.len()), (4, 1));
    let (first, last) = (history.first_failure().unwrap(), history.last_failure().unwrap());
    assert!(first.failure.text == "trouble with transient/1" && first.ended_at < last.ended_at);
    let touched = &desk.store.deeds_of(id).unwrap()[0];
    assert_eq!((touched.state, touched.attempts, &*touched.deed.verb), (State::Dead, 2, "replay"));
    counts_equal_the_rows(desk.folder.path());
}

#[test]
fn the_pace_is_kept_by_times_in_the_file_and_the_rest_can_be_called_off() {
    let desk = Desk::new();
    let ids = desk.dead(&["permanent/1", "permanent/2", "permanent/3", "permanent/4"]);
    desk.trouble.store(false, Ordering::Release);
    let report = desk.store.replay(Filter::dead().kind("post"), Replay::new().per_minute(1), "Ada").unwrap();
    desk.drain();
    assert_eq!(desk.ran(), ["permanent/1"]);
    desk.clock.advance(Duration::from_secs(59));
    desk.drain();
    assert!(desk.ran().is_empty(), "too early");
    desk.clock.advance(Duration::from_secs(1));
    desk.drain();
    assert_eq!(desk.ran(), ["permanent/2"]);
    let rest = Filter::state(State::Waiting).touched_by(report.deed.unwrap());
    assert_eq!(desk.store.cancel(rest, "Ada").unwrap().len(), 2);
    desk.clock.advance(Duration::from_secs(600));
    desk.drain();
    assert!(desk.ran().is_empty());
    // And replayed after all.
    desk.store.replay(Filter::state(State::Cancelled).kind("post"), Replay::new(), "Ada").unwrap();
    desk.drain();
    assert_eq!(desk.ran(), ["permanent/3", "permanent/4"]);
    assert!(ids.iter().all(|&id| desk.state(id) == State::Done));
    counts_equal_the_rows(desk.folder.path());
}

#[test]
fn dead_jobs_of_one_line_are_replayed_in_its_order() {
    let desk = Desk::new();
    desk.dead(&["permanent/a:1"]);
    let behind: Vec<_> = (2..5).map(|n| desk.store.enqueue(&post(&format!("permanent/a:{n}"))).unwrap().id).collect();
    for id in &behind {
        let head = desk.store.blocked_keys().unwrap()[0].head.id;
        assert!(desk.store.pass_over(head, "Ada").unwrap());
        desk.drain();
        assert_eq!(desk.state(*id), State::Dead);
    }
    desk.ran();
    desk.trouble.store(false, Ordering::Release);
    desk.store.replay(Filter::dead().kind("post"), Replay::new(), "Ada").unwrap();
    desk.drain();
    assert_eq!(desk.ran(), ["permanent/a:1", "permanent/a:2", "permanent/a:3", "permanent/a:4"]);
}

#[test]
fn a_replayed_job_of_a_line_goes_in_front_of_those_that_wait_and_never_runs_beside_one_that_runs() {
    let desk = Desk::new();
    let first = desk.dead(&["permanent/a:1"])[0];
    desk.store.pass_over(first, "Ada").unwrap();
    let second = desk.store.enqueue(&post("a:2")).unwrap().id;
    // As another process claims it.
    let claim = |id: i64| {
        let lease = "INSERT INTO birkez_lease (job_id, runner, token, attempt, since, on_crash) VALUES";
        run_sql(desk.folder.path(), &format!("UPDATE birkez_job SET ordering_key = 'a' WHERE id IN ({first}, {id})"));
        run_sql(desk.folder.path(), &format!("{lease} ({id}, 99, 7, 1, 1, 0)"));
    };
    claim(second);
    desk.store.replay(first, Replay::new(), "Ada").unwrap();
    let gate = |id: i64| ask::<i64>(desk.folder.path(), &format!("SELECT gate FROM birkez_job WHERE id = {id}"));
    assert_eq!(gate(first), 2, "the later one runs");
    desk.store.reschedule(first, "2026-05-30T12:00:00Z".parse().unwrap(), "Ada").unwrap();
    assert_eq!(gate(first), 2, "it still runs");
    desk.trouble.store(false, Ordering::Release);
    // Its process is gone: it waits again, behind the one that came back.
    desk.drain();
    assert_eq!(desk.ran(), ["permanent/a:1", "a:2"]);
}

#[test]
fn a_replayed_head_that_is_not_due_yet_holds_back_what_came_later() {
    let desk = Desk::new();
    let ids = desk.dead(&["permanent/b", "permanent/x:1"]);
    desk.store.pass_over(ids[1], "Ada").unwrap();
    let later = desk.store.enqueue(&post("permanent/x:2")).unwrap().id;
    desk.trouble.store(false, Ordering::Release);
    desk.store.replay(Filter::dead().kind("post"), Replay::new().per_minute(1), "Ada").unwrap();
    desk.drain();
    assert_eq!((desk.ran(), desk.state(later)), (vec!["permanent/b".to_owned()], State::Waiting));
    desk.clock.advance(Duration::from_secs(60));
    desk.drain();
    assert_eq!(desk.ran(), ["permanent/x:1", "permanent/x:2"]);
}

#[test]
fn stored_steps_and_the_idempotency_key_stay_unless_all_is_to_be_anew() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let (charges, keys) = (Arc::new(AtomicUsize::new(0)), Arc::new(Mutex::new(Vec::new())));
    let (count, seen) = (Arc::clone(&charges), Arc::clone(&keys));
    let handler = move |post: Post, cx: &Context| {
        seen.lock().unwrap().push(cx.idempotency_key().to_owned());
        cx.step("charge", || Ok(count.fetch_add(1, Ordering::AcqRel)))?;
        let failed: anyhow::Result<i64> = Err(anyhow::anyhow!("charged, then failed for {}", post.minor));
        failed.permanent()
    };
    let drain = Drain::new(Runner::builder(&store).handle(handler)).unwrap();
    let id = store.enqueue(&post("1")).unwrap().id;
    drain.drain().unwrap();
    for (how, charged, known) in
        [(Replay::new(), 1, 1), (Replay::new().anew(), 2, 2), (Replay::new(), 2, 2), (Replay::new().anew(), 3, 3)]
    {
        store.replay(id, how, "Ada").unwrap();
        drain.drain().unwrap();
        let keys: HashSet<_> = keys.lock().unwrap().iter().cloned().collect();
        assert_eq!((charges.load(Ordering::Acquire), keys.len()), (charged, known));
    }
}

#[test]
fn a_payload_is_put_right_checked_against_its_type_and_the_old_one_is_kept() {
    let desk = Desk::new();
    let id = desk.dead(&["permanent/1"])[0];
    let fix = |value: &'static str| Replay::new().fix(move |_| Ok(serde_json::from_str(value)?));
    // Known since a runner of this process handles the kind.
    for (wrong, why) in [(r#"{"name":"permanent/1"}"#, "does not decode"), (r#"{"name":"x","minor":1}"#, "another key")]
    {
        let report = desk.store.replay(id, fix(wrong), "Ada").unwrap();
        assert!(report.refused[0].1.contains(why), "{:?}", report.refused);
        assert_eq!((desk.state(id), report.left), (State::Dead, 1));
    }
    let failing = desk.store.replay(id, Replay::new().fix(|_| anyhow::bail!("not this one")), "Ada").unwrap();
    assert_eq!(failing.refused, [(id, "not this one".to_owned())]);
    let panicking = desk.store.replay(id, Replay::new().fix(|_| panic!("oh")), "Ada").unwrap();
    assert!(panicking.refused[0].1.contains("oh"));
    desk.trouble.store(false, Ordering::Release);
    let report = desk.store.replay(id, fix(r#"{"name":"permanent/1","minor":7}"#), "Ada").unwrap();
    desk.drain();
    let answer = desk.store.enqueue(&post("permanent/1")).unwrap();
    assert!(!answer.fresh && answer.compared, "what was sent is still what was sent");
    assert!(matches!(answer.standing, birkez::Standing::Done(Ok(7))), "{answer:?}");
    let old = desk.store.payload_before(report.deed.unwrap(), id).unwrap().unwrap();
    assert_eq!(old, r#"{"name":"permanent/1","minor":150}"#);
    let other = desk.store.enqueue(&Post { name: "permanent/1".into(), minor: 8 });
    assert!(matches!(other, Err(Error::KeyReused { .. })), "{other:?}");
}

#[test]
fn the_sender_of_a_plain_insert_is_still_told_a_repeat_after_a_fix() {
    let desk = Desk::new();
    let insert = r#"INSERT INTO birkez_job (kind, key, payload) VALUES ('post', 'permanent/1', '{"name":"permanent/1","minor":150}')"#;
    run_sql(desk.folder.path(), insert);
    desk.exhaust();
    let fixed = Replay::new().fix(|mut payload| {
        payload["minor"] = 7.into();
        Ok(payload)
    });
    assert_eq!(desk.store.replay(1, fixed, "Ada").unwrap().replayed, [1]);
    let answer = desk.store.enqueue(&post("permanent/1")).unwrap();
    assert!(!answer.fresh && answer.compared);
}

#[test]
fn a_discarded_job_has_no_payload_left_to_replay_and_stays_cancelled() {
    let desk = Desk::new();
    let id = desk.dead(&["permanent/1"])[0];
    desk.store.discard(id, "Ada").unwrap();
    let report = desk.store.replay(id, Replay::new(), "Ada").unwrap();
    assert_eq!(report.refused, [(id, "its payload is gone".to_owned())]);
    assert_eq!((desk.state(id), report.deed), (State::Cancelled, None));
    let missing = desk.store.replay(4711, Replay::new(), "Ada");
    assert!(matches!(missing, Err(Error::NoSuchJob { .. })));
    let done = desk.store.enqueue(&post("fine")).unwrap().id;
    desk.drain();
    assert!(matches!(desk.store.replay(done, Replay::new(), "Ada"), Err(Error::WrongState { .. })));
    counts_equal_the_rows(desk.folder.path());
}
