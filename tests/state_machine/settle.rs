//! What becomes of a job when an attempt has ended, or its process.

use super::{Gate, Lease, Model, Outcome, State};
use crate::kinds::Kind;

impl Model {
    /// What an attempt ended with is in the file.
    pub fn settle(&mut self, id: i64, token: i64, outcome: &Outcome) -> Result<(), String> {
        let lease = self.job(id)?.lease.clone().filter(|lease| lease.token == token);
        let lease = lease.ok_or_else(|| format!("job {id} was settled by {token}, who does not hold it"))?;
        let run_at = self.jobs[&id].run_at;
        self.decide(id, &lease, outcome);
        let is_done = matches!(outcome, Outcome::Done | Outcome::Commit);
        if lease.cancel && !is_done && self.jobs[&id].state != State::Parked("unknown_outcome".into()) {
            // Asked to stop, it does not run again.
            (self.edit(id).run_at, self.edit(id).suspect) = (run_at, None);
            self.finish(id, State::Cancelled);
        }
        self.move_up(id);
        Ok(())
    }

    /// What becomes of a job that nobody has asked to stop.
    fn decide(&mut self, id: i64, lease: &Lease, outcome: &Outcome) {
        let (now, token) = (self.now, lease.token);
        let job = self.edit(id);
        let suspect = job.suspect;
        (job.lease, job.claims, job.suspect) = (None, token, None);
        let Kind { at_most_once, max_attempts, total, .. } = *job.kind;
        let deadline = job.deadline.or(total.map(|total| lease.since + total));
        let (is_over, attempt) = (deadline.is_some_and(|at| now >= at), lease.attempt);
        let is_last = job.one_attempt || attempt >= max_attempts;
        let backoff = job.kind.backoff(attempt);
        let mut note = |class, charged| {
            job.history.push((token, attempt, class, charged));
            job.class = Some(class);
            job.attempts = if charged { attempt } else { attempt - 1 };
            job.deadline = deadline;
        };
        match outcome {
            Outcome::Done | Outcome::Commit => {
                job.attempts = attempt;
                job.result = job.content.map(|content| content.to_string());
                job.effects += u32::from(*outcome == Outcome::Commit);
                self.finish(id, State::Done);
            }
            // Nobody knows what has happened outside.
            Outcome::Error | Outcome::RetryAfter(_) | Outcome::Panic if at_most_once => {
                note(if *outcome == Outcome::Panic { "panic" } else { "transient" }, false);
                (job.class, job.deadline) = (Some("unknown_outcome"), None);
                job.state = State::Parked("unknown_outcome".into());
            }
            Outcome::Error | Outcome::Transient | Outcome::Panic => {
                note(if *outcome == Outcome::Panic { "panic" } else { "transient" }, true);
                match (is_last, is_over) {
                    (true, _) => self.finish(id, State::Dead),
                    (false, true) => {
                        job.class = Some("deadline");
                        self.finish(id, State::Dead);
                    }
                    (false, false) => self.wait(id, now + backoff),
                }
            }
            Outcome::Permanent | Outcome::Undecodable => {
                note(if *outcome == Outcome::Permanent { "permanent" } else { "undecodable" }, true);
                self.finish(id, State::Dead);
            }
            Outcome::Park(reason) => {
                note("parked", false);
                job.deadline = None;
                job.state = State::Parked((*reason).to_owned());
            }
            Outcome::RetryAfter(floor) => match (job.one_attempt, is_over) {
                (true, _) => {
                    note("transient", true);
                    self.finish(id, State::Dead);
                }
                (false, true) => {
                    note("transient", false);
                    job.class = Some("deadline");
                    self.finish(id, State::Dead);
                }
                (false, false) => {
                    note("transient", false);
                    self.wait(id, now + backoff.max(*floor));
                }
            },
            Outcome::Snooze(pause) => {
                job.attempts = attempt - 1;
                job.deadline = deadline.map(|at| at + pause);
                self.wait(id, now + pause);
            }
            // As if it had not been claimed.
            Outcome::GivenBack => {
                (job.attempts, job.suspect) = (attempt - 1, suspect);
                if self.is_behind(id) {
                    self.edit(id).state = State::Waiting(Gate::Behind);
                }
            }
        }
    }

    /// A process is found gone, or signs off: all that it held is taken back.
    pub fn take_back(&mut self, runner: i64) {
        let held: Vec<(i64, Lease)> = self.leases_of(runner).map(|(job, lease)| (job.id, lease.clone())).collect();
        held.iter().for_each(|(id, _)| self.edit(*id).lease = None);
        for (id, lease) in held {
            self.take_back_one(id, &lease);
            self.move_up(id);
        }
        self.runners.entry(runner).or_default().pending.clear();
    }

    fn take_back_one(&mut self, id: i64, lease: &Lease) {
        let now = self.now;
        let job = self.edit(id);
        (job.claims, job.suspect) = (lease.token + 1, None);
        let verdict = job.on_crash(lease.attempt, lease.was_suspect);
        if verdict == 1 {
            job.state = State::Parked("unknown_outcome".into());
            job.class = Some("unknown_outcome");
            job.history.push((lease.token, lease.attempt, "unknown_outcome", false));
            return;
        }
        if lease.was_suspect {
            job.class = Some("crashed");
            job.history.push((lease.token, lease.attempt, "crashed", true));
        }
        if verdict == 2 || lease.cancel {
            return self.finish(id, if lease.cancel { State::Cancelled } else { State::Dead });
        }
        // At once, whatever its time was: it ran already.
        job.suspect = Some(now);
        let gate = match (job.for_callers, self.is_behind(id)) {
            (true, _) => Gate::Callers,
            (false, true) => Gate::Behind,
            (false, false) => Gate::Suspect,
        };
        self.edit(id).state = State::Waiting(gate);
    }
}
