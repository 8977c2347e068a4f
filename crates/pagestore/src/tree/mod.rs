//! Operations on one B+tree, a file each; a copy-on-write page set for those that change it.
//!
//! A tree is a root page, or none if it is empty. Reading takes a [`PageSource`]; changing takes
//! the transaction's [`TxnPages`] and returns the new root. The operations keep no state.
//!
//! [`PageSource`]: crate::page::source::PageSource
//! [`TxnPages`]: crate::tree::txn_pages::TxnPages

mod delete_range;
mod drop_pages;
mod entry;
mod get;
pub(crate) mod ingest;
mod insert;
mod join;
mod multi_get;
mod path;
mod range;
mod rank;
mod read_ahead;
mod rebalance;
mod reclaim;
mod relocate;
mod remove;
mod split;
pub(crate) mod txn_pages;
mod walk;

pub use drop_pages::LostKeys;
pub use entry::Entry;
pub use range::{Copied, KeyIter, Range};

pub(crate) use delete_range::delete_range;
pub(crate) use drop_pages::drop_pages;
pub(crate) use get::{contains, get};
pub(crate) use insert::put;
pub(crate) use join::join;
pub(crate) use multi_get::{multi_get, read_leaves};
pub(crate) use rank::{before, key_at, nth};
pub(crate) use reclaim::{drop_deferred, free_deferred, free_subtree};
pub(crate) use relocate::{RelocateBudget, relocate};
pub(crate) use remove::remove;
pub(crate) use split::split_off;
