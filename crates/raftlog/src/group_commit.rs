//! Many writers, one write, one sync.
//!
//! Writers queue encoded frames. One thread at a time leads: it takes all that is queued, writes it
//! with one vectored write, syncs once if anybody wants that, changes the index in the order of the
//! log and leaves the outcomes. Meanwhile others encode and queue: no lock that they need is held
//! over the disk. A thread that waits for its outcome while nobody leads becomes the leader; a
//! leader that finds a thread waiting in the queue behind it makes it the next, before it wakes
//! those that are done, so that the disk does not wait for them.
//!
//! Once a write or a sync has failed, everything queued fails and nothing more is taken.

use crate::batch::{Changes, Frame, LogBatch, Need};
use crate::compress::Compressor;
use crate::error::Error;
use crate::format::{self, FRAME_HEADER_BYTES};
use crate::groups::{Groups, Place};
use crate::ledger::Ledger;
use crate::limits::Over;
use crate::queue::AppendQueue;
use crate::slot::{Outcome, Receipt, Slot, Woken};
use crate::stats::Counters;
use crate::stock::{Failure, Stock};
use crate::sync::atomic::Ordering;
use crate::sync::{Condvar, Mutex, MutexGuard};
use crate::tails::Tails;
use smallvec::SmallVec;
use std::collections::VecDeque;
use std::io;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::task::Waker;
use std::time::Instant;

/// An emptied list of writes with more room is not kept.
const SPARE_WRITES_MAX: usize = 1024;

mod refusal;

/// How long-lived a batch is when its write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The operating system has it: it outlives the process, and perhaps not a power loss.
    Buffered,
    /// The disk has it.
    Synced,
}

/// Everything between the writers and the log.
#[derive(Debug)]
pub(crate) struct GroupCommit {
    waiting: Mutex<Waiting>,
    /// Tells threads that only flush that nobody leads.
    idle: Condvar,
    log: Mutex<Log>,
    callbacks: Mutex<Callbacks>,
    pub(crate) groups: Arc<Groups>,
    pub(crate) stock: Arc<Stock>,
    pub(crate) counters: Counters,
    compressor: Compressor,
}

/// What only the leader touches, and purge between two leaders.
#[derive(Debug)]
pub(crate) struct Log {
    pub(crate) queue: AppendQueue,
    pub(crate) ledger: Ledger,
}

#[derive(Debug, Default)]
struct Waiting {
    writes: Vec<Write>,
    /// The list that the last leader emptied.
    spare: Vec<Write>,
    /// Bytes of writes that are queued or with the leader.
    bytes: u64,
    last_ticket: u64,
    /// The last write that a leader has taken.
    taken_ticket: u64,
    has_leader: bool,
    flusher_count: usize,
    poison: Option<Arc<io::Error>>,
    is_closed: bool,
    is_read_only: bool,
    tails: Tails,
}

/// One write in the queue; without a frame it is a sync.
#[derive(Debug)]
struct Write {
    frame: Option<Frame>,
    durability: Durability,
    slot: Arc<Slot>,
    /// Its frame's number or, of a sync, that of the last frame before it; known once it is written.
    lsn: u64,
}

/// Completed writes whose callbacks have yet to run, in the order of the log.
#[derive(Debug, Default)]
struct Callbacks {
    ready: VecDeque<(Arc<Slot>, Outcome)>,
    /// A thread is running them; they stay in order because nobody else does.
    has_runner: bool,
}

/// Who is to be told of outcomes that are left already.
#[derive(Debug, Default)]
struct Told {
    threads: Vec<Arc<Slot>>,
    wakers: Vec<Waker>,
    callbacks: Vec<(Arc<Slot>, Outcome)>,
}

/// What became of the writes that a leader took.
struct Flushed {
    /// The first so many are in the log.
    written: usize,
    /// Why the others failed.
    failure: Option<Failure>,
}

