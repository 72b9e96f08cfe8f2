//! The state machine in memory: what the file should say, by the rules that the documentation gives. Nothing in here
//! calls the library. Time and what it did at its own choice (which numbers it gave, when it looked) are told to it.

#[path = "settle.rs"]
mod settle;

use std::collections::{BTreeMap, BTreeSet};

use crate::kinds::{Kind, New};

/// Where a waiting job stands, as in `schema.sql`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gate {
    Later = 0,
    Open = 1,
    Behind = 2,
    Suspect = 3,
    Callers = 4,
}

#[derive(Clone, Debug, PartialEq)]
pub enum State {
    Waiting(Gate),
    Parked(String),
    Done,
    Dead,
    Cancelled,
}

#[derive(Clone, Debug, PartialEq)]
pub struct Lease {
    pub runner: i64,
    pub token: i64,
    pub attempt: u32,
    pub since: i64,
    pub was_suspect: bool,
    pub is_turn: bool,
    pub is_started: bool,
    pub cancel: bool,
}

#[derive(Clone, Debug)]
pub struct Job {
    pub id: i64,
    pub kind: &'static Kind,
    pub key: String,
    /// `None`: a payload that no type can read.
    pub content: Option<u32>,
    pub has_payload: bool,
    pub has_fingerprint: bool,
    pub priority: i64,
    pub run_at: i64,
    pub line: Option<String>,
    pub version: Option<i64>,
    pub state: State,
    pub lease: Option<Lease>,
    pub attempts: u32,
    pub claims: i64,
    pub deadline: Option<i64>,
    pub suspect: Option<i64>,
    pub result: Option<String>,
    pub class: Option<&'static str>,
    pub created_at: i64,
    pub finished_at: Option<i64>,
    pub for_callers: bool,
    pub holds_key: bool,
    pub one_attempt: bool,
    /// Token, number, class and charge of each attempt that did not end well.
    pub history: Vec<(i64, u32, &'static str, bool)>,
    /// Verb, state, class and attempts of before, for each deed.
    pub deeds: Vec<(&'static str, i64, Option<&'static str>, u32)>,
    /// How often its effect was written.
    pub effects: u32,
}

/// How an attempt ends.
#[derive(Clone, Debug, PartialEq)]
pub enum Outcome {
    Done,
    Commit,
    Error,
    Transient,
    Permanent,
    Park(&'static str),
    RetryAfter(i64),
    Snooze(i64),
    Panic,
    Undecodable,
    /// Claimed, and asked to stop or paused before it started.
    GivenBack,
}

/// A process that claims.
#[derive(Clone, Debug, Default)]
pub struct Runner {
    /// Others can see that it is gone.
    pub is_gone: bool,
    /// Attempts that have ended and are not in the file yet.
    pub pending: Vec<(i64, i64, Outcome)>,
    /// Claims since a job of lower priority had its turn.
    pub passed: u32,
    /// And of those, while one of lower priority waited all the time.
    pub in_front: u32,
}

#[derive(Clone, Debug, Default)]
pub struct Model {
    pub now: i64,
    pub jobs: BTreeMap<i64, Job>,
    pub runners: BTreeMap<i64, Runner>,
    /// The newest version of each line that is done.
    pub newest: BTreeMap<String, i64>,
    pub deeds: usize,
    /// Kinds of which nothing is claimed.
    pub paused: BTreeSet<&'static str>,
}

/// The answer to enqueueing.
#[derive(Debug, PartialEq)]
pub enum Answer {
    Fresh,
    Existing { id: i64, state: &'static str, compared: bool },
    Reused { id: i64 },
}

impl Job {
    pub fn word(&self) -> &'static str {
        match (&self.state, &self.lease) {
            (State::Waiting(_), Some(_)) => "running",
            (State::Waiting(_), None) => "waiting",
            (State::Parked(_), _) => "parked",
            (State::Done, _) => "done",
            (State::Dead, _) => "dead",
            (State::Cancelled, _) => "cancelled",
        }
    }

    /// As in the record of deeds.
    pub fn number(&self) -> i64 {
        ["waiting", "parked", "done", "dead", "cancelled", "running"]
            .iter()
            .position(|word| *word == self.word())
            .unwrap() as i64
    }

    pub fn is_in_line(&self) -> bool {
        let stays = match self.state {
            State::Waiting(_) | State::Parked(_) => true,
            State::Dead => self.holds_key,
            State::Done | State::Cancelled => false,
        };
        self.line.is_some() && !self.for_callers && stays
    }

    pub fn is_claimable(&self) -> bool {
        self.lease.is_none() && matches!(self.state, State::Waiting(Gate::Open | Gate::Suspect))
    }

    pub fn is_suspect(&self) -> bool {
        self.state == State::Waiting(Gate::Suspect)
    }

    /// Best first: priority, then time, then number.
    pub fn rank(&self) -> (i64, i64, i64) {
        (-self.priority, self.run_at, self.id)
    }

