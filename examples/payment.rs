//! A payment: the call to a provider is a step, the ledger row and "done" are one transaction, and the text message to the
//! customer goes out at most once.
//!
//! The provider takes an idempotency key, so that a call may safely be made again: it is told the repeat by the key. The
//! text gateway takes none, so a call that broke off in its middle is *not* made again; it waits for a person who asks the
//! gateway. The program is killed in the worst place, after the charge and before anybody has noted it.
//!
//!     cargo run --example payment [FILE]      FILE: a database to make and to keep; without it, one that is removed again
//!
//! The two services outside are text files beside the database. At its end the example compares them with the ledger; it
//! ends with 1 if they differ.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use birkez::rusqlite::Connection;
use birkez::testing::TempStore;
use birkez::{Context, Job, JobInfo, Resolution, Runner, Standing, State, Store};
use serde::{Deserialize, Serialize};

/// Tells this program that it is the one that dies, started by itself.
const DYING: &str = "--charge-and-die";

#[derive(Serialize, Deserialize)]
struct PayInvoice {
    invoice: String,
    minor: i64,
}

impl Job for PayInvoice {
    const KIND: &'static str = "pay-invoice";
    /// The provider's reference. A repeat gets it back.
    type Output = String;
    fn key(&self) -> String {
        self.invoice.clone()
    }
}

#[derive(Serialize, Deserialize)]
struct TextCustomer {
    invoice: String,
}

impl Job for TextCustomer {
    const KIND: &'static str = "text-customer";
    /// Two texts about one payment frighten people; none is bearable. So: never again by itself once it has started.
    const AT_MOST_ONCE: bool = true;
    type Output = String;
    fn key(&self) -> String {
        self.invoice.clone()
    }
}

/// A service outside: a file of what it was asked and what it did, which outlives any crash of ours.
#[derive(Clone)]
struct Outside(PathBuf);

impl Outside {
    fn note(&self, line: &str) -> anyhow::Result<()> {
        let mut file = OpenOptions::new().create(true).append(true).open(&self.0)?;
        Ok(file.write_all(format!("{line}\n").as_bytes())?)
    }

    fn lines(&self, beginning: &str) -> anyhow::Result<Vec<String>> {
        let text = match std::fs::read_to_string(&self.0) {
            Err(error) if error.kind() == ErrorKind::NotFound => String::new(),
            read => read?,
        };
        Ok(text.lines().filter(|line| line.starts_with(beginning)).map(str::to_owned).collect())
    }
}

/// The payment provider: charges once per idempotency key, and answers a repeat as it did before.
#[derive(Clone)]
struct Provider(Outside);

impl Provider {
    fn charge(&self, idempotency_key: &str, invoice: &str, minor: i64) -> anyhow::Result<String> {
        self.0.note(&format!("asked {idempotency_key} {invoice} {minor}"))?;
        let known = self.0.lines(&format!("charged {idempotency_key} "))?;
        if let Some(reference) = known.first().and_then(|line| line.split(' ').next_back()) {
            return Ok(reference.to_owned());
        }
        let reference = format!("ch_{}", self.0.lines("charged ")?.len() + 1);
        self.0.note(&format!("charged {idempotency_key} {invoice} {minor} {reference}"))?;
        Ok(reference)
    }
}

/// The text gateway: sends whatever it is asked to, as often as it is asked.
#[derive(Clone)]
struct Gateway(Outside);

impl Gateway {
    /// The line to it breaks in the middle of the call about invoice 2026-119.
    fn send(&self, invoice: &str) -> anyhow::Result<String> {
        self.0.note(&format!("sent {invoice}"))?;
        ensure!(invoice != "2026-119", "the line broke before the gateway's answer came");
        Ok(format!("text about {invoice}"))
    }
}

struct Panel {
    store: Store,
    provider: Provider,
    gateway: Gateway,
}

impl Panel {
    fn open(file: &Path) -> anyhow::Result<Panel> {
        // With a secret nobody who knows an invoice's number can guess its idempotency key. The app keeps it like any other.
        let store = Store::builder(file).idempotency_secret("the panel's own").open()?;
        // UNIQUE costs little, and a doubled movement would be an error and not a wrong sum.
        let ledger =
            "CREATE TABLE IF NOT EXISTS ledger (invoice TEXT NOT NULL UNIQUE, minor INTEGER NOT NULL, reference TEXT)";
        store.write(|tx| Ok(tx.execute_batch(ledger)?))?;
        let outside = |name| Outside(store.path().with_extension(name));
        Ok(Panel { provider: Provider(outside("provider")), gateway: Gateway(outside("gateway")), store })
    }

    /// `die`: between the charge and the note of it.
    fn start(&self, die: bool) -> birkez::Result<Runner> {
        let (provider, gateway) = (self.provider.clone(), self.gateway.clone());
        let pay = move |job: PayInvoice, cx: &Context| {
            // Once its output is stored, the step is not run again. Killed before that it is, and inside it
            // `idempotency_key` is the step's own, the same each time.
            let reference = cx.step("charge", || {
                let reference = provider.charge(&cx.idempotency_key(), &job.invoice, job.minor)?;
                if die {
                    std::process::abort();
                }
                Ok(reference)
            })?;
            // Ledger row, the text that is to follow, output and "done": all are stored, or nothing is.
            cx.commit(|tx| {
                let row = (&job.invoice, -job.minor, &reference);
                tx.execute("INSERT INTO ledger (invoice, minor, reference) VALUES (?1, ?2, ?3)", row)?;
                // A repeat of this job's key would be answered, so the text cannot be there already.
                let _fresh = cx.enqueue_in(tx, &TextCustomer { invoice: job.invoice.clone() })?;
                Ok(reference)
            })
        };
        // All checks come first and the call last. What fails before the call would say so, with `.transient()`; an error
        // that says nothing may come from the middle of it.
        let text = move |job: TextCustomer, _cx: &Context| gateway.send(&job.invoice);
        Runner::builder(&self.store).handle(pay).handle(text).start()
    }

