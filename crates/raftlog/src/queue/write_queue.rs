//! The write queue: admission control by bytes and by the state of the log.

use crate::batch::frame::Frame;
use crate::error::Error;
use crate::index::groups::Groups;
use crate::queue::callbacks::Completions;
use crate::queue::completion::Completion;
use crate::queue::queued_bounds::QueuedBounds;
use std::io;
use std::sync::Arc;

/// How durable a batch is when its write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The kernel has it: it outlives the process, and perhaps not a power loss.
    Buffered,
    /// The disk has it.
    Synced,
}

/// Writes that wait for the next leader, and the state that decides whether more are admitted.
#[derive(Debug)]
pub(crate) struct WriteQueue {
    pub(crate) writes: Vec<QueuedWrite>,
    /// The emptied list of the last leader, so that its memory is used again.
    pub(crate) emptied: Vec<QueuedWrite>,
    /// The commit round that `writes` belong to.
    pub(crate) round: u64,
    /// Bytes of writes that are queued or being carried out: the backpressure of
    /// [`WriteQueue::admit`] counts them.
    pub(crate) bytes: u64,
    last_write_number: u64,
    pub(crate) poison: Option<Arc<io::Error>>,
    pub(crate) is_closed: bool,
    pub(crate) is_read_only: bool,
    pub(crate) queued_bounds: QueuedBounds,
}

/// One write in the queue; without a frame it is a sync.
#[derive(Debug)]
pub(crate) struct QueuedWrite {
    pub(crate) frame: Option<Frame>,
    pub(crate) durability: Durability,
    /// The write number: its place in the order of admission, from 1. The lsn is given later, by
    /// the leader.
    pub(crate) write_number: u64,
    pub(crate) completion: Arc<Completion>,
    /// The lsn of its frame or, of a sync, of the last frame before it; known once it is written.
    pub(crate) lsn: u64,
}

impl QueuedWrite {
    pub(crate) fn new(frame: Option<Frame>, durability: Durability) -> QueuedWrite {
        QueuedWrite { frame, durability, write_number: 0, completion: Arc::default(), lsn: 0 }
    }

    pub(crate) fn bytes(&self) -> u64 {
        self.frame.as_ref().map_or(0, |frame| frame.bytes.len() as u64)
    }
}

impl WriteQueue {
    pub(crate) fn new(is_read_only: bool) -> WriteQueue {
        WriteQueue {
            writes: Vec::new(),
            emptied: Vec::new(),
            round: 1,
            bytes: 0,
            last_write_number: 0,
            poison: None,
            is_closed: false,
            is_read_only,
            queued_bounds: QueuedBounds::default(),
        }
    }

    pub(crate) fn check(&self) -> Result<(), Error> {
        match &self.poison {
            Some(cause) => Err(Error::Poisoned(cause.clone())),
            None if self.is_read_only => Err(Error::ReadOnly),
            None if self.is_closed => Err(Error::Closed),
            None => Ok(()),
        }
    }

    /// Admits a write, if it fits the bounds of its groups and the bytes that may be queued.
    /// Returns its round.
    pub(crate) fn admit(
        &mut self,
        mut write: QueuedWrite,
        groups: &Groups,
        bytes_max: u64,
    ) -> Result<u64, Error> {
        self.check()?;
        let bytes = write.bytes();
        // An empty queue takes any batch: one above the limit could never be written otherwise.
        if self.bytes > 0 && self.bytes + bytes > bytes_max {
            return Err(Error::Busy { bytes: self.bytes, limit: bytes_max });
        }
        write.write_number = self.last_write_number + 1;
        if let Some(frame) = &mut write.frame {
            self.queued_bounds.admit(frame, write.write_number, groups)?;
        }
        debug_assert!(
            self.writes.last().is_none_or(|last| last.write_number < write.write_number),
            "writes are queued in the order of their numbers"
        );
        self.last_write_number = write.write_number;
        self.bytes += bytes;
        self.writes.push(write);
        Ok(self.round)
    }

    /// Takes the bytes of a completed write off the count.
    pub(crate) fn release(&mut self, bytes: u64) {
        assert!(bytes <= self.bytes, "{bytes} bytes of {} are completed", self.bytes);
        self.bytes -= bytes;
    }

    /// Fails all that is queued or comes, because of this error or an earlier one.
    pub(crate) fn poison(&mut self, error: io::Error, completions: &mut Completions<'_>) -> Error {
        let cause = self.poison.get_or_insert_with(|| Arc::new(error)).clone();
        let error = Error::Poisoned(cause);
        self.fail_queued(&error, completions);
        error
    }

    /// Fails the writes that are queued behind a failure: they were admitted as if it had
    /// succeeded.
    pub(crate) fn fail_queued(&mut self, error: &Error, completions: &mut Completions<'_>) {
        for write in std::mem::take(&mut self.writes) {
            self.release(write.bytes());
            completions.complete(&write.completion, Err(error.clone()));
        }
        self.queued_bounds.clear();
    }
}