    /// What the lease of an attempt must say of a crash: 0 runs again, 1 is parked, 2 is dead.
    pub fn on_crash(&self, attempt: u32, is_suspect: bool) -> i64 {
        match (self.kind.at_most_once, is_suspect) {
            (true, _) => 1,
            (false, true) if self.one_attempt || attempt >= self.kind.max_attempts => 2,
            _ => 0,
        }
    }
}

impl Model {
    pub fn job(&self, id: i64) -> Result<&Job, String> {
        self.jobs.get(&id).ok_or_else(|| format!("job {id} is not in the model"))
    }

    pub fn edit(&mut self, id: i64) -> &mut Job {
        self.jobs.get_mut(&id).expect("a job of the model")
    }

    pub fn find(&self, kind: &str, key: &str) -> Option<&Job> {
        self.jobs.values().find(|job| job.kind.name == kind && job.key == key)
    }

    fn head(&self, line: &str) -> Option<i64> {
        self.jobs.values().find(|job| job.is_in_line() && job.line.as_deref() == Some(line)).map(|job| job.id)
    }

    pub fn is_behind(&self, id: i64) -> bool {
        let job = &self.jobs[&id];
        job.is_in_line() && job.line.as_deref().and_then(|line| self.head(line)).is_some_and(|head| head < id)
    }

    fn line_runs(&self, line: &str) -> bool {
        let is_of = |job: &&Job| job.line.as_deref() == Some(line) && !job.for_callers;
        self.jobs.values().filter(is_of).any(|job| job.lease.is_some())
    }

    /// A job waits for its time, its turn or a worker.
    pub fn wait(&mut self, id: i64, run_at: i64) {
        let now = self.now;
        let line = self.jobs[&id].line.clone().filter(|_| !self.jobs[&id].for_callers);
        let first = line.as_deref().and_then(|line| self.head(line));
        let line_runs = line.is_some_and(|line| self.line_runs(&line));
        let job = self.edit(id);
        job.run_at = run_at;
        job.state = State::Waiting(Gate::Later);
        let gate = match (job.for_callers, job.suspect) {
            (true, _) => Gate::Callers,
            _ if line_runs || self.is_behind(id) => Gate::Behind,
            _ if run_at > now => Gate::Later,
            (_, Some(_)) => Gate::Suspect,
            (_, None) => Gate::Open,
        };
        self.edit(id).state = State::Waiting(gate);
        // One that comes back to its old place may be in front of the one whose turn it was.
        if let Some(first) = first.filter(|first| *first > id && !line_runs)
            && matches!(self.jobs[&first].state, State::Waiting(_))
        {
            self.edit(first).state = State::Waiting(Gate::Behind);
        }
    }

    /// Whoever stood behind one that has left its line moves up, unless one of the line runs.
    pub fn move_up(&mut self, left: i64) {
        let Some(line) = self.jobs[&left].line.clone().filter(|_| !self.jobs[&left].for_callers) else { return };
        let Some(head) = self.head(&line).filter(|_| !self.line_runs(&line)) else { return };
        if self.jobs[&head].state == State::Waiting(Gate::Behind) {
            let run_at = self.jobs[&head].run_at;
            self.wait(head, run_at);
        }
    }

    /// A job has come to an end.
    pub fn finish(&mut self, id: i64, state: State) {
        let now = self.now;
        let job = self.edit(id);
        (job.state, job.finished_at) = (state, Some(now));
        if job.state == State::Done
            && let (Some(line), Some(version), false) = (job.line.clone(), job.version, job.for_callers)
        {
            let newest = self.newest.entry(line).or_insert(version);
            *newest = version.max(*newest);
        }
        self.move_up(id);
    }

    /// What ended so long ago goes: what it carried, or all of it.
    pub fn prune(&mut self, content: i64, key: i64) {
        let now = self.now;
        let is_over = |job: &Job, age| job.finished_at.is_some_and(|at| at <= now - age);
        self.jobs.retain(|_, job| job.state == State::Dead || !is_over(job, key));
        for job in self.jobs.values_mut().filter(|job| is_over(job, content)) {
            job.has_payload = false;
            if job.state != State::Dead {
                job.result = None;
            }
        }
    }

    // ---- enqueue

    /// What enqueueing must answer; nothing is changed.
    pub fn answer(&self, kind: &str, new: &New) -> Answer {
        let Some(job) = self.find(kind, &new.key) else { return Answer::Fresh };
        let existing = |compared| Answer::Existing { id: job.id, state: job.word(), compared };
        match (job.content, job.has_payload || job.has_fingerprint) {
            (_, false) => existing(false),
            (Some(content), true) if content == new.content => existing(true),
            _ => Answer::Reused { id: job.id },
        }
    }

    /// A repeat that could be compared leaves the fingerprint of a plain row behind.
    pub fn compare(&mut self, id: i64) {
        let job = self.edit(id);
        job.has_fingerprint |= job.has_payload && job.content.is_some();
    }

