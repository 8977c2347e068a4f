//! An event count: wakes a background thread when there may be work.

use crate::sync::{Condvar, Mutex};
use std::time::Duration;

/// Counts the events that may mean work.
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

    /// Waits until the count differs from `seen`, or the time is over. Returns the count.
    pub(crate) fn wait(&self, seen: u64, timeout: Duration) -> u64 {
        let mut count = self.count.lock();
        if *count == seen {
            self.changed.wait_for(&mut count, timeout);
        }
        *count
    }
}
