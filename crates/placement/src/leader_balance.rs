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

mod leader_counts;
mod load_balance;
mod scatter;

use std::collections::{BTreeMap, BTreeSet};

use crate::cluster_view::{ClusterView, LeaderStatus};

use leader_counts::{LeaderCounts, all_vote};
use load_balance::LoadBalance;

pub use leader_counts::LeaderStep;
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

#[cfg(test)]
mod tests;
