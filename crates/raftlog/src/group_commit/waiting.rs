//! The queue of writes, and what is known of the log as if all of it were written.

use super::told::Told;
use crate::error::Error;
use crate::frame::Frame;
use crate::groups::Groups;
use crate::slot::Slot;
use crate::tails::Tails;
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
pub(super) struct Waiting {
    pub(super) writes: Vec<Write>,
    /// The list that the last leader emptied.
    pub(super) emptied: Vec<Write>,
    /// The turn that `writes` belong to.
    pub(super) turn: u64,
    /// Bytes of writes that are queued or being carried out.
    pub(super) bytes: u64,
    last_arrival: u64,
    pub(super) poison: Option<Arc<io::Error>>,
    pub(super) is_closed: bool,
    pub(super) is_read_only: bool,
    pub(super) tails: Tails,
}

/// One write in the queue; without a frame it is a sync.
#[derive(Debug)]
pub(super) struct Write {
    pub(super) frame: Option<Frame>,
    pub(super) durability: Durability,
    /// Its number in the order in which writes came to the queue, from 1.
    pub(super) arrival: u64,
    pub(super) slot: Arc<Slot>,
    /// Its frame's number or, of a sync, that of the last frame before it; known once it is written.
    pub(super) lsn: u64,
}

impl Write {
    pub(super) fn new(frame: Option<Frame>, durability: Durability) -> Write {
        Write { frame, durability, arrival: 0, slot: Arc::default(), lsn: 0 }
    }

    pub(super) fn bytes(&self) -> u64 {
        self.frame.as_ref().map_or(0, |frame| frame.bytes.len() as u64)
    }
}

impl Waiting {
    pub(super) fn new(is_read_only: bool) -> Waiting {
        Waiting {
            writes: Vec::new(),
            emptied: Vec::new(),
            turn: 1,
            bytes: 0,
            last_arrival: 0,
            poison: None,
            is_closed: false,
            is_read_only,
            tails: Tails::default(),
        }
    }

    pub(super) fn check(&self) -> Result<(), Error> {
        match &self.poison {
            Some(cause) => Err(Error::Poisoned(cause.clone())),
            None if self.is_read_only => Err(Error::ReadOnly),
            None if self.is_closed => Err(Error::Closed),
            None => Ok(()),
        }
    }

    /// Takes a write into the queue, if it fits what is there. Returns its turn.
    pub(super) fn admit(
        &mut self,
        mut write: Write,
        groups: &Groups,
        bytes_max: u64,
    ) -> Result<u64, Error> {
        self.check()?;
        let bytes = write.bytes();
        if self.bytes > 0 && self.bytes + bytes > bytes_max {
            return Err(Error::Busy { bytes: self.bytes, limit: bytes_max });
        }
        write.arrival = self.last_arrival + 1;
        if let Some(frame) = &mut write.frame {
            self.tails.admit(frame, write.arrival, groups)?;
        }
        self.last_arrival = write.arrival;
        self.bytes += bytes;
        self.writes.push(write);
        Ok(self.turn)
    }

    /// Fails what is queued behind a failure: it was checked as if that had succeeded.
    pub(super) fn fail_queued(&mut self, error: &Error, told: &mut Told<'_>) {
        for write in std::mem::take(&mut self.writes) {
            self.bytes -= write.bytes();
            told.leave(&write.slot, Err(error.clone()));
        }
        self.tails.clear();
    }
}
