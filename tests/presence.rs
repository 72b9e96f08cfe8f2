//! What runners say of what they handle. What can go wrong: it is said wrongly, or too late to be paused with its queue; a
//! runner that has ended, or whose process was killed, seems to be there; one that lives seems to be gone.

mod common;

use std::path::Path;
use std::time::Duration;

use birkez::testing::{Drain, TempStore};
use birkez::{Context, Job, Runner, RunnerBuilder, State, Store};
use common::{Child, ask, given, rows, run_sql, tell, wait_until};
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Fetch;

impl Job for Fetch {
    const KIND: &'static str = "fetch";
    const QUEUE: &'static str = "bank";
    type Output = ();
    fn key(&self) -> String {
        "held".to_owned()
    }
}

#[derive(Serialize, Deserialize)]
struct Mail;

impl Job for Mail {
    const KIND: &'static str = "mail";
    const FORMER_KINDS: &'static [&'static str] = &["letter"];
    type Output = ();
    fn key(&self) -> String {
        "mail".to_owned()
    }
}

fn handling(store: &Store) -> RunnerBuilder {
    Runner::builder(store).handle(|_: Fetch, _: &Context| Ok(())).handle(|_: Mail, _: &Context| Ok(()))
}

#[test]
fn child_role() {
    match common::role().as_deref() {
        // Holds one job until it is killed.
        Some("hold") => {
            let store = Store::open(Path::new(&given("DB"))).unwrap();
            let handler = |_: Fetch, _: &Context| -> anyhow::Result<()> {
                tell("start held");
                std::thread::sleep(Duration::from_secs(600));
                Ok(())
            };
            let _runner = Runner::builder(&store).workers(1).handle(handler).start().unwrap();
            std::thread::sleep(Duration::from_secs(600));
        }
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

#[test]
fn a_runner_says_what_it_handles_and_from_when_to_when() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let presences = "SELECT what, name, until IS NULL FROM birkez_presence ORDER BY id";
    let runner = handling(&store).start().unwrap();
    let kinds = rows(folder.path(), "SELECT kind, queue, goes_by FROM birkez_kind ORDER BY kind");
    let said = |kind, queue, goes_by: &str| format!("[Text({kind:?}), Text({queue:?}), {goes_by}]");
    let mail = "Text(\"mail\")";
    let expected = [said("fetch", "bank", "Null"), said("letter", "default", mail), said("mail", "default", "Null")];
    assert_eq!(kinds, expected);
    let open = |n: i64| ask::<i64>(folder.path(), "SELECT count(*) FROM birkez_presence WHERE until IS NULL") == n;
    assert!(open(3), "{:?}", rows(folder.path(), presences));
    runner.stop(Duration::from_secs(5)).unwrap();
    wait_until("its presence has ended", || open(0));
    let said_at = "SELECT sum(said_at) FROM birkez_kind";
    let before: i64 = ask(folder.path(), said_at);
    let drain = Drain::new(handling(&store)).unwrap();
    assert!(open(3), "{:?}", rows(folder.path(), presences));
    drop(drain);
    assert!(open(0), "{:?}", rows(folder.path(), presences));
    assert_eq!(ask::<i64>(folder.path(), said_at), before, "what is known already is not written again");
}

#[test]
fn a_process_that_was_declared_gone_says_anew_what_it_handles() {
    let folder = TempStore::new().unwrap();
    let store = folder.builder().lease(Duration::from_millis(60)).open().unwrap();
    let runner = handling(&store).start().unwrap();
    run_sql(folder.path(), "UPDATE birkez_runner SET ended_at = heard_at, ending = 'gone'");
    let anew = "SELECT count(*) FROM birkez_presence WHERE until IS NULL AND runner IN
                (SELECT id FROM birkez_runner WHERE ended_at IS NULL)";
    wait_until("the new owner has them", || ask::<i64>(folder.path(), anew) == 3);
    runner.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn whoever_is_found_gone_was_there_until_it_was_last_heard_of() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let _ = store.enqueue(&Fetch).unwrap();
    let mut child = Child::start("hold", &[("DB", folder.path())]);
    child.expect("start held");
    child.kill();
    // As if the machine had been off for an hour.
    run_sql(folder.path(), "UPDATE birkez_runner SET heard_at = heard_at - 3600000");
    let runner = handling(&store).start().unwrap();
    wait_until("the job has run", || store.find("fetch", "held").unwrap().unwrap().state == State::Done);
    let away = "SELECT ended_at - heard_at >= 3600000 FROM birkez_runner WHERE ending = 'gone'";
    assert!(ask::<bool>(folder.path(), away), "{:?}", rows(folder.path(), "SELECT * FROM birkez_runner"));
    runner.stop(Duration::from_secs(5)).unwrap();
}

#[test]
fn a_runner_beside_a_locked_file_starts_and_says_it_later_and_runs_nothing_before() {
    let folder = TempStore::new().unwrap();
    let store = folder.builder().busy_deadline(Duration::from_millis(50)).open().unwrap();
    // The process is registered by then.
    drop(Drain::new(Runner::builder(&store)).unwrap());
    let _ = store.enqueue(&Fetch).unwrap();
    let mut host = birkez::rusqlite::Connection::open(folder.path()).unwrap();
    let tx = host.transaction_with_behavior(birkez::rusqlite::TransactionBehavior::Immediate).unwrap();
    let runner = handling(&store).start().unwrap();
    tx.execute("INSERT INTO birkez_pause VALUES ('queue', 'bank', 0, 'the host', NULL)", []).unwrap();
    tx.execute("UPDATE birkez_version SET holds = holds + 1", []).unwrap();
    tx.commit().unwrap();
    wait_until("it is said", || ask::<i64>(folder.path(), "SELECT count(*) FROM birkez_kind") == 3);
    let _ = store.enqueue(&Mail).unwrap();
    wait_until("the mail is done", || store.find("mail", "mail").unwrap().unwrap().state == State::Done);
    assert_eq!(store.find("fetch", "held").unwrap().unwrap().state, State::Waiting, "its queue is paused");
    runner.stop(Duration::from_secs(5)).unwrap();
}