impl GroupCommit {
    pub(crate) fn new(
        queue: AppendQueue,
        stock: Arc<Stock>,
        ledger: Ledger,
        groups: Arc<Groups>,
    ) -> GroupCommit {
        let compressor = Compressor::new(stock.directory().config.compress_above_bytes);
        let counters = Counters::default();
        counters.durable_lsn.store(queue.synced_lsn(), Ordering::Release);
        counters.live_bytes.store(ledger.live_bytes(), Ordering::Relaxed);
        let is_read_only = stock.directory().is_read_only;
        GroupCommit {
            waiting: Mutex::new(Waiting { is_read_only, ..Waiting::default() }),
            idle: Condvar::new(),
            log: Mutex::new(Log { queue, ledger }),
            callbacks: Mutex::default(),
            groups,
            stock,
            counters,
            compressor,
        }
    }

    /// Queues a batch. Never waits for the disk.
    pub(crate) fn write(&self, mut batch: LogBatch, durability: Durability) -> Arc<Slot> {
        self.compressor.compress(&mut batch);
        let queued = batch
            .seal(self.stock.directory().config.batch_bytes_max)
            .and_then(|frame| self.enqueue(Some(frame), durability));
        queued.unwrap_or_else(|error| Arc::new(Slot::done(Err(error))))
    }

    /// Queues a sync of everything that was queued before.
    pub(crate) fn sync(&self) -> Arc<Slot> {
        let queued = self.enqueue(None, Durability::Synced);
        queued.unwrap_or_else(|error| Arc::new(Slot::done(Err(error))))
    }

    /// Carries out one group commit. False if nothing is queued.
    pub(crate) fn flush(&self) -> bool {
        let mut waiting = self.waiting.lock();
        while waiting.has_leader && !waiting.writes.is_empty() {
            waiting.flusher_count += 1;
            self.idle.wait(&mut waiting);
            waiting.flusher_count -= 1;
        }
        if waiting.writes.is_empty() {
            return false;
        }
        waiting.has_leader = true;
        drop(waiting);
        self.lead();
        true
    }

    /// Waits for the outcome; leads if nobody does.
    pub(crate) fn wait(&self, slot: &Slot) -> Outcome {
        if let Some(outcome) = slot.outcome() {
            return outcome;
        }
        let mut waiting = self.waiting.lock();
        // A write that a leader has taken will be completed, whoever leads now.
        let is_queued = slot.ticket > waiting.taken_ticket;
        if is_queued && !waiting.has_leader {
            waiting.has_leader = true;
            drop(waiting);
            self.lead();
        } else {
            slot.has_thread.store(true, Ordering::Relaxed);
            drop(waiting);
        }
        loop {
            match slot.park() {
                Woken::Done(outcome) => return outcome,
                Woken::Promoted => self.lead(),
            }
        }
    }

    /// Runs a callback that was set when the outcome was there already, behind those of earlier
    /// batches that may be waiting for a thread.
    pub(crate) fn call_back(&self, slot: &Arc<Slot>, outcome: Outcome) {
        {
            // Outcomes are left, and callbacks queued, under this lock: those of the batches that
            // went with this one are queued now.
            let _waiting = self.waiting.lock();
            self.callbacks.lock().ready.push_back((slot.clone(), outcome));
        }
        self.run_callbacks();
    }

    /// Access to the log while nobody writes. Whoever waits to write is next.
    pub(crate) fn with_log<T>(&self, use_log: impl FnOnce(&mut Log) -> T) -> T {
        let mut log = self.log.lock();
        let used = use_log(&mut log);
        MutexGuard::unlock_fair(log);
        used
    }

    /// Writes a frame that was made while nobody else could write, and changes the index as it says.
    /// It changes no group's bounds, so that what is queued was checked rightly. Not synced.
    pub(crate) fn append(&self, log: &mut Log, frame: &mut Frame) -> Result<(), Failure> {
        let (places, failure) = log.queue.append(&mut [&mut *frame]);
        if let Some(failure) = failure {
            return Err(failure);
        }
        self.apply_frame(frame, places[0], &mut log.ledger);
        self.counters.live_bytes.store(log.ledger.live_bytes(), Ordering::Relaxed);
        Ok(())
    }

    /// What to tell whoever meets a failure. If the log is broken, all are told.
    pub(crate) fn error_of(&self, failure: Failure) -> Error {
        match failure {
            Failure::NoSpace => Error::NoSpace,
            Failure::Full(Over { bytes, limit }) => Error::Full { bytes, limit },
            Failure::Broken(error) => self.fail(error),
        }
    }

