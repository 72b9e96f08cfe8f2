//! Why is my job still waiting? What can go wrong: no answer, an answer that is not the cause, one that a program cannot
//! read or a person cannot understand, or one that says that it does not know.

mod common;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{
    Advice, Class, Context, Deed, Explanation, Job, JobName, Reason, RetryPolicy, Runner, RunnerBuilder, Scope, Store,
    Verdicts, Words,
};
use chrono::{DateTime, Utc};
use common::{Child, given, run_sql, tell};
use serde::{Deserialize, Serialize};

#[derive(Clone, Default, Serialize, Deserialize)]
struct Post {
    name: String,
    #[serde(default)]
    line: Option<String>,
    #[serde(default)]
    version: Option<i64>,
    #[serde(default)]
    at: Option<DateTime<Utc>>,
}

impl Job for Post {
    const KIND: &'static str = "post";
    const QUEUE: &'static str = "office";
    type Output = ();
    fn key(&self) -> String {
        self.name.clone()
    }
    fn ordering_key(&self) -> Option<String> {
        self.line.clone()
    }
    fn version(&self) -> Option<i64> {
        self.version
    }
    fn run_at(&self) -> Option<DateTime<Utc>> {
        self.at
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().jitter(0.0)
    }
    fn advice(class: Class) -> Option<Advice> {
        match class {
            Class::Transient => Some(Advice::SafeToReplay),
            Class::Permanent => Some(Advice::mend_first("put a stamp on it")),
            _ => None,
        }
    }
}

/// One whose outcome nobody may guess.
#[derive(Serialize, Deserialize)]
struct Wire {
    name: String,
}

impl Job for Wire {
    const KIND: &'static str = "wire";
    const AT_MOST_ONCE: bool = true;
    type Output = ();
    fn key(&self) -> String {
        self.name.clone()
    }
}

struct Desk {
    folder: TempStore,
    clock: Arc<ManualClock>,
    /// It enqueues and asks, and handles nothing.
    store: Store,
    /// Where the handlers are.
    office: Store,
}

impl Desk {
    fn new() -> Desk {
        let folder = TempStore::new().unwrap();
        let clock = ManualClock::at(utc("2026-05-30T12:00:00Z"));
        let [store, office] = [(), ()].map(|()| folder.builder().clock(clock.clone()).open().unwrap());
        Desk { folder, clock, store, office }
    }

    fn post(&self, name: &str) -> i64 {
        self.put(Post { name: name.into(), ..Post::default() })
    }

    fn put(&self, post: Post) -> i64 {
        self.store.enqueue(&post).unwrap().id
    }

    /// What a name begins with says how its job ends.
    fn runner(&self) -> RunnerBuilder {
        let handler = |post: Post, _: &Context| {
            let failed: anyhow::Result<()> = Err(anyhow::anyhow!("no stamp on {}", post.name));
            match post.name.split('/').next() {
                Some("dead") => failed.permanent(),
                Some("parked") => failed.park("auth"),
                Some("fails") => failed,
                Some("later") => failed.retry_after(Duration::from_secs(3_600)),
                _ => Ok(()),
            }
        };
        let lost = |_: Wire, _: &Context| -> anyhow::Result<()> { anyhow::bail!("the line went dead") };
        Runner::builder(&self.office).handle(handler).handle(lost)
    }

    /// A process that handles the kinds, with its workers elsewhere for as long as it is not drained.
    fn present(&self) -> Drain {
        Drain::new(self.runner()).unwrap()
    }

    fn drain(&self) {
        self.present().drain().unwrap();
    }

    #[track_caller]
    fn explain(&self, job: i64) -> Explanation {
        let told = self.store.explain(job).unwrap();
        for reason in [&told.reason].into_iter().chain(&told.others) {
            let json = serde_json::to_value(reason).unwrap();
            assert_eq!(json["code"], reason.code(), "{json}");
        }
        let text = told.to_string();
        assert!(!text.to_lowercase().contains("unknown") && !text.contains("None") && !text.ends_with(' '), "{text}");
        told
    }

    #[track_caller]
    fn assert_told(&self, job: i64, code: &str, text: &str) {
        let told = self.explain(job);
        assert_eq!((told.reason.code(), told.to_string().as_str()), (code, text));
    }
}

