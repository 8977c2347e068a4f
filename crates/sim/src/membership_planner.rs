//! Changes of members by hand: which, of which region, and with what mishap beside; and the repair
//! of regions once all faults have ended. Drawn from a generator of their own, so that old seeds
//! draw the rest as ever.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;

use fastrand::Rng;
use flotilla_region::{
    Descriptor, MembershipChange, MembershipCommand, MembershipError, Peer, PeerId, PeerRole,
    RegionId, StoreId,
};

use crate::layout;

/// Parts the generator of changes from the others of a seed.
const SALT: u64 = 0x3e3b_e700;
/// Ids from here on are given to new replicas; those of splits are lower.
const FIRST_ID: u64 = 1_000_000;
/// Ids of a block that a leader of placement leases.
const BLOCK_IDS: u64 = 100;
/// More than the versions that the regions of a run get.
const WILD_VERSION: u64 = 1_000_000;
/// Voters of a region after the repair.
const VOTERS: usize = 3;
/// Notices and messages come up to so late.
const LATE_US_MAX: u64 = 60_000_000;
/// One of this many notices comes a second time, very late; of messages, far fewer.
const LATE_NOTICES_OF: u32 = 6;
const LATE_MESSAGES_OF: u32 = 400;

/// A mishap while members change.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum MembershipCompanion {
    None,
    /// The same change is asked for twice.
    Twice,
    /// The same change is asked for again later.
    Late {
        us: u64,
    },
    /// Another change is asked for at the same moment.
    SecondChange,
    /// The leader loses power soon: between entering a joint configuration and leaving it, if it
    /// enters one.
    LeaderDies {
        us: u64,
    },
    /// The leader is cut off soon.
    LeaderAlone {
        us: u64,
    },
    /// The store of the replica that the change is about loses power soon.
    StoreDies {
        us: u64,
    },
    /// That store is away through several changes.
    StoreAway {
        us: u64,
    },
    /// That store loses power behind this arrow of the next end of a replica.
    CutAtEnd {
        arrow: usize,
    },
    /// The streams of that store are cut soon.
    CutStreams {
        us: u64,
    },
    /// A split of the region is asked for at the same moment.
    Split,
    /// A transfer of the lead is asked for at the same moment.
    Transfer,
    /// Another replica wants to lead.
    Campaign,
    /// All stores lose power.
    Blackout {
        us: u64,
    },
}

/// A change to be asked for.
#[derive(Clone, Debug)]
pub(crate) struct PlannedChange {
    pub(crate) command: MembershipCommand,
    /// Whether it cannot have an effect, whatever becomes of the region.
    pub(crate) is_void: bool,
}

/// Draws changes of members.
#[derive(Clone, Debug)]
pub(crate) struct MembershipPlanner {
    rng: Rng,
    /// Between two changes; 0 for never.
    mean_us: u64,
    /// Whether regions are repaired at the end.
    repairs: bool,
    /// The blocks of ids of two leaders of placement, the older one first.
    blocks: [Range<u64>; 2],
    /// The voters that each region should have.
    wanted: BTreeMap<RegionId, usize>,
    /// Replicas whose votes were to be taken: as learners they go.
    demoted: BTreeSet<PeerId>,
}

impl MembershipPlanner {
    /// Draws how often members change. In one run of four, never.
    pub(crate) fn draw(seed: u64) -> Self {
        let mut rng = Rng::with_seed(seed ^ SALT);
        let mean_us = [0, 80_000, 250_000, 1_000_000][rng.usize(..4)];
        Self { rng, mean_us, repairs: mean_us > 0, ..Self::idle() }
    }

    /// Draws no change by itself, and repairs what a script has left.
    pub(crate) fn idle() -> Self {
        let next = FIRST_ID + BLOCK_IDS;
        Self {
            rng: Rng::with_seed(SALT),
            mean_us: 0,
            repairs: true,
            blocks: [FIRST_ID..next, next..next + BLOCK_IDS],
            wanted: BTreeMap::new(),
            demoted: BTreeSet::new(),
        }
    }

