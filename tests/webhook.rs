//! Messages that are posted: one that is lost since the receiver was busy, sent under another id or with another body when
//! it is repeated, sent again too soon, or to somebody else; a runner that hangs on a receiver which does not answer.
#![cfg(feature = "webhook")]

mod common;

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use anyhow::anyhow;
use birkez::testing::TempStore;
use birkez::{Attempt, Class, Error, Job, JobInfo, RetryPolicy, Runner, Standing, State, Store, Verdicts, Webhook};
use chrono::Utc;
use common::receiver::{Answer, Delivery, Receiver};
use common::{Child, wait_until};
use serde::{Deserialize, Serialize};

/// A message with a text of its own.
#[derive(Serialize, Deserialize)]
struct Note {
    text: String,
}

impl Job for Note {
    const KIND: &'static str = "note";
    type Output = u16;

    fn key(&self) -> String {
        self.text.clone()
    }

    fn retry() -> RetryPolicy {
        RetryPolicy::default().max_attempts(3).base(Duration::from_millis(10)).cap(Duration::from_millis(20))
    }
}

fn note(text: impl Into<String>) -> Note {
    Note { text: text.into() }
}

/// A store whose notes are posted.
struct Bench {
    folder: TempStore,
    store: Store,
    runner: Runner,
}

impl Bench {
    fn new(hook: Webhook) -> Bench {
        let folder = TempStore::new().unwrap();
        let store = folder.open().unwrap();
        Bench { runner: run(&store, hook), folder, store }
    }

    fn post(&self, text: impl Into<String>) -> i64 {
        self.store.enqueue(&note(text)).unwrap().id
    }

    /// The job as it is when it does not run or wait to run any more.
    #[track_caller]
    fn ended(&self, id: i64) -> JobInfo {
        wait_until("the message has ended", || matches!(self.job(id).state, State::Done | State::Dead | State::Parked));
        self.job(id)
    }

    fn job(&self, id: i64) -> JobInfo {
        self.store.job(id).unwrap().unwrap()
    }

    fn attempts(&self, id: i64) -> Vec<Attempt> {
        self.store.attempts(id).unwrap()
    }

    /// Posts a note that fails once, of itself, and then arrives; answers what was said of the failure.
    #[track_caller]
    fn post_twice(&self, text: &str) -> String {
        let id = self.post(text);
        assert_eq!(self.ended(id).state, State::Done, "{text}: {:?}", self.attempts(id));
        let attempts = self.attempts(id);
        let classes: Vec<_> = attempts.iter().map(|attempt| (attempt.failure.class, attempt.charged)).collect();
        assert_eq!(classes, [(Class::Transient, true)], "{text}");
        attempts[0].failure.text.clone()
    }
}

fn run(store: &Store, hook: Webhook) -> Runner {
    Runner::builder(store).workers(4).relay::<Note>(hook).start().unwrap()
}

fn hook(receiver: &Receiver) -> Webhook {
    Webhook::new(&receiver.url("/notes?of=panel")).unwrap()
}

/// Answers the first delivery of each message with `answer`, and a repeat with 200.
fn once(answer: Answer) -> impl Fn(&Delivery) -> Answer {
    move |delivery| if delivery.repeat == 0 { answer.clone() } else { Answer::status(200) }
}

/// The status that a note's text begins with, and 200 for a repeat.
fn as_the_text_says(delivery: &Delivery) -> Answer {
    let text = serde_json::from_str::<Note>(&delivery.body).unwrap().text;
    once(Answer::status(text.parse().unwrap()).body("an answer's body"))(delivery)
}

#[test]
fn a_request_carries_the_message_and_what_was_set() {
    let receiver = Receiver::accepting();
    let hook = hook(&receiver).header("X-Panel", "home").unwrap().header("x-panel", "büro").unwrap();
    let bench = Bench::new(hook.content_type("application/cloudevents+json").unwrap());
    let id = bench.post("çiçek \"17\"");
    assert_eq!(bench.ended(id).state, State::Done);
    let delivery = &receiver.deliveries()[0];
    assert_eq!(delivery.request, "POST /notes?of=panel HTTP/1.1");
    assert_eq!(delivery.body, common::ask::<String>(bench.folder.path(), "SELECT payload FROM birkez_job"));
    let header = |name| delivery.header(name).unwrap_or("none");
    assert_eq!(header("content-type"), "application/cloudevents+json");
    assert_eq!(header("user-agent"), concat!("birkez/", env!("CARGO_PKG_VERSION")));
    assert_eq!(header("x-panel"), "büro");
    assert_eq!((delivery.headers.iter().filter(|(name, _)| name == "x-panel")).count(), 1);
    assert!(!delivery.id().is_empty());
    assert_eq!(header("authorization"), "none");
}

