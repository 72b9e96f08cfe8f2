use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use super::{Act, Group, Mode, Rider};
use crate::fault::StorageFault;
use crate::testing::TempStore;

const WRITE: Act = Act { name: "a test's write", instead: "nothing" };

/// Slow to tell what became of what it was given.
#[derive(Default)]
struct Slow {
    written: AtomicUsize,
    told: AtomicUsize,
}

impl Rider for Slow {
    fn close(&self, _: &mut Group<'_>) -> rusqlite::Result<()> {
        self.written.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }

    fn committed(&self, _: Result<(), &StorageFault>) {
        std::thread::sleep(Duration::from_millis(2));
        self.told.store(self.written.load(Ordering::SeqCst), Ordering::SeqCst);
    }
}

/// Issue 2: a caller of `once` whose ending another thread wrote went on before it was told that its lease had been lost.
#[test]
fn whoever_is_answered_finds_that_the_riders_have_told_what_they_know() {
    let folder = TempStore::new().unwrap();
    let store = folder.open().unwrap();
    let slow = Arc::new(Slow::default());
    let rider: Arc<dyn Rider> = slow.clone();
    store.inner.pen.attach(Arc::downgrade(&rider));
    std::thread::scope(|scope| {
        for _ in 0..4 {
            scope.spawn(|| {
                for _ in 0..25 {
                    let inside = Arc::clone(&slow);
                    let op = move |_: &mut Group<'_>| Ok(inside.written.load(Ordering::SeqCst) + 1);
                    let mine = store.inner.pen.write(WRITE, Mode::default(), op).unwrap();
                    assert!(slow.told.load(Ordering::SeqCst) >= mine);
                }
            });
        }
    });
}
