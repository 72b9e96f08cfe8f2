//! A kind gets another name. What can go wrong: what was done under the old name is done again under the new; of two jobs
//! with one key the wrong one stays, or both run; a line, a count or an idempotency key changes with the name; a job that
//! runs is renamed under its worker's hands.

mod common;

use std::path::Path;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use birkez::testing::{Drain, TempStore};
use birkez::{Context, Job, Runner, Standing, State, Store, UpkeepReport};
use common::{ask, rows, run_sql, wait_until};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Old {
    key: String,
    #[serde(default)]
    line: Option<String>,
}

impl Job for Old {
    const KIND: &'static str = "old";
    type Output = u32;
    fn key(&self) -> String {
        self.key.clone()
    }
    fn ordering_key(&self) -> Option<String> {
        self.line.clone()
    }
}

#[derive(Serialize, Deserialize)]
struct New {
    key: String,
    #[serde(default)]
    line: Option<String>,
}

impl Job for New {
    const KIND: &'static str = "new";
    const FORMER_KINDS: &'static [&'static str] = &["old"];
    type Output = u32;
    fn key(&self) -> String {
        self.key.clone()
    }
    fn ordering_key(&self) -> Option<String> {
        self.line.clone()
    }
}

fn old(key: &str) -> Old {
    Old { key: key.into(), line: None }
}

fn new(key: &str) -> New {
    New { key: key.into(), line: None }
}

/// All upkeep, by a program that says which name is whose.
fn adopt(store: &Store) -> UpkeepReport {
    let said = "INSERT INTO birkez_kind (kind, queue, goes_by, said_at) VALUES ('old', 'default', 'new', 1)
                ON CONFLICT (kind) DO UPDATE SET goes_by = 'new'";
    run_sql(store.path(), said);
    let report = store.upkeep().unwrap();
    assert_counts(store.path());
    report
}

#[track_caller]
fn assert_counts(file: &Path) {
    let counted = rows(file, "SELECT kind, state, n FROM birkez_count WHERE n <> 0 ORDER BY kind, state");
    let there =
        "SELECT kind, state, count(*) FROM birkez_job WHERE state >= 2 GROUP BY kind, state ORDER BY kind, state";
    assert_eq!(counted, rows(file, there));
}

/// A row in a state, by SQL: `running` has a lease of nobody's.
fn put(store: &Store, kind: &str, state: &str) {
    let (number, gate, attempts) = match state {
        "fresh" => (0, "1", 0),
        "begun" => (0, "1", 1),
        "running" => (0, "1", 0),
        "parked" => (1, "NULL", 1),
        "done" => (2, "NULL", 1),
        "dead" => (3, "NULL", 1),
        _ => (4, "NULL", 0),
    };
    let finished = if number >= 2 { "5" } else { "NULL" };
    let reason = if number == 1 { "'auth'" } else { "NULL" };
    let mut sql = format!(
        "INSERT INTO birkez_job (kind, key, payload, state, gate, run_at, created_at, attempts, finished_at, reason, idempotency)
         VALUES ('{kind}', 'k', '{{\"key\":\"k\"}}', {number}, {gate}, 5, 5, {attempts}, {finished}, {reason}, 'idem-{kind}');"
    );
    if number >= 2 {
        sql.push_str(&format!(
            "INSERT INTO birkez_count VALUES ('{kind}', {number}, 1) ON CONFLICT DO UPDATE SET n = n + 1;"
        ));
    }
    if state == "running" {
        sql.push_str(&format!(
            "INSERT INTO birkez_lease SELECT id, 1, 1, 1, 5, 0, 0 FROM birkez_job WHERE kind = '{kind}'"
        ));
    }
    run_sql(store.path(), &sql);
}

/// Which of two stays: the further one, else the older. The older is stored first.
fn expected(older: &str, newer: &str) -> &'static str {
    let rank = |state: &str| match state {
        "done" => 4,
        "running" => 3,
        "begun" | "parked" | "dead" => 2,
        _ => 0,
    };
    if rank(newer) > rank(older) { "newer" } else { "older" }
}

#[test]
fn of_two_jobs_with_one_key_the_further_one_stays_else_the_older_in_every_pair_of_states() {
    let states = ["fresh", "begun", "running", "parked", "done", "dead", "cancelled"];
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    for older in states {
        for newer in states {
            for kinds in [["old", "new"], ["new", "old"]] {
                run_sql(folder.path(), "DELETE FROM birkez_job; DELETE FROM birkez_lease; DELETE FROM birkez_count;");
                put(&store, kinds[0], older);
                put(&store, kinds[1], newer);
                let about = format!("{older} {} and {newer} {}", kinds[0], kinds[1]);
                adopt(&store);
                let ids = if expected(older, newer) == "older" { ["min", "max"] } else { ["max", "min"] };
                let [stays, other] = ids.map(|id| format!("(SELECT {id}(id) FROM birkez_job)"));
                let row = |id: &str, what: &str| {
                    ask::<String>(
                        folder.path(),
                        &format!("SELECT coalesce({what}, '') || '' FROM birkez_job WHERE id = {id}"),
                    )
                };
                let (kept, lost) = if ids[0] == "min" { (older, newer) } else { (newer, older) };
                let runs = older == "running" || newer == "running";
                if !runs {
                    assert_eq!((row(&stays, "kind"), row(&other, "kind")), ("new".into(), "old".into()), "{about}");
                }
                let number = |state: &str| match state {
                    "parked" => "1",
                    "done" => "2",
                    "dead" => "3",
                    "cancelled" => "4",
                    _ => "0",
                };
                assert_eq!(row(&stays, "state"), number(kept), "{about}: what stays is as it was");
                if matches!(lost, "done" | "running" | "cancelled") {
                    assert_eq!(row(&other, "state"), number(lost), "{about}: what is over or runs is not rewritten");
                } else {
                    assert_eq!((row(&other, "state"), row(&other, "error_class")), ("4".into(), "superseded".into()));
                    let named = ask::<i64>(folder.path(), &format!("SELECT {stays}"));
                    assert!(row(&other, "error_text").starts_with(&format!("job {named} holds this key")), "{about}");
                }
                assert_eq!(adopt(&store).closed, 0, "{about}: once");
                assert_eq!(ask::<String>(folder.path(), "PRAGMA integrity_check"), "ok");
            }
        }
    }
}

