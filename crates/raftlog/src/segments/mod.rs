//! Segment files: the directory, the pool of preallocated and recycled segments, footers, reduced
//! segments, the disk quota.

pub(crate) mod directory;
pub(crate) mod disk_quota;
pub(crate) mod footer;
pub(crate) mod pool;
pub(crate) mod prefixed_fs;
pub(crate) mod read_only_fs;
pub(crate) mod reduced;
pub(crate) mod room_wait;
pub(crate) mod segment;
mod surplus;
pub(crate) mod unsealed;
mod zero_fill;
