//! The route cache: regions by key and their leaders, as far as the client knows.
//!
//! A hint, never the truth: the store checks the region's epoch and corrects the client.
//!
//! Invariant: routes do not overlap.

use std::collections::BTreeMap;
use std::ops::Bound::{Excluded, Included, Unbounded};
use std::sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard};

use bytes::Bytes;
use flotilla_proto::metapb;

/// A region and the replica to ask.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct CachedRoute {
    pub(crate) region: metapb::Region,
    pub(crate) leader: metapb::Peer,
    /// Replicas that were tried since placement or a store last named a leader.
    tried: usize,
}

impl CachedRoute {
    /// None if the region has no replica at all, which no cluster says of a region that is alive.
    pub(crate) fn new(region: metapb::Region, leader: Option<metapb::Peer>) -> Option<CachedRoute> {
        let leader = leader.or_else(|| region.peers.first().copied())?;
        Some(CachedRoute { region, leader, tried: 0 })
    }

    pub(crate) fn contains(&self, key: &[u8]) -> bool {
        self.region.start_key <= key
            && (self.region.end_key.is_empty() || key < self.region.end_key.as_ref())
    }

    /// Whether the region holds the greatest key below `end`; an empty `end` is above all keys.
    pub(crate) fn ends_at_or_contains(&self, end: &[u8]) -> bool {
        if end.is_empty() {
            return self.region.end_key.is_empty();
        }
        self.region.start_key < end
            && (self.region.end_key.is_empty() || end <= self.region.end_key.as_ref())
    }

    fn version(&self) -> u64 {
        self.region.region_epoch.unwrap_or_default().version
    }

    fn overlaps(&self, other: &metapb::Region) -> bool {
        let ends_after = |end: &Bytes, start: &Bytes| end.is_empty() || end > start;
        ends_after(&self.region.end_key, &other.start_key)
            && ends_after(&other.end_key, &self.region.start_key)
    }
}

/// The routes that are known.
#[derive(Debug, Default)]
pub(crate) struct RouteCache {
    by_start: RwLock<BTreeMap<Bytes, Arc<CachedRoute>>>,
}

impl RouteCache {
    /// The route of the region that holds `key`.
    pub(crate) fn of_key(&self, key: &[u8]) -> Option<Arc<CachedRoute>> {
        let routes = self.read();
        let (_, route) = routes.range::<[u8], _>((Unbounded, Included(key))).next_back()?;
        route.contains(key).then(|| Arc::clone(route))
    }

    /// The route of the region that holds the greatest key below `end`; empty is above all keys.
    pub(crate) fn below(&self, end: &[u8]) -> Option<Arc<CachedRoute>> {
        let routes = self.read();
        let last = if end.is_empty() {
            routes.iter().next_back()
        } else {
            routes.range::<[u8], _>((Unbounded, Excluded(end))).next_back()
        };
        let (_, route) = last?;
        route.ends_at_or_contains(end).then(|| Arc::clone(route))
    }

    /// Learns a route, and forgets those that it replaces. A route older than what is known is not
    /// learnt: placement hears of a split after the stores.
    pub(crate) fn learn(&self, route: CachedRoute) -> Arc<CachedRoute> {
        let route = Arc::new(route);
        let mut routes = self.write();
        let mut before = routes.range::<[u8], _>((Unbounded, Excluded(&*route.region.start_key)));
        let within = routes.range::<[u8], _>((Included(&*route.region.start_key), Unbounded));
        let overlapped: Vec<_> = (before.next_back().into_iter())
            .chain(within.take_while(|(_, known)| known.overlaps(&route.region)))
            .map(|(_, known)| Arc::clone(known))
            .filter(|known| known.overlaps(&route.region))
            .collect();
        // Placement learns of a split after the stores, so its answer may be older than the cache.
        if overlapped.iter().any(|known| known.version() > route.version()) {
            return route;
        }
        for known in overlapped {
            routes.remove(&known.region.start_key);
        }
        routes.insert(route.region.start_key.clone(), Arc::clone(&route));
        route
    }

    /// `leader` leads the route's region now. A leader that the region does not know as its replica
    /// means that the route is old.
    pub(crate) fn set_leader(&self, route: &Arc<CachedRoute>, leader: metapb::Peer) {
        if route.region.peers.iter().any(|peer| peer.id == leader.id) {
            self.replace(route, Some(CachedRoute { leader, tried: 0, ..(**route).clone() }));
        } else {
            self.forget(route);
        }
    }

