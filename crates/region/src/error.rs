//! Errors: why a request is not served, and why a replica cannot start.

use std::fmt;

use bytes::Bytes;
use flotilla_base::redact::LogKey;

use crate::admin_command::SplitError;
use crate::descriptor::{Descriptor, Peer};
use crate::ids::{Index, PeerId, RegionId, StoreId};
use crate::membership_change::MembershipError;

/// Why a request was not served. It had no effect and will have none, but for a transfer of
/// leadership that was not done in time.
///
/// The checks are made in the order of the variants, but for the last eight.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Reject {
    /// No such region here. The client looks it up again.
    #[error("region {0} is not on this store")]
    RegionNotFound(RegionId),
    /// The request names another replica. The client looks the region up again.
    #[error("the request is for peer {request}, this is peer {here}")]
    MismatchPeer {
        /// The replica that the request names.
        request: PeerId,
        /// The replica that is here.
        here: PeerId,
    },
    /// Another replica leads, or none. The client goes there, or waits.
    #[error("not the leader")]
    NotLeader {
        /// The leader, if known.
        leader: Option<Peer>,
    },
    /// The request is of a former term, or its place in the log went to another. It was surely not
    /// applied; the client repeats it.
    #[error("the request is stale")]
    StaleCommand,
    /// The range has changed since the client looked it up. The regions that hold it now are
    /// returned.
    #[error("the region has changed")]
    EpochNotMatch {
        /// The regions that now hold the range, as far as this replica knows.
        current: Vec<Descriptor>,
    },
    /// The key is in another region. A mistake of the client.
    #[error("key {} is not in region {}", LogKey(key), descriptor.id)]
    KeyNotInRegion {
        /// The first key that is outside.
        key: Bytes,
        /// The region.
        descriptor: Box<Descriptor>,
    },
    /// Too much is waiting. The client comes back later.
    #[error("busy: {reason}")]
    Busy {
        /// The bound that was met.
        reason: &'static str,
    },
    /// The command adds data, and the disk of the leader or of too many voters is full. The client
    /// comes back later; deletions are taken.
    #[error("the disk is full{}", DisplayStores(stores))]
    DiskFull {
        /// The stores of the region's voters whose disks are full.
        stores: Vec<StoreId>,
    },
    /// The command does not fit into an entry. It never will.
    #[error("a command of {size} bytes exceeds the limit of {limit}")]
    EntryTooLarge {
        /// Bytes of the command.
        size: u64,
        /// The most that fits.
        limit: u64,
    },
    /// The region cannot be split in this way.
    #[error(transparent)]
    InvalidSplit(SplitError),
    /// The region's leadership cannot be transferred so, or was not in time.
    #[error(transparent)]
    InvalidTransfer(TransferError),
    /// The region's replicas cannot be changed so, or not now.
    #[error(transparent)]
    InvalidMembership(MembershipRefusal),
    /// No quorum, or no leader, confirmed the read in time. The client repeats it.
    #[error("the read index was not confirmed in time")]
    ReadIndexNotReady,
}

/// Stores, in words.
struct DisplayStores<'a>(&'a [StoreId]);

impl fmt::Display for DisplayStores<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, store) in self.0.iter().enumerate() {
            write!(out, "{}{store}", if place == 0 { " on store " } else { ", " })?;
        }
        Ok(())
    }
}

/// Why leadership was not transferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TransferError {
    /// One transfer at a time.
    #[error("the leader is handing over to peer {0} already")]
    UnderWay(PeerId),
    /// The leader is new, and has not applied the entries of its predecessors; a split may be among
    /// them. It has in a moment.
    #[error("the leader has just been elected and is still applying its log")]
    NewLeader,
    /// A split or a change of the replicas waits to be applied. It has in a moment.
    #[error("a change of the region is under way")]
    Changing,
    /// The region has no such voter, or it loses its vote.
    #[error("peer {0} is no voter of the region")]
    NotVoter(PeerId),
    /// The leader has not heard of it for two heartbeat intervals.
    #[error("peer {0} has not answered of late")]
    Silent(PeerId),
    /// It lacks too much of the log.
    #[error("the log of peer {0} is too far behind")]
    Lagging(PeerId),
    /// No voter was named, and none has answered of late: the leader has lost its quorum, or is the
    /// only voter.
    #[error("no other voter of the region has answered of late")]
    NoCandidate,
    /// The other one did not take over within an election timeout, and the region goes on without.
    /// It may still do so a little later.
    #[error("peer {0} did not take over in time")]
    TimedOut(PeerId),
}

/// Why a change of the replicas is not proposed. Nothing has changed, and nothing will.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum MembershipRefusal {
    /// The region as it is does not allow it.
    #[error(transparent)]
    Change(#[from] MembershipError),
    /// The leader is new, and has not applied the entries of its predecessors; a change may be
    /// among them. It has in a moment.
    #[error("the leader has just been elected and is still applying its log")]
    NewLeader,
    /// A split or another change waits to be applied. It has in a moment.
    #[error("a change of the region is under way")]
    Changing,
    /// The leader is handing over. The next one may do it.
    #[error("the region is changing its leader")]
    Transferring,
    /// The leader would lose its vote, or has none. Leadership is to be transferred first.
    #[error("the leader votes behind a change; its leadership is to be transferred first")]
    LeaderVote,
    /// The leader has not heard of the learner for two seconds.
    #[error("learner {0} has not answered of late")]
    Silent(PeerId),
    /// The learner has no data yet, or lacks too much of the log.
    #[error("the log of learner {0} is too far behind")]
    Lagging(PeerId),
    /// Behind the change no majority would be there to decide anything.
    #[error("behind the change no majority of the voters has answered of late")]
    NoMajority,
    /// Raft has put an empty entry in the place of the change.
    #[error("raft does not take the change now")]
    Untaken,
}

/// Why what was found on disk cannot be a replica of the region.
///
/// Raft would panic on it. A log that ends below what was committed has lost its tail; only
/// another replica can mend that.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum CreateReplicaError {
    /// The replica is not a member of the region, or the region has no or doubled members.
    #[error("region {region}: peer {peer} is no proper member")]
    NotMember {
        /// The region.
        region: RegionId,
        /// The replica that should start.
        peer: PeerId,
    },
    /// The region has a replica here already.
    #[error("region {0} is here already")]
    Exists(RegionId),
    /// Two numbers of the log contradict each other.
    #[error("region {region}: {what}: {low} should not exceed {high}")]
    IndexOrder {
        /// The region.
        region: RegionId,
        /// The two numbers, by name.
        what: &'static str,
        /// The one that should be lower.
        low: Index,
        /// The one that should be higher.
        high: Index,
    },
    /// The entries above the applied one are not all there, or their terms contradict the runs.
    #[error("region {region}: the log is broken at entry {index}")]
    InvalidLog {
        /// The region.
        region: RegionId,
        /// The first entry that is missing or wrong.
        index: Index,
    },
}
