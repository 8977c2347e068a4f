//! The interface of a raft log through which every engine is driven.

use bytes::Bytes;
use std::ops::Range;

pub use peers::Result;

/// The term of every entry.
pub const TERM: u64 = 1;

/// The choices that must be alike for all engines.
#[derive(Clone, Copy, Debug)]
pub struct Settings {
    /// Bytes on disk above which [`RaftLog::purge`] should free some.
    pub purge_above_bytes: u64,
    /// The length of one file of the log, if not the engine's default.
    pub file_bytes: Option<u64>,
}

impl Default for Settings {
    /// So much that nothing is purged.
    fn default() -> Settings {
        Settings { purge_above_bytes: 64 << 30, file_bytes: None }
    }
}

/// The entries of one atomic write: entries of one group that follow one another.
#[derive(Clone, Copy, Debug)]
pub struct Append<'a> {
    /// The group.
    pub group: u64,
    /// Index of the first entry.
    pub first: u64,
    /// The entries' data, made before.
    pub data: &'a [Bytes],
    /// A small value that goes into the same write, as a hard state does.
    pub state: Option<&'a [u8]>,
    /// Whether the write is on disk when the call returns.
    pub sync: bool,
}

/// How much a fetch returned. The entries themselves are made in the engine's own form and dropped.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Fetched {
    /// How many entries.
    pub entries: u64,
    /// Bytes of their data.
    pub bytes: u64,
}

/// An open log of many groups.
pub trait RaftLog: Send + Sync {
    /// A handle for one thread, with the buffers that it uses again and again.
    fn writer(&self) -> Box<dyn Writer + '_>;

    /// Reads entries as the engine's own callers get them: one value an entry, with its data.
    ///
    /// # Errors
    ///
    /// If not all of the range is there.
    fn fetch(&self, group: u64, range: Range<u64>) -> Result<Fetched>;

    /// The last index of a group, 0 if there is none.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    fn last_index(&self, group: u64) -> Result<u64>;

    /// Drops the entries of a group below `first`. Not synced.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    fn compact(&self, group: u64, first: u64) -> Result<()>;

    /// Frees disk space if there is reason to; returns the groups that stand in the way.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    fn purge(&self) -> Result<Vec<u64>>;

    /// Memory of the index as the engine reports it, if it does.
    fn index_bytes(&self) -> Option<u64>;

    /// Closes the log as a store does when it is stopped.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    fn close(self: Box<Self>) -> Result<()>;
}

/// One thread's way to write.
pub trait Writer {
    /// Appends, and waits until it is done.
    ///
    /// # Errors
    ///
    /// Errors of the engine.
    fn append(&mut self, append: Append<'_>) -> Result<()>;
}
