//! The effects of a step: everything that the driver must carry out.
//!
//! A driver carries the lists out in the order of the fields. Messages come first: the log state
//! that they promise is on disk already, or they would still be held back. Within a list the order
//! is that of the regions' own steps; entries of one region stay in order.

use bytes::Bytes;

use crate::descriptor::{Descriptor, Epoch, Peer};
use crate::entry::{HardState, LogEntry};
use crate::error::Reject;
use crate::ids::{Index, PeerId, RegionId, StageId, Term, Ticket};
use crate::message::{Envelope, Notice, SnapshotHead};

/// Work for the driver. The lists are reused from step to step; see [`Effects::clear`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Effects {
    /// To be sent. May be lost, doubled and reordered.
    pub messages: Vec<Envelope>,
    /// Snapshots to be sent, each as a stream of its own; answered by `Event::SnapshotBegun`, if a
    /// stream began, and always by `Event::SnapshotSent`.
    pub snapshots: Vec<SnapshotSend>,
    /// Notices to other stores. May be lost, doubled and reordered.
    pub notices: Vec<Notice>,
    /// To be written to the log as one batch, in the order of the fields.
    pub log: LogEffects,
    /// Entries to be read from disk; each answered by `Event::Fetched` or `Event::FetchFailed`.
    pub fetches: Vec<LogFetch>,
    /// Replicas to be created: each goes as `Event::Create` to the shard of its region. Only when
    /// the batch is queued, so that all that they write lies behind it.
    pub created: Vec<NewReplica>,
    /// Regions with a replica here whose ranges are new.
    pub ranges: Vec<Descriptor>,
    /// Entries to be applied, in order; answered by `Event::Applied`.
    pub apply: Vec<ApplyTask>,
    /// Snapshots to be installed, behind all entries that were handed out before; answered by
    /// `Event::Checkpointed` with the stage, once a durable root has the rows.
    pub installs: Vec<InstallTask>,
    /// Replicas to be ended, behind all entries that were handed out before; answered by
    /// `Event::Ended`, once a durable root has it.
    pub ends: Vec<EndTask>,
    /// Stages that are not installed: their pages are free again.
    pub discards: Vec<StageId>,
    /// Messages for replicas that are not here, each of a region that was not asked about yet;
    /// answered by `Event::Admitted` or `Event::NotAdmitted`.
    pub unknown: Vec<Envelope>,
    /// The load of regions, and splits for it.
    pub load: LoadEffects,
    /// Answers to requests.
    pub answers: Answers,
    /// Leaders that came and went.
    pub roles: Vec<RoleChange>,
    /// Proofs of faults that messages of others brought.
    pub findings: Findings,
}

impl Effects {
    /// Empties the lists and keeps their memory.
    pub fn clear(&mut self) {
        self.messages.clear();
        self.snapshots.clear();
        self.notices.clear();
        self.log.clear();
        self.fetches.clear();
        self.created.clear();
        self.ranges.clear();
        self.apply.clear();
        self.installs.clear();
        self.ends.clear();
        self.discards.clear();
        self.unknown.clear();
        self.load.clear();
        self.answers.clear();
        self.roles.clear();
        self.findings.clear();
    }

    /// Whether there is nothing to do.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.messages.is_empty()
            && self.snapshots.is_empty()
            && self.notices.is_empty()
            && self.log.is_empty()
            && self.fetches.is_empty()
            && self.created.is_empty()
            && self.ranges.is_empty()
            && self.apply.is_empty()
            && self.installs.is_empty()
            && self.ends.is_empty()
            && self.discards.is_empty()
            && self.unknown.is_empty()
            && self.load.is_empty()
            && self.answers.is_empty()
            && self.roles.is_empty()
            && self.findings.is_empty()
    }
}

/// Work for the log, one batch.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LogEffects {
    /// Writes, each answered by `Event::Persisted`, in order.
    pub writes: Vec<LogWrite>,
    /// Births of replicas. Unanswered: all that a new replica sends waits for later writes of its
    /// own.
    pub births: Vec<ReplicaBirth>,
    /// Entries to be forgotten. Unanswered.
    pub compact: Vec<Compaction>,
    /// Logs of replicas whose ends a durable root has (R12). They go. Unanswered: a start removes
    /// those that are left.
    pub removals: Vec<PeerId>,
}

impl LogEffects {
    fn clear(&mut self) {
        self.writes.clear();
        self.births.clear();
        self.compact.clear();
        self.removals.clear();
    }

    /// Whether there is nothing to write.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.writes.is_empty()
            && self.births.is_empty()
            && self.compact.is_empty()
            && self.removals.is_empty()
    }
}

