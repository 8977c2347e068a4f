//! Bulk load: builds a tree from sorted entries concurrently with all transactions, straight into
//! the file.
//!
//! Leaves are packed one behind the other into runs of 1 MiB; each level of branches has one page
//! that is being filled. So memory is bounded by the height of the tree, and the writer lock is
//! needed only to put the finished tree in.

mod page_builder;
mod run_writer;

use std::sync::Arc;

use crate::checkpoint::reservation::Reservation;
use crate::config::{KEY_BYTES_MAX, VALUE_BYTES_MAX};
use crate::error::{Error, Result, refuse_over};
use crate::page::branch::{self, Child};
use crate::page::leaf::{self, LeafValue, Payload};
use crate::page::slotted::{CHILD_BYTES, SlottedPageMut, units_of};
use crate::page::subtree_size::SubtreeSize;
use crate::page::{PageKind, PageSize};
use crate::shared::StoreShared;
use page_builder::PageBuilder;
use run_writer::RunWriter;

/// With fewer separators a branch grows instead, so that the tree's height stays bounded.
const SEPARATORS_MIN: usize = 3;

/// Builds a tree from entries in rising order of keys, concurrently with all transactions; see
/// [`PageStore::tree_builder`](crate::PageStore::tree_builder).
///
/// Its pages take space, which comes back if it, or the [`BuiltTree`], is dropped, and after a
/// crash. A `push` that failed for want of space or by the kernel's refusal ends it.
pub struct TreeBuilder {
    runs: RunWriter,
    page_size: PageSize,
    leaf: PageBuilder,
    /// The separator before the open leaf; empty in the first.
    before_leaf: Vec<u8>,
    /// Units of the long values of the open leaf.
    long_units: u64,
    /// From the lowest up; the topmost may have one child only.
    levels: Vec<OpenBranch>,
    first_key: Option<Vec<u8>>,
    last_key: Vec<u8>,
    keys: u64,
    broken: bool,
}

/// A branch that is being filled.
struct OpenBranch {
    /// The separator before the first child; empty in the leftmost branch.
    before: Vec<u8>,
    leftmost: Child,
    /// The size of its subtree, without the page itself.
    size: SubtreeSize,
    separators: PageBuilder,
}

/// A tree that is in the file and that no tree names; see
/// [`TreeMut::ingest`](crate::TreeMut::ingest).
pub struct BuiltTree {
    pub(crate) root: Child,
    /// The first key and the last.
    pub(crate) ends: Option<(Vec<u8>, Vec<u8>)>,
    pub(crate) reservation: Reservation,
    pub(crate) page_size: PageSize,
}

impl BuiltTree {
    /// How many keys there are.
    pub fn len(&self) -> u64 {
        self.root.size.keys
    }

    /// Whether there is no key.
    pub fn is_empty(&self) -> bool {
        self.root.size.keys == 0
    }
}

impl std::fmt::Debug for BuiltTree {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("BuiltTree").field("len", &self.len()).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for TreeBuilder {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("TreeBuilder").field("len", &self.keys).finish_non_exhaustive()
    }
}

impl TreeBuilder {
    pub(crate) fn new(shared: &Arc<StoreShared>, page_size: PageSize) -> TreeBuilder {
        TreeBuilder {
            runs: RunWriter::new(shared),
            page_size,
            leaf: PageBuilder::default(),
            before_leaf: Vec::new(),
            long_units: 0,
            levels: Vec::new(),
            first_key: None,
            last_key: Vec::new(),
            keys: 0,
            broken: false,
        }
    }

    /// How many entries there are so far.
    pub fn len(&self) -> u64 {
        self.keys
    }

    /// Whether there is no entry so far.
    pub fn is_empty(&self) -> bool {
        self.keys == 0
    }

    /// Puts an entry behind the others.
    ///
    /// # Errors
    ///
    /// [`Error::OutOfOrder`] unless the key is greater than the last one, [`Error::TooLarge`] if
    /// key or value is over its limit: nothing has happened then. [`Error::NoSpace`] if the file
    /// cannot grow and [`Error::Io`] if the kernel refused: then the builder can only be dropped,
    /// and says [`Error::Broken`] from then on. The store is not affected.
    pub fn push(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        refuse_over("a key", key.len(), KEY_BYTES_MAX)?;
        refuse_over("a value", value.len(), VALUE_BYTES_MAX)?;
        if self.broken {
            return Err(Error::Broken);
        }
        if self.keys > 0 && *key <= self.last_key[..] {
            return Err(Error::OutOfOrder { what: "a builder's key is not greater than the last" });
        }
        let outcome = self.push_entry(key, value);
        self.broken = outcome.is_err();
        outcome
    }

