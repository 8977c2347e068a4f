//! The leader of a commit round: one write, one sync, then the index, then the completions.

use crate::batch::frame::Frame;
use crate::commit::group_commit::GroupCommit;
use crate::error::Error;
use crate::index::groups::FrameLocation;
use crate::index::segment_usage::SegmentUsage;
use crate::queue::callbacks::Completions;
use crate::queue::completion::{Completion, Outcome, Receipt};
use crate::queue::write_queue::{Durability, QueuedWrite};
use crate::segments::disk_quota::QuotaExceeded;
use crate::segments::pool::AppendFailure;
use flotilla_base::sync::atomic::{AtomicU64, Ordering};
use smallvec::SmallVec;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

/// The longest list of writes that is emptied, and kept, while the queue is locked. The memory of a
/// longer one is freed after the lock is released, so that no writer waits for it.
const EMPTIED_WRITES_MAX: usize = 4;

/// The outcome of the writes that a leader took.
struct FlushOutcome {
    /// How many writes, from the first on, are in the log.
    written: usize,
    /// Why the others failed.
    failure: Option<AppendFailure>,
}

impl GroupCommit {
    /// Carries out the round that this thread leads. Returns the outcome of the write whose
    /// completion is `own`, if it was carried out; it is not left in the completion then.
    pub(super) fn lead(&self, round: u64, own: Option<&Arc<Completion>>) -> Option<Outcome> {
        let mut own_outcome = None;
        loop {
            let (is_left, outcome) = self.commit_round(round, own);
            own_outcome = own_outcome.or(outcome);
            if !is_left {
                break;
            }
            self.pool.room.rest();
        }
        self.callbacks.run();
        own_outcome
    }

    /// Carries out all that is queued, and ends all rounds from `round` on. True if some writes are
    /// left, because a write before them was refused or they wait for room; then no round ends.
    fn commit_round(&self, round: u64, own: Option<&Arc<Completion>>) -> (bool, Option<Outcome>) {
        self.rounds.hold_window(round);
        let mut writes = {
            let mut write_queue = self.write_queue.lock();
            assert!(write_queue.round >= round, "round {round} was not begun");
            write_queue.round += 1;
            // Under this lock: a writer that gets the next round finds its slot open.
            self.rounds.open(write_queue.round);
            let emptied = std::mem::take(&mut write_queue.emptied);
            std::mem::replace(&mut write_queue.writes, emptied)
        };
        // A panic in our own code must not leave followers asleep for ever: they are completed,
        // then it goes on.
        let is_synced = writes.iter().any(|write| write.durability == Durability::Synced);
        self.counters.begin_flush(is_synced);
        let write_and_sync = || self.write_and_sync(&mut writes, is_synced);
        let flushed = panic::catch_unwind(AssertUnwindSafe(write_and_sync));
        self.counters.end_flush();
        let (flushed, fault) = match flushed {
            Ok(flushed) => (flushed, None),
            Err(fault) => (FlushOutcome::broken(io::Error::other("a write panicked")), Some(fault)),
        };
        let mut completions = Completions::of(own);
        let next = self.complete(&mut writes, flushed, &mut completions);
        if let Some(next) = next {
            self.rounds.finish(round..next);
        }
        let own_outcome = completions.wake();
        if let Some(fault) = fault {
            panic::resume_unwind(fault);
        }
        (next.is_none(), own_outcome)
    }

    fn write_and_sync(&self, writes: &mut [QueuedWrite], is_synced: bool) -> FlushOutcome {
        self.rounds.set_syncing(is_synced);
        let mut log = self.log.lock();
        let log = &mut *log;
        let mut frames: SmallVec<[&mut Frame; 8]> =
            writes.iter_mut().filter_map(|write| write.frame.as_mut()).collect();
        let (frame_count, before) = (frames.len(), log.appender.last_lsn());
        if !is_synced {
            self.pool.expect_unsynced(frames.iter().map(|frame| frame.bytes.len() as u64).sum());
        }
        let (places, mut failure) = log.appender.append(&mut frames);
        drop(frames);
        let written = written_count(writes, places.len(), frame_count);
        let written = &mut writes[..written];
        if !matches!(failure, Some(AppendFailure::Broken(_)))
            && written.iter().any(|write| write.durability == Durability::Synced)
        {
            add(&self.counters.syncs, 1);
            failure = log.appender.sync().err().or(failure);
        }
        if matches!(failure, Some(AppendFailure::Broken(_))) {
            return FlushOutcome { written: 0, failure };
        }
        self.apply(written, &places, before, &mut log.usage);
        let synced_lsn = log.appender.synced_lsn();
        assert!(synced_lsn <= log.appender.last_lsn(), "{synced_lsn} is synced and not written");
        // A load first: readers poll this counter, and rounds without a sync change nothing.
        if synced_lsn > self.counters.durable_lsn.load(Ordering::Relaxed) {
            self.counters.durable_lsn.fetch_max(synced_lsn, Ordering::AcqRel);
        }
        self.counters.live_bytes.store(log.usage.live_bytes(), Ordering::Relaxed);
        FlushOutcome { written: written.len(), failure }
    }

