//! A desktop app without a window: long jobs with progress, a line whenever something has changed, one that is called off,
//! and a quit while jobs run, which go on at the next start.
//!
//! Where a window would be drawn anew, this prints. It asks the file nothing in between: a watch wakes it, and a snapshot
//! shows the three piles of such a window (at work, needs attention, completed) as they are at one moment.
//!
//!     cargo run --example desktop [FILE]      FILE: a database to make and to keep; without it, one that is removed again
//!
//! The app runs twice in one process, the second time on battery, one job at a time. A transcription keeps the minutes that it has done in a table of its own, so that the
//! second run begins where the first one stopped. At its end the example compares the minutes with the jobs; it ends with 1
//! if they differ.

use std::collections::BTreeSet;
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use birkez::testing::TempStore;
use birkez::{Context, Deed, Job, JobInfo, Runner, Snapshot, State, Store};
use serde::{Deserialize, Serialize};

/// Something went wrong if the story takes longer.
const PATIENCE: Duration = Duration::from_secs(60);
/// A person reads no faster.
const REDRAW: Duration = Duration::from_millis(20);

/// A recording that is to be written down.
#[derive(Serialize, Deserialize)]
struct Transcribe {
    recording: String,
    minutes: u32,
}

impl Job for Transcribe {
    const KIND: &'static str = "transcribe";
    type Output = u32;
    fn key(&self) -> String {
        self.recording.clone()
    }
    fn label(&self) -> Option<String> {
        Some(format!("the recording \"{}\"", self.recording))
    }
}

/// Where the first run holds the recordings, until somebody calls one off or quits.
const HELD: u32 = 4;

struct App {
    store: Store,
    runner: Runner,
    /// What was said of each job already.
    said: BTreeSet<String>,
}

impl App {
    /// `until`: the minute at which this run holds its recordings, so that its story is the same each time.
    fn start(file: &Path, workers: usize, until: u32) -> anyhow::Result<App> {
        let store = Store::open(file)?;
        let minutes = "CREATE TABLE IF NOT EXISTS minute (recording TEXT, minute INTEGER, UNIQUE (recording, minute))";
        store.write(|tx| Ok(tx.execute_batch(minutes)?))?;
        // What an earlier run has told.
        let said = store.snapshot(20)?.completed.iter().map(name).collect();
        let transcribe = move |job: Transcribe, cx: &Context| transcribe(&job, cx, until);
        let runner = Runner::builder(&store).workers(workers).handle(transcribe).start()?;
        Ok(App { store, runner, said })
    }

    /// Shows what is new, again and again, until `enough` holds. It sleeps while nothing changes.
    fn show_until(&mut self, enough: impl Fn(&Snapshot) -> bool) -> anyhow::Result<Snapshot> {
        let start = Instant::now();
        let mut watch = self.store.watch()?.at_most_every(REDRAW);
        loop {
            let now = watch.snapshot(20)?;
            self.draw(&now);
            if enough(&now) {
                return Ok(now);
            }
            ensure!(start.elapsed() < PATIENCE, "this takes too long: {now:#?}");
            watch.wait(Duration::from_secs(5));
        }
    }

    /// A window would show all of it; a story says each thing once.
    fn draw(&mut self, now: &Snapshot) {
        for job in now.completed.iter().rev() {
            if self.said.insert(name(job)) {
                println!("  completed: {}", name(job));
            }
        }
    }

    /// Asks first, as a window would, then stops: what runs is told, and given back uncharged.
    fn quit(self) -> anyhow::Result<()> {
        let now = self.store.snapshot(20)?;
        let mut names: Vec<&str> = now.running.iter().map(|job| job.key.as_str()).collect();
        names.sort_unstable();
        println!("  quit: {} jobs running ({}): they go on at the next start", names.len(), names.join(", "));
        Ok(self.runner.stop(Duration::from_millis(200))?)
    }
}

fn name(job: &JobInfo) -> String {
    job.label.clone().unwrap_or_else(|| job.key.clone())
}

/// One minute after another, each stored as it is done. What an earlier run has done is not done again.
fn transcribe(job: &Transcribe, cx: &Context, until: u32) -> anyhow::Result<u32> {
    let done = "SELECT count(*) FROM minute WHERE recording = ?1";
    let mut minute: u32 = cx.transaction(|tx| Ok(tx.query_row(done, [&job.recording], |row| row.get(0))?))?;
    while minute < job.minutes {
        cx.progress(minute.into(), job.minutes.into(), "listening")?;
        // Asked often: a person who quits, or calls it off, does not want to wait.
        while minute >= until && !cx.is_cancelled() {
            std::thread::sleep(Duration::from_millis(1));
        }
        ensure!(!cx.is_cancelled(), "asked to stop");
        std::thread::sleep(Duration::from_millis(5));
        minute += 1;
        cx.transaction(|tx| Ok(tx.execute("INSERT INTO minute VALUES (?1, ?2)", (&job.recording, minute))?))?;
    }
    Ok(minute)
}

