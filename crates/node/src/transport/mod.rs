//! The transport between stores: for each other store two gRPC streams of frames.
//!
//! The *urgent* stream has what is small and of use only now (votes, heartbeats, answers); the
//! *append* stream has log entries. Each has a connection of its own, so that a vote never waits
//! behind a megabyte. Messages of one kind from one replica to another keep their order: they take
//! the same stream, and a receiver drops an old stream as soon as the same store opens a new one.
//!
//! Nothing here waits for room or repeats a message. A message that finds its queue full is
//! dropped, and the region gets `Event::Unreachable`, so that it probes instead of sending ahead.
//!
//! A snapshot has a stream and a connection of its own, for as long as it takes (`snapshots`).

mod convert;
mod counters;
mod fault;
mod frame_receiver;
mod links;
mod peer_stream;
mod send_queue;
mod snapshots;

pub use counters::TransportCounts;
pub(crate) use counters::{SnapshotInFlight, TransportCounters};
pub(crate) use frame_receiver::FrameReceiver;
pub(crate) use links::{PeerConnections, PeerTransport, TransportLimits};
pub(crate) use snapshots::{ByteRate, SnapshotRates};