    /// No member changes.
    pub(crate) fn none() -> Self {
        Self { repairs: false, ..Self::idle() }
    }

    /// Whether regions are repaired at the end.
    pub(crate) fn repairs(&self) -> bool {
        self.repairs
    }

    /// How long until the next change, if there is one.
    pub(crate) fn delay_us(&mut self) -> Option<u64> {
        (self.mean_us > 0).then(|| self.rng.u64(1..=2 * self.mean_us))
    }

    /// How late a notice comes a second time, if it does.
    pub(crate) fn late_notice_us(&mut self) -> Option<u64> {
        self.late_us(LATE_NOTICES_OF)
    }

    /// How late a message comes a second time, if it does.
    pub(crate) fn late_message_us(&mut self) -> Option<u64> {
        self.late_us(LATE_MESSAGES_OF)
    }

    fn late_us(&mut self, of: u32) -> Option<u64> {
        let is_late = self.mean_us > 0 && self.rng.u32(..of) == 0;
        // Mostly within the run, which is shorter than the latest that may come.
        let max_us = if self.rng.bool() { LATE_US_MAX } else { LATE_US_MAX / 10 };
        is_late.then(|| self.rng.u64(1..max_us))
    }

    /// One of these regions.
    pub(crate) fn choose(&mut self, of: &[RegionId]) -> RegionId {
        of[self.rng.usize(..of.len())]
    }

    /// How long a link that is cut stays so.
    pub(crate) fn mend_us(&mut self) -> u64 {
        self.rng.u64(100_000..3_000_000)
    }

    /// The mishap beside a change.
    pub(crate) fn companion(&mut self) -> MembershipCompanion {
        let us_max = [5_000, 60_000, 400_000][self.rng.usize(..3)];
        let us = self.rng.u64(1..us_max);
        let rng = &mut self.rng;
        match rng.u8(..32) {
            0 | 1 => MembershipCompanion::Twice,
            2 | 3 => MembershipCompanion::Late { us: rng.u64(100_000..8_000_000) },
            4 => MembershipCompanion::SecondChange,
            5..8 => MembershipCompanion::LeaderDies { us },
            8 => MembershipCompanion::LeaderAlone { us },
            9 => MembershipCompanion::StoreDies { us },
            10 | 11 => MembershipCompanion::StoreAway { us: rng.u64(1_000_000..8_000_000) },
            12..15 => MembershipCompanion::CutAtEnd { arrow: rng.usize(..8) },
            15 => MembershipCompanion::CutStreams { us },
            16 => MembershipCompanion::Split,
            17 => MembershipCompanion::Transfer,
            18 => MembershipCompanion::Campaign,
            19 => MembershipCompanion::Blackout { us },
            _ => MembershipCompanion::None,
        }
    }

    /// Draws a change of a region that `leader` leads.
    pub(crate) fn plan(
        &mut self,
        region: &Descriptor,
        leader: StoreId,
        stores: usize,
    ) -> PlannedChange {
        let change = if self.rng.u8(..8) == 0 { None } else { self.step(region, leader, stores) };
        // Known by itself, not from the product: what must not be made has to be void there, too.
        let mut is_void = change.is_none();
        let mut command = match change {
            Some(change) => MembershipCommand { epoch: region.epoch, change },
            None => self.spoiled(region),
        };
        // Another one is in the way of a change that was planned for an older form of the region.
        if self.rng.u8(..24) == 0 {
            command.epoch = region.epoch;
            command.epoch.conf_version -= 1;
            is_void = true;
        }
        is_void |= cannot_be_made(&command, region);
        if let MembershipChange::Vote { demoted, .. } = &command.change {
            self.demoted.extend(demoted);
        }
        PlannedChange { command, is_void }
    }