    /// The replica that was asked does not help: turns to the next one, and gives the route up once
    /// all were asked.
    pub(crate) fn rotate(&self, route: &Arc<CachedRoute>) {
        let peers = &route.region.peers;
        // Replicas are taken in turn, so by now each was asked; placement may know of new ones.
        if route.tried + 1 >= peers.len() {
            return self.forget(route);
        }
        let at = peers.iter().position(|peer| peer.id == route.leader.id).map_or(0, |at| at + 1);
        let leader = peers[at % peers.len()];
        self.replace(
            route,
            Some(CachedRoute { leader, tried: route.tried + 1, ..(**route).clone() }),
        );
    }

    /// Forgets the route, so that placement is asked again.
    pub(crate) fn forget(&self, route: &Arc<CachedRoute>) {
        self.replace(route, None);
    }

    /// Does nothing if another task has replaced the route meanwhile: it knew more.
    fn replace(&self, old: &Arc<CachedRoute>, new: Option<CachedRoute>) {
        let mut routes = self.write();
        let start = &old.region.start_key;
        if !routes.get(start).is_some_and(|known| Arc::ptr_eq(known, old)) {
            return;
        }
        match new {
            Some(new) => routes.insert(start.clone(), Arc::new(new)),
            None => routes.remove(start),
        };
    }

    // Nothing panics under the lock, and a map of hints would be none the worse.
    fn read(&self) -> RwLockReadGuard<'_, BTreeMap<Bytes, Arc<CachedRoute>>> {
        self.by_start.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, BTreeMap<Bytes, Arc<CachedRoute>>> {
        self.by_start.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(id: u64) -> metapb::Peer {
        metapb::Peer { id, store_id: id, ..Default::default() }
    }

    fn route(id: u64, start: &'static str, end: &'static str, version: u64) -> CachedRoute {
        let region = metapb::Region {
            id,
            start_key: start.into(),
            end_key: end.into(),
            region_epoch: Some(metapb::RegionEpoch { conf_ver: 1, version }),
            peers: vec![peer(1), peer(2), peer(3)],
        };
        CachedRoute::new(region, None).unwrap()
    }

    fn id_of(routes: &RouteCache, key: &str) -> Option<u64> {
        routes.of_key(key.as_bytes()).map(|route| route.region.id)
    }

    #[test]
    fn finds_by_key_and_from_above() {
        let routes = RouteCache::default();
        assert_eq!(id_of(&routes, ""), None);
        routes.learn(route(1, "", "d", 1));
        routes.learn(route(2, "d", "m", 1));
        routes.learn(route(3, "p", "", 1));
        assert_eq!(id_of(&routes, ""), Some(1));
        assert_eq!(id_of(&routes, "d"), Some(2));
        assert_eq!(id_of(&routes, "m"), None);
        assert_eq!(id_of(&routes, "zz"), Some(3));

        let below = |end: &str| routes.below(end.as_bytes()).map(|route| route.region.id);
        assert_eq!(below("d"), Some(1));
        assert_eq!(below("da"), Some(2));
        assert_eq!(below("m"), Some(2));
        assert_eq!(below("n"), None);
        assert_eq!(below("p"), None);
        assert_eq!(below(""), Some(3));
    }

    #[test]
    fn a_split_replaces_and_an_old_answer_does_not() {
        let routes = RouteCache::default();
        routes.learn(route(1, "", "", 1));
        routes.learn(route(1, "k", "", 2));
        assert_eq!(id_of(&routes, "a"), None, "the other half is not known");
        routes.learn(route(4, "", "k", 2));
        assert_eq!(id_of(&routes, "a"), Some(4));
        routes.learn(route(1, "", "", 1));
        assert_eq!(id_of(&routes, "a"), Some(4), "an old route came back");
        assert_eq!(id_of(&routes, "k"), Some(1));
    }

    #[test]
    fn every_replica_is_asked_once_then_placement() {
        let routes = RouteCache::default();
        let mut known = routes.learn(route(1, "", "", 1));
        let mut asked = vec![known.leader.id];
        loop {
            routes.rotate(&known);
            match routes.of_key(b"") {
                Some(next) => known = next,
                None => break,
            }
            asked.push(known.leader.id);
        }
        assert_eq!(asked, [1, 2, 3]);
    }

    #[test]
    fn news_about_an_old_route_changes_nothing() {
        let routes = RouteCache::default();
        let old = routes.learn(route(1, "", "", 1));
        routes.set_leader(&old, peer(2));
        routes.forget(&old);
        routes.set_leader(&old, peer(3));
        assert_eq!(routes.of_key(b"").unwrap().leader, peer(2));
        routes.set_leader(&routes.of_key(b"").unwrap(), peer(9));
        assert_eq!(id_of(&routes, ""), None, "a leader that is no replica");
    }
}
