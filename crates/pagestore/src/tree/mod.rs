//! What can be done with one tree, an operation a file.
//!
//! A tree is a root page, or none if it is empty. Reading takes a [`Source`] of pages; changing
//! takes the transaction's [`Draft`] and returns the new root. Nothing here keeps state.
//!
//! [`Source`]: crate::source::Source
//! [`Draft`]: crate::draft::Draft

mod cursor;
mod delete_range;
mod discard;
mod get;
mod insert;
mod path;
mod range;
mod remove;
mod settle;
mod split;
mod walk;

pub(crate) use cursor::Cursor;
pub(crate) use delete_range::delete_range;
pub(crate) use get::get;
pub(crate) use insert::put;
pub(crate) use range::Range;
pub(crate) use remove::remove;
