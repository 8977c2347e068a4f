//! Keeps what is in memory only within its limit, without a cliff: writers go the slower the nearer it
//! is, so that they come to add as much as the checkpoints take away.
//!
//! Above the soft limit a writer waits before it begins, for as long as the checkpoint takes to write
//! as much as the last transaction has added, times `f / (1 - f)`, where f is how far it is from the
//! soft limit to the hard one: nothing at first, as long as the checkpoint takes half-way, for ever
//! at the hard limit. It waits in the writer's place, so those behind it keep their order.

use std::time::{Duration, Instant};

use parking_lot::{Condvar, Mutex};

/// Until a checkpoint has shown how fast it is.
const BYTES_PER_SECOND: f64 = 64.0 * (1 << 20) as f64;

/// How long a writer waits before it looks again.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// The two limits.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Limits {
    pub(crate) soft_bytes: u64,
    pub(crate) hard_bytes: u64,
}

impl Limits {
    /// How far it is from the soft limit to the hard one: 0 at the first, 1 at the second.
    pub(crate) fn fraction(&self, dirty_bytes: u64) -> f64 {
        let above = dirty_bytes.saturating_sub(self.soft_bytes) as f64;
        above / self.hard_bytes.saturating_sub(self.soft_bytes).max(1) as f64
    }

    /// How long the next transaction is to wait, after one that added so many bytes; nothing if it
    /// may not begin at all.
    fn rest(&self, dirty_bytes: u64, added_bytes: u64, bytes_per_second: f64) -> Option<Duration> {
        let f = self.fraction(dirty_bytes);
        let seconds = added_bytes as f64 / bytes_per_second * f / (1.0 - f);
        // The longest rests are those next to the limit, where somebody looks again soon anyway.
        (f < 1.0).then(|| Duration::from_secs_f64(seconds.min(1.0)))
    }
}

/// What writers and checkpoints know of each other.
#[derive(Debug)]
pub(crate) struct Pressure {
    state: Mutex<State>,
    /// A checkpoint has written something, or has ended.
    progress: Condvar,
}

#[derive(Debug)]
struct State {
    /// Those who make checkpoints in the background.
    keepers: u32,
    bytes_per_second: f64,
    /// The last checkpoint in the background met a full disk.
    is_full: bool,
    /// When the last writer began, and what was dirty then.
    began: Instant,
    dirty_bytes: u64,
}

/// Why a writer does not go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full;

impl Pressure {
    pub(crate) fn new() -> Pressure {
        let state = State {
            keepers: 0,
            bytes_per_second: BYTES_PER_SECOND,
            is_full: false,
            began: Instant::now(),
            dirty_bytes: 0,
        };
        Pressure { state: Mutex::new(state), progress: Condvar::new() }
    }

    /// Says that somebody makes checkpoints from now on: without, nobody waits for them.
    pub(crate) fn join(&self) {
        self.state.lock().keepers += 1;
    }

    /// Takes that back.
    pub(crate) fn leave(&self) {
        self.state.lock().keepers -= 1;
        self.progress.notify_all();
    }

    /// Waits as long as the next transaction has to. `dirty_bytes` is asked for again and again;
    /// nothing ends the wait.
    ///
    /// # Errors
    ///
    /// If it would have to wait for a checkpoint that the full disk refuses.
    pub(crate) fn hold(
        &self,
        limits: Limits,
        dirty_bytes: impl Fn() -> Option<u64>,
    ) -> Result<(), Full> {
        let mut state = self.state.lock();
        if state.keepers == 0 {
            return Ok(());
        }
        let mut added = None;
        while let Some(dirty) = dirty_bytes().filter(|_| state.keepers > 0) {
            let added = *added.get_or_insert(dirty.saturating_sub(state.dirty_bytes));
            let rest = limits.rest(dirty, added, state.bytes_per_second);
            let left = rest.map(|rest| rest.saturating_sub(state.began.elapsed()));
            if left == Some(Duration::ZERO) {
                state.dirty_bytes = dirty;
                break;
            }
            if left.is_none() && state.is_full {
                return Err(Full);
            }
            self.progress.wait_for(&mut state, left.unwrap_or(LOOK_EVERY).min(LOOK_EVERY));
        }
        state.began = Instant::now();
        Ok(())
    }

    /// Says that a checkpoint has written something, or is durable.
    pub(crate) fn progress(&self) {
        // Who has looked and does not yet sleep has the lock: he would miss it.
        drop(self.state.lock());
        self.progress.notify_all();
    }

    /// Says how a checkpoint ended: what it wrote and how long it took, or that there was no room.
    pub(crate) fn ended(&self, outcome: Result<(u64, Duration), Full>) {
        let mut state = self.state.lock();
        state.is_full = outcome.is_err();
        // Short ones say nothing of the disk.
        if let Ok((bytes, took)) = outcome
            && bytes >= 1 << 20
        {
            state.bytes_per_second = bytes as f64 / took.as_secs_f64().max(1e-6);
        }
        self.progress.notify_all();
    }

    /// Waits until `is_done`, or for so long. Returns the last answer.
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

    const LIMITS: Limits = Limits { soft_bytes: 1000, hard_bytes: 3000 };

    #[test]
    fn rests_grow_smoothly_from_nothing_to_for_ever() {
        let rests = [0, 1000, 1500, 2000, 2500, 2900, 2999, 3000, 9000]
            .map(|dirty| LIMITS.rest(dirty, 500, 1e6).map(|rest| rest.as_micros()));
        let expected = [0, 0, 166, 500, 1500, 9500, 999_500].map(Some);
        assert_eq!(rests[..7], expected);
        assert_eq!(rests[7..], [None, None]);
        assert_eq!(LIMITS.rest(2500, 0, 1e6), Some(Duration::ZERO), "who adds nothing waits not");
    }

    #[test]
    fn nobody_waits_where_nobody_makes_checkpoints() {
        let pressure = Pressure::new();
        assert_eq!(pressure.hold(LIMITS, || Some(1 << 40)), Ok(()));
    }

    #[test]
    fn who_is_at_the_hard_limit_waits_for_a_checkpoint_or_is_told_that_there_is_no_room() {
        let pressure = Pressure::new();
        pressure.join();
        let dirty = Mutex::new(3000_u64);
        std::thread::scope(|scope| {
            let waits = scope.spawn(|| pressure.hold(LIMITS, || Some(*dirty.lock())));
            while !waits.is_finished() {
                *dirty.lock() -= 100;
                pressure.progress();
                std::thread::yield_now();
                if *dirty.lock() < 1000 {
                    break;
                }
            }
            assert_eq!(waits.join().unwrap(), Ok(()));
        });
        pressure.ended(Err(Full));
        assert_eq!(pressure.hold(LIMITS, || Some(3000)), Err(Full));
        assert_eq!(pressure.hold(LIMITS, || Some(900)), Ok(()));
        pressure.ended(Ok((0, Duration::ZERO)));
        assert_eq!(pressure.hold(LIMITS, || None), Ok(()), "the store is poisoned");
        pressure.leave();
        assert_eq!(pressure.hold(LIMITS, || Some(3000)), Ok(()));
    }
}
