//! The authorization of a webhook: asked once and kept until it is stale; found again in the file, in an error's text or in
//! the log, be it since the receiver sent it back.
//!
//! The loggers are the whole process's, so this file has one test at a time that uses them.
#![cfg(feature = "webhook")]

mod common;

use std::fmt::Write as _;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use birkez::testing::TempStore;
use birkez::{Class, Job, RetryPolicy, Runner, State, Store, Webhook};
use common::receiver::{Answer, Delivery, Receiver};
use common::wait_until;
use serde::{Deserialize, Serialize};
use tracing::field::{Field, Visit};

/// Every value of the authorization holds it; short enough for one line of a dump of bytes.
const SECRET: &str = "s3cr3t";
const HOURS: Duration = Duration::from_secs(3600);

#[derive(Serialize, Deserialize)]
struct Note {
    /// How the receiver answers, again and again.
    statuses: Vec<u16>,
}

impl Job for Note {
    const KIND: &'static str = "note";
    type Output = u16;

    fn key(&self) -> String {
        format!("{:?}", self.statuses)
    }

    fn retry() -> RetryPolicy {
        RetryPolicy::default().max_attempts(4).base(Duration::from_millis(5)).factor(1.0)
    }
}

/// All that is said in this process, by `tracing` and by `log`.
static SAID: Mutex<String> = Mutex::new(String::new());
/// Whether the log takes raw bytes.
static RAW: AtomicBool = AtomicBool::new(false);
static LOGGERS: Mutex<()> = Mutex::new(());

fn said() -> String {
    SAID.lock().unwrap_or_else(PoisonError::into_inner).clone()
}

/// Writes every event and span down.
struct Listener;

struct Words;

impl Visit for Words {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = write!(SAID.lock().unwrap_or_else(PoisonError::into_inner), "{field}={value:?} ");
    }
}

impl tracing::Subscriber for Listener {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, span: &tracing::span::Attributes<'_>) -> tracing::span::Id {
        span.record(&mut Words);
        tracing::span::Id::from_u64(1)
    }

    fn record(&self, _: &tracing::span::Id, values: &tracing::span::Record<'_>) {
        values.record(&mut Words);
    }

    fn record_follows_from(&self, _: &tracing::span::Id, _: &tracing::span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        event.record(&mut Words);
    }

    fn enter(&self, _: &tracing::span::Id) {}

    fn exit(&self, _: &tracing::span::Id) {}
}

impl log::Log for Listener {
    fn enabled(&self, metadata: &log::Metadata<'_>) -> bool {
        metadata.level() < log::Level::Trace || !metadata.target().starts_with("ureq") || RAW.load(Ordering::SeqCst)
    }

    fn log(&self, record: &log::Record<'_>) {
        if self.enabled(record.metadata()) {
            let _ =
                writeln!(SAID.lock().unwrap_or_else(PoisonError::into_inner), "{}: {}", record.target(), record.args());
        }
    }

    fn flush(&self) {}
}

/// Hears all from now on. The loggers are set once.
fn listen(raw: bool) {
    static SET: std::sync::Once = std::sync::Once::new();
    SET.call_once(|| {
        tracing::subscriber::set_global_default(Listener).unwrap();
        log::set_logger(&Listener).unwrap();
        log::set_max_level(log::LevelFilter::Trace);
    });
    RAW.store(raw, Ordering::SeqCst);
    SAID.lock().unwrap_or_else(PoisonError::into_inner).clear();
}

/// Sends back all it got, wherever an answer has room for it.
fn echo(delivery: &Delivery) -> Answer {
    let got = delivery.header("authorization").unwrap_or_default();
    let statuses = serde_json::from_str::<Note>(&delivery.body).unwrap().statuses;
    let status = statuses[delivery.repeat.min(statuses.len() - 1)];
    let answer =
        Answer::status(status).header("X-Got", got).header("Location", &format!("http://{SECRET}.example/{got}"));
    let answer = answer.header("WWW-Authenticate", got).header("Retry-After", got);
    if status == 599 {
        answer.header(&format!("not a header {got}"), "")
    } else {
        answer.body(format!("you sent {got}"))
    }
}

/// Posts to `receiver` with a new authorization each time.
fn run(store: &Store, receiver: &Receiver) -> Runner {
    let asked = AtomicUsize::new(0);
    let hook = Webhook::new(&receiver.url("/notes")).unwrap();
    let hook = hook.authorization(move || Ok(format!("{SECRET} {}", asked.fetch_add(1, Ordering::SeqCst))));
    Runner::builder(store).workers(1).relay::<Note>(hook).start().unwrap()
}

