//! One replica of a key range and a shard of many, without IO.
//!
//! ```text
//!    messages, snapshots,                   messages, snapshots, log writes, compactions,
//!    proposals, reads,                      fetches, entries to apply, installs,
//!    completions, the time                  grants, rejections, leaders
//!              │                                              ▲
//!              ▼                                              │
//!            Event ──► Shard::step ──► Replica ──► raft ──► Ready ──► Effects
//! ```
//!
//! A [`Shard`] decides and does nothing (`docs/decisions/0001-one-seam.md`): a driver hands it
//! events and the time, and carries out the effects that come back, list by list. It reports their
//! completion as further events, in order for each region. Two shards with the same input have the
//! same output.
//!
//! The promises of the crate, and how it keeps them:
//! - A ticket that goes in comes out once: with the applied entry, granted, or rejected. A rejected
//!   request had no effect and will have none. A proposal in the log of a former leader waits until
//!   its fate is known.
//! - A granted read sees every write that was answered before it was asked for, if the driver reads
//!   the clock after it has taken the events, and the snapshot after the grant. A step that took so
//!   long that a lease may be over grants nothing under it ([`Shard::drop_leases_if_late`]).
//! - A message that promises something about the log leaves once the log is on disk.
//! - A message is believed within bounds: a term far above ours is refused. A message that proves
//!   that the log here has lost an acknowledged entry ends the store, in words.
//! - No message from another store makes it panic. A broken invariant of its own does, and must end
//!   the process.
//! - A replica without data is born before it votes, and a snapshot counts once a durable root has
//!   its rows and the log is emptied behind it (docs/many-regions.md, R14 and R15).
//! - The log is kept for replicas that lack it within bounds; beyond them they get a snapshot.
//!
//! - Members change one at a time, and a replica that is removed ends by a durable root before any
//!   other store is told that it is gone (docs/many-regions.md, R12, R13, R17, R18).

mod admin_command;
mod admissions;
mod applying;
mod compaction;
mod config;
mod consensus;
mod consistency_check;
mod convert;
mod damage;
mod descriptor;
mod digest_comparison;
mod disk_usage;
mod effects;
mod ending_replicas;
mod entry;
pub mod entry_data;
mod epoch;
mod error;
mod event;
mod held_votes;
mod ids;
mod invariants;
mod kept_logs;
mod leader_transfer;
mod lease;
mod log_fetches;
mod log_marks;
mod log_window;
mod membership;
mod membership_change;
mod membership_check;
mod message;
mod message_filter;
mod persistence;
mod proposals;
mod read_index;
mod read_path;
mod recovered_replica;
mod removed_replicas;
mod replica;
mod shard;
mod snapshot_filter;
mod snapshot_install;
mod snapshot_sends;
mod split_borders;
mod split_policy;
mod status;
mod step_context;
mod timers;
mod uninitialised;

pub use admin_command::{
    AdminCommand, SPLIT_CHILDREN_MAX, SplitChild, SplitCommand, SplitError, SplitRegions,
};
pub use config::{
    Config, InvalidConfig, QueueLimits, ReadConfig, RegionSettings, SplitLimits, WindowConfig,
};
pub use descriptor::{
    Descriptor, Epoch, KeyRange, Peer, PeerRole, RegionPeer, RegionSize, RemovedPeers, Space,
};
pub use digest_comparison::{ComparedReplica, ConsistencyVerdict, DigestComparison};
pub use disk_usage::{DiskUsage, StoreDisks};
pub use effects::{
    Answers, ApplyTask, BirthOrigin, Committed, Compaction, Effects, EndTask, Findings,
    InstallTask, LeaderTransferred, LoadEffects, LogEffects, LogFetch, LogReset, LogWrite, LostLog,
    NewReplica, ReadGrant, RegionLoad, ReplicaBirth, RoleChange, SnapshotSend, SplitReason,
    SplitWish, WildTerm,
};
pub use entry::{EntryKind, HardState, LogEntry};
pub use error::{CreateReplicaError, MembershipRefusal, Reject, TransferError};
pub use event::{Event, KeySpan, NotAdmitted, RegionChange, RequestPrecondition};
pub use ids::{Index, PeerId, RegionId, StageId, StoreId, Term, Ticket, Time};
pub use membership_change::{
    LEARNERS_MAX, MembershipChange, MembershipCommand, MembershipError, REMOVED_MAX, VOTERS_MAX,
};
pub use message::{Envelope, Message, MessageKind, Notice, NoticeKind, SnapshotHead};
pub use recovered_replica::{
    RecoveredReplica, SPLIT_INDEX, SPLIT_TERM, UnbornReplica, UninitialisedReplica,
};
pub use shard::Shard;
pub use status::{Dropped, Role, Stats, Status};

#[cfg(test)]
mod tests;
