//! The events that a region reacts to.

use bytes::Bytes;

use crate::admin_command::{SplitCommand, SplitRegions};
use crate::descriptor::{Descriptor, RegionSize};
use crate::digest_comparison::ConsistencyVerdict;
use crate::effects::NewReplica;
use crate::entry::LogEntry;
use crate::ids::{Index, PeerId, RegionId, StageId, Term, Ticket};
use crate::membership_change::{MembershipChange, MembershipCommand};
use crate::message::{Envelope, Notice};

/// An event of a region. The shard answers with effects.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A message arrived from another store. Trusted no further than it can be checked.
    Message(Envelope),
    /// A client proposes a write.
    Propose {
        /// The region.
        region: RegionId,
        /// Comes back exactly once, with the applied entry or rejected.
        ticket: Ticket,
        /// The client's claim about the region.
        precondition: RequestPrecondition,
        /// The command, in the encoding of its protocol; the region does not read it.
        command: Bytes,
    },
    /// A client wants to read, and to see every write that was answered before.
    Read {
        /// The region.
        region: RegionId,
        /// Comes back exactly once, granted or rejected.
        ticket: Ticket,
        /// The client's claim about the region.
        precondition: RequestPrecondition,
        /// Whether a replica that does not lead may serve it.
        follower: bool,
    },
    /// The log write with this number is on disk, and with it all earlier ones of the region.
    Persisted {
        /// The region.
        region: RegionId,
        /// The number of the write.
        number: u64,
    },
    /// An operator, or the store itself, wants the region split. Comes back like a proposal.
    Split {
        /// The region.
        region: RegionId,
        /// Comes back exactly once, with the applied entry or rejected.
        ticket: Ticket,
        /// The borders, and new ids.
        split: SplitCommand,
    },
    /// An operator or placement wants the region to have other replicas, or the same ones in other
    /// roles. Comes back like a proposal.
    ChangeMembership {
        /// The region.
        region: RegionId,
        /// Comes back exactly once, with the applied entry or rejected.
        ticket: Ticket,
        /// The change.
        command: MembershipCommand,
    },
    /// An operator, placement, or a store that stops wants another replica to lead.
    TransferLeader {
        /// The region.
        region: RegionId,
        /// The next leader; none: the voter that lacks least of the log.
        to: Option<PeerId>,
        /// Comes back exactly once: transferred, or rejected.
        ticket: Option<Ticket>,
    },
    /// An operator, or the store itself, wants the rows of all replicas compared. Comes back like a
    /// proposal, with the entry that asks for the digests; the verdict is an entry of its own.
    CompareReplicas {
        /// The region.
        region: RegionId,
        /// Comes back exactly once, with the applied entry or rejected.
        ticket: Ticket,
        /// The version of the digest that the store computes.
        digest_version: u64,
    },
    /// The digest of a replica's rows is computed, or was given up. Dropped if the replica has
    /// ended.
    Digested {
        /// The region.
        region: RegionId,
        /// The replica whose rows they are.
        peer: PeerId,
        /// The entry that has asked for it.
        index: Index,
        /// The digest; none if it was given up.
        digest: Option<u64>,
    },
    /// Rows of a replica are lost here, by a damaged page. Dropped if the replica has ended.
    Damaged {
        /// The region.
        region: RegionId,
        /// The replica.
        peer: PeerId,
    },
    /// Entries up to `index` are visible to reads. Arrives in order.
    Applied {
        /// The region.
        region: RegionId,
        /// The last of them.
        index: Index,
        /// The changes of the region that they have made, in order.
        changes: Vec<RegionChange>,
        /// How large the region is, if the store has looked.
        size: Option<RegionSize>,
    },
    /// A replica that an effect has asked for belongs to this shard.
    Create(NewReplica),
    /// The answer to a fetch. Dropped if the replica has ended.
    Fetched {
        /// The region.
        region: RegionId,
        /// The replica that asked.
        peer: PeerId,
        /// The fetch that is answered.
        context: u64,
        /// Entries from its `low` on, at least one, in order.
        entries: Vec<LogEntry>,
    },
    /// The fetch could not be carried out now. Raft asks again.
    FetchFailed {
        /// The region.
        region: RegionId,
        /// The replica that asked.
        peer: PeerId,
        /// The fetch that failed.
        context: u64,
    },
    /// A checkpoint made the region's state durable.
    Checkpointed {
        /// The region.
        region: RegionId,
        /// The last entry that it holds.
        applied: Index,
        /// The snapshot that it holds, if one was installed since the last checkpoint.
        installed: Option<StageId>,
    },
    /// The store has no objection to a replica that an `unknown` message was for: its id is above
    /// the tombstone, and no region here holds a part of its range.
    Admitted(Envelope),
    /// The store has one.
    NotAdmitted {
        /// The message.
        envelope: Envelope,
        /// Why not.
        why: NotAdmitted,
    },
    /// A snapshot for a replica here has arrived whole.
    SnapshotStaged {
        /// Its message, with the state of the rows.
        envelope: Envelope,
        /// The rows.
        stage: StageId,
    },
    /// A snapshot's stream has begun: from here on the receiver has what the view has.
    SnapshotBegun {
        /// The region.
        region: RegionId,
        /// The replica that sends it. Dropped if that has ended.
        from: PeerId,
        /// The replica that gets it.
        to: PeerId,
        /// The number of the effect.
        number: u64,
        /// The last entry in the view.
        index: Index,
    },
    /// A snapshot was sent whole and is staged there, or was given up.
    SnapshotSent {
        /// The region.
        region: RegionId,
        /// The replica that sends it. Dropped if that has ended.
        from: PeerId,
        /// The replica that got it.
        to: PeerId,
        /// The number of the effect.
        number: u64,
        /// Whether the receiver has it.
        ok: bool,
    },
    /// A durable root has the end of a replica: no start finds it again.
    Ended {
        /// The region.
        region: RegionId,
        /// The replica.
        peer: PeerId,
    },
    /// A store tells of a replica that has ended, or should.
    Notice(Notice),
    /// Messages to that replica are not getting through.
    Unreachable {
        /// The region.
        region: RegionId,
        /// The replica that they were for.
        peer: PeerId,
    },
    /// The replica should campaign now. Nothing happens if it may not.
    Campaign {
        /// The region.
        region: RegionId,
    },
}

