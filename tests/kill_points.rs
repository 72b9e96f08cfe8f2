//! A process can die at any line of a handler: after its claim, in the middle of a step, between the app's rows and the
//! commit, between the commit and the message, between the message and its mark. At each of them something could be lost,
//! doubled, or done for nothing.
//!
//! Real processes kill themselves with SIGKILL at one named point for each job, in random order, and are started again until
//! nothing is left. A receiver on this machine logs what really arrived. `BIRKEZ_KILL_ROUNDS` is how often at each.
#![cfg(feature = "webhook")]

mod common;

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::Duration;

use birkez::testing::TempStore;
use birkez::{Context, Job, Message, Relay, RetryPolicy, Runner, State, Store, Webhook};
use common::receiver::Receiver;
use common::{Child, Log, ask, given, rows, run_sql, tell, wait_until};
use serde::{Deserialize, Deserializer, Serialize};

/// Where a sale's process dies, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
enum Point {
    AfterClaim,
    InHandler,
    InStep,
    AfterWrite,
    BeforeCommit,
    AfterCommit,
    AfterPublish,
    InAtMostOnce,
}

const POINTS: [Point; 8] = [
    Point::AfterClaim,
    Point::InHandler,
    Point::InStep,
    Point::AfterWrite,
    Point::BeforeCommit,
    Point::AfterCommit,
    Point::AfterPublish,
    Point::InAtMostOnce,
];

/// In a child: what really happened, outside the database.
static LOG: OnceLock<Log> = OnceLock::new();

impl Point {
    /// Dies here, if it is the job's point and has not been its end before.
    fn reach(self, sale: &Sale) {
        let log = LOG.get().expect("only children come here");
        let mark = format!("died {self:?} {} .", sale.n);
        if sale.dies != self || log.count(&mark) > 0 {
            return;
        }
        log.note(mark);
        let _ = Command::new("kill").arg("-KILL").arg(std::process::id().to_string()).status();
        loop {
            std::thread::sleep(Duration::from_secs(1));
        }
    }
}

#[derive(Clone, Debug, Serialize, Deserialize)]
struct Sale {
    n: u32,
    dies: Point,
}

/// Decoded between the claim and the handler.
#[derive(Serialize)]
struct Sell(Sale);

impl<'de> Deserialize<'de> for Sell {
    fn deserialize<D: Deserializer<'de>>(from: D) -> Result<Self, D::Error> {
        let sale = Sale::deserialize(from)?;
        Point::AfterClaim.reach(&sale);
        Ok(Sell(sale))
    }
}

impl Job for Sell {
    const KIND: &'static str = "sell";
    type Output = u32;
    fn key(&self) -> String {
        self.0.n.to_string()
    }
    fn retry() -> RetryPolicy {
        RetryPolicy::default().base(Duration::ZERO).jitter(0.0).max_attempts(50)
    }
}

/// Leaves the machine.
#[derive(Serialize, Deserialize)]
struct Receipt(Sale);

impl Job for Receipt {
    const KIND: &'static str = "receipt";
    type Output = u16;
    fn key(&self) -> String {
        self.0.n.to_string()
    }
    fn retry() -> RetryPolicy {
        Sell::retry()
    }
}

/// Cannot be told apart by a key, and must not come twice.
#[derive(Serialize, Deserialize)]
struct Notify(Sale);

impl Job for Notify {
    const KIND: &'static str = "notify";
    const AT_MOST_ONCE: bool = true;
    type Output = ();
    fn key(&self) -> String {
        self.0.n.to_string()
    }
}

/// Dies between the publication and its mark.
struct Fragile(Webhook);

impl Relay for Fragile {
    type Receipt = u16;
    fn publish(&self, message: &Message<'_>, cx: &Context) -> anyhow::Result<u16> {
        let status = self.0.publish(message, cx)?;
        Point::AfterPublish.reach(&serde_json::from_str::<Receipt>(message.body())?.0);
        Ok(status)
    }
}

