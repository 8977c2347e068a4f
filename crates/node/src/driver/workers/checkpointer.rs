//! Checkpoints: make applied state durable now and then, so that the log before it can be purged.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flotilla_pagestore::Error as PagesError;
use flotilla_region::Event;
use flotilla_store::{DirtyLimits, Error, MaintenanceStep, Pacer, Store};
use parking_lot::{Condvar, Mutex};

use crate::driver::shard_message::Mailboxes;
use crate::drop_notify::DropNotify;
use crate::failure::NodeFailure;

/// Steps of the pages' upkeep after one checkpoint, of a megabyte or less each.
const UPKEEP_STEPS_MAX: usize = 1024;

/// After a step that may have slowed others at the disk, the rest is this many times as long.
const RESTS: u32 = 9;
/// The longest of these rests.
const REST_MAX: Duration = Duration::from_millis(250);

/// A throttled applier looks this often whether fewer dirty bytes are in memory.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Wakes the checkpointer when there is work, and throttles the applier. A store at rest makes no
/// checkpoints.
pub(crate) struct CheckpointSignal {
    /// Times are counted from here.
    start: Instant,
    state: Mutex<SignalState>,
    wake: Condvar,
}

#[derive(Default)]
struct SignalState {
    /// Something was applied since the last checkpoint began.
    changed: bool,
    /// The next checkpoint should not wait for its time.
    urgent: bool,
    /// Memory for pages to come should be made ready.
    wants_slabs: bool,
    stopped: bool,
    /// Made until now.
    checkpoints: u64,
    /// The rate at which applying may go on.
    pacer: Pacer,
}

/// The next work of the checkpointer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum CheckpointWork {
    Checkpoint,
    Slabs,
    End,
}

impl CheckpointSignal {
    /// Nothing to do.
    pub(crate) fn new() -> Self {
        Self { start: Instant::now(), state: Mutex::default(), wake: Condvar::new() }
    }

    /// Entries were applied; `urgent` if too many dirty bytes are in memory.
    pub(crate) fn changed(&self, urgent: bool) {
        let mut state = self.state.lock();
        let news = !state.changed || (urgent && !state.urgent);
        state.changed = true;
        state.urgent |= urgent;
        if news {
            self.wake.notify_all();
        }
    }

    /// Memory for pages to come should be made ready, before applying needs it.
    pub(crate) fn want_slabs(&self) {
        let mut state = self.state.lock();
        if !std::mem::replace(&mut state.wants_slabs, true) {
            self.wake.notify_all();
        }
    }

    /// A checkpoint was made, which has written `bytes` in `took`.
    fn checkpointed(&self, bytes: u64, took: Duration) {
        let mut state = self.state.lock();
        state.checkpoints += 1;
        state.pacer.note_checkpoint(bytes, took);
        self.wake.notify_all();
    }

    /// Whether a checkpoint is urgent, or has been due since `due`, or the checkpointer is stopped.
    fn is_pressing(&self, due: Instant) -> bool {
        let state = self.state.lock();
        state.urgent || state.stopped || (state.changed && Instant::now() >= due)
    }

    /// Rests for `time`, or until a checkpoint is urgent.
    fn rest(&self, time: Duration) {
        let end = Instant::now() + time;
        let mut state = self.state.lock();
        let mut is_over = false;
        while !(is_over || state.urgent || state.stopped) {
            is_over = self.wake.wait_until(&mut state, end).timed_out();
        }
    }

    /// The write throttle: blocks the applier as long as its next transaction has to wait, so that
    /// applying adds no more dirty bytes than checkpoints take away. The nearer the dirty bytes
    /// come to their hard limit, the longer it waits; at the limit until a checkpoint has written
    /// some of them, or the checkpointer is stopped.
    ///
    /// If the disk is full it waits until there is room: writes of clients queue up in the
    /// meantime, and are rejected when the queue is full.
    pub(crate) fn throttle(&self, limits: DirtyLimits, dirty_bytes: impl Fn() -> u64) {
        let mut asked = None;
        let mut state = self.state.lock();
        while !state.stopped {
            let (dirty, now) = (dirty_bytes(), self.start.elapsed());
            let left = state.pacer.left(limits, dirty, now);
            if left == Some(Duration::ZERO) {
                state.pacer.begin(dirty, now);
                return;
            }
            // Once for each checkpoint: one that a full disk refused is retried in its time.
            if left.is_none() && asked != Some(state.checkpoints) {
                asked = Some(state.checkpoints);
                (state.changed, state.urgent) = (true, true);
                self.wake.notify_all();
            }
            self.wake.wait_for(&mut state, left.unwrap_or(LOOK_EVERY).min(LOOK_EVERY));
        }
    }

