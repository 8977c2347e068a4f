//! Full disks: how full those of the stores are, and which requests and messages find room.
//!
//! A put is refused where it could not be committed, or its leader could not keep it: the leader's
//! disk is full, or too few voters have room to be a majority. A replica on an exhausted disk
//! refuses entries as long as a majority goes on without it. Without such a majority leaders take
//! no puts, and what still comes are deletions and changes: without these nothing heals, so they
//! are taken (decision 53, `docs/decisions/0053-full-disks-refuse-puts.md`).
//!
//! The figures of other stores may be old. That costs a refusal too many or an entry that waits,
//! and nothing else.

use std::collections::BTreeMap;

use crate::descriptor::{Descriptor, PeerRole, RegionPeer};
use crate::ids::{StoreId, Time};

/// The usage of a store's disk.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum DiskUsage {
    /// There is room for everything.
    #[default]
    Normal,
    /// No snapshots come in, and nothing is split without being asked.
    AlmostFull,
    /// No puts, and no leaders where another store can lead.
    Full,
    /// No entries where a majority goes on without them: what is left is for votes, for ends, and
    /// for the room that is made.
    Exhausted,
}

impl DiskUsage {
    /// All of them, from empty to full.
    pub const ALL: [Self; 4] = [Self::Normal, Self::AlmostFull, Self::Full, Self::Exhausted];

    /// Its place among all of them, by which metrics and other stores know it.
    #[must_use]
    pub fn number(self) -> u8 {
        self as u8
    }

    /// The one with this number. A greater one is of a later version, and fuller than all.
    #[must_use]
    pub fn from_number(number: u64) -> Self {
        let place = usize::try_from(number).unwrap_or(usize::MAX);
        Self::ALL[place.min(Self::ALL.len() - 1)]
    }

    /// Whether puts are refused.
    #[must_use]
    pub fn is_full(self) -> bool {
        self >= Self::Full
    }
}

/// The disks of all stores, this one included, as far as they were heard of. One that was not has
/// room.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct StoreDisks {
    /// Those that are not normal.
    usages: BTreeMap<StoreId, DiskUsage>,
    /// Leaders do not leave a full disk: not all stores know of transfers.
    leaders_stay: bool,
}

impl StoreDisks {
    /// Notes the usage of a store. Returns whether it was another one.
    pub fn note(&mut self, store: StoreId, usage: DiskUsage) -> bool {
        let before = match usage {
            DiskUsage::Normal => self.usages.remove(&store),
            usage => self.usages.insert(store, usage),
        };
        before.unwrap_or_default() != usage
    }

    /// Notes whether leaders stay on a full disk, for not all stores know of transfers. Returns
    /// whether that is new. They leave unless it is said.
    pub fn note_leaders_stay(&mut self, leaders_stay: bool) -> bool {
        std::mem::replace(&mut self.leaders_stay, leaders_stay) != leaders_stay
    }

    /// Whether the leaders of a store should go elsewhere.
    pub(crate) fn wants_leaders_away(&self, here: StoreId) -> bool {
        !self.leaders_stay && self.of(here).is_full()
    }

    /// The usage of a store.
    #[must_use]
    pub fn of(&self, store: StoreId) -> DiskUsage {
        self.usages.get(&store).copied().unwrap_or_default()
    }

    /// Whether a put finds room, by the leader on `here`.
    ///
    /// # Errors
    ///
    /// The stores with voters whose disks are full.
    pub(crate) fn check_put(
        &self,
        descriptor: &Descriptor,
        here: StoreId,
    ) -> Result<(), Vec<StoreId>> {
        // Nearly always: nothing is to be counted.
        if self.usages.is_empty() {
            return Ok(());
        }
        if !self.of(here).is_full() && self.has_majority_with_room(descriptor) {
            return Ok(());
        }
        let voters = descriptor.peers.iter().filter(|peer| peer.votes());
        Err(voters.map(|peer| peer.store).filter(|store| self.of(*store).is_full()).collect())
    }

    /// Whether the replica on `here` takes entries.
    pub(crate) fn takes_entries(&self, descriptor: &Descriptor, here: StoreId) -> bool {
        self.of(here) < DiskUsage::Exhausted || !self.has_majority_with_room(descriptor)
    }

    /// Whether the voters with room are a majority, in each half of a joint configuration.
    fn has_majority_with_room(&self, descriptor: &Descriptor) -> bool {
        assert!(!descriptor.peers.is_empty(), "region {} has no replicas", descriptor.id);
        let has_room = |peer: &RegionPeer| !self.of(peer.store).is_full();
        [PeerRole::Incoming, PeerRole::Outgoing].into_iter().all(|half| {
            let votes = |peer: &&RegionPeer| peer.role == PeerRole::Voter || peer.role == half;
            let voters = || descriptor.peers.iter().filter(votes);
            2 * voters().filter(|peer| has_room(peer)).count() > voters().count()
        })
    }
}

