//! Stores that write to logs of their own accord: times by which values expire, the removal of
//! those that have, and comparisons of replicas.

use flotilla_kv::ColumnFamily;
use flotilla_kv::raw::RawOp;
use flotilla_region::{Descriptor, Reject, Ticket};

use super::SimWorld;
use crate::reference_model::CheckFailure;
use crate::request::{ClientReply, ClientRequest, RequestBody, RequestOwner};
use crate::task::{ExpiredRows, HeldReply};

impl SimWorld {
    /// A store has the log name a time before it answers a read.
    pub(super) fn log_time(&mut self, store: usize, held: HeldReply) {
        let HeldReply { ticket, reply, region, time_ms } = held;
        let (owner, raise) = (RequestOwner::Reader(ticket), RawOp::RaiseWatermark);
        self.workload.held_replies().hold(ticket, reply);
        self.nodes[store].count_logged_time();
        let family = ColumnFamily::Default;
        self.send(ClientRequest::of_store(owner, (&region, store), family, time_ms, raise));
    }

    /// A store removes rows that have expired.
    pub(super) fn remove_expired(&mut self, store: usize, expired: ExpiredRows) {
        // At the end a run looks at replicas that rest.
        if !self.clients_active {
            return;
        }
        let ExpiredRows { region, family, range, time_ms } = expired;
        let remove = RawOp::RemoveExpired { start: range.start, end: Some(range.end) };
        let owner = RequestOwner::Sweeper;
        self.send(ClientRequest::of_store(owner, (&region, store), family, time_ms, remove));
    }

    /// A store has the replicas of a region compared.
    pub(super) fn compare_replicas(&mut self, store: usize, region: &Descriptor) {
        // At the end a run looks at replicas that rest.
        if self.clients_active {
            let body = RequestBody::Compare;
            self.send(ClientRequest::new(RequestOwner::Checker, region, store, body));
        }
    }

    /// The log was told of a time, or was not: the read that waited for it is answered.
    pub(super) fn end_logged_read(
        &mut self,
        read: Ticket,
        told: &ClientReply,
    ) -> Result<(), CheckFailure> {
        match self.workload.held_replies().release(read, told) {
            Some(reply) if self.workload.open().contains(&read) => self.reply(read, reply),
            _ => Ok(()),
        }
    }

    /// A store does not learn whether the log was told of a time.
    pub(super) fn end_undecided(&mut self, ticket: Ticket) -> Result<(), CheckFailure> {
        match self.workload.request(ticket).owner {
            RequestOwner::Reader(read) => {
                self.end_logged_read(read, &ClientReply::Refused(Reject::ReadIndexNotReady))
            }
            _ => Ok(()),
        }
    }
}
