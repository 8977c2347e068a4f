//! `[raft]`: ticks, elections and entries, which are settings of the cluster; and how much of the
//! log a store keeps for others.

use flotilla_identity::ClusterSettings;
use serde::Deserialize;

use super::error::{ConfigError, within};
use super::split::SplitConfig;
use super::storage::StorageConfig;

/// Ticks, elections and entries: settings of the cluster. They are fixed at its bootstrap; later a
/// store takes them from its own copy, and a value that is given must be equal to that. Only
/// `log_kept_bytes_max` is the store's own, and may change at any start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct RaftConfig {
    /// Milliseconds of one tick. Default 50, 10 to 10 000.
    pub tick_ms: Option<u64>,
    /// Ticks without a leader before a replica stands for election. Default 12, that is 600 ms;
    /// at least 4 and at least three times `heartbeat_ticks`.
    pub election_ticks: Option<u64>,
    /// Ticks between a leader's heartbeats. Default 2, at least 1.
    pub heartbeat_ticks: Option<u64>,
    /// Bytes of one log entry at most; a larger command is refused. Default 8 MiB, 64 KiB to
    /// 12 MiB: a message between stores holds one entry and may have 16 MiB.
    pub entry_bytes_max: Option<u64>,
    /// Whether leaders answer reads under a lease. Default true. False: every read asks a
    /// majority, whatever the clocks do.
    pub read_leases: Option<bool>,
    /// Bytes of log entries that the store keeps for replicas that lack them, all regions together:
    /// beyond it a replica that is away gets a snapshot when it comes back. Default 1 GiB, or a
    /// quarter of `storage.log_disk_bytes_max` if that is less, which is also the most; at least 1
    /// MiB.
    pub log_kept_bytes_max: Option<u64>,
}

/// Bytes of the log that are kept for others, where the disk has room for them.
const LOG_KEPT_BYTES: u64 = 1 << 30;

impl RaftConfig {
    /// Checks what is the store's own.
    pub(super) fn check(&self, storage: &StorageConfig) -> Result<(), ConfigError> {
        let Some(bytes) = self.log_kept_bytes_max else { return Ok(()) };
        let most = kept_bytes_most(storage).unwrap_or(1 << 40);
        let name = "raft.log_kept_bytes_max (at most a quarter of storage.log_disk_bytes_max)";
        within(name, bytes, 1 << 20, most)
    }

    /// Bytes of log entries that are kept for others, with the default put in.
    #[must_use]
    pub fn kept_bytes_max(&self, storage: &StorageConfig) -> u64 {
        let default =
            || kept_bytes_most(storage).map_or(LOG_KEPT_BYTES, |it| it.min(LOG_KEPT_BYTES));
        self.log_kept_bytes_max.unwrap_or_else(default)
    }
}

/// The rest of the log's disk is for entries that no root has yet, and for what is moved.
fn kept_bytes_most(storage: &StorageConfig) -> Option<u64> {
    storage.log_disk_bytes_max.map(|bytes| bytes / 4)
}

/// The most that `raft.entry_bytes_max` may be: no cluster takes a larger value.
pub const ENTRY_BYTES_MAX: u64 = 12 << 20;

/// The settings of a cluster are within their ranges, and fit together.
pub(super) fn check_settings(settings: &ClusterSettings) -> Result<(), ConfigError> {
    within("replicas", settings.replicas, 1, 7)?;
    within("raft.tick_ms", settings.tick_ms, 10, 10_000)?;
    within("raft.heartbeat_ticks", settings.heartbeat_ticks, 1, 1000)?;
    within(
        "raft.election_ticks (at least three times raft.heartbeat_ticks)",
        settings.election_ticks,
        // A follower must miss several heartbeats before it campaigns, or a single lost one would
        // cost the leader its place.
        (3 * settings.heartbeat_ticks).max(4),
        10_000,
    )?;
    within("raft.entry_bytes_max", settings.entry_bytes_max, 64 << 10, ENTRY_BYTES_MAX)
}

/// The configuration of the shards of a store, each of which keeps `log_kept_bytes_max` of the log
/// for others. `seed` must be another one at each start.
#[must_use]
pub fn shard_config(
    settings: &ClusterSettings,
    split: &SplitConfig,
    log_kept_bytes_max: u64,
    seed: u64,
) -> flotilla_region::Config {
    let ticks = |count: u64| u32::try_from(count).expect("checked to be at most 10 000");
    let mut config = flotilla_region::Config {
        tick_ms: settings.tick_ms,
        election_ticks: ticks(settings.election_ticks),
        heartbeat_ticks: ticks(settings.heartbeat_ticks),
        seed,
        entry_bytes_max: settings.entry_bytes_max as usize,
        split: split.limits(),
        ..flotilla_region::Config::default()
    };
    config.window.log_kept_bytes_max = log_kept_bytes_max;
    config.reads.leases = settings.read_leases;
    config
}
