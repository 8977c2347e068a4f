//! Tells a thread that waits for work that there may be some.

use crate::sync::{Condvar, Mutex};
use std::time::Duration;

/// Counts reasons to look for work.
#[derive(Debug, Default)]
pub(crate) struct EventCount {
    count: Mutex<u64>,
    changed: Condvar,
}

impl EventCount {
    pub(crate) fn notify(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }

    /// Waits until the count is another than `seen`, or the time is over. Returns the count.
    pub(crate) fn wait(&self, seen: u64, timeout: Duration) -> u64 {
        let mut count = self.count.lock();
        if *count == seen {
            self.changed.wait_for(&mut count, timeout);
        }
        *count
    }
}
