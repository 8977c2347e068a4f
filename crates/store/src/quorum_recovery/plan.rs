//! The plan of a recovery: which regions have lost their majority, and which replica of each goes
//! on. A pure function of the reports of all survivors.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use flotilla_base::redact::LogKey;
use flotilla_identity::{StateChange, StoreRegistry};
use flotilla_region::{Descriptor, Index, PeerId, RegionId, Space, StoreId, Term};

use super::log_order;

/// The state of a directory whose store is stopped.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurvivorReport {
    /// The cluster.
    pub cluster_id: u64,
    /// The store.
    pub store: StoreId,
    /// Its copy of the registry.
    pub registry: StoreRegistry,
    /// Its replicas with data.
    pub replicas: Vec<SurvivingReplica>,
}

/// A replica of a survivor.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SurvivingReplica {
    /// Its region, as it is behind the entries that are known to be committed.
    pub descriptor: Descriptor,
    /// The replica.
    pub peer: PeerId,
    /// The last entry that is known to be committed.
    pub committed: Index,
    /// The end of its log.
    pub last: (Index, Term),
}

/// One region of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlannedRegion {
    /// The region.
    pub region: RegionId,
    /// The region as its newest replica has it.
    pub descriptor: Descriptor,
    /// The store of the newest replica.
    pub newest: StoreId,
    /// Whether that becomes the only voter; else a majority is left, and nothing is done.
    pub is_recovered: bool,
    /// The replicas of all survivors, with the known commit index and the end of the log of each.
    pub replicas: Vec<(StoreId, Index, (Index, Term))>,
}

/// Keys of which no survivor has a replica.
#[derive(Clone, PartialEq, Eq)]
pub struct LostRange {
    /// The first key.
    pub start: Bytes,
    /// The first key beyond; empty for none.
    pub end: Bytes,
}

impl std::fmt::Debug for LostRange {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "LostRange({}, {})", LogKey(&self.start), LogKey(&self.end))
    }
}

/// A recovery that is possible.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecoveryPlan {
    /// The stores that are lost.
    pub lost: BTreeSet<StoreId>,
    /// All regions that survivors have, the system region first, then by their keys.
    pub regions: Vec<PlannedRegion>,
    /// The registry in which the lost stores are lost, for the survivors' copies; none if the
    /// system region keeps its majority, and placement has to be told while it runs.
    pub registry: Option<StoreRegistry>,
}

/// Why there is no plan.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PlanRefusal {
    /// There are no reports.
    #[error("no directory of a survivor is given")]
    NoReports,
    /// Directories of two clusters are mixed.
    #[error("store {store} is of cluster {found}, and store {first} of cluster {cluster}")]
    OtherCluster {
        /// The odd store.
        store: StoreId,
        /// Its cluster.
        found: u64,
        /// The store of the first report.
        first: StoreId,
        /// Its cluster.
        cluster: u64,
    },
    /// A store is there twice.
    #[error("store {0} is given twice")]
    Twice(StoreId),
    /// A store that is said to be lost is there.
    #[error("store {0} is given, and is said to be lost")]
    LostIsHere(StoreId),
    /// The registry has no such store, or it is gone already.
    #[error("store {0}, which is said to be lost, is none of the cluster")]
    NoSuchStore(StoreId),
    /// A store is neither lost nor there: it may have the newest replicas.
    #[error(
        "store {store}, {name}, is neither lost nor given: give its directory or its report, or \
         name it in --lost"
    )]
    Missing {
        /// The store.
        store: StoreId,
        /// Its name.
        name: String,
    },
    /// A majority is left everywhere.
    #[error(
        "every region keeps its majority without these stores: start the others, and declare each \
         lost with `flotilla ctl store lost`"
    )]
    NothingLost,
    /// No survivor has a replica of the system region.
    #[error(
        "no survivor has a replica of the system region, which knows the stores: bootstrap a new \
         cluster, and restore a backup"
    )]
    NoSystemRegion,
    /// Some keys have no replica left.
    #[error(
        "no survivor has a replica of the keys from {} on: bootstrap a new cluster, and restore a \
         backup",
        LogKey(&range.start)
    )]
    NoReplica {
        /// The first of them.
        range: LostRange,
    },
    /// Two regions hold the same keys: one replica is from before a split.
    #[error(
        "region {first} on store {of_first} and region {second} on store {of_second} hold the same \
         keys: one of the two is from before a split, and this tool cannot decide"
    )]
    Overlap {
        /// A region.
        first: RegionId,
        /// The store of its newest replica.
        of_first: StoreId,
        /// Another region.
        second: RegionId,
        /// The store of its newest replica.
        of_second: StoreId,
    },
}

