//! The routing table of a node: the key ranges of its regions, and their leaders.
//!
//! It is a hint for callers, not the truth: the region itself checks leader and epoch again. The
//! shards write it, the services read it.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Bound;
use std::sync::atomic::{AtomicU64, Ordering};

use bytes::Bytes;
use flotilla_dispatch::Leadership;
use flotilla_region::{Descriptor, Peer, RegionId, RegionLoad, RoleChange, Space, StoreId, Term};
use parking_lot::RwLock;
use tokio::sync::{broadcast, watch};
use tokio::time::{Instant, timeout_at};

/// Changes that a slow listener may lag behind before it has to read everything anew.
const CHANGES_KEPT: usize = 4096;
/// The most regions that one answer names.
const SIBLINGS_MAX: usize = 16;

/// A change of the table.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteChange {
    /// A region has another leader, another term, or both.
    Role(RoleChange),
    /// Regions have new ranges or other replicas, or are new here. All parts of a split come
    /// together; so may regions that have nothing to do with each other.
    Ranges {
        /// The regions.
        ranges: Vec<Descriptor>,
        /// Those of them that a split has made, and whose replicas here campaign at once.
        campaigning: BTreeSet<RegionId>,
    },
    /// The replica of a region here has ended.
    Ended(RegionId),
}

/// Regions by key and by id, and their leaders.
pub(crate) struct RoutingTable {
    table: RwLock<RouteMaps>,
    changes: broadcast::Sender<RouteChange>,
    /// Counts changes of ranges, for those who wait for one.
    range_changes: watch::Sender<u64>,
}

#[derive(Default)]
struct RouteMaps {
    by_key: BTreeMap<(u8, Bytes), RegionId>,
    by_id: BTreeMap<RegionId, RegionEntry>,
    /// Roles of new regions, heard of before their ranges: those come from another shard.
    early: BTreeMap<RegionId, Leadership>,
}

struct RegionEntry {
    descriptor: Descriptor,
    /// Requests in a second, as the replica here has told if it leads.
    requests_per_s: AtomicU64,
    leadership: watch::Sender<Leadership>,
}

impl RoutingTable {
    /// Routes to `descriptors`, without leaders yet.
    pub(crate) fn new(descriptors: Vec<Descriptor>) -> Self {
        let mut table = RouteMaps::default();
        for descriptor in descriptors {
            table.put(descriptor);
        }
        let changes = broadcast::Sender::new(CHANGES_KEPT);
        Self { table: RwLock::new(table), changes, range_changes: watch::Sender::new(0) }
    }

    /// The region of `space` that holds `key`.
    pub(crate) fn locate(&self, space: Space, key: &[u8]) -> Option<Descriptor> {
        let table = self.table.read();
        let end = (space_order(space), Bytes::copy_from_slice(key));
        let (start, id) =
            table.by_key.range((Bound::Unbounded, Bound::Included(end))).next_back()?;
        if start.0 != space_order(space) {
            return None;
        }
        let descriptor = &table.by_id.get(id)?.descriptor;
        descriptor.contains(key).then(|| descriptor.clone())
    }

    /// The first region of `space` that holds a part of `[start, end)`; an empty `end` is no end.
    pub(crate) fn overlapping(&self, space: Space, start: &[u8], end: &[u8]) -> Option<Descriptor> {
        // The region of the first key, or else the next one behind it.
        if let Some(first) = self.locate(space, start) {
            return Some(first);
        }
        let table = self.table.read();
        let from = (space_order(space), Bytes::copy_from_slice(start));
        let ((order, first), id) = table.by_key.range(from..).next()?;
        let is_within = *order == space_order(space) && (end.is_empty() || *first < end);
        let route = table.by_id.get(id).filter(|_| is_within)?;
        Some(route.descriptor.clone())
    }

    /// The region `id`.
    pub(crate) fn descriptor(&self, id: RegionId) -> Option<Descriptor> {
        self.table.read().by_id.get(&id).map(|route| route.descriptor.clone())
    }

