//! The write queue: admission control, bounds of what is queued, completions, callbacks.

pub(crate) mod callbacks;
pub(crate) mod completion;
pub(crate) mod queued_bounds;
pub(crate) mod write_queue;
