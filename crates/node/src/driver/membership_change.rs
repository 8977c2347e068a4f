//! Changes of a region's replicas: the one way to them for placement.

use flotilla_region::{Event, MembershipChange, MembershipCommand, RegionId, Reject};
use flotilla_store::{ApplyOutcome, ApplyReject};

use crate::driver::router::{RequestError, Router};
use crate::driver::tickets::TicketAnswer;

impl Router {
    /// Changes the replicas of a region that this store leads, once the change is applied here.
    /// `conf_version` is the version of its replicas that the change is for.
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
    ) -> Result<(), RequestError> {
        let Some(now) = self.descriptor(region) else {
            return Err(RequestError::Rejected(Reject::RegionNotFound(region)));
        };
        let epoch = now.epoch;
        if epoch.conf_version != conf_version {
            return Err(RequestError::Rejected(Reject::EpochNotMatch { current: vec![now] }));
        }
        let command = MembershipCommand { epoch, change };
        let event = |ticket| Event::ChangeMembership { region, ticket, command: command.clone() };
        match self.ask(region, 0, event, RequestError::Undecided).await? {
            TicketAnswer::Applied(ApplyOutcome::Done) => Ok(()),
            TicketAnswer::Applied(ApplyOutcome::Rejected(reject)) => {
                Err(RequestError::Rejected(refusal(reject)))
            }
            TicketAnswer::Rejected(reject) => Err(RequestError::Rejected(reject)),
            other => unreachable!("a change of replicas ended as {other:?}"),
        }
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
