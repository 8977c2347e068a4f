//! Damaged pages: taken out as the node does, and told to the core.

use flotilla_region::{Event, RegionId, Reject, Ticket};
use flotilla_store::{DamagedReplica, Error, PagesError, ReadError, SkippedEntries};

use super::Executor;
use crate::request::ClientReply;
use crate::task::{Outbox, Task};

impl Executor {
    /// Takes out a page that was found damaged.
    pub(crate) fn take_out(
        &mut self,
        page: u64,
        of: Option<RegionId>,
        out: &mut Outbox,
    ) -> Result<(), Error> {
        let found = self.store.quarantine(page, of)?;
        let events = found.replicas.into_iter().map(self::found).collect();
        out.tasks.push((self.notify_delay_us(), Task::Post(events)));
        Ok(())
    }

    /// The events of entries that were left out. What came of them is not known here.
    pub(super) fn skip(
        &mut self,
        skipped: Vec<SkippedEntries>,
        out: &mut Outbox,
    ) -> impl Iterator<Item = Event> + use<> {
        for entries in &skipped {
            out.undecided.extend(&entries.undecided);
        }
        skipped.into_iter().map(|SkippedEntries { replica, index, .. }| {
            let DamagedReplica { region, peer } = replica;
            Event::Damaged { region, peer, skipped: Some(index) }
        })
    }
}

/// A replica has lost rows.
pub(super) fn found(DamagedReplica { region, peer }: DamagedReplica) -> Event {
    Event::Damaged { region, peer, skipped: None }
}

/// Whether rows of a replica are lost, as a read of it says.
pub(crate) fn is_damage(error: &ReadError) -> bool {
    matches!(error, ReadError::Damaged | ReadError::Pages(PagesError::Corrupt { .. }))
}

/// Refuses a request that has met damage; its error goes on.
pub(super) fn refuse_if_damaged<T>(
    ticket: Ticket,
    read: Result<T, ReadError>,
    out: &mut Outbox,
) -> Result<T, ReadError> {
    if read.as_ref().is_err_and(is_damage) {
        out.replies.push((ticket, ClientReply::Refused(Reject::NotLeader { leader: None })));
    }
    read
}
