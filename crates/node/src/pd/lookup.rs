//! Answers about regions, from what is known and in the form that clients want.

use std::collections::BTreeMap;

use bytes::Bytes;
use flotilla_placement::{Cluster, Route, Trust};
use flotilla_proto::pdpb;

use super::convert::{region_to_proto, replica_to_proto};

/// A region with its leader, and whether that may be given to a client without waiting for better.
pub(super) struct Found {
    pub(super) region: Option<pdpb::Region>,
    pub(super) good: bool,
}

/// What a batch of lookups found.
pub(super) struct Batch {
    pub(super) response: pdpb::QueryRegionResponse,
    pub(super) good: bool,
}

/// What a scan found.
pub(super) struct Scanned {
    pub(super) regions: Vec<pdpb::Region>,
    /// The regions follow each other from the start to the end that was asked for, or to the limit.
    pub(super) whole: bool,
    pub(super) good: bool,
}

/// The region that holds `key`.
pub(super) fn by_key(cluster: &Cluster, now_ms: u64, key: &[u8]) -> Found {
    found(cluster, now_ms, cluster.locate(now_ms, key))
}

/// The region before the one that holds `key`. The first has none before it.
pub(super) fn by_next_key(cluster: &Cluster, now_ms: u64, key: &[u8]) -> Found {
    let first = cluster.locate(now_ms, key).is_some_and(|route| route.region.start.is_empty());
    let mut found = found(cluster, now_ms, cluster.before(now_ms, key));
    found.good |= first;
    found
}

/// The region of this id. One that is not known is not waited for: nobody asks for ids that he was
/// not told.
pub(super) fn by_id(cluster: &Cluster, now_ms: u64, id: u64) -> Found {
    found(cluster, now_ms, cluster.region(now_ms, id))
}

