//! `[raft]`: ticks, elections and entries, which are settings of the cluster; and how much of the
//! log a store keeps for others.

use flotilla_identity::ClusterSettings;
use flotilla_region::RegionSettings;

use super::error::ConfigError;
use super::key::{KIB, MIB, SECOND, TIB, bytes, count, milliseconds, settings, switch};
use super::split::SplitConfig;
use super::storage::StorageConfig;
use crate::clock::Clock;

settings! {
    /// Settings of the cluster, on which leases rest; and how much of the log is kept for others.
    // Given at its bootstrap; later a store takes them from its own copy.
    #[derive(Default, Eq)]
    pub struct RaftConfig: "raft" {
        /// The time of a tick.
        #[key(milliseconds(10, 10 * SECOND).of_cluster().online())]
        pub tick_ms: Option<u64>,
        /// Ticks without a leader until a replica stands for election; 600 ms by default.
        #[key(count(4, 10_000).beside("at least 3 × `raft.heartbeat_ticks`").of_cluster())]
        pub election_ticks: Option<u64>,
        /// Ticks between heartbeats of a leader.
        #[key(count(1, 1000).of_cluster())]
        pub heartbeat_ticks: Option<u64>,
        /// Bytes of a log entry, and so of one write; a larger one is refused.
        // A message between stores holds one entry and may have 16 MiB.
        #[key(bytes(64 * KIB, ENTRY_BYTES_MAX).of_cluster().online())]
        pub entry_bytes_max: Option<u64>,
        /// Whether leaders answer reads under a lease; false: each read asks a majority, whatever
        /// the clocks do.
        #[key(switch().of_cluster().online())]
        pub read_leases: Option<bool>,
        /// Bytes of log entries that the store keeps for replicas that lack them, all regions
        /// together; a replica that lacks more gets a snapshot.
        #[key(
            bytes(MIB, TIB)
                .beside("at most a quarter of `storage.log_disk_bytes_max`")
                .default_is("1GiB, or a quarter of `storage.log_disk_bytes_max` if that is less")
        )]
        pub log_kept_bytes_max: Option<u64>,
    }
}

/// Bytes of the log that are kept for others, where the disk has room for them.
const LOG_KEPT_BYTES: u64 = 1 << 30;

impl RaftConfig {
    /// Checks what is the store's own.
    pub(super) fn check(&self, storage: &StorageConfig) -> Result<(), ConfigError> {
        match (self.log_kept_bytes_max, kept_bytes_most(storage)) {
            (Some(bytes), Some(most)) if bytes > most => Err(ConfigError::Value(format!(
                "raft.log_kept_bytes_max = {bytes} is more than {most}, a quarter of \
                 storage.log_disk_bytes_max"
            ))),
            _ => Ok(()),
        }
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

/// The settings of a cluster fit together.
pub(super) fn check_settings(settings: &ClusterSettings) -> Result<(), ConfigError> {
    let ClusterSettings { election_ticks, heartbeat_ticks, .. } = settings;
    // A follower must miss several heartbeats before it campaigns, or a single lost one would cost
    // the leader its place.
    let least = heartbeat_ticks.saturating_mul(3);
    if *election_ticks >= least {
        return Ok(());
    }
    Err(ConfigError::Value(format!(
        "raft.election_ticks = {election_ticks} is less than {least}, three times \
         raft.heartbeat_ticks"
    )))
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
        election_ticks: ticks(settings.election_ticks),
        heartbeat_ticks: ticks(settings.heartbeat_ticks),
        seed,
        split: split.limits(),
        ..flotilla_region::Config::default()
    };
    config.window.log_kept_bytes_max = log_kept_bytes_max;
    config.apply(region_settings(settings));
    config
}

/// The part of the settings of the cluster that regions go by, and that changes while they run.
#[must_use]
pub fn region_settings(settings: &ClusterSettings) -> RegionSettings {
    RegionSettings {
        tick_ms: settings.tick_ms,
        // A lease counts on a clock that goes on in suspend: decision 5,
        // `docs/decisions/0005-leases.md`.
        leases: settings.uses_leases() && Clock::GOES_ON_IN_SUSPEND,
        entry_bytes_max: settings.entry_bytes_max as usize,
    }
}
