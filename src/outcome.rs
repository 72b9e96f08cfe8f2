//! What becomes of a job when an attempt has ended: a pure decision, written to the file afterwards.

use std::time::Duration;

use crate::clock::millis;
use crate::failure::{Class, Verdict};
use crate::retry::RetryPolicy;

/// How soon a job is tried again whose storage calls met a busy or full file.
const AFTER_STORAGE: Duration = Duration::from_secs(1);

/// How an attempt ended.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Ended {
    /// The handler returned its output, as JSON or with the reason why it is not stored.
    Done(Output),
    /// The handler returned an error. `untouched`: it says that nothing has happened outside yet.
    Failed { verdict: Verdict, text: String, untouched: bool },
    /// The program is wrong in a way that no repeat mends: a step that cannot be one, an output of another type.
    Misused { class: Class, text: String },
    /// The handler gave up on birkez's own file being busy or full. Never the job's fault.
    StorageTrouble,
    /// The handler panicked.
    Panicked { text: String },
    /// It took longer than its kind allows.
    TimedOut { limit: Duration },
    /// The payload does not decode.
    Undecodable { text: String },
    /// A stop whose grace ran out.
    Interrupted,
    /// Claimed and not started.
    GivenBack,
}

/// The output of a job that is done.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Output {
    Stored(String),
    NotStored(&'static str),
}

/// What the decision rests on.
#[derive(Clone, Debug)]
pub(crate) struct Facts<'a> {
    /// Number of the attempt, from 1.
    pub attempt: u32,
    /// When it was claimed.
    pub since: i64,
    /// When it ended.
    pub now: i64,
    /// When the total time runs out, once that is known.
    pub deadline: Option<i64>,
    pub policy: &'a RetryPolicy,
    /// Once it has started, it is not run again without a person's word.
    pub at_most_once: bool,
    /// Whatever the policy allows, its next failure is its last.
    pub one_attempt: bool,
    /// In `[0, 1)`.
    pub random: f64,
}

/// The new state of a job.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Next {
    Done(Output),
    Waiting {
        run_at: i64,
    },
    /// Back to where it was, as if it had not been claimed.
    Back,
    Parked {
        reason: String,
    },
    Dead,
    Cancelled,
}

/// A line for the record.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Record {
    /// Class of the attempt.
    pub class: Class,
    pub text: String,
    pub charged: bool,
}

/// The decision.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Settlement {
    pub next: Next,
    /// Charged attempts from now on.
    pub attempts: u32,
    pub deadline: Option<i64>,
    /// Why the job is where it is; its class may differ from the record's (`deadline`).
    pub class: Option<Class>,
    pub record: Option<Record>,
}

impl Settlement {
    /// What becomes of a job that was asked to stop, and is not done: it does not run again. Only what may have happened
    /// and is not known still waits for a person's word.
    pub(crate) fn called_off(self) -> Settlement {
        match &self.next {
            Next::Done(_) => self,
            Next::Parked { .. } if self.class == Some(Class::UnknownOutcome) => self,
            _ => Settlement { next: Next::Cancelled, ..self },
        }
    }
}