    fn find(&self, kind: &str, key: &str) -> anyhow::Result<JobInfo> {
        self.store.find(kind, key)?.with_context(|| format!("there is no {kind} {key}"))
    }

    /// Until the job is neither waiting nor running.
    fn wait_for(&self, kind: &str, key: &str) -> anyhow::Result<JobInfo> {
        let start = Instant::now();
        loop {
            match self.store.find(kind, key)? {
                Some(job) if !matches!(job.state, State::Waiting | State::Running) => return Ok(job),
                _ => ensure!(start.elapsed() < Duration::from_secs(30), "{kind} {key} does not come to an end"),
            }
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

fn invoice(number: &str, minor: i64) -> PayInvoice {
    PayInvoice { invoice: number.to_owned(), minor }
}

fn charge_and_die(file: &Path) -> anyhow::Result<()> {
    let panel = Panel::open(file)?;
    let _fresh = panel.store.enqueue(&invoice("2026-118", 4_500))?;
    let _runner = panel.start(true)?;
    panel.wait_for(PayInvoice::KIND, "2026-118")?;
    Ok(())
}

fn story(file: &Path) -> anyhow::Result<()> {
    ensure!(!file.exists(), "{} is there already: name a file to make", file.display());
    let died = Command::new(std::env::current_exe()?).arg(DYING).arg(file).status()?;
    let panel = Panel::open(file)?;
    let charged = panel.provider.0.lines("charged")?.len();
    ensure!(!died.success() && charged == 1, "it was to die after the charge, and ended with {died}");
    println!("Invoice 2026-118 was charged, and the program died before it could note that.");

    let runner = panel.start(false)?;
    // Whoever asks again asks under the same key: the click that nobody saw answered, say.
    let again = panel.store.enqueue(&invoice("2026-118", 4_500))?;
    ensure!(!again.fresh, "the repeat has made a second job");
    panel.wait_for(TextCustomer::KIND, "2026-118")?;
    println!("Started again, it asked the provider again, under the same key: nothing was charged twice.");

    let _fresh = panel.store.enqueue(&invoice("2026-119", 1_250))?;
    let text = panel.wait_for(TextCustomer::KIND, "2026-119")?;
    ensure!(text.parked_for.as_deref() == Some("unknown_outcome"), "the text is {}, not parked", text.state);
    println!("The text about invoice 2026-119 broke off in its middle and is parked as unknown_outcome.");

    // What a person does: looks at the other side, and says what was found there.
    let found = panel.gateway.0.lines("sent 2026-119")?.len();
    let decision = if found > 0 { Resolution::done(&"seen in the gateway's log")? } else { Resolution::Retry };
    panel.store.resolve(text.id, decision, "a person")?;
    println!("A person found it in the gateway's log and resolved it as done.");
    runner.stop(Duration::from_secs(10))?;
    check(&panel)
}

fn check(panel: &Panel) -> anyhow::Result<()> {
    let asked = panel.provider.0.lines("asked ")?;
    ensure!(asked.len() == 3 && asked[0] == asked[1] && asked[1] != asked[2], "the provider was asked {asked:?}");
    let charged = panel.provider.0.lines("charged ")?;
    let charged: Vec<Vec<&str>> = charged.iter().map(|line| line.split(' ').skip(2).collect()).collect();

    let ledger = Connection::open(panel.store.path())?;
    let mut ask = ledger.prepare("SELECT invoice, -minor, reference FROM ledger ORDER BY rowid")?;
    let rows = ask.query_map([], |row| {
        Ok(vec![row.get::<_, String>(0)?, row.get::<_, i64>(1)?.to_string(), row.get::<_, String>(2)?])
    })?;
    let rows: Vec<Vec<String>> = rows.collect::<Result<_, _>>()?;
    ensure!(rows == charged && rows.len() == 2, "the ledger has {rows:?}, the provider {charged:?}");

    let sent = panel.gateway.0.lines("sent ")?;
    ensure!(sent == ["sent 2026-118", "sent 2026-119"], "the gateway has {sent:?}");
    for number in ["2026-118", "2026-119"] {
        let text = panel.find(TextCustomer::KIND, number)?;
        ensure!(text.state == State::Done, "the text about {number} is {}", text.state);
    }
    // Long afterwards a repeat is still answered, with the first one's output.
    let repeat = panel.store.enqueue(&invoice("2026-118", 4_500))?;
    ensure!(matches!(&repeat.standing, Standing::Done(Ok(reference)) if reference == "ch_1"), "{:?}", repeat.standing);
    println!("Checked: asked 3 times, charged twice, 2 ledger rows with the provider's references, 2 texts.");
    Ok(())
}

fn run() -> anyhow::Result<()> {
    let mut args = std::env::args_os().skip(1);
    match args.next() {
        Some(word) if word == DYING => charge_and_die(Path::new(&args.next().context("no file is given")?)),
        Some(file) => story(Path::new(&file)),
        None => story(TempStore::new()?.path()),
    }
}

fn main() -> ExitCode {
    match run() {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("payment: {error:#}");
            ExitCode::FAILURE
        }
    }
}