    /// An id that no replica has had.
    pub(crate) fn new_id(&mut self) -> PeerId {
        if self.blocks[1].is_empty() || self.rng.u8(..4) == 0 {
            let next = self.blocks[1].end.max(self.blocks[0].end);
            let [_, newer] = std::mem::replace(&mut self.blocks, [0..0, next..next + BLOCK_IDS]);
            self.blocks[0] = newer;
        }
        // The older block is that of a leader that was away meanwhile.
        let place = usize::from(self.blocks[0].is_empty() || self.rng.u8(..6) > 0);
        PeerId(self.blocks[place].next().expect("it is not empty"))
    }

    /// The next step of a region towards the voters that it should have, or of a move.
    fn step(
        &mut self,
        region: &Descriptor,
        leader: StoreId,
        stores: usize,
    ) -> Option<MembershipChange> {
        if region.is_joint() {
            return Some(MembershipChange::LeaveJoint);
        }
        let wanted = self.wanted(region, stores);
        let (voters, learners) = (with_role(region, true), with_role(region, false));
        if !learners.is_empty() && self.rng.u8(..6) > 0 {
            return Some(self.step_of_learner(&voters, &learners, leader, wanted));
        }
        let free = free_stores(region, stores);
        let is_full = free.is_empty() || voters.len() > wanted;
        if !is_full {
            return Some(self.add(&free));
        }
        let mut demoted: Vec<_> = self.spared(&voters, leader).map(|peer| peer.id).collect();
        self.rng.shuffle(&mut demoted);
        // Two at once are joint.
        demoted.truncate(if self.rng.u8(..4) == 0 { 2 } else { 1 });
        if demoted.len() == voters.len() {
            demoted.pop();
        }
        (!demoted.is_empty()).then_some(MembershipChange::Vote { promoted: vec![], demoted })
    }

    fn step_of_learner(
        &mut self,
        voters: &[Peer],
        learners: &[Peer],
        leader: StoreId,
        wanted: usize,
    ) -> MembershipChange {
        let learner = learners[self.rng.usize(..learners.len())].id;
        let goes = self.demoted.contains(&learner);
        if self.rng.u8(..8) < if goes { 7 } else { 1 } {
            return MembershipChange::Remove(learner);
        }
        let mut promoted = vec![learner];
        let mut demoted = Vec::new();
        if voters.len() >= wanted {
            let spared: Vec<_> = self.spared(voters, leader).collect();
            demoted.extend(spared.first().map(|peer| peer.id));
        } else if voters.len() + 1 < wanted {
            promoted = learners.iter().map(|peer| peer.id).collect();
        }
        MembershipChange::Vote { promoted, demoted }
    }

    fn add(&mut self, free: &[StoreId]) -> MembershipChange {
        let store = free[self.rng.usize(..free.len())];
        MembershipChange::Add(Peer { id: self.new_id(), store })
    }

    /// Voters in some order, mostly without the leader.
    fn spared(&mut self, voters: &[Peer], leader: StoreId) -> impl Iterator<Item = Peer> + use<> {
        let spares_leader = self.rng.u8(..8) > 0;
        let mut spared = voters.to_vec();
        spared.retain(|peer| !(spares_leader && peer.store == leader));
        self.rng.shuffle(&mut spared);
        spared.into_iter()
    }

    fn wanted(&mut self, region: &Descriptor, stores: usize) -> usize {
        let drawn = [1, 2, 3, 3, 3, 4, 5][self.rng.usize(..7)].min(stores);
        let is_new = self.rng.u8(..8) == 0;
        let wanted = self.wanted.entry(region.id).or_insert(VOTERS.min(stores));
        if is_new {
            *wanted = drawn;
        }
        *wanted
    }

