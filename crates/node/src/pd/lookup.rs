//! Region lookups in the cluster view, in the form that clients want.

use std::collections::{BTreeMap, BTreeSet};

use bytes::Bytes;
use flotilla_placement::{ClusterView, LeaderStatus, RegionRoute};
use flotilla_proto::pdpb;

use super::convert::{region_to_proto, replica_to_proto};

/// The result of a lookup.
#[derive(Debug)]
pub(super) struct LookupResult<T> {
    pub(super) found: T,
    /// Nothing is missing, and no leader is suspect: waiting would bring nothing better.
    pub(super) good: bool,
    /// The stores of the leaders that it names.
    pub(super) leaders: BTreeSet<u64>,
}

/// Regions in the order of their keys.
#[derive(Debug, Default)]
pub(super) struct ScannedRegions {
    pub(super) regions: Vec<pdpb::Region>,
    /// They follow each other from the start to the end that was asked for, or to the limit.
    pub(super) whole: bool,
}

type Found = LookupResult<Option<pdpb::Region>>;

/// The region that holds `key`.
pub(super) fn by_key(cluster: &ClusterView, now_ms: u64, key: &[u8]) -> Found {
    found(cluster, now_ms, cluster.locate(now_ms, key))
}

/// The region before the one that holds `key`. The first has none before it.
pub(super) fn by_next_key(cluster: &ClusterView, now_ms: u64, key: &[u8]) -> Found {
    let first = cluster.locate(now_ms, key).is_some_and(|route| route.region.start.is_empty());
    let mut found = found(cluster, now_ms, cluster.before(now_ms, key));
    found.good |= first;
    found
}

/// The region of this id. No region ever has the id 0.
pub(super) fn by_id(cluster: &ClusterView, now_ms: u64, id: u64) -> Found {
    let mut found = found(cluster, now_ms, cluster.region(now_ms, id));
    found.good |= id == 0;
    found
}

/// Many at once. The lists of the answer are as long as those of the request; clients rely on it.
pub(super) fn batch(
    cluster: &ClusterView,
    now_ms: u64,
    request: &pdpb::QueryRegionRequest,
) -> LookupResult<pdpb::QueryRegionResponse> {
    let mut regions_by_id = BTreeMap::new();
    let mut lookup = LookupResult { found: (), good: true, leaders: BTreeSet::new() };
    let mut note = |one: Found| {
        lookup.good &= one.good;
        lookup.leaders.extend(one.leaders);
        let Some(found) = one.found else { return 0 };
        let id = found.region.as_ref().map_or(0, |region| region.id);
        let pdpb::Region { region, leader, down_peers, pending_peers } = found;
        let response = pdpb::RegionResponse { region, leader, down_peers, pending_peers };
        regions_by_id.insert(id, response);
        id
    };
    let key_id_map = request.keys.iter().map(|key| note(by_key(cluster, now_ms, key))).collect();
    let prev_keys = request.prev_keys.iter();
    let prev_key_id_map = prev_keys.map(|key| note(by_next_key(cluster, now_ms, key))).collect();
    for &id in &request.ids {
        note(by_id(cluster, now_ms, id));
    }
    let found =
        pdpb::QueryRegionResponse { header: None, key_id_map, prev_key_id_map, regions_by_id };
    LookupResult { found, good: lookup.good, leaders: lookup.leaders }
}

