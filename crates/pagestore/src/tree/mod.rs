//! What can be done with one tree, an operation a file.
//!
//! A tree is a root page, or none if it is empty. Reading takes a [`Source`] of pages; changing
//! takes the transaction's [`Draft`] and returns the new root. Nothing here keeps state.
//!
//! [`Source`]: crate::page::source::PageSource
//! [`Draft`]: crate::tree::txn_pages::TxnPages

mod cursor;
mod delete_range;
mod entry;
mod get;
pub(crate) mod ingest;
mod insert;
mod join;
mod multi_get;
mod path;
mod range;
mod rank;
mod rebalance;
mod reclaim;
mod relocate;
mod remove;
mod split;
pub(crate) mod txn_pages;
mod walk;

pub use cursor::Cursor;
pub use entry::Entry;
pub use range::{Copied, KeyIter, Range};

pub(crate) use delete_range::delete_range;
pub(crate) use get::{contains, get};
pub(crate) use insert::put;
pub(crate) use join::join;
pub(crate) use multi_get::multi_get;
pub(crate) use rank::{before, key_at, nth};
pub(crate) use reclaim::{free_deferred, free_subtree};
pub(crate) use relocate::{RelocateBudget, relocate};
pub(crate) use remove::remove;
pub(crate) use split::split_off;
