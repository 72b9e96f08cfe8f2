//! What people do to jobs. What can go wrong: a verb touches more than it was told, or less; a job loses its place in
//! line, its key or its history; nobody can say afterwards who did what.

mod common;

use std::sync::{Arc, Mutex};
use std::time::Duration;

use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{
    Class, Context, Deed, DeedPage, Filter, Job, JobName, Replay, RetryPolicy, Runner, Standing, State, Store,
    Verdicts, Which,
};
use common::{ask, run_sql};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Post {
    name: String,
    #[serde(default)]
    line: Option<String>,
}

impl Job for Post {
    const KIND: &'static str = "post";
    type Output = ();
    fn key(&self) -> String {
        self.name.clone()
    }
    fn ordering_key(&self) -> Option<String> {
        self.line.clone()
    }
    fn label(&self) -> Option<String> {
        Some(format!("the letter {}", self.name))
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().jitter(0.0)
    }
}

struct Desk {
    folder: TempStore,
    clock: Arc<ManualClock>,
    store: Store,
    ran: Arc<Mutex<Vec<String>>>,
}

impl Desk {
    fn new() -> Desk {
        let folder = TempStore::new().unwrap();
        let clock = ManualClock::at("2026-05-30T12:00:00Z".parse().unwrap());
        let store = folder.builder().clock(clock.clone()).open().unwrap();
        Desk { folder, clock, store, ran: Arc::default() }
    }

    fn post(&self, name: &str, line: Option<&str>) -> i64 {
        self.store.enqueue(&Post { name: name.into(), line: line.map(str::to_owned) }).unwrap().id
    }

    /// What a name begins with says how its job ends.
    fn drain(&self) {
        let ran = Arc::clone(&self.ran);
        let handler = move |post: Post, _: &Context| {
            ran.lock().unwrap().push(post.name.clone());
            let failed: anyhow::Result<()> = Err(anyhow::anyhow!("no stamp on {}", post.name));
            match post.name.split('/').next() {
                Some("dead") => failed.permanent(),
                Some("parked") => failed.park("auth"),
                Some("fails") => failed,
                _ => Ok(()),
            }
        };
        Drain::new(Runner::builder(&self.store).handle(handler)).unwrap().drain().unwrap();
    }

    fn state(&self, name: &str) -> State {
        self.store.find("post", name).unwrap().unwrap().state
    }

    fn ran(&self) -> Vec<String> {
        std::mem::take(&mut self.ran.lock().unwrap())
    }
}

#[test]
fn a_deed_is_recorded_with_what_each_job_was_before() {
    let desk = Desk::new();
    let jobs = ["dead/1", "dead/2"].map(|name| desk.post(name, None));
    let other = desk.post("fine", None);
    desk.drain();
    let deed = Deed::by("Ada\u{1b}[31m").because("nobody wants them");
    assert_eq!(desk.store.discard(Filter::dead().key_prefix("dead/"), &deed).unwrap(), 2);
    let [noted] = &desk.store.deeds(DeedPage { below: None, limit: 9 }).unwrap()[..] else { panic!("one deed") };
    assert_eq!((noted.verb.as_str(), noted.why.as_deref(), noted.jobs), ("discard", Some("nobody wants them"), 2));
    assert_eq!((noted.who.as_str(), noted.at), ("Ada\\u{1b}[31m", desk.clock.now()));
    assert_eq!(noted.subject.as_deref(), Some("dead, key from dead/"));
    for job in jobs {
        let [touched] = &desk.store.deeds_of(job).unwrap()[..] else { panic!("one deed of {job}") };
        assert_eq!((&touched.deed, touched.state, touched.attempts), (noted, State::Dead, 1));
        assert_eq!(touched.last_failure.as_ref().unwrap().class, Class::Permanent);
    }
    assert!(desk.store.deeds_of(other).unwrap().is_empty());
    assert!(desk.store.deeds(DeedPage { below: Some(noted.id), limit: 9 }).unwrap().is_empty());
}

#[test]
fn what_touches_no_job_leaves_no_record() {
    let desk = Desk::new();
    let job = desk.post("fine", None);
    assert_eq!(desk.store.discard(Filter::all(), "Ada").unwrap(), 0);
    assert_eq!(desk.store.discard(job, "Ada").unwrap_err().code(), "WRONG_STATE");
    assert_eq!(desk.store.discard(99, "Ada").unwrap_err().to_string(), "there is no job 99");
    let named = desk.store.release(JobName::new("post", "nobody"), "Ada").unwrap_err();
    assert_eq!((named.code(), named.to_string().as_str()), ("NO_SUCH_JOB", "there is no post nobody"));
    assert!(desk.store.deeds(DeedPage { below: None, limit: 9 }).unwrap().is_empty());
}

