//! Settings of the store and of its two engines.

use flotilla_pagestore::Options;

/// How the store uses its engines.
#[derive(Clone, Debug)]
pub struct Config {
    /// The log engine's own.
    pub log: flotilla_raftlog::Config,
    /// The page store's own.
    pub pages: Options,
    /// Bytes of changed pages from which on a checkpoint is wanted. Default 64 MiB. They are
    /// memory until then; a checkpoint writes them.
    pub checkpoint_dirty_bytes: u64,
    /// Bytes of log batches from which on a checkpoint is wanted. Default 256 MiB. A restart reads
    /// about as many bytes, and the log keeps them.
    pub checkpoint_log_bytes: u64,
    /// Bytes of changed pages at which nothing should be applied before a checkpoint has written
    /// some of them; between `checkpoint_dirty_bytes` and this, applying should wait the longer the
    /// more there are (write stall): [`dirty_limits`]. Default 256 MiB.
    ///
    /// [`dirty_limits`]: crate::Store::dirty_limits
    pub dirty_bytes_max: u64,
    /// Bytes of pages that [`maintain_pages`] moves towards the beginning of the file between
    /// two checkpoints. Default 16 MiB; 0 moves none.
    ///
    /// [`maintain_pages`]: crate::Store::maintain_pages
    pub pages_move_bytes_max: u64,
    /// Part of the page file, 0 to 1, that is free when moving begins. Default 0.5.
    pub pages_move_free_ratio_min: f64,
}

impl Default for Config {
    fn default() -> Self {
        Self {
            log: flotilla_raftlog::Config::default(),
            pages: Options::default(),
            checkpoint_dirty_bytes: 64 << 20,
            checkpoint_log_bytes: 256 << 20,
            dirty_bytes_max: 256 << 20,
            pages_move_bytes_max: 16 << 20,
            pages_move_free_ratio_min: 0.5,
        }
    }
}
