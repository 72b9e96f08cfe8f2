//! The steps of a history, chosen without a look at what they will meet, so that any of them can be left out.

use chrono::{DateTime, TimeDelta};
use fastrand::Rng;

use crate::kinds::{KINDS, New};
use crate::model::Outcome;
use crate::verbs::{LINES, REASONS, Target, Verb};

#[derive(Clone, Debug)]
pub enum Op {
    /// By the store that runs nothing, or by that of a process, which may claim in the same transaction.
    Enqueue {
        kind: usize,
        new: Draft,
        by: Option<usize>,
    },
    /// A plain INSERT of a script's; `is_broken`: with a payload that no type can read.
    Insert {
        kind: usize,
        new: Draft,
        is_broken: bool,
    },
    Once {
        kind: usize,
        new: Draft,
        outcome: Outcome,
    },
    /// The wall clock goes on, or is set back.
    Pass(i64),
    /// A process runs all that is due; the seed says how the attempts end.
    Drain {
        process: usize,
        seed: u64,
    },
    /// A process dies with what it holds; others see it by its row.
    Crash {
        process: usize,
        trace: Trace,
    },
    /// A process closes its store, and another takes its place.
    Restart(usize),
    Act {
        verb: Verb,
        target: Target,
    },
    /// A kind is paused, or goes on.
    Pause {
        kind: usize,
        on: bool,
    },
    /// What has been over for so many milliseconds loses its payload and result, or goes with its key.
    Prune {
        content: i64,
        key: i64,
    },
}

/// What shows that a process is gone.
#[derive(Clone, Copy, Debug)]
pub enum Trace {
    /// Its row is of another boot of the machine.
    OtherBoot,
    /// Its row says that it has ended.
    Ended,
    /// Its row is not there.
    NoRow,
}

/// A job before it is known when it is enqueued.
#[derive(Clone, Debug)]
pub struct Draft {
    pub key: u32,
    pub content: u32,
    pub priority: i32,
    /// Milliseconds from now.
    pub delay: Option<i64>,
    pub line: Option<&'static str>,
    pub version: Option<i64>,
}

impl Draft {
    fn choose(step: usize, chance: &mut Rng) -> Draft {
        let line = (chance.u8(..5) < 2).then(|| LINES[chance.usize(..LINES.len())]);
        Draft {
            // Nearly always new or lately used.
            key: chance.u32(..12) + step as u32 / 12,
            content: u32::from(chance.u8(..12) == 0),
            priority: [0, 0, 0, 5, -5, 9][chance.usize(..6)],
            delay: (chance.u8(..4) == 0).then(|| chance.i64(-60_000..200_000)),
            version: line.filter(|_| chance.u8(..3) == 0).map(|_| chance.i64(0..8)),
            line,
        }
    }

    pub fn at(&self, now: i64) -> New {
        let now = DateTime::from_timestamp_millis(now).unwrap();
        New {
            key: self.key.to_string(),
            content: self.content,
            priority: self.priority,
            run_at: self.delay.map(|delay| now + TimeDelta::milliseconds(delay)),
            line: self.line.map(str::to_owned),
            version: self.version,
        }
    }
}

impl Outcome {
    pub fn choose(chance: &mut Rng) -> Outcome {
        match chance.u8(..24) {
            0..6 => Outcome::Done,
            6..13 => Outcome::Commit,
            13..15 => Outcome::Error,
            15 => Outcome::Transient,
            16 => Outcome::Permanent,
            17..19 => Outcome::Park(REASONS[chance.usize(..2)]),
            19 => Outcome::RetryAfter(chance.i64(0..60_000)),
            20 => Outcome::Snooze(chance.i64(1..60_000)),
            21 => Outcome::Panic,
            _ => Outcome::Error,
        }
    }
}

impl Op {
    fn choose(step: usize, chance: &mut Rng) -> Op {
        match chance.u8(..100) {
            0..14 => Op::Drain { process: chance.usize(..2), seed: chance.u64(..) },
            14..16 => Op::Crash {
                process: chance.usize(..2),
                trace: [Trace::OtherBoot, Trace::Ended, Trace::NoRow][chance.usize(..3)],
            },
            16 => Op::Restart(chance.usize(..2)),
            17..19 => {
                Op::Once { kind: chance.usize(..4), new: Draft::choose(step, chance), outcome: Outcome::choose(chance) }
            }
            19..22 => Op::Pause { kind: chance.usize(..KINDS.len()), on: chance.u8(..3) == 0 },
            22 => Op::Prune { content: chance.i64(0..600_000), key: chance.i64(300_000..3_000_000) },
            _ => Op::beside(step, chance),
        }
    }

    /// What may happen while a job runs as well.
    pub fn beside(step: usize, chance: &mut Rng) -> Op {
        match chance.u8(..80) {
            0..14 => Op::Pass(match chance.u8(..12) {
                0 => -chance.i64(1..200_000),
                1 => chance.i64(1..1_000_000),
                _ => chance.i64(1..30_000),
            }),
            14..46 => Op::Enqueue {
                kind: chance.usize(..KINDS.len()),
                new: Draft::choose(step, chance),
                by: (chance.u8(..5) == 0).then(|| chance.usize(..2)),
            },
            46..54 => Op::Insert {
                kind: chance.usize(..KINDS.len()),
                new: Draft::choose(step, chance),
                is_broken: chance.u8(..6) == 0,
            },
            _ => {
                let (verb, state) = Verb::choose(chance);
                let target = Target::choose(&verb, state, chance);
                Op::Act { verb, target }
            }
        }
    }

    pub fn history(seed: u64, steps: usize) -> Vec<Op> {
        let mut chance = Rng::with_seed(seed);
        (0..steps).map(|step| Op::choose(step, &mut chance)).collect()
    }
}
