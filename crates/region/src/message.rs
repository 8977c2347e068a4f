//! Messages between the replicas of a region.

use bytes::Bytes;

use crate::descriptor::{Epoch, Peer};
use crate::entry::LogEntry;
use crate::ids::{Index, RegionId, Term};

/// The kind of a message. Only kinds that may come from another store: raft's local ones, forwarded
/// proposals, snapshots and requests for a transfer are left out, so a stranger cannot send them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MessageKind {
    /// A leader's entries.
    #[default]
    Append,
    /// How far they were taken.
    AppendResponse,
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
const NUMBERS: [(MessageKind, u32); 11] = [
    (MessageKind::Append, 3),
    (MessageKind::AppendResponse, 4),
    (MessageKind::RequestVote, 5),
    (MessageKind::RequestVoteResponse, 6),
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
    /// All replicas have their logs on disk up to here; 0 if the sender does not know.
    pub gc_floor: Index,
    /// The message itself.
    pub message: Message,
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
        for local in [0, 1, 2, 7, 10, 11, 12, 13, 19, u32::MAX] {
            assert_eq!(MessageKind::from_number(local), None, "{local}");
        }
    }
}
