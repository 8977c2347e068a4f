//! [raft-rs](raft)'s `Storage` over one group of a shared [`LogEngine`]: many raft groups, one log,
//! one sync for all of them.
//!
//! A `RawNode` reads from a [`GroupStorage`]. The writes of a `Ready` go into a [`LogBatch`],
//! together with those of any number of other groups:
//!
//! 1. [`GroupStorage::persist_ready`] for each node that has a `Ready`, all into one batch. From
//!    now on the node reads the new entries from memory, so `advance_append_async` may be called at
//!    once, before the batch is written.
//! 2. [`LogEngine::write`], as [`Durability::Synced`] if one of them says `must_sync`.
//! 3. When the commit is done: `on_persist_ready` (or `advance`, if step 1 did not use the
//!    asynchronous one), and only then send `persisted_messages`.
//!
//! If the write fails with [`Error::Poisoned`] the node has seen entries that may or may not be in
//! the log: it must be dropped, and the log be opened again. After any other
//! error nothing of the batch was written, and the same `Ready`s are to be put into another one, in
//! the same order.
//!
//! No thread is started here. With [`Config::async_fetches`] reads that raft can wait for become
//! [`Fetch`]es for the embedder; the rest is read in the calling thread.
//!
//! [`LogEngine`]: flotilla_raftlog::LogEngine
//! [`LogEngine::write`]: flotilla_raftlog::LogEngine::write
//! [`LogBatch`]: flotilla_raftlog::LogBatch
//! [`Durability::Synced`]: flotilla_raftlog::Durability::Synced
//! [`Error::Poisoned`]: flotilla_raftlog::Error::Poisoned
//!
//! ```
//! use flotilla_raftlog::{Durability, LogBatch, LogEngine};
//! use flotilla_raftlog_raft_rs::{Config, GroupStorage};
//! use flotilla_vfs::fault::FaultFs;
//! use raft::{RawNode, StateRole, Storage};
//! use std::{path::Path, sync::Arc};
//!
//! # fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let disk = Arc::new(FaultFs::new(1)); // or flotilla_vfs::os::OsFs::new()
//! let (log, _) = LogEngine::open_with(disk, Path::new("/log"), Default::default())?;
//!
//! // Group 7 of the log is a raft group whose only voter is node 1.
//! let mut storage = GroupStorage::open(log.clone(), 7, Config::default())?;
//! let mut batch = LogBatch::new();
//! storage.persist_conf_state(&mut batch, &(vec![1], vec![]).into());
//! log.write(batch, Durability::Synced).wait()?;
//!
//! let config = raft::Config { id: 1, ..Default::default() };
//! let logger = slog::Logger::root(slog::Discard, slog::o!());
//! let mut node = RawNode::new(&config, storage, &logger)?;
//! node.campaign()?;
//! while node.has_ready() {
//!     let ready = node.ready();
//!     let mut batch = LogBatch::new();
//!     node.mut_store().persist_ready(&mut batch, &ready)?;
//!     if !batch.is_empty() {
//!         log.write(batch, Durability::Synced).wait()?;
//!     }
//!     node.advance(ready);
//! }
//! assert_eq!(node.raft.state, StateRole::Leader);
//! assert_eq!(log.group(7).expect("it was written").last_index(), 1);
//! # Ok(())
//! # }
//! ```

mod codec;
mod entry_cache;
mod fetch;
mod storage;

pub use fetch::{Fetch, Fetched};
pub use storage::{Config, GroupStorage, SnapshotSource};