fn utc(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("hold") => {
            let store = Store::open(Path::new(&given("DB"))).unwrap();
            let handler = |_: Post, _: &Context| -> anyhow::Result<()> {
                tell("runs");
                std::thread::sleep(Duration::from_secs(600));
                Ok(())
            };
            let _runner = Runner::builder(&store).handle(handler).start().unwrap();
            std::thread::sleep(Duration::from_secs(600));
        }
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

#[test]
fn what_is_done_says_since_when() {
    let desk = Desk::new();
    let job = desk.post("fine");
    desk.drain();
    desk.assert_told(job, "done", "job 1 (post fine) is done since 2026-05-30 12:00:00 UTC");
}

#[test]
fn what_is_dead_says_of_what_and_what_its_kind_advises() {
    let desk = Desk::new();
    let job = desk.post("dead/1");
    desk.drain();
    let died = "job 1 (post dead/1) is dead since 2026-05-30 12:00:00 UTC: permanent: no stamp on dead/1 \
                (mend first: put a stamp on it)";
    desk.assert_told(job, "dead", died);
    desk.store.hand_to_support(job, "the app").unwrap();
    desk.assert_told(job, "dead", &format!("{died}, handed to support at 2026-05-30 12:00:00 UTC"));
}

#[test]
fn what_was_called_off_says_by_whom_or_by_what() {
    let desk = Desk::new();
    let job = desk.post("dead/1");
    desk.drain();
    desk.store.discard(job, Deed::by("Ada").because("nobody wants it")).unwrap();
    let off = "job 1 (post dead/1) was called off at 2026-05-30 12:00:00 UTC by Ada because nobody wants it";
    desk.assert_told(job, "cancelled", off);
    let version = |n| Post { name: format!("v{n}"), line: Some("card".into()), version: Some(n), at: None };
    desk.put(version(2));
    desk.drain();
    let old = desk.put(version(1));
    desk.drain();
    let told = desk.explain(old);
    let Reason::Cancelled { failure: Some(failure), by: None, .. } = &told.reason else { panic!("{told}") };
    assert_eq!(failure.class, Class::Superseded);
    assert!(told.to_string().contains("superseded: version 1 came after a newer one"), "{told}");
}

#[test]
fn what_is_parked_says_for_what_and_since_when() {
    let desk = Desk::new();
    let job = desk.post("parked/1");
    let wire = desk.store.enqueue(&Wire { name: "w".into() }).unwrap().id;
    desk.drain();
    let text = "job 1 (post parked/1) is parked since 2026-05-30 12:00:00 UTC for auth (no stamp on parked/1)";
    desk.assert_told(job, "parked", text);
    let text = "job 2 (wire w) is parked since 2026-05-30 12:00:00 UTC: it broke off in what must not be repeated, and \
                a person has to resolve it";
    desk.assert_told(wire, "parked", text);
}

#[test]
fn what_runs_says_where_and_since_when_and_whether_it_is_to_stop() {
    let desk = Desk::new();
    let job = desk.post("asks");
    let told: Arc<Mutex<Vec<Explanation>>> = Arc::default();
    let (heard, path) = (Arc::clone(&told), desk.folder.path().to_owned());
    let asks = move |_: Post, cx: &Context| {
        heard.lock().unwrap().push(cx.store().explain(job)?);
        run_sql(&path, "UPDATE birkez_lease SET cancel = 1");
        heard.lock().unwrap().push(cx.store().explain(job)?);
        Ok(())
    };
    Drain::new(Runner::builder(&desk.office).handle(asks)).unwrap().drain().unwrap();
    let [first, second] = &told.lock().unwrap()[..] else { panic!("two answers") };
    let Reason::Running { process, attempt: 1, is_stopping: false, .. } = &first.reason else { panic!("{first}") };
    assert_eq!((process.pid, process.is_gone), (i64::from(std::process::id()), false));
    let place = format!("{} (process {} on {})", process.program, process.pid, process.host);
    let text = format!("job 1 (post asks) runs since 2026-05-30 12:00:00 UTC in {place}, attempt 1");
    assert_eq!(first.to_string(), text);
    assert_eq!(second.to_string(), format!("{text}, and is asked to stop"));
}

#[test]
fn what_a_dead_process_holds_is_not_said_to_run() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let job = store.enqueue(&Post { name: "held".into(), ..Post::default() }).unwrap().id;
    let mut child = Child::start("hold", &[("DB", folder.path())]);
    child.expect("runs");
    assert!(matches!(store.explain(job).unwrap().reason, Reason::Running { ref process, .. } if !process.is_gone));
    child.kill();
    let told = store.explain(job).unwrap();
    assert!(matches!(&told.reason, Reason::Running { process, .. } if process.is_gone), "{told}");
    assert!(told.to_string().contains("which is gone; it runs again once a runner has found that out"), "{told}");
    // Nor does it handle its kind any more, since it was last heard of.
    assert!(matches!(&told.others[..], [Reason::NoHandler { since: Some(_), .. }]), "{told}");
}

