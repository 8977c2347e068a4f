//! Group commit: many writers, one write, one sync.
//!
//! Writers queue encoded frames. One thread at a time is the leader: it takes all that is queued,
//! writes it with one vectored write, syncs once if any write of the round wants that, changes the
//! index in the order of the log and completes the writes. The other threads encode and queue
//! meanwhile: no lock that they need is held over the disk. A thread that waits for an outcome
//! becomes the leader if there is none. A leader that finds threads asleep for the next round wakes
//! one of them first and its own followers then, so that the disk does not wait for them. See
//! [`crate::commit::rounds`] and `docs/decisions/0003-who-flushes.md`.
//!
//! Once a write or a sync has failed, every queued write fails and the log takes nothing more.
//!
//! Locks: no thread holds `log` and `write_queue` at once. Under either one the locks of the index
//! may be taken, and under `write_queue` the lock of the callback queue. No callback and no waker
//! of an embedder runs under any of them.

use crate::batch::compress::Compressor;
use crate::batch::frame::{Change, Changes, Frame, WritePriority};
use crate::batch::log_batch::LogBatch;
use crate::commit::appender::LogAppender;
use crate::commit::rounds::{CommitRole, CommitRounds};
use crate::error::Error;
use crate::format::layout::{self, FRAME_HEADER_BYTES};
use crate::index::groups::Groups;
use crate::index::segment_usage::SegmentUsage;
use crate::queue::callbacks::{CallbackQueue, Completions};
use crate::queue::completion::{Completion, Outcome};
use crate::queue::write_queue::{Durability, QueuedWrite, WriteQueue};
use crate::segments::disk_quota::QuotaExceeded;
use crate::segments::pool::{AppendFailure, SegmentPool};
use crate::stats::LogCounters;
use flotilla_base::sync::atomic::Ordering;
use flotilla_base::sync::{Mutex, MutexGuard};
use std::io;
use std::sync::Arc;

/// Everything between the writers and the log.
#[derive(Debug)]
pub(crate) struct GroupCommit {
    pub(super) write_queue: Mutex<WriteQueue>,
    pub(super) rounds: CommitRounds,
    pub(super) log: Mutex<Log>,
    pub(super) callbacks: CallbackQueue,
    pub(crate) groups: Arc<Groups>,
    pub(crate) pool: Arc<SegmentPool>,
    pub(crate) counters: LogCounters,
    compressor: Compressor,
}

/// The part of the log that only the leader touches, and purge between two leaders.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) appender: LogAppender,
    pub(crate) usage: SegmentUsage,
}

/// A write that is queued, or was refused at once.
#[derive(Debug)]
pub(crate) struct PendingWrite {
    pub(crate) completion: Arc<Completion>,
    /// The commit round that it belongs to.
    pub(super) round: u64,
}

impl PendingWrite {
    fn failed(error: Error) -> PendingWrite {
        PendingWrite { completion: Arc::new(Completion::done(Err(error))), round: 0 }
    }
}

impl GroupCommit {
    pub(crate) fn new(
        appender: LogAppender,
        pool: Arc<SegmentPool>,
        usage: SegmentUsage,
        groups: Arc<Groups>,
    ) -> GroupCommit {
        let compressor = Compressor::new(pool.directory().config.compress_above_bytes);
        let counters = LogCounters::default();
        counters.durable_lsn.store(appender.synced_lsn(), Ordering::Release);
        counters.live_bytes.store(usage.live_bytes(), Ordering::Relaxed);
        let is_read_only = pool.directory().is_read_only;
        GroupCommit {
            write_queue: Mutex::new(WriteQueue::new(is_read_only)),
            rounds: CommitRounds::new(),
            log: Mutex::new(Log { appender, usage }),
            callbacks: CallbackQueue::default(),
            groups,
            pool,
            counters,
            compressor,
        }
    }

    /// Queues a batch. Never waits for the disk.
    pub(crate) fn write(&self, mut batch: LogBatch, durability: Durability) -> PendingWrite {
        self.compressor.compress(&mut batch);
        let queued = batch
            .seal(self.pool.directory().config.batch_bytes_max)
            .and_then(|frame| self.enqueue(Some(frame), durability));
        queued.unwrap_or_else(PendingWrite::failed)
    }

    /// Queues a sync of everything that was queued before.
    pub(crate) fn sync(&self) -> PendingWrite {
        self.enqueue(None, Durability::Synced).unwrap_or_else(PendingWrite::failed)
    }

    /// Waits until all that is queued is carried out, by this thread or another. False if nothing
    /// is queued or under way.
    pub(crate) fn flush(&self) -> bool {
        let round = {
            let write_queue = self.write_queue.lock();
            write_queue.round - u64::from(write_queue.writes.is_empty())
        };
        if self.rounds.is_done(round) {
            return false;
        }
        self.wait_for(round, None);
        true
    }

    /// Waits for the outcome, as the leader if there is none. No other thread may ask for the same
    /// outcome, then or later.
    pub(crate) fn wait(&self, queued: &PendingWrite) -> Outcome {
        let own_outcome = self.wait_for(queued.round, Some(&queued.completion));
        own_outcome.unwrap_or_else(|| queued.completion.outcome().expect("the round is done"))
    }

    pub(super) fn is_done(&self, round: u64) -> bool {
        self.rounds.is_done(round)
    }

    /// Waits until the round is done, as the leader if there is none.
    pub(super) fn carry_out(&self, round: u64) {
        self.wait_for(round, None);
    }

    fn wait_for(&self, round: u64, own: Option<&Arc<Completion>>) -> Option<Outcome> {
        match self.rounds.wait(round) {
            CommitRole::Leader => self.lead(round, own),
            CommitRole::Follower => None,
        }
    }

