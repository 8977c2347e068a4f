//! Leader balance: transfers of leadership that even out how many regions each store leads.
//!
//! A step moves the lead of one region to another of its stores. Steps are chosen along a path of
//! stores from one that leads too many to one that leads at least two fewer, so the counts come
//! within one of each other whenever the places of the replicas allow it, and no step is undone.
//! A step under way counts as done until it is late; then it counts as not made, and its region
//! rests. The region of placement itself counts where it is led, and is not moved for balance: each
//! move of it would be a change of the leader of placement.
//!
//! Once the counts are even, stores whose loads are far apart exchange leads (`load_balance`).
//!
//! A store that is drained or leaves gives up all that it leads, each region to the store of its
//! voters that leads least; that of placement last of all.
//!
//! Nothing is moved for balance before the view is complete for a while: after a start leaders come
//! and go, and stores that have not reported seem to lead nothing. A store is drained without that:
//! a region without a leader must not keep the others where they are.

mod load_balance;
mod scatter;

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use crate::cluster_view::{ClusterView, LeaderStatus};
use crate::route_table::{ReplicaInfo, ReplicaRole};

use load_balance::LoadBalance;

pub use scatter::{LeaderScatter, LeaderStepState};

/// Bounds of leader balance.
#[derive(Clone, Copy, Debug)]
pub struct LeaderBalanceLimits {
    /// How long the view must be complete before anything is moved for balance. Milliseconds.
    pub settle_ms: u64,
    /// A step that was not seen done by then counts as failed. Milliseconds.
    pub step_ms: u64,
    /// No second step for a region within this time. Milliseconds, at least `step_ms`.
    pub rest_ms: u64,
    /// Steps under way from one store, and to one.
    pub under_way_max: usize,
    /// The same for stores that are drained.
    pub drained_max: usize,
    /// Loads of two stores that differ by less are left as they are. Requests in a second.
    pub load_apart_min: u64,
}

impl Default for LeaderBalanceLimits {
    fn default() -> Self {
        Self {
            settle_ms: 3_000,
            step_ms: 3_000,
            rest_ms: 10_000,
            under_way_max: 4,
            drained_max: 16,
            load_apart_min: 500,
        }
    }
}

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

/// The state of leader balance in one term of placement.
#[derive(Clone, Debug)]
pub struct LeaderBalance {
    limits: LeaderBalanceLimits,
    /// Since when the term has lasted, as far as it is known here.
    since_ms: Option<u64>,
    /// Since when the view has been complete.
    complete_since_ms: Option<u64>,
    /// The last step of each region, for as long as the region rests.
    steps: BTreeMap<u64, LastStep>,
    /// Regions that are not to be moved, for others move them.
    busy: BTreeSet<u64>,
}

#[derive(Clone, Copy, Debug)]
struct LastStep {
    at_ms: u64,
    step: LeaderStep,
    is_done: bool,
}

/// The leaders of each store, with the steps under way counted as done.
struct LeaderCounts<'a> {
    /// How many regions each store leads that can lead more, or fewer.
    counts: BTreeMap<u64, usize>,
    /// The regions that may be moved, by the store that leads them.
    movable: BTreeMap<u64, Vec<(u64, &'a [ReplicaInfo])>>,
    outgoing: BTreeMap<u64, usize>,
    incoming: BTreeMap<u64, usize>,
    /// The view has no hole, and each region a leader.
    is_complete: bool,
}

impl LeaderBalance {
    /// Balance in a term that begins.
    #[must_use]
    pub fn new(limits: LeaderBalanceLimits) -> Self {
        Self {
            limits,
            since_ms: None,
            complete_since_ms: None,
            steps: BTreeMap::new(),
            busy: BTreeSet::new(),
        }
    }

    /// Names the regions that count where they are led, and are not moved: their replicas change.
    pub fn set_busy(&mut self, busy: BTreeSet<u64>) {
        self.busy = busy;
    }

    /// The steps to be taken now. `here` is the store that leads the region of placement. Linear in
    /// the number of regions.
    pub fn propose(&mut self, now_ms: u64, view: &ClusterView, here: u64) -> Vec<LeaderStep> {
        let mut leads = self.look(now_ms, view, here);
        let since_ms = *self.since_ms.get_or_insert(now_ms);
        let drained = view.stores().map(|store| store.id).filter(|store| view.is_drained(*store));
        let mut proposed = leads.drain(drained, self.limits.drained_max);
        if now_ms.saturating_sub(since_ms) >= self.limits.settle_ms {
            proposed.extend(self.hand_over_placement(view, here, &mut leads));
        }
        for step in &proposed {
            self.steps.insert(step.region, LastStep { at_ms: now_ms, step: *step, is_done: false });
        }
        if !leads.is_complete {
            self.complete_since_ms = None;
            return proposed;
        }
        let complete_since_ms = *self.complete_since_ms.get_or_insert(now_ms);
        if now_ms.saturating_sub(complete_since_ms) < self.limits.settle_ms {
            return proposed;
        }
        while let Some(path) = leads.path(self.limits.under_way_max) {
            for step in path {
                self.steps.insert(step.region, LastStep { at_ms: now_ms, step, is_done: false });
                proposed.push(step);
            }
        }
        if proposed.is_empty() {
            proposed = self.exchange(now_ms, view, &leads);
        }
        proposed
    }