/// Many at once. The lists of the answer are as long as those of the request; clients rely on it.
pub(super) fn batch(cluster: &Cluster, now_ms: u64, request: &pdpb::QueryRegionRequest) -> Batch {
    let mut regions_by_id = BTreeMap::new();
    let mut good = true;
    let mut note = |found: Found| {
        good &= found.good;
        let Some(found) = found.region else { return 0 };
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
    let response =
        pdpb::QueryRegionResponse { header: None, key_id_map, prev_key_id_map, regions_by_id };
    Batch { response, good }
}

/// The regions that hold a part of `[start, end)`, in order, `limit` at most.
pub(super) fn scan(
    cluster: &Cluster,
    now_ms: u64,
    start: &[u8],
    end: &[u8],
    limit: usize,
) -> Scanned {
    let mut scanned = Scanned { regions: Vec::new(), whole: true, good: true };
    let mut reached = Some(Bytes::copy_from_slice(start));
    for route in cluster.scan(now_ms, start, end) {
        if scanned.regions.len() >= limit {
            return scanned;
        }
        let begins_by = |reached: &Bytes| route.region.start <= *reached;
        scanned.whole &= reached.as_ref().is_some_and(begins_by);
        let found = found(cluster, now_ms, Some(route));
        scanned.good &= found.good;
        scanned.regions.extend(found.region);
        let region_end = &route.region.end;
        reached = (!region_end.is_empty()).then(|| Bytes::copy_from_slice(region_end));
    }
    // Nothing is beyond a region without an end.
    let to_the_end = reached.is_none_or(|reached| !end.is_empty() && reached >= end);
    let empty = !end.is_empty() && start >= end;
    scanned.whole &= to_the_end || empty;
    scanned.good &= scanned.whole;
    scanned
}

/// Several ranges at once. A region that two neighbours share comes once.
pub(super) fn scan_all(
    cluster: &Cluster,
    now_ms: u64,
    ranges: &[pdpb::KeyRange],
    limit: usize,
) -> Scanned {
    let mut all = Scanned { regions: Vec::new(), whole: true, good: true };
    for range in ranges {
        let left_count = limit.saturating_sub(all.regions.len());
        if left_count == 0 {
            break;
        }
        // One more than is left, for the first may be the last of the range before.
        let scanned = scan(cluster, now_ms, &range.start_key, &range.end_key, left_count + 1);
        all.whole &= scanned.whole;
        all.good &= scanned.good;
        for region in scanned.regions {
            let repeated = all.regions.last().is_some_and(|last| last.region == region.region);
            if !repeated && all.regions.len() < limit {
                all.regions.push(region);
            }
        }
    }
    all
}

fn found(cluster: &Cluster, now_ms: u64, route: Option<Route<'_>>) -> Found {
    let good = route.is_some_and(|route| route.trust == Trust::Fresh);
    let region = route.map(|route| pdpb::Region {
        region: Some(region_to_proto(route.region)),
        leader: route.leader.as_ref().map(replica_to_proto),
        down_peers: cluster
            .down(now_ms, route.region)
            .map(|(replica, silent_ms)| pdpb::PeerStats {
                peer: Some(replica_to_proto(&replica)),
                down_seconds: silent_ms / 1000,
            })
            .collect(),
        pending_peers: Vec::new(),
    });
    Found { region, good }
}

#[cfg(test)]
mod tests {
    use flotilla_placement::{Config, Region, Replica, Sighting, Store};

    use super::*;

    /// Three regions with borders g and p, led by stores 1, 2 and nobody.
    fn cluster() -> Cluster {
        let stores = (1..=2).map(|id| Store { id, ..Store::default() });
        let mut cluster = Cluster::new(Config::default(), stores);
        for (id, start, end, leader) in
            [(2, "", "g", Some(1)), (3, "g", "p", Some(2)), (4, "p", "", None)]
        {
            let replicas = (1..=2).map(|store| Replica { id: id * 100 + store, store }).collect();
            let (start, end) = (start.into(), end.into());
            let region = Region { id, start, end, version: 1, conf_version: 1, replicas };
            let leader = leader.map(|store| Replica { id: id * 100 + store, store });
            let told = [Sighting { region, term: 5, leader }];
            cluster.hear(0, leader.map_or(1, |leader| leader.store), &told, false);
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
        let Batch { response, good } = batch(&cluster(), 0, &request);
        assert_eq!(response.key_id_map, [2, 2, 3, 4]);
        assert_eq!(response.prev_key_id_map, [2, 0]);
        assert_eq!(response.regions_by_id.keys().copied().collect::<Vec<_>>(), [2, 3, 4]);
        assert!(!good, "nobody leads region 4");

        let nothing = pdpb::QueryRegionRequest { keys: keys(&["a"]), ..Default::default() };
        let none = Cluster::new(Config::default(), []);
        let Batch { response, good } = batch(&none, 0, &nothing);
        assert_eq!((response.key_id_map, good), (vec![0], false));
    }

    #[test]
    fn a_key_finds_its_region_with_leader() {
        let found = by_key(&cluster(), 0, b"h");
        assert!(found.good);
        let region = found.region.unwrap();
        assert_eq!(region.leader.unwrap().id, 302);
        assert_eq!(region.region.unwrap().start_key, "g");
        assert!(!by_key(&cluster(), 60_000, b"h").good, "its store has been silent");
    }

    #[test]
    fn the_first_region_has_none_before_it_and_that_is_final() {
        let found = by_next_key(&cluster(), 0, b"a");
        assert!(found.region.is_none() && found.good);
    }

    #[test]
    fn a_scan_says_whether_it_is_whole() {
        let cluster = cluster();
        let ids = |scanned: &Scanned| -> Vec<u64> {
            let regions = scanned.regions.iter();
            regions.filter_map(|region| Some(region.region.as_ref()?.id)).collect()
        };
        let all = scan(&cluster, 0, b"", b"", 10);
        assert_eq!((ids(&all), all.whole, all.good), (vec![2, 3, 4], true, false));
        let some = scan(&cluster, 0, b"a", b"h", 10);
        assert_eq!((ids(&some), some.whole, some.good), (vec![2, 3], true, true));
        let limited = scan(&cluster, 0, b"", b"", 1);
        assert_eq!((ids(&limited), limited.whole, limited.good), (vec![2], true, true));
        let ranges = [("a", "b"), ("c", "h"), ("i", "k")]
            .map(|(start, end)| pdpb::KeyRange { start_key: start.into(), end_key: end.into() });
        assert_eq!(ids(&scan_all(&cluster, 0, &ranges, 10)), [2, 3]);
        assert_eq!(ids(&scan_all(&cluster, 0, &ranges, 1)), [2]);
        let none = scan(&cluster, 0, b"h", b"a", 10);
        assert_eq!((ids(&none), none.whole), (vec![], true));
        let unknown = scan(&Cluster::new(Config::default(), []), 0, b"", b"", 10);
        assert!(!unknown.whole && !unknown.good);
    }
}
