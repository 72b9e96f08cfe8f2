//! What a round of upkeep has done.

use std::fmt;
use std::ops::AddAssign;

use serde::Serialize;

/// What upkeep has done, in rows; answered by [`Store::upkeep`](crate::Store::upkeep) and
/// [`Store::prune`](crate::Store::prune).
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct UpkeepReport {
    /// Jobs whose payload was removed.
    pub payloads: u64,
    /// Jobs whose output, or those of their steps, was removed.
    pub results: u64,
    /// Jobs whose failed attempts and progress were removed.
    pub histories: u64,
    /// Jobs that were removed with their keys.
    pub keys: u64,
    /// Jobs that are old enough to be removed and stay: others wait behind them, what they correct or what corrects
    /// them must stay, or they are the last success of their schedule.
    pub kept_back: u64,
    /// Recorded deeds that were removed.
    pub deeds: u64,
    /// Records of schedules that were removed: what did not run, what was asked, which jobs an occurrence had.
    pub schedules: u64,
    /// Rows of processes that are long gone, and of what they handled.
    pub runners: u64,
    /// Numbers over time.
    pub numbers: u64,
    /// Jobs that were given the present name of their kind.
    pub adopted: u64,
    /// Jobs that were closed since another name of their kind holds the same key.
    pub closed: u64,
    /// Pages of the file that were given back to the system.
    pub pages_given_back: u64,
    /// How many transactions it took.
    pub transactions: u64,
    /// The longest that one of them took, with its commit, in milliseconds.
    pub longest_ms: u64,
    /// How long all took, pauses included, in milliseconds.
    pub took_ms: u64,
    /// The write-ahead log, as it was left.
    pub wal: WalState,
}

/// The write-ahead log of a file.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct WalState {
    /// Its size, in bytes.
    pub bytes: u64,
    /// How many of its pages cannot be taken over into the file, since a reader of an older state has been seen to hold
    /// them: the log grows until that transaction ends. 0: nobody does.
    pub pinned_pages: u64,
}

impl UpkeepReport {
    /// How many rows were changed or removed.
    pub fn rows(&self) -> u64 {
        self.payloads
            + self.results
            + self.histories
            + self.keys
            + self.deeds
            + self.schedules
            + self.runners
            + self.numbers
            + self.adopted
            + self.closed
    }
}

impl AddAssign for UpkeepReport {
    fn add_assign(&mut self, other: UpkeepReport) {
        self.payloads += other.payloads;
        self.results += other.results;
        self.histories += other.histories;
        self.keys += other.keys;
        self.kept_back += other.kept_back;
        self.deeds += other.deeds;
        self.schedules += other.schedules;
        self.runners += other.runners;
        self.numbers += other.numbers;
        self.adopted += other.adopted;
        self.closed += other.closed;
        self.pages_given_back += other.pages_given_back;
        self.transactions += other.transactions;
        self.longest_ms = self.longest_ms.max(other.longest_ms);
        self.took_ms += other.took_ms;
        if other.wal != WalState::default() {
            self.wal = other.wal;
        }
    }
}

impl fmt::Display for UpkeepReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let counts = [
            (self.payloads, "payloads"),
            (self.results, "outputs"),
            (self.histories, "histories"),
            (self.keys, "keys"),
            (self.deeds, "deeds"),
            (self.schedules, "records of schedules"),
            (self.runners, "rows of processes"),
            (self.numbers, "numbers"),
        ];
        let mut said: Vec<_> =
            counts.iter().filter(|(n, _)| *n > 0).map(|(n, what)| format!("{n} {what} removed")).collect();
        let mut say = |n: u64, text: &str| said.extend((n > 0).then(|| format!("{n} {text}")));
        say(self.kept_back, "old jobs kept for others");
        say(self.adopted, "jobs renamed");
        say(self.closed, "doubles closed");
        say(self.pages_given_back, "pages given back");
        if self.wal.pinned_pages > 0 {
            let (bytes, pages) = (self.wal.bytes, self.wal.pinned_pages);
            said.push(format!("a reader pins {pages} pages of the write-ahead log ({bytes} bytes)"));
        }
        if said.is_empty() {
            said.push("nothing to do".to_owned());
        }
        write!(f, "{} ({} transactions, {} ms)", said.join(", "), self.transactions, self.took_ms)
    }
}
