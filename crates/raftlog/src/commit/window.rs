//! The group commit window: whether a leader waits a moment for threads that may write again at
//! once. `docs/decisions/0012-a-leader-waits-for-company.md` has the measurements.

use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::Relaxed;

/// The most rounds that go without a window after one that gained nothing.
const SKIPPED_ROUNDS_MAX: u64 = 64;

/// Whether it pays to wait for threads that may write again at once.
///
/// Without a window, of threads that only write one half would always wait for the sync of the
/// other half. Only the leader changes it.
#[derive(Debug, Default)]
pub(super) struct GroupCommitWindow {
    /// Threads that waited when the last round ended, and its leader.
    pub(super) expected_writers: AtomicU64,
    /// How many of the next rounds go without a window.
    skipped: AtomicU64,
    /// How many rounds are skipped after the next window that gains nothing: it doubles each time.
    backoff: AtomicU64,
}

impl GroupCommitWindow {
    pub(super) fn is_skipped(&self) -> bool {
        let skipped = self.skipped.load(Relaxed);
        self.skipped.store(skipped.saturating_sub(1), Relaxed);
        skipped > 0
    }

    pub(super) fn remember(&self, has_come: bool) {
        let backoff = (self.backoff.load(Relaxed) * 2).clamp(1, SKIPPED_ROUNDS_MAX);
        let backoff = if has_come { 0 } else { backoff };
        self.backoff.store(backoff, Relaxed);
        self.skipped.store(backoff, Relaxed);
    }
}

#[cfg(test)]
#[cfg(not(shuttle))]
mod tests {
    use super::*;

    #[test]
    fn after_gathering_in_vain_it_is_tried_seldom_until_somebody_comes() {
        let window = GroupCommitWindow::default();
        let mut tried = Vec::new();
        for round in 0..400 {
            if !window.is_skipped() {
                tried.push(round);
                window.remember(false);
            }
        }
        assert_eq!(tried, [0, 2, 5, 10, 19, 36, 69, 134, 199, 264, 329, 394]);
        window.remember(true);
        assert!(!window.is_skipped() && !window.is_skipped());
    }
}
