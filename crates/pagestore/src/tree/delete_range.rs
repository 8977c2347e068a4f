//! Removing all keys of a range.
//!
//! The range is cut out along its two edges, as one subtree, whatever lies between them; the counts
//! in the branches say how much that was.

use std::ops::Range;

use crate::branch::{self, Child};
use crate::draft::Draft;
use crate::error::Result;
use crate::leaf;
use crate::node::{Node, NodeMut};
use crate::page::{PageRef, PageSize};
use crate::size::Change;
use crate::source::Source;
use crate::tree::get::child_page;
use crate::tree::path::Path;
use crate::tree::reclaim::bury;
use crate::tree::settle::settle_all;
use crate::tree::split::{gather, split};

/// Removes the keys from `start` up to, not including, `end`; to the last one if there is no end.
/// Returns the new root and what has changed below it.
pub(crate) fn delete_range(
    draft: &mut Draft,
    size: PageSize,
    root: Child,
    start: &[u8],
    end: Option<&[u8]>,
) -> Result<(PageRef, Change)> {
    if root.is_none() || end.is_some_and(|end| end <= start) {
        return Ok((root.place, Change::default()));
    }
    let (left, cut) = cut(draft, size, root, start, end)?;
    if !cut.is_none() {
        bury(draft, cut);
    }
    if left == root {
        return Ok((root.place, Change::default()));
    }
    let mut place = left.place;
    let mut change = left.size.since(root.size);
    for edge in [Some(start), end].into_iter().flatten() {
        if !place.is_none() {
            let (path, leaf) = Path::down(draft, place, edge)?;
            let settled = settle_all(draft, size, path, leaf)?;
            place = settled.0;
            change.units += settled.1.units;
        }
    }
    Ok((place, change))
}

/// Cuts the range out of a subtree. Returns what is left of it, and what was cut out of branches;
/// what lay in a single leaf is gone.
fn cut(
    draft: &mut Draft,
    size: PageSize,
    child: Child,
    start: &[u8],
    end: Option<&[u8]>,
) -> Result<(Child, Child)> {
    let frame = draft.held(child.place)?;
    let node = Node(&frame);
    if node.is_leaf() {
        return Ok((cut_leaf(draft, child, node, start, end)?, Child::NONE));
    }
    let count = branch::child_count(node);
    let first = branch::child_index(node, start);
    let last = end.map_or(count, |end| branch::child_index(node, end));
    let part = branch::sized_child(node, first);
    child_page(draft, node, part.place)?;
    if first == last {
        let (left, out) = cut(draft, size, part, start, end)?;
        if left == part {
            return Ok((child, out));
        }
        return Ok((replace(draft, child, first..first, [left, Child::NONE])?, out));
    }
    let (left, out_first) = split(draft, size, part, start)?;
    let (out_last, right) = match end {
        Some(end) => {
            let part = branch::sized_child(node, last);
            child_page(draft, node, part.place)?;
            split(draft, size, part, end)?
        }
        None => (Child::NONE, Child::NONE),
    };
    let out = gather(draft, size, node, out_first, first + 1..last, out_last)?;
    if out.is_none() {
        return Ok((child, out));
    }
    Ok((replace(draft, child, first..last, [left, right])?, out))
}

/// Puts what is left of children `range.start` and `range.end` in their places, and takes the
/// children between them out. If no child is left, nothing is.
fn replace(
    draft: &mut Draft,
    child: Child,
    range: Range<usize>,
    [left, right]: [Child; 2],
) -> Result<Child> {
    let count = branch::child_count(Node(&draft.page(child.place)?));
    let from = if left.is_none() { range.start } else { range.start + 1 };
    let to = if right.is_none() { count.min(range.end + 1) } else { range.end };
    if to - from == count {
        draft.discard(child.place)?;
        return Ok(Child::NONE);
    }
    let place = draft.own(child.place)?;
    let mut page = NodeMut(draft.page_mut(place));
    for (i, part) in [(range.start, left), (range.end, right)] {
        if !part.is_none() {
            branch::set_child(&mut page, i, part);
        }
    }
    branch::remove_children(&mut page, from..to);
    Ok(Child::of(place, Node(page.0)))
}

fn cut_leaf(
    draft: &mut Draft,
    child: Child,
    node: Node<'_>,
    start: &[u8],
    end: Option<&[u8]>,
) -> Result<Child> {
    let position = |key| node.search(key).unwrap_or_else(|i| i);
    let range = position(start)..end.map_or(node.count(), position);
    if range.is_empty() {
        return Ok(child);
    }
    for extent in leaf::extents(node, range.clone()) {
        draft.discard_extent(&extent);
    }
    if range.len() == node.count() {
        draft.discard(child.place)?;
        return Ok(Child::NONE);
    }
    let place = draft.own(child.place)?;
    let mut page = NodeMut(draft.page_mut(place));
    page.remove(range);
    Ok(Child::of(place, Node(page.0)))
}
