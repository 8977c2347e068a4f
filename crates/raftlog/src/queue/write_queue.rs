//! The queue of writes, and what is known of the log as if all of it were written.

use crate::batch::frame::Frame;
use crate::error::Error;
use crate::index::groups::Groups;
use crate::queue::callbacks::Completions;
use crate::queue::completion::Completion;
use crate::queue::queued_bounds::QueuedBounds;
use std::io;
use std::sync::Arc;

/// How long-lived a batch is when its write is acknowledged.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Durability {
    /// The operating system has it: it outlives the process, and perhaps not a power loss.
    Buffered,
    /// The disk has it.
    Synced,
}

/// What is queued behind those who carry out writes.
#[derive(Debug)]
pub(crate) struct WriteQueue {
    pub(crate) writes: Vec<QueuedWrite>,
    /// The list that the last leader emptied.
    pub(crate) emptied: Vec<QueuedWrite>,
    /// The turn that `writes` belong to.
    pub(crate) round: u64,
    /// Bytes of writes that are queued or being carried out.
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
    /// Its number in the order in which writes came to the queue, from 1.
    pub(crate) write_number: u64,
    pub(crate) completion: Arc<Completion>,
    /// Its frame's number or, of a sync, that of the last frame before it; known once it is written.
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

    /// Takes a write into the queue, if it fits what is there. Returns its turn.
    pub(crate) fn admit(
        &mut self,
        mut write: QueuedWrite,
        groups: &Groups,
        bytes_max: u64,
    ) -> Result<u64, Error> {
        self.check()?;
        let bytes = write.bytes();
        if self.bytes > 0 && self.bytes + bytes > bytes_max {
            return Err(Error::Busy { bytes: self.bytes, limit: bytes_max });
        }
        write.write_number = self.last_write_number + 1;
        if let Some(frame) = &mut write.frame {
            self.queued_bounds.admit(frame, write.write_number, groups)?;
        }
        self.last_write_number = write.write_number;
        self.bytes += bytes;
        self.writes.push(write);
        Ok(self.round)
    }

    /// Fails what is queued behind a failure: it was checked as if that had succeeded.
    pub(crate) fn fail_queued(&mut self, error: &Error, completions: &mut Completions<'_>) {
        for write in std::mem::take(&mut self.writes) {
            self.bytes -= write.bytes();
            completions.complete(&write.completion, Err(error.clone()));
        }
        self.queued_bounds.clear();
    }
}