#[test]
fn the_status_decides_what_becomes_of_a_message() {
    let receiver = Receiver::start(as_the_text_says);
    let bench = Bench::new(hook(&receiver));
    let statuses =
        |list: &[u16]| list.iter().map(|&status| (status, bench.post(status.to_string()))).collect::<Vec<_>>();
    let accepted = statuses(&[200, 201, 202, 204, 299]);
    let later = statuses(&[408, 425, 429, 500, 501, 502, 503, 504, 505, 599]);
    let parked = statuses(&[401, 403]);
    let refused = statuses(&[300, 301, 302, 303, 304, 307, 308, 400, 402, 404, 405, 409, 410, 413, 422, 451]);
    for &(status, id) in &accepted {
        assert_eq!(bench.ended(id).state, State::Done, "{status}");
        assert_eq!(bench.attempts(id), []);
        let again = bench.store.enqueue(&note(status.to_string())).unwrap();
        assert!(matches!(&again.standing, Standing::Done(Ok(receipt)) if *receipt == status), "{again:?}");
    }
    for &(status, id) in &later {
        assert_eq!(bench.ended(id).state, State::Done, "{status}");
        let attempts = bench.attempts(id);
        assert_eq!(attempts.len(), 1, "{status}");
        assert_eq!((attempts[0].failure.class, attempts[0].charged), (Class::Transient, true), "{status}");
        assert!(attempts[0].failure.text.ends_with(&format!("answered {status}")), "{}", attempts[0].failure.text);
    }
    for &(status, id) in &parked {
        let job = bench.ended(id);
        assert_eq!((job.state, job.parked_for.as_deref(), job.attempts), (State::Parked, Some("auth"), 0), "{status}");
    }
    for &(status, id) in &refused {
        let job = bench.ended(id);
        assert_eq!((job.state, job.last_failure.unwrap().class), (State::Dead, Class::Permanent), "{status}");
    }
    let expected = accepted.len() + 2 * later.len() + parked.len() + refused.len();
    assert_eq!(receiver.deliveries().len(), expected);
}

#[test]
fn a_repeat_has_the_same_id_and_the_same_body() {
    let receiver = Receiver::start(|delivery| Answer::status(if delivery.repeat < 2 { 503 } else { 200 }));
    let bench = Bench::new(hook(&receiver));
    let ids: Vec<_> = (0..20).map(|n| bench.post(format!("note {n}"))).collect();
    for id in ids {
        assert_eq!(bench.ended(id).state, State::Done);
    }
    let all = receiver.deliveries();
    let different: BTreeSet<_> = all.iter().map(|delivery| (delivery.id(), &delivery.body)).collect();
    assert_eq!((all.len(), different.len(), receiver.deduped().len()), (60, 20, 20));
}

#[test]
fn a_message_is_not_sent_again_sooner_than_the_receiver_asked_and_that_costs_nothing() {
    let receiver = Receiver::start(|delivery| {
        let text = serde_json::from_str::<Note>(&delivery.body).unwrap().text;
        let (date, asked) = (Utc::now() + Duration::from_secs(2), Answer::status(503));
        once(match text.as_str() {
            "seconds" => asked.header("Retry-After", "1"),
            "date" => asked.header("retry-after", &date.format("%a, %d %b %Y %H:%M:%S GMT").to_string()),
            _ => asked.header("Retry-After", &text),
        })(delivery)
    });
    let bench = Bench::new(hook(&receiver));
    let heeded = ["seconds", "date"].map(|text| bench.post(text));
    let unheeded = ["0", "soon", "Sun, 06 Nov 1994 08:49:37 GMT"].map(|text| bench.post(text));
    let capped = bench.post("8640000");
    for id in unheeded {
        assert_eq!(bench.ended(id).state, State::Done);
        assert!(bench.attempts(id)[0].charged);
    }
    for id in heeded {
        assert_eq!(bench.ended(id).state, State::Done);
        assert!(!bench.attempts(id)[0].charged);
    }
    for text in ["seconds", "date"] {
        let body = serde_json::to_string(&note(text)).unwrap();
        let at: Vec<_> = receiver.deliveries().iter().filter(|one| one.body == body).map(|one| one.at).collect();
        // The time of the header is in whole seconds.
        assert!(at.len() == 2 && at[1] - at[0] >= Duration::from_millis(990), "{text}: {:?}", at[1] - at[0]);
    }
    let wait = bench.job(capped).run_at - Utc::now();
    assert!((23..=29).contains(&wait.num_hours()), "with its jitter a day at most: {wait}");
}