    /// Ends the checkpointer, without a last checkpoint.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.wake.notify_all();
    }

    /// Waits until there is work. A checkpoint is due if something has changed, and it is urgent or
    /// `due` has come.
    fn wait(&self, due: Instant) -> CheckpointWork {
        let mut state = self.state.lock();
        while !state.stopped {
            if std::mem::take(&mut state.wants_slabs) {
                return CheckpointWork::Slabs;
            }
            let late = Instant::now() >= due;
            if state.changed && (state.urgent || late) {
                (state.changed, state.urgent) = (false, false);
                return CheckpointWork::Checkpoint;
            }
            if state.changed {
                self.wake.wait_until(&mut state, due);
            } else {
                self.wake.wait(&mut state);
            }
        }
        CheckpointWork::End
    }
}

/// The checkpointer's thread, before it runs.
pub(crate) struct Checkpointer {
    pub(crate) store: Arc<DropNotify<Store>>,
    pub(crate) signal: Arc<CheckpointSignal>,
    pub(crate) interval: Duration,
    pub(crate) mailboxes: Mailboxes,
    pub(crate) failure: NodeFailure,
}

impl Checkpointer {
    /// Runs until it is stopped or a checkpoint fails.
    pub(crate) fn run(self) {
        let mut due = Instant::now() + self.interval;
        loop {
            match self.signal.wait(due) {
                CheckpointWork::End => return,
                CheckpointWork::Slabs => {
                    self.store.make_slabs();
                    continue;
                }
                CheckpointWork::Checkpoint => due = Instant::now() + self.interval,
            }
            match self.checkpoint(due) {
                Ok(()) => {}
                // Nothing was written, and nothing is lost: the log has everything. The pages stay
                // in memory until there is room.
                Err(Error::Pages(PagesError::NoSpace)) => {
                    tracing::warn!("no checkpoint: the disk is full");
                    self.signal.changed(false);
                }
                Err(error) => {
                    self.failure.report(&format!("a checkpoint failed: {error}"));
                    return;
                }
            }
        }
    }

    /// One checkpoint, and a purge of what earlier ones have made superfluous: the shards answer
    /// this checkpoint with compactions, which are written before the next.
    fn checkpoint(&self, due: Instant) -> Result<(), Error> {
        let (dirty_bytes, began) = (self.store.dirty_bytes(), Instant::now());
        let applied = self.store.checkpoint()?;
        let took = began.elapsed();
        self.mailboxes.complete_all(
            applied.into_iter().map(|(region, applied)| Event::Checkpointed { region, applied }),
        );
        self.signal.checkpointed(dirty_bytes, took);
        // After the checkpoint: what it made durable is what the log may lose.
        let purged = self.store.purge_log()?;
        if purged.segments > 0 {
            tracing::debug!(segments = purged.segments, bytes = purged.bytes, "log purged");
        }
        self.maintain_pages(due)
    }

