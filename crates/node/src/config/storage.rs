//! `[storage]`: the log, the page file and checkpoints. `[scrub]`: the search for bit rot.

use std::time::Duration;

use flotilla_store::{PageOptions, PageReadMode};
use serde::{Deserialize, Serialize};

use super::error::ConfigError;
use super::key::{GIB, MIB, MINUTE, NO_LIMIT, bytes, count, milliseconds, ratio, settings, word};

settings! {
    /// The log, the page file and checkpoints.
    // Keys that begin with `log_` are handed to the log engine as they are, and have their limits
    // there as well: `flotilla_raftlog::Config`.
    pub struct StorageConfig: "storage" {
        /// Bytes of one file of the log; space comes back file by file.
        #[key(bytes(MIB, GIB))]
        pub segment_bytes: u64,
        /// Bytes of the log's newest files, which are left alone; of older ones those that are
        /// mostly garbage are emptied. The log takes at most this and twice what is still needed;
        /// below it files go as they die, and nothing is written twice.
        #[key(bytes(0, NO_LIMIT))]
        pub log_purge_above_bytes: u64,
        /// Bytes that one purge moves at most; there is one with each checkpoint. 0: none are
        /// moved.
        #[key(bytes(0, NO_LIMIT))]
        pub log_move_bytes_max: u64,
        /// Part of an old file up to which moving what is needed of it pays; a file of which more
        /// is needed stays.
        #[key(ratio())]
        pub log_move_live_ratio_max: f64,
        /// Bytes that the log may take on disk; short of them it is as if the disk were full.
        #[key(
            bytes(8 * MIB, NO_LIMIT)
                .beside("at least 8 × `storage.segment_bytes`")
                .default_is("none")
        )]
        pub log_disk_bytes_max: Option<u64>,
        /// Dead files of the log that are kept to be written again, each of `segment_bytes`.
        #[key(count(0, NO_LIMIT))]
        pub log_spare_segments: usize,
        /// Bytes of decompressed log entries kept in memory, for replicas that are behind.
        #[key(bytes(0, NO_LIMIT))]
        pub log_cache_bytes_max: u64,
        /// From one checkpoint to the next while something is written; longer means fewer page
        /// writes, a longer log and a longer restart.
        #[key(milliseconds(50, 10 * MINUTE))]
        pub checkpoint_interval_ms: u64,
        /// Bytes of dirty pages that ask for a checkpoint before its time.
        #[key(bytes(4 * MIB, NO_LIMIT))]
        pub dirty_bytes_max: u64,
        /// Bytes of dirty pages at which applying waits until a checkpoint has written some of
        /// them: the bound on memory when the disk is slower than the clients. From
        /// `dirty_bytes_max` on it waits the longer the nearer they come to this (a write
        /// throttle), so that clients are slowed down to the throughput of the disk and not
        /// stopped; the entries that wait for applying meanwhile are bounded by
        /// `limits.backlog_bytes_max`.
        #[key(
            bytes(4 * MIB, NO_LIMIT)
                .beside("at least `storage.dirty_bytes_max`")
                .default_is("4 × `dirty_bytes_max`")
        )]
        pub dirty_bytes_hard_max: Option<u64>,
        /// Bytes in memory that only old snapshots need, of long scans and of replicas that are
        /// brought up; a checkpoint that finds more writes them to a temporary file next to that of
        /// the pages, and maps them from there. With `pages_read_mode = "cached"` they stay in
        /// memory.
        #[key(bytes(4 * MIB, NO_LIMIT))]
        pub old_version_bytes: u64,
        /// Bytes of the disk that snapshots keep, in the file of the pages and in the temporary
        /// one; above it the oldest snapshot that is older than 10 s is ended, one a second: its
        /// reader is told that the store is busy, and a replica that it was sent to gets another
        /// one.
        #[key(bytes(64 * MIB, NO_LIMIT))]
        pub old_version_disk_bytes: u64,
        /// How pages are read: from a memory map of the file, so that the kernel keeps in memory
        /// what is read often; or into a cache of `cache_bytes`. Where the disk cannot read a
        /// sector, a map ends the process by `SIGBUS`, and the cache refuses the read.
        #[key(word(&["mapped", "cached"]))]
        pub pages_read_mode: PagesReadMode,
        /// Bytes of clean pages kept in memory where the page file is not mapped; where it is,
        /// clean pages lie in the kernel's page cache, which takes what memory is left and counts
        /// against a container's limit only as far as it is not given back.
        #[key(bytes(MIB, NO_LIMIT))]
        pub cache_bytes: u64,
        /// Bytes by which the file of the pages grows. 0: as many as are needed.
        #[key(bytes(0, GIB))]
        pub pages_growth_bytes: u64,
        /// Free bytes at the end of that file at which it is cut off, a megabyte at a time.
        #[key(bytes(0, NO_LIMIT))]
        pub pages_trim_bytes: u64,
        /// Bytes of pages that are moved towards the beginning of the file with one checkpoint, so
        /// that its end can be cut off. 0: none are moved.
        #[key(bytes(0, NO_LIMIT))]
        pub pages_move_bytes_max: u64,
        /// Part of the file that is free when moving begins; there must also be `pages_trim_bytes`.
        #[key(ratio())]
        pub pages_move_free_ratio_min: f64,
    }
}

