//! The check before a store is declared lost: it is silent, and every region lives on without it.
//!
//! A store that is declared lost never takes part again, so its replicas count for no majority from
//! that moment on. Placement must know all regions for the answer, and it knows them from the
//! reports of the stores: its leader has to have led for a while.

use flotilla_base::redact::LogKey;

use crate::cluster_view::ClusterView;
use crate::route_table::{RegionInfo, ReplicaRole};

/// For how long placement's leader must have led, and the store must have been silent.
/// Milliseconds; several times what a store that runs lets pass between two reports.
pub const LOSS_SILENCE_MS: u64 = 10_000;

/// Why a store cannot be declared lost now. Each may pass.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LossRefusal {
    /// There is no such store.
    #[error("the cluster has no store {0}")]
    Unknown(u64),
    /// The leader of placement may not have heard of a store that runs.
    #[error(
        "placement's leader leads for {} s only, and has to for {} s to know which stores are gone",
        .0 / 1_000,
        LOSS_SILENCE_MS / 1_000
    )]
    YoungLeader(u64),
    /// The store seems to run.
    #[error(
        "store {store}, {name}, was heard {:.1} s ago, and is lost only if it is silent for {} s: \
         stop it if it runs",
        *.ago_ms as f64 / 1_000.0,
        LOSS_SILENCE_MS / 1_000
    )]
    Heard {
        /// The store.
        store: u64,
        /// Its name.
        name: String,
        /// How long ago.
        ago_ms: u64,
    },
    /// A region may be one that the store's loss stops.
    #[error(
        "no leader of the region of key {} has reported: start the stores that hold it",
        LogKey(.0)
    )]
    UnknownRegion(Vec<u8>),
    /// A region would stop for good.
    #[error(
        "region {region} would lose its majority: without store {store} only {live} of its {voters} \
         voters live, and it needs {needed}: start the others first"
    )]
    NoMajority {
        /// The region.
        region: u64,
        /// The store.
        store: u64,
        /// Its voters that live on other stores.
        live: usize,
        /// All of its voters, in the half that has too few.
        voters: usize,
        /// The least that it needs.
        needed: usize,
    },
}

/// Checks whether `store` may be declared lost, at a time of the term of placement's leader.
///
/// # Errors
///
/// The first reason against it.
pub fn check_loss(now_ms: u64, view: &ClusterView, store: u64) -> Result<(), LossRefusal> {
    let known = view.store(store).ok_or(LossRefusal::Unknown(store))?;
    if now_ms < LOSS_SILENCE_MS {
        return Err(LossRefusal::YoungLeader(now_ms));
    }
    let ago_ms = known.last_heard_ms.map(|heard_ms| now_ms.saturating_sub(heard_ms));
    if let Some(ago_ms) = ago_ms.filter(|ago_ms| *ago_ms < LOSS_SILENCE_MS) {
        return Err(LossRefusal::Heard { store, name: known.name.clone(), ago_ms });
    }
    let system = view.system().ok_or_else(|| LossRefusal::UnknownRegion(Vec::new()))?;
    check_majority(now_ms, view, system, store)?;
    if let Some(key) = view.first_hole() {
        return Err(LossRefusal::UnknownRegion(key));
    }
    view.scan(now_ms, b"", b"")
        .try_for_each(|route| check_majority(now_ms, view, route.region, store))
}