    /// A change that cannot be made.
    fn spoiled(&mut self, region: &Descriptor) -> MembershipCommand {
        let mut epoch = region.epoch;
        let listed = region.peers[self.rng.usize(..region.peers.len())];
        let unknown = self.new_id();
        let vote = |promoted: &[PeerId], demoted: &[PeerId]| {
            let (promoted, demoted) = (promoted.to_vec(), demoted.to_vec());
            MembershipChange::Vote { promoted, demoted }
        };
        let all: Vec<_> = with_role(region, true).into_iter().map(|peer| peer.id).collect();
        let change = match self.rng.u8(..14) {
            0 => {
                epoch.conf_version += WILD_VERSION;
                MembershipChange::LeaveJoint
            }
            1 => {
                epoch.version += WILD_VERSION;
                vote(&[], &[listed.id])
            }
            2 => MembershipChange::Add(Peer { id: region.floor(), store: StoreId(99) }),
            3 => MembershipChange::Add(Peer { id: listed.id, store: StoreId(99) }),
            4 => MembershipChange::Add(Peer { id: unknown, store: listed.store }),
            5 => MembershipChange::Remove(all[0]),
            6 => MembershipChange::Remove(unknown),
            7 => vote(&[all[0]], &[]),
            8 => vote(&[], &[unknown]),
            9 => vote(&[], &[]),
            10 => vote(&[], &[listed.id, listed.id]),
            11 => vote(&[listed.id], &[listed.id]),
            12 => vote(&[], &all),
            // Joint beside joint, or the leaving of a configuration that is not joint.
            _ if region.is_joint() => vote(&[], &all[..1]),
            _ => MembershipChange::LeaveJoint,
        };
        MembershipCommand { epoch, change }
    }

    /// The next step of a repair, if the region needs one.
    pub(crate) fn repair(
        &mut self,
        region: &Descriptor,
        leader: StoreId,
        stores: usize,
    ) -> Option<MembershipCommand> {
        let change = self.repairing_change(region, leader, stores)?;
        Some(MembershipCommand { epoch: region.epoch, change })
    }

    fn repairing_change(
        &mut self,
        region: &Descriptor,
        leader: StoreId,
        stores: usize,
    ) -> Option<MembershipChange> {
        if region.is_joint() {
            return Some(MembershipChange::LeaveJoint);
        }
        let (voters, learners) = (with_role(region, true), with_role(region, false));
        let wanted = repaired_voters(voters.len(), stores);
        if voters.len() > wanted {
            let spared = voters.iter().rfind(|peer| peer.store != leader);
            let demoted = spared.map(|peer| peer.id).into_iter().collect();
            return Some(MembershipChange::Vote { promoted: vec![], demoted });
        }
        if voters.len() == wanted {
            return learners.first().map(|peer| MembershipChange::Remove(peer.id));
        }
        if !learners.is_empty() {
            let learner = learners[self.rng.usize(..learners.len())].id;
            return Some(MembershipChange::Vote { promoted: vec![learner], demoted: vec![] });
        }
        let free = free_stores(region, stores);
        (!free.is_empty()).then(|| self.add(&free))
    }

    /// Whether a region is as it should be after the repair.
    ///
    /// # Errors
    ///
    /// In words, how it is.
    pub(crate) fn is_repaired(&self, region: &Descriptor, stores: usize) -> Result<(), String> {
        let (voters, learners) = (with_role(region, true), with_role(region, false));
        let is_whole = !region.is_joint()
            && learners.is_empty()
            && region.removed.unconfirmed.is_empty()
            && voters.len() == repaired_voters(voters.len(), stores);
        let words = || format!("region {} is not repaired: {region:?}", region.id);
        if is_whole || !self.repairs { Ok(()) } else { Err(words()) }
    }
}

/// Whether a change of a region cannot have an effect any more: not now, and not when ends of
/// replicas are confirmed, which leaves the version as it is.
fn cannot_be_made(command: &MembershipCommand, region: &Descriptor) -> bool {
    match command.apply(region) {
        Ok(_) | Err(MembershipError::Limit) => false,
        Err(MembershipError::StoreTaken(store)) => region.peer_on(store).is_some(),
        // An older version stays one; a greater one must be out of reach.
        Err(_) => true,
    }
}

