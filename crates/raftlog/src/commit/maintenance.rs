//! Background maintenance: preallocates the next segment, seals full ones, writes a sync marker
//! when the log is idle, and gives surplus files back to the file system.
//!
//! A caller of [`step`] does it step by step, or a thread of its own. An append does by itself what
//! is not done in time, so that only latency depends on this.

use crate::commit::background_thread::{BackgroundThread, NextStep};
use crate::commit::group_commit::GroupCommit;
use crate::error::Error;
use crate::segments::pool::AppendFailure;
use flotilla_base::sync::atomic::Ordering;
use std::io;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// How often the thread checks whether the log is idle, or a full disk has room again.
const POLL_INTERVAL: Duration = Duration::from_millis(200);

/// From one piece of surplus files that is given back to the next.
const TRIM_INTERVAL: Duration = Duration::from_millis(40);

/// The thread that maintains a log. It stops when this is dropped, which waits for the step that is
/// under way, or when the log is dropped.
#[derive(Debug)]
#[must_use = "the thread stops when this is dropped"]
pub struct LogMaintenance {
    _thread: BackgroundThread,
    /// A weak reference: the thread must not keep a log open that its owner has dropped.
    log: Weak<GroupCommit>,
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

/// Gives back surplus files at their pace.
#[derive(Debug)]
struct TrimPace {
    due: Instant,
}

impl TrimPace {
    fn step(&mut self, group_commit: &GroupCommit) -> Result<NextStep, Error> {
        let now = Instant::now();
        if now < self.due {
            return Ok(NextStep::After(self.due - now));
        }
        let is_trimmed =
            group_commit.pool.trim_surplus().map_err(|error| group_commit.fail(error))?;
        if !is_trimmed {
            return Ok(NextStep::OnEvent);
        }
        self.due = now + TRIM_INTERVAL;
        Ok(NextStep::After(TRIM_INTERVAL))
    }
}

impl LogMaintenance {
    pub(crate) fn start(group_commit: &Arc<GroupCommit>) -> io::Result<LogMaintenance> {
        let event_count = group_commit.pool.event_count.clone();
        let log = Arc::downgrade(group_commit);
        let mut pace = TrimPace { due: Instant::now() };
        let maintained = log.clone();
        let next_step = move || {
            let stepped = maintained.upgrade().map(|group_commit| match step(&group_commit)? {
                true => Ok(NextStep::Now),
                false => pace.step(&group_commit),
            });
            // The log is gone, closed or poisoned. The next writer gets the error.
            stepped.and_then(Result::ok).unwrap_or(NextStep::Never)
        };
        let thread =
            BackgroundThread::start("log-maintenance", event_count, POLL_INTERVAL, next_step)?;
        group_commit.pool.set_trimmed(true);
        Ok(LogMaintenance { _thread: thread, log })
    }
}

impl Drop for LogMaintenance {
    fn drop(&mut self) {
        if let Some(group_commit) = self.log.upgrade() {
            group_commit.pool.set_trimmed(false);
        }
    }
}