    /// All regions, by id.
    pub(crate) fn descriptors(&self) -> Vec<Descriptor> {
        self.table.read().by_id.values().map(|route| route.descriptor.clone()).collect()
    }

    /// A handle on the leadership of the region, which wakes on each change.
    pub(crate) fn leadership(&self, id: RegionId) -> Option<watch::Receiver<Leadership>> {
        self.table.read().by_id.get(&id).map(|route| route.leadership.subscribe())
    }

    /// The leader of the region, if one is known.
    pub(crate) fn leader(&self, id: RegionId) -> Option<(Term, Peer)> {
        let table = self.table.read();
        let leadership = table.by_id.get(&id)?.leadership.borrow();
        leadership.leader.map(|peer| (leadership.term, peer))
    }

    /// The requests in a second of the regions that `store` leads; of those that have just got this
    /// leader, none may be known.
    pub(crate) fn loads(&self, store: StoreId) -> Vec<(RegionId, u64)> {
        let leads = |route: &RegionEntry| {
            route.leadership.borrow().leader.is_some_and(|leader| leader.store == store)
        };
        let table = self.table.read();
        let led = table.by_id.iter().filter(|(_, route)| leads(route));
        let loads = led.map(|(id, route)| (*id, route.requests_per_s.load(Ordering::Relaxed)));
        loads.filter(|(_, load)| *load > 0).collect()
    }

    /// Records loads of regions that are led here.
    pub(crate) fn note_loads(&self, loads: &[RegionLoad]) {
        if loads.is_empty() {
            return;
        }
        let table = self.table.read();
        for RegionLoad { region, requests_per_s } in loads {
            if let Some(route) = table.by_id.get(region) {
                route.requests_per_s.store(*requests_per_s, Ordering::Relaxed);
            }
        }
    }

    /// How many regions there are.
    pub(crate) fn replica_count(&self) -> usize {
        self.table.read().by_id.len()
    }

    /// How many regions there are, and those of them whose leader is not known, by id.
    pub(crate) fn leaderless(&self) -> (usize, Vec<RegionId>) {
        let table = self.table.read();
        let without = |route: &RegionEntry| route.leadership.borrow().leader.is_none();
        let ids = table.by_id.iter().filter(|(_, route)| without(route)).map(|(id, _)| *id);
        (table.by_id.len(), ids.collect())
    }

    /// Every change from now on.
    pub(crate) fn changes(&self) -> broadcast::Receiver<RouteChange> {
        self.changes.subscribe()
    }

    /// The region `id`, and with it the regions that hold the rest of the range that it had at the
    /// version `since`, by their keys: those to its left, for a split leaves the last part to the
    /// region. At most 16.
    pub(crate) fn siblings(&self, id: RegionId, since: u64) -> Vec<Descriptor> {
        let table = self.table.read();
        let Some(route) = table.by_id.get(&id) else { return vec![] };
        let mut siblings = vec![route.descriptor.clone()];
        let key = (space_order(route.descriptor.space), route.descriptor.start.clone());
        for (_, id) in table.by_key.range(..key).rev() {
            let (Some(left), Some(right)) = (table.by_id.get(id), siblings.last()) else { break };
            let (left, is_full) = (&left.descriptor, siblings.len() == SIBLINGS_MAX);
            let adjoins = left.space == right.space && left.end == right.start;
            // All parts of a split have a version above that of the region that was split.
            if is_full || !adjoins || left.epoch.version <= since {
                break;
            }
            siblings.push(left.clone());
        }
        siblings.reverse();
        siblings
    }

    /// Waits until the range of the region has this version, or a later one. False if it has not
    /// by `deadline`.
    pub(crate) async fn await_version(
        &self,
        id: RegionId,
        version: u64,
        deadline: Instant,
    ) -> bool {
        let here = || {
            let table = self.table.read();
            table.by_id.get(&id).is_some_and(|route| route.descriptor.epoch.version >= version)
        };
        let mut changes = self.range_changes.subscribe();
        while !here() {
            if !matches!(timeout_at(deadline, changes.changed()).await, Ok(Ok(()))) {
                return here();
            }
        }
        true
    }

