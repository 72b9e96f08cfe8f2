//! Which jobs are meant.

use std::fmt;

use chrono::{DateTime, Utc};
use rusqlite::types::Value;

use crate::failure::Class;
use crate::sql;
use crate::state::State;

/// Which jobs are meant: those to which everything that is said here applies. Without a word, all.
///
/// ```
/// use birkez::{Class, Filter};
/// let filter = Filter::dead().kind("mail").class(Class::Transient).error_contains("no route");
/// ```
#[derive(Clone, Debug, Default, PartialEq)]
#[must_use]
pub struct Filter {
    state: Option<State>,
    kinds: Vec<String>,
    key_prefix: Option<String>,
    class: Option<Class>,
    error: Option<String>,
    parked_for: Option<String>,
    queue: Option<String>,
    ordering_key: Option<String>,
    deed: Option<i64>,
    least_attempts: Option<u32>,
    created: [Option<DateTime<Utc>>; 2],
    finished: [Option<DateTime<Utc>>; 2],
}

impl Filter {
    /// All jobs.
    pub fn all() -> Filter {
        Filter::default()
    }

    /// Jobs in one state.
    pub fn state(state: State) -> Filter {
        Filter { state: Some(state), ..Filter::default() }
    }

    /// Dead letters.
    pub fn dead() -> Filter {
        Filter::state(State::Dead)
    }

    /// Jobs parked for one reason.
    pub fn parked_for(reason: impl Into<String>) -> Filter {
        Filter { parked_for: Some(reason.into()), ..Filter::state(State::Parked) }
    }

    /// Of this kind. Said more than once: of any of them.
    pub fn kind(mut self, kind: impl Into<String>) -> Filter {
        self.kinds.push(kind.into());
        self
    }

    /// Of a kind of this queue. A kind that no runner has handled yet counts as of the queue `default`.
    pub fn queue(mut self, queue: impl Into<String>) -> Filter {
        self.queue = Some(queue.into());
        self
    }

    /// With a key that begins so, byte by byte.
    pub fn key_prefix(mut self, prefix: impl Into<String>) -> Filter {
        self.key_prefix = Some(prefix.into());
        self
    }

    /// Whose last failure has this class.
    pub fn class(mut self, class: Class) -> Filter {
        self.class = Some(class);
        self
    }

    /// Whose last failure's text contains this, whatever the case of its ASCII letters.
    pub fn error_contains(mut self, text: impl Into<String>) -> Filter {
        self.error = Some(text.into());
        self
    }

    /// Of this ordering key.
    pub fn ordering_key(mut self, key: impl Into<String>) -> Filter {
        self.ordering_key = Some(key.into());
        self
    }

    /// Touched by the deed with this number ([`DeedInfo`](crate::DeedInfo)): by a replay, say, that is to be called off.
    pub fn touched_by(mut self, deed: i64) -> Filter {
        self.deed = Some(deed);
        self
    }

    /// With at least so many attempts charged.
    pub fn at_least_attempts(mut self, attempts: u32) -> Filter {
        self.least_attempts = Some(attempts);
        self
    }

    /// Enqueued at `from` or later, and before `until`.
    pub fn created(mut self, from: Option<DateTime<Utc>>, until: Option<DateTime<Utc>>) -> Filter {
        self.created = [from, until];
        self
    }

    /// Come to their end at `from` or later, and before `until`.
    pub fn finished(mut self, from: Option<DateTime<Utc>>, until: Option<DateTime<Utc>>) -> Filter {
        self.finished = [from, until];
        self
    }

    /// The state that it names.
    pub(crate) fn meant_state(&self) -> Option<State> {
        self.state
    }

    /// Names `state`, unless it names one.
    pub(crate) fn or_state(self, state: State) -> Filter {
        Filter { state: self.state.or(Some(state)), ..self }
    }

    /// Whether it leaves out nothing but by state.
    pub(crate) fn names_only_state(&self) -> bool {
        // An empty text, such as of a field that nobody has filled in, leaves out nothing.
        let said = |text: &Option<String>| text.clone().filter(|text| !text.is_empty());
        let rest = Filter {
            state: None,
            key_prefix: said(&self.key_prefix),
            error: said(&self.error),
            least_attempts: self.least_attempts.filter(|attempts| *attempts > 0),
            ..self.clone()
        };
        rest == Filter::default()
    }

