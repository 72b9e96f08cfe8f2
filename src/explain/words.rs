//! What a user of an app is told of a job: one of a few words, in the user's language.

use chrono::{DateTime, Datelike, TimeZone};

use super::Explanation;
use crate::state::State;
use crate::store::JobInfo;

/// The words for end users, who know nothing of queues: *processing · completed · will be retried at T · waiting for its
/// turn · needs attention · cancelled*, and *handed to support* once the app has said so
/// ([`Store::hand_to_support`](crate::Store::hand_to_support)).
///
/// Never *completed* before the commit: the state is the file's.
///
/// ```
/// # use birkez::{Job, Words};
/// # #[derive(serde::Serialize, serde::Deserialize)]
/// # struct Mail { to: String }
/// # impl Job for Mail {
/// #     const KIND: &'static str = "mail";
/// #     type Output = ();
/// #     fn key(&self) -> String { self.to.clone() }
/// # }
/// # fn main() -> anyhow::Result<()> {
/// # let folder = birkez::testing::TempStore::new()?;
/// # let store = folder.open()?;
/// # let mail = store.enqueue(&Mail { to: "a@b.c".into() })?;
/// let job = store.job(mail.id)?.unwrap();
/// // The time tells the zone that the user lives in.
/// assert_eq!(job.words(Words::English, &chrono::Local::now()), "waiting for its turn");
/// assert_eq!(job.words(Words::Turkish, &chrono::Local::now()), "sırasını bekliyor");
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum Words {
    /// English.
    #[default]
    English,
    /// Turkish.
    Turkish,
}

/// What there is to say.
enum Word<Tz: TimeZone> {
    Processing,
    Completed,
    Retried(DateTime<Tz>),
    Waiting,
    Attention,
    Handed,
    Cancelled,
}

const MONTHS: [&str; 12] =
    ["Ocak", "Şubat", "Mart", "Nisan", "Mayıs", "Haziran", "Temmuz", "Ağustos", "Eylül", "Ekim", "Kasım", "Aralık"];

impl JobInfo {
    /// The job in the words for end users, as of `now`. Times are shown in the zone of `now`, with the date where it is
    /// another day.
    pub fn words<Tz: TimeZone>(&self, words: Words, now: &DateTime<Tz>) -> String {
        let word = match self.state {
            State::Running => Word::Processing,
            State::Done => Word::Completed,
            State::Cancelled => Word::Cancelled,
            State::Dead | State::Parked if self.handed_to_support.is_some() => Word::Handed,
            State::Dead | State::Parked => Word::Attention,
            // A time alone is no retry: it may be its sender's.
            State::Waiting if self.last_failure.is_some() && self.run_at > *now => {
                Word::Retried(self.run_at.with_timezone(&now.timezone()))
            }
            State::Waiting => Word::Waiting,
        };
        match words {
            Words::English => english(&word, now),
            Words::Turkish => turkish(&word, now),
        }
    }
}

impl Explanation {
    /// Its job in the words for end users; see [`JobInfo::words`].
    pub fn words<Tz: TimeZone>(&self, words: Words, now: &DateTime<Tz>) -> String {
        self.job.words(words, now)
    }
}

fn english<Tz: TimeZone>(word: &Word<Tz>, now: &DateTime<Tz>) -> String {
    match word {
        Word::Processing => "processing".to_owned(),
        Word::Completed => "completed".to_owned(),
        Word::Retried(at) => {
            let local = at.naive_local();
            let date = match same_day(at, now) {
                true => String::new(),
                false => format!(" on {}", local.format("%-d %B %Y")),
            };
            format!("will be retried at {}{date}", local.format("%H:%M"))
        }
        Word::Waiting => "waiting for its turn".to_owned(),
        Word::Attention => "needs attention".to_owned(),
        Word::Handed => "handed to support".to_owned(),
        Word::Cancelled => "cancelled".to_owned(),
    }
}

fn turkish<Tz: TimeZone>(word: &Word<Tz>, now: &DateTime<Tz>) -> String {
    match word {
        Word::Processing => "işleniyor".to_owned(),
        Word::Completed => "tamamlandı".to_owned(),
        Word::Retried(at) => {
            let local = at.naive_local();
            let date = match same_day(at, now) {
                true => String::new(),
                false => format!("{} {} {}, ", local.day(), MONTHS[local.month0() as usize], local.year()),
            };
            format!("{date}{} saatinde yeniden denenecek", local.format("%H:%M"))
        }
        Word::Waiting => "sırasını bekliyor".to_owned(),
        Word::Attention => "ilgilenilmesi gerekiyor".to_owned(),
        Word::Handed => "desteğe iletildi".to_owned(),
        Word::Cancelled => "iptal edildi".to_owned(),
    }
}

fn same_day<Tz: TimeZone>(at: &DateTime<Tz>, now: &DateTime<Tz>) -> bool {
    at.naive_local().date() == now.naive_local().date()
}
