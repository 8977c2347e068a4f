//! Wakes the checkpointer and throttles the applier, as the node's
//! (`crates/node/src/driver/workers/checkpointer.rs`).

use flotilla_store::{DirtyLimits, Pacer};
use std::sync::{Condvar, Mutex, MutexGuard};
use std::time::{Duration, Instant};

/// After an action that may have slowed others at the disk, the rest is this many times as long.
const RESTS: u32 = 9;
/// The longest of these rests.
const REST_MAX: Duration = Duration::from_millis(250);
/// A throttled applier looks this often.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// What the applier tells the checkpointer, and the other way round.
pub struct CheckpointSignal {
    start: Instant,
    state: Mutex<SignalState>,
    wake: Condvar,
}

#[derive(Default)]
struct SignalState {
    changed: bool,
    urgent: bool,
    woken: bool,
    stopped: bool,
    checkpoints: u64,
    pacer: Pacer,
}

impl CheckpointSignal {
    /// Nothing to do.
    pub fn new() -> CheckpointSignal {
        CheckpointSignal { start: Instant::now(), state: Mutex::default(), wake: Condvar::new() }
    }

    /// The time that the policy counts in.
    pub fn elapsed(&self) -> Duration {
        self.start.elapsed()
    }

    /// Entries were applied.
    pub fn changed(&self, urgent: bool) {
        let mut state = self.lock();
        if !state.changed || (urgent && !state.urgent) {
            (state.changed, state.woken) = (true, true);
            state.urgent |= urgent;
            self.wake.notify_all();
        }
    }

    /// A checkpoint has written `bytes` in `took`.
    pub fn checkpointed(&self, bytes: u64, took: Duration) {
        let mut state = self.lock();
        state.checkpoints += 1;
        state.changed = false;
        state.pacer.note_checkpoint(bytes, took);
        self.wake.notify_all();
    }

    /// Rests after an action of `took`, or until work is urgent.
    pub fn rest(&self, took: Duration) {
        let end = Instant::now() + (took * RESTS).min(REST_MAX);
        let mut state = self.lock();
        while !state.urgent && !state.stopped && Instant::now() < end {
            state = self.wait_for(state, end.saturating_duration_since(Instant::now()));
        }
    }

    /// Blocks the applier as long as its next transaction has to wait.
    pub fn throttle(&self, limits: DirtyLimits, dirty_bytes: impl Fn() -> u64) {
        let mut asked = None;
        let mut state = self.lock();
        while !state.stopped {
            let (dirty, now) = (dirty_bytes(), self.start.elapsed());
            let left = state.pacer.left(limits, dirty, now);
            if left == Some(Duration::ZERO) {
                state.pacer.begin(dirty, now);
                return;
            }
            if left.is_none() && asked != Some(state.checkpoints) {
                asked = Some(state.checkpoints);
                (state.urgent, state.woken) = (true, true);
                self.wake.notify_all();
            }
            state = self.wait_for(state, left.unwrap_or(LOOK_EVERY).min(LOOK_EVERY));
        }
    }

    /// Ends both.
    pub fn stop(&self) {
        self.lock().stopped = true;
        self.wake.notify_all();
    }

    /// Whether it has ended.
    pub fn is_stopped(&self) -> bool {
        self.lock().stopped
    }

    /// Waits until it is woken or stopped, or `until` has come.
    pub fn wait(&self, until: Option<Duration>) {
        let mut state = self.lock();
        while !state.woken && !state.stopped {
            let left = until.map(|until| until.saturating_sub(self.start.elapsed()));
            state = match left {
                Some(Duration::ZERO) => break,
                Some(left) => self.wait_for(state, left),
                None => self.wake.wait(state).expect("nobody panics with it"),
            };
        }
        (state.woken, state.urgent) = (false, false);
    }

    fn lock(&self) -> MutexGuard<'_, SignalState> {
        self.state.lock().expect("nobody panics with it")
    }

    fn wait_for<'a>(
        &self,
        state: MutexGuard<'a, SignalState>,
        time: Duration,
    ) -> MutexGuard<'a, SignalState> {
        self.wake.wait_timeout(state, time).expect("nobody panics with it").0
    }
}
