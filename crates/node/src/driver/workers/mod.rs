//! The threads around a store: each takes all that waits, carries it out at once, and reports.
//!
//! Who waits for whom, and why nobody waits for ever:
//! - A shard hands its effects over without waiting ([`WorkQueue::push`]), posts nothing that can
//!   block, and sleeps only on its own mailbox.
//! - A worker sleeps only on its own backlog, for a rest of bounded length, or in the disk. It reports by completions, which
//!   never wait (see `mailbox.rs`).
//! - So among threads there is no cycle of waiting: workers wait for the disk alone.
//! - What bounds memory is that a shard looks at the backlogs before it takes from clients and
//!   leaders (see `shards.rs`). Those wait as futures, and they hold nothing that a shard or a
//!   worker needs.

pub(crate) mod applier;
pub(crate) mod checkpointer;
mod commit_delay;
pub(crate) mod log_reader;
pub(crate) mod log_writer;
pub(crate) mod work_queue;
