//! A message could outlive the rollback of its row, or die in a crash after it; it could be found late, or shown a number
//! that never came to be.

mod common;

use std::path::Path;
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use birkez::rusqlite::{Connection, Transaction, TransactionBehavior};
use birkez::testing::{Drain, TempStore};
use birkez::{Context, EnqueuedIn, Error, Job, Relay, Runner, State, Store, in_future};
use chrono::{DateTime, Utc};
use common::{Child, ask, given, run_sql, tell};
use serde::{Deserialize, Serialize};

/// Stored with a row of the app's.
#[derive(Clone, Serialize, Deserialize)]
struct Receipt {
    sale: i64,
    minor: i64,
}

impl Job for Receipt {
    const KIND: &'static str = "receipt";
    type Output = ();
    fn key(&self) -> String {
        self.sale.to_string()
    }
    /// In front of what else there is to do.
    fn priority(&self) -> i32 {
        1
    }
}

/// Something else to do.
#[derive(Serialize, Deserialize)]
struct Chore {
    n: u32,
}

impl Job for Chore {
    const KIND: &'static str = "chore";
    type Output = ();
    fn key(&self) -> String {
        self.n.to_string()
    }
}

fn receipt(sale: i64) -> Receipt {
    Receipt { sale, minor: 1_250 }
}

fn folder() -> (TempStore, Store) {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    run_sql(folder.path(), "CREATE TABLE sale (id INTEGER PRIMARY KEY, minor INTEGER)");
    (folder, store)
}

fn host(path: &Path) -> Connection {
    let host = Connection::open(path).unwrap();
    host.busy_timeout(Duration::from_secs(10)).unwrap();
    host
}

fn immediate(host: &mut Connection) -> Transaction<'_> {
    host.transaction_with_behavior(TransactionBehavior::Immediate).unwrap()
}

fn sell(tx: &Transaction<'_>, store: &Store, sale: i64) {
    tx.execute("INSERT INTO sale VALUES (?1, 1250)", [sale]).unwrap();
    assert!(store.enqueue_in(tx, &receipt(sale)).unwrap().is_fresh());
}

/// A relay that tells when it has been given a message.
struct Telegraph(std::sync::mpsc::Sender<(String, String, Instant)>);

impl Relay for Telegraph {
    type Receipt = ();
    fn publish(&self, message: &birkez::Message<'_>, _cx: &Context) -> anyhow::Result<()> {
        let _ = self.0.send((message.id().to_owned(), message.body().to_owned(), Instant::now()));
        Ok(())
    }
}

fn telegraph() -> (Telegraph, Receiver<(String, String, Instant)>) {
    let (send, receive) = channel();
    (Telegraph(send), receive)
}

const SOON: Duration = Duration::from_secs(10);

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("sell and die") => {
            let store = Store::open(given("DB")).unwrap();
            let mut host = host(store.path());
            let tx = immediate(&mut host);
            sell(&tx, &store, 1);
            tx.commit().unwrap();
            tell("committed");
            loop {
                std::thread::sleep(Duration::from_secs(1));
            }
        }
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

