//! Leader balance of a term: looks now and then, and keeps its steps until their stores report.

use std::collections::BTreeSet;

use flotilla_placement::{
    ClusterView, LeaderBalance, LeaderBalanceLimits, LeaderStep, LeaderStepState,
};

/// Between two looks at all regions. Milliseconds.
const LOOK_MS: u64 = 300;
/// A step that its store did not fetch by then is dropped: others may have come between.
const KEPT_MS: u64 = 1_000;

/// The balance of one term, and its steps.
pub(super) struct LeaderBalancer {
    balance: LeaderBalance,
    looked_ms: Option<u64>,
    /// Steps that no store has fetched, and since when they wait.
    waiting: Vec<(u64, LeaderStep)>,
}

impl LeaderBalancer {
    pub(super) fn new(limits: LeaderBalanceLimits) -> Self {
        Self { balance: LeaderBalance::new(limits), looked_ms: None, waiting: vec![] }
    }

    /// Regions that are not to be moved.
    pub(super) fn set_busy(&mut self, busy: BTreeSet<u64>) {
        self.balance.set_busy(busy);
    }

    /// Has the leaders of `regions` spread; returns those that cannot be moved now.
    pub(super) fn scatter(&mut self, now_ms: u64, view: &ClusterView, regions: &[u64]) -> Vec<u64> {
        let scatter = self.balance.scatter(now_ms, view, regions);
        self.waiting.extend(scatter.steps.into_iter().map(|step| (now_ms, step)));
        scatter.failed
    }

    /// How far the last transfer of a region is.
    pub(super) fn state(
        &self,
        now_ms: u64,
        view: &ClusterView,
        region: u64,
    ) -> Option<LeaderStepState> {
        self.balance.step_state(now_ms, view, region)
    }

    /// The steps for `store`, of which each is given once. `here` leads the system region.
    pub(super) fn steps(
        &mut self,
        now_ms: u64,
        view: &ClusterView,
        here: u64,
        store: u64,
    ) -> Vec<LeaderStep> {
        if self.looked_ms.is_none_or(|looked_ms| now_ms.saturating_sub(looked_ms) >= LOOK_MS) {
            self.looked_ms = Some(now_ms);
            let steps = self.balance.propose(now_ms, view, here);
            self.waiting.extend(steps.into_iter().map(|step| (now_ms, step)));
        }
        self.waiting.retain(|(since_ms, _)| now_ms.saturating_sub(*since_ms) < KEPT_MS);
        let of_store = |(_, step): &mut (u64, LeaderStep)| step.from_store == store;
        self.waiting.extract_if(.., of_store).map(|(_, step)| step).collect()
    }
}

#[cfg(test)]
mod tests {
    use flotilla_placement::{Config, RegionHeartbeat, RegionInfo, ReplicaInfo, StoreInfo};

    use super::*;

    /// Store 1 leads all of four regions.
    fn view(now_ms: u64) -> ClusterView {
        let stores = (1..=2).map(|id| StoreInfo { id, ..StoreInfo::default() });
        let mut view = ClusterView::new(Config::default(), stores);
        let replica = |region, store| ReplicaInfo {
            id: region * 100 + store,
            store,
            role: flotilla_placement::ReplicaRole::Voter,
        };
        let keys: [&[u8]; 5] = [b"", b"b", b"c", b"d", b""];
        let heartbeats: Vec<_> = (2..6)
            .zip(keys.windows(2))
            .map(|(id, ends)| RegionHeartbeat {
                region: RegionInfo {
                    id,
                    start: ends[0].to_vec(),
                    end: ends[1].to_vec(),
                    conf_version: 1,
                    version: 1,
                    replicas: (1..=2).map(|store| replica(id, store)).collect(),
                },
                term: 6,
                leader: Some(replica(id, 1)),
            })
            .collect();
        view.observe(now_ms, 1, &heartbeats, true);
        view.observe(now_ms, 2, &[], true);
        view
    }

    #[test]
    fn each_step_is_given_once_to_the_store_that_leads_and_not_for_long() {
        let limits = LeaderBalanceLimits { settle_ms: 0, ..LeaderBalanceLimits::default() };
        let mut balancer = LeaderBalancer::new(limits);
        assert_eq!(balancer.steps(0, &view(0), 1, 2), []);
        // With the system region store 1 leads five of five.
        let steps = balancer.steps(10, &view(10), 1, 1);
        assert_eq!(steps.len(), 2);
        assert!(steps.iter().all(|step| (step.from_store, step.to.store) == (1, 2)));
        assert_eq!(balancer.steps(20, &view(20), 1, 1), []);
        let mut late = LeaderBalancer::new(limits);
        assert_eq!(late.steps(0, &view(0), 1, 2), []);
        assert_eq!(late.steps(KEPT_MS, &view(KEPT_MS), 1, 1), []);
    }
}