impl Event {
    /// The region that the event is for.
    #[must_use]
    pub fn region(&self) -> RegionId {
        match self {
            Self::Message(envelope) => envelope.region,
            Self::Notice(notice) => notice.region,
            Self::Propose { region, .. }
            | Self::Read { region, .. }
            | Self::Split { region, .. }
            | Self::TransferLeader { region, .. }
            | Self::Persisted { region, .. }
            | Self::Applied { region, .. }
            | Self::Fetched { region, .. }
            | Self::FetchFailed { region, .. }
            | Self::Checkpointed { region, .. }
            | Self::Unreachable { region, .. }
            | Self::SnapshotBegun { region, .. }
            | Self::SnapshotSent { region, .. }
            | Self::ChangeMembership { region, .. }
            | Self::CompareReplicas { region, .. }
            | Self::Digested { region, .. }
            | Self::Damaged { region, .. }
            | Self::Ended { region, .. }
            | Self::Campaign { region } => *region,
            Self::Admitted(envelope)
            | Self::NotAdmitted { envelope, .. }
            | Self::SnapshotStaged { envelope, .. } => envelope.region,
            Self::Create(new) => new.descriptor.id,
        }
    }
}

impl Event {
    /// The replica that an answer is for, if it may come after the end of that replica.
    pub(crate) fn answered_replica(&self) -> Option<PeerId> {
        match self {
            Self::Fetched { peer, .. }
            | Self::FetchFailed { peer, .. }
            | Self::Damaged { peer, .. }
            | Self::Digested { peer, .. } => Some(*peer),
            Self::SnapshotBegun { from, .. } | Self::SnapshotSent { from, .. } => Some(*from),
            _ => None,
        }
    }
}

/// Why a store makes no replica for a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NotAdmitted {
    /// A region here holds a part of the range, or the message tells no range.
    Held,
    /// The replica was here and has ended.
    Gone,
}

/// The effect of an applied entry on its region, the same on every replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RegionChange {
    /// The region was split by this entry. The rows of all regions are as they are named here.
    Split {
        /// The entry.
        index: Index,
        /// The regions that came of it. The new ones that this store did not make are left out,
        /// because their replicas here have ended, or are to (R17 in `docs/many-regions.md`): their
        /// rows are gone.
        regions: SplitRegions,
    },
    /// The region has other replicas, or the same ones in other roles. Changes that were void are
    /// left out.
    Membership {
        /// The entry.
        index: Index,
        /// The change.
        change: MembershipChange,
        /// The region behind it.
        descriptor: Descriptor,
    },
    /// The end of a removed replica is confirmed.
    Forgotten {
        /// The entry.
        index: Index,
        /// The replica.
        peer: PeerId,
        /// The region behind it.
        descriptor: Descriptor,
    },
    /// The entry asks each replica for a digest of its rows.
    DigestDue {
        /// The entry.
        index: Index,
    },
    /// The digests of an earlier entry are compared.
    Compared {
        /// The entry that says so.
        index: Index,
        /// The verdict.
        verdict: ConsistencyVerdict,
    },
}

/// The claim of a request about its region, and what it needs. Absent parts are not checked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RequestPrecondition {
    /// The replica that it was sent to.
    pub peer: Option<PeerId>,
    /// The last term that the client knows.
    pub term: Option<Term>,
    /// The version of the range. Must be the current one.
    pub version: Option<u64>,
    /// The version of the membership. Not checked: it does not change what a request means.
    pub conf_version: Option<u64>,
    /// The keys that it touches.
    pub span: Option<KeySpan>,
    /// Whether it adds data: then it is refused where the disks are full.
    pub needs_room: bool,
}

/// The least and the greatest key of a request.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct KeySpan {
    /// The least.
    pub first: Bytes,
    /// The greatest, itself included.
    pub last: Bytes,
}
