//! `[disk]`: when the disk of the data directory counts as full, and the reserve.

use flotilla_dispatch::DiskLimits;

use super::key::{MIB, NO_LIMIT, TIB, bytes, ratio, settings};
use super::storage::StorageConfig;

settings! {
    /// The space on the disk of the data directory.
    #[derive(Copy)]
    pub struct DiskConfig: "disk" {
        /// Part of the disk that is free below which no snapshots come in and no region is split
        /// without being asked. 0: only where the disk is full.
        #[key(ratio().at_reload())]
        pub almost_full_free_ratio: f64,
        /// Free bytes of the disk below which it is full: puts are refused, and leaders leave. It
        /// is to be more than `storage.dirty_bytes_hard_max` and some segments of the log. Below a
        /// quarter of it, 1 GiB at most, entries of other leaders are refused too.
        #[key(bytes(0, NO_LIMIT).at_reload())]
        pub full_free_bytes: u64,
        /// Part of the disk that is free below which it is full, if that is more.
        #[key(ratio().at_reload())]
        pub full_free_ratio: f64,
        /// Bytes of a file that only takes room, and is removed when the store would have none:
        /// for votes, ends of replicas and checkpoints. 0: none.
        #[key(bytes(MIB, TIB).or_zero())]
        pub reserve_bytes: u64,
    }
}

impl Default for DiskConfig {
    fn default() -> Self {
        Self {
            almost_full_free_ratio: 0.1,
            full_free_bytes: 5 << 30,
            full_free_ratio: 0.02,
            reserve_bytes: 256 << 20,
        }
    }
}

impl DiskConfig {
    /// The bounds by which the disk is judged.
    #[must_use]
    pub fn limits(&self, storage: &StorageConfig) -> DiskLimits {
        DiskLimits {
            almost_full_ratio: self.almost_full_free_ratio,
            full_bytes: self.full_free_bytes,
            full_ratio: self.full_free_ratio,
            reserve_bytes: self.reserve_bytes,
            log_bytes_max: storage.log_disk_bytes_max,
            log_segment_bytes: storage.segment_bytes,
        }
    }
}