    pub(crate) fn queued_bytes(&self) -> u64 {
        self.waiting.lock().bytes
    }

    pub(crate) fn poison(&self) -> Option<Arc<io::Error>> {
        self.waiting.lock().poison.clone()
    }

    /// Whether the log takes anything.
    pub(crate) fn check(&self) -> Result<(), Error> {
        self.waiting.lock().check()
    }

    /// Writes a frame that says nothing but that the last batch is synced, if no frame says so and
    /// nothing was written since the last call. Returns whether it did.
    ///
    /// Rot in the last batch can then be told from a torn write, however the process ends.
    pub(crate) fn vouch(&self) -> Result<bool, Error> {
        let mut bytes = vec![0; FRAME_HEADER_BYTES];
        format::pad(&mut bytes);
        let is_wanted = {
            // If somebody writes there is no need.
            let Some(mut log) = self.log.try_lock() else { return Ok(false) };
            log.queue.is_idle() && log.queue.wants_voucher(bytes.len() as u64)
        };
        if !is_wanted {
            return Ok(false);
        }
        let body_checksum = format::body_checksum(&bytes[FRAME_HEADER_BYTES..]);
        let frame = Frame { bytes, body_checksum, changes: Changes::new(), need: Need::Frees };
        let slot = self.enqueue(Some(frame), Durability::Buffered)?;
        self.wait(&slot).map(|_| true)
    }

    /// Fails all that is queued or comes: a write or sync that was no leader's has failed.
    pub(crate) fn fail(&self, error: io::Error) -> Error {
        let mut waiting = self.waiting.lock();
        let cause = waiting.poison.get_or_insert_with(|| Arc::new(error)).clone();
        let error = Error::Poisoned(cause);
        let mut told = Told::default();
        waiting.fail_queued(&error, &mut told);
        self.queue_callbacks(&mut told);
        drop(waiting);
        told.wake();
        self.run_callbacks();
        error
    }

    /// Writes what is queued, makes everything durable, and takes nothing more.
    pub(crate) fn close(&self) -> Result<(), Error> {
        {
            let mut waiting = self.waiting.lock();
            if let Some(cause) = &waiting.poison {
                return Err(Error::Poisoned(cause.clone()));
            }
            if waiting.is_read_only {
                return Ok(());
            }
            if std::mem::replace(&mut waiting.is_closed, true) {
                return Ok(());
            }
        }
        self.drain();
        let closed = self.with_log(|log| {
            log.queue.close()?;
            self.counters.durable_lsn.fetch_max(log.queue.synced_lsn(), Ordering::AcqRel);
            Ok(())
        });
        closed.map_err(|failure| self.error_of(failure))
    }

    /// Carries out all that is queued, and waits for who does. To be called when nothing comes.
    fn drain(&self) {
        let mut waiting = self.waiting.lock();
        while waiting.has_leader || !waiting.writes.is_empty() {
            if waiting.has_leader {
                waiting.flusher_count += 1;
                self.idle.wait(&mut waiting);
                waiting.flusher_count -= 1;
            } else {
                waiting.has_leader = true;
                drop(waiting);
                self.lead();
                waiting = self.waiting.lock();
            }
        }
    }

    fn enqueue(
        &self,
        mut frame: Option<Frame>,
        durability: Durability,
    ) -> Result<Arc<Slot>, Error> {
        let mut waiting = self.waiting.lock();
        waiting.check()?;
        let bytes = frame_bytes(&frame);
        let limit = self.stock.directory().config.queue_bytes_max;
        if waiting.bytes > 0 && waiting.bytes + bytes > limit {
            return Err(Error::Busy { bytes: waiting.bytes, limit });
        }
        let ticket = waiting.last_ticket + 1;
        if let Some(frame) = &mut frame {
            waiting.tails.admit(frame, ticket, &self.groups)?;
        }
        waiting.last_ticket = ticket;
        waiting.bytes += bytes;
        let slot = Arc::new(Slot::new(ticket));
        waiting.writes.push(Write { frame, durability, slot: slot.clone(), lsn: 0 });
        Ok(slot)
    }

    /// Carries out one group commit on this thread, which is the leader, and hands over the lead.
    fn lead(&self) {
        while self.carry_on() {}
        self.run_callbacks();
    }

