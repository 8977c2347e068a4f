//! The route table: regions by key range, in the order of their keys, none of which overlap.
//!
//! Invariants:
//! - No two regions overlap. Of two that would, the one with the higher version stays.
//! - A region's epoch never goes back.

use std::collections::{BTreeMap, BTreeSet};

/// One copy of a region and the store that holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReplicaInfo {
    /// The peer's id.
    pub id: u64,
    /// The store's id.
    pub store: u64,
    /// Its part in the region's decisions.
    pub role: ReplicaRole,
}

/// The part of a replica in its region's decisions.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum ReplicaRole {
    /// It votes.
    #[default]
    Voter,
    /// It gets the log, and has no vote.
    Learner,
    /// It votes in the new half of a joint configuration.
    Incoming,
    /// It votes in the old half of a joint configuration.
    Outgoing,
}

/// A range of keys and its replicas.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RegionInfo {
    /// The region's id.
    pub id: u64,
    /// The first key.
    pub start: Vec<u8>,
    /// The first key beyond; empty if there is none.
    pub end: Vec<u8>,
    /// Grows with each change of replicas.
    pub conf_version: u64,
    /// Grows with each change of borders.
    pub version: u64,
    /// The replicas.
    pub replicas: Vec<ReplicaInfo>,
}

impl RegionInfo {
    /// The replica on this store.
    #[must_use]
    pub fn on(&self, store: u64) -> Option<ReplicaInfo> {
        self.replicas.iter().copied().find(|replica| replica.store == store)
    }

    /// Whether the region is between two configurations.
    #[must_use]
    pub fn is_joint(&self) -> bool {
        let is_between = |role| matches!(role, ReplicaRole::Incoming | ReplicaRole::Outgoing);
        self.replicas.iter().any(|replica| is_between(replica.role))
    }

    /// The stores that vote, of a joint configuration those of its new half.
    #[must_use]
    pub fn voting_stores(&self) -> BTreeSet<u64> {
        let votes = |role| matches!(role, ReplicaRole::Voter | ReplicaRole::Incoming);
        let voters = self.replicas.iter().filter(|replica| votes(replica.role));
        voters.map(|replica| replica.store).collect()
    }

    fn contains(&self, key: &[u8]) -> bool {
        self.start.as_slice() <= key && !ends_by(&self.end, key)
    }

    fn overlaps(&self, other: &Self) -> bool {
        !ends_by(&self.end, &other.start) && !ends_by(&other.end, &self.start)
    }
}

/// Whether a range with this end lies wholly before `key`.
fn ends_by(end: &[u8], key: &[u8]) -> bool {
    !end.is_empty() && end <= key
}

/// The regions that are known, by key and by id.
#[derive(Clone, Debug, Default)]
pub(crate) struct RouteTable {
    by_start: BTreeMap<Vec<u8>, RegionInfo>,
    start_of: BTreeMap<u64, Vec<u8>>,
}

impl RouteTable {
    /// Takes in what is newer than what is known. True if something changed.
    pub(crate) fn learn(&mut self, region: &RegionInfo) -> bool {
        if let Some(known) = self.get(region.id) {
            let went_back =
                region.version < known.version || region.conf_version < known.conf_version;
            // Replicas report at times of their own, so an older description may come after a newer
            // one.
            if went_back || known == region {
                return false;
            }
        }
        let overlapped: Vec<u64> = self
            .overlapping(region)
            .filter(|other| other.id != region.id)
            // A split raises the version of both halves, so the newer range replaces the older one.
            .map(|other| if other.version < region.version { other.id } else { 0 })
            .collect();
        // Of two that claim the same keys in one version none is known to be the newer one: the
        // known one stays until a later heartbeat decides.
        if overlapped.contains(&0) {
            return false;
        }
        for id in overlapped.into_iter().chain([region.id]) {
            if let Some(start) = self.start_of.remove(&id) {
                self.by_start.remove(&start);
            }
        }
        self.start_of.insert(region.id, region.start.clone());
        self.by_start.insert(region.start.clone(), region.clone());
        true
    }

    pub(crate) fn get(&self, id: u64) -> Option<&RegionInfo> {
        self.by_start.get(self.start_of.get(&id)?)
    }

    /// The region that holds `key`.
    pub(crate) fn locate(&self, key: &[u8]) -> Option<&RegionInfo> {
        let at_or_before = self
            .by_start
            .range::<[u8], _>((std::ops::Bound::Unbounded, std::ops::Bound::Included(key)));
        at_or_before.map(|(_, region)| region).next_back().filter(|region| region.contains(key))
    }

