//! Carries out the steps that placement asks for: changes of the replicas of regions that this
//! store leads. Each is answered, with the reason if it was not done.

use flotilla_identity::{LevelRefusal, MEMBERSHIP_LEVEL};
use flotilla_proto::metapb;
use flotilla_proto::peers::replica_step::Step;
use flotilla_proto::peers::{ReplicaStep, StepAnswer, VoteChange};
use flotilla_region::{
    MembershipChange, MembershipError, MembershipRefusal, Peer, PeerId, RegionId, Reject, StoreId,
};
use tokio::sync::mpsc;

use crate::driver::router::{RequestError, Router};
use crate::membership::Membership;

/// Answers that wait for the next report; more are dropped, and their steps asked for again.
const ANSWERS_MAX: usize = 256;

/// Carries out steps, each in a task of its own.
pub(super) struct StepRunner {
    router: Router,
    membership: Membership,
    answers: mpsc::Sender<StepAnswer>,
}

impl StepRunner {
    /// A runner, and the answers.
    pub(super) fn new(
        router: Router,
        membership: Membership,
    ) -> (Self, mpsc::Receiver<StepAnswer>) {
        let (answers, said) = mpsc::channel(ANSWERS_MAX);
        (Self { router, membership, answers }, said)
    }

    /// Begins to carry a step out.
    pub(super) fn run(&self, step: ReplicaStep) {
        let (router, answers) = (self.router.clone(), self.answers.clone());
        let membership = self.membership.clone();
        tokio::spawn(async move {
            let region_id = step.region_id;
            let result = carry_out(&router, &membership, step).await;
            tracing::debug!(region_id, ?result, "placement has replicas changed");
            let (refused, reason) = match result {
                Ok(()) => (false, String::new()),
                Err(NotDone { is_final, reason }) => (is_final, reason),
            };
            // An error means that many wait, or that the session is over.
            let _ = answers.try_send(StepAnswer { region_id, refused, reason });
        });
    }
}

/// Why a step was not done.
#[derive(Debug, PartialEq, Eq)]
struct NotDone {
    /// It is of no use to ask again.
    is_final: bool,
    reason: String,
}

async fn carry_out(
    router: &Router,
    membership: &Membership,
    step: ReplicaStep,
) -> Result<(), NotDone> {
    let ReplicaStep { region_id, conf_version, step, cause } = step;
    // A leader of placement of an earlier version gives none.
    let cause = if cause.is_empty() { "placement" } else { &cause };
    let region = RegionId(region_id);
    let change = match step.ok_or_else(|| unknown("it names no change"))? {
        Step::Add(peer) => MembershipChange::Add(peer_from_wire(&peer)),
        Step::Vote(VoteChange { promoted, demoted }) => {
            let ids = |ids: Vec<u64>| ids.into_iter().map(PeerId).collect();
            MembershipChange::Vote { promoted: ids(promoted), demoted: ids(demoted) }
        }
        Step::LeaveJoint(_) => MembershipChange::LeaveJoint,
        Step::Remove(id) => MembershipChange::Remove(PeerId(id)),
        Step::Transfer(peer) => {
            membership.check_transfers().map_err(|why| too_early(&why))?;
            let transfer =
                router.transfer_leader(region, Some(StoreId(peer.store_id)), cause).await;
            return transfer.map(|_| ()).map_err(|error| later(&error));
        }
    };
    // A store that does not know the entries of such a change would stop at the first.
    membership.registry().check_level(MEMBERSHIP_LEVEL).map_err(|why| too_early(&why))?;
    let changed = router.change_membership(region, conf_version, change, cause).await;
    changed.map_err(|error| not_done(&error))
}

/// Some store has to be upgraded first.
fn too_early(why: &LevelRefusal) -> NotDone {
    NotDone { is_final: false, reason: why.to_string() }
}

/// A step of a placement that is newer than this store.
fn unknown(why: &str) -> NotDone {
    NotDone { is_final: true, reason: format!("the step is not known here: {why}") }
}

fn not_done(error: &RequestError) -> NotDone {
    let is_final = match error {
        // The region is not as placement believes it to be, and its version is the right one.
        RequestError::Rejected(Reject::InvalidMembership(MembershipRefusal::Change(why))) => {
            match why {
                MembershipError::NotLearner(_)
                | MembershipError::NotVoter(_)
                | MembershipError::Names
                | MembershipError::NoVoter => true,
                // The next id is higher; an end is confirmed, a joint configuration left.
                MembershipError::Version
                | MembershipError::Joint
                | MembershipError::NotJoint
                | MembershipError::Floor(_)
                | MembershipError::StoreTaken(_)
                | MembershipError::Limit => false,
            }
        }
        _ => false,
    };
    NotDone { is_final, ..later(error) }
}

fn later(error: &RequestError) -> NotDone {
    let reason = match error {
        RequestError::Rejected(Reject::NotLeader { .. }) => {
            "another store leads the region".to_owned()
        }
        RequestError::Rejected(reject) => reject.to_string(),
        RequestError::Undecided => "it is not known whether it was done".to_owned(),
        RequestError::Stopping => "the store that leads the region stops".to_owned(),
    };
    NotDone { is_final: false, reason }
}

fn peer_from_wire(peer: &metapb::Peer) -> Peer {
    Peer { id: PeerId(peer.id), store: StoreId(peer.store_id) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_step_that_time_helps_is_asked_for_again_and_others_are_not() {
        let refused = |why: MembershipRefusal| {
            not_done(&RequestError::Rejected(Reject::InvalidMembership(why)))
        };
        let lags = refused(MembershipRefusal::Lagging(PeerId(204)));
        assert!(!lags.is_final && lags.reason.contains("learner 204"), "{lags:?}");
        let floor = MembershipError::Floor(PeerId(3));
        assert!(!refused(floor.into()).is_final, "the next id is higher");
        assert!(refused(MembershipError::NotVoter(PeerId(3)).into()).is_final);
        assert!(!not_done(&RequestError::Undecided).is_final);
        let elsewhere = not_done(&RequestError::Rejected(Reject::NotLeader { leader: None }));
        assert!(!elsewhere.is_final && elsewhere.reason.contains("another store"));
    }
}
