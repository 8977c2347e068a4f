//! The group-commit window: whether the leader waits a moment before an append, for threads that
//! may commit again at once.
//!
//! Of threads that do nothing but commit, one half would otherwise wait for the sync of the other:
//! the first one to be woken appends alone. So the leader waits until as many want an append as
//! went with the last one, but no longer than some yields of the CPU take, and if it was in vain,
//! not again for a while (`docs/decisions/0012`).

use crate::sync::atomic::AtomicU64;
use crate::sync::atomic::Ordering::Relaxed;
use crate::sync::thread;

/// How often the leader looks, and yields in between: a part of what a sync takes.
const LOOKS: u32 = if cfg!(shuttle) { 2 } else { 200 };

/// Most frames without a wait, after waits in vain.
const IN_VAIN_MAX: u64 = 64;

/// Only the leader changes it, but for `waiting`, which changes under the lock of the queue.
#[derive(Debug, Default)]
pub(super) struct RedoCommitWindow {
    /// How many commits went with the last frame.
    expected: AtomicU64,
    /// How many commits wait for the next frame.
    waiting: AtomicU64,
    /// Frames still to come without a wait.
    skipped: AtomicU64,
    /// How many frames go without a wait after the next wait in vain.
    in_vain: AtomicU64,
}

impl RedoCommitWindow {
    pub(super) fn set_waiting(&self, count: u64) {
        self.waiting.store(count, Relaxed);
    }

    pub(super) fn set_expected(&self, count: u64) {
        self.expected.store(count, Relaxed);
    }

    /// Whether it is worth to wait for more commits than are queued.
    pub(super) fn is_worth_waiting(&self, waiting: u64) -> bool {
        if waiting >= self.expected.load(Relaxed) {
            return false;
        }
        let skipped = self.skipped.load(Relaxed);
        self.skipped.store(skipped.saturating_sub(1), Relaxed);
        skipped == 0
    }

    /// Waits for them, for a bounded number of yields.
    pub(super) fn wait_for_followers(&self) {
        let (expected, before) = (self.expected.load(Relaxed), self.waiting.load(Relaxed));
        let mut waiting = before;
        for _ in 0..LOOKS {
            thread::yield_now();
            waiting = self.waiting.load(Relaxed);
            if waiting >= expected {
                break;
            }
        }
        self.remember(waiting > before);
    }

    fn remember(&self, has_come: bool) {
        let in_vain = (self.in_vain.load(Relaxed) * 2).clamp(1, IN_VAIN_MAX);
        let in_vain = if has_come { 0 } else { in_vain };
        self.in_vain.store(in_vain, Relaxed);
        self.skipped.store(in_vain, Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nobody_is_awaited_who_was_not_there_the_last_time() {
        let window = RedoCommitWindow::default();
        assert!(!window.is_worth_waiting(0));
        window.set_expected(1);
        assert!(!window.is_worth_waiting(1));
        window.set_expected(3);
        assert!(window.is_worth_waiting(2) && !window.is_worth_waiting(3));
    }

    #[test]
    fn after_gathering_in_vain_it_is_tried_seldom_until_somebody_comes() {
        let window = RedoCommitWindow::default();
        window.set_expected(2);
        let mut tried = Vec::new();
        for frame in 0..400 {
            if window.is_worth_waiting(1) {
                tried.push(frame);
                window.remember(false);
            }
        }
        assert_eq!(tried, [0, 2, 5, 10, 19, 36, 69, 134, 199, 264, 329, 394]);
        window.skipped.store(0, Relaxed);
        window.remember(true);
        assert!(window.is_worth_waiting(1) && window.is_worth_waiting(1));
    }
}
