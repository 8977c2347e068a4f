//! Changes of a region's members: how a replica proposes them, what it does when they are applied,
//! and what it tells and hears of those that were removed.

use super::Replica;
use crate::admin_command::AdminCommand;
use crate::convert;
use crate::descriptor::{Descriptor, Peer};
use crate::epoch;
use crate::error::{MembershipRefusal, Reject};
use crate::event::RequestPrecondition;
use crate::ids::{Index, PeerId, StoreId, Ticket};
use crate::membership_change::{MembershipChange, MembershipCommand};
use crate::membership_check::{self, MembershipView};
use crate::message::{Notice, NoticeKind};
use crate::step_context::StepContext;

impl Replica {
    /// Checks a change of the members and makes an entry of it.
    pub(crate) fn change_membership(
        &mut self,
        ticket: Ticket,
        command: &MembershipCommand,
        step: &mut StepContext<'_>,
    ) {
        // It may have begun to lead in this very step, and know nothing of its log yet.
        self.notice_role(step);
        match self.propose_membership(command, step) {
            Ok(index) => self.proposals.place_alone(index, self.consensus.term(), ticket),
            Err(why) => step.reject(ticket, why),
        }
    }

    fn propose_membership(
        &mut self,
        command: &MembershipCommand,
        step: &mut StepContext<'_>,
    ) -> Result<Index, Reject> {
        epoch::check(&RequestPrecondition::default(), &self.standing(), true)?;
        let view = MembershipView {
            descriptor: &self.descriptor,
            me: self.me.id,
            consensus: &self.consensus,
            transfer: &self.transfer,
            has_queued_split: self.proposals.has_queued_admin(),
            now: step.now,
        };
        membership_check::check(command, &view)?;
        let admin = AdminCommand::Membership(command.clone());
        let change = convert::change_to_raft(&command.change, admin.encode());
        let appended = self.consensus.propose_change(change);
        let reason = "too many bytes wait to be committed";
        let appended = convert::entry_from_raft(appended.ok_or(Reject::Busy { reason })?);
        // Raft 0.7 appends an empty entry in the place of a change that it does not want, and says
        // nothing: its ticket would be answered with the outcome of nothing.
        if AdminCommand::decode(&appended) != Ok(Some(admin)) {
            return Err(Reject::InvalidMembership(MembershipRefusal::Untaken));
        }
        let may = !self.consensus.is_transferring() && !self.transfer.has_change();
        assert!(may, "region {}: a change beside another one", self.descriptor.id);
        self.membership.note_proposed(appended.index);
        self.transfer.note_change(appended.index);
        step.stats.entries_proposed += 1;
        Ok(appended.index)
    }

    /// A leader leaves the joint configuration by itself, be it its own or its predecessor's: raft
    /// would forget it with its leader.
    pub(super) fn leave_joint(&mut self, step: &mut StepContext<'_>) {
        if self.consensus.is_leader() && self.descriptor.is_joint() {
            let epoch = self.descriptor.epoch;
            let command = MembershipCommand { epoch, change: MembershipChange::LeaveJoint };
            // Refused for a moment: the next step tries again.
            let _ = self.propose_membership(&command, step);
        }
    }

    /// A change was applied: raft hears of it before it counts the entry as applied (R18).
    pub(super) fn change_members(
        &mut self,
        change: &MembershipChange,
        descriptor: Descriptor,
        step: &mut StepContext<'_>,
    ) {
        let (before, now) = (self.descriptor.epoch, descriptor.epoch);
        assert!(
            descriptor.id == self.descriptor.id
                && now.conf_version > before.conf_version
                && now.version == before.version,
            "region {}: version {now:?} of region {} after {before:?}",
            self.descriptor.id,
            descriptor.id
        );
        // R13: else an id that is gone for good could be a member again.
        let (floor, next) = (self.descriptor.floor(), descriptor.floor());
        assert!(next >= floor, "region {}: the floor {floor} becomes {next}", descriptor.id);
        self.descriptor = descriptor;
        step.stats.membership_changes += 1;
        if self.descriptor.peer(self.me.id).is_none() {
            // Raft is not told: it would lose its own progress, and panic at the next write that
            // reaches the disk. It decides nothing any more.
            return self.begin_end(step);
        }
        let raft_change = convert::change_to_raft(change, bytes::Bytes::new());
        self.consensus.apply_change(&raft_change, &self.descriptor);
        self.forget_unlisted();
        step.effects.ranges.push(self.descriptor.clone());
    }

