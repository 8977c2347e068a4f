//! Statistics of a store: transactions, space, reads, checkpoints.

flotilla_base::metrics! { "pages",
    /// Figures of one moment; the sizes are in bytes.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct Stats {
        /// The last published transaction.
        pub txid: u64 => Gauge(None),
        /// The last durable transaction, by a checkpoint or by its record in the redo area.
        pub durable_txid: u64 => Gauge(None),
        /// The transaction of the oldest snapshot that is held, the durable one included.
        pub oldest_txid: u64 => Gauge(None),
        /// Different roots that snapshots hold, the durable one included.
        pub root_count: usize => Gauge(None, "roots"),
        /// Length of the file.
        pub file_bytes: u64 => Gauge(Bytes),
        /// Part of the file in use or free to be used; the rest is reserved for growth.
        pub span_bytes: u64 => Gauge(Bytes),
        /// Free space.
        pub free_bytes: u64 => Gauge(Bytes),
        /// Space that waits for snapshots to end, or for the next checkpoint.
        pub pending_bytes: u64 => Gauge(Bytes),
        /// Space of subtrees that were cut off and whose free is deferred.
        pub deferred_free_bytes: u64 => Gauge(Bytes),
        /// Dirty bytes: the next checkpoint has to write them, or the running one has begun to.
        pub dirty_bytes: u64 => Gauge(Bytes),
        /// Bytes that opening the store now would read from the redo area and replay.
        pub redo_bytes: u64 => Gauge(Bytes),
        /// Memory and counts of reads.
        pub reads: ReadStats => Nested(),
        /// Checkpoints that this process has written.
        pub checkpoint_count: u64 => Counter(None, "checkpoints"),
        /// Bytes written by checkpoints, and by builders of trees.
        pub written_bytes: u64 => Counter(Bytes),
        /// Written bytes that say which parts of the file are used and free.
        pub space_written_bytes: u64 => Counter(Bytes),
        /// Memory that old snapshots need, and the part of it that went to the spill file.
        pub spill: SpillStats => Nested(),
        /// Space that was given back to the file system.
        pub trim_punch: TrimPunchStats => Nested(),
    }
}

flotilla_base::metrics! { "pages",
    /// Memory that snapshots older than the last published state need.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct SpillStats {
        /// Bytes of it that are in memory.
        ///
        /// Those that wait only for the next transaction, behind a checkpoint, are among them.
        pub old_version_bytes: u64 => Gauge(Bytes),
        /// Bytes of it that are in the spill file.
        pub spilled_bytes: u64 => Gauge(Bytes),
        /// Space that the spill file takes of the disk.
        pub file_bytes: u64 => Gauge(Bytes, "spill_file_bytes"),
        /// Bytes written to the spill file.
        pub written_bytes: u64 => Counter(Bytes, "spill_written_bytes"),
        /// How often memory stayed memory because the disk was full, or refused it.
        pub error_count: u64 => Counter(None, "spill_errors"),
        /// Snapshots that were ended because old ones held too much disk space.
        pub ended_snapshots: u64 => Counter(None),
    }
}

flotilla_base::metrics! { "pages",
    /// Space of the file that was given back to the file system, by truncation or as holes.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct TrimPunchStats {
        /// Bytes that this process has cut off from the end of the file.
        pub trimmed_bytes: u64 => Counter(Bytes),
        /// Bytes that this process has punched out inside of the file.
        pub punched_bytes: u64 => Counter(Bytes),
        /// Free space inside of the file that is a hole now.
        ///
        /// After opening, all free space of the groups that have holes counts as such.
        pub hole_bytes: u64 => Gauge(Bytes),
        /// Bytes that checkpoints have found to be spare, and that were not yet given back.
        ///
        /// [`PageStore::trim_punch`] gives them back.
        ///
        /// [`PageStore::trim_punch`]: crate::PageStore::trim_punch
        pub waiting_bytes: u64 => Gauge(Bytes, "spare_bytes"),
    }
}

flotilla_base::metrics! { "pages",
    /// Memory and counts of reads.
    #[derive(Clone, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct ReadStats {
        /// Bytes in memory that a checkpoint has written, and that snapshots may still borrow.
        ///
        /// They go when these end, and when another transaction has been published.
        pub retired_bytes: u64 => Gauge(Bytes),
        /// Clean pages that were read into memory; none where the file is mapped.
        pub cached_bytes: u64 => Gauge(Bytes),
        /// Pages and long values that were read from the file, or checked in its map.
        ///
        /// The map is checked when they are first looked at.
        pub read_count: u64 => Counter(None, "reads"),
        /// Bytes that the scrub of maintenance has read again.
        pub scrubbed_bytes: u64 => Counter(Bytes),
        /// Passes of the scrub over the whole file.
        pub scrub_passes: u64 => Counter(None),
        /// Steps of the scrub that found corruption, or a page that the disk cannot read.
        ///
        /// The next step begins with the same page, so one page may count many times.
        pub scrub_errors: u64 => Counter(None),
    }
}
