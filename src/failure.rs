//! How an attempt that did not end well is classed, and how a handler picks the class.

use std::any::Any;
use std::borrow::Cow;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use serde::{Deserialize, Serialize};

/// Most of an error's text that is kept, in bytes.
const MAX_TEXT: usize = 4096;

/// Class of a failure.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum Class {
    /// May go away by itself: retried with backoff. The default for an error.
    Transient,
    /// Will not go away: dead at once.
    Permanent,
    /// Waits for a person or a signal; costs no attempt.
    Parked,
    /// Took longer than its kind allows.
    Timeout,
    /// The handler panicked.
    Panic,
    /// Its process died.
    Crashed,
    /// Stopped before its end by a shutdown; costs no attempt.
    Interrupted,
    /// The payload does not decode as the kind's type.
    Undecodable,
    /// Failed after its total time had run out.
    Deadline,
    /// Ended in the middle of what must not be repeated, and nobody knows how far it came.
    UnknownOutcome,
    /// Older than what has been completed already.
    Superseded,
}

impl Class {
    pub(crate) const ALL: [Class; 11] = [
        Class::Transient,
        Class::Permanent,
        Class::Parked,
        Class::Timeout,
        Class::Panic,
        Class::Crashed,
        Class::Interrupted,
        Class::Undecodable,
        Class::Deadline,
        Class::UnknownOutcome,
        Class::Superseded,
    ];

    /// The word in the file and in messages.
    pub fn as_str(self) -> &'static str {
        match self {
            Class::Transient => "transient",
            Class::Permanent => "permanent",
            Class::Parked => "parked",
            Class::Timeout => "timeout",
            Class::Panic => "panic",
            Class::Crashed => "crashed",
            Class::Interrupted => "interrupted",
            Class::Undecodable => "undecodable",
            Class::Deadline => "deadline",
            Class::UnknownOutcome => "unknown_outcome",
            Class::Superseded => "superseded",
        }
    }

    /// The class of a stored word; one written by a newer program counts as transient.
    pub(crate) fn stored(word: &str) -> Class {
        Class::ALL.into_iter().find(|class| class.as_str() == word).unwrap_or(Class::Transient)
    }
}

impl fmt::Display for Class {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What a handler wants to come of its error.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Verdict {
    /// The handler has said nothing: transient, unless the job may run at most once.
    Unsaid,
    /// Retry with backoff.
    Transient,
    /// Give up.
    Permanent,
    /// Wait for a signal with this name.
    Park(String),
    /// Retry, not sooner than this, uncharged.
    RetryAfter(Duration),
    /// Not a failure: run again after this, uncharged.
    Snooze(Duration),
}

/// An error with a verdict attached. It keeps its place in an `anyhow` chain, under any further context.
#[derive(Debug)]
struct Judged {
    verdict: Verdict,
    error: anyhow::Error,
}

impl fmt::Display for Judged {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.error, f)
    }
}

impl std::error::Error for Judged {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        self.error.source()
    }
}

/// Picks the class of a handler's error. Without it an error is [`Class::Transient`], or, of a kind that runs
/// [at most once](crate::Job::AT_MOST_ONCE), [`Class::UnknownOutcome`].
///
/// ```
/// use birkez::Verdicts;
/// use std::time::Duration;
///
/// fn charge(status: u16) -> anyhow::Result<()> {
///     let refused: Result<(), std::fmt::Error> = Err(std::fmt::Error);
///     match status {
///         401 => refused.park("auth:bank"),
///         404 => refused.permanent(),
///         429 => refused.retry_after(Duration::from_secs(30)),
///         _ => Ok(refused?),
///     }
/// }
/// assert!(charge(404).is_err());
/// ```
pub trait Verdicts<T> {
    /// It may go away by itself: retried with backoff. Said aloud, it is believed of a kind that runs at most once too:
    /// nothing has happened outside yet. `.transient().retry_after(delay)` says both.
    ///
    /// # Errors
    ///
    /// The error it was called on.
    fn transient(self) -> anyhow::Result<T>;

    /// It will not go away: the job is dead at once.
    ///
    /// # Errors
    ///
    /// The error it was called on.
    fn permanent(self) -> anyhow::Result<T>;

    /// The job waits until a person or the app resumes `reason`. Costs no attempt.
    ///
    /// # Errors
    ///
    /// The error it was called on.
    fn park(self, reason: impl Into<String>) -> anyhow::Result<T>;

    /// Retry, but not sooner than after `delay`. Jitter only adds to it. Costs no attempt; the total time still counts. By
    /// itself it does not make a kind that runs at most once run again: whoever asked for the wait may have done it.
    ///
    /// # Errors
    ///
    /// The error it was called on.
    fn retry_after(self, delay: Duration) -> anyhow::Result<T>;
}

impl<T, E: Into<anyhow::Error>> Verdicts<T> for Result<T, E> {
    fn transient(self) -> anyhow::Result<T> {
        self.map_err(|error| judged(Verdict::Transient, error.into()))
    }

    fn permanent(self) -> anyhow::Result<T> {
        self.map_err(|error| judged(Verdict::Permanent, error.into()))
    }

    fn park(self, reason: impl Into<String>) -> anyhow::Result<T> {
        self.map_err(|error| judged(Verdict::Park(safe_text(&reason.into()).into_owned()), error.into()))
    }

    fn retry_after(self, delay: Duration) -> anyhow::Result<T> {
        self.map_err(|error| judged(Verdict::RetryAfter(delay), error.into()))
    }
}