    /// Steps for even loads. Stores of which a step is known rest: they may not have told the loads
    /// that they have behind it.
    fn exchange(
        &mut self,
        now_ms: u64,
        view: &ClusterView,
        leads: &LeaderCounts<'_>,
    ) -> Vec<LeaderStep> {
        let ends = |last: &LastStep| [last.step.from_store, last.step.to.store];
        let resting: BTreeSet<u64> = self.steps.values().flat_map(ends).collect();
        let exchange = LoadBalance { view, leads, apart_min: self.limits.load_apart_min };
        let steps = exchange.steps(&resting);
        for &step in &steps {
            self.steps.insert(step.region, LastStep { at_ms: now_ms, step, is_done: false });
        }
        steps
    }

    /// The step of the region of placement away from a store that is drained, once all others that
    /// could be moved are.
    fn hand_over_placement(
        &self,
        view: &ClusterView,
        here: u64,
        leads: &mut LeaderCounts<'_>,
    ) -> Option<LeaderStep> {
        let system = view.system().filter(|_| view.is_drained(here))?;
        let is_last = !leads.outgoing.contains_key(&here);
        let is_still = !self.busy.contains(&system.id) && !self.steps.contains_key(&system.id);
        if !is_last || !is_still || !all_vote(&system.replicas) {
            return None;
        }
        leads.successor(system.id, here, &system.replicas, self.limits.drained_max)
    }

    /// How many steps are under way.
    #[must_use]
    pub fn under_way(&self) -> usize {
        self.steps.values().filter(|last| !last.is_done).count()
    }

    /// Counts the leaders.
    fn look<'a>(&mut self, now_ms: u64, view: &'a ClusterView, here: u64) -> LeaderCounts<'a> {
        let LeaderBalanceLimits { rest_ms, step_ms, .. } = self.limits;
        self.steps.retain(|_, last| now_ms.saturating_sub(last.at_ms) < rest_ms);
        let able = view.stores().map(|store| store.id).filter(|id| view.may_lead(now_ms, *id));
        let mut leads = LeaderCounts {
            counts: able.map(|id| (id, 0)).collect(),
            movable: BTreeMap::new(),
            outgoing: BTreeMap::new(),
            incoming: BTreeMap::new(),
            is_complete: view.first_hole().is_none(),
        };
        leads.count(here);
        for route in view.scan(now_ms, b"", b"") {
            let leader = route.leader.filter(|_| route.leader_status == LeaderStatus::Fresh);
            let last = self.steps.get_mut(&route.region.id);
            let is_late = |last: &LastStep| now_ms.saturating_sub(last.at_ms) >= step_ms;
            match last {
                Some(last) if !last.is_done && !is_late(last) => {
                    if leader.is_some_and(|leader| leader.store == last.step.to.store) {
                        last.is_done = true;
                    } else {
                        leads.count_step(&last.step);
                    }
                    leads.count(last.step.to.store);
                }
                Some(last) => {
                    last.is_done = true;
                    leads.count_led(leader);
                }
                None => {
                    let (region, replicas) = (route.region.id, &route.region.replicas[..]);
                    let Some(store) = leads.count_led(leader) else { continue };
                    if self.busy.contains(&region) || !all_vote(replicas) {
                        continue;
                    }
                    leads.movable.entry(store).or_default().push((region, replicas));
                }
            }
        }
        leads
    }
}

impl LeaderCounts<'_> {
    fn count(&mut self, store: u64) {
        if let Some(count) = self.counts.get_mut(&store) {
            *count += 1;
        }
    }

    /// Counts a region where it is led; the store.
    fn count_led(&mut self, leader: Option<ReplicaInfo>) -> Option<u64> {
        let Some(ReplicaInfo { store, .. }) = leader else {
            self.is_complete = false;
            return None;
        };
        self.count(store);
        Some(store)
    }

    fn count_step(&mut self, step: &LeaderStep) {
        *self.outgoing.entry(step.from_store).or_default() += 1;
        *self.incoming.entry(step.to.store).or_default() += 1;
    }

    /// Takes the leaders of `drained`, as far as `under_way_max` allows.
    fn drain(
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
    fn successor(
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
    fn path(&mut self, under_way_max: usize) -> Option<Vec<LeaderStep>> {
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
fn all_vote(replicas: &[ReplicaInfo]) -> bool {
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

#[cfg(test)]
mod tests;
