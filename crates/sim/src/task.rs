//! Tasks of a store, and the outbox with their results.

use bytes::Bytes;
use flotilla_dispatch::StreamKind;
use flotilla_kv::ColumnFamily;
use flotilla_region::{
    Descriptor, Envelope, Event, LogFetch, Notice, ReadGrant, RegionId, RoleChange, SnapshotSend,
    SplitWish, Ticket,
};
use flotilla_store::ExpiredRange;

use crate::event_queue::SimTime;
use crate::packet::{Packet, StreamId};
use crate::placement_watch::StepRanges;
use crate::reference_model::CheckFailure;
use crate::request::ClientReply;

/// Work of one store, done at a moment of its own.
#[derive(Debug)]
pub(crate) enum Task {
    /// Give the core what has happened.
    Step,
    /// Give the core the time, if this is still the moment that it asked for.
    Wake(SimTime),
    /// Write and sync the log.
    Flush,
    /// Tell the core what was done.
    Post(Vec<Event>),
    /// Apply what waits.
    Apply,
    Fetch(LogFetch),
    Read(ReadGrant),
    /// Make a read again, by the time that the log has named for it.
    ReadLogged(ReadGrant),
    /// Read the next part of a scan.
    Scan(Ticket),
    /// Follow the store's maintenance policy.
    Maintain,
    /// Remove log segments that are not needed.
    Purge,
    /// Go on with the bootstrap.
    Bootstrap,
    /// Greet the stores without a link.
    Greet,
    /// Hand out what a step has brought forth, in which the store stood still.
    DispatchEffects,
    /// Make a checkpoint: something waits for a root.
    Checkpoint,
    /// Look whether the replica that a message is for may be made.
    Admit(Box<Envelope>),
    /// Send a snapshot when its turn comes.
    SendSnapshot(Box<SnapshotSend>),
    /// Begin to send those whose turn it is.
    SendSnapshots,
    /// Give up a snapshot that is sent.
    EndSending(u64),
    /// Give up a snapshot that comes.
    EndReceiving(StreamId),
    /// Send messages that wait for a store.
    SendFrame {
        to: usize,
        kind: StreamKind,
    },
    /// Split a region, as its leader wishes.
    Split(SplitWish),
    /// Look for rows that have expired.
    Sweep,
    /// Look for a region whose replicas should be compared.
    Verify,
    /// Compute a part of a digest.
    Digest,
}

impl Task {
    /// A number of its own for each kind, for the trace.
    pub(crate) fn number(&self) -> u64 {
        match self {
            Self::Step => 1,
            Self::Wake(_) => 2,
            Self::Flush => 3,
            Self::Post(_) => 4,
            Self::Apply => 5,
            Self::Fetch(_) => 6,
            Self::Read(_) => 7,
            Self::Maintain => 8,
            Self::Purge => 9,
            Self::Bootstrap => 10,
            Self::Greet => 11,
            Self::DispatchEffects => 12,
            Self::Checkpoint => 13,
            Self::Admit(_) => 14,
            Self::SendSnapshot(_) => 15,
            Self::EndSending(_) => 16,
            Self::EndReceiving(_) => 17,
            Self::SendSnapshots => 18,
            Self::Split(_) => 19,
            Self::SendFrame { .. } => 20,
            Self::Scan(_) => 21,
            Self::Sweep => 22,
            Self::Verify => 23,
            Self::Digest => 24,
            Self::ReadLogged(_) => 25,
        }
    }
}

/// A split that a leader wishes for, and that can be asked for now.
#[derive(Debug)]
pub(crate) struct WishedSplit {
    pub(crate) region: Descriptor,
    pub(crate) borders: Vec<Bytes>,
    /// Because of load, and not of size.
    pub(crate) is_by_load: bool,
}

/// Rows of a region that a store wants removed.
#[derive(Debug)]
pub(crate) struct ExpiredRows {
    pub(crate) region: Descriptor,
    pub(crate) family: ColumnFamily,
    pub(crate) range: ExpiredRange,
    pub(crate) time_ms: u64,
}

/// A read that is made again once the region's log has named a time.
#[derive(Debug)]
pub(crate) struct HeldRead {
    pub(crate) ticket: Ticket,
    pub(crate) region: Descriptor,
    pub(crate) time_ms: u64,
}

/// The results of a store's work. The lists are reused.
#[derive(Debug, Default)]
pub(crate) struct Outbox {
    /// More tasks, each with its delay in microseconds.
    pub(crate) tasks: Vec<(u64, Task)>,
    pub(crate) envelopes: Vec<Envelope>,
    pub(crate) notices: Vec<Notice>,
    /// Greetings, and questions of the bootstrap.
    pub(crate) packets: Vec<Packet>,
    pub(crate) replies: Vec<(Ticket, ClientReply)>,
    /// Requests whose fate the store does not learn.
    pub(crate) undecided: Vec<Ticket>,
    pub(crate) roles: Vec<RoleChange>,
    pub(crate) ranges: Vec<StepRanges>,
    /// Regions whose replicas have ended.
    pub(crate) ended: Vec<RegionId>,
    pub(crate) wishes: Vec<WishedSplit>,
    /// Answers that wait for a time in the log.
    pub(crate) held_reads: Vec<HeldRead>,
    /// Rows that have expired.
    pub(crate) expired: Vec<ExpiredRows>,
    /// Regions whose replicas are to be compared.
    pub(crate) comparisons: Vec<Descriptor>,
    /// The store stalls for this long, and hands out its effects then.
    pub(crate) stall_us: Option<u64>,
}

/// Why a store does not go on.
#[derive(Debug)]
pub(crate) enum StopReason {
    /// The disk failed as was ordered.
    Died,
    /// It must not run, and says why: its directory is not the one that the cluster knows, or its
    /// flags differ from those of the others.
    Refused(String),
    /// A bit of its disk has cost rows that no other store has.
    Lost(String),
    /// Something happened that must never happen.
    CheckFailure(CheckFailure),
}