/// Whether each of these recordings runs, and has told that it came to the minute at which it is held.
fn are_held(now: &Snapshot, recordings: &[&str]) -> bool {
    let is_held = |name: &&str| {
        let mut found = now.running.iter().filter(|job| job.key == **name);
        found.any(|job| job.progress.as_ref().is_some_and(|at| at.done == u64::from(HELD)))
    };
    now.running.len() == recordings.len() && recordings.iter().all(is_held)
}

fn how_far(job: &JobInfo) -> String {
    let far = job.progress.as_ref().map_or_else(String::new, |at| format!(" (minute {} of {})", at.done, at.total));
    format!("{}{far}", job.key)
}

fn first_run(file: &Path) -> anyhow::Result<()> {
    println!("First run:");
    let mut app = App::start(file, 3, HELD)?;
    for (recording, minutes) in [("memo", 2), ("lecture", 9), ("interview", 8), ("concert", 20), ("meeting", 6)] {
        let job = Transcribe { recording: recording.to_owned(), minutes };
        let _fresh = app.store.enqueue(&job)?;
    }
    let now = app.show_until(|now| now.completed.len() == 1 && are_held(now, &["lecture", "interview", "concert"]))?;
    let mut at_work: Vec<String> = now.running.iter().map(how_far).collect();
    at_work.sort();
    println!("  at work: {}; {} more waits for its turn", at_work.join(", "), now.counts.waiting);

    // The person who sees the concert in the list knows that nobody wants it written down.
    let concert = now.running.iter().find(|job| job.key == "concert").context("the concert is not at work")?;
    app.store.cancel(concert.id, Deed::by("a person").because("it is music"))?;
    let ended = app.store.wait(concert.id, PATIENCE)?;
    ensure!(ended.state == State::Cancelled, "the concert is {}", ended.state);
    println!("  called off: {}", name(&ended));
    app.show_until(|now| are_held(now, &["lecture", "interview", "meeting"]))?;
    app.quit()
}

fn second_run(file: &Path) -> anyhow::Result<()> {
    println!("Second run, one at a time:");
    let mut app = App::start(file, 1, u32::MAX)?;
    let now = app.show_until(|now| now.counts.unfinished() == 0)?;
    println!("  nothing is left to do, {} jobs need attention", now.attention.len());
    app.runner.stop(Duration::from_secs(10))?;
    check(&app.store)
}

fn check(store: &Store) -> anyhow::Result<()> {
    let minutes: Vec<(String, u32, u32)> = store.write(|tx| {
        let mut ask =
            tx.prepare("SELECT recording, count(*), max(minute) FROM minute GROUP BY recording ORDER BY 1")?;
        let rows = ask.query_map([], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
        Ok(rows.collect::<Result<_, _>>()?)
    })?;
    let expected = [("concert", HELD), ("interview", 8), ("lecture", 9), ("meeting", 6), ("memo", 2)];
    let expected: Vec<_> = expected.iter().map(|(name, minutes)| ((*name).to_owned(), *minutes, *minutes)).collect();
    ensure!(minutes == expected, "the minutes are {minutes:?}");
    for (recording, minutes, _) in &minutes {
        let job = store.find(Transcribe::KIND, recording)?.with_context(|| format!("there is no {recording}"))?;
        let wanted = if recording == "concert" { State::Cancelled } else { State::Done };
        ensure!(job.state == wanted, "{recording} is {} after {minutes} minutes", job.state);
        let interrupted = store.attempts(job.id)?.iter().filter(|attempt| attempt.charged).count();
        ensure!(recording == "concert" || interrupted == 0, "{recording} was charged for the quit");
    }
    println!("Checked: 25 minutes of 4 recordings written once, 4 of the concert; nobody was charged for the quit.");
    Ok(())
}

fn story(file: &Path) -> anyhow::Result<()> {
    ensure!(!file.exists(), "{} is there already: name a file to make", file.display());
    first_run(file)?;
    second_run(file)
}

fn main() -> ExitCode {
    let told = match std::env::args_os().nth(1) {
        Some(file) => story(Path::new(&file)),
        None => TempStore::new().map_err(Into::into).and_then(|folder| story(folder.path())),
    };
    match told {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("desktop: {error:#}");
            ExitCode::FAILURE
        }
    }
}
