//! A change of a region's replicas that an operator asks for: whether it can be, and over which
//! sets of stores it goes.

use std::collections::BTreeSet;

use super::replica_choice::{stages, target_count};
use super::store_figures::StoreFigures;
use crate::replica_plan::NEW_REPLICAS_MAX;
use crate::route_table::RegionInfo;

/// Why a change by hand is not begun.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum RepairRefusal {
    /// Placement knows no such region.
    #[error("there is no region {0} that placement knows")]
    UnknownRegion(u64),
    /// It has no leader now.
    #[error("region {0} has no leader")]
    NoLeader(u64),
    /// One operator a region.
    #[error("the replicas of region {0} are being changed: {1}")]
    UnderWay(u64, &'static str),
    /// It has a replica there.
    #[error("store {0} has a replica of it")]
    HasReplica(u64),
    /// It has none there.
    #[error("store {0} has no replica of it")]
    NoReplica(u64),
    /// The store is not of the cluster, or is lost.
    #[error("there is no store {0}")]
    UnknownStore(u64),
    /// The store does not answer, stops, or is being emptied.
    #[error("store {0} takes no replicas now: it does not answer, stops, or is to be emptied")]
    NoTarget(u64),
    /// It would have another number than it should.
    #[error(
        "that is against the replica count: {after} replicas, and the region should have {target}. \
         Repair would undo it: pause repair first"
    )]
    ReplicaCount {
        /// How many it would have.
        after: usize,
        /// How many it should have.
        target: usize,
    },
    /// A group of two stops when either dies.
    #[error("a region of two replicas stops when either dies: it has one, three, or more")]
    Two,
    /// Too many at a time.
    #[error("at most {NEW_REPLICAS_MAX} replicas are added at a time, and one stays")]
    TooMany,
    /// The only replica goes over a group of three, for which a third store is missing.
    #[error(
        "the only replica of a region is moved over a group of three: a third store is missing"
    )]
    NoThirdStore,
}

impl RepairRefusal {
    /// Whether it rests on what stores have reported, so that a further report may change it.
    pub(super) fn rests_on_reports(&self) -> bool {
        matches!(self, Self::UnknownRegion(_) | Self::NoLeader(_) | Self::NoTarget(_))
    }
}

/// The change.
pub(super) struct AskedChange<'a> {
    /// The stores that get a replica.
    pub(super) added: &'a [u64],
    /// The stores whose replica goes.
    pub(super) removed: &'a [u64],
    /// The region may get another number of replicas than it should have.
    pub(super) is_any_count: bool,
}

impl AskedChange<'_> {
    /// The sets of stores that the region is brought to, one after the other. `setting` is the
    /// number of replicas where there are as many stores.
    pub(super) fn stages(
        &self,
        region: &RegionInfo,
        setting: usize,
        stores: &StoreFigures,
    ) -> Result<Vec<BTreeSet<u64>>, RepairRefusal> {
        let voters = region.voting_stores();
        let wanted = self.wanted(region, &voters, stores)?;
        let target = target_count(voters.len(), setting, stores.sound_count());
        let after = wanted.len();
        if after == 2 && voters.len() != 2 {
            return Err(RepairRefusal::Two);
        }
        let is_many = wanted.difference(&voters).count() > NEW_REPLICAS_MAX;
        if after == 0 || is_many {
            return Err(RepairRefusal::TooMany);
        }
        if after != voters.len() && after != target && !self.is_any_count {
            return Err(RepairRefusal::ReplicaCount { after, target });
        }
        stages(region, &wanted, stores).ok_or(match voters.len() {
            1 => RepairRefusal::NoThirdStore,
            _ => RepairRefusal::TooMany,
        })
    }

    fn wanted(
        &self,
        region: &RegionInfo,
        voters: &BTreeSet<u64>,
        stores: &StoreFigures,
    ) -> Result<BTreeSet<u64>, RepairRefusal> {
        let mut wanted = voters.clone();
        for store in self.added {
            let figure = stores.get(*store).ok_or(RepairRefusal::UnknownStore(*store))?;
            if voters.contains(store) {
                return Err(RepairRefusal::HasReplica(*store));
            }
            if !figure.is_target {
                return Err(RepairRefusal::NoTarget(*store));
            }
            wanted.insert(*store);
        }
        for store in self.removed {
            if region.on(*store).is_none() {
                return Err(RepairRefusal::NoReplica(*store));
            }
            wanted.remove(store);
        }
        Ok(wanted)
    }
}
