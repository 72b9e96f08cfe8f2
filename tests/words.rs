//! What users are told of their jobs. What can go wrong: "completed" before it is stored, "waiting" of what needs somebody,
//! a time in a zone that is not theirs, or words that nobody would say.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{
    Context, Deed, DeedPage, Filter, Job, Resolution, RetryPolicy, Runner, RunnerBuilder, State, Store, Verdicts, Words,
};
use chrono::{DateTime, FixedOffset, Utc};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Post {
    name: String,
}

impl Job for Post {
    const KIND: &'static str = "post";
    type Output = ();
    fn key(&self) -> String {
        self.name.clone()
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().jitter(0.0)
    }
}

/// One whose outcome nobody may guess.
#[derive(Serialize, Deserialize)]
struct Wire;

impl Job for Wire {
    const KIND: &'static str = "wire";
    const AT_MOST_ONCE: bool = true;
    type Output = ();
    fn key(&self) -> String {
        "w".to_owned()
    }
}

struct Desk {
    _folder: TempStore,
    clock: Arc<ManualClock>,
    store: Store,
}

impl Desk {
    fn new() -> Desk {
        let folder = TempStore::new().unwrap();
        let clock = ManualClock::at("2026-05-30T12:00:00Z".parse().unwrap());
        let store = folder.builder().clock(clock.clone()).open().unwrap();
        Desk { _folder: folder, clock, store }
    }

    fn post(&self, name: &str) -> i64 {
        self.store.enqueue(&Post { name: name.into() }).unwrap().id
    }

    /// What a name begins with says how its job ends.
    fn runner(&self) -> RunnerBuilder {
        let handler = |post: Post, _: &Context| {
            let failed: anyhow::Result<()> = Err(anyhow::anyhow!("no stamp on {}", post.name));
            match post.name.split('/').next() {
                Some("dead") => failed.permanent(),
                Some("parked") => failed.park("auth"),
                Some("fails") => failed,
                _ => Ok(()),
            }
        };
        let lost = |_: Wire, _: &Context| -> anyhow::Result<()> { anyhow::bail!("the line went dead") };
        Runner::builder(&self.store).handle(handler).handle(lost)
    }

    fn drain(&self) {
        Drain::new(self.runner()).unwrap().drain().unwrap();
    }
}

#[test]
fn users_are_told_one_of_seven_words_in_their_language() {
    let desk = Desk::new();
    let [done, dead, parked, fails] = ["fine", "dead/1", "parked/1", "fails/1"].map(|name| desk.post(name));
    let words = |job: i64, now: &DateTime<FixedOffset>| {
        let job = desk.store.job(job).unwrap().unwrap();
        [job.words(Words::English, now), job.words(Words::Turkish, now)]
    };
    let now = desk.clock.now().with_timezone(&FixedOffset::east_opt(3 * 3_600).unwrap());
    for job in [done, dead, parked, fails] {
        assert_eq!(words(job, &now), ["waiting for its turn", "sırasını bekliyor"]);
    }
    desk.drain();
    assert_eq!(words(done, &now), ["completed", "tamamlandı"]);
    assert_eq!(words(dead, &now), ["needs attention", "ilgilenilmesi gerekiyor"]);
    assert_eq!(words(parked, &now), ["needs attention", "ilgilenilmesi gerekiyor"]);
    assert_eq!(words(fails, &now), ["will be retried at 15:00", "15:00 saatinde yeniden denenecek"]);
    let the_day_before = now - Duration::from_secs(86_400);
    let dated = ["will be retried at 15:00 on 30 May 2026", "30 Mayıs 2026, 15:00 saatinde yeniden denenecek"];
    assert_eq!(words(fails, &the_day_before), dated);
    let told = desk.store.explain(dead).unwrap();
    assert_eq!(told.words(Words::Turkish, &now), "ilgilenilmesi gerekiyor");
    desk.store.discard(dead, "Ada").unwrap();
    assert_eq!(words(dead, &now), ["cancelled", "iptal edildi"]);
}

#[test]
fn nothing_is_completed_before_its_commit() {
    let desk = Desk::new();
    let job = desk.post("a");
    let told: Arc<Mutex<Vec<String>>> = Arc::default();
    let heard = Arc::clone(&told);
    let asks = move |_: Post, cx: &Context| {
        let say = |words: &mut Vec<String>| {
            let job = cx.store().job(job).unwrap().unwrap();
            words.push(job.words(Words::English, &Utc::now()));
        };
        say(&mut heard.lock().unwrap());
        cx.commit(|_| {
            say(&mut heard.lock().unwrap());
            Ok(())
        })?;
        say(&mut heard.lock().unwrap());
        Ok(())
    };
    Drain::new(Runner::builder(&desk.store).handle(asks)).unwrap().drain().unwrap();
    assert_eq!(*told.lock().unwrap(), ["processing", "processing", "completed"]);
}

#[test]
fn handed_to_support_holds_until_the_job_goes_on() {
    let desk = Desk::new();
    let [dead, parked, fine] = ["dead/1", "parked/1", "fine"].map(|name| desk.post(name));
    let wire = desk.store.enqueue(&Wire).unwrap().id;
    desk.drain();
    let word = |job: i64| desk.store.job(job).unwrap().unwrap().words(Words::English, &Utc::now());
    let deed = Deed::by("the app").because("ticket 4711");
    assert_eq!(desk.store.hand_to_support(Filter::all(), &deed).unwrap(), 3);
    assert_eq!([dead, parked, wire].map(word), ["handed to support"; 3]);
    assert_eq!(word(fine), "completed");
    assert_eq!(desk.store.hand_to_support(Filter::dead(), &deed).unwrap(), 0, "once is enough");
    assert_eq!(desk.store.hand_to_support(fine, &deed).unwrap_err().code(), "WRONG_STATE");
    let [noted] = &desk.store.deeds(DeedPage { below: None, limit: 9 }).unwrap()[..] else { panic!("one deed") };
    assert_eq!((noted.verb.as_str(), noted.jobs, noted.why.as_deref()), ("hand to support", 3, Some("ticket 4711")));
    desk.store.resume("auth", "Ada").unwrap();
    desk.store.resolve(wire, Resolution::Retry, "Ada").unwrap();
    desk.drain();
    for job in [parked, wire] {
        let job = desk.store.job(job).unwrap().unwrap();
        assert_eq!((job.state, job.handed_to_support), (State::Parked, None), "{}", job.key);
    }
    assert_eq!(word(dead), "handed to support", "what stays dead stays handed over");
}