    pub fn insert(&mut self, id: i64, kind: &'static Kind, new: &New, for_callers: bool) {
        let now = self.now;
        let run_at = new.run_at.map_or(now, |at| at.timestamp_millis());
        let job = Job {
            has_fingerprint: true,
            created_at: now,
            for_callers,
            holds_key: !kind.passed_over,
            ..blank(id, kind, new)
        };
        self.jobs.insert(id, job);
        self.wait(id, run_at);
    }

    /// A row of a script's: nothing is filled in before a runner looks at it.
    pub fn insert_plain(&mut self, id: i64, kind: &'static Kind, new: &New, is_broken: bool) {
        let mut job = blank(id, kind, new);
        job.run_at = new.run_at.map_or(0, |at| at.timestamp_millis());
        job.content = job.content.filter(|_| !is_broken);
        self.jobs.insert(id, job);
    }

    // ---- claim

    /// What a script has left out is filled in at the first look.
    pub fn look_at(&mut self, id: i64) {
        let now = self.now;
        let job = self.edit(id);
        if job.created_at == 0 {
            job.created_at = now;
        }
    }

    /// A runner looks through the file: what is due is let in, and what a script left out is filled in.
    pub fn let_in(&mut self) {
        let now = self.now;
        let due = |job: &&Job| job.state == State::Waiting(Gate::Later) && job.lease.is_none() && job.run_at <= now;
        let due: Vec<i64> = self.jobs.values().filter(due).map(|job| job.id).collect();
        for id in due {
            self.look_at(id);
            let run_at = self.jobs[&id].run_at;
            self.wait(id, if run_at == 0 { now } else { run_at });
        }
    }

    pub fn is_superseded(&self, job: &Job) -> bool {
        let newest = job.line.as_ref().and_then(|line| self.newest.get(line));
        !job.for_callers && newest.zip(job.version).is_some_and(|(newest, version)| version < *newest)
    }

    /// The head of a line is older than what is done: it is called off, with all of its line that are as old. Answers who
    /// may run now.
    pub fn supersede(&mut self, head: i64) -> Result<BTreeSet<i64>, String> {
        let job = self.job(head)?;
        if !job.is_claimable() || !self.is_superseded(job) {
            return Err(format!("job {head} was called off as superseded, and is not: {job:?}"));
        }
        let line = job.line.clone();
        let old = |job: &&Job| job.line == line && job.word() == "waiting" && self.is_superseded(job);
        let old: Vec<i64> = self.jobs.values().filter(old).map(|job| job.id).collect();
        for id in &old {
            let now = self.now;
            let job = self.edit(*id);
            (job.state, job.finished_at) = (State::Cancelled, Some(now));
            (job.class, job.suspect) = (Some("superseded"), None);
        }
        self.move_up(head);
        Ok(line.and_then(|line| self.head(&line)).into_iter().collect())
    }

    pub fn claim(&mut self, id: i64, runner: i64, token: i64, is_turn: bool) -> Result<(), String> {
        let now = self.now;
        let job = self.job(id)?;
        if !job.is_claimable() || self.is_superseded(job) {
            return Err(format!("job {id} was claimed and may not be: {job:?}"));
        }
        if token <= job.claims {
            return Err(format!("job {id} was claimed with token {token}, which does not rise: {job:?}"));
        }
        let job = self.edit(id);
        let (attempt, was_suspect) = (job.attempts + 1, job.is_suspect());
        if was_suspect {
            job.attempts = attempt;
        }
        if job.line.is_some() {
            job.holds_key = !job.kind.passed_over;
        }
        job.lease =
            Some(Lease { runner, token, attempt, since: now, was_suspect, is_turn, is_started: false, cancel: false });
        Ok(())
    }

    /// `once` runs its own, whatever the time that it waits for.
    pub fn claim_for_caller(&mut self, id: i64, token: i64) -> Result<(), String> {
        let before = self.edit(id).state.clone();
        let gate = if self.jobs[&id].suspect.is_some() { Gate::Suspect } else { Gate::Open };
        self.edit(id).state = State::Waiting(gate);
        self.claim(id, 0, token, false)?;
        self.edit(id).state = before;
        Ok(())
    }

    pub fn leases_of(&self, runner: i64) -> impl Iterator<Item = (&Job, &Lease)> {
        let held = self.jobs.values().filter_map(|job| Some((job, job.lease.as_ref()?)));
        held.filter(move |(_, lease)| lease.runner == runner)
    }
}

fn blank(id: i64, kind: &'static Kind, new: &New) -> Job {
    Job {
        id,
        kind,
        key: new.key.clone(),
        content: Some(new.content),
        has_payload: true,
        has_fingerprint: false,
        priority: new.priority.into(),
        run_at: 0,
        line: new.line.clone(),
        version: new.version,
        state: State::Waiting(Gate::Later),
        lease: None,
        attempts: 0,
        claims: 0,
        deadline: None,
        suspect: None,
        result: None,
        class: None,
        created_at: 0,
        finished_at: None,
        for_callers: false,
        holds_key: true,
        one_attempt: false,
        history: Vec::new(),
        deeds: Vec::new(),
        effects: 0,
    }
}