/// The regions that hold a part of `[start, end)`, in order, `limit` at most.
pub(super) fn scan(
    cluster: &ClusterView,
    now_ms: u64,
    start: &[u8],
    end: &[u8],
    limit: usize,
) -> LookupResult<ScannedRegions> {
    let mut scanned = ScannedRegions { regions: Vec::new(), whole: true };
    let mut leaders = BTreeSet::new();
    let mut good = true;
    let mut reached = Some(Bytes::copy_from_slice(start));
    let mut limited = false;
    for route in cluster.scan(now_ms, start, end) {
        limited = scanned.regions.len() >= limit;
        if limited {
            break;
        }
        let begins_by = |reached: &Bytes| route.region.start <= *reached;
        scanned.whole &= reached.as_ref().is_some_and(begins_by);
        let one = found(cluster, now_ms, Some(route));
        good &= one.good;
        leaders.extend(one.leaders);
        scanned.regions.extend(one.found);
        let region_end = &route.region.end;
        reached = (!region_end.is_empty()).then(|| Bytes::copy_from_slice(region_end));
    }
    // Nothing is beyond a region without an end.
    let to_the_end = reached.is_none_or(|reached| !end.is_empty() && reached >= end);
    let empty = !end.is_empty() && start >= end;
    scanned.whole &= limited || to_the_end || empty;
    let good = good && scanned.whole;
    LookupResult { found: scanned, good, leaders }
}

/// Several ranges at once. A region that two neighbours share comes once.
pub(super) fn scan_all(
    cluster: &ClusterView,
    now_ms: u64,
    ranges: &[pdpb::KeyRange],
    limit: usize,
) -> LookupResult<ScannedRegions> {
    let found = ScannedRegions { regions: Vec::new(), whole: true };
    let mut all = LookupResult { found, good: true, leaders: BTreeSet::new() };
    for range in ranges {
        let left_count = limit.saturating_sub(all.found.regions.len());
        if left_count == 0 {
            break;
        }
        // One more than is left, for the first may be the last of the range before.
        let one = scan(cluster, now_ms, &range.start_key, &range.end_key, left_count + 1);
        all.good &= one.good;
        all.leaders.extend(one.leaders);
        all.found.whole &= one.found.whole;
        for region in one.found.regions {
            let last = all.found.regions.last();
            let repeated = last.is_some_and(|last| last.region == region.region);
            if !repeated && all.found.regions.len() < limit {
                all.found.regions.push(region);
            }
        }
    }
    all
}

/// A route in the form of the protocol. A suspect leader is not named: some clients give up when
/// they cannot connect to the store that they were sent to, while all ask again if there is none.
fn found(cluster: &ClusterView, now_ms: u64, route: Option<RegionRoute<'_>>) -> Found {
    let good = route.is_some_and(|route| route.leader_status == LeaderStatus::Fresh);
    let leader = route.and_then(|route| route.leader).filter(|_| good);
    let region = route.map(|route| pdpb::Region {
        region: Some(region_to_proto(route.region)),
        leader: leader.as_ref().map(replica_to_proto),
        down_peers: cluster
            .down(now_ms, route.region)
            .map(|(replica, silent_ms)| pdpb::PeerStats {
                peer: Some(replica_to_proto(&replica)),
                down_seconds: silent_ms / 1000,
            })
            .collect(),
        pending_peers: Vec::new(),
    });
    let leaders = leader.into_iter().map(|leader| leader.store).collect();
    LookupResult { found: region, good, leaders }
}

#[cfg(test)]
mod tests {
    use flotilla_placement::{Config, RegionHeartbeat, RegionInfo, ReplicaInfo, StoreInfo};

    use super::*;

    /// Three regions with borders g and p, led by stores 1, 2 and none.
    fn cluster() -> ClusterView {
        let stores = (1..=2).map(|id| StoreInfo { id, ..StoreInfo::default() });
        let mut cluster = ClusterView::new(Config::default(), stores);
        for (id, start, end, leader) in
            [(2, "", "g", Some(1)), (3, "g", "p", Some(2)), (4, "p", "", None)]
        {
            let replicas = (1..=2)
                .map(|store| ReplicaInfo {
                    id: id * 100 + store,
                    store,
                    role: flotilla_placement::ReplicaRole::Voter,
                })
                .collect();
            let (start, end) = (start.into(), end.into());
            let region = RegionInfo { id, start, end, version: 1, conf_version: 1, replicas };
            let leader = leader.map(|store| ReplicaInfo {
                id: id * 100 + store,
                store,
                role: flotilla_placement::ReplicaRole::Voter,
            });
            let told = [RegionHeartbeat { region, term: 5, leader }];
            cluster.observe(0, leader.map_or(1, |leader| leader.store), &told, false);
        }
        cluster
    }

