//! The worker threads of a store: each takes its whole queue, carries it out at once, and reports.
//!
//! Why no thread waits for ever:
//! - A shard hands its effects over without waiting ([`work_queue::WorkQueue::push_all`]), posts
//!   nothing that can block, and sleeps only on its own mailbox.
//! - A worker sleeps only on its own queue, for a delay of bounded length, in the disk, or until a
//!   full disk has room, which waits for no thread. It reports by completions, which never wait
//!   (see `mailbox.rs`).
//! - So among threads there is no cycle of waiting: workers wait for the disk alone.
//! - Memory is bounded because a shard looks at the queues before it takes from clients and leaders
//!   (see `shard_thread.rs`). Those wait as futures, and they hold nothing that a shard or a worker
//!   needs.

pub(crate) mod applier;
mod checkpoint_log;
pub(crate) mod checkpointer;
mod commit_delay;
pub(crate) mod disk_watcher;
pub(crate) mod log_reader;
pub(crate) mod log_writer;
pub(crate) mod page_damage;
pub(crate) mod work_queue;
