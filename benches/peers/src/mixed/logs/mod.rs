//! The log of a store behind one small trait: this project's, raft-engine, RocksDB.
//!
//! `raftlog` is driven by [`Store`] itself, as in a node. The others stand beside a store whose own
//! log stays as it was after the bootstrap: a batch of log writes goes to them instead.

#[cfg(feature = "raft-engine")]
mod raft_engine;
mod raftlog;
#[cfg(feature = "rocksdb")]
mod rocksdb;

use crate::engines::Contender;
use crate::log::Result;
use flotilla_region::{Compaction, LogEntry, LogFetch, LogWrite};
use flotilla_store::Store;
use std::path::Path;
use std::sync::Arc;

/// The log of all replicas of one store. One thread writes.
pub trait ReplicaLog: Send + Sync {
    /// Writes everything as one batch, and waits until it is on disk if a write asks for it.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    fn write(&self, writes: &[LogWrite], compactions: &[Compaction]) -> Result<()>;

    /// Entries from `low` on, at least one; `None` if they are gone.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    fn fetch(&self, fetch: &LogFetch) -> Result<Option<Vec<LogEntry>>>;

    /// Frees disk space, called after each checkpoint.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    fn purge(&self) -> Result<()>;
}

/// Bytes of a log above which `raftlog` and raft-engine rewrite what lives in old files.
pub const PURGE_ABOVE_BYTES: u64 = 256 << 20;

/// The key of a replica's hard state.
#[cfg(feature = "raft-engine")]
const HARD_STATE_KEY: &[u8] = b"hs";

/// Whether a batch has to reach the disk: the store's own rule.
#[cfg(any(feature = "raft-engine", feature = "rocksdb"))]
fn is_synced(writes: &[LogWrite]) -> bool {
    writes.iter().any(|write| write.sync)
}

/// Opens the log of a store in `dir`, which is made if missing.
///
/// # Errors
///
/// Errors of the engine, or that this program was built without it.
pub fn open(engine: Contender, store: &Arc<Store>, dir: &Path) -> Result<Box<dyn ReplicaLog>> {
    std::fs::create_dir_all(dir)?;
    match engine {
        Contender::Raftlog => raftlog::open(store),
        #[cfg(feature = "raft-engine")]
        Contender::RaftEngine => raft_engine::open(dir, false),
        #[cfg(feature = "raft-engine")]
        Contender::RaftEnginePrefilled => raft_engine::open(dir, true),
        #[cfg(feature = "rocksdb")]
        Contender::Rocksdb => rocksdb::open(dir),
        #[cfg(not(all(feature = "raft-engine", feature = "rocksdb")))]
        _ => Err(format!("{engine} is not built into this program").into()),
    }
}