#[test]
fn a_discarded_job_keeps_its_key_and_its_failure_and_loses_its_payload() {
    let desk = Desk::new();
    let job = desk.post("dead/1", None);
    desk.drain();
    assert_eq!(desk.store.discard(JobName::new("post", "dead/1"), "Ada").unwrap(), 1);
    let repeat = desk.store.enqueue(&Post { name: "dead/1".into(), line: None }).unwrap();
    assert!(!repeat.fresh && repeat.id == job && matches!(repeat.standing, Standing::Cancelled));
    let other = Post { name: "dead/1".into(), line: Some("other".into()) };
    assert_eq!(desk.store.enqueue(&other).unwrap_err().code(), "KEY_REUSED");
    assert_eq!(desk.store.payload(job).unwrap(), None);
    assert_eq!(desk.store.attempts(job).unwrap()[0].failure.text, "no stamp on dead/1");
    let finished = desk.store.finished().unwrap();
    assert_eq!(finished, [("post".to_owned(), State::Cancelled, 1)], "counted where it is, and nowhere else");
    desk.drain();
    assert_eq!(desk.ran(), ["dead/1"]);
}

#[test]
fn whoever_stood_behind_a_discarded_head_moves_up() {
    let desk = Desk::new();
    for name in ["dead/1", "second", "third"] {
        desk.post(name, Some("line"));
    }
    desk.drain();
    assert_eq!((desk.ran(), desk.state("second")), (vec!["dead/1".to_owned()], State::Waiting));
    desk.store.discard(Filter::dead(), "Ada").unwrap();
    desk.drain();
    assert_eq!(desk.ran(), ["second", "third"]);
}

#[test]
fn a_rescheduled_job_runs_at_its_new_time_and_not_before() {
    let desk = Desk::new();
    let job = desk.post("later", None);
    let at = desk.clock.now() + Duration::from_secs(3_600);
    assert_eq!(desk.store.reschedule(job, at, "Ada").unwrap(), 1);
    desk.drain();
    assert_eq!((desk.ran().len(), desk.store.job(job).unwrap().unwrap().run_at), (0, at));
    desk.clock.advance(Duration::from_secs(3_599));
    desk.drain();
    assert!(desk.ran().is_empty());
    desk.clock.advance(Duration::from_secs(1));
    desk.drain();
    assert_eq!(desk.ran(), ["later"]);
    assert_eq!(desk.store.reschedule(job, at, "Ada").unwrap_err().code(), "WRONG_STATE");
}

#[test]
fn a_retry_is_brought_forward_with_the_attempts_it_had() {
    let desk = Desk::new();
    let job = desk.post("fails/1", None);
    desk.drain();
    assert_eq!(desk.store.job(job).unwrap().unwrap().attempts, 1);
    let all = Filter::all().kind("post");
    assert_eq!(desk.store.reschedule(&all, desk.clock.now() - Duration::from_secs(60), "Ada").unwrap(), 1);
    desk.drain();
    assert_eq!((desk.ran().len(), desk.store.job(job).unwrap().unwrap().attempts), (2, 2));
}

#[test]
fn a_job_brought_forward_does_not_overtake_its_line() {
    let desk = Desk::new();
    let first = desk.post("first", Some("line"));
    let second = desk.post("second", Some("line"));
    let at = desk.clock.now() + Duration::from_secs(60);
    desk.store.reschedule(first, at, "Ada").unwrap();
    desk.store.reschedule(second, desk.clock.now(), "Ada").unwrap();
    desk.drain();
    assert!(desk.ran().is_empty());
    desk.clock.advance(Duration::from_secs(60));
    desk.drain();
    assert_eq!(desk.ran(), ["first", "second"]);
}

#[test]
fn one_that_was_held_by_a_dead_process_does_not_run_before_the_time_it_was_moved_to() {
    let desk = Desk::new();
    let first = desk.post("dead/1", Some("line"));
    desk.drain();
    assert!(desk.store.pass_over(first, "Ada").unwrap());
    // A process takes the second of the line; the first comes back to its place meanwhile, and the process dies.
    let other = desk.folder.builder().clock(desk.clock.clone()).open().unwrap();
    let _held = Drain::new(Runner::builder(&other).handle(|_: Post, _: &Context| Ok(()))).unwrap();
    let second = other.enqueue(&Post { name: "second".into(), line: Some("line".into()) }).unwrap().id;
    assert_eq!(desk.state("second"), State::Running);
    desk.store.replay(first, Replay::new(), "Ada").unwrap();
    run_sql(
        desk.folder.path(),
        "UPDATE birkez_runner SET boot = 'another' WHERE id IN (SELECT runner FROM birkez_lease)",
    );
    desk.clock.advance(Duration::from_secs(1));
    desk.drain();
    assert!(desk.store.job(second).unwrap().unwrap().suspect_since.is_some());
    let at = desk.clock.now() + Duration::from_secs(3_600);
    desk.store.reschedule(second, at, "Ada").unwrap();
    desk.ran();
    assert!(desk.store.pass_over(first, "Ada").unwrap());
    desk.drain();
    assert_eq!((desk.ran(), desk.state("second")), (vec![], State::Waiting));
    desk.clock.advance(Duration::from_secs(3_600));
    desk.drain();
    assert_eq!(desk.ran(), ["second"]);
}

