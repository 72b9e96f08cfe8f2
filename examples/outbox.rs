//! An outbox: a sale and the message about it are stored in one transaction, and a relay carries the message out.
//!
//! Without one an app has two bad choices. Sent before COMMIT, a message may tell of a sale that is rolled back; sent after
//! it, the message is lost when the program dies in between. Here the message is a row beside the sale's: it exists if and
//! only if the sale does, and it goes out at least once, always under the same id, by which the receiver drops a repeat.
//!
//!     cargo run --example outbox [FILE]      FILE: a database to make and to keep; without it, one that is removed again
//!
//! At its end the example compares what has arrived with the rows that were committed; it ends with 1 if they differ.

use std::collections::HashSet;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use birkez::rusqlite::{Connection, Transaction, TransactionBehavior};
use birkez::testing::TempStore;
use birkez::{Context, Job, Message, Relay, RetryPolicy, Runner, Store};
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

/// Tells this program that it is the shop that dies, started by itself.
const DYING: &str = "--sell-and-die";

/// A message: what it says is its payload.
#[derive(Serialize, Deserialize)]
struct SaleMade {
    sale: i64,
    minor: i64,
}

impl Job for SaleMade {
    const KIND: &'static str = "sale-made";
    type Output = ();
    /// One message per sale: whoever stores it twice stores it once.
    fn key(&self) -> String {
        self.sale.to_string()
    }
    fn retry() -> RetryPolicy {
        quickly()
    }
}

/// A message that must not overtake the one before it about the same customer.
#[derive(Serialize, Deserialize)]
struct Moved {
    number: i64,
    customer: String,
    street: String,
}

impl Job for Moved {
    const KIND: &'static str = "customer-moved";
    type Output = ();
    fn key(&self) -> String {
        self.number.to_string()
    }
    fn ordering_key(&self) -> Option<String> {
        Some(format!("customer/{}", self.customer))
    }
    fn retry() -> RetryPolicy {
        quickly()
    }
}

/// So that the story is short: the default begins with 5 s.
fn quickly() -> RetryPolicy {
    RetryPolicy::default().base(Duration::from_millis(20))
}

/// The app: its own tables and its own connection, in the file that the messages are in, too.
struct Shop {
    store: Store,
    app: Connection,
}

impl Shop {
    fn open(file: &Path) -> anyhow::Result<Shop> {
        let store = Store::open(file)?;
        let app = Connection::open(store.path())?;
        app.busy_timeout(Duration::from_secs(5))?;
        // A message is as durable as the connection that stores it.
        app.pragma_update(None, "synchronous", "FULL")?;
        app.execute_batch(
            "CREATE TABLE IF NOT EXISTS sale (id INTEGER PRIMARY KEY AUTOINCREMENT, minor INTEGER NOT NULL);
             CREATE TABLE IF NOT EXISTS move (id INTEGER PRIMARY KEY AUTOINCREMENT, customer TEXT, street TEXT);",
        )?;
        Ok(Shop { store, app })
    }

    /// IMMEDIATE: a transaction that reads first and writes later cannot go on if somebody else has written meanwhile.
    fn begin(&mut self) -> anyhow::Result<(Transaction<'_>, Store)> {
        let store = self.store.clone();
        Ok((self.app.transaction_with_behavior(TransactionBehavior::Immediate)?, store))
    }

    fn sell(&mut self, minor: i64) -> anyhow::Result<i64> {
        let (tx, store) = self.begin()?;
        let sale = write_sale(&tx, &store, minor)?;
        tx.commit()?;
        Ok(sale)
    }

    /// The till is out of paper, say: the transaction is dropped, and with it the sale *and* its message.
    fn sell_in_vain(&mut self, minor: i64) -> anyhow::Result<()> {
        let (tx, store) = self.begin()?;
        write_sale(&tx, &store, minor)?;
        Ok(tx.rollback()?)
    }

    fn move_customer(&mut self, customer: &str, street: &str) -> anyhow::Result<()> {
        let (tx, store) = self.begin()?;
        tx.execute("INSERT INTO move (customer, street) VALUES (?1, ?2)", (customer, street))?;
        let moved = Moved { number: tx.last_insert_rowid(), customer: customer.to_owned(), street: street.to_owned() };
        let message = store.enqueue_in(&tx, &moved)?;
        ensure!(message.is_fresh(), "there is a message about this row already");
        Ok(tx.commit()?)
    }

    /// What the messages should say, read from the app's own rows, in their order.
    fn committed(&self) -> anyhow::Result<(Vec<Value>, Vec<Value>)> {
        let mut sales = self.app.prepare("SELECT id, minor FROM sale ORDER BY id")?;
        let sales =
            sales.query_map([], |row| Ok(json!({ "sale": row.get::<_, i64>(0)?, "minor": row.get::<_, i64>(1)? })))?;
        let mut moves = self.app.prepare("SELECT id, customer, street FROM move ORDER BY id")?;
        let moves = moves.query_map([], |row| {
            let (customer, street): (String, String) = (row.get(1)?, row.get(2)?);
            Ok(json!({ "number": row.get::<_, i64>(0)?, "customer": customer, "street": street }))
        })?;
        Ok((sales.collect::<Result<_, _>>()?, moves.collect::<Result<_, _>>()?))
    }

