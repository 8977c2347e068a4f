//! Scatter: the leaders of regions that a client names are spread over the stores of their
//! replicas, as before a bulk load.

use std::collections::{BTreeMap, BTreeSet};

use super::{LastStep, LeaderBalance, LeaderStep};
use crate::cluster_view::{ClusterView, LeaderStatus};
use crate::route_table::{ReplicaInfo, ReplicaRole};

/// The outcome of a scatter.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LeaderScatter {
    /// The transfers to be made now.
    pub steps: Vec<LeaderStep>,
    /// The regions that cannot be moved now, each once: placement does not know them, they have
    /// no leader, or their replicas are being changed.
    pub failed: Vec<u64>,
}

/// How far the last transfer is that balance or a scatter has asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LeaderStepState {
    /// It goes on.
    UnderWay,
    /// Its region is led from where it should be.
    Done,
    /// It came to nothing in time.
    Late,
}

impl LeaderBalance {
    /// The transfers that spread the leaders of `regions`: each goes to the store that leads the
    /// fewest of those before it, and stays where it is if that is as good. A step under way
    /// stands. Balance of all leaders goes on, and may move other regions for these.
    pub fn scatter(&mut self, now_ms: u64, view: &ClusterView, regions: &[u64]) -> LeaderScatter {
        let (mut led, mut seen) = (BTreeMap::new(), BTreeSet::new());
        let mut scatter = LeaderScatter::default();
        for &region in regions.iter().filter(|region| seen.insert(**region)) {
            let Some((leader, replicas)) = self.led_by(now_ms, view, region) else {
                scatter.failed.push(region);
                continue;
            };
            let under_way = self.steps.get(&region).filter(|last| self.goes_on(now_ms, last));
            if let Some(last) = under_way {
                *led.entry(last.step.to.store).or_insert(0) += 1;
                continue;
            }
            let rank = |at: &&ReplicaInfo| {
                (led.get(&at.store).copied().unwrap_or(0), at.store != leader, at.store)
            };
            let able = |at: &&ReplicaInfo| view.may_lead(now_ms, at.store);
            let Some(&to) = replicas.iter().filter(able).min_by_key(rank) else {
                scatter.failed.push(region);
                continue;
            };
            *led.entry(to.store).or_insert(0) += 1;
            if to.store != leader {
                let step = LeaderStep { region, from_store: leader, to };
                self.steps.insert(region, LastStep { at_ms: now_ms, step, is_done: false });
                scatter.steps.push(step);
            }
        }
        scatter
    }

    /// How far the last transfer of `region` is, if there was one within the time that it rests.
    #[must_use]
    pub fn step_state(
        &self,
        now_ms: u64,
        view: &ClusterView,
        region: u64,
    ) -> Option<LeaderStepState> {
        let last = self.steps.get(&region)?;
        let leader = view.region(now_ms, region).and_then(|route| route.leader);
        Some(match leader {
            Some(leader) if leader.store == last.step.to.store => LeaderStepState::Done,
            _ if self.goes_on(now_ms, last) => LeaderStepState::UnderWay,
            _ => LeaderStepState::Late,
        })
    }

    /// The store that leads a region, and its voters, if it can be moved.
    fn led_by<'a>(
        &self,
        now_ms: u64,
        view: &'a ClusterView,
        region: u64,
    ) -> Option<(u64, &'a [ReplicaInfo])> {
        let route = view.region(now_ms, region)?;
        let leader = route.leader.filter(|_| route.leader_status == LeaderStatus::Fresh)?;
        let replicas = &route.region.replicas[..];
        let all_vote = replicas.iter().all(|at| at.role == ReplicaRole::Voter);
        (all_vote && !self.busy.contains(&region)).then_some((leader.store, replicas))
    }

    fn goes_on(&self, now_ms: u64, last: &LastStep) -> bool {
        !last.is_done && now_ms.saturating_sub(last.at_ms) < self.limits.step_ms
    }
}
