//! Snapshots between stores, each as a stream of its own.
//!
//! A region asks for a snapshot to be sent by an effect, and hears how it ended in every case: the
//! report leaves when its guard is dropped (`sender`). Reading a view and writing a stage wait for
//! the disk, so both have a thread that may block (`source`, `stager`), and tasks move the bytes
//! between it and the stream (`sender`, `receiver`).
//!
//! Work under way is bounded: four streams each way, four chunks of 1 MiB a stream, and a rate of
//! bytes for all of them (`byte_rate`). A stream has a deadline that follows from its size. The
//! receiver's stage is dropped wherever a stream ends before its end, and each offer is counted
//! once, before its sender hears of the outcome (`receipt`).

mod byte_rate;
mod receipt;
mod receiver;
mod sender;
mod source;
mod stager;

pub(crate) use byte_rate::{ByteRate, SnapshotRates};
pub(super) use receiver::{SnapshotReceiver, VerdictStream};
pub(super) use sender::SnapshotSender;

/// Streams in each direction.
const STREAMS_MAX: usize = 4;

/// Chunks that were sent and are not acknowledged.
const CHUNKS_IN_FLIGHT: u64 = 4;

/// Bytes of a chunk, about: a row that is larger is a chunk of its own.
const CHUNK_BYTES: usize = 1 << 20;