#[test]
fn a_message_is_there_if_and_only_if_its_row_is() {
    let (folder, store) = folder();
    let (relay, arrived) = telegraph();
    let _runner = Runner::builder(&store).relay::<Receipt>(relay).start().unwrap();
    let mut app = host(folder.path());
    for sale in 1..=20 {
        let tx = immediate(&mut app);
        sell(&tx, &store, sale);
        if sale % 2 == 0 { tx.commit().unwrap() } else { tx.rollback().unwrap() }
    }
    // Without an ordering key, in any order.
    let mut bodies: Vec<_> = (0..10).map(|_| arrived.recv_timeout(SOON).unwrap().1).collect();
    let mut wanted: Vec<_> = (2..=20).step_by(2).map(|sale| format!(r#"{{"sale":{sale},"minor":1250}}"#)).collect();
    bodies.sort_unstable();
    wanted.sort_unstable();
    assert_eq!(bodies, wanted);
    assert!(arrived.recv_timeout(Duration::from_millis(100)).is_err(), "one more came");
    let sales: i64 = ask(folder.path(), "SELECT count(*) FROM sale WHERE id IN (SELECT key FROM birkez_job)");
    assert_eq!((sales, ask::<i64>(folder.path(), "SELECT count(*) FROM birkez_job")), (10, 10));
}

#[test]
fn committed_and_killed_before_it_went_out_a_message_goes_out_after_a_restart() {
    let (folder, store) = folder();
    let mut child = Child::start("sell and die", &[("DB", folder.path())]);
    child.expect("committed");
    child.kill();
    let (relay, arrived) = telegraph();
    let _runner = Runner::builder(&store).relay::<Receipt>(relay).start().unwrap();
    let (id, ..) = arrived.recv_timeout(SOON).unwrap();
    let job = store.find("receipt", "1").unwrap().unwrap();
    assert_eq!(job.idempotency_key.as_deref(), Some(&*id), "the id of the message stands in its row");
}

#[test]
fn a_transaction_is_told_fresh_or_existing_and_no_number_before_its_commit() {
    let (folder, store) = folder();
    let mut app = host(folder.path());
    let tx = immediate(&mut app);
    assert!(matches!(store.enqueue_in(&tx, &receipt(1)).unwrap(), EnqueuedIn::Fresh));
    // Once more in the same one: it is still one that may never be.
    assert!(matches!(store.enqueue_in(&tx, &receipt(1)).unwrap(), EnqueuedIn::Fresh));
    let other = Receipt { minor: 1, ..receipt(1) };
    let reused = store.enqueue_in(&tx, &other).unwrap_err();
    assert!(matches!(&reused, Error::KeyReused { existing, .. } if existing.id == 0), "{reused:?}");
    assert_eq!(tx.query_row("SELECT count(*) FROM birkez_job", [], |row| row.get::<_, i64>(0)).unwrap(), 1);
    tx.commit().unwrap();
    let tx = immediate(&mut app);
    let EnqueuedIn::Existing(met) = store.enqueue_in(&tx, &receipt(1)).unwrap() else { panic!("it is there") };
    assert_eq!((met.id, met.fresh, met.standing.state()), (1, false, State::Waiting));
}

#[test]
fn a_transaction_that_has_read_too_early_is_told_to_begin_again_and_one_that_only_writes_is_not() {
    let (folder, store) = folder();
    let mut app = host(folder.path());
    let (mut reader, mut blind) = (host(folder.path()), host(folder.path()));

    let stale = reader.transaction().unwrap();
    let _: i64 = stale.query_row("SELECT count(*) FROM sale", [], |row| row.get(0)).unwrap();
    let writer = immediate(&mut app);
    sell(&writer, &store, 1);
    let busy = store.enqueue_in(&stale, &receipt(2)).unwrap_err();
    assert_eq!((busy.code(), busy.is_retryable()), ("BUSY", true), "while the other one is at it");
    writer.commit().unwrap();
    let error = store.enqueue_in(&stale, &receipt(2)).unwrap_err();
    assert_eq!((error.code(), error.is_retryable()), ("STALE_TRANSACTION", true), "{error}");
    assert!(error.to_string().contains("IMMEDIATE") && error.to_string().contains("store.write"), "{error}");
    stale.rollback().unwrap();

    // The INSERT is its first statement, so that it waits for the writer instead.
    let deferred = blind.transaction().unwrap();
    sell(&deferred, &store, 2);
    deferred.commit().unwrap();
    let easy = store.write(|tx| {
        let _: i64 = tx.query_row("SELECT count(*) FROM sale", [], |row| row.get(0))?;
        Ok(store.enqueue_in(tx, &receipt(3))?.is_fresh())
    });
    assert!(easy.unwrap());
    assert_eq!(ask::<i64>(folder.path(), "SELECT count(*) FROM birkez_job"), 3);
}

#[test]
fn a_transaction_of_another_file_is_refused_whatever_tables_it_has() {
    let (folder, store) = folder();
    let other = TempStore::new().unwrap();
    let _ = other.open().unwrap();
    let mut elsewhere = host(other.path());
    let tx = elsewhere.transaction().unwrap();
    assert_eq!(store.enqueue_in(&tx, &receipt(1)).unwrap_err().code(), "OTHER_FILE");
    drop(tx);
    // Attached beside it, under its own name: the job goes where the store is, or nowhere.
    let path = other.path().to_str().unwrap();
    let mut app = host(folder.path());
    app.execute_batch(&format!("ATTACH '{path}' AS side; CREATE TEMP TABLE birkez_job (kind, key, payload)")).unwrap();
    let tx = immediate(&mut app);
    assert!(store.enqueue_in(&tx, &receipt(1)).unwrap().is_fresh());
    tx.commit().unwrap();
    assert_eq!(ask::<i64>(folder.path(), "SELECT count(*) FROM birkez_job"), 1);
    assert_eq!(ask::<i64>(other.path(), "SELECT count(*) FROM birkez_job"), 0);
}

/// From COMMIT to the start of the job: the median, and the ninety-ninth of a hundred.
fn pickup(path: &Path, store: &Store, arrived: &Receiver<(String, String, Instant)>, first: i64) -> [Duration; 2] {
    let mut app = host(path);
    let mut waits: Vec<_> = (first..first + 200)
        .map(|sale| {
            let tx = immediate(&mut app);
            sell(&tx, store, sale);
            if sale % 40 == 0 {
                // The app takes its time.
                std::thread::sleep(Duration::from_millis(120));
            }
            tx.commit().unwrap();
            let committed = Instant::now();
            let (_, _, started) = arrived.recv_timeout(SOON).expect("it is found without a call by the app");
            started.saturating_duration_since(committed)
        })
        .collect();
    waits.sort_unstable();
    [waits[waits.len() / 2], waits[waits.len() * 99 / 100]]
}

#[test]
fn a_job_starts_within_milliseconds_of_the_apps_commit_idle_and_beside_a_drain() {
    let (folder, store) = folder();
    let (relay, arrived) = telegraph();
    let chore = |_: Chore, _: &Context| {
        std::thread::sleep(Duration::from_micros(100));
        Ok(())
    };
    let _runner =
        Runner::builder(&store).workers(2).look_every(None).relay::<Receipt>(relay).handle(chore).start().unwrap();
    let idle = pickup(folder.path(), &store, &arrived, 1);

    let chores = common::rounds("BIRKEZ_CHORES", 60_000);
    run_sql(
        folder.path(),
        &format!(
            "INSERT INTO birkez_job (kind, key, payload)
             WITH RECURSIVE n (i) AS (VALUES (1) UNION ALL SELECT i + 1 FROM n WHERE i < {chores})
             SELECT 'chore', i, '{{\"n\":' || i || '}}' FROM n"
        ),
    );
    let busy = pickup(folder.path(), &store, &arrived, 1_001);
    let left: i64 = ask(folder.path(), "SELECT count(*) FROM birkez_job WHERE kind = 'chore' AND state = 0");
    assert!(left > 0, "the drain was over before the last of them");
    println!("median and p99 from COMMIT to start: {idle:?} idle, {busy:?} beside a drain");
    // Beside other tests, without optimisation, a round of a drain holds the file for long. What is promised (a p99 under
    // 10 ms) is measured by itself: BIRKEZ_PICKUP_MS=10 cargo test --release --test outbox within_milliseconds
    let limit = Duration::from_millis(common::rounds("BIRKEZ_PICKUP_MS", 1_000).into());
    assert!(
        idle[0] < Duration::from_millis(50) && idle[1] < limit && busy[1] < limit,
        "{idle:?} idle, {busy:?} beside a drain"
    );
}

#[test]
fn a_runner_of_another_handle_of_the_file_in_this_process_is_woken_too() {
    let (folder, store) = folder();
    let (relay, arrived) = telegraph();
    let other = folder.open().unwrap();
    let _runner = Runner::builder(&other).look_every(None).relay::<Receipt>(relay).start().unwrap();
    let mut app = host(folder.path());
    let tx = immediate(&mut app);
    sell(&tx, &store, 1);
    tx.commit().unwrap();
    arrived.recv_timeout(SOON).unwrap();
}

#[test]
fn what_is_stored_for_later_in_a_transaction_runs_at_its_time() {
    #[derive(Serialize, Deserialize)]
    struct Later {
        at: DateTime<Utc>,
    }
    impl Job for Later {
        const KIND: &'static str = "later";
        type Output = ();
        fn key(&self) -> String {
            "later".to_owned()
        }
        fn run_at(&self) -> Option<DateTime<Utc>> {
            Some(self.at)
        }
    }
    let (folder, store) = folder();
    let (ran, seen) = channel();
    let handler = move |_: Later, _: &Context| Ok(ran.send(Utc::now())?);
    let _runner = Runner::builder(&store).look_every(None).handle(handler).start().unwrap();
    let mut app = host(folder.path());
    let tx = immediate(&mut app);
    let at = in_future(Duration::from_millis(400));
    assert!(store.enqueue_in(&tx, &Later { at }).unwrap().is_fresh());
    tx.commit().unwrap();
    let started = seen.recv_timeout(SOON).unwrap();
    assert!(started >= at - chrono::TimeDelta::milliseconds(1), "{started} is before {at}");
}

#[test]
fn a_drain_sends_what_a_transaction_has_stored() {
    let (folder, _) = folder();
    let store = folder.builder().busy_deadline(Duration::from_millis(100)).open().unwrap();
    let (relay, arrived) = telegraph();
    let drain = Drain::new(Runner::builder(&store).relay::<Receipt>(relay)).unwrap();
    let mut app = host(folder.path());
    let tx = immediate(&mut app);
    sell(&tx, &store, 1);
    assert_eq!(drain.drain().unwrap_err().code(), "BUSY", "the app holds the writer lock");
    tx.commit().unwrap();
    assert_eq!(drain.drain().unwrap(), 1);
    assert_eq!(arrived.try_iter().count(), 1);
}
