//! [openraft] 0.9's `RaftLogStorage` over one group of a shared [`LogEngine`]: many raft groups,
//! one log, one sync for all of them.
//!
//! The embedder starts one [`Flusher`] for each log: a thread that carries out what the groups
//! queue, so that no task of openraft waits in a sync, and one that maintains the log, so that
//! neither waits for a new segment. To purge segments now and then is the embedder's part, see
//! [`LogEngine::purge_expired_files`]. A [`GroupLog`] is one group's log:
//!
//! - `append` queues the entries and returns; they can be read at once, from memory, and the
//!   callback comes when they are synced. Appends of all groups that come meanwhile share the next
//!   sync. When too much is queued, `append` waits: that is the backpressure. Entries at or below
//!   the purged ones are left out.
//! - `save_vote`, `truncate` and `purge` return when they are synced; on disk the order is that of
//!   the calls.
//! - `save_committed` is free: the newest one is written along with the next batch. After a crash
//!   an older one may be read, which openraft allows.
//! - Entries that are written are read from disk where openraft asks for them, on its task.
//!
//! A [`Format`] is the encoding of entries. openraft counts entries from 0 and the log from 1, so
//! that other tools show entry `i` as number `i + 1`.
//!
//! [`LogEngine::purge_expired_files`]: flotilla_raftlog::LogEngine::purge_expired_files
//! [`LogEngine`]: flotilla_raftlog::LogEngine
//!
//! ```
//! use flotilla_raftlog::LogEngine;
//! use flotilla_raftlog_openraft::{Flusher, Format, GroupLog};
//! use flotilla_vfs::fault::FaultFs;
//! use openraft::storage::{RaftLogStorage, RaftLogStorageExt};
//! use openraft::{RaftLogReader, Vote, testing::blank_ent};
//! use serde::{Serialize, de::DeserializeOwned};
//! use std::{io::{self, Cursor}, path::Path, sync::Arc};
//!
//! openraft::declare_raft_types!(Types);
//!
//! struct Json;
//! impl Format for Json {
//!     fn encode<T: Serialize>(value: &T) -> io::Result<Vec<u8>> {
//!         Ok(serde_json::to_vec(value)?)
//!     }
//!     fn decode<T: DeserializeOwned>(bytes: &[u8]) -> io::Result<T> {
//!         Ok(serde_json::from_slice(bytes)?)
//!     }
//! }
//!
//! # #[tokio::main(flavor = "current_thread")]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! let disk = Arc::new(FaultFs::new(1)); // or flotilla_vfs::os::OsFs::new()
//! let (log, _) = LogEngine::open_with(disk, Path::new("/log"), Default::default())?;
//! let flusher = Flusher::start(log)?;
//!
//! // Group 7 of the log. It goes to `openraft::Raft::new`, with a state machine.
//! let mut group: GroupLog<Types, Json> = GroupLog::open(&flusher, 7)?;
//! group.save_vote(&Vote::new(1, 3)).await?;
//! group.blocking_append([blank_ent::<Types>(1, 3, 0)]).await?;
//! assert_eq!(group.try_get_log_entries(0..9).await?.len(), 1);
//! # Ok(())
//! # }
//! ```

mod flusher;
mod group_log;
mod log_view;

pub use flusher::Flusher;
pub use group_log::{Format, GroupLog};
