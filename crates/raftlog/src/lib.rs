//! An append-only log engine for many raft groups: one directory, one sequence of batches, one sync
//! for all who wait.
//!
//! It stores, for each group (a number of the embedder's choice), a log of entries with indexes and
//! terms, and a few small keys with values. It knows nothing of raft beyond that: bytes in, bytes
//! out. It starts no threads unless it is told to, and needs no runtime.
//!
//! What it promises:
//! - A batch over any number of groups is there after a crash as a whole or not at all, and only if
//!   all batches before it are.
//! - A batch that was acknowledged as [`Durability::Synced`] is there after a power loss, as it was;
//!   if the disk has damaged it, opening the log fails rather than leave it out.
//! - Wrong input is refused before anything is written.
//! - Once a write or sync has failed nothing more is acknowledged; what was synced can be read.
//!
//! ```
//! use flotilla_raftlog::{Config, Durability, Entry, LogBatch, LogEngine};
//! use flotilla_vfs::fault::FaultFs;
//! use std::{path::Path, sync::Arc};
//!
//! # fn main() -> Result<(), flotilla_raftlog::Error> {
//! let disk = Arc::new(FaultFs::new(1)); // or flotilla_vfs::os::OsFs::new()
//! let (log, _report) = LogEngine::open(disk, Path::new("/log"), Config::default())?;
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

mod appender;
mod background_io;
mod batch;
mod block;
mod cache;
mod checkpoint;
mod chunk;
mod commit;
mod completion;
mod compress;
mod config;
mod directory;
mod disk_quota;
mod dump;
mod engine;
mod error;
mod event_count;
mod export;
mod extents;
mod extract;
mod footer;
mod format;
mod frame;
mod group;
mod group_commit;
mod groups;
mod hash;
mod index;
mod inspect;
mod item;
mod keys;
mod load;
mod lz4;
mod maintenance;
mod open;
mod pool;
mod prefixed;
mod purge;
mod queued_bounds;
mod raw_scan;
mod read;
mod read_only;
mod recovery;
mod replace;
mod rewrite;
mod rounds;
mod salvage;
mod salvage_report;
mod scan;
mod segment;
mod stats;
mod summary;
mod sync;
mod throttle;
mod tools;
mod unpack;
mod usage;
mod varint;
mod verify;

pub use batch::{Entry, EntryRef, LogBatch};
pub use checkpoint::LogCheckpoint;
pub use commit::Commit;
pub use completion::Receipt;
pub use config::{Config, RecoveryMode};
pub use dump::{DumpLine, DumpOptions, DumpRecord, dump};
pub use engine::LogEngine;
pub use error::Error;
pub use export::{Exported, export, import};
pub use group::Group;
pub use group_commit::Durability;
pub use maintenance::LogMaintenance;
pub use purge::{BlockingGroup, PurgeReport};
pub use recovery::RecoveryReport;
pub use salvage::salvage;
pub use salvage_report::{SalvageReport, SalvagedGroup};
pub use stats::{PurgeStats, SegmentState, SegmentStats, Stats};
pub use verify::{ToolProgress, VerifyLevel, VerifyProblem, VerifyReport};
