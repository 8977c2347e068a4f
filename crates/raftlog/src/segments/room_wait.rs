//! The wait for room: a commit round that finds none is tried again, if its caller wants that.

use flotilla_base::event_count::EventCount;
use flotilla_base::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// From one try to the next.
const RETRY_INTERVAL: Duration = Duration::from_millis(20);

/// Whether writes that find no room wait for it, and whether one does.
#[derive(Debug, Default)]
pub(crate) struct RoomWait {
    is_on: AtomicBool,
    is_waiting: AtomicBool,
    changed: EventCount,
}

impl RoomWait {
    /// Has writes wait for room, or be refused from now on, those that wait included.
    pub(crate) fn set(&self, is_on: bool) {
        self.is_on.store(is_on, Ordering::SeqCst);
        self.changed.notify();
    }

    pub(crate) fn is_on(&self) -> bool {
        self.is_on.load(Ordering::SeqCst)
    }

    /// Whether a write waits now.
    pub(crate) fn is_waiting(&self) -> bool {
        self.is_waiting.load(Ordering::SeqCst)
    }

    /// Notes whether a round has found no room and is tried again.
    pub(crate) fn note(&self, is_waiting: bool) {
        // Rounds that find room are all but all of them: they only read.
        if self.is_waiting() != is_waiting {
            self.is_waiting.store(is_waiting, Ordering::SeqCst);
        }
    }

    /// Rests before the next try, if a round waits.
    pub(crate) fn rest(&self) {
        if self.is_waiting() && self.is_on() {
            let seen = self.changed.wait(u64::MAX, Duration::ZERO);
            // Turned off since it was looked at: no rest.
            if self.is_on() {
                let _ = self.changed.wait(seen, RETRY_INTERVAL);
            }
        }
    }
}