    /// Changes the index as the frames that now lie in the log say.
    fn apply(
        &self,
        writes: &mut [QueuedWrite],
        places: &[FrameLocation],
        before: u64,
        usage: &mut SegmentUsage,
    ) {
        let mut places = places.iter();
        let mut lsn = before;
        for write in writes {
            if let Some(frame) = &write.frame {
                let place = *places.next().expect("each frame that was written has a place");
                self.apply_frame(frame, place, usage);
                debug_assert_eq!(place.lsn, lsn + 1, "frames are applied in their order");
                lsn = place.lsn;
            }
            write.lsn = lsn;
        }
        assert!(places.next().is_none(), "a frame in the log is of no write");
        add(&self.counters.flushes, 1);
    }

    /// Changes the index as a frame that now lies in the log says.
    pub(super) fn apply_frame(
        &self,
        frame: &Frame,
        place: FrameLocation,
        usage: &mut SegmentUsage,
    ) {
        for change in &frame.changes {
            self.groups
                .apply(change, place, usage)
                .expect("the batch was checked against the group's tail");
        }
        add(&self.counters.batches, 1);
        add(&self.counters.bytes_written, frame.bytes.len() as u64);
    }

    /// Completes the writes. Returns the round that no thread has begun, unless writes are left
    /// that this thread has to carry out as well.
    fn complete(
        &self,
        writes: &mut Vec<QueuedWrite>,
        flushed: FlushOutcome,
        completions: &mut Completions<'_>,
    ) -> Option<u64> {
        let FlushOutcome { written, failure } = flushed;
        let mut write_queue = self.write_queue.lock();
        let write_queue = &mut *write_queue;
        for write in &writes[..written] {
            write_queue.release(write.bytes());
            completions.complete(&write.completion, Ok(Receipt { lsn: write.lsn }));
        }
        if let Some(last) = writes[..written].last() {
            write_queue.queued_bounds.forget_applied(last.write_number);
        }
        if written < writes.len() {
            drop(write_queue.writes.splice(..0, writes.drain(written..)));
        }
        let waits = self.pool.room.is_on() && matches!(failure, Some(AppendFailure::NoSpace));
        self.pool.room.note(waits);
        let is_left = match failure {
            None => false,
            // All of them stay, in their order.
            Some(AppendFailure::NoSpace) if waits => true,
            Some(AppendFailure::NoSpace) => {
                self.refuse_queued(write_queue, &self.no_space(), completions)
            }
            Some(AppendFailure::Full(QuotaExceeded { bytes, limit })) => {
                self.refuse_queued(write_queue, &Error::Full { bytes, limit }, completions)
            }
            Some(AppendFailure::Broken(error)) => {
                write_queue.poison(error, completions);
                false
            }
        };
        let is_idle = write_queue.writes.is_empty();
        assert!(
            !is_idle || write_queue.bytes == 0,
            "{} bytes are left of no batch",
            write_queue.bytes
        );
        debug_assert_eq!(
            write_queue.writes.iter().map(QueuedWrite::bytes).sum::<u64>(),
            write_queue.bytes,
            "the backpressure counts other bytes than are queued"
        );
        if writes.len() <= EMPTIED_WRITES_MAX {
            writes.clear();
            write_queue.emptied = std::mem::take(writes);
        }
        self.callbacks.take_from(completions);
        (!is_left).then_some(write_queue.round)
    }
}

/// Adds to a counter that only the holder of the log's lock changes: no locked instruction is
/// needed.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

impl FlushOutcome {
    fn broken(error: io::Error) -> FlushOutcome {
        FlushOutcome { written: 0, failure: Some(AppendFailure::Broken(error)) }
    }
}

/// How many writes, from the first on, are in the log, if `written_frames` of their frames are.
/// Syncs behind the last frame count only if no frame is missing.
fn written_count(writes: &[QueuedWrite], written_frames: usize, frame_count: usize) -> usize {
    if written_frames == frame_count {
        return writes.len();
    }
    let mut frames = 0;
    let is_written = |write: &&QueuedWrite| {
        frames += usize::from(write.frame.is_some());
        frames <= written_frames
    };
    writes.iter().take_while(is_written).count()
}
