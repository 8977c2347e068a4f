//! The routing table of a node: the key ranges of its regions, and their leaders.
//!
//! It is a hint for callers, not the truth: the region itself checks leader and epoch again. The
//! shards write it, the services read it.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use flotilla_region::{Descriptor, Peer, RegionId, RoleChange, Space, Term};
use parking_lot::RwLock;
use tokio::sync::{broadcast, watch};

/// Role changes that a slow listener may lag behind before it has to read everything anew.
const CHANGES_KEPT: usize = 4096;

/// The leadership of a region, as far as this node knows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Leadership {
    /// The term in which that is so.
    pub term: Term,
    /// The leader; `None` while there is none, or none is known.
    pub leader: Option<Peer>,
}

/// Regions by key and by id, and their leaders.
pub(crate) struct RoutingTable {
    table: RwLock<RouteMaps>,
    changes: broadcast::Sender<RoleChange>,
}

#[derive(Default)]
struct RouteMaps {
    by_key: BTreeMap<(u8, Bytes), RegionId>,
    by_id: BTreeMap<RegionId, RegionEntry>,
}

struct RegionEntry {
    descriptor: Descriptor,
    leadership: watch::Sender<Leadership>,
}

impl RoutingTable {
    /// Routes to `descriptors`, without leaders yet.
    pub(crate) fn new(descriptors: Vec<Descriptor>) -> Self {
        let mut table = RouteMaps::default();
        descriptors.into_iter().for_each(|descriptor| table.put(descriptor));
        Self { table: RwLock::new(table), changes: broadcast::Sender::new(CHANGES_KEPT) }
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

    /// How many regions there are, and those of them whose leader is not known, by id.
    pub(crate) fn leaderless(&self) -> (usize, Vec<RegionId>) {
        let table = self.table.read();
        let without = |route: &RegionEntry| route.leadership.borrow().leader.is_none();
        let ids = table.by_id.iter().filter(|(_, route)| without(route)).map(|(id, _)| *id);
        (table.by_id.len(), ids.collect())
    }

    /// Every change of roles from now on.
    pub(crate) fn changes(&self) -> broadcast::Receiver<RoleChange> {
        self.changes.subscribe()
    }

    /// Records a region whose range is new.
    pub(crate) fn note_range(&self, descriptor: Descriptor) {
        self.table.write().put(descriptor);
    }

    /// Records a change of roles and wakes the tasks that wait for it.
    pub(crate) fn note(&self, change: RoleChange) {
        if let Some(route) = self.table.read().by_id.get(&change.region) {
            let now = Leadership { term: change.term, leader: change.leader };
            route.leadership.send_replace(now);
        }
        // An error means that there is no listener.
        let _ = self.changes.send(change);
    }
}

impl RouteMaps {
    fn put(&mut self, descriptor: Descriptor) {
        let id = descriptor.id;
        let start = |of: &Descriptor| (space_order(of.space), of.start.clone());
        let leadership = match self.by_id.remove(&id) {
            None => watch::Sender::new(Leadership::default()),
            Some(before) => {
                let old = start(&before.descriptor);
                // A region that was split off may have taken the place.
                if self.by_key.get(&old) == Some(&id) {
                    self.by_key.remove(&old);
                }
                before.leadership
            }
        };
        self.by_key.insert(start(&descriptor), id);
        self.by_id.insert(id, RegionEntry { descriptor, leadership });
    }
}

/// Keeps the two spaces apart in one map.
fn space_order(space: Space) -> u8 {
    match space {
        Space::System => 0,
        Space::Raw => 1,
    }
}