    /// The region that ends where the one that holds `key` begins.
    pub(crate) fn before(&self, key: &[u8]) -> Option<&RegionInfo> {
        let start = self.locate(key)?.start.as_slice();
        let before = self
            .by_start
            .range::<[u8], _>((std::ops::Bound::Unbounded, std::ops::Bound::Excluded(start)));
        // The region between may not have sent a heartbeat yet: the nearest one below is then the
        // wrong answer.
        before.map(|(_, region)| region).next_back().filter(|region| region.end == start)
    }

    /// The regions that hold a part of `[start, end)`, in order; an empty `end` is no end.
    pub(crate) fn scan(&self, start: &[u8], end: &[u8]) -> impl Iterator<Item = &RegionInfo> {
        // The region that holds `start` may begin before it.
        let first = self.locate(start).map_or(start, |region| region.start.as_slice());
        let from = self
            .by_start
            .range::<[u8], _>((std::ops::Bound::Included(first), std::ops::Bound::Unbounded));
        // An inverted range would else give the region in which it starts.
        let empty = ends_by(end, start);
        let end = end.to_vec();
        from.map(|(_, region)| region)
            .take_while(move |region| !empty && !ends_by(&end, &region.start))
    }

    fn overlapping<'a>(&'a self, region: &'a RegionInfo) -> impl Iterator<Item = &'a RegionInfo> {
        self.scan(&region.start, &region.end).filter(|other| other.overlaps(region))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn region(id: u64, start: &str, end: &str, version: u64) -> RegionInfo {
        RegionInfo {
            id,
            start: start.into(),
            end: end.into(),
            version,
            conf_version: 1,
            replicas: vec![],
        }
    }

    fn three() -> RouteTable {
        let mut routes = RouteTable::default();
        assert!(routes.learn(&region(1, "", "g", 1)));
        assert!(routes.learn(&region(2, "g", "p", 1)));
        assert!(routes.learn(&region(3, "p", "", 1)));
        routes
    }

    fn ids<'a>(regions: impl Iterator<Item = &'a RegionInfo>) -> Vec<u64> {
        regions.map(|region| region.id).collect()
    }

    #[test]
    fn each_key_has_one_region() {
        let routes = three();
        for (key, id) in [("", 1), ("f", 1), ("g", 2), ("oz", 2), ("p", 3), ("zz", 3)] {
            assert_eq!(routes.locate(key.as_bytes()).map(|found| found.id), Some(id), "{key}");
        }
        assert_eq!(routes.before(b"g").map(|found| found.id), Some(1));
        assert_eq!(routes.before(b"z").map(|found| found.id), Some(2));
        assert_eq!(routes.before(b"a"), None);
    }

    #[test]
    fn a_scan_gives_what_touches_the_range() {
        let routes = three();
        assert_eq!(ids(routes.scan(b"", b"")), [1, 2, 3]);
        assert_eq!(ids(routes.scan(b"h", b"p")), [2]);
        assert_eq!(ids(routes.scan(b"h", b"pa")), [2, 3]);
        assert_eq!(ids(routes.scan(b"q", b"")), [3]);
        assert_eq!(ids(routes.scan(b"q", b"h")), [] as [u64; 0]);
        assert_eq!(ids(routes.scan(b"h", b"h")), [] as [u64; 0]);
    }

    #[test]
    fn a_hole_is_a_hole() {
        let mut routes = RouteTable::default();
        routes.learn(&region(1, "", "g", 1));
        routes.learn(&region(3, "p", "", 1));
        assert_eq!(routes.locate(b"h"), None);
        assert_eq!(routes.before(b"q"), None);
        assert_eq!(ids(routes.scan(b"h", b"")), [3]);
    }

    #[test]
    fn the_newer_region_wins() {
        let mut routes = three();
        assert!(!routes.learn(&region(2, "g", "p", 1)), "known already");
        assert!(!routes.learn(&region(2, "g", "p", 0)), "older");
        // Region 2 is split: the right half is new and must not overlap the old form.
        assert!(!routes.learn(&region(4, "k", "p", 1)), "no newer than what it overlaps");
        assert!(routes.learn(&region(4, "k", "p", 2)));
        assert_eq!(routes.get(2), None, "its old form is in the way");
        assert!(!routes.learn(&region(2, "g", "p", 1)), "the old form does not come back");
        assert!(routes.learn(&region(2, "g", "k", 2)));
        assert_eq!(ids(routes.scan(b"", b"")), [1, 2, 4, 3]);
    }
}
