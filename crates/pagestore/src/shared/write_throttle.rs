//! Write throttle: keeps dirty bytes within their limit without a cliff. Writers go the slower the
//! nearer the limit is, so that they come to add as much as checkpoints write.
//!
//! A writer waits with the writer lock held, so those behind it keep their order. `pacer` says how
//! long.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

use crate::config::DirtyLimits;
use crate::shared::pacer::Pacer;

/// How long a writer waits before it looks again.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The throttle between writers and checkpoints.
#[derive(Debug)]
pub(crate) struct WriteThrottle {
    /// Times are counted from here.
    start: Instant,
    state: Mutex<ThrottleState>,
    /// A checkpoint has written something, or has ended.
    progress: Condvar,
}

#[derive(Debug)]
struct ThrottleState {
    /// Threads that make checkpoints in the background.
    checkpointers: u32,
    pacer: Pacer,
    /// The last checkpoint in the background met a full disk.
    is_full: bool,
}

/// The disk is full, so a writer does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskFull;

impl Default for WriteThrottle {
    fn default() -> WriteThrottle {
        let state = ThrottleState { checkpointers: 0, pacer: Pacer::default(), is_full: false };
        WriteThrottle { start: Instant::now(), state: Mutex::new(state), progress: Condvar::new() }
    }
}

impl WriteThrottle {
    /// Registers a thread that makes checkpoints: without one, no writer waits.
    pub(crate) fn attach(&self) {
        self.state.lock().checkpointers += 1;
    }

    /// Unregisters it.
    pub(crate) fn detach(&self) {
        assert!(self.state.lock().checkpointers > 0, "a thread is unregistered twice");
        self.state.lock().checkpointers -= 1;
        self.progress.notify_all();
    }

    /// Waits as long as the next transaction has to. `dirty_bytes` is asked for again and again;
    /// nothing ends the wait.
    ///
    /// # Errors
    ///
    /// If it would have to wait for a checkpoint that the full disk refuses.
    pub(crate) fn throttle(
        &self,
        limits: DirtyLimits,
        dirty_bytes: impl Fn() -> Option<u64>,
    ) -> Result<(), DiskFull> {
        let mut state = self.state.lock();
        if state.checkpointers == 0 {
            return Ok(());
        }
        while let Some(dirty) = dirty_bytes().filter(|_| state.checkpointers > 0) {
            let now = self.start.elapsed();
            let left = state.pacer.left(limits, dirty, now);
            if left == Some(Duration::ZERO) {
                state.pacer.begin(dirty, now);
                break;
            }
            // At the hard limit with a full disk no checkpoint will free memory: fail, do not hang.
            if left.is_none() && state.is_full {
                return Err(DiskFull);
            }
            self.progress.wait_for(&mut state, left.unwrap_or(LOOK_EVERY).min(LOOK_EVERY));
        }
        Ok(())
    }

    /// Says that a checkpoint has written something, or is durable.
    pub(crate) fn progress(&self) {
        // A writer that has looked and does not yet sleep holds the lock: without this it would
        // miss the notification.
        drop(self.state.lock());
        self.progress.notify_all();
    }

    /// Notes the outcome of a checkpoint: its bytes and duration, or that the disk was full.
    pub(crate) fn ended(&self, outcome: Result<(u64, Duration), DiskFull>) {
        let mut state = self.state.lock();
        state.is_full = outcome.is_err();
        if let Ok((bytes, took)) = outcome {
            state.pacer.note_checkpoint(bytes, took);
        }
        self.progress.notify_all();
    }

    /// Waits until `is_done`, or for `timeout`. Returns the last answer.
    pub(crate) fn wait_until(&self, timeout: Duration, is_done: impl Fn() -> bool) -> bool {
        let end = Instant::now().checked_add(timeout);
        let mut state = self.state.lock();
        while !is_done() {
            match end {
                Some(end) if self.progress.wait_until(&mut state, end).timed_out() => {
                    return is_done();
                }
                Some(_) => {}
                None => self.progress.wait(&mut state),
            }
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: DirtyLimits = DirtyLimits { soft_bytes: 1000, hard_bytes: 3000 };

    #[test]
    fn nobody_waits_where_nobody_makes_checkpoints() {
        let write_throttle = WriteThrottle::default();
        assert_eq!(write_throttle.throttle(LIMITS, || Some(1 << 40)), Ok(()));
    }

    #[test]
    fn who_is_at_the_hard_limit_waits_for_a_checkpoint_or_is_told_that_there_is_no_room() {
        let write_throttle = WriteThrottle::default();
        write_throttle.attach();
        let dirty = Mutex::new(3000_u64);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| write_throttle.throttle(LIMITS, || Some(*dirty.lock())));
            while !waits.is_finished() {
                *dirty.lock() -= 100;
                write_throttle.progress();
                std::thread::yield_now();
                if *dirty.lock() < 1000 {
                    break;
                }
            }
            assert_eq!(waits.join().unwrap(), Ok(()));
        });
        write_throttle.ended(Err(DiskFull));
        assert_eq!(write_throttle.throttle(LIMITS, || Some(3000)), Err(DiskFull));
        assert_eq!(write_throttle.throttle(LIMITS, || Some(900)), Ok(()));
        write_throttle.ended(Ok((0, Duration::ZERO)));
        assert_eq!(write_throttle.throttle(LIMITS, || None), Ok(()), "the store is poisoned");
        write_throttle.detach();
        assert_eq!(write_throttle.throttle(LIMITS, || Some(3000)), Ok(()));
    }
}