    /// Background maintenance of the page file, in bounded steps, until a checkpoint is urgent or
    /// due. Its changes are in memory until the next checkpoint.
    fn maintain_pages(&self, due: Instant) -> Result<(), Error> {
        for _ in 0..UPKEEP_STEPS_MAX {
            if self.signal.is_pressing(due) {
                break;
            }
            self.store.make_slabs();
            let began = Instant::now();
            match self.store.maintain_pages()? {
                // Nothing waits for this step: the rest leaves the disk to writers.
                MaintenanceStep::SpaceReturned => {
                    self.signal.rest((began.elapsed() * RESTS).min(REST_MAX))
                }
                MaintenanceStep::More => self.signal.changed(self.store.wants_checkpoint()),
                MaintenanceStep::Done => break,
                MaintenanceStep::DeferredFreeUnreadable(error) => {
                    tracing::warn!("space of a deleted range is not given back: {error}");
                }
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMITS: DirtyLimits = DirtyLimits { soft_bytes: 1000, hard_bytes: 3000 };

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    #[test]
    fn a_checkpoint_is_due_by_time_or_by_size_and_only_after_a_change() {
        let signal = CheckpointSignal::new();
        signal.changed(false);
        assert_eq!(signal.wait(Instant::now()), CheckpointWork::Checkpoint);
        signal.changed(true);
        assert_eq!(signal.wait(later()), CheckpointWork::Checkpoint);

        // Nothing has changed since, so the time alone makes none due; only the stop ends this.
        let waiting = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| signal.wait(Instant::now()));
            signal.stop();
            waiter.join().unwrap()
        });
        assert_eq!(waiting, CheckpointWork::End);
    }

    #[test]
    fn who_waits_asks_once_for_each_checkpoint_and_goes_on_when_there_is_room() {
        use std::sync::atomic::{AtomicU64, Ordering};

        let signal = CheckpointSignal::new();
        let dirty = AtomicU64::new(3000);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| signal.throttle(LIMITS, || dirty.load(Ordering::SeqCst)));
            for left in [3000, 1000] {
                // It is urgent; the first of the two does not suffice.
                assert_eq!(signal.wait(later()), CheckpointWork::Checkpoint);
                // Refused, as by a full disk: it is not urgent a second time.
                signal.changed(false);
                assert!(!signal.is_pressing(later()) && signal.is_pressing(Instant::now()));
                assert_eq!(signal.wait(Instant::now()), CheckpointWork::Checkpoint);
                dirty.store(left, Ordering::SeqCst);
                signal.checkpointed(2000, Duration::ZERO);
            }
            waiter.join().unwrap();
        });
        // Full for good, but stopped.
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| signal.throttle(LIMITS, || 3000));
            signal.stop();
            waiter.join().unwrap();
        });
    }

    #[test]
    fn who_is_between_the_limits_rests_and_presses_nobody() {
        use std::sync::atomic::{AtomicU64, Ordering};

        let signal = CheckpointSignal::new();
        let limits = DirtyLimits { soft_bytes: 64 << 20, hard_bytes: 256 << 20 };
        // At this rate it takes days to write what is above the limit.
        signal.checkpointed(1 << 20, Duration::from_secs(3600));
        let (dirty, looks) = (AtomicU64::new(200 << 20), AtomicU64::new(0));
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                signal.throttle(limits, || {
                    looks.fetch_add(1, Ordering::SeqCst);
                    dirty.load(Ordering::SeqCst)
                });
            });
            while looks.load(Ordering::SeqCst) < 2 {
                assert!(!waiter.is_finished(), "it went on without a rest");
                std::thread::yield_now();
            }
            dirty.store(64 << 20, Ordering::SeqCst);
            waiter.join().unwrap();
        });
        assert!(!signal.is_pressing(Instant::now()), "no checkpoint was asked for");
    }

    #[test]
    fn memory_is_made_ready_at_once_and_a_checkpoint_keeps_its_time() {
        let signal = CheckpointSignal::new();
        signal.changed(false);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| signal.wait(later()));
            signal.want_slabs();
            assert_eq!(waiter.join().unwrap(), CheckpointWork::Slabs);
        });
        assert_eq!(signal.wait(Instant::now()), CheckpointWork::Checkpoint, "once");
    }

    #[test]
    fn a_rest_ends_when_a_checkpoint_is_wanted() {
        let signal = CheckpointSignal::new();
        signal.rest(Duration::ZERO);
        std::thread::scope(|scope| {
            let resting = scope.spawn(|| signal.rest(Duration::from_secs(3600)));
            signal.changed(false);
            signal.changed(true);
            resting.join().unwrap();
        });
    }

    #[test]
    fn size_wakes_a_checkpointer_that_waits_for_its_time() {
        let signal = CheckpointSignal::new();
        signal.changed(false);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| signal.wait(later()));
            signal.changed(true);
            assert_eq!(waiter.join().unwrap(), CheckpointWork::Checkpoint);
        });
    }
}