    fn push_entry(&mut self, key: &[u8], value: &[u8]) -> Result<()> {
        let value = match value.len() <= leaf::inline_bytes_max(self.page_size) {
            true => LeafValue::Inline(value),
            false => LeafValue::Extent(self.runs.extent(value)?),
        };
        let payload = Payload::new(value);
        let bytes = self.leaf.bytes_with(key, payload.lead().len(), payload.tail().len());
        let full_bytes = self.full_bytes(payload.tail().len());
        if bytes > full_bytes && !self.leaf.is_empty() {
            let separator = branch::separator((&[], &self.last_key), (&[], key));
            self.end_leaf(separator)?;
        }
        // Only now: a leaf that ended does not count it.
        if let LeafValue::Extent(extent) = value {
            self.long_units += u64::from(extent.span().units);
        }
        self.leaf.push(key, payload.lead(), payload.tail());
        self.first_key.get_or_insert_with(|| key.to_vec());
        self.last_key.clear();
        self.last_key.extend_from_slice(key);
        self.keys += 1;
        Ok(())
    }

    /// A page is as full as this, so that the first keys that come later do not split it. Cells
    /// that have no room in what is left free for them are put there too.
    fn full_bytes(&self, tail_bytes: usize) -> usize {
        let bytes = self.page_size.bytes();
        let free_bytes = bytes / 16;
        if tail_bytes < free_bytes { bytes - free_bytes } else { bytes }
    }

    /// Writes the rest. The tree can be put in by [`TreeMut::ingest`](crate::TreeMut::ingest).
    ///
    /// # Errors
    ///
    /// As [`TreeBuilder::push`].
    pub fn finish(mut self) -> Result<BuiltTree> {
        if self.broken {
            return Err(Error::Broken);
        }
        let mut root = Child::NONE;
        if !self.leaf.is_empty() {
            self.end_leaf(Vec::new())?;
            let mut at = 0;
            root = loop {
                let is_top = at + 1 == self.levels.len();
                if is_top && self.levels[at].separators.is_empty() {
                    break self.levels[at].leftmost;
                }
                self.end_branch(at)?;
                at += 1;
            };
        }
        assert_eq!(root.size.keys, self.keys, "a builder loses keys");
        let reservation = self.runs.finish()?;
        let ends = self.first_key.map(|first| (first, self.last_key));
        Ok(BuiltTree { root, ends, reservation, page_size: self.page_size })
    }

    /// Writes the open leaf. `separator` parts it from the next one.
    fn end_leaf(&mut self, separator: Vec<u8>) -> Result<()> {
        let cells = self.leaf.cells();
        let units = units_of(&cells, self.page_size);
        let page_ref =
            self.runs.page(PageKind::Leaf, 0, units, |page| SlottedPageMut(page).fill(&cells))?;
        let units = u64::from(units) + std::mem::take(&mut self.long_units);
        let child = Child { page_ref, size: SubtreeSize { keys: cells.len() as u64, units } };
        self.leaf.clear();
        let before = std::mem::replace(&mut self.before_leaf, separator);
        self.push_child(0, before, child)
    }

    /// Puts a child behind the others of the branch that is open at a level; `before` is the
    /// separator before it.
    fn push_child(&mut self, at: usize, before: Vec<u8>, child: Child) -> Result<()> {
        assert!(at <= self.levels.len(), "a level was left out");
        if at == self.levels.len() {
            self.levels.push(OpenBranch::new(before, child));
            return Ok(());
        }
        let separators = &self.levels[at].separators;
        let bytes = separators.bytes_with(&before, CHILD_BYTES, 0);
        // With few separators the branch grows: long keys must not raise the tree.
        if separators.len() >= SEPARATORS_MIN && bytes > self.full_bytes(0) {
            self.end_branch(at)?;
            self.levels[at] = OpenBranch::new(before, child);
            return Ok(());
        }
        let level = &mut self.levels[at];
        level.separators.push(&before, &child.encode(), &[]);
        level.size = level.size.plus(child.size);
        Ok(())
    }

    /// Writes the branch that is open at a level.
    fn end_branch(&mut self, at: usize) -> Result<()> {
        let level = &mut self.levels[at];
        let cells = level.separators.cells();
        let units = units_of(&cells, self.page_size);
        let height = u8::try_from(at + 1).expect("each level has four times the pages of the next");
        let page_ref = self.runs.page(PageKind::Branch, height, units, |page| {
            SlottedPageMut(page).fill(&cells);
            SlottedPageMut(page).set_leftmost(&level.leftmost.encode());
        })?;
        let size = level.size.plus(SubtreeSize { keys: 0, units: u64::from(units) });
        let before = std::mem::take(&mut level.before);
        self.push_child(at + 1, before, Child { page_ref, size })
    }
}

impl OpenBranch {
    fn new(before: Vec<u8>, leftmost: Child) -> OpenBranch {
        OpenBranch { before, leftmost, size: leftmost.size, separators: PageBuilder::default() }
    }
}