settings! {
    /// The search for bit rot.
    #[derive(Eq)]
    pub struct ScrubConfig: "scrub" {
        /// The time in which the whole file of the pages is read again, over and over, while the
        /// store is idle; under load a pass takes up to eight times as long. 0: never.
        #[key(milliseconds(MINUTE, NO_LIMIT).or_zero())]
        pub pages_interval_ms: u64,
        /// The time in which all entries of the log are read again, likewise. 0: never.
        #[key(milliseconds(MINUTE, NO_LIMIT).or_zero())]
        pub log_interval_ms: u64,
    }
}

/// How pages are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum PagesReadMode {
    /// From a memory map of the file; the kernel decides what stays in memory.
    Mapped,
    /// Into a cache of `cache_bytes`.
    Cached,
}

impl Default for StorageConfig {
    fn default() -> Self {
        let store = flotilla_store::Config::default();
        let (log, pages) = (store.log, store.pages);
        Self {
            segment_bytes: log.segment_bytes,
            log_purge_above_bytes: log.purge_above_bytes,
            log_move_bytes_max: log.move_bytes_max,
            log_move_live_ratio_max: log.move_live_ratio_max,
            log_disk_bytes_max: log.disk_bytes_max,
            log_spare_segments: log.spare_segments,
            log_cache_bytes_max: log.cache_bytes_max,
            checkpoint_interval_ms: 2000,
            dirty_bytes_max: pages.dirty_soft_bytes,
            dirty_bytes_hard_max: None,
            old_version_bytes: pages.old_version_bytes,
            old_version_disk_bytes: pages.old_version_disk_bytes,
            cache_bytes: pages.cache_bytes,
            pages_read_mode: PagesReadMode::Mapped,
            pages_growth_bytes: pages.growth_bytes,
            pages_trim_bytes: pages.trim_bytes,
            pages_move_bytes_max: pages.defragment_bytes,
            pages_move_free_ratio_min: pages.defragment_free_ratio_min,
        }
    }
}

impl Default for ScrubConfig {
    fn default() -> Self {
        const WEEK_MS: u64 = 7 * 24 * 60 * 60 * 1000;
        Self { pages_interval_ms: WEEK_MS, log_interval_ms: WEEK_MS }
    }
}

impl ScrubConfig {
    /// The time of one pass over the pages; none if there is to be none.
    #[must_use]
    pub fn pages_interval(&self) -> Option<Duration> {
        (self.pages_interval_ms > 0).then(|| Duration::from_millis(self.pages_interval_ms))
    }

    /// The time of one pass over the log, likewise.
    #[must_use]
    pub fn log_interval(&self) -> Option<Duration> {
        (self.log_interval_ms > 0).then(|| Duration::from_millis(self.log_interval_ms))
    }
}

impl StorageConfig {
    /// The configuration of the store.
    #[must_use]
    pub fn store(&self) -> flotilla_store::Config {
        let mut config =
            flotilla_store::Config { log: self.log(), ..flotilla_store::Config::default() };
        if let Some(limit) = self.log_disk_bytes_max {
            // The log keeps what no checkpoint has yet, so one must be due long before it is full.
            config.checkpoint_log_bytes = config.checkpoint_log_bytes.min(limit / 4);
        }
        config.pages = PageOptions::default()
            .read_mode(match self.pages_read_mode {
                PagesReadMode::Mapped => PageReadMode::Mapped,
                PagesReadMode::Cached => PageReadMode::Cached,
            })
            .cache_bytes(self.cache_bytes)
            .growth_bytes(self.pages_growth_bytes)
            .trim_bytes(self.pages_trim_bytes)
            .checkpoint_interval(Some(Duration::from_millis(self.checkpoint_interval_ms)))
            // Two limits: at the first a checkpoint is due, between it and the second applying
            // slows down.
            .dirty_bytes(self.dirty_bytes_max, self.dirty_bytes_hard_max())
            .old_version_bytes(self.old_version_bytes)
            .old_version_disk_bytes(self.old_version_disk_bytes)
            .defragment(self.pages_move_bytes_max, self.pages_move_free_ratio_min);
        config
    }

    /// Bytes of dirty pages at which applying waits, with the default put in.
    pub(super) fn dirty_bytes_hard_max(&self) -> u64 {
        self.dirty_bytes_hard_max.unwrap_or(self.dirty_bytes_max.saturating_mul(4))
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        // The engine's text begins with the name of its field, which is ours behind the prefix.
        self.log().check().map_err(|error| match error {
            flotilla_raftlog::Error::Invalid(what) => {
                ConfigError::Value(format!("storage.log_{what}"))
            }
            other => ConfigError::Value(format!("storage: {other}")),
        })?;
        let (soft, hard) = (self.dirty_bytes_max, self.dirty_bytes_hard_max());
        if hard >= soft {
            return Ok(());
        }
        Err(ConfigError::Value(format!(
            "storage.dirty_bytes_hard_max = {hard} is less than storage.dirty_bytes_max, {soft}"
        )))
    }

    fn log(&self) -> flotilla_raftlog::Config {
        flotilla_store::Config::default()
            .log
            .segment_bytes(self.segment_bytes)
            .purge_above_bytes(self.log_purge_above_bytes)
            .move_bytes_max(self.log_move_bytes_max)
            .move_live_ratio_max(self.log_move_live_ratio_max)
            .disk_bytes_max(self.log_disk_bytes_max)
            .spare_segments(self.log_spare_segments)
            .cache_bytes_max(self.log_cache_bytes_max)
    }
}