impl RecoveryPlan {
    /// The store whose replica becomes the only voter of a region, if the region is recovered.
    #[must_use]
    pub fn winner(&self, region: RegionId) -> Option<StoreId> {
        let planned = self.regions.iter().find(|planned| planned.region == region);
        planned.filter(|planned| planned.is_recovered).map(|planned| planned.newest)
    }

    /// Whether a store is lost.
    #[must_use]
    pub fn is_lost(&self, store: StoreId) -> bool {
        self.lost.contains(&store)
    }
}

/// The plan for a cluster that has lost these stores for good.
///
/// # Errors
///
/// Why there is none.
pub fn plan_recovery(
    reports: &[SurvivorReport],
    lost: &BTreeSet<StoreId>,
) -> Result<RecoveryPlan, PlanRefusal> {
    let newest = check_stores(reports, lost)?;
    let is_lost = |store: StoreId| lost.contains(&store) || newest.is_gone(store);
    let mut replicas: BTreeMap<RegionId, Vec<(StoreId, &SurvivingReplica)>> = BTreeMap::new();
    for report in reports {
        for replica in &report.replicas {
            let of_region = replicas.entry(replica.descriptor.id).or_default();
            of_region.push((report.store, replica));
        }
    }
    let mut regions: Vec<_> =
        replicas.into_values().map(|replicas| plan_region(&replicas, is_lost)).collect();
    let order = |planned: &PlannedRegion| {
        (planned.descriptor.space == Space::Raw, planned.descriptor.start.clone())
    };
    regions.sort_by_key(order);
    check_ranges(&regions)?;
    let system = regions.first().filter(|first| first.descriptor.space == Space::System);
    let system = system.ok_or(PlanRefusal::NoSystemRegion)?;
    if !regions.iter().any(|planned| planned.is_recovered) {
        return Err(PlanRefusal::NothingLost);
    }
    for planned in &regions {
        let (region, store) = (planned.region, planned.newest);
        assert!(!lost.contains(&store), "region {region} goes on by store {store}, which is lost");
    }
    let registry = system.is_recovered.then(|| without(newest, lost));
    Ok(RecoveryPlan { lost: lost.clone(), regions, registry })
}

/// Each store of the cluster is either lost or there, once. The newest registry.
fn check_stores<'a>(
    reports: &'a [SurvivorReport],
    lost: &BTreeSet<StoreId>,
) -> Result<&'a StoreRegistry, PlanRefusal> {
    let first = reports.first().ok_or(PlanRefusal::NoReports)?;
    let mut given = BTreeSet::new();
    for report in reports {
        let store = report.store;
        if report.cluster_id != first.cluster_id {
            return Err(PlanRefusal::OtherCluster {
                store,
                found: report.cluster_id,
                first: first.store,
                cluster: first.cluster_id,
            });
        }
        if lost.contains(&store) {
            return Err(PlanRefusal::LostIsHere(store));
        }
        if !given.insert(store) {
            return Err(PlanRefusal::Twice(store));
        }
    }
    let registries = reports.iter().map(|report| &report.registry);
    let newest = registries.max_by_key(|registry| registry.version).expect("there is a report");
    if let Some(store) = lost.iter().find(|store| newest.store(**store).is_none()) {
        return Err(PlanRefusal::NoSuchStore(*store));
    }
    let here = newest.stores.iter().filter(|store| store.is_here());
    let mut missing = here.filter(|store| !given.contains(&store.id) && !lost.contains(&store.id));
    match missing.next() {
        Some(store) => Err(PlanRefusal::Missing { store: store.id, name: store.name.clone() }),
        None => Ok(newest),
    }
}

fn plan_region(
    replicas: &[(StoreId, &SurvivingReplica)],
    is_lost: impl Fn(StoreId) -> bool,
) -> PlannedRegion {
    // Of equal logs the one on the lowest store, so that all survivors come to the same plan.
    let newest = replicas
        .iter()
        .max_by_key(|(store, replica)| (log_order(replica.last), std::cmp::Reverse(*store)));
    let (newest, replica) = newest.expect("a region is known by a replica");
    PlannedRegion {
        region: replica.descriptor.id,
        descriptor: replica.descriptor.clone(),
        newest: *newest,
        is_recovered: !replica.descriptor.keeps_majority(is_lost),
        replicas: replicas
            .iter()
            .map(|(store, replica)| (*store, replica.committed, replica.last))
            .collect(),
    }
}