#[test]
fn a_kind_that_was_renamed_is_handled_under_its_former_name_and_otherwise_named() {
    #[derive(Serialize, Deserialize)]
    struct Sync;
    impl Job for Sync {
        const KIND: &'static str = "sync";
        const FORMER_KINDS: &'static [&'static str] = &["periodic_sync"];
        type Output = ();
        fn key(&self) -> String {
            "daily".to_owned()
        }
    }
    let desk = Desk::new();
    run_sql(
        desk.folder.path(),
        "INSERT INTO birkez_job (kind, key, payload) VALUES ('periodic_sync', 'daily', 'null'), ('nightly_sync', 'daily', 'null')",
    );
    let _present = Drain::new(Runner::builder(&desk.office).handle(|_: Sync, _: &Context| Ok(()))).unwrap();
    assert_eq!(desk.explain(1).reason.code(), "ready");
    let text = "job 2 (nightly_sync daily) waits for a program that handles nightly_sync: none has been seen";
    desk.assert_told(2, "no_handler", text);
}

#[test]
fn what_belongs_to_callers_says_so() {
    let desk = Desk::new();
    let refused = desk.store.once(&Post { name: "mine".into(), ..Post::default() }, |_| anyhow::bail!("not today"));
    assert_eq!(refused.unwrap_err().code(), "FAILED");
    let text =
        "job 1 (post mine) belongs to the callers of once: it runs when one calls again, after transient: not today";
    desk.assert_told(1, "for_callers", text);
}

#[test]
fn what_stands_behind_another_says_behind_which_and_why_that_does_not_move() {
    let desk = Desk::new();
    let in_line = |name: &str| desk.put(Post { name: name.into(), line: Some("card".into()), ..Post::default() });
    in_line("dead/1");
    let second = in_line("second");
    let _present = desk.present();
    let waits = "job 2 (post second) waits for its turn in the line card behind job 1 (post dead/1), which";
    let ready =
        "is ready since 2026-05-30 12:00:00 UTC and starts as soon as a worker is free in the process that handles it";
    desk.assert_told(second, "behind", &format!("{waits} {ready}"));
    desk.drain();
    let died = "is dead since 2026-05-30 12:00:00 UTC: permanent: no stamp on dead/1 (mend first: put a stamp on it)";
    desk.assert_told(second, "behind", &format!("{waits} {died}"));
    let told = desk.explain(second);
    assert!(matches!(&told.reason, Reason::Behind { because, .. } if because.code() == "dead"), "{told}");
}

#[test]
fn what_is_scheduled_says_for_when_and_who_has_set_it() {
    let desk = Desk::new();
    let _present = desk.present();
    let at = Some(utc("2026-06-01T08:00:00Z"));
    let job = desk.put(Post { name: "later".into(), at, ..Post::default() });
    desk.assert_told(job, "scheduled", "job 1 (post later) is scheduled for 2026-06-01 08:00:00 UTC");
    let deed = Deed::by("Ada").because("the office is closed");
    desk.store.reschedule(job, utc("2026-06-02T08:00:00Z"), deed).unwrap();
    let text = "job 1 (post later) is scheduled for 2026-06-02 08:00:00 UTC, set by Ada because the office is closed";
    desk.assert_told(job, "scheduled", text);
}