/// Answers to requests.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Answers {
    /// Reads that may now take their snapshot, and not before.
    pub reads: Vec<ReadGrant>,
    /// Transfers of leadership that are done: another replica leads.
    pub transferred: Vec<LeaderTransferred>,
    /// Requests that are not served.
    pub rejected: Vec<(Ticket, Reject)>,
    /// Proposals whose fate this replica does not learn: a snapshot has passed over their entries.
    pub undecided: Vec<Ticket>,
}

impl Answers {
    fn clear(&mut self) {
        self.reads.clear();
        self.transferred.clear();
        self.rejected.clear();
        self.undecided.clear();
    }

    /// Whether there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.reads.is_empty()
            && self.transferred.is_empty()
            && self.rejected.is_empty()
            && self.undecided.is_empty()
    }
}

/// Proofs of faults that messages of others brought.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Proofs that this store's disk has lost what it had acknowledged: the store must end.
    pub lost_logs: Vec<LostLog>,
    /// Members whose messages are refused for their terms, each reported once.
    pub wild_terms: Vec<WildTerm>,
}

impl Findings {
    fn clear(&mut self) {
        self.lost_logs.clear();
        self.wild_terms.clear();
    }

    fn is_empty(&self) -> bool {
        self.lost_logs.is_empty() && self.wild_terms.is_empty()
    }
}

/// A write to a replica's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogWrite {
    /// The region.
    pub region: RegionId,
    /// The replica, which names the log group.
    pub peer: PeerId,
    /// Returned with `Event::Persisted`. Grows; numbers may be left out.
    pub number: u64,
    /// The state to be written in the same batch. Always there if there are entries: a replica
    /// that forgot the commit index might campaign over what it has not applied.
    pub hard_state: Option<HardState>,
    /// To be appended; replaces everything from the first one's place on.
    pub entries: Vec<LogEntry>,
    /// Whether it must reach the disk. If not, no message waits for it: only the commit index
    /// moved, which is found again after a crash.
    pub sync: bool,
    /// The log is emptied first, in the same batch, and begins behind this entry: a snapshot was
    /// installed, and a durable root has it.
    pub reset: Option<LogReset>,
}

/// The place at which an emptied log begins again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogReset {
    /// The entry before the first.
    pub index: Index,
    /// Its term.
    pub term: Term,
}

/// The birth of a replica: with it in the log, a start makes the replica before it speaks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReplicaBirth {
    /// The new region.
    pub region: RegionId,
    /// Its replica, which names the log group.
    pub peer: PeerId,
    /// The state that it starts with.
    pub hard_state: HardState,
    /// Its maker.
    pub origin: BirthOrigin,
}

/// The maker of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BirthOrigin {
    /// A split of a region here, whatever of it is in the durable rows.
    Split {
        /// The region that was split, and its replica here.
        parent: (RegionId, PeerId),
        /// The state of that replica, which knows the entry of the split as committed.
        parent_hard_state: HardState,
        /// The entry of the split, in the parent's log.
        index: Index,
    },
    /// A message of another replica. It has no rows until a snapshot is installed.
    Message,
}

/// A snapshot to be sent to one replica.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SnapshotSend {
    /// Told in the answers. Grows with each snapshot of the sending replica.
    pub number: u64,
    /// The message. The driver puts the state of the view that it sends into its head: the index
    /// there may be higher. A view whose term is above the message's is not sent: its receiver
    /// would hold a log beyond its own term.
    pub envelope: Envelope,
}

/// A snapshot to be put in place of a replica's rows, in one transaction.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstallTask {
    /// The replica here.
    pub peer: PeerId,
    /// The rows.
    pub stage: StageId,
    /// The state of the region in them.
    pub head: SnapshotHead,
    /// The state of the replica, which is written in the same transaction: its term is that of the
    /// snapshot's message at least, its commit index that of the snapshot.
    pub hard_state: HardState,
}

/// A replica to be ended, with all that the store has of it: in one transaction its rows go, if it
/// has any, and the region's tombstone rises to its id.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EndTask {
    /// The region.
    pub region: RegionId,
    /// The replica. It may never have been here: then the tombstone keeps it from being made.
    pub peer: PeerId,
}

/// A replica that a split has made here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewReplica {
    /// The new region.
    pub descriptor: Descriptor,
    /// The replica.
    pub peer: PeerId,
    /// Whether the replica of the parent leads. Then this one campaigns at once.
    pub campaigns: bool,
    /// Whether the replica of the parent is damaged. Then this one is as well.
    pub is_damaged: bool,
}

