//! The choice of the stores that should have the replicas of a region, and the reason for a change.

use std::collections::BTreeSet;

use super::store_figures::StoreFigures;
use crate::replica_plan::NEW_REPLICAS_MAX;
use crate::route_table::{RegionInfo, ReplicaRole};

/// Why the replicas of a region are changed. The first are the most urgent.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RepairReason {
    /// A change was begun and not finished.
    Unfinished,
    /// A store with a replica is lost, or has been silent for long.
    Gone,
    /// A store with a replica is to be emptied.
    Leaving,
    /// There are fewer replicas than there should be.
    Missing,
    /// Two replicas are in one zone, and another zone has a store.
    Zone,
    /// There are more replicas than there should be.
    Surplus,
    /// A store has more replicas than another.
    Balance,
    /// An operator has asked for it.
    Asked,
}

impl RepairReason {
    /// The reason in a few words.
    #[must_use]
    pub fn words(self) -> &'static str {
        match self {
            Self::Unfinished => "a change was not finished",
            Self::Gone => "a store is lost or down",
            Self::Leaving => "a store is to be emptied",
            Self::Missing => "replicas are missing",
            Self::Zone => "two replicas are in one zone",
            Self::Surplus => "there are too many replicas",
            Self::Balance => "stores have different numbers of replicas",
            Self::Asked => "asked for",
        }
    }
}

/// How many replicas a region should have.
#[derive(Clone, Copy)]
pub(super) struct ReplicaCount {
    /// Where there are as many stores.
    pub(super) setting: usize,
    /// At least, where a store with one of them leaves and no other one can have that.
    pub(super) least: usize,
}

/// The stores that should have the replicas of a region.
pub(super) struct ReplicaChoice {
    pub(super) wanted: BTreeSet<u64>,
    pub(super) reason: RepairReason,
}

/// The number of voters that a region with `voters` should have. `setting` is the number for a
/// cluster of many stores, `sound` the number of stores that there are.
///
/// It is odd, for an even number tolerates no more deaths than the odd one below. A dead store
/// makes no fewer replicas, for that would give up a copy of what the others have lost.
pub(super) fn target_count(voters: usize, setting: usize, sound: usize) -> usize {
    if voters > setting {
        return odd(setting);
    }
    // Not more at a time than the plan makes.
    let reachable = odd(setting.min(sound)).min(voters + NEW_REPLICAS_MAX);
    if reachable > voters { odd(reachable) } else { voters }
}

/// As [`target_count`], for a region of which a replica is on a store that is to be emptied: it
/// gets along with fewer replicas if no other store can have that one.
fn target_without(voters: usize, count: ReplicaCount, stores: &StoreFigures) -> usize {
    let target = target_count(voters, count.setting, stores.sound_count());
    let left = odd(count.setting.min(stores.staying_count()));
    if left >= count.least { target.min(left) } else { target }
}

/// The largest odd number up to `count`, 1 at least.
pub(super) fn odd(count: usize) -> usize {
    count.saturating_sub(1) / 2 * 2 + 1
}

/// The stores for `region`, if they are to be others than those that it has, or if a change is to
/// be finished.
pub(super) fn choose(
    region: &RegionInfo,
    leader: u64,
    count: ReplicaCount,
    stores: &StoreFigures,
) -> Option<ReplicaChoice> {
    let setting = count.setting;
    let voters = region.voting_stores();
    let is_leaving =
        |store: &u64| stores.get(*store).is_some_and(|figure| figure.is_leaving && !figure.is_gone);
    let target = if voters.iter().any(is_leaving) {
        target_without(voters.len(), count, stores)
    } else {
        target_count(voters.len(), setting, stores.sound_count())
    };
    let learners = || region.replicas.iter().filter(|at| at.role == ReplicaRole::Learner);
    let is_unfinished = region.is_joint() || learners().next().is_some();
    let mut wanted: BTreeSet<u64> =
        voters.iter().copied().filter(|store| stores.is_sound(*store)).collect();
    let mut reason = None;
    if wanted.len() == target && voters.len() > target && voters.len() <= setting {
        reason = Some(RepairReason::Leaving);
    }
    while wanted.len() > target {
        // Its leader last of all.
        let worst = wanted.iter().copied().max_by_key(|store| {
            let replicas = stores.get(*store).map_or(0, |figure| figure.replicas);
            (*store != leader, stores.clashes(*store, &wanted), replicas, *store)
        })?;
        wanted.remove(&worst);
        reason = Some(RepairReason::Surplus);
    }
    if wanted.len() < target {
        reason = Some(missing_reason(&voters, stores));
        while wanted.difference(&voters).count() < NEW_REPLICAS_MAX && wanted.len() < target {
            let Some(new) = candidate(region, &wanted, stores) else { break };
            wanted.insert(new);
        }
        // As far as nothing takes their places, replicas stay where they are.
        for store in keepers(&voters, stores) {
            if wanted.len() < target {
                wanted.insert(store);
            }
        }
        // An even number in between is none to aim at, but for one that is there already.
        if wanted.len() < target && wanted.len() != voters.len() {
            wanted.clone_from(&voters);
        }
    } else if reason.is_none()
        && let Some((from, to)) = better_zone(region, &wanted, leader, stores)
    {
        wanted.remove(&from);
        wanted.insert(to);
        reason = Some(RepairReason::Zone);
    }
    if is_unfinished {
        return Some(ReplicaChoice { wanted, reason: RepairReason::Unfinished });
    }
    let reason = reason.filter(|_| wanted != voters)?;
    Some(ReplicaChoice { wanted, reason })
}

