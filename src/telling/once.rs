//! A fault that lasts is logged when it changes, not each time that it is met.

use std::collections::HashMap;
use std::sync::{Mutex, PoisonError};
use std::time::Duration;

use crate::clock::Stopwatch;

/// Said again after so long.
const AGAIN: Duration = Duration::from_secs(3_600);
/// Most places that are remembered.
const PLACES: usize = 256;

static SAID: Mutex<Option<HashMap<&'static str, (String, Stopwatch)>>> = Mutex::new(None);

/// Whether `text` is something else than what was said last at this place, within the hour. An empty text is that all is
/// well again, which is news only after a fault.
pub(crate) fn is_news(place: &'static str, text: &str) -> bool {
    let mut said = SAID.lock().unwrap_or_else(PoisonError::into_inner);
    let said = said.get_or_insert_with(HashMap::new);
    if text.is_empty() {
        return said.remove(place).is_some();
    }
    if said.get(place).is_some_and(|(last, at)| last == text && at.elapsed() < AGAIN) {
        return false;
    }
    if said.len() < PLACES || said.contains_key(place) {
        said.insert(place, (text.to_owned(), Stopwatch::start()));
    }
    true
}

#[cfg(test)]
mod tests {
    use super::is_news;

    #[test]
    fn a_fault_is_news_when_it_begins_when_it_changes_and_when_it_ends() {
        let said = ["full", "full", "full", "locked", "locked", "", "", "locked"].map(|text| is_news("a test", text));
        assert_eq!(said, [true, false, false, true, false, true, false, true]);
    }
}
