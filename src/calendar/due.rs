//! One occurrence of a calendar: its name, and when it is due.

use chrono::{DateTime, FixedOffset, NaiveDate, NaiveDateTime, Utc};

use super::Mark;

/// One occurrence.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Due {
    /// What the calendar asked for, on the wall clock. For interval jobs: what the clock shows at [`at`](Due::at).
    pub nominal: NaiveDateTime,
    /// The instant it is due. A nominal time that daylight saving skips is due at the jump; one that comes twice, the
    /// first time.
    pub at: DateTime<Utc>,
    /// The zone's offset at that instant.
    pub offset: FixedOffset,
    pub(super) wall: bool,
}

impl Due {
    /// A moment that no calendar asked for: what a person wants to run now.
    pub(crate) fn now(nominal: NaiveDateTime, at: DateTime<Utc>, offset: FixedOffset) -> Due {
        Due { nominal, at, offset, wall: true }
    }

    /// The occurrence's id, unique with its schedule: `2026-03-29T02:30:00` (nominal, without a zone) for wall jobs,
    /// `2026-10-25T00:15:00Z` for interval jobs.
    pub fn occurrence(&self) -> String {
        self.mark().to_string()
    }

    /// The same as a mark: that of a schedule which has been evaluated up to and including this occurrence.
    pub fn mark(&self) -> Mark {
        if self.wall { Mark::Wall(self.nominal) } else { Mark::Interval(self.at) }
    }

    /// The nominal date, which is what business keys are made of: a run that is late still belongs to its own day.
    pub fn date(&self) -> NaiveDate {
        self.nominal.date()
    }

    /// The instant as the zone's clock shows it.
    pub fn local(&self) -> DateTime<FixedOffset> {
        self.at.with_timezone(&self.offset)
    }
}