/// The load of a region that is led here, told when it has changed by an eighth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionLoad {
    /// The region.
    pub region: RegionId,
    /// Requests that it takes in a second, in the mean of the last few.
    pub requests_per_s: u64,
}

/// The load of regions that are led here. Unanswered.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LoadEffects {
    /// Regions that should be split, with an `Event::Split`. Repeated after some time.
    pub split_wishes: Vec<SplitWish>,
    /// Loads that are other ones than were told last.
    pub regions: Vec<RegionLoad>,
}

impl LoadEffects {
    fn clear(&mut self) {
        self.split_wishes.clear();
        self.regions.clear();
    }

    fn is_empty(&self) -> bool {
        self.split_wishes.is_empty() && self.regions.is_empty()
    }
}

/// A region that its leader would have split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitWish {
    /// The region.
    pub region: RegionId,
    /// Its version.
    pub epoch: Epoch,
    /// Where, or into how many parts.
    pub reason: SplitReason,
}

/// Why a region should be split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SplitReason {
    /// It is too large: into parts of about the same size.
    Size {
        /// How many.
        parts: usize,
    },
    /// It takes too much load: at this key, which parts the load.
    Load {
        /// The border.
        key: Bytes,
        /// The load in the last second.
        requests_per_s: u64,
    },
}

/// Entries that no replica needs any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Compaction {
    /// The region.
    pub region: RegionId,
    /// The replica, which names the log group.
    pub peer: PeerId,
    /// The first entry to be kept.
    pub first: Index,
    /// The term of the entry before it.
    pub term_before: Term,
}

/// Entries to be read from a replica's log, for a follower that is far behind.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogFetch {
    /// The region.
    pub region: RegionId,
    /// The replica, which names the log group.
    pub peer: PeerId,
    /// Returned with the answer.
    pub context: u64,
    /// The first entry.
    pub low: Index,
    /// The first entry beyond.
    pub high: Index,
    /// The answer may stop after this many bytes; it holds at least one entry.
    pub bytes_max: u64,
}

/// Committed entries of one region, in order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApplyTask {
    /// The region.
    pub region: RegionId,
    /// The entries. Never none.
    pub entries: Vec<Committed>,
}

/// A committed entry and the tickets of its proposals.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Committed {
    /// The entry.
    pub entry: LogEntry,
    /// The i-th ticket belongs to the entry's i-th proposal. Empty if it was proposed elsewhere.
    pub tickets: Vec<Ticket>,
}

/// A read that may take its snapshot now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ReadGrant {
    /// The region.
    pub region: RegionId,
    /// The reading request.
    pub ticket: Ticket,
    /// Whether the read was granted under a lease, without asking a quorum in this step. See
    /// [`crate::Shard::drop_leases_if_late`].
    pub by_lease: bool,
    /// Whether a replica that does not lead may serve it.
    pub follower: bool,
    /// The snapshot must have applied at least up to here.
    pub index: Index,
}

/// A transfer of leadership that is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LeaderTransferred {
    /// The region.
    pub region: RegionId,
    /// The request.
    pub ticket: Ticket,
    /// The leader now: mostly the one that was asked for.
    pub leader: Peer,
}

/// Another leader, another term, or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RoleChange {
    /// The region.
    pub region: RegionId,
    /// The term now.
    pub term: Term,
    /// The leader now, if known.
    pub leader: Option<Peer>,
    /// Whether it is the replica here.
    pub is_leader: bool,
}

/// The log of a replica ends below an entry that it had acknowledged. Raft would panic.
///
/// The text is for the operator; the driver puts the name of its store before it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "region {region}: store {} counts on entry {acknowledged}, which this store acknowledged, but \
     its log ends at {last}: an older copy of this store's disk, or a disk that lost what it had \
     synced. Nothing may be acknowledged from it: bring the store's own disk back",
    from.store
)]
pub struct LostLog {
    /// The region.
    pub region: RegionId,
    /// The replica that counts on the entry.
    pub from: Peer,
    /// The entry.
    pub acknowledged: Index,
    /// The last entry that is there.
    pub last: Index,
}

/// A message of a member has a term that cannot be. It was refused, and so are others of its kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "region {region}: messages of store {} are refused: their term is {term}, ours is {here}",
    from.store
)]
pub struct WildTerm {
    /// The region.
    pub region: RegionId,
    /// The sender.
    pub from: Peer,
    /// The term of its message.
    pub term: Term,
    /// The term of the replica here.
    pub here: Term,
}
