//! One attempt: what the world does while a job runs, and how its handler ends.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use anyhow::anyhow;
use birkez::{Context, Error, Verdicts, snooze};
use fastrand::Rng;

use super::{ATTEMPT, Check, Moment, World};
use crate::kinds::New;
use crate::model::Outcome;
use crate::ops::{Op, Trace};
use crate::order;

impl World {
    /// One attempt, called by a drain.
    pub(super) fn attempt(self: &Arc<Self>, runner: i64, cx: &Context, new: &New) -> anyhow::Result<u32> {
        self.time.monotonic.fetch_add(ATTEMPT, Ordering::AcqRel);
        if self.state().failure.is_some() {
            return Ok(new.content);
        }
        match self.try_attempt(runner, cx, new) {
            Ok(result) => result,
            Err(failure) => {
                self.state().failure.get_or_insert(failure);
                Ok(new.content)
            }
        }
    }

    fn try_attempt(self: &Arc<Self>, runner: i64, cx: &Context, new: &New) -> Check<anyhow::Result<u32>> {
        self.sync(runner, Moment::Start)?;
        let id = cx.job_id();
        let mut chance = {
            let mut state = self.state();
            state.met.attempts += 1;
            let run = state.runs.last_mut().filter(|run| run.runner == runner).ok_or("an attempt outside a drain")?;
            run.attempts += 1;
            // The same whatever else the history has lost.
            Rng::with_seed(run.seed ^ (id as u64) << 32 ^ run.attempts as u64)
        };
        if self.state().model.job(id)?.lease.as_ref().is_none_or(|lease| lease.runner != runner) {
            return self.be_late(cx, new);
        }
        self.start(runner, cx)?;
        if chance.u8(..8) == 0 {
            self.apply(&Op::beside(id as usize * 3, &mut chance))?;
        }
        let is_alone = self.state().runs.len() == 1;
        if is_alone && chance.u8(..40) == 0 {
            // It dies in the middle, and finds out only when it comes to write.
            self.crash(runner, [Trace::OtherBoot, Trace::Ended, Trace::NoRow][chance.usize(..3)]);
            let other = usize::from(self.process(0).runner == runner);
            for _ in 0..2 {
                self.drain(other, chance.u64(..))?;
            }
            if self.state().model.job(id)?.lease.as_ref().is_none_or(|lease| lease.runner != runner) {
                return self.be_late(cx, new);
            }
        }
        let outcome = Outcome::choose(&mut chance);
        let committed = (outcome == Outcome::Commit).then(|| self.carry_out(cx, new, &outcome));
        let mut state = self.state();
        let token = state.model.job(id)?.lease.as_ref().map_or(0, |lease| lease.token);
        state.model.runners.entry(runner).or_default().pending.push((id, token, outcome.clone()));
        drop(state);
        if let Some(result) = committed {
            self.sync(runner, Moment::Write)?;
            return Ok(result);
        }
        Ok(self.carry_out(cx, new, &outcome))
    }

    fn start(&self, runner: i64, cx: &Context) -> Check {
        let mut state = self.state();
        order::judge_start(&mut state.model, runner, cx.job_id())?;
        let job = state.model.edit(cx.job_id());
        let lease = job.lease.as_mut().ok_or("it holds no lease")?;
        lease.is_started = true;
        let known = (job.kind.name, job.key.as_str(), lease.attempt);
        let told = (cx.kind(), cx.key(), cx.attempt());
        if known == told { Ok(()) } else { Err(format!("a handler was told {told:?}, and should be {known:?}")) }
    }

    /// One that has lost its lease writes nothing and is told so, whatever it returns.
    fn be_late(&self, cx: &Context, new: &New) -> Check<anyhow::Result<u32>> {
        self.state().met.late_results += 1;
        let written = cx.commit(|tx| {
            tx.execute("INSERT INTO effect VALUES (?1)", [cx.job_id()])?;
            Ok(new.content)
        });
        let code = written.as_ref().map_err(|error| error.downcast_ref::<Error>().map(Error::code));
        if code != Err(Some("LEASE_LOST")) {
            return Err(format!("job {} was written by one who had lost it: {written:?}", cx.job_id()));
        }
        Ok(Ok(new.content))
    }

    /// How a handler ends.
    pub(super) fn carry_out(&self, cx: &Context, new: &New, outcome: &Outcome) -> anyhow::Result<u32> {
        let millis = |time: i64| Duration::from_millis(time.unsigned_abs());
        let fails = || Err(anyhow!("by chance"));
        match outcome {
            Outcome::Done => Ok(new.content),
            Outcome::Commit => cx.commit(|tx| {
                tx.execute("INSERT INTO effect VALUES (?1)", [cx.job_id()])?;
                Ok(new.content)
            }),
            Outcome::Error | Outcome::Undecodable | Outcome::GivenBack => fails(),
            Outcome::Transient => fails().transient(),
            Outcome::Permanent => fails().permanent(),
            Outcome::Park(reason) => fails().park(*reason),
            Outcome::RetryAfter(floor) => fails().retry_after(millis(*floor)),
            Outcome::Snooze(pause) => Err(snooze(millis(*pause))),
            Outcome::Panic => std::panic::resume_unwind(Box::new("by chance")),
        }
    }
}
