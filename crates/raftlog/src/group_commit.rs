//! Many writers, one write, one sync.
//!
//! Writers queue encoded frames. One thread at a time leads: it takes all that is queued, writes it
//! with one vectored write, syncs once if anybody wants that, changes the index in the order of the
//! log and leaves the outcomes. Meanwhile others encode and queue: no lock that they need is held
//! over the disk. Who waits for an outcome leads if nobody does; who leads and finds others asleep
//! for the next turn wakes one of them first and then those that are done, so that the disk does not
//! wait for them. See [`crate::turns`].
//!
//! Once a write or a sync has failed, everything queued fails and nothing more is taken.

mod lead;
mod refusal;
mod told;
mod waiting;

use crate::batch::LogBatch;
use crate::compress::Compressor;
use crate::error::Error;
use crate::format::{self, FRAME_HEADER_BYTES};
use crate::frame::{Changes, Frame, Need};
use crate::groups::Groups;
use crate::ledger::Ledger;
use crate::limits::Over;
use crate::queue::AppendQueue;
use crate::slot::{Outcome, Slot};
use crate::stats::Counters;
use crate::stock::{Failure, Stock};
use crate::sync::atomic::Ordering;
use crate::sync::{Mutex, MutexGuard};
use crate::turns::{Turn, Turns};
use std::io;
use std::sync::Arc;
use told::{Callbacks, Told};
pub use waiting::Durability;
use waiting::{Waiting, Write};

/// Everything between the writers and the log.
#[derive(Debug)]
pub(crate) struct GroupCommit {
    waiting: Mutex<Waiting>,
    turns: Turns,
    log: Mutex<Log>,
    callbacks: Callbacks,
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

/// A write that is queued, or came to its end at once.
#[derive(Debug)]
pub(crate) struct Queued {
    pub(crate) slot: Arc<Slot>,
    /// The turn that it belongs to.
    turn: u64,
}

impl Queued {
    fn failed(error: Error) -> Queued {
        Queued { slot: Arc::new(Slot::done(Err(error))), turn: 0 }
    }
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
            waiting: Mutex::new(Waiting::new(is_read_only)),
            turns: Turns::new(),
            log: Mutex::new(Log { queue, ledger }),
            callbacks: Callbacks::default(),
            groups,
            stock,
            counters,
            compressor,
        }
    }

    /// Queues a batch. Never waits for the disk.
    pub(crate) fn write(&self, mut batch: LogBatch, durability: Durability) -> Queued {
        self.compressor.compress(&mut batch);
        let queued = batch
            .seal(self.stock.directory().config.batch_bytes_max)
            .and_then(|frame| self.enqueue(Some(frame), durability));
        queued.unwrap_or_else(Queued::failed)
    }

    /// Queues a sync of everything that was queued before.
    pub(crate) fn sync(&self) -> Queued {
        self.enqueue(None, Durability::Synced).unwrap_or_else(Queued::failed)
    }

    /// Waits until all that is queued is carried out, by this thread or another. False if nothing is.
    pub(crate) fn flush(&self) -> bool {
        let turn = {
            let waiting = self.waiting.lock();
            waiting.turn - u64::from(waiting.writes.is_empty())
        };
        if self.turns.is_done(turn) {
            return false;
        }
        self.wait_for(turn, None);
        true
    }

    /// Waits for the outcome; leads if nobody does. Nobody else may ask for it, then or later.
    pub(crate) fn wait(&self, queued: &Queued) -> Outcome {
        let own_outcome = self.wait_for(queued.turn, Some(&queued.slot));
        own_outcome.unwrap_or_else(|| queued.slot.outcome().expect("the turn is done"))
    }

    fn wait_for(&self, turn: u64, own: Option<&Arc<Slot>>) -> Option<Outcome> {
        match self.turns.wait(turn) {
            Turn::Mine => self.lead(turn, own),
            Turn::Done => None,
        }
    }

    /// Runs a callback that was set when the outcome was there already, behind those of earlier
    /// batches that may be waiting for a thread.
    pub(crate) fn call_back(&self, slot: &Arc<Slot>, outcome: Outcome) {
        {
            // Outcomes are left, and callbacks queued, under this lock: those of the batches that
            // went with this one are queued now.
            let _waiting = self.waiting.lock();
            self.callbacks.push(slot.clone(), outcome);
        }
        self.callbacks.run();
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
            Failure::NoSpace => self.no_space(),
            Failure::Full(Over { bytes, limit }) => Error::Full { bytes, limit },
            Failure::Broken(error) => self.fail(error),
        }
    }

    pub(super) fn no_space(&self) -> Error {
        Error::NoSpace { dir: self.stock.directory().path.clone() }
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
        let queued = self.enqueue(Some(frame), Durability::Buffered)?;
        self.wait(&queued).map(|_| true)
    }

    /// Fails all that is queued or comes: a write or sync that was no leader's has failed.
    pub(crate) fn fail(&self, error: io::Error) -> Error {
        let mut waiting = self.waiting.lock();
        let cause = waiting.poison.get_or_insert_with(|| Arc::new(error)).clone();
        let error = Error::Poisoned(cause);
        let mut told = Told::default();
        waiting.fail_queued(&error, &mut told);
        self.callbacks.take_from(&mut told);
        drop(waiting);
        told.wake();
        self.callbacks.run();
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
        // Nothing comes any more: when this turn is done, so is all.
        let turn = self.waiting.lock().turn;
        self.wait_for(turn, None);
        let closed = self.with_log(|log| {
            log.queue.close()?;
            self.counters.durable_lsn.fetch_max(log.queue.synced_lsn(), Ordering::AcqRel);
            Ok(())
        });
        closed.map_err(|failure| self.error_of(failure))
    }

    fn enqueue(&self, frame: Option<Frame>, durability: Durability) -> Result<Queued, Error> {
        let write = Write::new(frame, durability);
        let slot = write.slot.clone();
        let bytes_max = self.stock.directory().config.queue_bytes_max;
        let turn = self.waiting.lock().admit(write, &self.groups, bytes_max)?;
        Ok(Queued { slot, turn })
    }
}

impl Drop for GroupCommit {
    fn drop(&mut self) {
        // So that a thread that maintains the log sees that it is gone.
        self.stock.signal.raise();
        let mut told = Told::default();
        self.waiting.get_mut().fail_queued(&Error::Closed, &mut told);
        self.callbacks.take_from(&mut told);
        told.wake();
        self.callbacks.run();
    }
}
