//! Who rides along in the transactions of a pen.

use std::path::PathBuf;
use std::sync::{Mutex, PoisonError, Weak};

use super::{Group, Pen, STORED};
use crate::fault::StorageFault;

/// What rides along in every transaction, and is told of the outcome.
pub(crate) trait Rider: Send + Sync {
    /// After BEGIN, before any operation.
    fn open(&self, group: &mut Group<'_>) -> rusqlite::Result<()> {
        let _ = group;
        Ok(())
    }

    /// After all operations, before COMMIT.
    fn close(&self, group: &mut Group<'_>) -> rusqlite::Result<()> {
        let _ = group;
        Ok(())
    }

    /// A transaction that is not the pen's will store a job under this number, if it commits.
    fn expect(&self, job: i64) {
        let _ = job;
    }

    /// Something else than a job waits to be written.
    fn wake(&self) {}

    /// The transaction has changed something, and is committed.
    fn stored(&self) {}

    /// After the transaction, or the failure to begin one, and before anybody is answered.
    fn committed(&self, outcome: Result<(), &StorageFault>);
}

/// All riders of this process, by file: a program may open a file more than once.
static RIDERS: Mutex<Vec<(PathBuf, Weak<dyn Rider>)>> = Mutex::new(Vec::new());

impl Pen {
    /// From now on `rider` is in every transaction, for as long as it lives.
    pub(crate) fn attach(&self, rider: Weak<dyn Rider>) {
        let mut riders = self.riders.write().unwrap_or_else(PoisonError::into_inner);
        riders.retain(|rider| rider.strong_count() > 0);
        riders.push(Weak::clone(&rider));
        let mut all = RIDERS.lock().unwrap_or_else(PoisonError::into_inner);
        all.retain(|(_, rider)| rider.strong_count() > 0);
        all.push((self.path().clone(), rider));
    }

    /// A job was stored in a transaction that is open: in a closure's, whose commit tells everybody by itself, or in one of
    /// the host's.
    pub(crate) fn expect(&self, job: i64, run_at: i64) {
        if self.is_held_here() {
            STORED.set(Some(STORED.get().map_or(run_at, |known| known.min(run_at))));
            return;
        }
        let all = RIDERS.lock().unwrap_or_else(PoisonError::into_inner);
        let here: Vec<_> = all.iter().filter(|(path, _)| path == self.path()).cloned().collect();
        drop(all);
        for rider in here.iter().filter_map(|(_, rider)| rider.upgrade()) {
            rider.expect(job);
        }
    }

    pub(crate) fn wake_riders(&self) {
        self.each_rider(|rider| rider.wake());
    }

    pub(super) fn let_ride(
        &self,
        group: &mut Group<'_>,
        part: fn(&dyn Rider, &mut Group<'_>) -> rusqlite::Result<()>,
    ) -> Result<(), StorageFault> {
        let mut outcome = Ok(());
        self.each_rider(|rider| {
            if outcome.is_ok() {
                outcome = part(rider, group).map_err(|error| StorageFault::from_sqlite(&error, self.path()));
            }
        });
        outcome
    }

    pub(super) fn each_rider(&self, mut f: impl FnMut(&dyn Rider)) {
        for rider in self.riders.read().unwrap_or_else(PoisonError::into_inner).iter() {
            if let Some(rider) = rider.upgrade() {
                f(&*rider);
            }
        }
    }
}