/// The regions of clients' keys, in their order, cover each key once.
fn check_ranges(regions: &[PlannedRegion]) -> Result<(), PlanRefusal> {
    let raw = regions.iter().filter(|planned| planned.descriptor.space == Space::Raw);
    let mut last: Option<&PlannedRegion> = None;
    for planned in raw {
        let (start, end) = match last {
            None => (&planned.descriptor.start, Bytes::new()),
            Some(last) => (&planned.descriptor.start, last.descriptor.end.clone()),
        };
        if let Some(last) = last.filter(|_| end.is_empty() || *start < end) {
            return Err(PlanRefusal::Overlap {
                first: last.region,
                of_first: last.newest,
                second: planned.region,
                of_second: planned.newest,
            });
        }
        if *start > end {
            let range = LostRange { start: end, end: start.clone() };
            return Err(PlanRefusal::NoReplica { range });
        }
        last = Some(planned);
    }
    let start = last.map_or_else(Bytes::new, |last| last.descriptor.end.clone());
    if last.is_none() || !start.is_empty() {
        let range = LostRange { start, end: Bytes::new() };
        return Err(PlanRefusal::NoReplica { range });
    }
    Ok(())
}

/// The registry in which these stores are lost.
fn without(registry: &StoreRegistry, lost: &BTreeSet<StoreId>) -> StoreRegistry {
    let mut registry = registry.clone();
    for store in lost {
        // One that is gone already stays so.
        if let Ok(Some(changed)) = registry.with_state(*store, StateChange::Lost) {
            registry = changed;
        }
    }
    let is_gone = |store: &StoreId| registry.is_gone(*store);
    assert!(lost.iter().all(is_gone), "the registry does not lose all of {lost:?}");
    registry
}

#[cfg(test)]
mod tests {
    use flotilla_identity::StoreRecord;
    use flotilla_region::{Epoch, Peer, RemovedPeers};

    use super::*;

    fn registry(stores: u64) -> StoreRegistry {
        let record =
            |id| StoreRecord { id: StoreId(id), name: format!("s{id}"), ..StoreRecord::default() };
        StoreRegistry { version: 4, level: 1, stores: (1..=stores).map(record).collect() }
    }

    fn replica(
        region: u64,
        (start, end): (&'static str, &'static str),
        stores: &[u64],
        (index, term): (u64, u64),
    ) -> SurvivingReplica {
        let space = if region == 1 { Space::System } else { Space::Raw };
        let peer = |store: &u64| Peer { id: PeerId(region * 100 + store), store: StoreId(*store) };
        let descriptor = Descriptor {
            id: RegionId(region),
            space,
            start: start.into(),
            end: end.into(),
            epoch: Epoch { conf_version: 1, version: 1 },
            peers: stores.iter().map(|store| peer(store).into()).collect(),
            removed: RemovedPeers::default(),
        };
        SurvivingReplica {
            descriptor,
            peer: PeerId(0),
            committed: Index(index - 1),
            last: (Index(index), Term(term)),
        }
    }

    fn report(store: u64, stores: u64, replicas: Vec<SurvivingReplica>) -> SurvivorReport {
        SurvivorReport {
            cluster_id: 7,
            store: StoreId(store),
            registry: registry(stores),
            replicas,
        }
    }

    fn lost(stores: &[u64]) -> BTreeSet<StoreId> {
        stores.iter().copied().map(StoreId).collect()
    }

    const ALL: (&str, &str) = ("", "");

    #[test]
    fn the_survivor_of_three_stores_gets_every_region() {
        let stores = [1, 2, 3];
        let replicas = vec![
            replica(3, ("m", ""), &stores, (9, 2)),
            replica(1, ALL, &stores, (20, 5)),
            replica(2, ("", "m"), &stores, (30, 2)),
        ];
        let plan = plan_recovery(&[report(1, 3, replicas)], &lost(&[2, 3])).unwrap();
        let order: Vec<_> = plan.regions.iter().map(|planned| planned.region.0).collect();
        assert_eq!(order, [1, 2, 3]);
        assert!(plan.regions.iter().all(|planned| plan.winner(planned.region) == Some(StoreId(1))));
        let registry = plan.registry.unwrap();
        assert_eq!(registry.version, 6, "one version for each store");
        assert!(registry.is_gone(StoreId(2)) && registry.is_gone(StoreId(3)));
        assert!(!registry.is_gone(StoreId(1)));
    }