#[test]
fn an_answer_that_does_not_come_in_time_is_no_answer() {
    let receiver = Receiver::start(once(Answer::status(200).after(Duration::from_millis(1_200))));
    let bench = Bench::new(hook(&receiver).timeout(Duration::from_millis(400)));
    let said = bench.post_twice("late");
    assert!(said.contains("out of time"), "{said}");
    assert_eq!((receiver.deliveries().len(), receiver.deduped().len()), (2, 1));
}

#[test]
fn a_connection_that_breaks_is_tried_again() {
    let whole = Answer::status(200).body("x".repeat(100));
    for answer in [Answer::silence(), whole.clone().cut_at(9), whole.clone().without_last(101)] {
        let receiver = Receiver::start(once(answer.clone()));
        let said = Bench::new(hook(&receiver)).post_twice("half");
        assert!(said.starts_with("POST to 127.0.0.1:"), "{said}");
        assert_eq!(receiver.deliveries().len(), 2, "{answer:?}");
    }
    // The status has been said: what breaks off after it is nothing that is used.
    let receiver = Receiver::start(once(whole.without_last(1)));
    let bench = Bench::new(hook(&receiver));
    let id = bench.post("said");
    assert_eq!((bench.ended(id).state, receiver.deliveries().len()), (State::Done, 1));
}

#[test]
fn a_connection_is_used_again_and_one_that_went_stale_is_replaced() {
    let receiver = Receiver::start(|delivery| match (delivery.body.contains("stale"), delivery.repeat) {
        (true, 0) => Answer::silence(),
        _ => Answer::status(200).body("x".repeat(10_000)),
    });
    let bench = Bench::new(hook(&receiver));
    for text in ["first", "second"] {
        let id = bench.post(text);
        assert_eq!(bench.ended(id).state, State::Done);
    }
    bench.post_twice("stale");
    let connections: Vec<_> = receiver.deliveries().iter().map(|delivery| delivery.connection).collect();
    assert_eq!(connections, [0, 0, 0, 1]);
}

#[test]
fn a_receiver_that_is_not_there_yet_gets_its_messages_later() {
    // Where nobody listens who is not root.
    let port = 1;
    for scheme in ["http", "https"] {
        let bench = Bench::new(Webhook::new(&format!("{scheme}://127.0.0.1:{port}/s3cret")).unwrap());
        let id = bench.post("early");
        let job = bench.ended(id);
        assert_eq!((job.state, job.attempts), (State::Dead, 3));
        for attempt in bench.attempts(id) {
            let failure = attempt.failure;
            assert_eq!(failure.class, Class::Transient);
            assert!(
                failure.text.contains(&format!("127.0.0.1:{port}: ")) && !failure.text.contains("s3cret"),
                "{failure:?}"
            );
        }
    }
}

#[test]
fn what_does_not_speak_the_protocol_is_tried_again() {
    let receiver = Receiver::accepting();
    // A plain receiver does not understand what TLS says, and waits for the end of the line.
    let secure = receiver.url("/").replace("http", "https");
    let bench = Bench::new(Webhook::new(&secure).unwrap().connect_timeout(Duration::from_millis(50)));
    let id = bench.post("in secret");
    assert_eq!(bench.ended(id).last_failure.unwrap().class, Class::Transient);
    assert_eq!((bench.job(id).attempts, receiver.deliveries().len()), (3, 0));
}

#[test]
fn a_redirect_is_not_followed() {
    let elsewhere = Receiver::accepting();
    let target = elsewhere.url("/s3cret");
    let receiver = Receiver::start(move |_| Answer::status(307).header("Location", &target));
    let bench = Bench::new(hook(&receiver).authorization(|| Ok("Bearer s3cret".into())));
    let id = bench.post("moved");
    let job = bench.ended(id);
    let failure = job.last_failure.unwrap();
    assert_eq!((job.state, failure.class), (State::Dead, Class::Permanent));
    assert!(failure.text.contains("307") && failure.text.contains("redirect"), "{}", failure.text);
    assert!(!failure.text.contains("s3cret"), "{}", failure.text);
    assert_eq!((receiver.deliveries().len(), elsewhere.deliveries().len()), (1, 0));
}

