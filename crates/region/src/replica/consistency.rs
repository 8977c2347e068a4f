//! Comparisons of the replica with the others of its region: how it asks for one, tells its digest,
//! and makes the verdict where it leads.

use super::Replica;
use crate::admin_command::AdminCommand;
use crate::descriptor::Peer;
use crate::epoch;
use crate::error::Reject;
use crate::event::RequestPrecondition;
use crate::ids::{Index, Ticket};
use crate::message::NoticeKind;
use crate::step_context::StepContext;

impl Replica {
    /// Queues the entry that asks each replica for the digest of its rows.
    pub(crate) fn compare_replicas(
        &mut self,
        ticket: Ticket,
        version: u64,
        step: &mut StepContext<'_>,
    ) {
        let admitted = epoch::check(&RequestPrecondition::default(), &self.standing(), true)
            .and_then(|()| self.check_no_transfer())
            .and_then(|()| self.check_no_comparison())
            .and_then(|()| {
                let command = AdminCommand::ComputeDigest { version };
                self.proposals.admit_admin(ticket, &command, step.config)
            });
        if let Err(why) = admitted {
            step.reject(ticket, why);
        }
    }

    /// A second entry would end the first comparison before its verdict.
    fn check_no_comparison(&self) -> Result<(), Reject> {
        let reason = "the replicas of the region are being compared";
        let is_busy = self.consistency.is_under_way() || self.proposals.has_queued_admin();
        if is_busy { Err(Reject::Busy { reason }) } else { Ok(()) }
    }

    /// The store has the digest of the rows here, or has given it up.
    pub(crate) fn digested(
        &mut self,
        index: Index,
        digest: Option<u64>,
        step: &mut StepContext<'_>,
    ) {
        self.consistency.note_own(index, digest, step.now);
        self.tick_consistency(step);
    }

    /// Another replica tells its digest.
    pub(super) fn hear_digest(&mut self, from: Peer, index: Index, digest: Option<u64>) {
        let is_other = from.id != self.me.id && self.descriptor.peer(from.id) == Some(from);
        if self.consensus.is_leader() && is_other {
            self.consistency.note_other(from.id, index, digest);
        }
    }

    /// Time has passed, once, or the digest here is new.
    pub(super) fn tick_consistency(&mut self, step: &mut StepContext<'_>) {
        if !self.consistency.is_under_way() || self.is_installing() {
            return;
        }
        if self.consensus.is_leader() {
            return self.propose_verdict(step);
        }
        self.consistency.give_up_late(step.now);
        if let Some(leader) = self.leader()
            && let Some((index, digest)) = self.consistency.take_due(step.now)
        {
            let kind = NoticeKind::Digest { index, digest };
            self.tell(leader.store, kind, self.me.id, step);
        }
    }

    fn propose_verdict(&mut self, step: &mut StepContext<'_>) {
        // It may have begun to lead in this very step, and know nothing of its log yet.
        let is_new = self.reported.role.0 != self.consensus.term();
        if is_new || self.consensus.is_transferring() {
            return;
        }
        let complete = self.consistency.complete(step.now, self.me.id, &self.descriptor);
        let Some(comparison) = complete else { return };
        let (asked, verify) = (comparison.index, AdminCommand::VerifyDigests(comparison));
        let data = verify.encode();
        // Else the next tick tries again.
        if self.consensus.has_room(data.len(), step.config.uncommitted_bytes_max) {
            let (index, _) = self.consensus.propose(data.to_vec());
            let region = self.descriptor.id;
            assert!(asked < index, "region {region}: {index} compares digests of {asked}");
            self.consistency.note_proposed();
            step.stats.entries_proposed += 1;
        }
    }
}
