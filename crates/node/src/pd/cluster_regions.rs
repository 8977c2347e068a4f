//! The regions of the clients' keys with their leaders, a page at a time, for the status page: from
//! the leader of placement, or as far as this store has replicas of them.

use std::cmp::Reverse;
use std::collections::BTreeMap;

use flotilla_identity::SYSTEM_REGION;
use flotilla_placement::{
    ClusterView, LeaderStatus, RegionInfo, RegionRoute, RepairReason, ReplicaInfo,
};

use super::context::PdContext;
use super::convert;
use crate::membership::KnownStore;

/// The regions of the cluster, for the status page.
#[derive(Clone)]
pub(crate) struct ClusterRegions(pub(super) PdContext);

/// A part of the regions.
#[derive(Debug)]
pub(crate) struct RegionPage {
    /// Of all regions that are known.
    pub(crate) total: usize,
    /// In the order of their keys.
    pub(crate) regions: Vec<RegionView>,
    /// More come behind the last one.
    pub(crate) has_more: bool,
    /// Regions without a leader, of all that are known.
    pub(crate) without_leader: usize,
}

/// One region.
#[derive(Debug)]
pub(crate) struct RegionView {
    pub(crate) region: RegionInfo,
    pub(crate) leader: Option<ReplicaInfo>,
    pub(crate) leader_status: LeaderStatus,
    /// The replicas whose stores have been silent for long.
    pub(crate) down: Vec<u64>,
    /// Why its replicas are being changed, if they are.
    pub(crate) repair: Option<RepairReason>,
}

/// There is no such region to go on behind.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct NoSuchRegion;

impl ClusterRegions {
    /// Up to `limit` regions in the order of their keys, behind region `after` if that is not 0.
    /// `None` if another store leads placement.
    pub(crate) async fn of_cluster(
        &self,
        after: u64,
        limit: usize,
    ) -> Option<Result<RegionPage, NoSuchRegion>> {
        let pd_leader = self.0.pd_leader().await.ok()?;
        let repair: BTreeMap<_, _> = pd_leader.repair().under_way().into_iter().collect();
        let now_ms = pd_leader.now_ms();
        let page = pd_leader.see(|view| {
            let from = match view.region(now_ms, after) {
                None if after != 0 => return Err(NoSuchRegion),
                route => route.map(|route| route.region.end.clone()),
            };
            Ok(page_of(view, now_ms, from, limit, &repair))
        });
        Some(page)
    }

    /// The same of the regions that have a replica here.
    pub(crate) fn of_store(&self, after: u64, limit: usize) -> Result<RegionPage, NoSuchRegion> {
        let router = &self.0.shared.router;
        let mut regions: Vec<_> =
            router.descriptors().iter().filter_map(convert::client_region).collect();
        regions.sort_by(|one, other| one.start.cmp(&other.start));
        let total = regions.len();
        let leads = |region: &RegionInfo| router.leader(flotilla_region::RegionId(region.id));
        let without_leader = regions.iter().filter(|region| leads(region).is_none()).count();
        let first = match after {
            0 => 0,
            after => regions.iter().position(|it| it.id == after).ok_or(NoSuchRegion)? + 1,
        };
        let has_more = total - first > limit;
        let listed = regions.into_iter().skip(first).take(limit).map(|region| {
            let leader = leads(&region).and_then(|(_, leader)| {
                region.replicas.iter().find(|replica| replica.id == leader.id.0).copied()
            });
            let leader_status = leader.map_or(LeaderStatus::Unknown, |_| LeaderStatus::Fresh);
            RegionView { region, leader, leader_status, down: Vec::new(), repair: None }
        });
        Ok(RegionPage { total, regions: listed.collect(), has_more, without_leader })
    }

    /// The leader of placement, as far as it is known now.
    pub(crate) fn leader(&self) -> Option<KnownStore> {
        let shared = &self.0.shared;
        let told = *shared.reported_to.borrow();
        let store = told.or_else(|| Some(shared.router.leader(SYSTEM_REGION)?.1.store))?;
        self.0.member(store)
    }
}

/// Regions from `from` on; none if that is the end of a region that has no end.
fn page_of(
    view: &ClusterView,
    now_ms: u64,
    from: Option<Vec<u8>>,
    limit: usize,
    repair: &BTreeMap<u64, RepairReason>,
) -> RegionPage {
    let (mut total, mut without_leader) = (0, 0);
    for route in view.scan(now_ms, b"", b"") {
        total += 1;
        without_leader += usize::from(route.leader_status != LeaderStatus::Fresh);
    }
    let to_view = |route: RegionRoute<'_>| {
        let mut down: Vec<_> = view
            .down(now_ms, route.region)
            .map(|(replica, silent)| (replica.store, silent))
            .collect();
        down.sort_by_key(|(_, silent_ms)| Reverse(*silent_ms));
        RegionView {
            region: route.region.clone(),
            leader: route.leader,
            leader_status: route.leader_status,
            down: down.into_iter().map(|(store, _)| store).collect(),
            repair: repair.get(&route.region.id).copied(),
        }
    };
    let is_over = from.as_ref().is_some_and(Vec::is_empty);
    let start = from.unwrap_or_default();
    let mut rest = view.scan(now_ms, &start, b"").filter(|_| !is_over);
    let regions: Vec<_> = rest.by_ref().take(limit).map(to_view).collect();
    let has_more = rest.next().is_some();
    RegionPage { total, regions, has_more, without_leader }
}

#[cfg(test)]
mod tests {
    use flotilla_placement::{Config, RegionHeartbeat, ReplicaRole, StoreInfo};

    use super::*;

    /// Regions 2, 3, 4 with borders g and p, the last without a leader.
    fn cluster() -> ClusterView {
        let store = StoreInfo { id: 1, ..StoreInfo::default() };
        let mut cluster = ClusterView::new(Config::default(), [store]);
        for (id, start, end) in [(2, "", "g"), (3, "g", "p"), (4, "p", "")] {
            let replica = ReplicaInfo { id: id * 100, store: 1, role: ReplicaRole::Voter };
            let (start, end) = (start.into(), end.into());
            let replicas = vec![replica];
            let region = RegionInfo { id, start, end, version: 1, conf_version: 1, replicas };
            let leader = (id != 4).then_some(replica);
            cluster.observe(0, 1, &[RegionHeartbeat { region, term: 5, leader }], false);
        }
        cluster
    }

    #[test]
    fn pages_follow_each_other_to_the_end() {
        let cluster = cluster();
        let page = |from: Option<&str>| {
            let from = from.map(|key| key.as_bytes().to_vec());
            let page = page_of(&cluster, 0, from, 2, &BTreeMap::new());
            assert_eq!((page.total, page.without_leader), (3, 1));
            let ids: Vec<_> = page.regions.iter().map(|it| it.region.id).collect();
            (ids, page.has_more)
        };
        assert_eq!(page(None), (vec![2, 3], true));
        assert_eq!(page(Some("p")), (vec![4], false));
        assert_eq!(page(Some("")), (vec![], false), "behind the last region");
    }
}
