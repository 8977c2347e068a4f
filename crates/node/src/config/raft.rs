//! `[raft]`: ticks, elections and entries, which are settings of the cluster.

use flotilla_identity::ClusterSettings;
use serde::Deserialize;

use super::error::{ConfigError, within};
use super::split::SplitConfig;

/// Ticks, elections and entries: settings of the cluster. They are fixed at its bootstrap; later a
/// store takes them from its own copy, and a value that is given must be equal to that.
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
}

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
    within("raft.entry_bytes_max", settings.entry_bytes_max, 64 << 10, 12 << 20)
}

/// The configuration of the shards of a store. `seed` must be another one at each start.
#[must_use]
pub fn shard_config(
    settings: &ClusterSettings,
    split: &SplitConfig,
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
    config.reads.leases = settings.read_leases;
    config
}