fn sell(job: &Sell, cx: &Context) -> anyhow::Result<u32> {
    let sale = &job.0;
    Point::InHandler.reach(sale);
    let charged: u32 = cx.step("charge", || {
        LOG.get().unwrap().note(format!("charge {} {}", sale.n, cx.idempotency_key()));
        Point::InStep.reach(sale);
        Ok(sale.n)
    })?;
    cx.commit(|tx| {
        tx.execute("INSERT INTO sale (n) VALUES (?1)", [sale.n])?;
        Point::AfterWrite.reach(sale);
        let _ = cx.enqueue_in(tx, &Receipt(sale.clone()))?;
        let _ = cx.enqueue_in(tx, &Notify(sale.clone()))?;
        Point::BeforeCommit.reach(sale);
        Ok(charged)
    })?;
    Point::AfterCommit.reach(sale);
    Ok(charged)
}

fn notify(job: &Notify) -> anyhow::Result<()> {
    LOG.get().unwrap().note(format!("notify {} .", job.0.n));
    Point::InAtMostOnce.reach(&job.0);
    Ok(())
}

fn work(path: &Path, receiver: &str) -> ! {
    LOG.set(Log::beside(path)).unwrap();
    let store = Store::open(path).unwrap();
    let webhook = Webhook::new(receiver).unwrap();
    let _runner = Runner::builder(&store)
        .workers(3)
        .handle(|job: Sell, cx| sell(&job, cx))
        .handle(|job: Notify, _| notify(&job))
        .relay::<Receipt>(Fragile(webhook))
        .start()
        .unwrap();
    tell("ready");
    loop {
        std::thread::sleep(Duration::from_secs(1));
    }
}

#[test]
fn child_role() {
    match common::role().as_deref() {
        Some("work") => work(&PathBuf::from(given("DB")), &given("RECEIVER")),
        Some(other) => panic!("no role {other}"),
        None => {}
    }
}

#[test]
fn killed_at_every_named_point_nothing_is_lost_or_doubled() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    // Without a constraint that would hide a double.
    run_sql(folder.path(), "CREATE TABLE sale (at INTEGER PRIMARY KEY AUTOINCREMENT, n INTEGER)");
    let rounds = common::rounds("BIRKEZ_KILL_ROUNDS", 100);
    let seed = fastrand::u64(..);
    println!("{rounds} rounds of {} points, seed {seed}", POINTS.len());
    let mut jobs: Vec<_> = POINTS.iter().flat_map(|point| (0..rounds).map(move |_| *point)).collect();
    fastrand::Rng::with_seed(seed).shuffle(&mut jobs);
    let jobs: Vec<_> = jobs.into_iter().zip(1..).map(|(dies, n)| Sell(Sale { n, dies })).collect();
    let _ = store.enqueue_all(&jobs).unwrap();

    let receiver = Receiver::accepting();
    let url = receiver.url("/receipts");
    let start = || Child::start("work", &[("DB", folder.path().as_os_str()), ("RECEIVER", url.as_ref())]);
    let (mut worker, mut deaths) = (start(), 0);
    let open = "SELECT count(*) FROM birkez_job WHERE state = 0";
    wait_until_done(|| {
        if worker.has_ended() {
            deaths += 1;
            worker = start();
        }
        ask::<u32>(folder.path(), open) == 0
    });
    worker.kill();
    println!("{deaths} processes died, {} deliveries", receiver.deliveries().len());
    let log = Log::beside(folder.path());
    check_deaths(&log, rounds as usize);
    check_rows(folder.path(), &jobs);
    check_messages(folder.path(), &receiver, &jobs);
    check_at_most_once(&store, &log, &jobs);
    check_steps(&log, &jobs);
}

/// Each point has had its deaths. Another's death may come before one's own where nothing is run again.
fn check_deaths(log: &Log, rounds: usize) {
    for point in POINTS {
        let died = log.count(&format!("died {point:?} "));
        println!("{point:?}: {died} died");
        let may_miss = matches!(point, Point::AfterCommit | Point::InAtMostOnce);
        assert!(died == rounds || may_miss && died <= rounds && died * 2 > rounds, "{point:?}: {died} of {rounds}");
    }
}

/// As long as something moves.
#[track_caller]
fn wait_until_done(mut is_done: impl FnMut() -> bool) {
    for _ in 0..20 {
        if common::wait_within(common::PATIENCE, &mut is_done).is_some() {
            return;
        }
    }
    wait_until("nothing is left to do", is_done);
}

