//! Whether the cluster gets along without the leaders, or without the replicas, of a store.

use super::replica_choice::odd;
use super::store_figures::StoreFigures;

/// Why a store cannot be drained, or cannot leave.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ExitRefusal {
    /// Nothing else can lead.
    #[error("no other store takes leaders now: each is silent, stops, is drained or leaves")]
    NoSuccessor,
    /// Replicas are not moved.
    #[error("repair is paused, and moves no replicas: resume it first")]
    Paused,
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
pub(super) fn check_leave(
    stores: &StoreFigures,
    store: u64,
    setting: usize,
) -> Result<(), ExitRefusal> {
    let others = stores.iter().filter(|(id, _)| *id != store && stores.is_sound(*id)).count();
    let count = odd(setting.min(others + 1));
    // A store alone has nowhere to go, whatever the setting.
    if others == 0 || odd(setting.min(others)) < count {
        return Err(ExitRefusal::ReplicaCount { staying: others, count });
    }
    Ok(())
}
