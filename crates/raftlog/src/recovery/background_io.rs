//! Background I/O: one call to the disk in a thread of its own while the caller computes.

use std::io;
use std::thread::{self, JoinHandle};

/// A call that is under way, or done. Dropping it waits for its end: nothing touches the disk after
/// its caller has given up.
#[derive(Debug)]
pub(crate) struct BackgroundIo {
    thread: Option<JoinHandle<io::Result<()>>>,
}

impl BackgroundIo {
    /// Starts it; `None` if the kernel refuses a thread, and then nothing was done.
    pub(crate) fn start(
        work: impl FnOnce() -> io::Result<()> + Send + 'static,
    ) -> Option<BackgroundIo> {
        let thread = thread::Builder::new().name("log-open".to_owned()).spawn(work).ok()?;
        Some(BackgroundIo { thread: Some(thread) })
    }

    /// Waits until it is done, and returns its result.
    pub(crate) fn wait(mut self) -> io::Result<()> {
        let thread = self.thread.take().expect("it is taken here and by the drop only");
        thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
    }
}

impl Drop for BackgroundIo {
    fn drop(&mut self) {
        if let Some(thread) = self.thread.take() {
            // The caller that drops it returns an earlier error.
            let _ = thread.join();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicBool, Ordering};

    #[test]
    fn the_end_is_waited_for_and_told() {
        let failing =
            BackgroundIo::start(|| Err(io::ErrorKind::StorageFull.into())).expect("started");
        let error = failing.wait().expect_err("it failed");
        assert_eq!(error.kind(), io::ErrorKind::StorageFull);
        let is_done = Arc::<AtomicBool>::default();
        let done = is_done.clone();
        let work = BackgroundIo::start(move || {
            thread::yield_now();
            done.store(true, Ordering::Release);
            Ok(())
        });
        drop(work.expect("started"));
        assert!(is_done.load(Ordering::Acquire), "it goes on after it was given up");
    }
}
