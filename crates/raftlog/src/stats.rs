//! What the engine counts.

use std::sync::atomic::AtomicU64;

/// Figures of a running engine. Counts are since it was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Batches written.
    pub batches: u64,
    /// Group commits, each one write (two if a segment became full).
    pub flushes: u64,
    /// Group commits that were synced. Segments that became full are not in it.
    pub syncs: u64,
    /// Bytes of frames written.
    pub bytes_written: u64,
    /// Bytes of batches that are queued or being written now.
    pub queued_bytes: u64,
    /// The last batch of which it is known that the disk has it.
    pub durable_lsn: u64,
    /// Segments on disk that hold batches.
    pub segments: u64,
    /// Those of them that are full and wait to be sealed: what [`crate::LogEngine::maintain`] is
    /// behind with. Above two, writes do it themselves.
    pub unsealed_segments: u64,
    /// Dead segments that are kept to be used again.
    pub spare_segments: u64,
    /// Bytes of the segments' files.
    pub segment_bytes: u64,
    /// Bytes in them that the index still names; the rest can be purged once it is oldest.
    pub live_bytes: u64,
    /// Groups that have entries or keys.
    pub groups: u64,
    /// Memory of the index: what its lists have room for, and the groups' places among each other.
    pub index_bytes: u64,
    /// Memory of decompressed data that is kept for later reads.
    pub cache_bytes: u64,
}

/// Counters that threads change as they go.
#[derive(Debug, Default)]
pub(crate) struct Counters {
    pub(crate) batches: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) durable_lsn: AtomicU64,
    pub(crate) live_bytes: AtomicU64,
}
