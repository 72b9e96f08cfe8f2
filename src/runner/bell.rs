//! What wakes a thread that sleeps until there is something to do.

use std::time::Duration;

use crossbeam_channel::{Receiver, Sender, bounded};

/// Wakes one thread. Rung any number of times before it looks, it rings once.
pub(super) struct Bell {
    send: Sender<()>,
    receive: Receiver<()>,
}

impl Default for Bell {
    fn default() -> Self {
        let (send, receive) = bounded(1);
        Bell { send, receive }
    }
}

impl Bell {
    pub(super) fn ring(&self) {
        // Full: it has been rung and not heard yet.
        let _ = self.send.try_send(());
    }

    /// Waits for a ring, at most this long.
    pub(super) fn wait(&self, limit: Duration) {
        let _ = self.receive.recv_timeout(limit);
    }
}
