//! Telling: what happens is told to the app's callback and to `tracing`, and deaths and misses are told by jobs of their
//! own, which a crash cannot lose.

mod ending;
mod event;
mod notice;
mod once;
mod teller;

pub(crate) use self::ending::{attempt_span, cancelled, died, note_settled, note_taken_back, started};
pub use self::event::{Event, EventJob, Happened};
pub use self::notice::{Death, Missed};
pub(crate) use self::notice::{Notice, missed, register};
pub(crate) use self::once::is_news;
pub(crate) use self::teller::{Callback, Listening, Teller};