/// In a child, whose environment names a proxy.
fn post_one(address: &str) {
    let bench = Bench::new(Webhook::new(address).unwrap());
    let id = bench.post("straight");
    assert_eq!(bench.ended(id).state, State::Done);
}

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("post") => post_one(&common::given("ADDRESS")),
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

#[test]
fn a_proxy_of_the_environment_is_not_told() {
    let (receiver, proxy) = (Receiver::accepting(), Receiver::accepting());
    let (address, proxied) = (receiver.url("/notes"), proxy.url(""));
    let names = ["ALL_PROXY", "all_proxy", "HTTP_PROXY", "http_proxy", "HTTPS_PROXY", "https_proxy"];
    let mut variables: Vec<_> = names.iter().map(|&name| (name, proxied.as_str())).collect();
    variables.extend([("ADDRESS", address.as_str()), ("NO_PROXY", ""), ("no_proxy", "")]);
    Child::start("post", &variables).finish();
    assert_eq!((receiver.deliveries().len(), proxy.deliveries().len()), (1, 0));
}

#[test]
fn without_an_authorization_nothing_is_sent() {
    let receiver = Receiver::accepting();
    let asked = AtomicUsize::new(0);
    let hook = hook(&receiver).authorization(move || match asked.fetch_add(1, Ordering::SeqCst) {
        0 => Err(anyhow!("the keyring is locked")),
        1 => Err(anyhow!("nobody is logged in")).park("auth:login"),
        n => Ok(["Bearer s3cret\n", "Bearer s3cret\r\nX: y", "Bearer ş3cret"][n - 2].to_owned()),
    });
    let bench = Bench::new(hook);
    let id = bench.post("kept");
    let job = bench.ended(id);
    assert_eq!((job.state, job.parked_for.as_deref()), (State::Parked, Some("auth:login")));
    let said: Vec<_> = bench.attempts(id).into_iter().map(|one| (one.failure.class, one.failure.text)).collect();
    assert_eq!((said[0].0, said[1].0), (Class::Transient, Class::Parked));
    assert!(said[0].1.ends_with("asking for the authorization: the keyring is locked"), "{said:?}");
    for text in ["a", "b", "c"] {
        let id = bench.post(text);
        let job = bench.ended(id);
        let said = job.last_failure.unwrap().text;
        assert_eq!((job.state, job.parked_for.as_deref()), (State::Parked, Some("auth")), "{said}");
        assert!(!said.contains("3cret"), "{said}");
    }
    assert_eq!(receiver.deliveries().len(), 0);
}

#[test]
fn a_bad_setting_is_an_error_with_a_code() {
    let error = Webhook::new("books.example").unwrap_err();
    assert!(matches!(error, Error::WebhookInvalid { setting: "address", .. }), "{error:?}");
    assert_eq!((error.code(), error.is_retryable()), ("WEBHOOK_INVALID", false));
    let error = Webhook::new("http://books.example").unwrap().header("X-Panel", "a\r\nb: c").unwrap_err();
    assert!(matches!(error, Error::WebhookInvalid { setting: "header", .. }), "{error:?}");
}

#[test]
fn a_runner_that_stops_in_the_middle_of_a_request_ends_in_time_and_the_next_one_sends_it_again() {
    const GRACE: Duration = Duration::from_millis(100);
    let receiver = Receiver::start(once(Answer::status(200).after(Duration::from_secs(20))));
    let Bench { folder, store, runner } = Bench::new(hook(&receiver).timeout(Duration::from_millis(800)));
    let id = store.enqueue(&note("slow")).unwrap().id;
    wait_until("the request has arrived", || receiver.deliveries().len() == 1);
    let start = Instant::now();
    runner.stop(GRACE).unwrap();
    assert!(start.elapsed() < GRACE + Duration::from_secs(1), "{:?}", start.elapsed());
    let (job, attempts) = (store.job(id).unwrap().unwrap(), store.attempts(id).unwrap());
    assert_eq!((job.state, job.attempts), (State::Waiting, 0));
    assert_eq!((attempts[0].failure.class, attempts[0].charged), (Class::Interrupted, false));

    let bench = Bench { runner: run(&store, hook(&receiver)), folder, store };
    assert_eq!(bench.ended(id).state, State::Done);
    assert_eq!((receiver.deliveries().len(), receiver.deduped().len()), (2, 1));
}