    #[test]
    fn the_newest_log_goes_on_and_a_region_with_a_majority_stays_as_it_is() {
        let (five, three) = ([1, 2, 3, 4, 5], [1, 2, 4]);
        let on = |raw: (u64, u64), system| {
            vec![replica(1, ALL, &five, system), replica(2, ALL, &three, raw)]
        };
        // Region 2 has lost one of three, the system region three of five.
        let mut reports =
            vec![report(1, 5, on((9, 2), (50, 3))), report(2, 5, on((8, 2), (40, 4)))];
        let plan = plan_recovery(&reports, &lost(&[3, 4, 5])).unwrap();
        assert_eq!(plan.winner(RegionId(1)), Some(StoreId(2)), "the later term counts first");
        assert_eq!(plan.winner(RegionId(2)), None);
        assert!(plan.registry.is_some());
        // Of equal logs that of the lower store.
        reports[1].replicas[0].last = (Index(50), Term(3));
        reports.reverse();
        let plan = plan_recovery(&reports, &lost(&[3, 4, 5])).unwrap();
        assert_eq!(plan.winner(RegionId(1)), Some(StoreId(1)));
        // Where the system region keeps its majority, placement is told while it runs.
        for report in &mut reports {
            report.replicas[0] = replica(1, ALL, &[1, 2, 3], (50, 3));
            report.replicas[1] = replica(2, ALL, &[1, 3, 4], (50, 3));
        }
        let plan = plan_recovery(&reports, &lost(&[3, 4, 5])).unwrap();
        assert_eq!((plan.winner(RegionId(1)), plan.registry), (None, None));
        assert!(plan.regions[1].is_recovered);
    }

    #[test]
    fn a_recovery_that_was_cut_short_leaves_what_is_done() {
        let five = [1, 2, 3, 4, 5];
        let mut done = replica(1, ALL, &[1], (50, 3));
        done.descriptor.epoch.conf_version = 1_001;
        let first = report(1, 5, vec![done, replica(2, ALL, &five, (9, 2))]);
        let second =
            report(2, 5, vec![replica(1, ALL, &five, (40, 3)), replica(2, ALL, &five, (10, 2))]);
        let plan = plan_recovery(&[first, second], &lost(&[3, 4, 5])).unwrap();
        assert_eq!(plan.winner(RegionId(1)), None);
        assert_eq!(plan.winner(RegionId(2)), Some(StoreId(2)));
    }

    #[test]
    fn each_wrong_set_of_stores_is_refused() {
        let here = |store| report(store, 3, vec![replica(1, ALL, &[1, 2, 3], (9, 2))]);
        let refused = |reports: &[SurvivorReport], stores: &[u64]| {
            plan_recovery(reports, &lost(stores)).unwrap_err()
        };
        assert_eq!(refused(&[], &[2]), PlanRefusal::NoReports);
        let other = SurvivorReport { cluster_id: 8, ..here(2) };
        let mixed = refused(&[here(1), other], &[3]);
        assert!(matches!(mixed, PlanRefusal::OtherCluster { found: 8, cluster: 7, .. }));
        assert_eq!(refused(&[here(1), here(1)], &[2, 3]), PlanRefusal::Twice(StoreId(1)));
        assert_eq!(refused(&[here(1)], &[1, 2]), PlanRefusal::LostIsHere(StoreId(1)));
        assert_eq!(refused(&[here(1)], &[2, 3, 9]), PlanRefusal::NoSuchStore(StoreId(9)));
        let missing = refused(&[here(1)], &[2]);
        assert_eq!(missing, PlanRefusal::Missing { store: StoreId(3), name: "s3".to_owned() });
    }

    #[test]
    fn a_majority_that_is_not_lost_and_keys_without_a_replica_are_refused() {
        let (stores, two) = ([1, 2, 3], lost(&[3]));
        let system = || replica(1, ALL, &stores, (9, 2));
        let refused = |replicas: &[SurvivingReplica], lost: &BTreeSet<StoreId>| {
            let reports = [report(1, 3, replicas.to_vec()), report(2, 3, replicas.to_vec())];
            plan_recovery(&reports[..3 - lost.len()], lost).unwrap_err()
        };
        let raw = |range| replica(2, range, &stores, (9, 2));
        assert_eq!(refused(&[system(), raw(ALL)], &two), PlanRefusal::NothingLost);
        let two = lost(&[2, 3]);
        assert_eq!(refused(&[raw(ALL)], &two), PlanRefusal::NoSystemRegion);
        let hole = |range| match refused(&[system(), raw(range)], &two) {
            PlanRefusal::NoReplica { range } => (range.start, range.end),
            other => panic!("{other:?}"),
        };
        assert_eq!(hole(("b", "")), (Bytes::new(), "b".into()));
        assert_eq!(hole(("", "b")), ("b".into(), Bytes::new()));
        let other = replica(3, ("a", "c"), &stores, (9, 2));
        let overlap = refused(&[system(), raw(("", "b")), other.clone()], &two);
        assert!(matches!(overlap, PlanRefusal::Overlap { first: RegionId(2), .. }), "{overlap}");
        let overlap = refused(&[system(), raw(ALL), other], &two);
        assert!(matches!(overlap, PlanRefusal::Overlap { second: RegionId(3), .. }), "{overlap}");
    }
}
