//! Makes applied state durable now and then, so that the log before it may go.

use std::sync::Arc;
use std::time::{Duration, Instant};

use flotilla_pagestore::Error as PagesError;
use flotilla_region::Event;
use flotilla_store::{Error, Store};
use parking_lot::{Condvar, Mutex};

use crate::failure::Failure;
use crate::letters::Mailboxes;

/// Tells the checkpointer that there is something to do. A store at rest makes no checkpoints.
pub(crate) struct Alarm {
    state: Mutex<State>,
    wake: Condvar,
}

#[derive(Default)]
struct State {
    /// Something was applied since the last checkpoint began.
    changed: bool,
    /// The next checkpoint should not wait for its time.
    urgent: bool,
    stopped: bool,
}

impl Alarm {
    /// Nothing to do.
    pub(crate) fn new() -> Self {
        Self { state: Mutex::default(), wake: Condvar::new() }
    }

    /// Something was applied; `urgent` if too much waits for the disk.
    pub(crate) fn changed(&self, urgent: bool) {
        let mut state = self.state.lock();
        let news = !state.changed || (urgent && !state.urgent);
        state.changed = true;
        state.urgent |= urgent;
        if news {
            self.wake.notify_all();
        }
    }

    /// Ends the checkpointer, without a last checkpoint.
    pub(crate) fn stop(&self) {
        self.state.lock().stopped = true;
        self.wake.notify_all();
    }

    /// Waits until a checkpoint is due: something has changed, and it is urgent or `due` has
    /// come. False when stopped.
    fn wait(&self, due: Instant) -> bool {
        let mut state = self.state.lock();
        while !state.stopped {
            let late = Instant::now() >= due;
            if state.changed && (state.urgent || late) {
                (state.changed, state.urgent) = (false, false);
                return true;
            }
            if state.changed {
                self.wake.wait_until(&mut state, due);
            } else {
                self.wake.wait(&mut state);
            }
        }
        false
    }
}

/// What the thread needs.
pub(crate) struct Checkpointer {
    pub(crate) store: Arc<Store>,
    pub(crate) alarm: Arc<Alarm>,
    pub(crate) interval: Duration,
    pub(crate) mailboxes: Mailboxes,
    pub(crate) failure: Failure,
}

impl Checkpointer {
    /// Runs until it is stopped or a checkpoint fails.
    pub(crate) fn run(self) {
        let mut due = Instant::now() + self.interval;
        while self.alarm.wait(due) {
            due = Instant::now() + self.interval;
            match self.checkpoint() {
                Ok(()) => {}
                // Nothing was written, and nothing is lost: the log has everything. The pages stay
                // in memory until there is room.
                Err(Error::Pages(PagesError::NoSpace)) => {
                    tracing::warn!("no checkpoint: the disk is full");
                    self.alarm.changed(false);
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
    fn checkpoint(&self) -> Result<(), Error> {
        let applied = self.store.checkpoint()?;
        self.mailboxes.complete_all(
            applied.into_iter().map(|(region, applied)| Event::Checkpointed { region, applied }),
        );
        let purged = self.store.purge_log()?;
        if purged.segments > 0 {
            tracing::debug!(segments = purged.segments, bytes = purged.bytes, "log purged");
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(3600)
    }

    #[test]
    fn a_checkpoint_is_due_by_time_or_by_size_and_only_after_a_change() {
        let alarm = Alarm::new();
        alarm.changed(false);
        assert!(alarm.wait(Instant::now()));
        alarm.changed(true);
        assert!(alarm.wait(later()));

        // Nothing has changed since, so the time alone makes none due; only the stop ends this.
        let waiting = std::thread::scope(|scope| {
            let waiter = scope.spawn(|| alarm.wait(Instant::now()));
            alarm.stop();
            waiter.join().unwrap()
        });
        assert!(!waiting);
    }

    #[test]
    fn size_wakes_a_checkpointer_that_waits_for_its_time() {
        let alarm = Alarm::new();
        alarm.changed(false);
        std::thread::scope(|scope| {
            let waiter = scope.spawn(|| alarm.wait(later()));
            alarm.changed(true);
            assert!(waiter.join().unwrap());
        });
    }
}