#[test]
fn what_is_retried_says_which_attempt_of_how_many_after_what() {
    let desk = Desk::new();
    let present = desk.present();
    let job = desk.post("fails/1");
    present.drain().unwrap();
    let text = "job 1 (post fails/1) is tried again at 2026-05-30 12:00:05 UTC, attempt 2 of 8, after transient: no \
                stamp on fails/1";
    desk.assert_told(job, "retry", text);
    let told = desk.explain(job);
    assert!(matches!(told.reason, Reason::Retry { attempt: 2, of: Some(8), .. }));
    // Where the other side has said when to come again, that costs no attempt.
    let job = desk.post("later/1");
    present.drain().unwrap();
    assert_eq!(desk.explain(job).words(Words::English, &desk.clock.now()), "will be retried at 13:00");
    assert!(matches!(desk.explain(job).reason, Reason::Retry { attempt: 1, .. }), "{}", desk.explain(job));
    // Who brings it forward to another time has set that time.
    desk.store.reschedule(job, utc("2026-05-30T18:00:00Z"), "Ada").unwrap();
    assert!(matches!(desk.explain(job).reason, Reason::Scheduled { by: Some(_), .. }), "{}", desk.explain(job));
}

#[test]
fn what_is_paused_says_since_when_by_whom_and_why() {
    let desk = Desk::new();
    let _present = desk.present();
    let job = desk.post("a");
    desk.store.pause(Scope::kind("post"), Deed::by("Ada").because("of the strike")).unwrap();
    let text =
        "job 1 (post a) is held since kind post was paused at 2026-05-30 12:00:00 UTC by Ada because of the strike";
    desk.assert_told(job, "paused", text);
    desk.clock.advance(Duration::from_secs(60));
    desk.store.pause(Scope::queue("office"), "Ben").unwrap();
    desk.store.unpause(Scope::kind("post"), "Ada").unwrap();
    let text = "job 1 (post a) is held since queue office was paused at 2026-05-30 12:01:00 UTC by Ben";
    desk.assert_told(job, "paused", text);
}

#[test]
fn what_nobody_handles_says_since_when_or_that_nobody_has() {
    let desk = Desk::new();
    let job = desk.post("a");
    desk.assert_told(job, "no_handler", "job 1 (post a) waits for a program that handles post: none has been seen");
    desk.store.pause(Scope::kind("post"), "Ada").unwrap();
    let present = desk.present();
    desk.clock.advance(Duration::from_secs(60));
    drop(present);
    desk.clock.advance(Duration::from_secs(3_600));
    desk.store.unpause(Scope::kind("post"), "Ada").unwrap();
    let text = "job 1 (post a) waits for a program that handles post: none does since 2026-05-30 12:01:00 UTC";
    desk.assert_told(job, "no_handler", text);
}

#[test]
fn what_meets_a_limit_says_which_and_who_holds_it() {
    let desk = Desk::new();
    let [first, second] = ["asks", "waits"].map(|name| desk.post(name));
    desk.store.set_limit(Scope::queue("office"), Some(1), "Ada").unwrap();
    let told: Arc<Mutex<Option<Explanation>>> = Arc::default();
    let heard = Arc::clone(&told);
    let asks = move |post: Post, cx: &Context| {
        if post.name == "asks" {
            *heard.lock().unwrap() = Some(cx.store().explain(second)?);
        }
        Ok(())
    };
    Drain::new(Runner::builder(&desk.office).handle(asks)).unwrap().drain().unwrap();
    let told = told.lock().unwrap().take().unwrap();
    assert_eq!(told.to_string(), "job 2 (post waits) waits for the limit of queue office: 1 of 1 run (job 1)");
    assert!(matches!(&told.reason, Reason::LimitReached { most: 1, running, .. } if *running == [first]));
    let _present = desk.present();
    let third = desk.post("third");
    desk.store.set_limit(Scope::queue("office"), Some(0), "Ada").unwrap();
    let text = "job 3 (post third) is held by the limit of queue office, which lets none run";
    desk.assert_told(third, "limit_reached", text);
}

#[test]
fn a_suspect_says_that_it_is_tried_by_itself() {
    let desk = Desk::new();
    let _present = desk.present();
    let job = desk.post("a");
    let died = utc("2026-05-30T11:59:00Z").timestamp_millis();
    run_sql(desk.folder.path(), &format!("UPDATE birkez_job SET gate = 3, suspect = {died}"));
    let text = "job 1 (post a) was held by a process that died at 2026-05-30 11:59:00 UTC, and is tried by itself";
    desk.assert_told(job, "suspect", text);
}

