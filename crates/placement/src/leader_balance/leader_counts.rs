//! The leaders that each store has, and the transfers that bring their counts nearer.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::route_table::{ReplicaInfo, ReplicaRole};

/// A transfer of leadership that placement asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderStep {
    /// The region.
    pub region: u64,
    /// The store that leads it.
    pub from_store: u64,
    /// The replica that should lead it.
    pub to: ReplicaInfo,
}

/// The leaders of each store, with the steps under way counted as done.
pub(super) struct LeaderCounts<'a> {
    /// How many regions each store leads that can lead more, or fewer.
    pub(super) counts: BTreeMap<u64, usize>,
    /// The regions that may be moved, by the store that leads them.
    pub(super) movable: BTreeMap<u64, Vec<(u64, &'a [ReplicaInfo])>>,
    pub(super) outgoing: BTreeMap<u64, usize>,
    pub(super) incoming: BTreeMap<u64, usize>,
    /// The view has no hole, and each region a leader.
    pub(super) is_complete: bool,
}

impl LeaderCounts<'_> {
    pub(super) fn count(&mut self, store: u64) {
        if let Some(count) = self.counts.get_mut(&store) {
            *count += 1;
        }
    }

    /// Counts a region where it is led; the store.
    pub(super) fn count_led(&mut self, leader: Option<ReplicaInfo>) -> Option<u64> {
        let Some(ReplicaInfo { store, .. }) = leader else {
            self.is_complete = false;
            return None;
        };
        self.count(store);
        Some(store)
    }

    pub(super) fn count_step(&mut self, step: &LeaderStep) {
        *self.outgoing.entry(step.from_store).or_default() += 1;
        *self.incoming.entry(step.to.store).or_default() += 1;
    }

    /// Takes the leaders of `drained`, as far as `under_way_max` allows.
    pub(super) fn drain(
        &mut self,
        drained: impl Iterator<Item = u64>,
        under_way_max: usize,
    ) -> Vec<LeaderStep> {
        let mut steps = vec![];
        for from in drained {
            for (region, replicas) in self.movable.get(&from).cloned().unwrap_or_default() {
                steps.extend(self.successor(region, from, replicas, under_way_max));
            }
        }
        steps
    }

    /// Has a region led by the store that leads least of those that can, and counts that.
    pub(super) fn successor(
        &mut self,
        region: u64,
        from_store: u64,
        replicas: &[ReplicaInfo],
        under_way_max: usize,
    ) -> Option<LeaderStep> {
        let under_way =
            |of: &BTreeMap<u64, usize>, store: u64| of.get(&store).copied().unwrap_or(0);
        if under_way(&self.outgoing, from_store) >= under_way_max {
            return None;
        }
        let can_lead = |at: &&ReplicaInfo| {
            self.counts.contains_key(&at.store)
                && under_way(&self.incoming, at.store) < under_way_max
        };
        let able = replicas.iter().filter(can_lead);
        let to = *able.min_by_key(|at| (self.counts[&at.store], at.store))?;
        let step = LeaderStep { region, from_store, to };
        self.count(to.store);
        self.count_step(&step);
        Some(step)
    }

    /// Takes the shortest path by which the counts come nearer, beginning at the store that leads
    /// the most.
    pub(super) fn path(&mut self, under_way_max: usize) -> Option<Vec<LeaderStep>> {
        let mut from: Vec<(usize, u64)> =
            self.counts.iter().map(|(store, count)| (*count, *store)).collect();
        from.sort_unstable_by_key(|(count, store)| (std::cmp::Reverse(*count), *store));
        let least = from.last()?.0;
        let path = from
            .into_iter()
            .take_while(|(count, _)| *count >= least + 2)
            .find_map(|(count, store)| self.path_from(store, count, under_way_max))?;
        let (first, last) = (path.first()?.from_store, path.last()?.to.store);
        *self.counts.get_mut(&first).expect("it was counted") -= 1;
        *self.counts.get_mut(&last).expect("only such are on a path") += 1;
        for step in &path {
            self.count_step(step);
            if let Some(movable) = self.movable.get_mut(&step.from_store) {
                movable.retain(|(region, _)| *region != step.region);
            }
        }
        Some(path)
    }

    /// Breadth first over the stores: an edge is a region that one leads and the other may.
    fn path_from(&self, start: u64, count: usize, under_way_max: usize) -> Option<Vec<LeaderStep>> {
        let has_room = |of: &BTreeMap<u64, usize>, store: u64| {
            of.get(&store).copied().unwrap_or(0) < under_way_max
        };
        let mut reached_by: BTreeMap<u64, LeaderStep> = BTreeMap::new();
        let mut seen = BTreeSet::from([start]);
        let mut queue = VecDeque::from([start]);
        while let Some(from_store) = queue.pop_front() {
            if !has_room(&self.outgoing, from_store) {
                continue;
            }
            let movable = self.movable.get(&from_store).into_iter().flatten();
            let edges = movable.flat_map(|(region, to)| to.iter().map(move |to| (*region, *to)));
            // Among the stores that are as near, first the one that leads least.
            let mut next: BTreeMap<(usize, u64), LeaderStep> = BTreeMap::new();
            for (region, to) in edges {
                let Some(&leads) = self.counts.get(&to.store) else { continue };
                if !seen.contains(&to.store) && has_room(&self.incoming, to.store) {
                    let step = LeaderStep { region, from_store, to };
                    next.entry((leads, to.store)).or_insert(step);
                }
            }
            for ((leads, store), step) in next {
                seen.insert(store);
                reached_by.insert(store, step);
                if leads + 2 <= count {
                    return Some(trace_back(&reached_by, start, store));
                }
                queue.push_back(store);
            }
        }
        None
    }
}

/// Whether all replicas can lead: a learner cannot, and a joint configuration is left first.
pub(super) fn all_vote(replicas: &[ReplicaInfo]) -> bool {
    replicas.iter().all(|at| at.role == ReplicaRole::Voter)
}

/// The steps that lead from `start` to `store`.
fn trace_back(
    reached_by: &BTreeMap<u64, LeaderStep>,
    start: u64,
    mut store: u64,
) -> Vec<LeaderStep> {
    let mut path = vec![];
    while store != start {
        let step = reached_by[&store];
        path.push(step);
        store = step.from_store;
    }
    path.reverse();
    path
}