    /// The runner needs no telling that there is something to do: it sees the commits.
    fn wait_until_all_is_out(&self) -> anyhow::Result<()> {
        let start = Instant::now();
        let open = "SELECT count(*) FROM birkez_jobs WHERE state <> 'done'";
        while self.app.query_row(open, [], |row| row.get::<_, i64>(0))? > 0 {
            ensure!(start.elapsed() < Duration::from_secs(30), "messages are stuck");
            std::thread::sleep(Duration::from_millis(5));
        }
        Ok(())
    }
}

fn write_sale(tx: &Transaction<'_>, store: &Store, minor: i64) -> anyhow::Result<i64> {
    tx.execute("INSERT INTO sale (minor) VALUES (?1)", [minor])?;
    let sale = tx.last_insert_rowid();
    let message = store.enqueue_in(tx, &SaleMade { sale, minor })?;
    ensure!(message.is_fresh(), "there is a message about this sale already");
    Ok(sale)
}

/// The other side: takes each id once. It would be a server somewhere, and `ids` a unique index there.
#[derive(Default)]
struct Receiver {
    ids: HashSet<String>,
    arrived: Vec<(String, Value)>,
    repeats: usize,
    refused: usize,
}

impl Receiver {
    fn take(&mut self, id: &str, kind: &str, body: &str) -> anyhow::Result<()> {
        if kind == Moved::KIND && self.refused < 2 {
            self.refused += 1;
            bail!("503, come again later");
        }
        if self.ids.insert(id.to_owned()) {
            self.arrived.push((kind.to_owned(), serde_json::from_str(body)?));
        } else {
            self.repeats += 1;
        }
        Ok(())
    }

    fn about(&self, kind: &str) -> Vec<Value> {
        self.arrived.iter().filter(|(of, _)| of == kind).map(|(_, body)| body.clone()).collect()
    }
}

/// Carries messages over, on a line that loses the first answer: what was taken is then sent again.
#[derive(Clone, Default)]
struct Line {
    receiver: Arc<Mutex<Receiver>>,
    lost_one: Arc<Mutex<bool>>,
}

impl Relay for Line {
    type Receipt = ();

    /// An error is retried with the same id and the same body. `Verdicts` says otherwise: `.permanent()`, `.retry_after(…)`.
    fn publish(&self, message: &Message<'_>, _cx: &Context) -> anyhow::Result<()> {
        self.receiver.lock().unwrap().take(message.id(), message.kind(), message.body())?;
        let lost_one = std::mem::replace(&mut *self.lost_one.lock().unwrap(), true);
        ensure!(lost_one || message.kind() != SaleMade::KIND, "the line broke before the answer came");
        Ok(())
    }
}

/// The life of a shop that dies between COMMIT and anything else: nobody has sent the message yet.
fn sell_and_die(file: &Path) -> anyhow::Result<()> {
    let mut shop = Shop::open(file)?;
    shop.sell(1_250)?;
    std::process::abort()
}

fn story(file: &Path) -> anyhow::Result<()> {
    ensure!(!file.exists(), "{} is there already: name a file to make", file.display());
    let died = Command::new(std::env::current_exe()?).arg(DYING).arg(file).status()?;
    ensure!(!died.success() && file.exists(), "the shop was to die after COMMIT, and ended with {died}");
    println!("A shop sold for 12.50 and died right after COMMIT; its message is in the file and nowhere else.");

    let mut shop = Shop::open(file)?;
    shop.sell_in_vain(99_900)?;
    println!("A sale for 999.00 was rolled back, and its message with it.");
    let line = Line::default();
    let runner = Runner::builder(&shop.store).relay::<SaleMade>(line.clone()).relay::<Moved>(line.clone()).start()?;
    for street in ["Alder Street", "Birch Street", "Cedar Street"] {
        shop.move_customer("ada", street)?;
    }
    shop.sell(4_500)?;
    shop.wait_until_all_is_out()?;
    runner.stop(Duration::from_secs(10))?;

    let receiver = line.receiver.lock().unwrap();
    let streets: Vec<_> = receiver.about(Moved::KIND).iter().map(|moved| moved["street"].clone()).collect();
    println!("The first move was refused twice; they arrived as {}.", json!(streets));
    println!("An answer was lost; {} repeat came with a known id and was dropped.", receiver.repeats);
    check(&shop, &receiver)
}

fn check(shop: &Shop, receiver: &Receiver) -> anyhow::Result<()> {
    let (sales, moves) = shop.committed()?;
    // Sales stand in no line: they may arrive in any order. The moves of one customer may not.
    let mut arrived = receiver.about(SaleMade::KIND);
    arrived.sort_by_key(|sale| sale["sale"].as_i64());
    ensure!(arrived == sales, "arrived: {arrived:?}, committed: {sales:?}");
    ensure!(receiver.about(Moved::KIND) == moves, "arrived: {:?}, committed: {moves:?}", receiver.about(Moved::KIND));
    ensure!((sales.len(), moves.len()) == (2, 3), "{} sales and {} moves", sales.len(), moves.len());
    ensure!(
        (receiver.refused, receiver.repeats) == (2, 1),
        "{} refused, {} repeats",
        receiver.refused,
        receiver.repeats
    );
    println!(
        "Checked: {} rows committed, {} messages arrived, each once.",
        sales.len() + moves.len(),
        receiver.ids.len()
    );
    Ok(())
}

fn run() -> anyhow::Result<()> {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(word) if word == DYING => sell_and_die(Path::new(&args.next().context("no file is given")?)),
        Some(file) => story(Path::new(&file)),
        None => story(TempStore::new()?.path()),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("outbox: {error:#}");
            ExitCode::FAILURE
        }
    }
}
