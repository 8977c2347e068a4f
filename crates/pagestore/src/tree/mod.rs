//! What can be done with one tree, an operation a file.
//!
//! A tree is a root page, or none if it is empty. Reading takes a [`Source`] of pages; changing
//! takes the transaction's [`Draft`] and returns the new root. Nothing here keeps state.
//!
//! [`Source`]: crate::source::PageSource
//! [`Draft`]: crate::draft::TxnPages

mod cursor;
mod delete_range;
mod entry;
mod get;
mod insert;
mod join;
mod many;
mod path;
mod range;
mod rank;
mod reclaim;
mod relocate;
mod remove;
mod settle;
mod split;
mod walk;

pub use cursor::Cursor;
pub use entry::Entry;
pub use range::{Copied, KeyIter, Range};

pub(crate) use delete_range::delete_range;
pub(crate) use get::{contains, get};
pub(crate) use insert::put;
pub(crate) use join::join;
pub(crate) use many::multi_get;
pub(crate) use rank::{before, key_at, nth};
pub(crate) use reclaim::{free_deferred, free_subtree};
pub(crate) use relocate::{RelocateBudget, relocate};
pub(crate) use remove::remove;
pub(crate) use split::split_off;
