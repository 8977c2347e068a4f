//! One thread carries out what is queued: one write, one sync, then the index, then the outcomes.

use super::GroupCommit;
use super::told::Told;
use super::waiting::{Durability, Write};
use crate::error::Error;
use crate::frame::Frame;
use crate::groups::Place;
use crate::ledger::Ledger;
use crate::limits::Over;
use crate::slot::{Outcome, Receipt, Slot};
use crate::stock::Failure;
use crate::sync::atomic::{AtomicU64, Ordering};
use smallvec::SmallVec;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;

/// A list of so many writes at most is emptied, and kept, while the queue is locked. The memory of
/// more is given back when nobody waits for it.
const EMPTIED_WRITES_MAX: usize = 4;

/// What became of the writes that a leader took.
struct Flushed {
    /// The first so many are in the log.
    written: usize,
    /// Why the others failed.
    failure: Option<Failure>,
}

impl GroupCommit {
    /// Carries out the turn, which is this thread's. Returns the outcome of the write whose slot is
    /// `own`, if it is one of those that were carried out; it is not left there.
    pub(super) fn lead(&self, turn: u64, own: Option<&Arc<Slot>>) -> Option<Outcome> {
        let mut own_outcome = None;
        loop {
            let (is_left, outcome) = self.carry_on(turn, own);
            own_outcome = own_outcome.or(outcome);
            if !is_left {
                break;
            }
        }
        self.callbacks.run();
        own_outcome
    }

    /// Carries out all that is queued, and ends all turns from `turn` on. True if some of it is left,
    /// because others stood in its way; then no turn ends.
    fn carry_on(&self, turn: u64, own: Option<&Arc<Slot>>) -> (bool, Option<Outcome>) {
        self.turns.gather(turn);
        let mut writes = {
            let mut waiting = self.waiting.lock();
            waiting.turn += 1;
            self.turns.open(waiting.turn);
            let emptied = std::mem::take(&mut waiting.emptied);
            std::mem::replace(&mut waiting.writes, emptied)
        };
        // A fault of ours must not leave others waiting for ever: they are told, then it goes on.
        let is_synced = writes.iter().any(|write| write.durability == Durability::Synced);
        self.counters.begin_flush(is_synced);
        let carry_out = || self.carry_out(&mut writes, is_synced);
        let flushed = panic::catch_unwind(AssertUnwindSafe(carry_out));
        self.counters.end_flush();
        let (flushed, fault) = match flushed {
            Ok(flushed) => (flushed, None),
            Err(fault) => (Flushed::broken(io::Error::other("a write panicked")), Some(fault)),
        };
        let mut told = Told::of(own);
        let next = self.settle(&mut writes, flushed, &mut told);
        if let Some(next) = next {
            self.turns.finish(turn..next);
        }
        let own_outcome = told.wake();
        if let Some(fault) = fault {
            panic::resume_unwind(fault);
        }
        (next.is_none(), own_outcome)
    }

    fn carry_out(&self, writes: &mut [Write], is_synced: bool) -> Flushed {
        self.turns.set_slow(is_synced);
        let mut log = self.log.lock();
        let log = &mut *log;
        let mut frames: SmallVec<[&mut Frame; 8]> =
            writes.iter_mut().filter_map(|write| write.frame.as_mut()).collect();
        let (frame_count, before) = (frames.len(), log.queue.last_lsn());
        if !is_synced {
            self.stock.expect_unsynced(frames.iter().map(|frame| frame.bytes.len() as u64).sum());
        }
        let (places, mut failure) = log.queue.append(&mut frames);
        drop(frames);
        let written = written_count(writes, places.len(), frame_count);
        let written = &mut writes[..written];
        if !matches!(failure, Some(Failure::Broken(_)))
            && written.iter().any(|write| write.durability == Durability::Synced)
        {
            add(&self.counters.syncs, 1);
            failure = log.queue.sync().err().or(failure);
        }
        if matches!(failure, Some(Failure::Broken(_))) {
            return Flushed { written: 0, failure };
        }
        self.apply(written, &places, before, &mut log.ledger);
        let synced_lsn = log.queue.synced_lsn();
        if synced_lsn > self.counters.durable_lsn.load(Ordering::Relaxed) {
            self.counters.durable_lsn.fetch_max(synced_lsn, Ordering::AcqRel);
        }
        self.counters.live_bytes.store(log.ledger.live_bytes(), Ordering::Relaxed);
        Flushed { written: written.len(), failure }
    }

