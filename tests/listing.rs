//! What went wrong must be found among a million jobs that did not: by kind, key, class, time and text, page by page.

mod common;

use std::time::{Duration, Instant};

use birkez::testing::{Drain, ManualClock, TempStore};
use birkez::{Class, Context, Filter, Job, Page, RetryPolicy, Runner, State, Store, Verdicts};
use common::run_sql;
use serde::{Deserialize, Serialize};

#[derive(Clone, Serialize, Deserialize)]
struct Mail {
    to: String,
}

impl Job for Mail {
    const KIND: &'static str = "mail";
    type Output = ();
    fn key(&self) -> String {
        self.to.clone()
    }
    fn ordering_key(&self) -> Option<String> {
        self.to.starts_with("line").then(|| "line".to_owned())
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().base(Duration::ZERO).jitter(0.0).max_attempts(2)
    }
}

/// As the key says.
fn handler(mail: Mail, _: &Context) -> anyhow::Result<()> {
    match mail.to.split('/').next().unwrap() {
        "bounced" => Err(anyhow::anyhow!("No such BOX: 550%")).permanent(),
        "lost" => anyhow::bail!("no route"),
        "asked" => Err(anyhow::anyhow!("401")).park("auth"),
        _ => Ok(()),
    }
}

fn store() -> (TempStore, std::sync::Arc<ManualClock>, Store) {
    let folder = TempStore::new().unwrap();
    let clock = ManualClock::at("2026-03-01T12:00:00Z".parse().unwrap());
    let store = folder.builder().clock(clock.clone()).open().unwrap();
    (folder, clock, store)
}

fn keys(store: &Store, filter: &Filter) -> Vec<String> {
    store.list(filter, Page::first(100)).unwrap().into_iter().map(|job| job.key).collect()
}

#[test]
fn each_word_of_a_filter_leaves_out_what_it_does_not_mean() {
    let (_folder, clock, store) = store();
    let drain = Drain::new(Runner::builder(&store).handle(handler)).unwrap();
    let enqueue = |names: &[&str]| {
        let jobs: Vec<_> = names.iter().map(|to| Mail { to: (*to).to_owned() }).collect();
        let _ = store.enqueue_all(&jobs).unwrap();
        drain.drain().unwrap();
    };
    enqueue(&["fine/1", "bounced/1", "lost/1", "asked/1"]);
    let noon = clock.now();
    clock.advance(Duration::from_secs(3_600));
    enqueue(&["bounced/2", "line/1"]);
    let found = |filter: Filter| keys(&store, &filter);
    assert_eq!(found(Filter::all()).len(), 6);
    assert_eq!(found(Filter::dead()), ["bounced/2", "lost/1", "bounced/1"], "newest first");
    assert_eq!(found(Filter::dead().class(Class::Transient)), ["lost/1"]);
    assert_eq!(found(Filter::dead().error_contains("no such box: 550%")), ["bounced/2", "bounced/1"]);
    assert_eq!(found(Filter::dead().error_contains("550_")), [""; 0], "it is no pattern");
    assert_eq!(found(Filter::dead().key_prefix("bounced/")), ["bounced/2", "bounced/1"]);
    assert_eq!(found(Filter::all().key_prefix("b%")), [""; 0]);
    assert_eq!(found(Filter::dead().at_least_attempts(2)), ["lost/1"]);
    assert_eq!(found(Filter::dead().finished(Some(clock.now()), None)), ["bounced/2"]);
    assert_eq!(found(Filter::dead().created(None, Some(clock.now()))), ["lost/1", "bounced/1"]);
    assert_eq!(found(Filter::dead().created(Some(noon), Some(noon))), [""; 0], "until is left out");
    assert_eq!(found(Filter::parked_for("auth")), ["asked/1"]);
    assert_eq!(found(Filter::parked_for("other")), [""; 0]);
    assert_eq!(found(Filter::all().ordering_key("line")), ["line/1"]);
    assert_eq!(found(Filter::state(State::Done)), ["line/1", "fine/1"]);
    assert_eq!(found(Filter::all().kind("mail").kind("other")).len(), 6);
    assert_eq!(found(Filter::all().kind("other")), [""; 0]);
    let classes = store.count_by_class(&Filter::dead()).unwrap();
    assert_eq!(classes, [(Some(Class::Permanent), 2), (Some(Class::Transient), 1)]);
    assert_eq!(store.count_by_class(&Filter::state(State::Done)).unwrap(), [(None, 2)]);
}

#[test]
fn waiting_and_running_are_told_apart() {
    let (_folder, _, store) = store();
    let listed = store.clone();
    let drain = Drain::new(Runner::builder(&store).handle(move |mail: Mail, _: &Context| {
        assert_eq!(keys(&listed, &Filter::state(State::Running)), [mail.to]);
        assert_eq!(keys(&listed, &Filter::state(State::Waiting)), [""; 0]);
        Ok(())
    }));
    let _ = store.enqueue(&Mail { to: "a".to_owned() }).unwrap();
    drain.unwrap().drain().unwrap();
    assert_eq!(keys(&store, &Filter::state(State::Done)), ["a"]);
}

#[test]
fn a_payload_is_shown_when_it_is_asked_for() {
    let (_folder, _, store) = store();
    let id = store.enqueue(&Mail { to: "a".to_owned() }).unwrap().id;
    assert_eq!(store.payload(id).unwrap().as_deref(), Some(r#"{"to":"a"}"#));
    assert_eq!(store.payload(id + 1).unwrap(), None);
}

#[test]
fn pages_of_dead_letters_among_many_done_jobs_lose_none_and_are_quick() {
    let (folder, _, store) = store();
    let done = common::rounds("BIRKEZ_DONE", 100_000);
    // Every thousandth is dead.
    run_sql(
        folder.path(),
        &format!(
            "INSERT INTO birkez_job (kind, key, payload, state, gate, finished_at, created_at, error_class, error_text)
             WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < {done})
             SELECT 'mail', 'job/' || i, '{{}}', iif(i % 1000, 2, 3), NULL, 7, 5, iif(i % 1000, NULL, 'permanent'), 'no' FROM n"
        ),
    );
    let (mut page, mut seen, mut slowest) = (Page::first(30), Vec::new(), Duration::ZERO);
    loop {
        let started = Instant::now();
        let jobs = store.list(&Filter::dead().kind("mail"), page).unwrap();
        slowest = slowest.max(started.elapsed());
        let Some(last) = jobs.last() else { break };
        page = Page::after(last, 30);
        seen.extend(jobs.into_iter().map(|job| job.id));
    }
    println!("the slowest page of 30 took {slowest:?}");
    assert_eq!(seen.len() as u32, done / 1_000);
    assert!(seen.is_sorted_by(|a, b| a > b));
    assert!(slowest < Duration::from_millis(100), "{slowest:?}");
}