/// The file, read with plain SQL: one row a sale, and every job done but those that a person must decide.
fn check_rows(path: &Path, jobs: &[Sell]) {
    let doubled = rows(path, "SELECT n, count(*) FROM sale GROUP BY n HAVING count(*) <> 1");
    assert_eq!(doubled, Vec::<String>::new(), "rows that are not there once");
    assert_eq!(ask::<u32>(path, "SELECT count(*) FROM sale") as usize, jobs.len());
    let odd = "SELECT kind, key, state, reason FROM birkez_job
               WHERE NOT (state = 2 OR (kind = 'notify' AND state = 1 AND reason = 'unknown_outcome'))";
    assert_eq!(rows(path, odd), Vec::<String>::new());
    for kind in ["sell", "receipt", "notify"] {
        let of_kind: u32 = ask(path, &format!("SELECT count(*) FROM birkez_job WHERE kind = '{kind}'"));
        assert_eq!(of_kind as usize, jobs.len(), "{kind}");
    }
    assert_eq!(ask::<u32>(path, "SELECT count(*) FROM birkez_lease"), 0);
    assert_eq!(ask::<u32>(path, "SELECT count(*) FROM birkez_step") as usize, jobs.len());
}

/// What arrived, once the repeats are told by their ids, is what the rows say.
fn check_messages(path: &Path, receiver: &Receiver, jobs: &[Sell]) {
    let committed: BTreeMap<String, String> = {
        let file = birkez::rusqlite::Connection::open(path).unwrap();
        let sql = "SELECT job.idempotency, job.payload FROM sale JOIN birkez_job AS job ON job.kind = 'receipt' AND job.key = sale.n";
        let mut ask = file.prepare(sql).unwrap();
        ask.query_map([], |row| Ok((row.get(0)?, row.get(1)?))).unwrap().map(Result::unwrap).collect()
    };
    assert_eq!(receiver.deduped(), committed);
    let mut arrived: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for delivery in receiver.deliveries() {
        arrived.entry(delivery.id().to_owned()).or_default().push(delivery.body);
    }
    for (id, bodies) in &arrived {
        assert!(bodies.iter().all(|body| *body == bodies[0]), "{id} came with different bodies: {bodies:?}");
    }
    for job in jobs.iter().filter(|job| job.0.dies == Point::AfterPublish) {
        let body = serde_json::to_string(&Receipt(job.0.clone())).unwrap();
        let (_, bodies) = arrived.iter().find(|(_, bodies)| bodies[0] == body).unwrap();
        assert!(bodies.len() >= 2, "{:?} was published before its mark and not again", job.0);
    }
}

/// None has started twice, and each that was killed waits for a person.
fn check_at_most_once(store: &Store, log: &Log, jobs: &[Sell]) {
    let starts: Vec<String> = log.lines().into_iter().filter(|line| line.starts_with("notify")).collect();
    assert_eq!(starts.iter().collect::<BTreeSet<_>>().len(), starts.len(), "one has started twice");
    let mut parked = 0;
    for job in jobs {
        let known = store.find("notify", &job.0.n.to_string()).unwrap().unwrap();
        let started = starts.contains(&format!("notify {} .", job.0.n));
        match known.state {
            State::Done => assert!(started && job.0.dies != Point::InAtMostOnce, "{:?}", job.0),
            State::Parked => parked += 1,
            other => panic!("{:?} is {other}", job.0),
        }
    }
    println!("{parked} at-most-once jobs wait for a person");
}

/// A step that was killed in its middle ran again under the same key, and one whose output is stored did not.
fn check_steps(log: &Log, jobs: &[Sell]) {
    let mut keys: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for line in log.lines() {
        if let Some((n, key)) = line.strip_prefix("charge ").and_then(|rest| rest.split_once(' ')) {
            keys.entry(n.to_owned()).or_default().push(key.to_owned());
        }
    }
    for job in jobs {
        let keys = &keys[&job.0.n.to_string()];
        assert!(keys.iter().all(|key| *key == keys[0]), "{:?}: {keys:?}", job.0);
        assert!(job.0.dies != Point::InStep || keys.len() >= 2, "{:?}", job.0);
    }
}