    /// Carries out all that is queued. True if some of it is left, for others stood in its way.
    fn carry_on(&self) -> bool {
        let mut writes = {
            let mut waiting = self.waiting.lock();
            assert!(waiting.has_leader, "a thread leads that was not made the leader");
            waiting.taken_ticket = waiting.last_ticket;
            let spare = std::mem::take(&mut waiting.spare);
            std::mem::replace(&mut waiting.writes, spare)
        };
        // A fault of ours must not leave others waiting for ever: they are told, then it goes on.
        *self.counters.flush_began.lock() = Some(Instant::now());
        let flushed = panic::catch_unwind(AssertUnwindSafe(|| self.carry_out(&mut writes)));
        *self.counters.flush_began.lock() = None;
        let (flushed, fault) = match flushed {
            Ok(flushed) => (flushed, None),
            Err(fault) => (Flushed::broken(io::Error::other("a write panicked")), Some(fault)),
        };
        let (told, is_left) = self.settle(writes, flushed);
        told.wake();
        if let Some(fault) = fault {
            panic::resume_unwind(fault);
        }
        is_left
    }

    fn carry_out(&self, writes: &mut [Write]) -> Flushed {
        let mut log = self.log.lock();
        let log = &mut *log;
        let mut frames: SmallVec<[&mut Frame; 8]> =
            writes.iter_mut().filter_map(|write| write.frame.as_mut()).collect();
        let (frame_count, before) = (frames.len(), log.queue.last_lsn());
        let (places, mut failure) = log.queue.append(&mut frames);
        drop(frames);
        let written = written_count(writes, places.len(), frame_count);
        if !matches!(failure, Some(Failure::Broken(_))) {
            let synced = |write: &Write| write.durability == Durability::Synced;
            if writes[..written].iter().any(synced) {
                self.counters.syncs.fetch_add(1, Ordering::Relaxed);
                failure = log.queue.sync().err().or(failure);
            }
        }
        if matches!(failure, Some(Failure::Broken(_))) {
            return Flushed { written: 0, failure };
        }
        self.apply(&mut writes[..written], &places, before, &mut log.ledger);
        self.counters.durable_lsn.fetch_max(log.queue.synced_lsn(), Ordering::AcqRel);
        self.counters.live_bytes.store(log.ledger.live_bytes(), Ordering::Relaxed);
        Flushed { written, failure }
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
        self.counters.flushes.fetch_add(1, Ordering::Relaxed);
    }

    /// Changes the index as a frame says that now lies in the log.
    fn apply_frame(&self, frame: &Frame, place: Place, ledger: &mut Ledger) {
        for change in &frame.changes {
            self.groups
                .apply(change, place, ledger)
                .expect("the batch was checked against the group's tail");
        }
        self.counters.batches.fetch_add(1, Ordering::Relaxed);
        self.counters.bytes_written.fetch_add(frame.bytes.len() as u64, Ordering::Relaxed);
    }

    /// Leaves the outcomes and says who is to be told. Makes the next thread the leader, unless there
    /// is something left that this one should carry out: then it returns true.
    fn settle(&self, mut writes: Vec<Write>, flushed: Flushed) -> (Told, bool) {
        let Flushed { written, failure } = flushed;
        let mut waiting = self.waiting.lock();
        let mut told = Told::default();
        for Write { frame, slot, lsn, .. } in writes.drain(..written) {
            waiting.bytes -= frame_bytes(&frame);
            if let Some(frame) = frame {
                waiting.tails.settle(&frame.changes, slot.ticket);
            }
            told.leave(slot, Ok(Receipt { lsn }));
        }
        if !writes.is_empty() {
            drop(waiting.writes.splice(..0, writes.drain(..)));
        }
        let is_left = match failure {
            None => false,
            Some(Failure::NoSpace) => self.refuse(&mut waiting, &Error::NoSpace, &mut told),
            Some(Failure::Full(Over { bytes, limit })) => {
                self.refuse(&mut waiting, &Error::Full { bytes, limit }, &mut told)
            }
            Some(Failure::Broken(error)) => {
                let cause = waiting.poison.get_or_insert_with(|| Arc::new(error)).clone();
                waiting.fail_queued(&Error::Poisoned(cause), &mut told);
                false
            }
        };
        if writes.capacity() <= SPARE_WRITES_MAX {
            waiting.spare = writes;
        }
        let is_idle = waiting.writes.is_empty();
        assert!(!is_idle || waiting.tails.is_empty(), "tails are left of groups nobody changes");
        assert!(!is_idle || waiting.bytes == 0, "{} bytes are left of no batch", waiting.bytes);
        self.queue_callbacks(&mut told);
        if !is_left {
            self.hand_over(&mut waiting);
        }
        (told, is_left)
    }

