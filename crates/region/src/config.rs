//! Settings of a shard: ticks, limits, and the seed.

/// How the regions of a shard behave. All stores of a cluster must agree on the three times: a
/// leader's lease rests on how long the others keep still.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Milliseconds between ticks of a region. Default 50, at least 1. Less finds dead leaders
    /// sooner and costs more at rest.
    pub tick_ms: u64,
    /// Ticks without a leader until a replica campaigns; it waits up to twice as long. Default 12,
    /// more than `heartbeat_ticks`. A lease is a little shorter.
    pub election_ticks: u32,
    /// Ticks between a leader's heartbeats. Default 2, at least 1.
    pub heartbeat_ticks: u32,
    /// Where election timeouts and the names of reads come from. **Must be another one each time
    /// that a store starts**: else the late answer to a read of an earlier run could be taken for
    /// the answer to one of this run. A run with the same seed and the same events repeats exactly.
    pub seed: u64,
    /// The most bytes that an entry's data may have. Default 8 MiB.
    pub entry_bytes_max: usize,
    /// Waiting proposals are joined to one entry up to this many bytes, or up to `entry_bytes_max`
    /// if that is less; a larger one goes alone. Default 256 KiB.
    pub merge_bytes_max: usize,
    /// The most proposals in one entry. Default 1024, at least 1.
    pub merge_count_max: usize,
    /// Writes of a region that may be under way when it proposes another entry. Default 4, at least
    /// 1. More hides a slow disk, less makes fuller entries.
    pub pipeline_depth: usize,
    /// How much may wait in one region.
    pub queue: QueueLimits,
    /// An append message takes no more entries once it has this many bytes. Default 512 KiB. Times
    /// `messages_max` it bounds the bytes that are under way to one follower.
    pub message_bytes_max: u64,
    /// Append messages under way to one follower. Default 64, at least 1.
    pub messages_max: usize,
    /// Bytes of entries that a leader keeps uncommitted before it stops proposing; proposals then
    /// wait in the queue. Default 16 MiB, at least `message_bytes_max`. One entry may exceed it.
    pub uncommitted_bytes_max: u64,
    /// Bytes of entries handed out and not yet applied, above which a leader stops proposing and a
    /// follower stops taking entries. Default 32 MiB.
    pub apply_lag_bytes_max: u64,
    /// How much of the applied log is kept in memory.
    pub window: WindowConfig,
    /// How reads are confirmed.
    pub reads: ReadConfig,
    /// When a region is split.
    pub split: SplitLimits,
}

/// The settings that change while regions run, by [`crate::Shard::reconfigure`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RegionSettings {
    /// As [`Config::tick_ms`].
    pub tick_ms: u64,
    /// As [`ReadConfig::leases`].
    pub leases: bool,
    /// As [`Config::entry_bytes_max`], at least 1.
    pub entry_bytes_max: usize,
}

/// How much may wait in one region; more is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct QueueLimits {
    /// Bytes of proposals that may wait in one region before others are refused. Default 4 MiB. A
    /// single proposal may exceed it.
    pub bytes_max: usize,
    /// Requests that may wait in one region: proposals until they are applied, and reads, each
    /// counted by itself. Default 16384.
    pub count_max: usize,
}

/// When the leader of a region wants it split.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SplitLimits {
    /// Whether it ever does. Default true.
    pub automatic: bool,
    /// Bytes above which a region is split. Default 256 MiB, at least 1.
    pub bytes_max: u64,
    /// Rows above which a region is split. Default 4 million, at least 1.
    pub keys_max: u64,
    /// Requests in a second above which a region is split at a key that parts them. Default 2,000.
    pub requests_per_s_max: u64,
    /// Bytes of proposals in a second above which a region is split so. Default 30 MiB.
    pub bytes_per_s_max: u64,
    /// Seconds in a row with such a load before the region is split. Default 10, at least 1, which
    /// counts as 2: requests are sampled from the second one on.
    pub load_windows: u32,
}

impl Default for SplitLimits {
    fn default() -> Self {
        Self {
            automatic: true,
            bytes_max: 256 << 20,
            keys_max: 4 << 20,
            requests_per_s_max: 2000,
            bytes_per_s_max: 30 << 20,
            load_windows: 10,
        }
    }
}

/// How much of the applied log a region keeps: in memory for followers that are a little behind,
/// on disk for those that are far behind. Entries that are not applied are kept in any case. In
/// memory that is at worst `tail_bytes_max` and one entry a region.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WindowConfig {
    /// Bytes. Default 64 KiB.
    pub tail_bytes_max: u64,
    /// Entries. Default 128.
    pub tail_count_max: usize,
    /// Bytes of durable log that a region keeps on disk for a replica that lacks them; a quarter of
    /// the region's size, if that is more. Beyond it the replica gets a snapshot. Default 64 MiB.
    pub log_kept_region_bytes: u64,
    /// Bytes of durable log that all regions of the shard keep on disk for replicas that lack them.
    /// Default 1 GiB.
    pub log_kept_bytes_max: u64,
}

impl Default for WindowConfig {
    fn default() -> Self {
        Self {
            tail_bytes_max: 64 << 10,
            tail_count_max: 128,
            log_kept_region_bytes: 64 << 20,
            log_kept_bytes_max: 1 << 30,
        }
    }
}

