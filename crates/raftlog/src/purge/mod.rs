//! Garbage collection: removes dead segments, oldest first, and cleans old ones.

mod cleaning;
pub(crate) mod purger;
pub(crate) mod rewrite;
pub(crate) mod throttle;
