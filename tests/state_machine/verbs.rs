//! What people do to jobs: for each verb how a history chooses it, what the library is asked, and what it must do. A new
//! verb is an arm in each of the three.

use birkez::{Class, Filter, JobName, Replay, Resolution, State as Word, Store, Which};
use chrono::DateTime;
use fastrand::Rng;

use crate::kinds::KINDS;
use crate::model::{Job, Model, State};

pub const REASONS: [&str; 2] = ["auth", "offline"];
pub const LINES: [&str; 4] = ["a", "b", "c", "d"];

#[derive(Clone, Debug)]
pub enum Verb {
    Resume(&'static str),
    Release,
    ResolveDone,
    ResolveRetry,
    ResolveDead,
    Discard,
    /// To so many milliseconds from now.
    Reschedule(i64),
    PassOver,
    Cancel,
    /// So many milliseconds apart.
    Replay(i64),
}

/// Which jobs, chosen before it is known which there are.
#[derive(Clone, Debug)]
pub enum Target {
    /// The nth job; the number after the last does not exist.
    Id(usize),
    Name(usize),
    /// The nth of those that are in this state.
    Standing(&'static str, usize),
    Filter(Wanted),
}

#[derive(Clone, Debug, Default)]
pub struct Wanted {
    pub state: Option<&'static str>,
    pub kind: Option<&'static str>,
    pub key_prefix: Option<String>,
    pub class: Option<Class>,
    pub line: Option<&'static str>,
    pub attempts: Option<u32>,
}

impl Verb {
    /// A verb, and the state that it is meant for.
    pub fn choose(chance: &mut Rng) -> (Verb, &'static str) {
        match chance.u8(..22) {
            0 => (Verb::Resume(REASONS[chance.usize(..2)]), "parked"),
            1..3 => (Verb::Release, "parked"),
            3 => (Verb::ResolveDone, "parked"),
            4 => (Verb::ResolveRetry, "parked"),
            5 => (Verb::ResolveDead, "parked"),
            6..9 => (Verb::Discard, "dead"),
            9..12 => (Verb::Reschedule(chance.i64(-30_000..120_000)), "waiting"),
            12..14 => (Verb::PassOver, "dead"),
            14..17 => (Verb::Cancel, ["waiting", "running", "running", "parked"][chance.usize(..4)]),
            _ => (
                Verb::Replay([0, 0, 1_000, 60_000][chance.usize(..4)]),
                ["dead", "dead", "cancelled"][chance.usize(..3)],
            ),
        }
    }

    /// Whether it takes a filter.
    pub fn is_for_many(&self) -> bool {
        !matches!(self, Verb::ResolveDone | Verb::ResolveRetry | Verb::ResolveDead | Verb::PassOver | Verb::Resume(_))
    }

    /// As it stands in the record.
    pub fn word(&self) -> &'static str {
        match self {
            Verb::Resume(_) | Verb::Release => "resume",
            Verb::ResolveDone | Verb::ResolveRetry | Verb::ResolveDead => "resolve",
            Verb::Discard => "discard",
            Verb::Reschedule(_) => "reschedule",
            Verb::PassOver => "pass over",
            Verb::Cancel => "cancel",
            Verb::Replay(_) => "replay",
        }
    }

    /// What the library answers: how many jobs, or the code of its refusal.
    pub fn ask(&self, store: &Store, which: Which, now: i64) -> Result<usize, &'static str> {
        let id = if let Which::Id(id) = which { id } else { 0 };
        let who = "the history";
        let one = |()| 1;
        let answer = match self {
            Verb::Resume(reason) => store.resume(reason, who),
            Verb::Release => store.release(which, who),
            Verb::ResolveDone => store.resolve(id, Resolution::Done(7.into()), who).map(one),
            Verb::ResolveRetry => store.resolve(id, Resolution::Retry, who).map(one),
            Verb::ResolveDead => store.resolve(id, Resolution::Dead, who).map(one),
            Verb::Discard => store.discard(which, who),
            Verb::Reschedule(from_now) => {
                store.reschedule(which, DateTime::from_timestamp_millis(now + from_now).unwrap(), who)
            }
            Verb::PassOver => store.pass_over(id, who).map(usize::from),
            Verb::Cancel => store.cancel(which, who).map(|all| all.len()),
            Verb::Replay(apart) => {
                let how = Replay::new().everything();
                let how = if *apart > 0 { how.per_minute((60_000 / apart) as u32) } else { how };
                store.replay(which, how, who).map(|report| report.replayed.len())
            }
        };
        answer.map_err(|error| error.code())
    }