#[test]
fn what_was_done_under_the_old_name_is_known_under_the_new_and_keeps_all_it_has() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let done = store.enqueue(&old("done")).unwrap().id;
    Drain::new(Runner::builder(&store).handle(|_: Old, _: &Context| Ok(7))).unwrap().drain().unwrap();
    let waits = store.enqueue(&old("waits")).unwrap().id;
    let before = rows(folder.path(), "SELECT id, key, payload, idempotency, fingerprint, result FROM birkez_job");
    assert_eq!(adopt(&store).adopted, 2);
    assert_eq!(
        rows(folder.path(), "SELECT id, key, payload, idempotency, fingerprint, result FROM birkez_job"),
        before
    );
    let repeat = store.enqueue(&new("done")).unwrap();
    assert!(repeat.id == done && matches!(repeat.standing, Standing::Done(Ok(7))), "{repeat:?}");
    assert_eq!(store.job(waits).unwrap().unwrap().kind, "new");
    Drain::new(Runner::builder(&store).handle(|_: New, _: &Context| Ok(8))).unwrap().drain().unwrap();
    assert_eq!(store.job(waits).unwrap().unwrap().state, State::Done);
    assert_counts(folder.path());
}

#[test]
fn an_older_program_that_stores_the_key_once_more_gets_no_second_run() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let first = store.enqueue(&old("a")).unwrap().id;
    let ran = Arc::new(Mutex::new(0));
    let count = Arc::clone(&ran);
    let handler = move |_: New, _: &Context| {
        *count.lock().unwrap() += 1;
        Ok(1)
    };
    let drain = Drain::new(Runner::builder(&store).handle(handler)).unwrap();
    drain.drain().unwrap();
    adopt(&store);
    // Before any upkeep: the runner that claims it finds out.
    let again = store.enqueue(&old("a")).unwrap();
    assert!(again.fresh, "the old name is free");
    drain.drain().unwrap();
    assert_eq!(*ran.lock().unwrap(), 1);
    assert_eq!(store.job(again.id).unwrap().unwrap().state, State::Cancelled);
    assert_eq!(store.enqueue(&new("a")).unwrap().id, first);
    let third = store.enqueue(&old("a")).unwrap();
    assert!(!third.fresh && third.id == again.id, "what was closed keeps the old name's key");
    assert_counts(folder.path());
}

#[test]
fn whoever_stands_behind_one_that_is_closed_moves_up() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let line = Some("line".to_owned());
    let kept = store.enqueue(&New { key: "a".into(), line: None }).unwrap().id;
    let closed = store.enqueue(&Old { key: "a".into(), line: line.clone() }).unwrap().id;
    let behind = store.enqueue(&New { key: "b".into(), line }).unwrap().id;
    assert_eq!(store.job(behind).unwrap().unwrap().behind, Some(closed));
    assert_eq!(adopt(&store).closed, 1);
    assert_eq!(store.job(behind).unwrap().unwrap().behind, None);
    Drain::new(Runner::builder(&store).handle(|_: New, _: &Context| Ok(1))).unwrap().drain().unwrap();
    let states = [kept, closed, behind].map(|id| store.job(id).unwrap().unwrap().state);
    assert_eq!(states, [State::Done, State::Cancelled, State::Done]);
    let text = store.job(closed).unwrap().unwrap().last_failure.unwrap().text;
    assert!(text.contains(&format!("job {kept} holds this key")) && text.contains("other content"), "{text}");
}

#[test]
fn what_is_paused_or_unknown_keeps_its_name() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let _ = store.enqueue(&old("a")).unwrap();
    assert_eq!(store.upkeep().unwrap().adopted, 0, "nobody has said that it is a former name");
    run_sql(folder.path(), "INSERT INTO birkez_pause (scope, name, at, who) VALUES ('kind', 'old', 1, 'Ada')");
    assert_eq!(adopt(&store).adopted, 0);
    run_sql(folder.path(), "DELETE FROM birkez_pause");
    assert_eq!(adopt(&store).adopted, 1);
}

#[test]
fn a_runner_adopts_by_itself() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let _ = store.enqueue(&old("a")).unwrap();
    Drain::new(Runner::builder(&store).handle(|_: Old, _: &Context| Ok(7))).unwrap().drain().unwrap();
    let runner = Runner::builder(&store).handle(|_: New, _: &Context| Ok(1)).start().unwrap();
    wait_until("the row has the present name", || store.find("new", "a").unwrap().is_some());
    runner.stop(Duration::from_secs(5)).unwrap();
    assert_counts(folder.path());
}
