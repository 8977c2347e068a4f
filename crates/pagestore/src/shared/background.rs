//! State shared by writers, checkpoints and the maintenance thread: throttle, policy, notification.

use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::shared::maintenance_policy::MaintenancePolicy;
use crate::shared::scrub_progress::Scrub;
use crate::shared::snapshot_age::SnapshotAges;
use crate::shared::write_throttle::WriteThrottle;
use crate::space::double_free::RefusedFree;

/// State of background work.
#[derive(Debug, Default)]
pub(crate) struct Background {
    pub(crate) write_throttle: WriteThrottle,
    pub(crate) policy: Mutex<MaintenancePolicy>,
    pub(crate) notify: BackgroundNotify,
    /// The pass that maintenance has under way.
    pub(crate) scrub: Mutex<Scrub>,
    /// The deferred free that was refused last. They are freed from the newest on, so nothing that
    /// was refused before comes up again.
    pub(crate) refused_free: Mutex<Option<RefusedFree>>,
    pub(crate) snapshot_ages: Mutex<SnapshotAges>,
}

/// Notifies the maintenance thread, which makes checkpoints.
#[derive(Debug, Default)]
pub(crate) struct BackgroundNotify {
    count: Mutex<u64>,
    signalled: Condvar,
    urgent_count: AtomicU32,
}

/// Lifts the rate limit of the checkpoint that is under way, because a caller waits for it, until
/// this is dropped.
pub(crate) struct UrgentGuard<'a>(&'a BackgroundNotify);

impl BackgroundNotify {
    /// Notifies the thread that there may be something to do.
    pub(crate) fn signal(&self) {
        *self.count.lock() += 1;
        self.signalled.notify_all();
    }

    /// Waits for a notification after number `seen`, or for the time. Returns the number of the
    /// last one.
    pub(crate) fn wait(&self, seen: u64, timeout: Duration) -> u64 {
        let mut count = self.count.lock();
        if *count == seen {
            self.signalled.wait_for(&mut count, timeout);
        }
        *count
    }

    /// Asks a checkpoint that is under way not to rest.
    pub(crate) fn urge(&self) -> UrgentGuard<'_> {
        self.urgent_count.fetch_add(1, Ordering::Relaxed);
        self.signal();
        UrgentGuard(self)
    }

    pub(crate) fn is_urgent(&self) -> bool {
        self.urgent_count.load(Ordering::Relaxed) > 0
    }

    /// Rests for `time`, or until a caller is urgent.
    pub(crate) fn rest(&self, time: Duration) {
        let end = Instant::now() + time;
        let mut count = self.count.lock();
        while !self.is_urgent() && !self.signalled.wait_until(&mut count, end).timed_out() {}
    }
}

impl Drop for UrgentGuard<'_> {
    fn drop(&mut self) {
        debug_assert!(self.0.is_urgent(), "a guard was dropped twice");
        self.0.urgent_count.fetch_sub(1, Ordering::Relaxed);
    }
}
