//! Copy-on-write B+tree pages with a segregated freelist and concurrent reads.
//!
//! A store is one file with many named trees of byte strings. One transaction writes at a time and
//! any number of snapshots read; they never wait for each other. A transaction is *published*: that
//! makes it visible, costs no file operation, and a crash takes it back. A *checkpoint* makes the
//! last published state durable, as a whole. A transaction that is *committed* with
//! [`CommitDurability::Sync`] is durable at once, by its share of one append and one sync; or its
//! caller keeps a log of its own, and commit metadata in the state that say how far it goes.
//!
//! ```
//! use flotilla_pagestore::PageStore;
//! # fn main() -> Result<(), flotilla_pagestore::Error> {
//! # let dir = tempfile::tempdir()?;
//! let store = PageStore::open(dir.path().join("harbour"))?;
//! let mut txn = store.write()?;
//! let mut ships = txn.tree("ships")?;
//! ships.put(b"fram", b"1892")?;
//! ships.put(b"vasa", b"1627")?;
//! txn.set_commit_metadata(b"log position 17");
//! txn.publish()?;
//! assert_eq!(store.checkpoint()?.commit_metadata, b"log position 17");
//!
//! let ships = store.read().tree("ships")?.expect("published above");
//! assert_eq!(ships.get(b"fram")?.as_deref(), Some(&b"1892"[..]));
//! for ship in ships.range(b"g".as_slice()..) {
//!     assert_eq!(ship?, (b"vasa".to_vec(), b"1627".to_vec()));
//! }
//! # Ok(()) }
//! ```
//!
//! [`PageStore::open_with`] takes [`Options`], and any file system of [`vfs`].
//!
//! # Code map
//!
//! Lower rooms first; a room uses those above it in this list, never those below.
//!
//! - `page`: bytes of pages, references, keys and cells, layout of the file. Never does I/O.
//! - `redo`: the ring of redo records, group commit with a leader. Never knows a tree.
//! - `memory`: page table, page cache, slabs, roots and what pins them. Never decides what is free.
//! - `space`: free list, allocation groups, epochs of readers, holes. Never reads a tree.
//! - `shared`: state of all handles and the order of locks; writer lock, write throttle, policy.
//! - `checkpoint`: makes a root durable, grows the file. Never runs a transaction.
//! - `tree`: operations on one B+tree, copy on write, bulk load. Never publishes.
//! - `txn`: write transactions, commits, snapshots, replay. Never truncates the file.
//! - `background`: maintenance thread, defragmentation, trim and punch. Never needed for safety.
//! - `check`: consistency check and scrub of an open store. Never changes it.
//! - `tools`: a page file that no store has open. Never writes to it.
//!
//! `docs/page-format.md` has every byte.

mod background;
mod check;
mod checkpoint;
mod config;
mod error;
mod memory;
mod page;
mod redo;
mod shared;
mod space;
mod stats;
mod store;
pub mod tools;
mod tree;
mod txn;

pub use flotilla_vfs as vfs;

pub use background::defragment::DefragProgress;
pub use background::maintenance::MaintenanceThread;
pub use check::PageCheckReport;
pub use config::{
    COMMIT_METADATA_BYTES_MAX, DirtyLimits, KEY_BYTES_MAX, NAME_BYTES_MAX, Options, ReadMode,
    TreeOptions, VALUE_BYTES_MAX,
};
pub use error::Error;
pub use page::Span;
pub use page::view::ValueRef;
pub use shared::maintenance_policy::{MaintenanceAction, MaintenanceOutcome};
pub use shared::pacer::Pacer;
pub use shared::scrub_progress::Scrub;
pub use space::freelist::Freelist;
pub use space::space_map::{SpaceCell, StoreSpaceMap};
pub use stats::{ReadStats, SpillStats, Stats, TrimPunchStats};
pub use store::{DurableState, PageStore};
pub use tree::ingest::{BuiltTree, TreeBuilder};
pub use tree::{Copied, Entry, KeyIter, LostKeys, Range};
pub use txn::key_counts::RangeSize;
pub use txn::snapshot::{Snapshot, Tree};
pub use txn::split_join::DetachedTree;
pub use txn::tree_mut::TreeMut;
pub use txn::txn_state::Savepoint;
pub use txn::write_txn::{CommitDurability, WriteTxn};

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
mod readme {}

#[cfg(test)]
mod tests;
