//! Rows and triggers that other programs leave in the file: none may hold up the jobs beside them, or the calls of those who
//! store new ones.

mod common;

use std::time::Duration;

use birkez::rusqlite::Connection;
use birkez::testing::TempStore;
use birkez::{Context, Job, Runner, State, Store};
use common::wait_until;
use serde::{Deserialize, Serialize};

#[derive(Serialize, Deserialize)]
struct Note {
    n: u32,
}

impl Job for Note {
    const KIND: &'static str = "note";
    type Output = u32;
    fn key(&self) -> String {
        format!("n{}", self.n)
    }
}

fn runner(store: &Store) -> Runner {
    Runner::builder(store).workers(2).handle(|note: Note, _: &Context| Ok(note.n)).start().unwrap()
}

fn is_done(store: &Store, n: u32) -> bool {
    store.find("note", &format!("n{n}")).unwrap().is_some_and(|job| job.state == State::Done)
}

#[test]
fn a_key_that_is_not_unicode_does_not_hold_up_the_jobs_behind_it() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let script = Connection::open(folder.path()).unwrap();
    let odd = "INSERT INTO birkez_job (kind, key, payload) VALUES ('note', CAST(x'ff41' AS TEXT), '{\"n\":1}')";
    script.execute(odd, []).unwrap();
    let runner = runner(&store);
    let _ = store.enqueue(&Note { n: 2 }).unwrap();
    wait_until("the job behind it is done", || is_done(&store, 2));
    let left = "SELECT count(*) FROM birkez_job WHERE state <> 2";
    wait_until("the odd one is done too", || script.query_row(left, [], |row| row.get::<_, i64>(0)).unwrap() == 0);
    runner.stop(Duration::from_secs(1)).unwrap();
}

#[test]
fn a_trigger_of_the_app_that_refuses_one_job_does_not_hold_up_the_others() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let app = Connection::open(folder.path()).unwrap();
    app.execute_batch(
        "CREATE TRIGGER no_third BEFORE UPDATE ON birkez_job WHEN NEW.key = 'n3' AND NEW.state = 2
         BEGIN SELECT RAISE(ABORT, 'not this one'); END",
    )
    .unwrap();
    let _ = store.enqueue_all(&[Note { n: 1 }, Note { n: 2 }, Note { n: 3 }, Note { n: 4 }]).unwrap();
    let runner = runner(&store);
    for n in [1, 2, 4] {
        wait_until("the others are done", || is_done(&store, n));
    }
    let _ = store.enqueue(&Note { n: 5 }).unwrap();
    wait_until("what comes later is done", || is_done(&store, 5));
    assert!(!is_done(&store, 3));
    runner.stop(Duration::from_secs(1)).unwrap();
}

#[test]
fn a_trigger_of_the_app_that_refuses_a_claim_does_not_keep_others_from_storing() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let app = Connection::open(folder.path()).unwrap();
    app.execute_batch(
        "CREATE TRIGGER no_lease BEFORE INSERT ON birkez_lease BEGIN SELECT RAISE(ABORT, 'nothing runs'); END",
    )
    .unwrap();
    let runner = runner(&store);
    for n in 0..20 {
        let _ = store.enqueue(&Note { n }).unwrap();
    }
    app.execute_batch("DROP TRIGGER no_lease").unwrap();
    let _ = store.enqueue(&Note { n: 20 }).unwrap();
    wait_until("all are done once claims work", || (0..=20).all(|n| is_done(&store, n)));
    runner.stop(Duration::from_secs(1)).unwrap();
}