/// An error that is no failure: "run me again in `delay`". Return it from a handler. It costs no attempt, and the time is
/// not counted into the job's total.
///
/// ```
/// # fn ready() -> bool { false }
/// fn poll() -> anyhow::Result<()> {
///     if !ready() {
///         return Err(birkez::snooze(std::time::Duration::from_secs(30)));
///     }
///     Ok(())
/// }
/// # assert!(poll().is_err());
/// ```
pub fn snooze(delay: Duration) -> anyhow::Error {
    judged(Verdict::Snooze(delay), anyhow::anyhow!("asked to run again later"))
}

fn judged(verdict: Verdict, error: anyhow::Error) -> anyhow::Error {
    anyhow::Error::new(Judged { verdict, error })
}

/// The verdict that the handler attached, at whatever depth; the outermost counts.
pub(crate) fn verdict_of(error: &anyhow::Error) -> Verdict {
    let found = error.chain().find_map(|link| link.downcast_ref::<Judged>());
    found.or_else(|| error.downcast_ref::<Judged>()).map_or(Verdict::Unsaid, |judged| judged.verdict.clone())
}

/// Whether the handler has said that nothing has happened outside yet, under whatever else it has said.
pub(crate) fn is_untouched(error: &anyhow::Error) -> bool {
    let says = |judged: &Judged| {
        matches!(judged.verdict, Verdict::Transient | Verdict::Snooze(_)) || is_untouched(&judged.error)
    };
    let found = error.chain().filter_map(|link| link.downcast_ref::<Judged>()).any(says);
    found || error.downcast_ref::<Judged>().is_some_and(says)
}

/// The text of an error and its causes, as it may be stored. One whose text panics has that as its text.
pub(crate) fn text_of(error: &anyhow::Error) -> String {
    let text = catch_unwind(AssertUnwindSafe(|| format!("{error:#}")));
    safe_text(&text.unwrap_or_else(panicked)).into_owned()
}

/// What a panic said. Its payload is dropped in safety: that may panic too.
pub(crate) fn panicked(payload: Box<dyn Any + Send>) -> String {
    let text = panic_text(&*payload);
    if let Err(once_more) = catch_unwind(AssertUnwindSafe(|| drop(payload))) {
        std::mem::forget(once_more);
    }
    text
}

/// What a panic said.
pub(crate) fn panic_text(payload: &(dyn Any + Send)) -> String {
    let said = payload
        .downcast_ref::<&str>()
        .copied()
        .or_else(|| payload.downcast_ref::<String>().map(String::as_str))
        .unwrap_or("a panic without text");
    safe_text(said).into_owned()
}

/// Control characters and direction marks are escaped, so that the text cannot reach into a terminal or a page, and the
/// text is cut at 4 KiB with a mark. Line ends and tabs stay.
pub(crate) fn safe_text(text: &str) -> Cow<'_, str> {
    const MARK: &str = "… (cut)";
    let unsafe_char = |c: char| (c.is_control() && c != '\n' && c != '\t') || is_direction_mark(c);
    if text.len() <= MAX_TEXT && !text.contains(unsafe_char) {
        return Cow::Borrowed(text);
    }
    let mut safe = String::with_capacity(text.len().min(MAX_TEXT));
    for c in text.chars() {
        let before = safe.len();
        if unsafe_char(c) {
            safe.extend(c.escape_unicode());
        } else {
            safe.push(c);
        }
        if safe.len() > MAX_TEXT - MARK.len() {
            safe.truncate(before);
            safe.push_str(MARK);
            break;
        }
    }
    Cow::Owned(safe)
}

fn is_direction_mark(c: char) -> bool {
    matches!(c, '\u{200e}' | '\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2066}'..='\u{2069}')
}

#[cfg(test)]
mod tests {
    use anyhow::Context as _;

    use super::*;

    #[test]
    fn a_verdict_survives_any_context_put_around_it() {
        let inner: Result<(), _> = Err(std::fmt::Error);
        let error = inner.context("reading").park("auth:bank").context("syncing").context("job").unwrap_err();
        assert_eq!(verdict_of(&error), Verdict::Park("auth:bank".into()));
        assert_eq!(text_of(&error), "job: syncing: reading: an error occurred when formatting an argument");
    }

    #[test]
    fn an_error_without_a_verdict_has_said_nothing() {
        assert_eq!(verdict_of(&anyhow::anyhow!("no route")), Verdict::Unsaid);
        let said: Result<(), _> = Err(std::fmt::Error);
        let both = said.transient().context("asked to wait").retry_after(Duration::ZERO).context("job").unwrap_err();
        assert!(is_untouched(&both) && matches!(verdict_of(&both), Verdict::RetryAfter(_)));
        let wait: Result<(), _> = Err(std::fmt::Error);
        assert!(!is_untouched(&wait.retry_after(Duration::ZERO).unwrap_err()));
        assert_eq!(verdict_of(&said.transient().unwrap_err()), Verdict::Transient);
    }

    #[test]
    fn stored_text_is_bounded_and_cannot_control_a_terminal() {
        assert_eq!(safe_text("plain\ttext\n"), "plain\ttext\n");
        assert_eq!(safe_text("a\0b\u{1b}[31m\u{202e}"), "a\\u{0}b\\u{1b}[31m\\u{202e}");
        let long = safe_text(&"😀".repeat(2_000_000)).into_owned();
        assert!(long.len() <= MAX_TEXT && long.ends_with("(cut)"), "{}", long.len());
    }

    #[test]
    fn a_class_is_read_back_from_its_word() {
        for class in Class::ALL {
            assert_eq!(Class::stored(class.as_str()), class);
        }
    }
}
