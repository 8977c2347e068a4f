//! The bytes of a log: segment and frame headers, items, compressed blocks, varints.

pub(crate) mod block;
pub(crate) mod item;
pub(crate) mod layout;
pub(crate) mod lz4;
