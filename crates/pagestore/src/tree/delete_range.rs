//! Removing all keys of a range.
//!
//! The range is cut out along its two edges; what lies between them is given back page by page.
//! Memory is bounded by the height of the tree, time by the number of pages.

use std::ops::Range;

use crate::branch;
use crate::draft::Draft;
use crate::error::Result;
use crate::leaf::{self, Value};
use crate::node::{Node, NodeMut};
use crate::page::{Frame, PageRef};
use crate::source::Source;
use crate::tree::get::child_page;
use crate::tree::path::Path;
use crate::tree::settle::settle_all;

/// Removes the keys from `start` up to, not including, `end`; to the last one if there is no end.
/// Returns the new root and how many keys were removed.
pub(crate) fn delete_range(
    draft: &mut Draft,
    root: PageRef,
    start: &[u8],
    end: Option<&[u8]>,
) -> Result<(PageRef, u64)> {
    if root.is_none() || end.is_some_and(|end| end <= start) {
        return Ok((root, 0));
    }
    let mut cut = Cut { draft, start, end, removed: 0 };
    let frame = cut.draft.page(root)?;
    let mut root = cut.page(root, &frame)?;
    let removed = cut.removed;
    drop(frame);
    if removed > 0 {
        for edge in [Some(start), end].into_iter().flatten() {
            if !root.is_none() {
                let (path, leaf) = Path::down(draft, root, edge)?;
                root = settle_all(draft, path, leaf)?;
            }
        }
    }
    Ok((root, removed))
}

struct Cut<'a> {
    draft: &'a mut Draft,
    start: &'a [u8],
    end: Option<&'a [u8]>,
    removed: u64,
}

impl Cut<'_> {
    /// Cuts the range out of a subtree. Returns what is left of it.
    fn page(&mut self, place: PageRef, frame: &Frame) -> Result<PageRef> {
        if Node(frame).is_leaf() { self.leaf(place, frame) } else { self.branch(place, frame) }
    }

    fn leaf(&mut self, place: PageRef, frame: &Frame) -> Result<PageRef> {
        let node = Node(frame);
        let position = |key| node.search(key).unwrap_or_else(|i| i);
        let range = position(self.start)..self.end.map_or(node.count(), position);
        if range.is_empty() {
            return Ok(place);
        }
        self.discard_values(node, range.clone());
        if range.len() == node.count() {
            self.draft.discard(place)?;
            return Ok(PageRef::NONE);
        }
        let owned = self.draft.own(place)?;
        NodeMut(self.draft.page_mut(owned)).remove(range);
        Ok(owned)
    }

    fn branch(&mut self, place: PageRef, frame: &Frame) -> Result<PageRef> {
        let node = Node(frame);
        let count = branch::child_count(node);
        let first = branch::child_index(node, self.start);
        let last = self.end.map_or(count - 1, |end| branch::child_index(node, end));
        let first_left = self.child(node, first)?;
        for i in first + 1..last {
            let child = branch::child(node, i);
            let frame = child_page(self.draft, node, child)?;
            self.discard_subtree(child, &frame)?;
        }
        let last_left = if last > first { self.child(node, last)? } else { first_left };
        let gone_from = if first_left.is_none() { first } else { first + 1 };
        let gone_to = if last_left.is_none() { last + 1 } else { last.max(gone_from) };
        let gone = gone_from..gone_to;
        if gone.len() == count {
            self.draft.discard(place)?;
            return Ok(PageRef::NONE);
        }
        let untouched = first_left == branch::child(node, first)
            && last_left == branch::child(node, last)
            && gone.is_empty();
        if untouched {
            return Ok(place);
        }
        let owned = self.draft.own(place)?;
        let mut node = NodeMut(self.draft.page_mut(owned));
        for (i, left) in [(first, first_left), (last, last_left)] {
            if !left.is_none() {
                branch::set_child(&mut node, i, left);
            }
        }
        branch::remove_children(&mut node, gone);
        Ok(owned)
    }

    fn child(&mut self, parent: Node<'_>, i: usize) -> Result<PageRef> {
        let place = branch::child(parent, i);
        let frame = child_page(self.draft, parent, place)?;
        self.page(place, &frame)
    }

    fn discard_subtree(&mut self, place: PageRef, frame: &Frame) -> Result<()> {
        let node = Node(frame);
        if node.is_leaf() {
            self.discard_values(node, 0..node.count());
        } else {
            for i in 0..branch::child_count(node) {
                let child = branch::child(node, i);
                let frame = child_page(self.draft, node, child)?;
                self.discard_subtree(child, &frame)?;
            }
        }
        self.draft.discard(place)
    }

    fn discard_values(&mut self, node: Node<'_>, range: Range<usize>) {
        self.removed += range.len() as u64;
        for i in range {
            if let Value::Extent(extent) = leaf::value(node, i) {
                self.draft.discard_extent(&extent);
            }
        }
    }
}
