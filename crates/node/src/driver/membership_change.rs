//! Changes of a region's replicas: the one way to them for placement.

use flotilla_region::{
    Descriptor, Epoch, Event, MembershipChange, MembershipCommand, PeerId, RegionId, Reject,
};
use flotilla_store::{ApplyOutcome, ApplyReject};
use tokio::time::Instant;

use crate::driver::router::{RequestError, Router};
use crate::driver::tickets::TicketAnswer;

impl Router {
    /// Changes the replicas of a region that this store leads, once the change is applied here.
    /// `conf_version` is the version of its replicas that the change is for; the log has a line for
    /// the change, with `cause`.
    ///
    /// # Errors
    ///
    /// [`Reject::NotLeader`] if the region is led elsewhere; [`Reject::EpochNotMatch`] if its
    /// replicas have another version, or its range gets one meanwhile;
    /// [`Reject::InvalidMembership`] says why they cannot be changed so, or not now; others as
    /// those of [`Router::propose`].
    ///
    /// # Cancel safety
    ///
    /// A change that has entered the log goes on.
    pub(crate) async fn change_membership(
        &self,
        region: RegionId,
        conf_version: u64,
        change: MembershipChange,
        cause: &str,
    ) -> Result<(), RequestError> {
        let began = Instant::now();
        let Some(now) = self.descriptor(region) else {
            return Err(RequestError::Rejected(Reject::RegionNotFound(region)));
        };
        let epoch = now.epoch;
        if epoch.conf_version != conf_version {
            return Err(RequestError::Rejected(Reject::EpochNotMatch { current: vec![now] }));
        }
        let command = MembershipCommand { epoch, change };
        let next = command.apply(&now).unwrap_or_else(|_| now.clone());
        // Before it is proposed: the leader leaves the configuration at once.
        if let Some(joint) = [&next, &now].into_iter().find(|region| region.is_joint()) {
            self.joint_changes().expect(region, joint.epoch.conf_version, cause);
        }
        let event = |ticket| Event::ChangeMembership { region, ticket, command: command.clone() };
        match self.ask(region, 0, event, RequestError::Undecided).await? {
            TicketAnswer::Applied(ApplyOutcome::Done) => {
                // That step has its line from the shard, whichever way it came about.
                if command.change != MembershipChange::LeaveJoint {
                    log_change(&next, &command.change, began, cause);
                }
                Ok(())
            }
            TicketAnswer::Applied(ApplyOutcome::Rejected(reject)) => {
                Err(RequestError::Rejected(refusal(reject)))
            }
            TicketAnswer::Rejected(reject) => Err(RequestError::Rejected(reject)),
            other => unreachable!("a change of replicas ended as {other:?}"),
        }
    }
}

/// The log's line for a change that has brought a region to `now`.
pub(super) fn log_change(now: &Descriptor, change: &MembershipChange, began: Instant, cause: &str) {
    let Epoch { version, conf_version } = now.epoch;
    tracing::info!(
        region = %now.id, version, conf_version, change = words(change),
        ms = began.elapsed().as_millis(), cause, "the members of a region changed"
    );
}

/// A change for the log.
fn words(change: &MembershipChange) -> String {
    let list = |ids: &[PeerId]| -> String {
        let ids: Vec<_> = ids.iter().map(ToString::to_string).collect();
        ids.join(", ")
    };
    match change {
        MembershipChange::Add(peer) => format!("learner {} on store {}", peer.id, peer.store),
        MembershipChange::Vote { promoted, demoted } if demoted.is_empty() => {
            format!("{} vote", list(promoted))
        }
        MembershipChange::Vote { promoted, demoted } if promoted.is_empty() => {
            format!("{} vote no more", list(demoted))
        }
        MembershipChange::Vote { promoted, demoted } => {
            format!("{} vote, {} no more", list(promoted), list(demoted))
        }
        MembershipChange::LeaveJoint => "the joint configuration is left".to_owned(),
        MembershipChange::Remove(id) => format!("{id} is removed"),
    }
}

/// The rejection of a change when it was applied, in the terms of one that was not proposed:
/// neither had an effect.
fn refusal(reject: ApplyReject) -> Reject {
    match reject {
        ApplyReject::EpochNotMatch { current } => Reject::EpochNotMatch { current },
        ApplyReject::InvalidMembership(error) => Reject::InvalidMembership(error.into()),
        other => unreachable!("a change of replicas was rejected: {other}"),
    }
}