pub(crate) fn decide(ended: Ended, facts: &Facts<'_>) -> Settlement {
    match ended {
        Ended::Failed { verdict: Verdict::Unsaid | Verdict::RetryAfter(_), text, untouched: false }
            if facts.at_most_once =>
        {
            unknown(Class::Transient, text, facts)
        }
        Ended::Misused { class, text } if facts.at_most_once => unknown(class, text, facts),
        Ended::Panicked { text } if facts.at_most_once => unknown(Class::Panic, text, facts),
        Ended::TimedOut { limit } if facts.at_most_once => unknown(Class::Timeout, too_long(limit), facts),
        Ended::StorageTrouble if facts.at_most_once => {
            unknown(Class::Transient, "the file was busy or full in its middle".to_owned(), facts)
        }
        Ended::Interrupted if facts.at_most_once => unknown(Class::Interrupted, STOPPED.to_owned(), facts),
        Ended::Done(output) => Settlement {
            next: Next::Done(output),
            attempts: facts.attempt,
            deadline: facts.deadline,
            class: None,
            record: None,
        },
        Ended::Failed { verdict, text, .. } => failed(verdict, text, facts),
        Ended::Misused { class, text } => dead(class, text, facts),
        Ended::Panicked { text } => retry(Class::Panic, text, facts),
        Ended::TimedOut { limit } => retry(Class::Timeout, too_long(limit), facts),
        Ended::Undecodable { text } => dead(Class::Undecodable, text, facts),
        Ended::StorageTrouble => Settlement {
            next: Next::Waiting { run_at: facts.now.saturating_add(millis(AFTER_STORAGE)) },
            ..decide(Ended::GivenBack, facts)
        },
        Ended::Interrupted => uncharged(Next::Back, Class::Interrupted, STOPPED.to_owned(), facts),
        Ended::GivenBack => Settlement {
            next: Next::Back,
            attempts: facts.attempt.saturating_sub(1),
            deadline: facts.deadline,
            class: None,
            record: None,
        },
    }
}

const STOPPED: &str = "stopped before its end by a shutdown";

fn too_long(limit: Duration) -> String {
    format!("took longer than {limit:?}")
}

/// What it did outside is not known: a person must look. The record keeps how it ended.
fn unknown(class: Class, text: String, facts: &Facts<'_>) -> Settlement {
    let reason = Class::UnknownOutcome.as_str().to_owned();
    Settlement {
        class: Some(Class::UnknownOutcome),
        deadline: None,
        ..uncharged(Next::Parked { reason }, class, text, facts)
    }
}

fn failed(verdict: Verdict, text: String, facts: &Facts<'_>) -> Settlement {
    match verdict {
        Verdict::Unsaid | Verdict::Transient => retry(Class::Transient, text, facts),
        Verdict::Permanent => dead(Class::Permanent, text, facts),
        Verdict::Park(reason) => {
            let mut settlement = uncharged(Next::Parked { reason }, Class::Parked, text, facts);
            // The total time counts anew from the first attempt after a resume.
            settlement.deadline = None;
            settlement
        }
        Verdict::RetryAfter(_) if facts.one_attempt => dead(Class::Transient, text, facts),
        Verdict::RetryAfter(floor) => {
            if is_over(facts) {
                return over(Class::Transient, text, false, facts);
            }
            let delay = facts.policy.delay(facts.attempt, floor, facts.random);
            uncharged(Next::Waiting { run_at: facts.now.saturating_add(delay) }, Class::Transient, text, facts)
        }
        Verdict::Snooze(pause) => Settlement {
            next: Next::Waiting { run_at: facts.now.saturating_add(millis(pause)) },
            attempts: facts.attempt.saturating_sub(1),
            // The pause does not count into the total time.
            deadline: deadline(facts).map(|at| at.saturating_add(millis(pause))),
            class: None,
            record: None,
        },
    }
}

fn retry(class: Class, text: String, facts: &Facts<'_>) -> Settlement {
    if facts.one_attempt || facts.policy.is_last(facts.attempt) {
        return dead(class, text, facts);
    }
    if is_over(facts) {
        return over(class, text, true, facts);
    }
    let delay = facts.policy.delay(facts.attempt, Duration::ZERO, facts.random);
    Settlement {
        next: Next::Waiting { run_at: facts.now.saturating_add(delay) },
        attempts: facts.attempt,
        deadline: deadline(facts),
        class: Some(class),
        record: Some(Record { class, text, charged: true }),
    }
}

fn dead(class: Class, text: String, facts: &Facts<'_>) -> Settlement {
    Settlement {
        next: Next::Dead,
        attempts: facts.attempt,
        deadline: deadline(facts),
        class: Some(class),
        record: Some(Record { class, text, charged: true }),
    }
}