/// How reads are confirmed, and how long they wait for it. Raft drops such requests silently, so
/// they are repeated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadConfig {
    /// Whether a leader may answer reads alone, under a lease. Default true. False if the driver's
    /// clock stands still while the machine is suspended, or if clocks are not to be relied on at
    /// all: then a quorum confirms each read, those of followers too.
    pub leases: bool,
    /// Milliseconds until an unanswered request is repeated. Default 250.
    pub retry_ms: u64,
    /// Requests before the read is rejected. Default 6, at least 1.
    pub tries_max: u32,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            tick_ms: 50,
            election_ticks: 12,
            heartbeat_ticks: 2,
            seed: 0,
            entry_bytes_max: 8 << 20,
            merge_bytes_max: 256 << 10,
            merge_count_max: 1024,
            pipeline_depth: 4,
            queue: QueueLimits { bytes_max: 4 << 20, count_max: 16 << 10 },
            message_bytes_max: 512 << 10,
            messages_max: 64,
            uncommitted_bytes_max: 16 << 20,
            apply_lag_bytes_max: 32 << 20,
            window: WindowConfig::default(),
            reads: ReadConfig { leases: true, retry_ms: 250, tries_max: 6 },
            split: SplitLimits::default(),
        }
    }
}

/// Why a configuration cannot be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{name} must be {rule}")]
pub struct InvalidConfig {
    /// The field.
    pub name: &'static str,
    /// The rule that the value breaks.
    pub rule: &'static str,
}

impl Config {
    /// Checks that the numbers fit together.
    ///
    /// # Errors
    ///
    /// The first that does not.
    pub fn check(&self) -> Result<(), InvalidConfig> {
        // Some are raft's own demands, which would fail without the name of the setting.
        let rules = [
            ("tick_ms", "at least 1", self.tick_ms >= 1),
            ("heartbeat_ticks", "at least 1", self.heartbeat_ticks >= 1),
            (
                "election_ticks",
                "more than heartbeat_ticks",
                self.election_ticks > self.heartbeat_ticks,
            ),
            ("election_ticks", "at most a million", self.election_ticks <= 1_000_000),
            ("entry_bytes_max", "at least 1", self.entry_bytes_max >= 1),
            ("merge_count_max", "at least 1", self.merge_count_max >= 1),
            ("pipeline_depth", "at least 1", self.pipeline_depth >= 1),
            ("queue.count_max", "at least 1", self.queue.count_max >= 1),
            ("messages_max", "at least 1", self.messages_max >= 1),
            (
                "uncommitted_bytes_max",
                "at least message_bytes_max",
                self.uncommitted_bytes_max >= self.message_bytes_max,
            ),
            ("reads.tries_max", "at least 1", self.reads.tries_max >= 1),
            ("split.bytes_max", "at least 1", self.split.bytes_max >= 1),
            ("split.keys_max", "at least 1", self.split.keys_max >= 1),
            ("split.load_windows", "at least 1", self.split.load_windows >= 1),
        ];
        match rules.into_iter().find(|(_, _, holds)| !holds) {
            None => Ok(()),
            Some((name, rule, _)) => Err(InvalidConfig { name, rule }),
        }
    }

    /// Those that change while regions run.
    #[must_use]
    pub fn settings(&self) -> RegionSettings {
        let (tick_ms, leases) = (self.tick_ms, self.reads.leases);
        RegionSettings { tick_ms, leases, entry_bytes_max: self.entry_bytes_max }
    }

    /// Puts them in.
    pub fn apply(&mut self, settings: RegionSettings) {
        let RegionSettings { tick_ms, leases, entry_bytes_max } = settings;
        self.tick_ms = tick_ms;
        self.reads.leases = leases;
        self.entry_bytes_max = entry_bytes_max;
    }

    /// How long a follower surely neither votes nor campaigns after it received a message of its
    /// leader, by its own clock: `election_ticks` ticks, of which the first may come at once.
    #[must_use]
    pub fn promise_ms(&self) -> u64 {
        (u64::from(self.election_ticks) - 1) * self.tick_ms
    }

    /// How long a leader may answer reads alone after it asked the quorum that confirmed it, by its
    /// own clock: nine tenths of what the followers promise.
    #[must_use]
    pub fn lease_ms(&self) -> u64 {
        self.promise_ms() * 9 / 10
    }

    /// The time between the end of a lease and the end of the promise that it rests on. One half is
    /// for clocks that run at different rates, the other for a late driver.
    #[must_use]
    pub fn lease_margin_ms(&self) -> u64 {
        self.promise_ms() - self.lease_ms()
    }

    /// A driver that needs so long from reading its clock to handing out what came of the step is
    /// too late for a lease.
    #[must_use]
    pub fn lateness_ms_max(&self) -> u64 {
        self.lease_margin_ms() / 2
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_default_is_valid_and_its_lease_shorter_than_the_followers_promise() {
        let config = Config::default();
        assert_eq!(config.check(), Ok(()));
        assert_eq!((config.promise_ms(), config.lease_ms()), (550, 495));
        assert_eq!((config.lease_margin_ms(), config.lateness_ms_max()), (55, 27));
    }

    /// A leader's clock that runs slow, followers' that run fast, a step as late as it may be.
    #[test]
    fn the_margin_covers_rates_that_differ_by_a_twentieth_and_a_late_step() {
        let longest = Config { tick_ms: 10_000, election_ticks: 1000, ..Config::default() };
        let shortest = Config { tick_ms: 10, election_ticks: 4, ..Config::default() };
        for config in [Config::default(), longest, shortest] {
            let served_ms = config.lease_ms() + config.lateness_ms_max();
            // While the leader's clock counts 100, a follower's counts 105.
            assert!(served_ms * 105 <= config.promise_ms() * 100, "{config:?}");
        }
    }

    #[test]
    fn what_does_not_fit_together_is_named() {
        let config = Config { election_ticks: 2, ..Config::default() };
        assert_eq!(config.check().unwrap_err().name, "election_ticks");
        let config = Config { uncommitted_bytes_max: 1, ..Config::default() };
        assert_eq!(config.check().unwrap_err().name, "uncommitted_bytes_max");
    }
}
