//! Scatter, for clients that load much at once: the leaders of the regions that they name are
//! spread over the stores. And what clients can ask of it afterwards: how far a region is.

use std::time::Duration;

use flotilla_placement::{LeaderStepState, OperatorState};
use flotilla_proto::pdpb::OperatorStatus;

use super::leader::PdLeader;

/// Rounds if the client names no number.
const ROUNDS: u64 = 5;
/// Rounds at most.
const ROUNDS_MAX: u64 = 20;
/// Between two rounds: a region that was just split has no leader for a moment.
const RETRY: Duration = Duration::from_millis(50);

/// The last change of a region, in the words of PD.
pub(super) struct RegionOperator {
    pub(super) description: &'static str,
    pub(super) kind: &'static str,
    pub(super) status: OperatorStatus,
}

/// Has the leaders of `regions` spread. Returns those that cannot be moved: placement does not know
/// them, they have no leader, or their replicas are being changed.
pub(super) async fn scatter(pd_leader: &PdLeader, regions: &[u64], retry_limit: u64) -> Vec<u64> {
    let mut rounds = if retry_limit == 0 { ROUNDS } else { retry_limit.min(ROUNDS_MAX) };
    loop {
        // All of them each time: those that go on count where they will be.
        let failed = pd_leader.scatter(regions);
        if failed.is_empty() || rounds == 0 {
            return failed;
        }
        rounds -= 1;
        tokio::time::sleep(RETRY).await;
    }
}

/// The last change of a region that placement has asked for, of those that it remembers. A change
/// of replicas counts before a transfer, which may be a part of it.
pub(super) fn operator(pd_leader: &PdLeader, region: u64) -> Option<RegionOperator> {
    let change = pd_leader.repair().state(region);
    let transfer = pd_leader.leader_step_state(region);
    let replicas = |description, status| RegionOperator { description, kind: "region", status };
    // Clients that wait for a scatter know it by this description.
    let scatter = |status| RegionOperator { description: "scatter-region", kind: "leader", status };
    match (change, transfer) {
        (Some(OperatorState::UnderWay { reason, .. }), _) => {
            Some(replicas(reason.words(), OperatorStatus::Running))
        }
        (_, Some(LeaderStepState::UnderWay)) => Some(scatter(OperatorStatus::Running)),
        (_, Some(LeaderStepState::Done)) => Some(scatter(OperatorStatus::Success)),
        (_, Some(LeaderStepState::Late)) => Some(scatter(OperatorStatus::Timeout)),
        (Some(OperatorState::Done), None) => {
            Some(replicas("change-replicas", OperatorStatus::Success))
        }
        (Some(OperatorState::Failed(_)), None) => {
            Some(replicas("change-replicas", OperatorStatus::Cancel))
        }
        (None, None) => None,
    }
}