    /// The region has other members: what is known of replicas that it does not list goes.
    pub(super) fn forget_unlisted(&mut self) {
        let descriptor = &self.descriptor;
        let is_listed = |peer: PeerId| descriptor.peer(peer).is_some();
        self.membership.retain(descriptor);
        self.transfer.retain(descriptor);
        self.compactor.retain(is_listed);
        self.consensus.window_mut().snapshots().retain(is_listed);
    }

    /// The end of a removed replica is confirmed, on every replica alike.
    pub(super) fn forget_removed(
        &mut self,
        peer: PeerId,
        descriptor: Descriptor,
        step: &mut StepContext<'_>,
    ) {
        let is_listed = |region: &Descriptor| {
            region.removed.unconfirmed.iter().any(|removed| removed.id == peer)
        };
        assert!(
            is_listed(&self.descriptor) && !is_listed(&descriptor),
            "region {}: replica {peer} is forgotten twice, or not at all",
            self.descriptor.id
        );
        self.descriptor = descriptor;
        step.effects.ranges.push(self.descriptor.clone());
    }

    /// Time has passed, once.
    pub(super) fn tick_membership(&mut self, step: &mut StepContext<'_>) {
        if self.consensus.is_leader() {
            self.membership.note_leader();
            let unconfirmed = &self.descriptor.removed.unconfirmed;
            for Peer { id, store } in self.membership.removed().due(step.now, unconfirmed) {
                self.tell(store, NoticeKind::End, id, step);
            }
            self.hand_over_voteless(step);
        } else if self.membership.tick(step.config.election_ticks) {
            let removed = self.descriptor.removed.unconfirmed.iter().map(|peer| peer.store);
            let listed = self.descriptor.peers.iter().map(|peer| peer.store);
            let mut stores: Vec<_> = listed.chain(removed).collect();
            stores.sort_unstable();
            stores.dedup();
            for store in stores.into_iter().filter(|store| *store != self.me.store) {
                self.tell(store, NoticeKind::WhoIs, self.me.id, step);
            }
        }
    }

    pub(super) fn tell(
        &self,
        to: StoreId,
        kind: NoticeKind,
        peer: PeerId,
        step: &mut StepContext<'_>,
    ) {
        let (region, from, epoch) = (self.descriptor.id, self.me.store, self.descriptor.epoch);
        step.effects.notices.push(Notice { region, from, to, kind, peer, epoch });
    }

    /// Another store tells of a replica.
    pub(crate) fn hear(&mut self, notice: Notice, step: &mut StepContext<'_>) {
        let Notice { from, kind, peer, epoch, .. } = notice;
        match kind {
            // However old the descriptor here is: ids only grow (R13).
            NoticeKind::WhoIs if self.is_gone(peer) => {
                self.tell(from, NoticeKind::Gone, peer, step);
            }
            NoticeKind::WhoIs => {}
            // A region that does not list this replica any more is later than the one here.
            NoticeKind::Gone | NoticeKind::End
                if epoch.conf_version > self.descriptor.epoch.conf_version
                    && (peer == self.me.id || kind == NoticeKind::End && peer > self.me.id) =>
            {
                self.begin_end(step);
            }
            NoticeKind::Gone | NoticeKind::End => {}
            NoticeKind::Ended => self.confirm_end(Peer { id: peer, store: from }, step),
            NoticeKind::Digest { index, digest } => {
                self.hear_digest(Peer { id: peer, store: from }, index, digest);
            }
        }
    }

    /// Whether a replica was a member, and never will be again.
    pub(super) fn is_gone(&self, peer: PeerId) -> bool {
        peer <= self.descriptor.floor() && self.descriptor.peer(peer).is_none()
    }

    /// A store has a removed replica's end in a root: the region forgets that replica.
    fn confirm_end(&mut self, removed: Peer, step: &mut StepContext<'_>) {
        let is_listed = self.descriptor.removed.unconfirmed.contains(&removed);
        let data = AdminCommand::Forget(removed.id).encode();
        let (applied, now) = (self.consensus.applied_index(), step.now);
        // Else it is asked about again, and answered again.
        let may_propose = is_listed
            && self.consensus.is_leader()
            && !self.consensus.is_transferring()
            && self.consensus.has_room(data.len(), step.config.uncommitted_bytes_max)
            && self.membership.removed().wants_entry(removed.id, applied, now);
        if may_propose {
            let (index, _) = self.consensus.propose(data.to_vec());
            self.membership.removed().note_entry(removed.id, index, now);
            step.stats.entries_proposed += 1;
        }
    }
}
