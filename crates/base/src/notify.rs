//! Wakes a thread that waits for work.

use crate::sync::{Condvar, Mutex};
use std::time::Duration;

/// Counts reasons to look for work, so that a reason that came before the wait is not lost.
#[derive(Debug, Default)]
pub struct Notify {
    count: Mutex<u64>,
    raised: Condvar,
}

impl Notify {
    /// Adds a reason and wakes all that wait.
    pub fn notify(&self) {
        *self.count.lock() += 1;
        self.raised.notify_all();
    }

    /// Waits until the count is another than `seen`, or the timeout is over. Returns the count.
    #[must_use]
    pub fn wait(&self, seen: u64, timeout: Duration) -> u64 {
        let mut count = self.count.lock();
        if *count == seen {
            self.raised.wait_for(&mut count, timeout);
        }
        *count
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn a_notification_before_the_wait_is_not_lost() {
        let notify = Notify::default();
        notify.notify();
        assert_eq!(notify.wait(0, Duration::MAX), 1);
        assert_eq!(notify.wait(1, Duration::ZERO), 1);
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| notify.wait(1, Duration::MAX));
            notify.notify();
            assert_eq!(waiting.join().expect("no panic"), 2);
        });
    }
}