    /// What must become of one job: false if the verb does not apply to it as it stands.
    /// `nth` is how many it has changed before.
    fn rule(&self, model: &mut Model, id: i64, nth: usize) -> Result<bool, &'static str> {
        let now = model.now;
        let job = model.jobs[&id].clone();
        let is_unknown = job.state == State::Parked("unknown_outcome".into());
        let is_parked = matches!(job.state, State::Parked(_));
        match self {
            Verb::Resume(_) | Verb::Release if !is_parked => return Ok(false),
            Verb::Resume(_) | Verb::Release if is_unknown => return Err("MUST_RESOLVE"),
            Verb::Resume(_) | Verb::Release => {
                model.edit(id).deadline = None;
                model.wait(id, now);
            }
            Verb::ResolveDone | Verb::ResolveRetry | Verb::ResolveDead if !is_parked => return Ok(false),
            Verb::ResolveDone | Verb::ResolveRetry | Verb::ResolveDead => {
                let job = model.edit(id);
                (job.run_at, job.deadline) = (now, None);
                match self {
                    Verb::ResolveDone => {
                        job.result = Some("7".into());
                        model.finish(id, State::Done);
                    }
                    Verb::ResolveDead => model.finish(id, State::Dead),
                    _ => {
                        job.attempts = 0;
                        model.wait(id, now);
                    }
                }
            }
            Verb::Discard if job.state != State::Dead => return Ok(false),
            Verb::Discard => {
                model.edit(id).has_payload = false;
                model.finish(id, State::Cancelled);
            }
            Verb::Reschedule(_) if job.word() != "waiting" || job.for_callers => return Ok(false),
            Verb::Reschedule(from_now) => {
                model.look_at(id);
                model.wait(id, (now + from_now).max(1));
            }
            Verb::PassOver if job.state != State::Dead || !job.is_in_line() => return Ok(false),
            Verb::PassOver => {
                model.edit(id).holds_key = false;
                model.move_up(id);
            }
            Verb::Cancel if is_unknown => return Err("MUST_RESOLVE"),
            Verb::Cancel => match model.edit(id).lease.as_mut() {
                Some(lease) if lease.cancel => return Ok(false),
                // It is asked to stop.
                Some(lease) => lease.cancel = true,
                None if !is_parked && job.word() != "waiting" => return Ok(false),
                None => {
                    model.edit(id).suspect = None;
                    model.finish(id, State::Cancelled);
                }
            },
            Verb::Replay(_) if !matches!(job.state, State::Dead | State::Cancelled) => return Ok(false),
            Verb::Replay(_) if !job.has_payload => return Err("ITS_PAYLOAD_IS_GONE"),
            Verb::Replay(apart) => {
                let job = model.edit(id);
                (job.attempts, job.deadline, job.suspect, job.finished_at) = (0, None, None, None);
                (job.result, job.one_attempt) = (None, false);
                model.wait(id, now + nth as i64 * apart);
                model.edit(id).holds_key = true;
            }
        }
        Ok(true)
    }

    /// Does it to the model; answers what the library must have answered.
    pub fn expect(&self, model: &mut Model, target: &Target) -> Result<usize, &'static str> {
        let wanted = match target {
            Target::Filter(wanted) if matches!(self, Verb::Replay(_)) => match wanted.state {
                None => &Target::Filter(Wanted { state: Some("dead"), ..wanted.clone() }),
                Some("dead" | "cancelled") => target,
                Some(_) => return Err("REPLAY_REFUSED"),
            },
            _ => target,
        };
        let target = wanted;
        let parked = |reason: &str| State::Parked(reason.to_owned());
        let ids: Vec<i64> = match (self, target) {
            (Verb::Resume(reason), _) => {
                model.jobs.values().filter(|job| job.state == parked(reason)).map(|job| job.id).collect()
            }
            (_, Target::Filter(wanted)) => {
                model.jobs.values().filter(|job| wanted.means(job)).map(|job| job.id).collect()
            }
            _ => vec![target.id(model)],
        };
        let is_named = !matches!((self, target), (Verb::Resume(_), _) | (_, Target::Filter(_)));
        if is_named && !model.jobs.contains_key(&ids[0]) {
            return Err("NO_SUCH_JOB");
        }
        let mut changed = 0;
        for id in ids {
            let before = model.jobs[&id].clone();
            // One that has moved out of the filter before its turn is not touched.
            if let (Target::Filter(wanted), true) = (target, self.is_for_many())
                && !wanted.means(&before)
            {
                continue;
            }
            match self.rule(model, id, changed) {
                Ok(true) => {
                    let touched = (self.word(), before.number(), before.class, before.attempts);
                    model.edit(id).deeds.push(touched);
                    changed += 1;
                }
                // It says so in its report.
                Err("ITS_PAYLOAD_IS_GONE") if is_named => return Ok(0),
                Err(code) if is_named => return Err(code),
                Ok(false) | Err(_) => {}
            }
        }
        model.deeds += usize::from(changed > 0);
        match (changed, self) {
            (0, Verb::PassOver) => Ok(0),
            (0, _) if is_named => Err("WRONG_STATE"),
            _ => Ok(changed),
        }
    }
}