/// The bytes of all files that lie in the store's folder.
fn bytes_beside(folder: &TempStore) -> Vec<u8> {
    let folder = folder.path().parent().unwrap();
    let files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path()).filter(|path| path.is_file());
    files.flat_map(|path| std::fs::read(path).unwrap()).collect()
}

fn holds(bytes: &[u8], text: &str) -> bool {
    bytes.windows(text.len()).any(|window| window == text.as_bytes())
}

#[test]
fn the_authorization_is_asked_at_each_attempt_and_is_nowhere_else_even_if_the_receiver_sends_it_back() {
    let _alone = LOGGERS.lock().unwrap_or_else(PoisonError::into_inner);
    listen(false);
    let (folder, receiver) = (TempStore::new().unwrap(), Receiver::start(echo));
    let store = folder.open().unwrap();
    let runner = run(&store, &receiver);
    let scripts = [vec![503, 429, 200], vec![599, 200], vec![401], vec![403], vec![302], vec![422], vec![500]];
    let ids: Vec<_> = scripts.map(|statuses| store.enqueue(&Note { statuses }).unwrap().id).into();
    let ended = |id: &i64| !matches!(store.job(*id).unwrap().unwrap().state, State::Waiting | State::Running);
    wait_until("all have ended", || ids.iter().all(ended));
    runner.stop(HOURS).unwrap();

    let sent = receiver.deliveries();
    let values: Vec<_> = sent.iter().map(|delivery| delivery.header("authorization").unwrap()).collect();
    assert_eq!(values, (0..sent.len()).map(|n| format!("{SECRET} {n}")).collect::<Vec<_>>());
    assert_eq!(sent.len(), 3 + 2 + 4 + 4);

    let texts: Vec<_> = ids.iter().flat_map(|&id| store.attempts(id).unwrap()).map(|one| one.failure.text).collect();
    assert!(texts.len() >= 11 && texts.iter().all(|text| !text.contains(SECRET)), "{texts:#?}");
    let stored = bytes_beside(&folder);
    assert!(holds(&stored, "answered 503") && !holds(&stored, SECRET), "the file");
    tracing::info!("a mark of tracing");
    let said = said();
    // What would be heard is heard.
    assert!(said.contains("a mark of tracing") && said.contains("ureq::run: POST http://127.0.0.1"), "{said}");
    assert!(!said.contains(SECRET), "{}", said.lines().find(|line| line.contains(SECRET)).unwrap_or_default());
}

#[test]
fn while_the_log_takes_raw_bytes_nothing_with_an_authorization_is_sent() {
    let _alone = LOGGERS.lock().unwrap_or_else(PoisonError::into_inner);
    listen(true);
    let (folder, receiver) = (TempStore::new().unwrap(), Receiver::start(echo));
    let store = folder.open().unwrap();
    let runner = run(&store, &receiver);
    let id = store.enqueue(&Note { statuses: vec![200] }).unwrap().id;
    wait_until("it is held back", || !store.attempts(id).unwrap().is_empty());
    let attempt = store.attempts(id).unwrap().remove(0);
    assert_eq!((attempt.failure.class, attempt.charged), (Class::Transient, false));
    assert!(attempt.failure.text.contains("trace events of `ureq`"), "{}", attempt.failure.text);
    assert_eq!(receiver.deliveries().len(), 0);
    assert!(said().contains("a message is held back"), "{}", said());

    runner.stop(HOURS).unwrap();

    // Without one there is nothing to hide, and the client shows what this is about.
    let marked = Webhook::new(&receiver.url("/notes")).unwrap().header("X-Marked", "plain to see").unwrap();
    let runner = Runner::builder(&store).relay::<Note>(marked).start().unwrap();
    let id = store.enqueue(&Note { statuses: vec![201] }).unwrap().id;
    wait_until("it is sent", || store.job(id).unwrap().unwrap().state == State::Done);
    runner.stop(HOURS).unwrap();
    let dumped: String = said().lines().filter(|line| line.starts_with("ureq_proto::util: ")).map(last_word).collect();
    assert!(dumped.contains("plain.to.see"), "{dumped}");
}

/// The letters at the end of a line of a dump.
fn last_word(line: &str) -> &str {
    line.rsplit(' ').next().unwrap_or_default()
}
