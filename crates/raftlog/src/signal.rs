//! Tells a thread that waits for work that there may be some.

use crate::sync::{Condvar, Mutex};
use std::time::Duration;

/// Counts reasons to look for work.
#[derive(Debug, Default)]
pub(crate) struct Signal {
    count: Mutex<u64>,
    raised: Condvar,
}

impl Signal {
    pub(crate) fn raise(&self) {
        *self.count.lock() += 1;
        self.raised.notify_all();
    }

    /// Waits until the count is another than `seen`, or the time is over. Returns the count.
    pub(crate) fn wait(&self, seen: u64, timeout: Duration) -> u64 {
        let mut count = self.count.lock();
        if *count == seen {
            self.raised.wait_for(&mut count, timeout);
        }
        *count
    }
}