    /// Waits until each of these regions has a leader that is known here. False if one of them has
    /// none by `deadline`.
    pub(crate) async fn await_leaders(&self, regions: &[Descriptor], deadline: Instant) -> bool {
        for region in regions {
            // It has ended here.
            let Some(mut leadership) = self.leadership(region.id) else { continue };
            let led = leadership.wait_for(|here| here.leader.is_some());
            if timeout_at(deadline, led).await.is_err() {
                return false;
            }
        }
        true
    }

    /// Records regions whose ranges are new. All parts of a split come at once, so that no reader
    /// finds a hole between them. The replicas of `campaigning` are new, and campaign at once.
    pub(crate) fn note_ranges(
        &self,
        descriptors: Vec<Descriptor>,
        campaigning: BTreeSet<RegionId>,
    ) {
        let mut ranges = descriptors;
        {
            let mut table = self.table.write();
            ranges.retain(|descriptor| table.put(descriptor.clone()));
        }
        if ranges.is_empty() {
            return;
        }
        self.range_changes.send_modify(|count| *count += 1);
        let _ = self.changes.send(RouteChange::Ranges { ranges, campaigning });
    }

    /// Takes a region off the table whose replica here has ended. Those who wait for its leader are
    /// woken.
    pub(crate) fn end(&self, region: RegionId) {
        self.table.write().remove(region);
        self.range_changes.send_modify(|count| *count += 1);
        let _ = self.changes.send(RouteChange::Ended(region));
    }

    /// Records a change of roles and wakes the tasks that wait for it.
    pub(crate) fn note(&self, change: RoleChange) {
        let now = Leadership { term: change.term, leader: change.leader };
        if !self.table.read().set(change.region, now) {
            let mut table = self.table.write();
            // The range may have come between the two locks.
            if !table.set(change.region, now) {
                table.early.insert(change.region, now);
            }
        }
        // An error means that there is no listener.
        let _ = self.changes.send(RouteChange::Role(change));
    }
}

impl RouteMaps {
    /// Sets the leadership of a region. False if the region is not known.
    fn set(&self, region: RegionId, now: Leadership) -> bool {
        let route = self.by_id.get(&region);
        route.inspect(|route| _ = route.leadership.send_replace(now)).is_some()
    }

    fn remove(&mut self, region: RegionId) {
        self.early.remove(&region);
        let Some(RegionEntry { descriptor, .. }) = self.by_id.remove(&region) else { return };
        let key = (space_order(descriptor.space), descriptor.start);
        if self.by_key.get(&key) == Some(&region) {
            self.by_key.remove(&key);
        }
    }

    /// False if the region is known in this version, or a later one: a new region may be split
    /// before the split that made it is reported.
    fn put(&mut self, descriptor: Descriptor) -> bool {
        let id = descriptor.id;
        let known = self.by_id.get(&id).map(|route| &route.descriptor);
        let order = |of: &Descriptor| (of.epoch.version, of.epoch.conf_version);
        if known.is_some_and(|known| order(known) >= order(&descriptor)) {
            return false;
        }
        let start = |of: &Descriptor| (space_order(of.space), of.start.clone());
        let (leadership, requests_per_s) = match self.by_id.remove(&id) {
            None => {
                let early = self.early.remove(&id).unwrap_or_default();
                (watch::Sender::new(early), AtomicU64::new(0))
            }
            Some(before) => {
                let old = start(&before.descriptor);
                // A region that was split off may have taken the place.
                if self.by_key.get(&old) == Some(&id) {
                    self.by_key.remove(&old);
                }
                // Another range has another load, which is told within a second.
                let is_same = before.descriptor.epoch.version == descriptor.epoch.version;
                let load = if is_same { before.requests_per_s } else { AtomicU64::new(0) };
                (before.leadership, load)
            }
        };
        self.by_key.insert(start(&descriptor), id);
        let entry = RegionEntry { descriptor, requests_per_s, leadership };
        self.by_id.insert(id, entry);
        true
    }
}

