//! Reads that have met damage.

use flotilla_region::{Event, Reject, Ticket};
use flotilla_store::{DamagedReplica, PagesError, ReadError};

use crate::request::ClientReply;
use crate::task::Outbox;

/// A replica has lost rows.
pub(super) fn found(DamagedReplica { region, peer }: DamagedReplica) -> Event {
    Event::Damaged { region, peer }
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
