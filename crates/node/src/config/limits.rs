//! `[limits]` and `[threads]`: bounds on memory and waiting, and how many threads there are.

use std::time::Duration;

use flotilla_identity::ApiVersion;
use serde::Deserialize;

use super::error::{ConfigError, within};
use crate::driver::router;

/// The longest key of a client, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 8 * 1024;

/// Bounds on memory and waiting.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LimitsConfig {
    /// Bytes of client requests under way, 1 KiB for each included. Default 256 MiB, at least 16
    /// MiB. When it is spent, requests wait.
    pub request_bytes_max: u32,
    /// Requests that may wait for that; more are rejected because the store is busy. Default 16
    /// 384.
    pub queued_count_max: usize,
    /// Milliseconds until a request is given up. Default 10 000, at least 100.
    pub request_timeout_ms: u64,
    /// Milliseconds that a request waits for its region to have a leader. Default 1000, less than
    /// what clients retry for.
    pub leader_wait_ms: u64,
    /// Requests that may wait for leaders. Default 4096.
    pub leader_wait_count_max: usize,
    /// Bytes that may wait in a shard for each of: urgent messages, appends, client requests.
    /// Default 32 MiB, at least 1 MiB.
    pub mailbox_bytes_max: u32,
    /// Bytes that may wait for another store on each of its two streams. More are dropped, and
    /// raft sends them again. Default 32 MiB, at least 16 MiB so that any message fits.
    pub peer_queue_bytes_max: usize,
    /// Bytes that wait for the log or for applying before a shard takes no more from clients; at
    /// twice as much it takes no more entries from leaders either. Default 32 MiB, at least 1 MiB.
    pub backlog_bytes_max: usize,
    /// Milliseconds that a store that stops takes to hand over the regions that it leads. Default
    /// 5000, at most 60 000; 0: it hands none over.
    pub hand_over_ms: u64,
    /// Milliseconds from the beginning of one look through the rows that expire to that of the
    /// next. Default 60 000, 1000 to 600 000.
    pub expiry_sweep_ms: u64,
    /// Milliseconds from which on a request is logged as slow, with its stages, one line a second
    /// at most. Default 1000, at most 3 600 000; 0: none is.
    pub slow_request_ms: u64,
    /// Connections at once. Default 4096, at least 16.
    pub connections_max: usize,
    /// Streams of one connection at once. Default 1024, at least 16.
    pub streams_per_connection_max: u32,
}

/// Threads.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ThreadsConfig {
    /// Threads that run regions. Default 0: half of the cores, at least one. At most 64.
    pub shards: usize,
    /// Threads for connections. Default 0: half of the cores, at least one. At most 256.
    pub runtime: usize,
}

impl Default for LimitsConfig {
    fn default() -> Self {
        let router = router::RouterLimits::default();
        let millis = |time: Duration| u64::try_from(time.as_millis()).expect("some seconds");
        Self {
            request_bytes_max: router.request_bytes_max,
            queued_count_max: router.queued_count_max,
            request_timeout_ms: millis(router.request_timeout),
            leader_wait_ms: millis(router.leader_wait),
            leader_wait_count_max: router.leader_wait_count_max,
            mailbox_bytes_max: 32 << 20,
            peer_queue_bytes_max: 32 << 20,
            backlog_bytes_max: 32 << 20,
            hand_over_ms: 5_000,
            expiry_sweep_ms: 60_000,
            slow_request_ms: 1_000,
            connections_max: 4096,
            streams_per_connection_max: 1024,
        }
    }
}

impl ThreadsConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        within("threads.shards", self.shards as u64, 0, 64)?;
        within("threads.runtime", self.runtime as u64, 0, 256)
    }

    /// Threads that run regions, with the default put in.
    #[must_use]
    pub fn shard_count(&self) -> usize {
        if self.shards == 0 { half_of_the_cores() } else { self.shards }
    }

    /// Threads for connections, with the default put in.
    #[must_use]
    pub fn runtime_count(&self) -> usize {
        if self.runtime == 0 { half_of_the_cores() } else { self.runtime }
    }
}

impl LimitsConfig {
    pub(super) fn check(&self) -> Result<(), ConfigError> {
        let bytes = u64::from(self.request_bytes_max);
        within("limits.request_bytes_max", bytes, 16 << 20, u64::from(u32::MAX))?;
        within("limits.request_timeout_ms", self.request_timeout_ms, 100, 3_600_000)?;
        within("limits.leader_wait_ms", self.leader_wait_ms, 0, self.request_timeout_ms)?;
        let bytes = u64::from(self.mailbox_bytes_max);
        within("limits.mailbox_bytes_max", bytes, 1 << 20, u64::from(u32::MAX))?;
        let bytes = self.peer_queue_bytes_max as u64;
        within("limits.peer_queue_bytes_max", bytes, 16 << 20, 1 << 40)?;
        within("limits.backlog_bytes_max", self.backlog_bytes_max as u64, 1 << 20, 1 << 40)?;
        within("limits.hand_over_ms", self.hand_over_ms, 0, 60_000)?;
        within("limits.expiry_sweep_ms", self.expiry_sweep_ms, 1_000, 600_000)?;
        within("limits.slow_request_ms", self.slow_request_ms, 0, 3_600_000)?;
        within("limits.connections_max", self.connections_max as u64, 16, 1 << 20)?;
        let streams = u64::from(self.streams_per_connection_max);
        within("limits.streams_per_connection_max", streams, 16, 1 << 20)
    }

    /// From one look through the rows that expire to the next.
    pub(crate) fn expiry_sweep(&self) -> Duration {
        Duration::from_millis(self.expiry_sweep_ms)
    }

    /// A request that takes so long is logged.
    pub(crate) fn slow_request(&self) -> Duration {
        match self.slow_request_ms {
            0 => Duration::MAX,
            ms => Duration::from_millis(ms),
        }
    }

    /// The part that the router keeps to, in a cluster of this API version.
    #[must_use]
    pub fn router(&self, api: ApiVersion) -> router::RouterLimits {
        router::RouterLimits {
            request_bytes_max: self.request_bytes_max,
            queued_count_max: self.queued_count_max,
            request_timeout: Duration::from_millis(self.request_timeout_ms),
            leader_wait: Duration::from_millis(self.leader_wait_ms),
            leader_wait_count_max: self.leader_wait_count_max,
            border_bytes_min: match api {
                ApiVersion::V1Ttl => 1,
                ApiVersion::V2 => ApiVersion::PREFIX_BYTES,
            },
        }
    }
}

fn half_of_the_cores() -> usize {
    std::thread::available_parallelism().map_or(1, |cores| (cores.get() / 2).max(1))
}
