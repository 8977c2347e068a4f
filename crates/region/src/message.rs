//! Messages between the replicas of a region.

use bytes::Bytes;

use crate::descriptor::{Descriptor, Epoch, KeyRange, Peer};
use crate::entry::LogEntry;
use crate::ids::{Index, PeerId, RegionId, StoreId, Term};

/// The kind of a message. Only kinds that may come from another store: raft's local ones, forwarded
/// proposals and requests for a transfer are left out, so a stranger cannot send them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MessageKind {
    /// A leader's entries.
    #[default]
    Append,
    /// How far they were taken.
    AppendResponse,
    /// A leader's snapshot. Goes as a stream of its own, never among other messages.
    Snapshot,
    /// A candidate asks for a vote.
    RequestVote,
    /// The vote.
    RequestVoteResponse,
    /// A leader is there; up to where the log is committed.
    Heartbeat,
    /// Still following.
    HeartbeatResponse,
    /// The leader hands over: the receiver should campaign now.
    TimeoutNow,
    /// A follower asks up to where it must have applied to serve a read.
    ReadIndex,
    /// Up to there.
    ReadIndexResponse,
    /// Would you vote for me?
    RequestPreVote,
    /// Whether.
    RequestPreVoteResponse,
}

/// All kinds with their numbers in eraftpb.
const NUMBERS: [(MessageKind, u32); 12] = [
    (MessageKind::Append, 3),
    (MessageKind::AppendResponse, 4),
    (MessageKind::RequestVote, 5),
    (MessageKind::RequestVoteResponse, 6),
    (MessageKind::Snapshot, 7),
    (MessageKind::Heartbeat, 8),
    (MessageKind::HeartbeatResponse, 9),
    (MessageKind::TimeoutNow, 14),
    (MessageKind::ReadIndex, 15),
    (MessageKind::ReadIndexResponse, 16),
    (MessageKind::RequestPreVote, 17),
    (MessageKind::RequestPreVoteResponse, 18),
];

impl MessageKind {
    /// The kind's number in eraftpb.
    #[must_use]
    pub fn number(self) -> u32 {
        let found = NUMBERS.iter().find(|(kind, _)| *kind == self);
        found.expect("the table holds every kind").1
    }

    /// The kind with this number, if it is one that may come from another store.
    #[must_use]
    pub fn from_number(number: u32) -> Option<Self> {
        NUMBERS.iter().find(|(_, of_kind)| *of_kind == number).map(|(kind, _)| *kind)
    }

    /// Whether it should not wait behind entries: votes, heartbeats, transfers and read indexes.
    #[must_use]
    pub fn is_urgent(self) -> bool {
        !matches!(self, Self::Append | Self::AppendResponse)
    }
}

/// A message of raft. The fields have the meaning of eraftpb's; the replicas are named by the
/// [`Envelope`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Message {
    /// The request or the answer.
    pub kind: MessageKind,
    /// The sender's term; 0 in `ReadIndex` only.
    pub term: Term,
    /// The term of the entry at `index`.
    pub log_term: Term,
    /// The entry before `entries`, the last one taken, or the index to read at.
    pub index: Index,
    /// Entries, of `Append` only.
    pub entries: Vec<LogEntry>,
    /// The commit index that the sender knows.
    pub commit: Index,
    /// The term of the entry at `commit`, in votes.
    pub commit_term: Term,
    /// Whether the answer is no.
    pub reject: bool,
    /// Where the log of the sender of a rejection may agree.
    pub reject_hint: Index,
    /// Names the read that is asked for or answered, and comes back unread. In the vote requests of
    /// a transfer: the word by which raft tells them from others.
    pub context: Bytes,
    /// A rejection that asks for a snapshot, of this index at least; 0 in all others.
    pub request_snapshot: Index,
    /// The region's state in the snapshot, of `Snapshot` only.
    pub snapshot: Option<Box<SnapshotHead>>,
}

/// The state of a region that a snapshot has the rows of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotHead {
    /// The last entry that is in the rows.
    pub index: Index,
    /// Its term.
    pub term: Term,
    /// The region as it is there.
    pub descriptor: Descriptor,
}

/// A message with its address and the sender's versions.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope {
    /// The region that it is about.
    pub region: RegionId,
    /// The sender.
    pub from: Peer,
    /// The receiver.
    pub to: Peer,
    /// The sender's version of the region.
    pub epoch: Epoch,
    /// No replica that is waited for lacks an entry up to here; 0 if the sender does not know.
    pub gc_floor: Index,
    /// The range of the region, for a receiver that may not have the replica yet: on votes, and on
    /// messages of a leader to a replica that has not answered it.
    pub range: Option<Box<KeyRange>>,
    /// The message itself.
    pub message: Message,
}

/// The kind of a notice.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum NoticeKind {
    /// The replica has heard of no leader for long: does its region still list it?
    WhoIs,
    /// The replica is gone for good: its region does not list it, and never will again.
    Gone,
    /// The replica was removed: its store should end it, if it is there, and never make it again.
    End,
    /// It has ended: no start of the store finds it again.
    Ended,
    /// The digest of the replica's rows, for the leader that compares them.
    Digest {
        /// The entry that has asked for it.
        index: Index,
        /// None: the replica takes no part in this comparison.
        digest: Option<u64>,
    },
}

/// A store tells another one of a replica: that it has ended, or should, or the digest of its rows.
/// Notices are lost, doubled and late as messages are; they are of no term.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Notice {
    /// The region.
    pub region: RegionId,
    /// The sender.
    pub from: StoreId,
    /// The receiver.
    pub to: StoreId,
    /// Its meaning.
    pub kind: NoticeKind,
    /// The replica that it is about.
    pub peer: PeerId,
    /// The sender's version of the region; 0 if it has none.
    pub epoch: Epoch,
}

impl Notice {
    /// The answer to the question for an end, once a root has it.
    pub(crate) fn ended(&self) -> Self {
        let (kind, epoch) = (NoticeKind::Ended, Epoch::default());
        Self { from: self.to, to: self.from, kind, epoch, ..*self }
    }

    /// The answer in the place of a receiver that never takes part again: a replica that its store
    /// took with it is not waited for, or the region would list it for ever. The store's messages
    /// are refused, so nothing of the replica comes back.
    #[must_use]
    pub fn answer_of_gone_store(&self) -> Option<Self> {
        (self.kind == NoticeKind::End).then(|| self.ended())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_eraftpb_and_local_kinds_have_none() {
        for (kind, number) in NUMBERS {
            assert_eq!(kind.number(), number);
            assert_eq!(MessageKind::from_number(number), Some(kind));
        }
        for local in [0, 1, 2, 10, 11, 12, 13, 19, u32::MAX] {
            assert_eq!(MessageKind::from_number(local), None, "{local}");
        }
    }
}
