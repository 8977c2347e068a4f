//! The window of a group commit: whether the leader waits for followers that may come at once.
//!
//! Of threads that do nothing but commit, one half would otherwise wait for the sync of the other:
//! the thread that is notified first would write alone. So a leader waits until as many threads
//! want to commit as went with the last commit, but no longer than some yields take. After a wait
//! in vain it does not wait again for a while, doubled each time (docs/decisions/0012).

use crate::sync::atomic::{AtomicU64, Ordering::Relaxed};
use crate::sync::thread;

/// How often the leader looks, and yields in between: some 50 us without other work, a part of what
/// a sync takes.
const LOOKS: u32 = if cfg!(shuttle) { 2 } else { 200 };

/// The most commits that are not waited for after a wait in vain.
const SKIPPED_MAX: u64 = 64;

/// Whether it pays to wait. Only the leader changes it, so relaxed atomics suffice.
#[derive(Debug, Default)]
pub struct GroupCommitWindow {
    /// Threads that went with the last commit.
    expected: AtomicU64,
    /// Commits that are still not waited for.
    skipped: AtomicU64,
    /// How many those were after the last wait in vain.
    backoff: AtomicU64,
}

impl GroupCommitWindow {
    /// Sets how many threads are expected at the next commit.
    pub fn expect(&self, count: u64) {
        self.expected.store(count, Relaxed);
    }

    /// Whether the leader should wait for more threads than are `present`.
    #[must_use]
    pub fn is_open(&self, present: u64) -> bool {
        if present >= self.expected.load(Relaxed) {
            return false;
        }
        let skipped = self.skipped.load(Relaxed);
        self.skipped.store(skipped.saturating_sub(1), Relaxed);
        skipped == 0
    }

    /// Waits until the expected threads are present, or for some yields.
    pub fn wait(&self, present: impl Fn() -> u64) {
        let (expected, before) = (self.expected.load(Relaxed), present());
        let mut now = before;
        for _ in 0..LOOKS {
            // Not a sleep: a yield lets the very threads run that it waits for, and returns within
            // the time of a sync (docs/decisions/0012-a-leader-waits-for-company.md).
            thread::yield_now();
            now = present();
            if now >= expected {
                break;
            }
        }
        self.record(now > before);
    }

    fn record(&self, has_come: bool) {
        // Doubled from 0 it would stay 0, and each wait in vain would be followed by another one.
        let backoff = (self.backoff.load(Relaxed) * 2).clamp(1, SKIPPED_MAX);
        let backoff = if has_come { 0 } else { backoff };
        self.backoff.store(backoff, Relaxed);
        self.skipped.store(backoff, Relaxed);
    }
}

#[cfg(all(test, not(shuttle)))]
mod tests {
    use super::*;

    #[test]
    fn only_threads_of_the_last_commit_are_awaited() {
        let window = GroupCommitWindow::default();
        assert!(!window.is_open(0));
        window.expect(1);
        assert!(!window.is_open(1));
        window.expect(3);
        assert!(window.is_open(2) && !window.is_open(3));
    }

    #[test]
    fn waits_in_vain_become_rare_until_a_thread_comes() {
        let window = GroupCommitWindow::default();
        window.expect(2);
        let mut waited = Vec::new();
        for commit in 0..400 {
            if window.is_open(1) {
                waited.push(commit);
                window.wait(|| 1);
            }
        }
        assert_eq!(waited, [0, 2, 5, 10, 19, 36, 69, 134, 199, 264, 329, 394]);
        window.skipped.store(0, Relaxed);
        let looks = std::cell::Cell::new(0);
        window.wait(|| looks.replace(looks.get() + 1).min(2));
        assert!(looks.get() <= 4, "it looked {} times", looks.get());
        assert!(window.is_open(1) && window.is_open(1));
    }
}