    /// Called under the queue's lock, so that callbacks run in the order of the log.
    fn queue_callbacks(&self, told: &mut Told) {
        if !told.callbacks.is_empty() {
            self.callbacks.lock().ready.extend(told.callbacks.drain(..));
        }
    }

    /// Ends this thread's lead: a thread that flushes, or the first that waits in the queue, is
    /// next; if there is none, whoever comes.
    fn hand_over(&self, waiting: &mut Waiting) {
        let next = waiting.writes.iter().find(|w| w.slot.has_thread.load(Ordering::Relaxed));
        match next {
            Some(write) if waiting.flusher_count == 0 => write.slot.promote(),
            _ => {
                waiting.has_leader = false;
                self.idle.notify_all();
            }
        }
    }

    /// Runs the callbacks of completed writes, unless another thread does; it then runs ours too.
    fn run_callbacks(&self) {
        let mut callbacks = self.callbacks.lock();
        if std::mem::replace(&mut callbacks.has_runner, true) {
            return;
        }
        while let Some((slot, outcome)) = callbacks.ready.pop_front() {
            drop(callbacks);
            let called = panic::catch_unwind(AssertUnwindSafe(|| slot.call_back(outcome)));
            callbacks = self.callbacks.lock();
            if let Err(fault) = called {
                callbacks.has_runner = false;
                drop(callbacks);
                panic::resume_unwind(fault);
            }
        }
        callbacks.has_runner = false;
    }
}

impl Flushed {
    fn broken(error: io::Error) -> Flushed {
        Flushed { written: 0, failure: Some(Failure::Broken(error)) }
    }
}

impl Drop for GroupCommit {
    fn drop(&mut self) {
        // So that a thread that maintains the log sees that it is gone.
        self.stock.signal.raise();
        let ready = std::mem::take(&mut self.callbacks.get_mut().ready);
        ready.into_iter().for_each(|(slot, outcome)| slot.call_back(outcome));
        for write in std::mem::take(&mut self.waiting.get_mut().writes) {
            let mut told = Told::default();
            told.leave(write.slot, Err(Error::Closed));
            told.callbacks.drain(..).for_each(|(slot, outcome)| slot.call_back(outcome));
            told.wake();
        }
    }
}

impl Waiting {
    fn check(&self) -> Result<(), Error> {
        match &self.poison {
            Some(cause) => Err(Error::Poisoned(cause.clone())),
            None if self.is_read_only => Err(Error::ReadOnly),
            None if self.is_closed => Err(Error::Closed),
            None => Ok(()),
        }
    }

    /// Fails what is queued behind a failure: it was checked as if that had succeeded.
    fn fail_queued(&mut self, error: &Error, told: &mut Told) {
        self.taken_ticket = self.last_ticket;
        for write in std::mem::take(&mut self.writes) {
            self.bytes -= frame_bytes(&write.frame);
            told.leave(write.slot, Err(error.clone()));
        }
        self.tails.clear();
    }
}

impl Told {
    /// Leaves an outcome.
    fn leave(&mut self, slot: Arc<Slot>, outcome: Outcome) {
        let waits = slot.leave(&outcome);
        self.wakers.extend(waits.waker);
        if waits.has_callback {
            self.callbacks.push((slot.clone(), outcome));
        }
        if waits.has_thread {
            self.threads.push(slot);
        }
    }

    fn wake(self) {
        self.threads.iter().for_each(|slot| slot.wake_thread());
        self.wakers.into_iter().for_each(Waker::wake);
    }
}

fn frame_bytes(frame: &Option<Frame>) -> u64 {
    frame.as_ref().map_or(0, |frame| frame.bytes.len() as u64)
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
