//! Damaged pages that work and reads have met: the store goes on, if a bit of its disk was flipped.

use flotilla_region::RegionId;
use flotilla_store::{Error, PagesError, ReadError};

use super::SimNode;
use crate::layout;
use crate::task::{Outbox, StopReason};

impl SimNode {
    /// Goes on behind a read that has met a damaged page, as the node does.
    pub(super) fn survive_read(
        &mut self,
        read: Result<(), ReadError>,
        of: Option<RegionId>,
        out: &mut Outbox,
    ) -> Result<(), StopReason> {
        match read {
            Ok(()) => Ok(()),
            Err(ReadError::Damaged) if self.disk.is_rotten => Ok(()),
            Err(ReadError::Pages(error @ PagesError::Corrupt { .. })) => {
                self.take_out(error, of, out)
            }
            Err(error) => Err(self.unread(&error)),
        }
    }

    /// The same behind work of the store.
    pub(super) fn survive(
        &mut self,
        done: Result<(), Error>,
        out: &mut Outbox,
    ) -> Result<(), StopReason> {
        match done {
            Err(Error::Pages(error @ PagesError::Corrupt { .. })) => {
                self.take_out(error, None, out)
            }
            done => done.map_err(|error| self.stop(&error)),
        }
    }

    pub(super) fn take_out(
        &mut self,
        error: PagesError,
        of: Option<RegionId>,
        out: &mut Outbox,
    ) -> Result<(), StopReason> {
        let PagesError::Corrupt { page, .. } = error else { unreachable!("a page is named") };
        let Some(running) = self.running.as_mut().filter(|_| self.disk.is_rotten) else {
            return Err(self.unread(&error.into()));
        };
        let taken = running.executor.take_out(page, of, out);
        taken.map_err(|error| self.stop(&error))
    }

    /// Rows cannot be read, which ends the store as any error does.
    pub(super) fn unread(&self, error: &ReadError) -> StopReason {
        if self.disk.has_fault {
            return StopReason::Died;
        }
        let store = layout::id(self.place);
        StopReason::CheckFailure(format!("store {store} cannot read rows: {error}"))
    }
}