/// A majority of each half of the region's voters lives on other stores.
fn check_majority(
    now_ms: u64,
    view: &ClusterView,
    region: &RegionInfo,
    store: u64,
) -> Result<(), LossRefusal> {
    // It changes nothing for a region without a replica there.
    if region.on(store).is_none() {
        return Ok(());
    }
    for half in [ReplicaRole::Incoming, ReplicaRole::Outgoing] {
        let votes = |role| role == ReplicaRole::Voter || role == half;
        let of_half = region.replicas.iter().filter(|replica| votes(replica.role));
        let is_live = |at: u64| {
            let is_lost = view.store(at).is_none_or(|known| known.standing.is_lost);
            at != store && !is_lost && view.is_live(now_ms, at)
        };
        let (live, voters) = of_half.fold((0, 0), |(live, voters), replica| {
            (live + usize::from(is_live(replica.store)), voters + 1)
        });
        let needed = voters / 2 + 1;
        if live < needed {
            return Err(LossRefusal::NoMajority { region: region.id, store, live, voters, needed });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cluster_view::{Config, RegionHeartbeat, StoreInfo, StoreStanding};
    use crate::route_table::ReplicaInfo;
    use ReplicaRole::{Incoming, Learner, Outgoing, Voter};

    const NOW_MS: u64 = 60_000;

    fn region(id: u64, (start, end): (&str, &str), replicas: &[(u64, ReplicaRole)]) -> RegionInfo {
        let replicas = replicas.iter().map(|(store, role)| ReplicaInfo {
            id: id * 100 + store,
            store: *store,
            role: *role,
        });
        RegionInfo {
            id,
            start: start.as_bytes().to_vec(),
            end: end.as_bytes().to_vec(),
            conf_version: 1,
            version: 1,
            replicas: replicas.collect(),
        }
    }

    /// Five stores, of which 1 leads all regions. Those of `heard` were heard just now.
    fn view(heard: &[u64], regions: &[RegionInfo]) -> ClusterView {
        let store = |id| StoreInfo { id, name: format!("s{id}"), ..StoreInfo::default() };
        let mut view = ClusterView::new(Config::default(), (1..=5).map(store));
        let report = |region: &RegionInfo| RegionHeartbeat {
            region: region.clone(),
            term: 6,
            leader: region.on(1),
        };
        let reports: Vec<_> = regions.iter().map(report).collect();
        view.observe(NOW_MS, 1, &reports, true);
        heard.iter().for_each(|store| _ = view.observe(NOW_MS, *store, &[], true));
        view.note_system(region(1, ("", ""), &[(1, Voter), (2, Voter), (3, Voter)]));
        view
    }

    fn whole() -> Vec<RegionInfo> {
        let three = [(1, Voter), (2, Voter), (3, Voter)];
        vec![region(2, ("", "m"), &three), region(3, ("m", ""), &three)]
    }

    #[test]
    fn a_silent_store_is_lost_if_all_regions_keep_a_majority() {
        let sound = view(&[3], &whole());
        assert_eq!(check_loss(NOW_MS, &sound, 2), Ok(()));
        assert_eq!(check_loss(NOW_MS, &sound, 9), Err(LossRefusal::Unknown(9)));
        let without = view(&[], &whole());
        let refusal = check_loss(NOW_MS, &without, 2).unwrap_err();
        let words = "region 1 would lose its majority: without store 2 only 1 of its 3 voters live, \
                     and it needs 2: start the others first";
        assert_eq!(refusal.to_string(), words);
        // A store without replicas is missed by none.
        assert_eq!(check_loss(NOW_MS, &without, 4), Ok(()));
    }

    #[test]
    fn a_leader_that_is_young_declares_nothing() {
        let sound = view(&[3], &whole());
        let young = check_loss(LOSS_SILENCE_MS - 1, &sound, 2).unwrap_err();
        assert_eq!(young, LossRefusal::YoungLeader(LOSS_SILENCE_MS - 1));
        assert!(young.to_string().contains("leads for 9 s only, and has to for 10 s"), "{young}");
    }

    #[test]
    fn a_store_that_was_heard_lately_is_not_lost_also_if_its_connection_broke() {
        let mut sound = view(&[2, 3], &whole());
        for _ in 0..2 {
            let later = NOW_MS + LOSS_SILENCE_MS - 1;
            let heard = check_loss(later, &sound, 2).unwrap_err();
            assert!(heard.to_string().contains("store 2, s2, was heard 10.0 s ago"), "{heard}");
            sound.disconnect(2);
        }
        for store in [1, 3] {
            sound.observe(NOW_MS + LOSS_SILENCE_MS, store, &[], false);
        }
        assert_eq!(check_loss(NOW_MS + LOSS_SILENCE_MS, &sound, 2), Ok(()));
    }

    #[test]
    fn a_region_that_is_not_known_may_be_one_that_stops() {
        for (missing, key) in [(0, ""), (1, "m")] {
            let mut some = whole();
            some.remove(missing);
            let refusal = check_loss(NOW_MS, &view(&[3], &some), 2).unwrap_err();
            assert_eq!(refusal, LossRefusal::UnknownRegion(key.as_bytes().to_vec()));
        }
        let mut nothing = ClusterView::new(Config::default(), []);
        nothing.learn_store(2, "s2", "h:2", &[]);
        let refusal = check_loss(NOW_MS, &nothing, 2).unwrap_err();
        assert_eq!(refusal, LossRefusal::UnknownRegion(vec![]));
    }

    #[test]
    fn both_halves_of_a_joint_configuration_need_a_majority() {
        let joint = [(1, Voter), (2, Outgoing), (3, Voter), (4, Incoming)];
        let regions = [region(2, ("", ""), &joint)];
        // Both halves have 1 and 3.
        assert_eq!(check_loss(NOW_MS, &view(&[3], &regions), 2), Ok(()));
        let apart = [(1, Voter), (2, Outgoing), (3, Outgoing), (4, Incoming), (5, Incoming)];
        let regions = [region(2, ("", ""), &apart)];
        // The old half has 1 and 3, the new one 1 of 1, 4 and 5.
        let refusal = check_loss(NOW_MS, &view(&[3], &regions), 2).unwrap_err();
        let expected =
            LossRefusal::NoMajority { region: 2, store: 2, live: 1, voters: 3, needed: 2 };
        assert_eq!(refusal, expected);
        assert_eq!(check_loss(NOW_MS, &view(&[3, 4], &regions), 2), Ok(()));
    }

    #[test]
    fn a_learner_is_no_majority_and_a_store_that_was_lost_before_is_none() {
        let regions = [region(2, ("", ""), &[(1, Voter), (2, Voter), (3, Voter), (4, Learner)])];
        let refusal = check_loss(NOW_MS, &view(&[4], &regions), 2).unwrap_err();
        assert!(matches!(refusal, LossRefusal::NoMajority { live: 1, .. }), "{refusal}");
        let mut lost = view(&[3], &whole());
        lost.note_standing(3, StoreStanding { is_lost: true, ..StoreStanding::default() });
        let refusal = check_loss(NOW_MS, &lost, 2).unwrap_err();
        assert!(matches!(refusal, LossRefusal::NoMajority { live: 1, .. }), "{refusal}");
    }
}