    fn keys(keys: &[&'static str]) -> Vec<Bytes> {
        keys.iter().copied().map(Bytes::from).collect()
    }

    #[test]
    fn lists_are_as_long_as_those_of_the_request() {
        let request = pdpb::QueryRegionRequest {
            keys: keys(&["a", "b", "h", "z"]),
            prev_keys: keys(&["h", "a"]),
            ids: vec![3, 99],
            ..Default::default()
        };
        let LookupResult { found: response, good, leaders } = batch(&cluster(), 0, &request);
        assert_eq!(leaders.into_iter().collect::<Vec<_>>(), [1, 2]);
        assert_eq!(response.key_id_map, [2, 2, 3, 4]);
        assert_eq!(response.prev_key_id_map, [2, 0]);
        assert_eq!(response.regions_by_id.keys().copied().collect::<Vec<_>>(), [2, 3, 4]);
        assert!(!good, "nobody leads region 4");

        let nothing = pdpb::QueryRegionRequest { keys: keys(&["a"]), ..Default::default() };
        let none = ClusterView::new(Config::default(), []);
        let LookupResult { found, good, .. } = batch(&none, 0, &nothing);
        assert_eq!((found.key_id_map, good), (vec![0], false));
    }

    #[test]
    fn a_key_finds_its_region_with_leader() {
        let found = by_key(&cluster(), 0, b"h");
        assert!(found.good);
        let region = found.found.unwrap();
        assert_eq!(region.leader.unwrap().id, 302);
        assert_eq!(region.region.unwrap().start_key, "g");
    }

    #[test]
    fn a_leader_whose_store_is_silent_is_not_named() {
        let found = by_key(&cluster(), 60_000, b"h");
        assert!(!found.good && found.leaders.is_empty());
        assert_eq!(found.found.unwrap().leader, None);
    }

    #[test]
    fn the_first_region_has_none_before_it_and_that_is_final() {
        let found = by_next_key(&cluster(), 0, b"a");
        assert!(found.found.is_none() && found.good);
    }

    #[test]
    fn a_scan_says_whether_it_is_whole() {
        let cluster = cluster();
        let ids = |lookup: &LookupResult<ScannedRegions>| -> Vec<u64> {
            let regions = lookup.found.regions.iter();
            regions.filter_map(|region| Some(region.region.as_ref()?.id)).collect()
        };
        let all = scan(&cluster, 0, b"", b"", 10);
        assert_eq!((ids(&all), all.found.whole, all.good), (vec![2, 3, 4], true, false));
        let some = scan(&cluster, 0, b"a", b"h", 10);
        assert_eq!((ids(&some), some.found.whole, some.good), (vec![2, 3], true, true));
        let limited = scan(&cluster, 0, b"", b"", 1);
        assert_eq!((ids(&limited), limited.found.whole, limited.good), (vec![2], true, true));
        let ranges = [("a", "b"), ("c", "h"), ("i", "k")]
            .map(|(start, end)| pdpb::KeyRange { start_key: start.into(), end_key: end.into() });
        assert_eq!(ids(&scan_all(&cluster, 0, &ranges, 10)), [2, 3]);
        assert_eq!(ids(&scan_all(&cluster, 0, &ranges, 1)), [2]);
        let none = scan(&cluster, 0, b"h", b"a", 10);
        assert_eq!((ids(&none), none.found.whole), (vec![], true));
        let unknown = scan(&ClusterView::new(Config::default(), []), 0, b"", b"", 10);
        assert!(!unknown.found.whole && !unknown.good);
    }
}
