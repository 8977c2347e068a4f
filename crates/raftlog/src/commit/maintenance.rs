//! Background maintenance: preallocates the next segment, seals full ones, and writes a sync marker
//! when the log is idle.
//!
//! A caller of [`step`] does it step by step, or a thread of its own. An append does by itself what
//! is not done in time, so that only latency depends on this.

use crate::commit::group_commit::GroupCommit;
use crate::error::Error;
use crate::segments::pool::AppendFailure;
use flotilla_base::event_count::EventCount;
use flotilla_base::sync::atomic::{AtomicBool, Ordering};
use flotilla_base::sync::thread::{self, JoinHandle};
use std::io;
use std::sync::{Arc, Weak};
use std::time::Duration;

/// How often the thread checks whether the log is idle, or a full disk has room again.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// The thread that maintains a log. It stops when this is dropped, which waits for the step that is
/// under way, or when the log is dropped.
#[derive(Debug)]
#[must_use = "the thread stops when this is dropped"]
pub struct LogMaintenance {
    is_over: Arc<AtomicBool>,
    event_count: Arc<EventCount>,
    thread: Option<JoinHandle<()>>,
}

/// One step. Returns whether there was something to do.
pub(crate) fn step(group_commit: &GroupCommit) -> Result<bool, Error> {
    group_commit.check()?;
    let pool = &group_commit.pool;
    let broken = |error| group_commit.fail(error);
    // First the step that an append would wait for longest.
    match pool.preallocate() {
        // Without room until then, writes are refused once the active segment is full.
        Err(AppendFailure::NoSpace | AppendFailure::Full(_)) => {}
        Err(AppendFailure::Broken(error)) => return Err(broken(error)),
        Ok(true) => return Ok(true),
        Ok(false) => {}
    }
    if pool.seal_oldest().map_err(broken)? {
        group_commit.counters.durable_lsn.fetch_max(pool.synced_lsn(), Ordering::AcqRel);
        return Ok(true);
    }
    match group_commit.write_sync_marker() {
        // A later step tries again.
        Err(Error::Busy { .. } | Error::NoSpace { .. } | Error::Full { .. }) => Ok(false),
        other => other,
    }
}

impl LogMaintenance {
    pub(crate) fn start(group_commit: &Arc<GroupCommit>) -> io::Result<LogMaintenance> {
        let (is_over, event_count) =
            (Arc::<AtomicBool>::default(), group_commit.pool.event_count.clone());
        let (over, changed) = (is_over.clone(), event_count.clone());
        // A weak reference: the thread must not keep a log open that its owner has dropped.
        let log = Arc::downgrade(group_commit);
        let thread = thread::Builder::new()
            .name("log-maintenance".to_owned())
            .spawn(move || run(&over, &changed, &log))?;
        Ok(LogMaintenance { is_over, event_count, thread: Some(thread) })
    }
}

impl Drop for LogMaintenance {
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

fn run(is_over: &AtomicBool, event_count: &EventCount, log: &Weak<GroupCommit>) {
    let mut seen = 0;
    while !is_over.load(Ordering::Acquire) {
        match log.upgrade().map(|group_commit| step(&group_commit)) {
            Some(Ok(true)) => {}
            Some(Ok(false)) => seen = event_count.wait(seen, POLL_INTERVAL),
            // The log is gone, closed or poisoned. The next writer gets the error.
            Some(Err(_)) | None => return,
        }
    }
}
