//! The index in memory: entries and keys by group, live bytes by segment, and the net change of one
//! segment.

pub(crate) mod extents;
pub(crate) mod group_index;
pub(crate) mod groups;
pub(crate) mod item_chunk;
pub(crate) mod key_map;
pub(crate) mod live_records;
pub(crate) mod segment_usage;
pub(crate) mod summary;
