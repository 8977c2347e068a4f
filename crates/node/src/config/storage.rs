//! `[storage]`: the log, the page file and checkpoints. `[scrub]`: the search for bit rot.

use std::time::Duration;

use flotilla_store::{PageOptions, PageReadMode};
use serde::Deserialize;

use super::error::{ConfigError, within};

/// Files and checkpoints. Settings that begin with `log_` are handed to the log engine as they are,
/// and have their meaning, default and limits there: [`flotilla_raftlog::Config`].
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct StorageConfig {
    /// Bytes of one file of the log. Default 64 MiB, 1 MiB to 1 GiB. Old files go as a whole, so
    /// this is also the unit in which space comes back.
    pub segment_bytes: u64,
    /// Bytes of the log above which what is still needed is moved out of its oldest files, so that
    /// they can go. Default 1 GiB.
    pub log_purge_above_bytes: u64,
    /// Bytes that one purge, so one checkpoint, moves at most. Default 64 MiB; 0: none are moved.
    pub log_move_bytes_max: u64,
    /// Part of a file, 0 to 1, up to which moving what is needed of it pays. Default 0.5.
    pub log_move_live_ratio_max: f64,
    /// Bytes that the log may take on disk; the store stops rather than take more. Default none;
    /// at least eight times `segment_bytes`.
    pub log_disk_bytes_max: Option<u64>,
    /// Dead files of the log kept to be written again. Default 4.
    pub log_spare_segments: usize,
    /// Bytes of decompressed log entries to keep in memory. Default 32 MiB.
    pub log_cache_bytes_max: u64,
    /// Milliseconds between checkpoints of the pages while something is written. Default 2000,
    /// 50 to 600 000. Longer means fewer page writes, a longer log and a longer restart.
    pub checkpoint_interval_ms: u64,
    /// Bytes of dirty pages that ask for a checkpoint before its time. Default 64 MiB, at least 4
    /// MiB.
    pub dirty_bytes_max: u64,
    /// Bytes of dirty pages at which applying waits until a checkpoint has written some of them.
    /// From `dirty_bytes_max` on it waits the longer the nearer they come to this. Default four
    /// times `dirty_bytes_max`, and at least that.
    pub dirty_bytes_hard_max: Option<u64>,
    /// Bytes in memory that only old snapshots need, above which a checkpoint writes them to a
    /// temporary file next to the page file, where that is mapped. Default 64 MiB, at least 4 MiB.
    pub old_version_bytes: u64,
    /// Bytes of the disk that snapshots keep, in the page file and in that temporary file, above
    /// which the oldest one is ended: its reader is told that the store is busy. Default 16 GiB, at
    /// least 64 MiB.
    pub old_version_disk_bytes: u64,
    /// Bytes of clean pages to keep in memory where the page file cannot be mapped. Default 64 MiB,
    /// at least 1 MiB.
    pub cache_bytes: u64,
    /// How pages are read. Default `mapped`.
    pub pages_read_mode: PagesReadMode,
    /// Bytes by which the file of the pages grows. Default 1 MiB, at most 1 GiB.
    pub pages_growth_bytes: u64,
    /// Free bytes at the end of that file at which it is cut off. Default 64 MiB.
    pub pages_trim_bytes: u64,
    /// Bytes of pages that are moved towards the beginning of the file with one checkpoint. Default
    /// 16 MiB; 0: none are moved.
    pub pages_move_bytes_max: u64,
    /// Part of the file, 0 to 1, that is free when moving begins. Default 0.5.
    pub pages_move_free_ratio_min: f64,
}

/// The search for bit rot.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ScrubConfig {
    /// Milliseconds in which the whole file of the pages is read again, over and over, while the
    /// store is idle. Default 7 days, at least a minute; 0: never.
    pub pages_interval_ms: u64,
}

/// How pages are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
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
        Self { pages_interval_ms: 7 * 24 * 60 * 60 * 1000 }
    }
}

impl ScrubConfig {
    /// The time of one pass over the pages; none if there is to be none.
    #[must_use]
    pub fn pages_interval(&self) -> Option<Duration> {
        (self.pages_interval_ms > 0).then(|| Duration::from_millis(self.pages_interval_ms))
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let least_ms = if self.pages_interval_ms == 0 { 0 } else { 60_000 };
        within("scrub.pages_interval_ms (or 0)", self.pages_interval_ms, least_ms, u64::MAX)
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

    fn dirty_bytes_hard_max(&self) -> u64 {
        self.dirty_bytes_hard_max.unwrap_or(self.dirty_bytes_max.saturating_mul(4))
    }

    pub(super) fn check(&self) -> Result<(), ConfigError> {
        within("storage.segment_bytes", self.segment_bytes, 1 << 20, 1 << 30)?;
        // The engine's text begins with the name of its field, which is ours behind the prefix.
        self.log().check().map_err(|error| match error {
            flotilla_raftlog::Error::Invalid(what) => {
                ConfigError::Value(format!("storage.log_{what}"))
            }
            other => ConfigError::Value(format!("storage: {other}")),
        })?;
        within("storage.checkpoint_interval_ms", self.checkpoint_interval_ms, 50, 600_000)?;
        self.check_pages()
    }

    fn check_pages(&self) -> Result<(), ConfigError> {
        within("storage.dirty_bytes_max", self.dirty_bytes_max, 4 << 20, u64::MAX)?;
        within(
            "storage.dirty_bytes_hard_max (at least storage.dirty_bytes_max)",
            self.dirty_bytes_hard_max(),
            self.dirty_bytes_max,
            u64::MAX,
        )?;
        within("storage.old_version_bytes", self.old_version_bytes, 4 << 20, u64::MAX)?;
        within("storage.old_version_disk_bytes", self.old_version_disk_bytes, 64 << 20, u64::MAX)?;
        within("storage.cache_bytes", self.cache_bytes, 1 << 20, u64::MAX)?;
        within("storage.pages_growth_bytes", self.pages_growth_bytes, 0, 1 << 30)?;
        let ratio = self.pages_move_free_ratio_min;
        if (0.0..=1.0).contains(&ratio) {
            return Ok(());
        }
        let what = format!("storage.pages_move_free_ratio_min = {ratio} is out of range: 0 to 1");
        Err(ConfigError::Value(what))
    }

    fn log(&self) -> flotilla_raftlog::Config {
        flotilla_raftlog::Config::default()
            .segment_bytes(self.segment_bytes)
            .purge_above_bytes(self.log_purge_above_bytes)
            .move_bytes_max(self.log_move_bytes_max)
            .move_live_ratio_max(self.log_move_live_ratio_max)
            .disk_bytes_max(self.log_disk_bytes_max)
            .spare_segments(self.log_spare_segments)
            .cache_bytes_max(self.log_cache_bytes_max)
    }
}