/// Transfers away from a full disk that may begin in one [`PACE_MS`]: all followers of a store
/// elect at once otherwise.
const TRANSFERS_MAX: u32 = 256;
const PACE_MS: u64 = 100;

/// The disks as a shard knows them, and the pace at which its leaders leave a full one.
#[derive(Debug, Default)]
pub(crate) struct ShardDisks {
    pub(crate) stores: StoreDisks,
    began: Time,
    begun: u32,
}

impl ShardDisks {
    /// Takes one of the transfers that may begin now; false if none is left.
    pub(crate) fn take_transfer(&mut self, now: Time) -> bool {
        // A pace that began in the future would let none leave until then.
        assert!(now >= self.began, "a pace from {} on is asked at {now}", self.began);
        if now >= self.began.after_ms(PACE_MS) {
            (self.began, self.begun) = (now, 0);
        }
        let may = self.begun < TRANSFERS_MAX;
        self.begun += u32::from(may);
        may
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ids::PeerId;
    use crate::tests::disks::region_of;

    fn disks(usages: &[(u64, DiskUsage)]) -> StoreDisks {
        let mut disks = StoreDisks::default();
        for (store, usage) in usages {
            assert!(disks.note(StoreId(*store), *usage) && !disks.note(StoreId(*store), *usage));
        }
        disks
    }

    #[test]
    fn a_put_needs_room_at_its_leader_and_at_a_majority() {
        let (full, region) = (DiskUsage::Full, region_of(&[1, 2, 3]));
        let refused = |usages: &[(u64, DiskUsage)]| {
            let refused = disks(usages).check_put(&region, StoreId(1)).err();
            refused.map(|stores| stores.into_iter().map(|store| store.0).collect::<Vec<_>>())
        };
        assert_eq!(refused(&[]), None);
        assert_eq!(refused(&[(1, DiskUsage::AlmostFull)]), None);
        assert_eq!(refused(&[(2, full)]), None, "one of three");
        assert_eq!(refused(&[(9, full), (8, full)]), None, "stores of other regions");
        assert_eq!(refused(&[(1, full)]), Some(vec![1]), "the leader's own");
        assert_eq!(refused(&[(2, full), (3, DiskUsage::Exhausted)]), Some(vec![2, 3]));
    }

    #[test]
    fn an_exhausted_follower_takes_entries_where_nothing_goes_on_without_it() {
        let region = region_of(&[1, 2, 3]);
        let takes = |usages: &[(u64, DiskUsage)]| disks(usages).takes_entries(&region, StoreId(1));
        let (full, exhausted) = (DiskUsage::Full, DiskUsage::Exhausted);
        assert!(takes(&[(1, full)]), "full is not exhausted");
        assert!(!takes(&[(1, exhausted)]));
        assert!(takes(&[(1, exhausted), (2, full)]), "deletions heal");
        assert!(takes(&[(2, exhausted), (3, exhausted)]));
    }

    #[test]
    fn each_half_of_a_joint_configuration_needs_a_majority_with_room() {
        let mut region = region_of(&[1, 2, 3, 4, 5]);
        (region.peers[3].role, region.peers[4].role) = (PeerRole::Incoming, PeerRole::Incoming);
        (region.peers[1].role, region.peers[2].role) = (PeerRole::Outgoing, PeerRole::Outgoing);
        let is_taken = |region: &Descriptor, full: [u64; 2]| {
            let usages = full.map(|store| (store, DiskUsage::Full));
            disks(&usages).check_put(region, StoreId(1)).is_ok()
        };
        assert!(is_taken(&region, [2, 4]), "one of three in each half");
        assert!(!is_taken(&region, [2, 3]) && !is_taken(&region, [4, 5]));
        region.peers[4].role = PeerRole::Learner;
        assert_eq!(region.listed(PeerId(5)).map(RegionPeer::votes), Some(false));
        assert!(is_taken(&region, [5, 9]), "learners decide nothing");
    }

    #[test]
    fn numbers_name_usages_and_later_versions_are_fuller() {
        for usage in DiskUsage::ALL {
            assert_eq!(DiskUsage::from_number(usage.number().into()), usage);
        }
        assert_eq!(DiskUsage::from_number(u64::MAX), DiskUsage::Exhausted);
        assert!(DiskUsage::ALL.is_sorted());
    }

    #[test]
    fn a_number_of_leaders_leaves_at_a_time() {
        let mut disks = ShardDisks::default();
        let taken = |disks: &mut ShardDisks, ms| {
            let now = Time(0).after_ms(1000 + ms);
            (0..1000).filter(|_| disks.take_transfer(now)).count()
        };
        assert_eq!(taken(&mut disks, 0), 256);
        assert_eq!(taken(&mut disks, PACE_MS - 1), 0);
        assert_eq!(taken(&mut disks, PACE_MS), 256);
    }
}
