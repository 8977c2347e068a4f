//! Load balance: regions are not equally hot, so stores that lead as many take unequal loads. Two
//! stores exchange the leads of two regions, or the one that leads one more gives it to the other
//! (`docs/decisions/0064`).
//!
//! The counts of leaders come first: an exchange leaves them within one of each other. It makes the
//! difference of the two loads less by a quarter at least, so a sequence of exchanges ends; and the
//! two stores rest behind it, until both have told their new loads.

use std::collections::BTreeSet;

use super::leader_counts::{LeaderCounts, LeaderStep};
use crate::cluster_view::ClusterView;
use crate::route_table::ReplicaInfo;

/// How many of the stores with the most load are looked at.
const HOT_STORES: usize = 3;

/// The figures of one look that an exchange is chosen by.
pub(super) struct LoadBalance<'a> {
    pub(super) view: &'a ClusterView,
    /// The leads, and where they may go.
    pub(super) leads: &'a LeaderCounts<'a>,
    /// The difference that is worth an exchange. Requests in a second.
    pub(super) apart_min: u64,
}

/// A region that one of two stores leads and the other may.
struct Lead {
    load: u64,
    region: u64,
    to: ReplicaInfo,
}

impl LoadBalance<'_> {
    /// The steps that even out the loads of one of the stores with the most and of one with little,
    /// the least first. None if no two are far enough apart, or nothing brings them nearer. Stores
    /// of `resting` are left out.
    pub(super) fn steps(&self, resting: &BTreeSet<u64>) -> Vec<LeaderStep> {
        let takes_part =
            |store: &u64| self.leads.counts.contains_key(store) && !resting.contains(store);
        let loads = self.view.store_loads().into_iter().filter(|(store, _)| takes_part(store));
        let mut by_load: Vec<(u64, u64)> = loads.map(|(store, load)| (load, store)).collect();
        by_load.sort_unstable();
        // Most loaded first: what is hot for itself may be all that one of them has.
        let hot = by_load.iter().rev().take(HOT_STORES);
        let pairs = hot.flat_map(|from| by_load.iter().map(move |to| (*from, *to)));
        let far = pairs.filter(|((most, _), (least, _))| {
            most.saturating_sub(*least) >= self.apart_min && 4 * most > 5 * least
        });
        let mut steps = far.map(|((most, from), (least, to))| self.between(from, to, most - least));
        steps.find_map(|steps| steps).unwrap_or_default()
    }

    /// The exchange between two stores, `apart` by load, that brings them nearest.
    fn between(&self, from: u64, to: u64, apart: u64) -> Option<Vec<LeaderStep>> {
        let given = self.leads_between(from, to);
        let mut taken: Vec<Option<Lead>> =
            self.leads_between(to, from).into_iter().map(Some).collect();
        taken.sort_by_key(|lead| lead.as_ref().map(|lead| lead.load));
        let count = |store| self.leads.counts.get(&store).copied().unwrap_or(0);
        if count(from) > count(to) {
            // Nothing in return.
            taken.insert(0, None);
        }
        let load = |lead: &Option<Lead>| lead.as_ref().map_or(0, |lead| lead.load);
        let mut best: Option<(u64, &Lead, &Option<Lead>)> = None;
        for lead in &given {
            // The lead that should come back: half of the difference is to go.
            let ideal = lead.load.saturating_sub(apart / 2);
            let at = taken.partition_point(|other| load(other) < ideal);
            for other in &taken[at.saturating_sub(1)..taken.len().min(at + 1)] {
                let moved = lead.load.saturating_sub(load(other));
                let left = apart.abs_diff(2 * moved);
                if best.as_ref().is_none_or(|(least, ..)| left < *least) {
                    best = Some((left, lead, other));
                }
            }
        }
        let (_, lead, other) = best.filter(|(left, ..)| 4 * *left <= 3 * apart)?;
        let step = |from_store| {
            move |lead: &Lead| LeaderStep { region: lead.region, from_store, to: lead.to }
        };
        Some(std::iter::once(lead).map(step(from)).chain(other.iter().map(step(to))).collect())
    }

    /// The leads of `from` that could be at `to`.
    fn leads_between(&self, from: u64, to: u64) -> Vec<Lead> {
        let movable = self.leads.movable.get(&from).into_iter().flatten();
        let leads = movable.filter_map(|(region, replicas)| {
            let to = *replicas.iter().find(|replica| replica.store == to)?;
            Some(Lead { load: self.view.load(*region), region: *region, to })
        });
        leads.collect()
    }
}