    /// The condition, for a table `job` joined with `lease`, and the values of its parameters.
    pub(crate) fn condition(&self) -> (String, Vec<Value>) {
        let mut terms = Terms::default();
        if let Some(state) = self.state {
            terms.state(state);
        }
        if !self.kinds.is_empty() {
            let places: Vec<_> = self.kinds.iter().map(|kind| terms.bind(kind.clone())).collect();
            terms.add(format!("job.kind IN ({})", places.join(", ")));
        }
        if let Some(prefix) = &self.key_prefix {
            let place = terms.bind(prefix.clone());
            // A prefix is no pattern.
            terms.add(format!("substr(job.key, 1, length({place})) = {place}"));
        }
        if let Some(text) = &self.error {
            let place = terms.bind(text.to_ascii_lowercase());
            terms.add(format!("instr(lower(job.error_text), {place}) > 0"));
        }
        if let Some(queue) = &self.queue {
            let place = terms.bind(queue.clone());
            terms.add(format!("{} = {place}", sql::QUEUE_OF_JOB));
        }
        if let Some(deed) = self.deed {
            let place = terms.bind(deed);
            terms.add(format!("job.id IN (SELECT job_id FROM main.birkez_event_job WHERE event = {place})"));
        }
        terms.equal("job.error_class", self.class.map(|class| class.as_str().to_owned()));
        terms.equal("job.reason", self.parked_for.clone());
        terms.equal("job.ordering_key", self.ordering_key.clone());
        terms.compare("job.attempts >=", self.least_attempts.map(i64::from));
        let [from, until] = self.created.map(|at| at.map(|at| at.timestamp_millis()));
        terms.compare("job.created_at >=", from);
        terms.compare("job.created_at <", until);
        let [from, until] = self.finished.map(|at| at.map(|at| at.timestamp_millis()));
        terms.compare("job.finished_at >=", from);
        terms.compare("job.finished_at <", until);
        (terms.text.join(" AND "), terms.values)
    }
}

/// In words, as it stands in the record of deeds.
impl fmt::Display for Filter {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut words = Vec::new();
        words.extend(self.state.map(|state| state.to_string()));
        words.extend((!self.kinds.is_empty()).then(|| format!("kind {}", self.kinds.join(" or "))));
        let mut say = |word: &str, value: Option<String>| words.extend(value.map(|value| format!("{word} {value}")));
        say("key from", self.key_prefix.clone());
        say("queue", self.queue.clone());
        say("touched by deed", self.deed.map(|deed| deed.to_string()));
        say("class", self.class.map(|class| class.to_string()));
        say("error with", self.error.clone());
        say("parked for", self.parked_for.clone());
        say("ordering key", self.ordering_key.clone());
        say("attempts at least", self.least_attempts.map(|attempts| attempts.to_string()));
        let time = |at: Option<DateTime<Utc>>| at.map(|at| at.to_rfc3339());
        say("enqueued from", time(self.created[0]));
        say("enqueued before", time(self.created[1]));
        say("ended from", time(self.finished[0]));
        say("ended before", time(self.finished[1]));
        if words.is_empty() { f.write_str("all jobs") } else { f.write_str(&words.join(", ")) }
    }
}

#[derive(Default)]
struct Terms {
    text: Vec<String>,
    values: Vec<Value>,
}

impl Terms {
    fn add(&mut self, term: String) {
        self.text.push(term);
    }

    /// The place of a parameter with this value.
    fn bind(&mut self, value: impl Into<Value>) -> String {
        self.values.push(value.into());
        format!("?{}", self.values.len())
    }

    fn equal(&mut self, column: &str, value: Option<String>) {
        if let Some(value) = value {
            let place = self.bind(value);
            self.add(format!("{column} = {place}"));
        }
    }

    fn compare(&mut self, left: &str, value: Option<i64>) {
        if let Some(value) = value {
            let place = self.bind(value);
            self.add(format!("{left} {place}"));
        }
    }

    /// Literals: a partial index serves no parameter.
    fn state(&mut self, state: State) {
        let term = match state {
            State::Waiting => "job.state = 0 AND lease.job_id IS NULL",
            State::Running => "job.state = 0 AND lease.job_id IS NOT NULL",
            State::Parked => "job.state = 1",
            State::Done => "job.state = 2",
            State::Dead => "job.state = 3",
            State::Cancelled => "job.state = 4",
        };
        self.add(term.to_owned());
    }
}