impl Target {
    pub fn choose(verb: &Verb, state: &'static str, chance: &mut Rng) -> Target {
        let nth = chance.usize(..1_000);
        match chance.u8(..10) {
            0 => Target::Id(nth),
            1 if verb.is_for_many() => Target::Name(nth),
            2..5 if verb.is_for_many() => Target::Filter(Wanted::choose(state, chance)),
            _ => Target::Standing(state, nth),
        }
    }

    /// The number of the one job that is meant.
    pub fn id(&self, model: &Model) -> i64 {
        let nobody = model.jobs.keys().last().map_or(1, |last| last + 1);
        let nth = |ids: Vec<i64>, nth: &usize| if ids.is_empty() { nobody } else { ids[nth % ids.len()] };
        match self {
            Target::Id(n) | Target::Name(n) => nth(model.jobs.keys().copied().chain([nobody]).collect(), n),
            Target::Standing(state, n) => {
                nth(model.jobs.values().filter(|job| job.word() == *state).map(|job| job.id).collect(), n)
            }
            Target::Filter(_) => nobody,
        }
    }

    pub fn which(&self, model: &Model) -> Which {
        let id = self.id(model);
        match (self, model.jobs.get(&id)) {
            (Target::Filter(wanted), _) => wanted.filter().into(),
            (Target::Name(_), Some(job)) => JobName::new(job.kind.name, &*job.key).into(),
            (Target::Name(_), None) => JobName::new("plain", "nobody").into(),
            _ => id.into(),
        }
    }
}

impl Wanted {
    fn choose(state: &'static str, chance: &mut Rng) -> Wanted {
        let classes = [Class::Transient, Class::Permanent, Class::Panic, Class::Crashed, Class::UnknownOutcome];
        let mut wanted = Wanted { state: (chance.u8(..3) > 0).then_some(state), ..Wanted::default() };
        match chance.u8(..6) {
            0 => wanted.kind = Some(KINDS[chance.usize(..KINDS.len())].name),
            1 => wanted.key_prefix = Some(chance.u8(..10).to_string()),
            2 => wanted.class = Some(classes[chance.usize(..classes.len())]),
            3 => wanted.line = Some(LINES[chance.usize(..LINES.len())]),
            4 => wanted.attempts = Some(chance.u32(..3)),
            _ => {}
        }
        wanted
    }

    fn filter(&self) -> Filter {
        let word = |word| match word {
            "waiting" => Word::Waiting,
            "running" => Word::Running,
            "parked" => Word::Parked,
            "dead" => Word::Dead,
            "cancelled" => Word::Cancelled,
            _ => Word::Done,
        };
        let filter = self.state.map_or(Filter::all(), |state| Filter::state(word(state)));
        let filter = self.kind.into_iter().fold(filter, Filter::kind);
        let filter = self.key_prefix.iter().fold(filter, |filter, prefix| filter.key_prefix(prefix));
        let filter = self.class.into_iter().fold(filter, Filter::class);
        let filter = self.line.into_iter().fold(filter, Filter::ordering_key);
        self.attempts.into_iter().fold(filter, Filter::at_least_attempts)
    }

    fn means(&self, job: &Job) -> bool {
        self.state.is_none_or(|state| job.word() == state)
            && self.kind.is_none_or(|kind| job.kind.name == kind)
            && self.key_prefix.as_ref().is_none_or(|prefix| job.key.starts_with(prefix))
            && self.class.is_none_or(|class| job.class == Some(class.as_str()))
            && self.line.is_none_or(|line| job.line.as_deref() == Some(line))
            && self.attempts.is_none_or(|attempts| job.attempts >= attempts)
    }
}
