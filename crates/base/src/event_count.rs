//! An event count: wakes a thread that waits for work.

use crate::sync::{Condvar, Mutex};
use std::time::Duration;

/// Counts events that may mean work, so that an event before the wait is not lost.
#[derive(Debug, Default)]
pub struct EventCount {
    count: Mutex<u64>,
    changed: Condvar,
}

impl EventCount {
    /// Counts an event and wakes all threads that wait.
    pub fn notify(&self) {
        *self.count.lock() += 1;
        self.changed.notify_all();
    }

    /// Waits until the count is another than `seen`, or the timeout is over. Returns the count.
    #[must_use]
    pub fn wait(&self, seen: u64, timeout: Duration) -> u64 {
        let mut count = self.count.lock();
        // No loop: parking_lot wakes no thread without a notification, and each has changed the
        // count.
        if *count == seen {
            self.changed.wait_for(&mut count, timeout);
        }
        *count
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_notification_before_the_wait_is_not_lost() {
        let events = EventCount::default();
        events.notify();
        assert_eq!(events.wait(0, Duration::MAX), 1);
        assert_eq!(events.wait(1, Duration::ZERO), 1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| events.wait(1, Duration::MAX));
            events.notify();
            assert_eq!(waiting.join().expect("no panic"), 2);
        });
    }
}
