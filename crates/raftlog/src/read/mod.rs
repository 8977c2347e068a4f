//! Reads of entries by index: a handle of a group, mapped items, the cache of decompressed blocks.

pub(crate) mod append_entries;
pub(crate) mod block_cache;
pub(crate) mod group;
pub(crate) mod range_read;
mod read_ahead;
pub(crate) mod run_entries;