    /// Runs a callback that was set after the outcome was there, behind those of earlier batches
    /// that may wait for a thread.
    pub(crate) fn call_back(&self, completion: &Arc<Completion>, outcome: Outcome) {
        {
            // Completions, and the callbacks that they queue, change under this lock: those of the
            // batches of the same round are queued by now.
            let _waiting = self.write_queue.lock();
            self.callbacks.push(completion.clone(), outcome);
        }
        self.callbacks.run();
    }

    /// Access to the log while no leader writes.
    pub(crate) fn with_log<T>(&self, use_log: impl FnOnce(&mut Log) -> T) -> T {
        let mut log = self.log.lock();
        let used = use_log(&mut log);
        MutexGuard::unlock_fair(log);
        used
    }

    /// Writes a frame that was made under this lock, and changes the index as it says. The frame
    /// changes no group's bounds, so that the admission of queued batches stays right. Not synced.
    pub(crate) fn append(&self, log: &mut Log, frame: &mut Frame) -> Result<(), AppendFailure> {
        debug_assert!(
            frame.changes.iter().all(|change| matches!(
                change,
                Change::Move(_) | Change::Put { .. } | Change::Compact { .. }
            )),
            "a rewrite changes the bounds of a group"
        );
        let (places, failure) = log.appender.append(&mut [&mut *frame]);
        if let Some(failure) = failure {
            return Err(failure);
        }
        self.apply_frame(frame, places[0], &mut log.usage);
        self.counters.live_bytes.store(log.usage.live_bytes(), Ordering::Relaxed);
        Ok(())
    }

    /// The error for the caller of a failed append. If the log is broken, all queued writes fail
    /// with it.
    pub(crate) fn error_of(&self, failure: AppendFailure) -> Error {
        match failure {
            AppendFailure::NoSpace => self.no_space(),
            AppendFailure::Full(QuotaExceeded { bytes, limit }) => Error::Full { bytes, limit },
            AppendFailure::Broken(error) => self.fail(error),
        }
    }

    pub(super) fn no_space(&self) -> Error {
        Error::NoSpace { dir: self.pool.directory().path.clone() }
    }

    pub(crate) fn queued_bytes(&self) -> u64 {
        self.write_queue.lock().bytes
    }

    pub(crate) fn poison(&self) -> Option<Arc<io::Error>> {
        self.write_queue.lock().poison.clone()
    }

    /// Whether the log takes writes.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.write_queue.lock().check()
    }

    /// Writes a sync marker, if one is due and nothing was written since the last call: a frame
    /// without items, by which a later start knows that the frame before it was synced. Returns
    /// whether it did.
    ///
    /// Bit rot in the last batch can then be distinguished from a torn write, however the process
    /// ends.
    pub(crate) fn write_sync_marker(&self) -> Result<bool, Error> {
        let mut bytes = vec![0; FRAME_HEADER_BYTES];
        layout::pad(&mut bytes);
        let is_wanted = {
            // A leader that writes now will say itself what is synced.
            let Some(mut log) = self.log.try_lock() else { return Ok(false) };
            log.appender.is_idle() && log.appender.wants_sync_marker(bytes.len() as u64)
        };
        if !is_wanted {
            return Ok(false);
        }
        let body_checksum = layout::body_checksum(&bytes[FRAME_HEADER_BYTES..]);
        let frame = Frame {
            bytes,
            body_checksum,
            changes: Changes::new(),
            priority: WritePriority::Reclaim,
        };
        let queued = self.enqueue(Some(frame), Durability::Buffered)?;
        self.wait(&queued).map(|_| true)
    }

    /// Poisons the log: fails all that is queued or comes, after a write or sync outside of any
    /// round failed.
    pub(crate) fn fail(&self, error: io::Error) -> Error {
        let mut write_queue = self.write_queue.lock();
        let mut completions = Completions::default();
        let error = write_queue.poison(error, &mut completions);
        self.callbacks.take_from(&mut completions);
        drop(write_queue);
        completions.wake();
        self.callbacks.run();
        error
    }

    /// Writes what is queued, makes everything durable, and takes no more writes.
    pub(crate) fn close(&self) -> Result<(), Error> {
        // Admission is closed: when this round is done, nothing is left.
        let round = {
            let mut write_queue = self.write_queue.lock();
            match write_queue.check() {
                Err(Error::ReadOnly | Error::Closed) => return Ok(()),
                other => other?,
            }
            write_queue.is_closed = true;
            write_queue.round
        };
        self.wait_for(round, None);
        debug_assert_eq!(self.queued_bytes(), 0, "a closed log has writes");
        let closed = self.with_log(|log| {
            log.appender.close()?;
            self.counters.durable_lsn.fetch_max(log.appender.synced_lsn(), Ordering::AcqRel);
            Ok(())
        });
        closed.map_err(|failure| self.error_of(failure))
    }

    fn enqueue(&self, frame: Option<Frame>, durability: Durability) -> Result<PendingWrite, Error> {
        let write = QueuedWrite::new(frame, durability);
        let completion = write.completion.clone();
        let bytes_max = self.pool.directory().config.queue_bytes_max;
        let round = self.write_queue.lock().admit(write, &self.groups, bytes_max)?;
        Ok(PendingWrite { completion, round })
    }
}

impl Drop for GroupCommit {
    fn drop(&mut self) {
        // The maintenance thread wakes up, and sees that the log is gone.
        self.pool.event_count.notify();
        let mut completions = Completions::default();
        self.write_queue.get_mut().fail_queued(&Error::Closed, &mut completions);
        self.callbacks.take_from(&mut completions);
        completions.wake();
        self.callbacks.run();
    }
}