/// Keeps the two spaces apart in one map.
fn space_order(space: Space) -> u8 {
    match space {
        Space::System => 0,
        Space::Raw => 1,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use flotilla_region::{Epoch, PeerId};

    use super::*;
    use flotilla_region::RemovedPeers;

    fn region(id: u64, start: &'static str, end: &'static str, version: u64) -> Descriptor {
        Descriptor {
            removed: RemovedPeers::default(),
            id: RegionId(id),
            space: Space::Raw,
            start: start.into(),
            end: end.into(),
            epoch: Epoch { conf_version: 1, version },
            peers: vec![],
        }
    }

    fn note_ranges(table: &RoutingTable, descriptors: Vec<Descriptor>) {
        table.note_ranges(descriptors, BTreeSet::new());
    }

    fn ids(regions: &[Descriptor]) -> Vec<u64> {
        regions.iter().map(|region| region.id.0).collect()
    }

    fn holder(table: &RoutingTable, key: &str) -> u64 {
        table.locate(Space::Raw, key.as_bytes()).map_or(0, |region| region.id.0)
    }

    #[test]
    fn the_parts_of_a_split_take_the_place_of_the_region_in_either_order() {
        for reversed in [false, true] {
            let table = RoutingTable::new(vec![region(2, "", "m", 1), region(3, "m", "", 1)]);
            let mut parts = vec![region(9, "m", "r", 3), region(8, "r", "t", 3)];
            parts.push(region(3, "t", "", 3));
            if reversed {
                parts.reverse();
            }
            note_ranges(&table, parts);
            assert_eq!(
                ["a", "m", "q", "r", "t", "z"].map(|key| holder(&table, key)),
                [2, 9, 9, 8, 3, 3]
            );
            // An old report changes nothing.
            note_ranges(&table, vec![region(3, "m", "", 1)]);
            assert_eq!(holder(&table, "m"), 9);
        }
    }

    #[test]
    fn the_siblings_are_those_that_hold_the_range_of_the_old_version() {
        let table = RoutingTable::new(vec![region(2, "", "m", 1), region(3, "m", "", 1)]);
        assert_eq!(ids(&table.siblings(RegionId(3), 0)), [2, 3]);
        assert_eq!(ids(&table.siblings(RegionId(3), 1)), [3]);
        note_ranges(&table, vec![region(9, "m", "r", 2), region(3, "r", "", 2)]);
        note_ranges(&table, vec![region(8, "m", "o", 3), region(9, "o", "r", 3)]);
        assert_eq!(ids(&table.siblings(RegionId(3), 1)), [8, 9, 3]);
        assert_eq!(ids(&table.siblings(RegionId(9), 2)), [8, 9]);
        assert_eq!(ids(&table.siblings(RegionId(7), 1)), [] as [u64; 0]);
        let keys =
            ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p", "q"];
        let mut many: Vec<_> =
            (10..).zip(keys.windows(2)).map(|(id, pair)| region(id, pair[0], pair[1], 2)).collect();
        many.push(region(1, "q", "", 2));
        assert_eq!(RoutingTable::new(many).siblings(RegionId(1), 1).len(), SIBLINGS_MAX);
    }

    #[test]
    fn a_role_that_comes_before_its_range_is_kept() {
        let table = RoutingTable::new(vec![region(3, "", "", 1)]);
        let leader = Some(Peer::default());
        table.note(RoleChange { region: RegionId(9), term: Term(6), leader, is_leader: true });
        assert_eq!(table.leader(RegionId(9)), None);
        note_ranges(&table, vec![region(9, "", "m", 2), region(3, "m", "", 2)]);
        assert_eq!(table.leader(RegionId(9)), Some((Term(6), Peer::default())));
    }

    #[test]
    fn loads_are_those_of_regions_that_are_led_here_until_they_have_other_ranges() {
        let table = RoutingTable::new(vec![region(2, "", "m", 1), region(3, "m", "", 1)]);
        for (id, store) in [(2, 1), (3, 2)] {
            let leader = Some(Peer { id: PeerId(200 + store), store: StoreId(store) });
            let region = RegionId(id);
            table.note(RoleChange { region, term: Term(6), leader, is_leader: store == 1 });
        }
        let load = |id, requests_per_s| RegionLoad { region: RegionId(id), requests_per_s };
        table.note_loads(&[load(2, 70), load(3, 80), load(9, 90)]);
        let loads = |store| table.loads(StoreId(store));
        assert_eq!((loads(1), loads(2)), (vec![(RegionId(2), 70)], vec![(RegionId(3), 80)]));
        let other_members = Epoch { conf_version: 2, version: 1 };
        note_ranges(&table, vec![Descriptor { epoch: other_members, ..region(2, "", "m", 1) }]);
        assert_eq!(loads(1), [(RegionId(2), 70)]);
        note_ranges(&table, vec![region(9, "", "f", 2), region(2, "f", "m", 2)]);
        assert_eq!(loads(1), []);
    }

    #[test]
    fn a_region_that_has_ended_is_not_found_and_may_come_back() {
        let table = RoutingTable::new(vec![region(2, "", "m", 3), region(3, "m", "", 1)]);
        let mut leadership = table.leadership(RegionId(2)).unwrap();
        let mut changes = table.changes();
        table.end(RegionId(2));
        assert_eq!((holder(&table, "a"), holder(&table, "m")), (0, 3));
        assert_eq!(table.descriptor(RegionId(2)), None);
        assert_eq!(changes.try_recv(), Ok(RouteChange::Ended(RegionId(2))));
        assert!(leadership.has_changed().is_err(), "those who wait are woken");
        leadership.mark_unchanged();
        // Another replica of the region, by an older snapshot.
        note_ranges(&table, vec![region(2, "", "m", 1)]);
        assert_eq!(holder(&table, "a"), 2);
        assert_eq!(table.leader(RegionId(2)), None);
    }

    #[test]
    fn other_replicas_of_the_same_range_are_news() {
        let table = RoutingTable::new(vec![region(2, "", "", 3)]);
        let with = |conf_version| {
            let epoch = Epoch { conf_version, version: 3 };
            Descriptor { epoch, ..region(2, "", "", 3) }
        };
        note_ranges(&table, vec![with(5)]);
        note_ranges(&table, vec![with(4)]);
        assert_eq!(table.descriptor(RegionId(2)).unwrap().epoch.conf_version, 5);
    }

    #[tokio::test(start_paused = true)]
    async fn leaders_of_several_regions_are_waited_for_until_all_are_known_or_too_late() {
        let regions = [region(2, "", "m", 1), region(3, "m", "", 1)];
        let table = RoutingTable::new(regions.to_vec());
        let soon = || Instant::now() + Duration::from_secs(1);
        let led = |id| RoleChange {
            region: RegionId(id),
            term: Term(6),
            leader: Some(Peer::default()),
            is_leader: true,
        };
        assert!(table.await_leaders(&[], soon()).await);
        table.note(led(3));
        assert!(table.await_leaders(&regions[1..], soon()).await);
        assert!(!table.await_leaders(&regions, soon()).await);
        let waits = table.await_leaders(&regions, soon());
        assert!(tokio::join!(waits, async { table.note(led(2)) }).0);
        table.end(RegionId(2));
        assert!(table.await_leaders(&regions, soon()).await, "one that has ended is left out");
    }

    #[tokio::test(start_paused = true)]
    async fn a_version_is_waited_for_until_it_is_there_or_too_late() {
        let table = RoutingTable::new(vec![region(3, "", "", 1)]);
        let soon = || Instant::now() + Duration::from_secs(1);
        assert!(table.await_version(RegionId(3), 1, soon()).await);
        assert!(!table.await_version(RegionId(3), 2, soon()).await);
        let waits = table.await_version(RegionId(3), 2, soon());
        let splits =
            async { note_ranges(&table, vec![region(9, "", "r", 2), region(3, "r", "", 2)]) };
        assert!(tokio::join!(waits, splits).0);
    }
}
