//! The checks of a change of the replicas before it is proposed: those that the region's state
//! alone does not decide.
//!
//! The command says what the change makes of the descriptor, on every replica alike. Here a leader
//! looks whether this is a good moment: it has applied its log, nothing else is under way, the
//! replicas that get votes have the data, and behind the change a majority is there.

use crate::consensus::Consensus;
use crate::descriptor::{Descriptor, PeerRole};
use crate::error::{MembershipRefusal, Reject};
use crate::ids::{PeerId, Time};
use crate::leader_transfer::LeaderTransfer;
use crate::membership_change::{MembershipChange, MembershipCommand, MembershipError};

/// A member is there that has answered within so many milliseconds.
const HEARD_MS: u64 = 2000;
/// The most bytes of the log that a learner may lack when it gets its vote: the next commit may
/// have to wait for them.
const LACKING_BYTES_MAX: u64 = 1 << 20;

/// The leader's state that a change is checked against.
pub(crate) struct MembershipView<'a> {
    pub(crate) descriptor: &'a Descriptor,
    pub(crate) me: PeerId,
    pub(crate) consensus: &'a Consensus,
    pub(crate) transfer: &'a LeaderTransfer,
    /// Whether a split waits for its entry.
    pub(crate) has_queued_split: bool,
    pub(crate) now: Time,
}

/// Checks a change that a leader is asked to propose.
pub(crate) fn check(command: &MembershipCommand, view: &MembershipView<'_>) -> Result<(), Reject> {
    let next = command.apply(view.descriptor).map_err(|error| match error {
        MembershipError::Version => {
            Reject::EpochNotMatch { current: vec![view.descriptor.clone()] }
        }
        error => Reject::InvalidMembership(error.into()),
    })?;
    check_moment(command, &next, view).map_err(Reject::InvalidMembership)
}

fn check_moment(
    command: &MembershipCommand,
    next: &Descriptor,
    view: &MembershipView<'_>,
) -> Result<(), MembershipRefusal> {
    if !view.transfer.has_applied_log(view.consensus) {
        return Err(MembershipRefusal::NewLeader);
    }
    let is_changing =
        view.transfer.has_change() || view.has_queued_split || view.consensus.has_pending_change();
    if is_changing {
        return Err(MembershipRefusal::Changing);
    }
    if view.consensus.is_transferring() {
        return Err(MembershipRefusal::Transferring);
    }
    // A leader without its vote leads on, and raft ends the process when it goes altogether.
    if !keeps_vote(view.descriptor, view.me) || !keeps_vote(next, view.me) {
        return Err(MembershipRefusal::LeaderVote);
    }
    if let MembershipChange::Vote { promoted, .. } = &command.change {
        promoted.iter().try_for_each(|learner| check_learner(*learner, view))?;
    }
    // Leaving costs no vote of the half that remains, and a joint region waits for both.
    if command.change != MembershipChange::LeaveJoint && !has_majority(next, view) {
        return Err(MembershipRefusal::NoMajority);
    }
    Ok(())
}

/// Whether a replica votes, and still does when a joint configuration is left.
pub(crate) fn keeps_vote(descriptor: &Descriptor, peer: PeerId) -> bool {
    let listed = descriptor.listed(peer);
    listed.is_some_and(|peer| matches!(peer.role, PeerRole::Voter | PeerRole::Incoming))
}

/// Whether a learner has the data, and answers.
fn check_learner(learner: PeerId, view: &MembershipView<'_>) -> Result<(), MembershipRefusal> {
    if !view.transfer.is_heard(learner, view.now, HEARD_MS) {
        return Err(MembershipRefusal::Silent(learner));
    }
    let consensus = view.consensus;
    let lacking =
        consensus.matched(learner).and_then(|index| consensus.window().bytes_behind(index));
    let is_near = lacking.is_some_and(|bytes| bytes <= LACKING_BYTES_MAX);
    if consensus.replicates_to(learner) && is_near {
        Ok(())
    } else {
        Err(MembershipRefusal::Lagging(learner))
    }
}

/// Whether a majority of the voters was heard, in each half of a joint configuration.
fn has_majority(next: &Descriptor, view: &MembershipView<'_>) -> bool {
    let is_there = |peer| peer == view.me || view.transfer.is_heard(peer, view.now, HEARD_MS);
    [PeerRole::Incoming, PeerRole::Outgoing].into_iter().all(|half| {
        let votes = |role| role == PeerRole::Voter || role == half;
        let voters = next.peers.iter().filter(|peer| votes(peer.role));
        let (here, all) = voters
            .fold((0, 0), |(here, all), peer| (here + usize::from(is_there(peer.id)), all + 1));
        2 * here > all
    })
}