/// Voters after the repair of a region that has some now.
fn repaired_voters(now: usize, stores: usize) -> usize {
    if now >= 5 { 5 } else { VOTERS.min(stores) }
}

/// The voters, or the learners.
fn with_role(region: &Descriptor, votes: bool) -> Vec<Peer> {
    let role = if votes { PeerRole::Voter } else { PeerRole::Learner };
    region.peers.iter().filter(|peer| peer.role == role).map(|peer| peer.address()).collect()
}

/// Stores that have neither a replica of the region nor one that may not have ended.
fn free_stores(region: &Descriptor, stores: usize) -> Vec<StoreId> {
    let is_free = |store: &StoreId| {
        let removed = &region.removed.unconfirmed;
        region.peer_on(*store).is_none() && removed.iter().all(|peer| peer.store != *store)
    };
    (0..stores).map(layout::id).filter(is_free).collect()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use flotilla_region::{Epoch, RemovedPeers, Space};

    use super::*;

    fn region(voters: u64) -> Descriptor {
        Descriptor {
            id: RegionId(2),
            space: Space::Raw,
            start: Bytes::new(),
            end: Bytes::new(),
            epoch: Epoch { conf_version: 1, version: 1 },
            peers: (1..=voters).map(|n| Peer { id: PeerId(n), store: StoreId(n) }.into()).collect(),
            removed: RemovedPeers::default(),
        }
    }

    #[test]
    fn changes_lead_through_all_forms_and_void_ones_are_none_of_them() {
        let mut planner = MembershipPlanner::draw(7);
        let mut region = region(3);
        let (mut made, mut void, mut joint, mut moved, mut below) = (0, 0, 0, 0, 0);
        for _ in 0..5_000 {
            let leader = with_role(&region, true).first().map_or(StoreId(1), |peer| peer.store);
            let PlannedChange { command, is_void } = planner.plan(&region, leader, 5);
            void += u32::from(is_void);
            match command.apply(&region) {
                Ok(next) => {
                    assert!(!is_void, "{command:?}");
                    made += 1;
                    joint += u32::from(next.is_joint());
                    moved += u32::from(next.peers.len() < region.peers.len());
                    region = next;
                }
                Err(error) => {
                    let is_below = matches!(error, MembershipError::Floor(id) if id.0 >= FIRST_ID);
                    below += u32::from(is_below);
                }
            }
            // As the leader does once an end is confirmed.
            if region.removed.unconfirmed.len() > 2 {
                region.removed.unconfirmed.clear();
            }
        }
        let counts = [made, void, joint, moved, below];
        assert!(counts.iter().all(|count| *count > 50), "{counts:?}");
    }

    #[test]
    fn the_repair_of_any_form_ends_with_voters_only() {
        let mut planner = MembershipPlanner::draw(7);
        for stores in [3, 5] {
            let mut region = region(3);
            for round in 0..300 {
                for _ in 0..round % 9 {
                    let command = planner.plan(&region, StoreId(1), stores).command;
                    region = command.apply(&region).unwrap_or(region);
                }
                for _ in 0..40 {
                    region.removed.unconfirmed.clear();
                    let leader = with_role(&region, true).first().map_or(StoreId(1), |it| it.store);
                    let Some(command) = planner.repair(&region, leader, stores) else { break };
                    // Not with an id of the older block, which may be too low.
                    region = command.apply(&region).unwrap_or(region);
                }
                region.removed.unconfirmed.clear();
                assert_eq!(planner.is_repaired(&region, stores), Ok(()));
            }
        }
    }

    #[test]
    fn ids_are_new_and_not_always_greater() {
        let mut planner = MembershipPlanner::idle();
        let ids: Vec<_> = (0..1_000).map(|_| planner.new_id()).collect();
        let distinct: BTreeSet<_> = ids.iter().collect();
        assert_eq!(distinct.len(), ids.len());
        let falls = ids.windows(2).filter(|pair| pair[1] < pair[0]).count();
        assert!(falls > 50, "{falls}");
    }
}
