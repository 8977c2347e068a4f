//! Stores that write to logs of their own accord: times by which values expire, the removal of
//! those that have, and comparisons of replicas.

use flotilla_kv::ColumnFamily;
use flotilla_kv::raw::RawOp;
use flotilla_region::{Descriptor, Index, ReadGrant, Reject, Ticket};

use super::{SimEvent, SimWorld};
use crate::expiry::ReadPlace;
use crate::reference_model::CheckFailure;
use crate::request::{ClientReply, ClientRequest, RequestBody, RequestOwner};
use crate::task::{ExpiredRows, HeldRead, Task};

/// A read that is made again begins so soon.
const READ_AGAIN_US_MAX: u64 = 200;

impl SimWorld {
    /// A store has the log name a time before it answers a read.
    pub(super) fn log_time(&mut self, store: usize, held: HeldRead) {
        let HeldRead { ticket, region, time_ms } = held;
        let (owner, raise) = (RequestOwner::Reader(ticket), RawOp::RaiseWatermark);
        let incarnation = self.nodes[store].incarnation();
        let place = ReadPlace { store, incarnation, region: region.id };
        self.workload.held_reads().hold(ticket, place);
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

    /// The log was told of a time, or was not: the read that waited for it is made again, or
    /// refused.
    pub(super) fn end_logged_read(
        &mut self,
        read: Ticket,
        told: &ClientReply,
    ) -> Result<(), CheckFailure> {
        let released = self.workload.held_reads().release(read, told);
        let Some(released) = released.filter(|_| self.workload.open().contains(&read)) else {
            return Ok(());
        };
        match released {
            Err(refusal) => self.reply(read, refusal),
            Ok(ReadPlace { store, incarnation, region }) => {
                // The store has applied the entry by now: no index has to be waited for.
                let task = Task::ReadLogged(ReadGrant {
                    region,
                    ticket: read,
                    by_lease: false,
                    follower: false,
                    index: Index(0),
                });
                let delay_us = self.rng.u64(1..=READ_AGAIN_US_MAX);
                self.schedule(delay_us, SimEvent::Work { store, incarnation, task });
                Ok(())
            }
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