fn missing_reason(voters: &BTreeSet<u64>, stores: &StoreFigures) -> RepairReason {
    let is_gone = |store: &&u64| stores.get(**store).is_none_or(|figure| figure.is_gone);
    if voters.iter().any(|store| is_gone(&store)) {
        RepairReason::Gone
    } else if voters.iter().any(|store| !stores.is_sound(*store)) {
        RepairReason::Leaving
    } else {
        RepairReason::Missing
    }
}

/// The voters on stores that are not sound; first those that still have their data.
fn keepers(voters: &BTreeSet<u64>, stores: &StoreFigures) -> Vec<u64> {
    let mut keepers: Vec<u64> =
        voters.iter().copied().filter(|store| !stores.is_sound(*store)).collect();
    keepers.sort_by_key(|store| stores.get(*store).is_none_or(|figure| figure.is_gone));
    keepers
}

/// The best store for a further replica: in a zone of its own, with a learner that has data
/// already, with few replicas.
pub(super) fn candidate(
    region: &RegionInfo,
    wanted: &BTreeSet<u64>,
    stores: &StoreFigures,
) -> Option<u64> {
    let free = stores.iter().filter(|(id, figure)| {
        let is_learner = || region.on(*id).is_none_or(|at| at.role == ReplicaRole::Learner);
        figure.is_target && !wanted.contains(id) && is_learner()
    });
    let best = free.min_by_key(|(id, figure)| {
        (stores.clashes(*id, wanted), region.on(*id).is_none(), figure.replicas, *id)
    });
    best.map(|(id, _)| id)
}

/// A replica that shares its zone with another one, and a store in a zone that has none.
fn better_zone(
    region: &RegionInfo,
    wanted: &BTreeSet<u64>,
    leader: u64,
    stores: &StoreFigures,
) -> Option<(u64, u64)> {
    let crowded = wanted.iter().copied().filter(|store| stores.clashes(*store, wanted) > 0);
    let from = crowded.max_by_key(|store| {
        let replicas = stores.get(*store).map_or(0, |figure| figure.replicas);
        (stores.clashes(*store, wanted), *store != leader, replicas, *store)
    })?;
    let mut others = wanted.clone();
    others.remove(&from);
    let to = candidate(region, &others, stores).filter(|to| region.on(*to).is_none())?;
    (stores.clashes(to, &others) < stores.clashes(from, &others)).then_some((from, to))
}

/// The stages of a change: the sets of stores that the region is brought to, one after the other.
/// None if there is no way.
pub(super) fn stages(
    region: &RegionInfo,
    wanted: &BTreeSet<u64>,
    stores: &StoreFigures,
) -> Option<Vec<BTreeSet<u64>>> {
    let voters = region.voting_stores();
    let stays = voters.intersection(wanted).next().is_some();
    if stays || voters.is_empty() {
        return Some(vec![wanted.clone()]);
    }
    // The leader keeps its vote, and no group has two voters: so the only replica goes elsewhere
    // over a group of three.
    let mut between: BTreeSet<u64> = voters.union(wanted).copied().collect();
    if between.len() != 2 {
        return None;
    }
    between.insert(candidate(region, &between, stores)?);
    Some(vec![between, wanted.clone()])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_count_is_odd_grows_with_the_stores_and_falls_with_the_setting_only() {
        // Voters, setting, stores.
        for (voters, setting, sound, expected) in [
            (1, 3, 1, 1),
            (1, 3, 2, 1),
            (1, 3, 3, 3),
            (1, 3, 9, 3),
            (1, 5, 5, 3),
            (3, 5, 5, 5),
            (3, 5, 4, 3),
            (3, 3, 2, 3),
            (3, 3, 1, 3),
            (5, 3, 5, 3),
            (5, 1, 5, 1),
            (2, 3, 2, 2),
            (2, 3, 3, 3),
            (4, 5, 4, 4),
            (4, 5, 5, 5),
            (4, 3, 4, 3),
            (2, 7, 7, 3),
        ] {
            let target = target_count(voters, setting, sound);
            assert_eq!(target, expected, "{voters} voters, setting {setting}, {sound} stores");
        }
    }
}
