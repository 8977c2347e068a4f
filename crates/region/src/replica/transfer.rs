//! Transfers of leadership of a replica: how it begins one, and what it tells of its end.

use super::Replica;
use crate::descriptor::RegionPeer;
use crate::effects::LeaderTransferred;
use crate::error::{Reject, TransferError};
use crate::ids::{PeerId, Ticket};
use crate::leader_transfer::TransferOutcome;
use crate::step_context::StepContext;

impl Replica {
    /// Hands the lead over to `to`, or to the voter that lacks least, if one can take over.
    pub(crate) fn transfer_leader(
        &mut self,
        to: Option<PeerId>,
        ticket: Option<Ticket>,
        step: &mut StepContext<'_>,
    ) {
        // One that raft has just given up still has its ticket.
        self.settle_transfer(step);
        let leader = self.leader();
        if !self.consensus.is_leader() {
            return refuse(ticket, Reject::NotLeader { leader }, step);
        }
        if to == Some(self.me.id) {
            let region = self.descriptor.id;
            let done = ticket.map(|ticket| LeaderTransferred { region, ticket, leader: self.me });
            return step.effects.answers.transferred.extend(done);
        }
        let chosen = if self.proposals.has_queued_admin() {
            // It would wait with the others, and the next leader knows nothing of it.
            Err(TransferError::Changing)
        } else {
            self.choose_successor(to, step)
        };
        match chosen {
            Err(why) => refuse(ticket, Reject::InvalidTransfer(why), step),
            Ok(to) => self.begin_transfer(to, ticket, step),
        }
    }

    /// The voter that the lead goes to: `to`, or one whose disk is not full before all others.
    pub(super) fn choose_successor(
        &self,
        to: Option<PeerId>,
        step: &StepContext<'_>,
    ) -> Result<PeerId, TransferError> {
        self.choose_with_room(to, step).or_else(|_| {
            let (now, config) = (step.now, step.config);
            self.transfer.choose(to, &|_| true, &self.descriptor, &self.consensus, now, config)
        })
    }

    /// The same without those whose disks are full.
    pub(super) fn choose_with_room(
        &self,
        to: Option<PeerId>,
        step: &StepContext<'_>,
    ) -> Result<PeerId, TransferError> {
        let (now, config, stores) = (step.now, step.config, &step.disks.stores);
        let has_room = |peer: &RegionPeer| !stores.of(peer.store).is_full();
        self.transfer.choose(to, &has_room, &self.descriptor, &self.consensus, now, config)
    }

    pub(super) fn begin_transfer(
        &mut self,
        to: PeerId,
        ticket: Option<Ticket>,
        step: &mut StepContext<'_>,
    ) {
        let term = self.consensus.term();
        // First of all: raft makes the message at once if the other one lacks nothing, and the
        // votes that it forces may come at any time from then on (R22).
        self.read_path.void_lease(term);
        self.consensus.transfer_leader(to);
        self.transfer.begin(to, term, ticket, step.now, step.config);
        step.stats.transfers_begun += 1;
    }

    /// A leader without a vote behind the change under way hands over, to one after the other: it
    /// changes nothing itself, or it would end up as a leader that is no member.
    pub(super) fn hand_over_voteless(&mut self, step: &mut StepContext<'_>) {
        let keeps_vote = self.membership.keeps_vote(&self.descriptor, self.me.id);
        if !self.consensus.is_leader() || keeps_vote || self.transfer.is_pending() {
            return;
        }
        if let Ok(to) = self.choose_successor(None, step)
            && !self.proposals.has_queued_admin()
        {
            self.begin_transfer(to, None, step);
        }
    }

    /// Answers the transfer under way, if it is over.
    pub(super) fn settle_transfer(&mut self, step: &mut StepContext<'_>) {
        let leader = self.leader();
        let Some(over) = self.transfer.settle(leader, &self.consensus, step.now) else { return };
        let TransferOutcome { ticket, result } = over;
        match result {
            Ok(leader) => {
                step.stats.transfers_done += 1;
                let region = self.descriptor.id;
                let done = ticket.map(|ticket| LeaderTransferred { region, ticket, leader });
                step.effects.answers.transferred.extend(done);
            }
            Err(why) => refuse(ticket, Reject::InvalidTransfer(why), step),
        }
    }
}

fn refuse(ticket: Option<Ticket>, why: Reject, step: &mut StepContext<'_>) {
    step.stats.transfers_refused += 1;
    if let Some(ticket) = ticket {
        step.reject(ticket, why);
    }
}
