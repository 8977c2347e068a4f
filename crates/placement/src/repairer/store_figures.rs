//! The stores as repair sees them at one moment: which can take replicas, how many each has, and
//! how much data is on its way to and from it. Operators under way count as carried out.

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster_view::ClusterView;
use crate::route_table::RegionInfo;

/// All stores.
pub(super) struct StoreFigures {
    stores: BTreeMap<u64, StoreFigure>,
}

/// One store.
pub(super) struct StoreFigure {
    zone: String,
    /// It can get replicas now.
    pub(super) is_target: bool,
    /// It can lead regions now.
    can_lead: bool,
    /// Its replicas are moved away, at its operator's word.
    pub(super) is_leaving: bool,
    /// It will not come back, or has been silent for so long that this is to be expected.
    pub(super) is_gone: bool,
    /// It will not come back.
    is_lost: bool,
    /// Replicas of regions.
    pub(super) replicas: usize,
    incoming: usize,
    outgoing: usize,
    /// Regions whose data goes to another store so that this one is emptied, whoever sends it.
    emptying: usize,
}

impl StoreFigures {
    /// The stores of `view` without replicas. `down` are those that have been silent for long.
    pub(super) fn new(now_ms: u64, view: &ClusterView, down: &BTreeSet<u64>) -> Self {
        let stores = view.stores().map(|store| {
            let standing = &store.standing;
            let is_gone = standing.is_lost || down.contains(&store.id);
            let is_able = !standing.is_leaving && !standing.is_draining && !is_gone;
            let is_here = is_able && !store.is_stopping && view.is_live(now_ms, store.id);
            let figure = StoreFigure {
                zone: standing.zone.clone(),
                is_target: is_here && !store.is_almost_full,
                can_lead: is_here && !store.is_full,
                is_leaving: standing.is_leaving,
                is_gone,
                is_lost: standing.is_lost,
                replicas: 0,
                incoming: 0,
                outgoing: 0,
                emptying: 0,
            };
            (store.id, figure)
        });
        Self { stores: stores.collect() }
    }

    /// Counts a region. `wanted` are the stores that an operator brings it to, if there is one.
    pub(super) fn count(&mut self, region: &RegionInfo, wanted: Option<&BTreeSet<u64>>) {
        let held = || region.replicas.iter().map(|replica| replica.store);
        let stores: BTreeSet<u64> = wanted.map_or_else(|| held().collect(), Clone::clone);
        for store in stores {
            if let Some(figure) = self.stores.get_mut(&store) {
                figure.replicas += 1;
            }
        }
    }

    /// Counts replicas as moved.
    pub(super) fn move_replicas(&mut self, held: &BTreeSet<u64>, wanted: &BTreeSet<u64>) {
        for store in held.difference(wanted) {
            if let Some(figure) = self.stores.get_mut(store) {
                figure.replicas -= 1;
            }
        }
        for store in wanted.difference(held) {
            if let Some(figure) = self.stores.get_mut(store) {
                figure.replicas += 1;
            }
        }
    }

    /// Counts the data that goes from the leader to each of `wanted` that does not vote yet, and
    /// for each store that is emptied by that.
    pub(super) fn count_snapshots(
        &mut self,
        region: &RegionInfo,
        leader: u64,
        wanted: &BTreeSet<u64>,
    ) {
        let held = region.voting_stores();
        if !wanted.is_subset(&held) {
            for store in held.difference(wanted) {
                if let Some(figure) = self.stores.get_mut(store) {
                    figure.emptying += 1;
                }
            }
        }
        for store in wanted.difference(&held) {
            for (id, is_receiver) in [(*store, true), (leader, false)] {
                let Some(figure) = self.stores.get_mut(&id) else { continue };
                let count = if is_receiver { &mut figure.incoming } else { &mut figure.outgoing };
                *count += 1;
            }
        }
    }

    /// Whether the data of `wanted` stays below `snapshots_max` for each store and direction, and
    /// for each store that leaves: there is no hurry for it, and all others would send at once.
    pub(super) fn has_room(
        &self,
        region: &RegionInfo,
        leader: u64,
        wanted: &BTreeSet<u64>,
        snapshots_max: usize,
    ) -> bool {
        let held = region.voting_stores();
        let mut new = wanted.difference(&held).peekable();
        if new.peek().is_none() {
            return true;
        }
        // Both of two that come at once: the second begins when the first is there, mostly.
        let outgoing = self.stores.get(&leader).map_or(0, |figure| figure.outgoing);
        let has_room =
            |store| self.stores.get(store).is_none_or(|figure| figure.incoming < snapshots_max);
        let is_full = |figure: &StoreFigure| figure.is_leaving && figure.emptying >= snapshots_max;
        let mut emptied = held.difference(wanted).filter_map(|store| self.stores.get(store));
        outgoing < snapshots_max && new.all(has_room) && !emptied.any(is_full)
    }

    pub(super) fn get(&self, store: u64) -> Option<&StoreFigure> {
        self.stores.get(&store)
    }

    /// The stores with their figures, by id.
    pub(super) fn iter(&self) -> impl Iterator<Item = (u64, &StoreFigure)> {
        self.stores.iter().map(|(id, figure)| (*id, figure))
    }

    /// A store that is to keep its replicas.
    pub(super) fn is_sound(&self, store: u64) -> bool {
        self.get(store).is_some_and(|figure| !figure.is_gone && !figure.is_leaving)
    }

    /// How many stores can be counted on.
    pub(super) fn sound_count(&self) -> usize {
        self.stores.keys().filter(|store| self.is_sound(**store)).count()
    }

    /// How many stores are neither to be emptied nor lost. Those that are down count: they may come
    /// back.
    pub(super) fn staying_count(&self) -> usize {
        self.stores.values().filter(|figure| !figure.is_leaving && !figure.is_lost).count()
    }

    /// How many of `others` are in the zone of `store`.
    pub(super) fn clashes(&self, store: u64, others: &BTreeSet<u64>) -> usize {
        let zone = |store| self.get(store).map(|figure| figure.zone.as_str());
        // A store without a label is a zone of its own.
        let Some(mine) = zone(store).filter(|zone| !zone.is_empty()) else { return 0 };
        others.iter().filter(|other| **other != store && zone(**other) == Some(mine)).count()
    }

    /// The stores that can lead.
    pub(super) fn able(&self) -> BTreeSet<u64> {
        self.iter().filter(|(_, figure)| figure.can_lead).map(|(id, _)| id).collect()
    }
}
