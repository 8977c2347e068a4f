//! Whether the cluster gets along without the leaders, or without the replicas, of a store.

use super::replica_choice::odd;
use super::store_figures::StoreFigures;
use crate::route_table::RegionInfo;

/// Why a store cannot be drained, or cannot leave.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExitRefusal {
    /// Nothing else can lead.
    #[error("no other store takes leaders now: each is silent, stops, is drained or leaves")]
    NoSuccessor,
    /// Replicas are not moved.
    #[error("repair is paused, and moves no replicas: resume it first")]
    Paused,
    /// The only replica of a region goes over a group of three.
    #[error(
        "the only replica of region {0} is there, and is moved over a group of three: a third store \
         is missing"
    )]
    OnlyReplica(u64),
    /// Too few stores would stay.
    #[error(
        "{staying} stores would stay, and regions have {count} replicas: let another store join \
         first, or set a lower number of replicas"
    )]
    ReplicaCount {
        /// The stores that would stay.
        staying: usize,
        /// The replicas that regions have with the stores that there are.
        count: usize,
    },
}

/// Checks that another store can lead in the place of `store`.
pub(super) fn check_drain(stores: &StoreFigures, store: u64) -> Result<(), ExitRefusal> {
    let can_lead = stores.able().into_iter().any(|other| other != store);
    if can_lead { Ok(()) } else { Err(ExitRefusal::NoSuccessor) }
}

/// Checks that regions keep their number of replicas if `store` leaves: as many as the setting and
/// the stores with it allow.
pub(super) fn check_leave<'a>(
    stores: &StoreFigures,
    mut regions: impl Iterator<Item = &'a RegionInfo>,
    store: u64,
    setting: usize,
) -> Result<(), ExitRefusal> {
    let others = stores.iter().filter(|(id, _)| *id != store && stores.is_sound(*id)).count();
    let count = odd(setting.min(others + 1));
    // A store alone has nowhere to go, whatever the setting.
    if others == 0 || odd(setting.min(others)) < count {
        return Err(ExitRefusal::ReplicaCount { staying: others, count });
    }
    // A group of two stops when either dies.
    let is_alone = |region: &&RegionInfo| region.voting_stores().iter().eq([&store]);
    match regions.find(is_alone).filter(|_| others == 1) {
        Some(region) => Err(ExitRefusal::OnlyReplica(region.id)),
        None => Ok(()),
    }
}
