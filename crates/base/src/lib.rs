//! Building blocks that more than one crate needs and that know nothing of any of them.
//!
//! | module | what it owns |
//! |---|---|
//! | [`sync`] | locks, condvars, atomics, futexes; the model checker's with `--cfg shuttle` |
//! | [`event_count`] | a counted wake-up for a thread that waits for work |
//! | [`commit_window`] | how long a leader of a group commit waits for followers |
//! | [`varint`], [`fields`] | LEB128 integers, length-prefixed fields, in slices or shared bytes |
//! | [`memcomparable`] | byte strings in an encoding that keeps their order |
//! | [`metric`] | counters and gauges as data: name, kind, unit, help |
//! | [`histogram`] | latencies in fixed buckets, counted without a lock |
//! | [`id_hash`] | a hash for numbers that no client chooses |
//! | [`redact`] | keys of clients in texts that may be logged |
//! | [`prefetch`] | hints to the CPU about the cache lines that are read next |
//!
//! Nothing here does IO, starts a thread or reads a clock.

pub mod commit_window;
pub mod event_count;
pub mod fields;
pub mod histogram;
pub mod id_hash;
pub mod memcomparable;
pub mod metric;
pub mod prefetch;
pub mod redact;
pub mod sync;
pub mod varint;

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
