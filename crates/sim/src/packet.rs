//! Packets between simulated stores: raft frames, handshakes, and bootstrap requests.

use bytes::Bytes;
use flotilla_identity::{
    BootstrapRequest, BootstrapResponse, ClusterSettings, QuestionToken, StoreHello, StoreRun,
    StoreUuid,
};
use flotilla_region::{DiskUsage, Envelope, Notice, RegionSize};

/// Something on its way from one store to another.
#[derive(Clone, Debug)]
pub(crate) struct Packet {
    /// The number of the sender.
    pub(crate) from: usize,
    /// The number of the receiver.
    pub(crate) to: usize,
    pub(crate) body: PacketBody,
    /// Whether the sender has its newest disk. For the audit alone.
    pub(crate) is_sound: bool,
}

impl Packet {
    pub(crate) fn new(from: usize, to: usize, body: PacketBody) -> Self {
        Self { from, to, body, is_sound: true }
    }
}

/// The body of a packet.
#[derive(Clone, Debug)]
pub(crate) enum PacketBody {
    /// A message of raft, with the sender's start, how far its log is synced, and how full its disk
    /// is.
    Frame { uuid: StoreUuid, run: StoreRun, log_end: u64, disk: DiskUsage, envelope: Box<Envelope> },
    /// A word about a replica that has ended, or should, with the sender's start.
    Notice { uuid: StoreUuid, run: StoreRun, notice: Notice },
    /// The receiver does not take frames of this start: the stream ends.
    FrameRefused { run: StoreRun },
    /// A question of the bootstrap, asked in an incarnation of the sender.
    Question { incarnation: u64, token: QuestionToken, request: BootstrapRequest },
    /// Its answer, for that incarnation of the receiver.
    Answer { incarnation: u64, token: QuestionToken, response: BootstrapResponse },
    /// A greeting, sent in an incarnation of the sender.
    Hello { incarnation: u64, hello: Box<StoreHello> },
    /// Its answer, for that incarnation of the receiver, and whether the greeting was accepted.
    HelloAnswer { incarnation: u64, hello: Box<StoreHello>, accepted: bool },
    /// The settings of the cluster, as the leader of placement has them.
    Settings(ClusterSettings),
    /// The version of them that the sender has taken up.
    SettingsTaken(u64),
    /// A part of a snapshot's stream, with the sender's start and the number of the part.
    SnapshotPart {
        uuid: StoreUuid,
        run: StoreRun,
        stream: StreamId,
        number: u64,
        part: SnapshotPart,
    },
    /// The verdict of a stream's receiver.
    SnapshotVerdict { stream: StreamId, verdict: SnapshotVerdict },
}

/// The stream of one snapshot.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct StreamId {
    /// The number of the sending store.
    pub(crate) from: usize,
    /// In which incarnation it sends.
    pub(crate) incarnation: u64,
    /// The number of the stream in that.
    pub(crate) number: u64,
}

/// A part of a snapshot's stream.
#[derive(Clone, Debug)]
pub(crate) enum SnapshotPart {
    Offer { envelope: Box<Envelope>, size: RegionSize },
    Rows(Bytes),
    End(Bytes),
}

/// The verdict of a stream's receiver.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SnapshotVerdict {
    /// The rows are wanted.
    Go,
    /// The part of this number was taken, and all before it.
    Taken(u64),
    /// The snapshot has come whole.
    Staged,
    /// Not now, or the stream is lost.
    Refused,
}
