//! An append-only log engine for many raft groups: one directory, one sequence of batches, one sync
//! for all that wait.
//!
//! It stores, for each group (a number of the embedder's choice), a log of entries with indexes and
//! terms, and a few small keys with values. It knows nothing of raft beyond that: bytes in, bytes
//! out. It starts no threads unless it is told to, or a task awaits a commit, and needs no runtime.
//!
//! Guarantees:
//! - A batch over any number of groups is there after a crash as a whole or not at all, and only if
//!   all batches before it are.
//! - A batch that was acknowledged as [`Durability::Synced`] is there after a power loss, as it
//!   was; if the disk has damaged it, opening the log fails rather than leave it out.
//! - Wrong input is refused before anything is written.
//! - Once a write or sync has failed nothing more is acknowledged; what was synced can be read.
//!
//! Code map; a folder uses only those above it, and never the ones below:
//!
//! | folder | owns | never |
//! |---|---|---|
//! | `format` | headers of segments and frames, items, blocks, varints | touches a file |
//! | `batch` | batches on their way to a frame: built, compressed | knows where a frame lies |
//! | `index` | live entries and keys by group, usage by segment, summaries | reads or writes disk |
//! | `segments` | files: directory, segment pool, footers, disk quota | knows a group |
//! | `queue` | admission of writes, backpressure, completions, callbacks | waits for the disk |
//! | `commit` | group commit: rounds, leader, followers, appender, maintenance | frees space |
//! | `read` | read handles of groups, range reads, the block cache | takes a lock over the disk |
//! | `recovery` | opening: footers, scans, the torn tail | changes a segment before all checks |
//! | `purge` | garbage collection: dead segments, rewrites, the throttle | removes out of order |
//! | `tools` | verify, dump, checkpoint, export, salvage | changes a log (but salvage in place) |
//!
//! ```
//! use flotilla_raftlog::{Durability, Entry, LogBatch, LogEngine};
//!
//! # fn main() -> Result<(), flotilla_raftlog::Error> {
//! # let dir = tempfile::tempdir()?;
//! let log = LogEngine::open(dir.path().join("log"))?;
//! let mut batch = LogBatch::new();
//! batch.append(7, &[Entry { index: 1, term: 1, kind: 0, data: "hello".into() }]);
//! batch.put(7, b"vote", b"1");
//! log.write(batch, Durability::Synced).wait()?;
//!
//! let group = log.group(7).expect("it was just written");
//! assert_eq!((group.last_index(), group.term(1)?), (1, 1));
//! assert_eq!(group.entries(1..2, u64::MAX)?[0].data, "hello");
//! # Ok(())
//! # }
//! ```
//!
//! A task awaits instead of waiting, in any runtime:
//!
//! ```
//! # use flotilla_raftlog::{Durability, Error, LogBatch, LogEngine, Receipt};
//! async fn vote(log: &LogEngine, group: u64) -> Result<Receipt, Error> {
//!     let mut batch = LogBatch::new();
//!     batch.put(group, b"vote", b"1");
//!     log.write(batch, Durability::Synced).await
//! }
//! # let dir = tempfile::tempdir().expect("a directory");
//! # let log = LogEngine::open(dir.path()).expect("it opens");
//! # let mut voted = std::pin::pin!(vote(&log, 7));
//! # let context = &mut std::task::Context::from_waker(std::task::Waker::noop());
//! # while voted.as_mut().poll(context).is_pending() {
//! #     std::thread::yield_now();
//! # }
//! # assert_eq!(log.group(7).expect("written").get(b"vote").as_deref(), Some(&b"1"[..]));
//! ```
//!
//! [`LogEngine::open_with`] takes a [`Config`], reports the recovery, and writes to any file system
//! of [`vfs`]: [`vfs::os::OsFs`], or [`vfs::fault::FaultFs`], on which an embedder can try its own
//! crashes.

mod batch;
mod commit;
mod config;
mod engine;
mod error;
mod format;
mod index;
mod open;
mod purge;
mod queue;
mod read;
mod recovery;
mod segments;
mod stats;
mod tools;

pub use flotilla_vfs as vfs;

pub use batch::log_batch::{Entry, EntryRef, LogBatch};
pub use commit::commit_handle::Commit;
pub use commit::maintenance::LogMaintenance;
pub use config::{Config, RecoveryMode};
pub use engine::LogEngine;
pub use error::Error;
pub use purge::purger::{BlockingGroup, PurgeReport};
pub use queue::completion::Receipt;
pub use queue::write_queue::Durability;
pub use read::group::Group;
pub use recovery::report::{RecoveryReport, SalvageReport, SalvagedGroup, VerifyProblem};
pub use stats::{PurgeStats, SegmentState, SegmentStats, Stats};
pub use tools::checkpoint::LogCheckpoint;
pub use tools::dump::{DumpLine, DumpOptions, DumpRecord, dump};
pub use tools::export::{Exported, export};
pub use tools::import::import;
pub use tools::salvage::salvage;
pub use tools::verify::{ToolProgress, VerifyLevel, VerifyReport};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}