#[test]
fn what_nothing_holds_says_that_the_workers_are_busy() {
    let desk = Desk::new();
    let _present = [desk.present(), desk.present()];
    let job = desk.post("a");
    let told = desk.explain(job);
    assert!(matches!(told.reason, Reason::Ready { processes: 1, .. }), "two runners of one process: {told}");
    run_sql(desk.folder.path(), "INSERT INTO birkez_job (kind, key, payload) VALUES ('post', 'plain', '{}')");
    assert_eq!(desk.explain(job + 1).reason.code(), "ready");
}

#[test]
fn the_cause_that_matters_comes_first_and_the_others_are_listed() {
    let desk = Desk::new();
    let at = Some(utc("2026-06-01T08:00:00Z"));
    desk.put(Post { name: "head".into(), line: Some("card".into()), at, version: None });
    let job = desk.put(Post { name: "behind".into(), line: Some("card".into()), at, version: None });
    desk.store.pause(Scope::kind("post"), "Ada").unwrap();
    desk.store.pause(Scope::queue("default"), "Ada").unwrap();
    desk.store.set_limit(Scope::kind("post"), Some(0), "Ada").unwrap();
    let codes = |told: &Explanation| {
        [&told.reason].into_iter().chain(&told.others).map(|reason| reason.code()).collect::<Vec<_>>()
    };
    let told = desk.explain(job);
    assert_eq!(codes(&told), ["behind", "scheduled", "paused", "paused", "no_handler", "limit_reached"]);
    desk.clock.set(utc("2026-06-01T09:00:00Z"));
    assert_eq!(codes(&desk.explain(1)), ["paused", "paused", "no_handler", "limit_reached"]);
    assert!(told.to_string().contains("; besides, it is scheduled for"), "{told}");
}

#[test]
fn a_job_is_asked_for_by_its_name_too_and_one_that_is_not_there_is_an_error() {
    let desk = Desk::new();
    let job = desk.post("a");
    assert_eq!(desk.store.explain(JobName::new("post", "a")).unwrap(), desk.store.explain(job).unwrap());
    assert_eq!(desk.store.explain(99).unwrap_err().to_string(), "there is no job 99");
    assert_eq!(desk.store.explain(JobName::new("post", "b")).unwrap_err().to_string(), "there is no post b");
}

#[test]
fn advice_is_shown_by_a_process_that_does_not_know_the_kind() {
    let desk = Desk::new();
    let jobs = ["dead/1", "fails/1", "fine"].map(|name| desk.post(name));
    desk.drain();
    // Only the file is asked.
    let other = Store::open(desk.folder.path()).unwrap();
    let advice = jobs.map(|job| other.advice(&other.job(job).unwrap().unwrap()).unwrap());
    assert_eq!(advice, [Some(Advice::mend_first("put a stamp on it")), Some(Advice::SafeToReplay), None]);
}

#[test]
fn a_million_finished_jobs_and_a_long_history_slow_no_answer() {
    let desk = Desk::new();
    let _present = desk.present();
    run_sql(
        desk.folder.path(),
        "PRAGMA synchronous = off; BEGIN;
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000)
         INSERT INTO birkez_job (kind, key, payload, state, gate, finished_at) SELECT 'post', 'k' || i, '{}', 2, NULL, 5 FROM n;
         WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 20000)
         INSERT INTO birkez_presence (runner, what, name, since, until) SELECT 9, 'kind', 'post', i, i FROM n;
         COMMIT",
    );
    let in_line = |name: &str| desk.put(Post { name: name.into(), line: Some("card".into()), ..Post::default() });
    let [head, behind] = ["head", "behind"].map(in_line);
    desk.store.pause(Scope::kind("post"), "Ada").unwrap();
    desk.store.set_limit(Scope::queue("office"), Some(0), "Ada").unwrap();
    for (job, code) in [(500_000, "done"), (head, "paused"), (behind, "behind")] {
        let one = || {
            let asked = Instant::now();
            assert_eq!(desk.store.explain(job).unwrap().reason.code(), code);
            asked.elapsed()
        };
        // The best of some, since others work on the machine too.
        let took = (0..10).map(|_| one()).min().unwrap();
        assert!(took < Duration::from_millis(5), "job {job} took {took:?}");
    }
}