#[test]
fn parked_jobs_are_released_by_filter_and_by_name_and_no_others() {
    let desk = Desk::new();
    for name in ["parked/1", "parked/2", "parked/3", "dead/1"] {
        desk.post(name, None);
    }
    desk.drain();
    assert_eq!(desk.store.release(JobName::new("post", "parked/2"), "Ada").unwrap(), 1);
    assert_eq!(desk.store.release(Filter::all().key_prefix("parked/3"), "Ada").unwrap(), 1);
    let states = ["parked/1", "parked/2", "parked/3", "dead/1"].map(|name| desk.state(name));
    assert_eq!(states, [State::Parked, State::Waiting, State::Waiting, State::Dead]);
    assert_eq!(desk.store.resume("auth", "the app").unwrap(), 1);
    assert_eq!(
        desk.store.release(desk.store.find("post", "dead/1").unwrap().unwrap().id, "Ada").unwrap_err().code(),
        "WRONG_STATE"
    );
}

#[test]
fn ten_thousand_jobs_are_closed_in_short_transactions_under_one_record() {
    let desk = Desk::new();
    let jobs: Vec<_> = (0..10_000).map(|n| Post { name: format!("dead/{n}"), line: None }).collect();
    desk.store.enqueue_all(&jobs).unwrap();
    desk.drain();
    assert_eq!(desk.store.discard(Filter::dead(), "Ada").unwrap(), 10_000);
    let deeds = desk.store.deeds(DeedPage { below: None, limit: 9 }).unwrap();
    assert_eq!(deeds.iter().map(|deed| deed.jobs).collect::<Vec<_>>(), [10_000]);
    assert_eq!(ask::<i64>(desk.folder.path(), "SELECT count(*) FROM birkez_job WHERE state = 4"), 10_000);
    assert_eq!(desk.store.finished().unwrap(), [("post".to_owned(), State::Cancelled, 10_000)]);
}

#[test]
fn a_job_says_what_people_call_it_and_what_enqueued_it() {
    let desk = Desk::new();
    let parent = desk.post("parent", None);
    let inner = move |post: Post, cx: &Context| {
        if post.name == "parent" {
            let _ = cx.enqueue(&Post { name: "child".into(), line: None })?;
        }
        Ok(())
    };
    Drain::new(Runner::builder(&desk.store).handle(inner)).unwrap().drain().unwrap();
    let [parent_info, child] = ["parent", "child"].map(|name| desk.store.find("post", name).unwrap().unwrap());
    assert_eq!(child.origin, Some(format!("job {parent}")));
    assert_eq!(parent_info.label.as_deref(), Some("the letter parent"));
    assert!(parent_info.origin.unwrap().starts_with("app "));
    assert_eq!(Which::from(JobName::new("post", "child")).to_string(), "post child");
}

#[test]
fn a_suspect_that_is_put_off_is_still_tried_by_itself_when_its_time_has_come() {
    let desk = Desk::new();
    let id = desk.post("letter", None);
    // As a process claims it that dies in its middle.
    let lease = format!("INSERT INTO birkez_lease VALUES ({id}, 99, 1, 1, 1, 0, 0)");
    common::run_sql(desk.folder.path(), &lease);
    let idle = Drain::new(Runner::builder(&desk.store)).unwrap();
    idle.drain().unwrap();
    let gate = || ask::<i64>(desk.folder.path(), "SELECT gate FROM birkez_job");
    assert_eq!(gate(), 3, "taken back");
    let later = desk.clock.now() + Duration::from_secs(60);
    desk.store.reschedule(id, later, "Ada").unwrap();
    assert_eq!(gate(), 0);
    desk.clock.advance(Duration::from_secs(60));
    idle.drain().unwrap();
    assert_eq!(gate(), 3);
    desk.store.reschedule(id, desk.clock.now(), "Ada").unwrap();
    assert_eq!(gate(), 3);
    desk.drain();
    assert_eq!(desk.state("letter"), State::Done);
}
