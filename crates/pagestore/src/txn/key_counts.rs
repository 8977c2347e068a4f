//! Counts of keys and bytes between two bounds, the n-th key, and split keys: read off the
//! branches, along one path each.

use std::ops::Bound;

use crate::error::Result;
use crate::page::UNIT_BYTES;
use crate::page::branch::Child;
use crate::page::source::PageSource;
use crate::page::subtree_size::SubtreeSize;
use crate::page::view::ValueRef;
use crate::tree;
use crate::txn::snapshot::Tree;
use crate::txn::tree_mut::TreeMut;

/// How much lies between two bounds of a tree.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RangeSize {
    /// Keys.
    pub keys: u64,
    /// Bytes of the file that the entries take, as their share of whole pages. Long values count to
    /// the page, a share of the branches is in it.
    pub bytes: u64,
}

impl RangeSize {
    fn between((low, high): (SubtreeSize, SubtreeSize)) -> Self {
        let keys = high.keys.saturating_sub(low.keys);
        Self { keys, bytes: high.units.saturating_sub(low.units) * UNIT_BYTES as u64 }
    }
}

impl Tree {
    /// How much lies between two bounds. Takes the time of two gets.
    ///
    /// # Errors
    ///
    /// [`Error`](crate::Error) if a page cannot be read or is corrupt.
    pub fn size(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Result<RangeSize> {
        edges(&self.snapshot, self.entry.child(), start, end).map(RangeSize::between)
    }

    /// How many keys lie between two bounds. Takes the time of two gets.
    ///
    /// # Errors
    ///
    /// As [`Tree::size`].
    pub fn count(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Result<u64> {
        Ok(self.size(start, end)?.keys)
    }

    /// [`RangeSize::bytes`] between two bounds. Takes the time of two gets.
    ///
    /// # Errors
    ///
    /// As [`Tree::size`].
    pub fn bytes(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Result<u64> {
        Ok(self.size(start, end)?.bytes)
    }

    /// The entry before which there are `before` others, if there are as many. Takes the time of a
    /// get.
    ///
    /// # Errors
    ///
    /// As [`Tree::count`].
    pub fn nth(&self, before: u64) -> Result<Option<(Vec<u8>, ValueRef<'_>)>> {
        tree::nth(&self.snapshot, self.entry.root, before)
    }

    /// A key that parts the entries between two bounds in two of about as many bytes: one of them,
    /// but not the first. Nothing if there are fewer than two. Takes the time of a few gets.
    ///
    /// # Errors
    ///
    /// As [`Tree::count`].
    pub fn split_key(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Result<Option<Vec<u8>>> {
        let (source, root) = (&self.snapshot, self.entry.root);
        let (low, high) = edges(source, self.entry.child(), start, end)?;
        if high.keys < low.keys + 2 {
            return Ok(None);
        }
        let middle = match tree::key_at(source, root, low.units.midpoint(high.units))? {
            Some(key) => tree::before(source, root, &key, false)?.keys,
            None => high.keys,
        };
        let middle = middle.clamp(low.keys + 1, high.keys - 1);
        Ok(tree::nth(source, root, middle)?.map(|(key, _)| key))
    }
}

impl TreeMut<'_> {
    /// As [`Tree::count`], with what the transaction has written.
    ///
    /// # Errors
    ///
    /// As [`Tree::count`].
    pub fn count(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Result<u64> {
        Ok(RangeSize::between(edges(&*self.pages, self.entry.child(), start, end)?).keys)
    }

    /// As [`Tree::bytes`], with what the transaction has written.
    ///
    /// # Errors
    ///
    /// As [`Tree::count`].
    pub fn bytes(&self, start: Bound<&[u8]>, end: Bound<&[u8]>) -> Result<u64> {
        Ok(RangeSize::between(edges(&*self.pages, self.entry.child(), start, end)?).bytes)
    }

    /// As [`Tree::nth`], with what the transaction has written.
    ///
    /// # Errors
    ///
    /// As [`Tree::count`].
    pub fn nth(&self, before: u64) -> Result<Option<(Vec<u8>, ValueRef<'_>)>> {
        tree::nth(&*self.pages, self.entry.root, before)
    }
}

/// The size of all before each of two bounds.
fn edges(
    source: &impl PageSource,
    all: Child,
    start: Bound<&[u8]>,
    end: Bound<&[u8]>,
) -> Result<(SubtreeSize, SubtreeSize)> {
    let before = |key, at| tree::before(source, all.page_ref, key, at);
    let low = match start {
        Bound::Unbounded => SubtreeSize::default(),
        Bound::Included(key) => before(key, false)?,
        Bound::Excluded(key) => before(key, true)?,
    };
    let high = match end {
        Bound::Unbounded => all.size,
        Bound::Included(key) => before(key, true)?,
        Bound::Excluded(key) => before(key, false)?,
    };
    Ok((low, high))
}
