//! Settings of the store and of its two engines.

use std::time::Duration;

use flotilla_pagestore::Options;

/// How the store uses its engines.
#[derive(Clone, Debug)]
pub struct Config {
    /// The log engine's own. Default: the engine's, but its disk quota refuses nothing.
    pub log: flotilla_raftlog::Config,
    /// The page store's own, with the limits of dirty bytes, the interval of checkpoints and the
    /// budget of defragmentation. Default: 64 and 256 MiB, 2 s, 16 MiB.
    pub pages: Options,
    /// Bytes of log batches from which on a checkpoint is wanted. Default 256 MiB. A restart reads
    /// about as many bytes, and the log keeps them.
    pub checkpoint_log_bytes: u64,
    /// The time in which all entries of the log are read again, a piece at a time, while the store
    /// is idle. None: they are not. Default seven days.
    pub log_scrub_interval: Option<Duration>,
    /// Bytes that are put into a region before its size is looked at again. Default 16 MiB.
    pub size_check_bytes: u64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            // Regions hold puts back near the quota: votes and ends must still be written there.
            log: flotilla_raftlog::Config::default().disk_quota_refuses(false),
            pages: Options::default()
                .dirty_bytes(64 << 20, 256 << 20)
                .checkpoint_interval(Some(Duration::from_secs(2)))
                .defragment(16 << 20, 0.5),
            checkpoint_log_bytes: 256 << 20,
            log_scrub_interval: Some(Duration::from_secs(7 * 24 * 60 * 60)),
            size_check_bytes: 16 << 20,
        }
    }
}
