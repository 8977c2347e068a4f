//! Garbage collection: removes dead segments, oldest first, and rewrites live records of old ones.

pub(crate) mod purger;
pub(crate) mod rewrite;
pub(crate) mod throttle;
