//! Atomics, and locks of tests: those of every day or, when it is built with `--cfg shuttle`, those of
//! a model checker that tries orders of threads one after the other.

#[cfg(not(shuttle))]
pub(crate) use std::sync::atomic;

#[cfg(shuttle)]
pub(crate) use shuttle::sync::atomic;
