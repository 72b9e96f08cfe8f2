//! What stands in the file of the occurrences after a mark.

use std::collections::HashSet;

use super::{Due, Mark};

/// Occurrences after a mark that have been dealt with all the same: they were asked for, or marked done, or recorded
/// while an older one waited.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dealt {
    made: HashSet<Mark>,
    left_out: Vec<(Mark, Mark)>,
}

impl Dealt {
    /// This one was made, or marked as done.
    pub(crate) fn note_made(&mut self, mark: Mark) {
        self.made.insert(mark);
    }

    /// These, the first and the last included, were recorded as ones that do not run.
    pub(crate) fn note_left_out(&mut self, first: Mark, last: Mark) {
        self.left_out.push((first, last));
    }

    pub(super) fn has_made(&self, due: &Due) -> bool {
        self.made.contains(&due.mark())
    }

    pub(super) fn has_left_out(&self, due: &Due) -> bool {
        let mark = due.mark();
        self.left_out.iter().any(|&(first, last)| first <= mark && mark <= last)
    }

    pub(super) fn has(&self, due: &Due) -> bool {
        self.has_made(due) || self.has_left_out(due)
    }
}
