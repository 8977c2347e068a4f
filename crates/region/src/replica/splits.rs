//! Splits of a replica: when it wants one, how it proposes it, and what it does when it is applied.

use super::Replica;
use crate::admin_command::{AdminCommand, SplitCommand, SplitRegions};
use crate::convert;
use crate::descriptor::{PeerRole, Space};
use crate::disk_usage::DiskUsage;
use crate::effects::{BirthOrigin, NewReplica, RegionLoad, ReplicaBirth, SplitWish};
use crate::entry::HardState;
use crate::epoch;
use crate::error::Reject;
use crate::event::RequestPrecondition;
use crate::ids::{Index, Ticket, Time};
use crate::recovered_replica::RecoveredReplica;
use crate::step_context::StepContext;

/// A replica answers that was heard within so many milliseconds.
const HEARD_MS: u64 = 2000;

impl Replica {
    /// Tells the driver of the load of a region that is led here, and asks for a split if it should
    /// be several.
    pub(super) fn want_split(&mut self, step: &mut StepContext<'_>) {
        // The system region is small, and found by its id.
        if self.descriptor.space == Space::System || !self.consensus.is_leader() {
            return;
        }
        let (config, is_behind) = (&step.config.split, self.has_replica_behind(step.now));
        let reason = self.split_policy.decide(step.now, &self.descriptor, is_behind, config);
        let (region, epoch) = (self.descriptor.id, self.descriptor.epoch);
        // Also of a region that cannot be split now: its load would stay the one of before.
        let load = self.split_policy.take_load();
        let load = load.map(|requests_per_s| RegionLoad { region, requests_per_s });
        step.effects.load.regions.extend(load);
        let is_almost_full = step.disks.stores.of(self.me.store) >= DiskUsage::AlmostFull;
        let may_split =
            !is_almost_full && !self.descriptor.is_joint() && !self.consensus.is_transferring();
        let Some(reason) = reason.filter(|_| may_split) else { return };
        step.effects.load.split_wishes.push(SplitWish { region, epoch, reason });
    }

    /// Whether a replica that answers has no data yet, or lacks the last split: it may need a
    /// snapshot of each region that comes of a split.
    fn has_replica_behind(&self, now: Time) -> bool {
        self.descriptor.peers.iter().any(|peer| {
            let is_learner = peer.role == PeerRole::Learner;
            let has_split = self.consensus.matched(peer.id) >= Some(self.split_policy.last_split());
            let is_behind = (is_learner && !self.consensus.replicates_to(peer.id))
                || self.consensus.pending_snapshot(peer.id).is_some()
                || !has_split;
            is_behind && self.transfer.is_heard(peer.id, now, HEARD_MS)
        })
    }

    /// Checks a split and queues it for an entry of its own.
    pub(crate) fn propose_split(
        &mut self,
        ticket: Ticket,
        split: SplitCommand,
        step: &mut StepContext<'_>,
    ) {
        let version = Some(split.epoch.version);
        let precondition = RequestPrecondition { version, ..RequestPrecondition::default() };
        let admitted = epoch::check(&precondition, &self.standing(), true)
            .and_then(|()| split.check(&self.descriptor).map_err(Reject::InvalidSplit))
            .and_then(|()| self.check_no_transfer())
            .and_then(|()| self.check_no_change())
            .and_then(|()| {
                let command = AdminCommand::Split(split);
                self.proposals.admit_admin(ticket, &command, step.config)
            });
        if let Err(why) = admitted {
            step.reject(ticket, why);
        }
    }

    /// A split that waited beside a transfer would be lost with it, and its ids as well.
    pub(super) fn check_no_transfer(&self) -> Result<(), Reject> {
        let reason = "the region is changing its leader";
        if self.consensus.is_transferring() { Err(Reject::Busy { reason }) } else { Ok(()) }
    }

    /// The new regions have replicas where the region has them: one change at a time.
    fn check_no_change(&self) -> Result<(), Reject> {
        let reason = "the region is changing its members";
        if self.membership.has_proposed() { Err(Reject::Busy { reason }) } else { Ok(()) }
    }

    /// A split was applied: the replica goes on with the last part of its range, and the store has
    /// the rows of the others.
    pub(super) fn become_parent(
        &mut self,
        index: Index,
        regions: SplitRegions,
        step: &mut StepContext<'_>,
    ) {
        let SplitRegions { parent, children } = regions;
        let (before, now) = (self.descriptor.epoch.version, parent.epoch.version);
        assert!(
            parent.id == self.descriptor.id && now > before,
            "region {}: version {now} of region {} after {before}",
            self.descriptor.id,
            parent.id
        );
        self.descriptor = parent;
        self.split_policy.restart();
        self.split_policy.note_split(index);
        // Those that are in the log are refused when they are applied, on every replica alike.
        let mut current = vec![self.descriptor.clone()];
        current.extend_from_slice(&children);
        let why = Reject::EpochNotMatch { current };
        self.proposals.reject_queued(&why, |ticket, why| step.reject(ticket, why));
        step.effects.ranges.push(self.descriptor.clone());
        let parent = (self.descriptor.id, self.me.id);
        for child in children {
            // Two replicas of one store that hold a key would both answer for it.
            assert!(
                !child.end.is_empty() && child.end <= self.descriptor.start,
                "region {} keeps keys of its child {}",
                self.descriptor.id,
                child.id
            );
            // The replicas of a child are on the stores of its parent's.
            let Some(peer) = child.peer_on(self.me.store) else { continue };
            self.output.births.push(ReplicaBirth {
                region: child.id,
                peer: peer.id,
                hard_state: RecoveredReplica::hard_state_of_split(),
                origin: BirthOrigin::Split {
                    parent,
                    parent_hard_state: HardState::default(),
                    index,
                },
            });
            let is_damaged = self.applying.damage.is_damaged();
            let campaigns = self.consensus.is_leader() && !is_damaged;
            let (descriptor, peer) = (child, peer.id);
            step.effects.created.push(NewReplica { descriptor, peer, campaigns, is_damaged });
        }
        step.stats.splits += 1;
    }

    /// Hands the births of this step out.
    pub(super) fn bear(&mut self, step: &mut StepContext<'_>) {
        // As it is behind the writes of this step, which lie before the births in the batch: other
        // events may have raised it since the split was told of. A snapshot is not among them, for
        // it is not taken before the births are handed out (R15).
        let parent_hard_state = convert::hard_state_from_raft(&self.consensus.hard_state());
        for birth in self.output.births.drain(..) {
            let BirthOrigin::Split { parent, index, .. } = birth.origin else {
                unreachable!("a replica bears by splits")
            };
            let commit = parent_hard_state.commit;
            assert!(commit >= index, "a split is applied that is not committed");
            let origin = BirthOrigin::Split { parent, parent_hard_state, index };
            step.effects.log.births.push(ReplicaBirth { origin, ..birth });
        }
    }
}
