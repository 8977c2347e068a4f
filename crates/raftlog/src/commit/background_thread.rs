//! A background thread of the log: it works while there is something to do, and waits for events.

use flotilla_base::event_count::EventCount;
use flotilla_base::sync::atomic::{AtomicBool, Ordering};
use flotilla_base::sync::thread::{self, JoinHandle};
use std::io;
use std::sync::Arc;
use std::time::Duration;

/// The state of the work after a step of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NextStep {
    /// There may be more to do.
    Now,
    /// Nothing is to do before an event, or before the poll interval is over.
    OnEvent,
    /// Nothing is to do before an event, or before this time is over.
    After(Duration),
    Never,
}

/// The thread. It stops when this is dropped, which waits for the step that is under way.
#[derive(Debug)]
pub(super) struct BackgroundThread {
    is_over: Arc<AtomicBool>,
    event_count: Arc<EventCount>,
    thread: Option<JoinHandle<()>>,
}

impl BackgroundThread {
    /// Starts a thread that calls `step` again and again.
    ///
    /// # Errors
    ///
    /// The kernel refuses a thread.
    pub(super) fn start(
        name: &str,
        event_count: Arc<EventCount>,
        poll_interval: Duration,
        mut step: impl FnMut() -> NextStep + Send + 'static,
    ) -> io::Result<BackgroundThread> {
        let is_over = Arc::<AtomicBool>::default();
        let (over, changed) = (is_over.clone(), event_count.clone());
        let thread = thread::Builder::new().name(name.to_owned()).spawn(move || {
            let mut seen = 0;
            while !over.load(Ordering::Acquire) {
                match step() {
                    NextStep::Now => {}
                    NextStep::OnEvent => seen = changed.wait(seen, poll_interval),
                    NextStep::After(time) => seen = changed.wait(seen, time.min(poll_interval)),
                    NextStep::Never => return,
                }
            }
        })?;
        Ok(BackgroundThread { is_over, event_count, thread: Some(thread) })
    }
}

impl Drop for BackgroundThread {
    fn drop(&mut self) {
        self.is_over.store(true, Ordering::Release);
        self.event_count.notify();
        // A callback that the thread itself runs may drop this; it cannot wait for itself.
        let thread = self.thread.take().filter(|t| t.thread().id() != thread::current().id());
        if let Some(thread) = thread {
            // A panic was reported when it happened, and the writes that waited have failed.
            let _ = thread.join();
        }
    }
}