    /// Changes the index as the frames say that now lie in the log.
    fn apply(&self, writes: &mut [Write], places: &[Place], before: u64, ledger: &mut Ledger) {
        let mut places = places.iter();
        let mut lsn = before;
        for write in writes {
            if let Some(frame) = &write.frame {
                let place = *places.next().expect("each frame that was written has a place");
                self.apply_frame(frame, place, ledger);
                lsn = place.lsn;
            }
            write.lsn = lsn;
        }
        add(&self.counters.flushes, 1);
    }

    /// Changes the index as a frame says that now lies in the log.
    pub(super) fn apply_frame(&self, frame: &Frame, place: Place, ledger: &mut Ledger) {
        for change in &frame.changes {
            self.groups
                .apply(change, place, ledger)
                .expect("the batch was checked against the group's tail");
        }
        add(&self.counters.batches, 1);
        add(&self.counters.bytes_written, frame.bytes.len() as u64);
    }

    /// Leaves the outcomes. Returns the turn that nobody has begun, unless something is left that
    /// this thread should carry out as well.
    fn settle(
        &self,
        writes: &mut Vec<Write>,
        flushed: Flushed,
        told: &mut Told<'_>,
    ) -> Option<u64> {
        let Flushed { written, failure } = flushed;
        let mut waiting = self.waiting.lock();
        let waiting = &mut *waiting;
        for write in &writes[..written] {
            waiting.bytes -= write.bytes();
            told.leave(&write.slot, Ok(Receipt { lsn: write.lsn }));
        }
        if let Some(last) = writes[..written].last() {
            waiting.tails.settle(last.arrival);
        }
        if written < writes.len() {
            drop(waiting.writes.splice(..0, writes.drain(written..)));
        }
        let is_left = match failure {
            None => false,
            Some(Failure::NoSpace) => self.refuse(waiting, &self.no_space(), told),
            Some(Failure::Full(Over { bytes, limit })) => {
                self.refuse(waiting, &Error::Full { bytes, limit }, told)
            }
            Some(Failure::Broken(error)) => {
                let cause = waiting.poison.get_or_insert_with(|| Arc::new(error)).clone();
                waiting.fail_queued(&Error::Poisoned(cause), told);
                false
            }
        };
        let is_idle = waiting.writes.is_empty();
        assert!(!is_idle || waiting.bytes == 0, "{} bytes are left of no batch", waiting.bytes);
        if writes.len() <= EMPTIED_WRITES_MAX {
            writes.clear();
            waiting.emptied = std::mem::take(writes);
        }
        self.callbacks.take_from(told);
        (!is_left).then_some(waiting.turn)
    }
}

/// Adds to what only who has the log changes.
fn add(counter: &AtomicU64, more: u64) {
    counter.store(counter.load(Ordering::Relaxed) + more, Ordering::Relaxed);
}

impl Flushed {
    fn broken(error: io::Error) -> Flushed {
        Flushed { written: 0, failure: Some(Failure::Broken(error)) }
    }
}

/// How many writes from the first on are in the log, if so many of their frames are. Syncs behind
/// the last frame count only if no frame is missing.
fn written_count(writes: &[Write], written_frames: usize, frame_count: usize) -> usize {
    if written_frames == frame_count {
        return writes.len();
    }
    let mut frames = 0;
    let is_written = |write: &&Write| {
        frames += usize::from(write.frame.is_some());
        frames <= written_frames
    };
    writes.iter().take_while(is_written).count()
}
