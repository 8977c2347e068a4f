//! A batch on its way to the log: built, compressed, closed to a frame without header.

pub(crate) mod compress;
pub(crate) mod frame;
pub(crate) mod log_batch;
