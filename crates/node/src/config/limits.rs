//! `[limits]` and `[threads]`: bounds on memory and waiting, and how many threads there are.

use std::time::Duration;

use flotilla_identity::ApiVersion;

use super::error::ConfigError;
use super::key::{HOUR, MIB, MINUTE, NO_LIMIT, SECOND, TIB, bytes, count, milliseconds, settings};
use crate::driver::router;

/// The longest key of a client, in bytes.
pub(crate) const KEY_BYTES_MAX: usize = 8 * 1024;

settings! {
    /// Admission control and backpressure: bounds on memory and waiting.
    #[derive(Eq)]
    pub struct LimitsConfig: "limits" {
        /// Bytes of client requests under way, 1 KiB for each included; when they are spent,
        /// requests wait.
        #[key(bytes(16 * MIB, 4095 * MIB))]
        pub request_bytes_max: u32,
        /// Requests that may wait for that; more are refused because the store is busy.
        #[key(count(0, NO_LIMIT))]
        pub queued_count_max: usize,
        /// How long a request may take until it is given up.
        #[key(milliseconds(100, HOUR))]
        pub request_timeout_ms: u64,
        /// How long a request waits for its region to have a leader; let it be less than what
        /// clients retry for. A lookup of a region in placement waits 0.8 s longer.
        #[key(milliseconds(0, HOUR).beside("at most `limits.request_timeout_ms`"))]
        pub leader_wait_ms: u64,
        /// Requests that may wait so.
        #[key(count(0, NO_LIMIT))]
        pub leader_wait_count_max: usize,
        /// Bytes that may wait in a shard's mailbox, for each of its lanes: urgent messages,
        /// entries of other leaders, requests.
        #[key(bytes(MIB, 4095 * MIB))]
        pub mailbox_bytes_max: u32,
        /// Bytes that may wait for another store on each of two streams; more are dropped, and raft
        /// sends them again. Any message fits into the least.
        #[key(bytes(16 * MIB, TIB))]
        pub peer_queue_bytes_max: usize,
        /// Bytes that wait for the log or for applying from which on a shard leaves clients
        /// waiting; at twice as many it takes no more entries from other leaders either.
        #[key(bytes(MIB, TIB))]
        pub backlog_bytes_max: usize,
        /// From the beginning of one look through the rows that expire to that of the next: a row
        /// whose time has come takes space for as long, and longer where more than 20,000 a second
        /// expire. No client sees it any more.
        #[key(milliseconds(SECOND, 10 * MINUTE))]
        pub expiry_sweep_ms: u64,
        /// How long a store that is told to stop takes at most to hand over the regions that it
        /// leads, before it refuses requests; mostly some hundredths of a second, and nothing if no
        /// other store can take them. 0: it hands none over, and each of them has no leader for an
        /// election timeout.
        #[key(milliseconds(0, MINUTE))]
        pub hand_over_ms: u64,
        /// A request that takes as long from its admission to its answer is logged with the time of
        /// each stage, one line a second at most. 0: none is.
        #[key(milliseconds(0, HOUR).at_reload())]
        pub slow_request_ms: u64,
        /// Bytes of requests of clients of which only a part has come, on a listener. A connection
        /// has a quarter of them at most, and 1 MiB whatever others have; more are refused.
        #[key(bytes(64 * MIB, TIB))]
        pub unfinished_bytes_max: usize,
        /// Connections at once on a listener.
        #[key(count(16, 1 << 20))]
        pub connections_max: usize,
        /// Streams at once on a connection.
        #[key(count(16, 1 << 20))]
        pub streams_per_connection_max: u32,
    }
}

settings! {
    /// Threads for regions and for connections.
    #[derive(Default, Eq)]
    pub struct ThreadsConfig: "threads" {
        /// Threads that run regions. 0: the default.
        #[key(count(0, 64).default_is("half of the cores, at least 1"))]
        pub shards: usize,
        /// Threads for connections. 0: the default.
        #[key(count(0, 256).default_is("half of the cores, at least 1"))]
        pub runtime: usize,
    }
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
            unfinished_bytes_max: 1 << 30,
            connections_max: 4096,
            streams_per_connection_max: 1024,
        }
    }
}

impl ThreadsConfig {
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
        let (wait, timeout) = (self.leader_wait_ms, self.request_timeout_ms);
        if wait <= timeout {
            return Ok(());
        }
        Err(ConfigError::Value(format!(
            "limits.leader_wait_ms = {wait} is more than limits.request_timeout_ms, {timeout}"
        )))
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