/// Dead because the total time is over; the record keeps what this attempt failed with.
fn over(class: Class, text: String, charged: bool, facts: &Facts<'_>) -> Settlement {
    Settlement {
        class: Some(Class::Deadline),
        record: Some(Record { class, text, charged }),
        attempts: if charged { facts.attempt } else { facts.attempt.saturating_sub(1) },
        ..dead(class, String::new(), facts)
    }
}

fn uncharged(next: Next, class: Class, text: String, facts: &Facts<'_>) -> Settlement {
    Settlement {
        next,
        attempts: facts.attempt.saturating_sub(1),
        deadline: if class == Class::Interrupted { facts.deadline } else { deadline(facts) },
        class: Some(class),
        record: Some(Record { class, text, charged: false }),
    }
}

fn is_over(facts: &Facts<'_>) -> bool {
    deadline(facts).is_some_and(|at| facts.now >= at)
}

/// Counted from the first attempt; fixed by the first that fails.
fn deadline(facts: &Facts<'_>) -> Option<i64> {
    facts.deadline.or_else(|| facts.policy.total.map(|total| facts.since.saturating_add(millis(total))))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(policy: &RetryPolicy) -> Facts<'_> {
        Facts {
            attempt: 1,
            since: 1_000,
            now: 2_000,
            deadline: None,
            policy,
            at_most_once: false,
            one_attempt: false,
            random: 0.0,
        }
    }

    fn error(verdict: Verdict) -> Ended {
        let untouched = verdict == Verdict::Transient;
        Ended::Failed { verdict, text: "no".into(), untouched }
    }

    #[test]
    fn a_transient_failure_is_charged_and_waits_for_its_backoff() {
        let policy = RetryPolicy::default();
        let settled = decide(error(Verdict::Transient), &facts(&policy));
        assert_eq!(settled.next, Next::Waiting { run_at: 7_000 });
        assert_eq!(settled.attempts, 1);
        assert_eq!(settled.deadline, Some(1_000 + 3 * 86_400_000));
        assert!(settled.record.unwrap().charged);
    }

    #[test]
    fn the_last_attempt_and_a_permanent_failure_are_dead_at_once() {
        let policy = RetryPolicy::default().max_attempts(3);
        for (verdict, attempt, class) in
            [(Verdict::Transient, 3, Class::Transient), (Verdict::Permanent, 1, Class::Permanent)]
        {
            let settled = decide(error(verdict), &Facts { attempt, ..facts(&policy) });
            assert_eq!((settled.next, settled.class), (Next::Dead, Some(class)));
        }
    }

    #[test]
    fn a_server_that_says_wait_never_spends_an_attempt_but_does_spend_the_total_time() {
        let policy = RetryPolicy::default().max_attempts(1).total(Duration::from_secs(600));
        let mut deadline = None;
        for turn in 0..10 {
            let now = 2_000 + turn * 30_000;
            let ended = error(Verdict::RetryAfter(Duration::from_secs(30)));
            let settled = decide(ended, &Facts { since: now - 1_000, now, deadline, ..facts(&policy) });
            assert_eq!(settled.next, Next::Waiting { run_at: now + 30_000 });
            assert_eq!(settled.attempts, 0);
            deadline = settled.deadline;
        }
        let ended = error(Verdict::RetryAfter(Duration::from_secs(30)));
        let settled = decide(ended, &Facts { now: 601_000, deadline, ..facts(&policy) });
        assert_eq!((settled.next, settled.class), (Next::Dead, Some(Class::Deadline)));
    }

    #[test]
    fn total_time_ends_a_job_only_after_a_failure() {
        let policy = RetryPolicy::default().total(Duration::from_secs(1));
        let late = Facts { now: 1_000_000, deadline: Some(2_000), attempt: 2, ..facts(&policy) };
        assert!(matches!(decide(Ended::Done(Output::Stored("1".into())), &late).next, Next::Done(_)));
        let settled = decide(error(Verdict::Transient), &late);
        assert_eq!((settled.next, settled.class), (Next::Dead, Some(Class::Deadline)));
        assert_eq!(settled.record.unwrap().class, Class::Transient);
    }

    #[test]
    fn a_snooze_costs_neither_an_attempt_nor_total_time() {
        let policy = RetryPolicy::default();
        let settled = decide(error(Verdict::Snooze(Duration::from_secs(60))), &facts(&policy));
        assert_eq!(settled.next, Next::Waiting { run_at: 62_000 });
        assert_eq!((settled.attempts, settled.record), (0, None));
        assert_eq!(settled.deadline, Some(1_000 + 3 * 86_400_000 + 60_000));
    }

    #[test]
    fn parking_costs_no_attempt_and_forgets_the_deadline() {
        let policy = RetryPolicy::default();
        let settled = decide(error(Verdict::Park("auth".into())), &Facts { deadline: Some(5), ..facts(&policy) });
        assert_eq!(settled.next, Next::Parked { reason: "auth".into() });
        assert_eq!((settled.attempts, settled.deadline), (0, None));
    }

    #[test]
    fn what_was_stopped_or_not_started_is_uncharged() {
        let policy = RetryPolicy::default();
        for ended in [Ended::Interrupted, Ended::GivenBack, Ended::StorageTrouble] {
            let settled = decide(ended, &Facts { attempt: 4, ..facts(&policy) });
            assert_eq!(settled.attempts, 3);
            assert!(settled.record.is_none_or(|record| !record.charged));
        }
    }

    #[test]
    fn what_may_run_once_only_is_not_run_again_without_a_persons_word() {
        let policy = RetryPolicy::default();
        let once = Facts { at_most_once: true, ..facts(&policy) };
        let ends = [
            error(Verdict::Unsaid),
            error(Verdict::RetryAfter(Duration::ZERO)),
            Ended::Misused { class: Class::Permanent, text: "no".into() },
            Ended::Panicked { text: "no".into() },
            Ended::TimedOut { limit: Duration::from_secs(1) },
            Ended::Interrupted,
            Ended::StorageTrouble,
        ];
        for ended in ends {
            let settled = decide(ended.clone(), &once);
            assert_eq!(settled.next, Next::Parked { reason: "unknown_outcome".into() }, "{ended:?}");
            assert_eq!((settled.class, settled.attempts), (Some(Class::UnknownOutcome), 0));
        }
        // What it says itself is believed, and what never started has done nothing.
        assert!(matches!(decide(error(Verdict::Transient), &once).next, Next::Waiting { .. }));
        let both = Ended::Failed { verdict: Verdict::RetryAfter(Duration::ZERO), text: "no".into(), untouched: true };
        assert!(matches!(decide(both, &once).next, Next::Waiting { .. }));
        assert_eq!(decide(error(Verdict::Permanent), &once).next, Next::Dead);
        assert_eq!(decide(Ended::GivenBack, &once).next, Next::Back);
    }

    #[test]
    fn no_input_makes_the_decision_panic_or_a_retry_early() {
        let mut chance = fastrand::Rng::with_seed(11);
        for _ in 0..20_000 {
            let policy =
                RetryPolicy::default().max_attempts(chance.u32(..)).base(Duration::from_millis(chance.u64(..)));
            let facts = Facts {
                attempt: chance.u32(..),
                since: chance.i64(..),
                now: chance.i64(..),
                deadline: chance.bool().then(|| chance.i64(..)),
                policy: &policy,
                at_most_once: chance.bool(),
                one_attempt: chance.bool(),
                random: chance.f64(),
            };
            let verdict = match chance.u8(..6) {
                5 => Verdict::Unsaid,
                0 => Verdict::Transient,
                1 => Verdict::Permanent,
                2 => Verdict::Park("x".into()),
                3 => Verdict::RetryAfter(Duration::from_millis(chance.u64(..))),
                _ => Verdict::Snooze(Duration::from_millis(chance.u64(..))),
            };
            if let Next::Waiting { run_at } = decide(error(verdict), &facts).next {
                assert!(run_at >= facts.now);
            }
        }
    }
}
