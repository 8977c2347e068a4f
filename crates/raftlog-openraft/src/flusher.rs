//! The flusher: a thread that leads the group commits of a log, and one that maintains it.
//!
//! A thread, and not a blocking task for each append: no runtime is assumed, and one thread that
//! flushes for all groups takes all that was queued during the last sync, which is the group
//! commit. Maintenance has a thread of its own: to preallocate a segment takes as long as many
//! syncs, and a flusher that did so in its idle time would delay the next writer.

use flotilla_raftlog::{LogEngine, LogMaintenance};
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::{Builder, JoinHandle};

/// A thread that writes the queued batches of the groups of one log. While it writes and syncs,
/// more is queued, all of which is done next. A second thread preallocates and seals segments, see
/// [`LogEngine::maintain`].
///
/// When it is dropped it writes what is queued, and both end. A group that is still there then
/// writes by itself what it queues later.
#[derive(Debug)]
pub struct Flusher {
    notify: Arc<FlushNotify>,
    thread: Option<JoinHandle<()>>,
    _maintenance: LogMaintenance,
}

/// Wakes the thread.
#[derive(Debug)]
pub(crate) struct FlushNotify {
    pub(crate) log: LogEngine,
    state: Mutex<FlusherState>,
    notified: Condvar,
}

#[derive(Debug, Default)]
struct FlusherState {
    is_notified: bool,
    is_over: bool,
}

impl Flusher {
    /// Starts the threads for a log. One flusher is enough for any number of groups.
    ///
    /// # Errors
    ///
    /// The kernel refuses more threads; or the log takes no writes, since it is closed, poisoned or
    /// open for reading only.
    pub fn start(log: LogEngine) -> io::Result<Flusher> {
        let maintenance = log.maintain_in_background().map_err(io::Error::other)?;
        let notify =
            Arc::new(FlushNotify { log, state: Mutex::default(), notified: Condvar::new() });
        let run = notify.clone();
        let thread = Builder::new().name("raftlog-flusher".to_owned()).spawn(move || run.run())?;
        Ok(Flusher { notify, thread: Some(thread), _maintenance: maintenance })
    }

    /// The log that is flushed.
    #[must_use]
    pub fn log(&self) -> &LogEngine {
        &self.notify.log
    }

    pub(crate) fn notify(&self) -> Arc<FlushNotify> {
        self.notify.clone()
    }
}

impl Drop for Flusher {
    fn drop(&mut self) {
        self.notify.lock().is_over = true;
        self.notify.notified.notify_one();
        if let Some(thread) = self.thread.take() {
            // The thread catches panics, so there is none to report.
            let _ = thread.join();
        }
    }
}

impl FlushNotify {
    /// Something is queued.
    pub(crate) fn notify_flush(&self) {
        let mut state = self.lock();
        state.is_notified = true;
        let is_over = state.is_over;
        drop(state);
        if is_over {
            self.flush();
        } else {
            self.notified.notify_one();
        }
    }

    fn run(&self) {
        loop {
            let mut state = self.lock();
            while !state.is_notified && !state.is_over {
                state = self.notified.wait(state).expect("nothing panics with the lock");
            }
            state.is_notified = false;
            let is_over = state.is_over;
            drop(state);
            self.flush();
            if is_over {
                return;
            }
        }
    }

    fn flush(&self) {
        // A callback that panics was reported by then. Others wait behind it: the log runs them
        // with the next flush.
        while panic::catch_unwind(AssertUnwindSafe(|| self.log.flush())).unwrap_or(true) {}
    }

    fn lock(&self) -> MutexGuard<'_, FlusherState> {
        self.state.lock().expect("nothing panics with the lock")
    }
}
