//! Statistics of a store: transactions, space, reads, checkpoints.

/// Figures of one moment; the sizes are in bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Stats {
    /// The last published transaction.
    pub txid: u64,
    /// The last durable transaction, by a checkpoint or by its record in the redo area.
    pub durable_txid: u64,
    /// The transaction of the oldest snapshot that is held, the durable one included.
    pub oldest_txid: u64,
    /// How many different roots are held.
    pub root_count: usize,
    /// Length of the file.
    pub file_bytes: u64,
    /// Part of the file in use or free to be used; the rest is reserved for growth.
    pub span_bytes: u64,
    /// Free space.
    pub free_bytes: u64,
    /// Space that waits for snapshots to end, or for the next checkpoint.
    pub pending_bytes: u64,
    /// Space of subtrees that were cut off and whose free is deferred.
    pub deferred_free_bytes: u64,
    /// Dirty bytes: the next checkpoint has to write them, or the running one has begun to.
    pub dirty_bytes: u64,
    /// Bytes that opening the store now would read from the redo area and replay.
    pub redo_bytes: u64,
    /// Memory and counts of reads.
    pub reads: ReadStats,
    /// Checkpoints that this process has written.
    pub checkpoint_count: u64,
    /// Bytes written by them, and by builders of trees.
    pub written_bytes: u64,
    /// Those of them that say which parts of the file are used and free.
    pub space_written_bytes: u64,
    /// Space that was given back to the file system.
    pub trim_punch: TrimPunchStats,
}

/// Space of the file that was given back to the file system, by truncation or as holes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct TrimPunchStats {
    /// Bytes that this process has cut off from the end of the file.
    pub trimmed_bytes: u64,
    /// Bytes that this process has punched out inside of the file.
    pub punched_bytes: u64,
    /// Free space inside of the file that is a hole now. After opening, all free space of the
    /// groups that have holes counts as such.
    pub hole_bytes: u64,
    /// Bytes that checkpoints have found to be spare, and that [`PageStore::trim_punch`] has not
    /// yet given back.
    ///
    /// [`PageStore::trim_punch`]: crate::PageStore::trim_punch
    pub waiting_bytes: u64,
}

/// Memory and counts of reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ReadStats {
    /// Bytes in memory that a checkpoint has written, and that snapshots which see them may still
    /// have borrowed. They go when these end, and when another transaction has been published.
    pub retired_bytes: u64,
    /// Clean pages that were read into memory; none where the file is mapped.
    pub cached_bytes: u64,
    /// Pages and long values that were read from the file, or checked in the map when they were
    /// first looked at.
    pub read_count: u64,
}
