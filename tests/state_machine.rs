//! The whole state machine against a model in memory: thousands of steps of enqueueing, running with every kind of end,
//! dying, what people do, plain INSERTs and clocks that are set.
//!
//! What can go wrong: anything that two verbs do to one job in an order that nobody thought of. After each step the file
//! is compared with the model, row by row.
//!
//! `BIRKEZ_HISTORIES` (default 10), `BIRKEZ_STEPS` (default 1,000) and `BIRKEZ_SEED` (the first of them) change how much is
//! tried, and what. A history that fails is made as short as possible and printed.

mod common;
#[path = "state_machine/file.rs"]
mod file;
#[path = "state_machine/follow.rs"]
mod follow;
#[path = "state_machine/kinds.rs"]
mod kinds;
#[path = "state_machine/model.rs"]
mod model;
#[path = "state_machine/ops.rs"]
mod ops;
#[path = "state_machine/order.rs"]
mod order;
#[path = "state_machine/verbs.rs"]
mod verbs;
#[path = "state_machine/world.rs"]
mod world;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

use common::rounds;
use ops::Op;
use world::{Met, World};

/// Steps between two comparisons of everything beside the jobs themselves.
const WHOLE: usize = 16;
/// A failed history is shortened for no longer than this.
const SHRINK: Duration = Duration::from_secs(30);

/// The first step after which file and model differ, and how.
struct Failure {
    step: usize,
    what: String,
}

impl Failure {
    /// What it says first, without its numbers: two failures that begin alike are taken for one.
    fn kind(&self) -> String {
        self.what.chars().filter(|c| !c.is_ascii_digit()).take(24).collect()
    }
}

fn run(history: &[Op]) -> Result<Met, Failure> {
    let world = World::new();
    let at = |step, what| Failure { step, what };
    for (step, op) in history.iter().enumerate() {
        let made = catch_unwind(AssertUnwindSafe(|| {
            world.apply(op)?;
            world.compare(step % WHOLE == 0)
        }));
        made.unwrap_or_else(|panic| Err(format!("a panic: {:?}", panic.downcast_ref::<String>())))
            .map_err(|what| at(step, what))?;
    }
    world.compare(true).and_then(|()| world.end()).map_err(|what| at(history.len(), what))?;
    Ok(world.met())
}

/// The shortest part of a history that was found to fail, and how.
fn shrink(mut history: Vec<Op>, mut failure: Failure) -> (Vec<Op>, Failure) {
    let start = Instant::now();
    history.truncate(failure.step + 1);
    let mut size = history.len().div_ceil(2);
    while size > 0 {
        let mut at = 0;
        while at < history.len() && start.elapsed() < SHRINK {
            let mut less = history.clone();
            less.drain(at..(at + size).min(history.len()));
            match run(&less) {
                Err(found) if found.kind() == failure.kind() => {
                    less.truncate(found.step + 1);
                    (history, failure) = (less, found);
                }
                _ => at += size,
            }
        }
        size /= 2;
    }
    (history, failure)
}

fn assert_agrees(seed: u64, steps: usize) -> Met {
    let history = Op::history(seed, steps);
    run(&history).unwrap_or_else(|failure| {
        let (step, what) = (failure.step, failure.what.clone());
        let (history, least) = shrink(history, failure);
        let steps: Vec<String> = history.iter().map(|op| format!("    {op:?}")).collect();
        panic!(
            "BIRKEZ_SEED={seed} fails at step {step}: {what}\n\nso do these {} steps: {}\n{}",
            steps.len(),
            least.what,
            steps.join("\n")
        );
    })
}

#[test]
fn after_every_step_of_any_history_the_file_says_what_the_model_says() {
    let first = std::env::var("BIRKEZ_SEED").ok().and_then(|text| text.parse().ok());
    // What every change must pass does not depend on chance; a search for more begins with another seed.
    let first = first.unwrap_or(1);
    let (histories, steps) = (rounds("BIRKEZ_HISTORIES", 10), rounds("BIRKEZ_STEPS", 1_000));
    let next = std::sync::atomic::AtomicU64::new(0);
    let threads = std::thread::available_parallelism().map_or(1, usize::from).min(4);
    let all = std::sync::Mutex::new(Vec::new());
    let work = || loop {
        let at = next.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        if at >= u64::from(histories) {
            break;
        }
        let met = assert_agrees(first + at, steps as usize);
        all.lock().unwrap().push(met);
    };
    std::thread::scope(|scope| (0..threads).for_each(|_| drop(scope.spawn(work))));
    let all = all.into_inner().unwrap();
    println!("BIRKEZ_SEED={first}, {} histories of {steps} steps", all.len());
    all.iter().take(3).for_each(|met| println!("{met:?}"));
    let sum = |what: fn(&Met) -> u32| all.iter().map(what).sum::<u32>();
    let rare =
        [sum(|met| met.taken_back), sum(|met| met.late_results), sum(|met| met.superseded), sum(|met| met.refused)];
    assert!(rare.iter().all(|met| *met > 0) && sum(|met| met.attempts) > histories * steps / 20, "{rare:?}");
}
