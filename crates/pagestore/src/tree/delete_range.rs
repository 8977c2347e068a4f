//! Removing all keys of a range.
//!
//! The range is cut out along its two edges, as one subtree, whatever lies between them; the counts
//! in the branches say how much that was.

use std::ops::Range;

use crate::error::Result;
use crate::page::branch::{self, Child};
use crate::page::slotted::{SlottedPage, SlottedPageMut};
use crate::page::source::PageSource;
use crate::page::subtree_size::SizeChange;
use crate::page::{PageRef, PageSize, leaf};
use crate::tree::get::child_page;
use crate::tree::path::TreePath;
use crate::tree::rebalance::rebalance_all;
use crate::tree::reclaim::free_subtree;
use crate::tree::split::{gather, split};
use crate::tree::txn_pages::TxnPages;

/// Removes the keys from `start` up to, not including, `end`; to the last one if there is no end.
/// Returns the new root and what has changed below it.
pub(crate) fn delete_range(
    pages: &mut TxnPages,
    size: PageSize,
    root: Child,
    start: &[u8],
    end: Option<&[u8]>,
) -> Result<(PageRef, SizeChange)> {
    if root.is_none() || end.is_some_and(|end| end <= start) {
        return Ok((root.page_ref, SizeChange::default()));
    }
    let (left, cut) = cut(pages, size, root, start, end)?;
    if !cut.is_none() {
        free_subtree(pages, cut);
    }
    if left == root {
        return Ok((root.page_ref, SizeChange::default()));
    }
    let mut page_ref = left.page_ref;
    let mut change = left.size.since(root.size);
    for edge in [Some(start), end].into_iter().flatten() {
        if !page_ref.is_none() {
            let (path, leaf) = TreePath::down(pages, page_ref, edge)?;
            let rebalanced = rebalance_all(pages, size, path, leaf)?;
            page_ref = rebalanced.0;
            change.units += rebalanced.1.units;
        }
    }
    Ok((page_ref, change))
}

/// Cuts the range out of a subtree. Returns the rest of it, and the subtree that was cut out of
/// branches; entries of a single leaf are freed.
fn cut(
    pages: &mut TxnPages,
    size: PageSize,
    child: Child,
    start: &[u8],
    end: Option<&[u8]>,
) -> Result<(Child, Child)> {
    let frame = pages.owned_frame(child.page_ref)?;
    let node = SlottedPage(&frame);
    if node.is_leaf() {
        return Ok((cut_leaf(pages, child, node, start, end)?, Child::NONE));
    }
    let count = branch::child_count(node);
    let first = branch::child_index(node, start);
    let last = end.map_or(count, |end| branch::child_index(node, end));
    let part = branch::sized_child(node, first);
    child_page(pages, node, part.page_ref)?;
    if first == last {
        let (left, out) = cut(pages, size, part, start, end)?;
        if left == part {
            return Ok((child, out));
        }
        return Ok((replace(pages, child, first..first, [left, Child::NONE])?, out));
    }
    let (left, out_first) = split(pages, size, part, start)?;
    let (out_last, right) = match end {
        Some(end) => {
            let part = branch::sized_child(node, last);
            child_page(pages, node, part.page_ref)?;
            split(pages, size, part, end)?
        }
        None => (Child::NONE, Child::NONE),
    };
    let out = gather(pages, size, node, out_first, first + 1..last, out_last)?;
    if out.is_none() {
        return Ok((child, out));
    }
    Ok((replace(pages, child, first..last, [left, right])?, out))
}

/// Puts the rests of children `range.start` and `range.end` in their places, and takes the children
/// between them out. If no child is left, nothing is.
pub(super) fn replace(
    pages: &mut TxnPages,
    child: Child,
    range: Range<usize>,
    [left, right]: [Child; 2],
) -> Result<Child> {
    let count = branch::child_count(SlottedPage(&pages.page(child.page_ref)?));
    let from = if left.is_none() { range.start } else { range.start + 1 };
    let to = if right.is_none() { count.min(range.end + 1) } else { range.end };
    assert!(from <= to && to <= count, "children {from}..{to} of {count}");
    if to - from == count {
        pages.discard(child.page_ref)?;
        return Ok(Child::NONE);
    }
    let page_ref = pages.make_private(child.page_ref)?;
    let mut page = SlottedPageMut(pages.page_mut(page_ref));
    for (i, part) in [(range.start, left), (range.end, right)] {
        if !part.is_none() {
            branch::set_child(&mut page, i, part);
        }
    }
    branch::remove_children(&mut page, from..to);
    Ok(Child::of(page_ref, SlottedPage(page.0)))
}

fn cut_leaf(
    pages: &mut TxnPages,
    child: Child,
    node: SlottedPage<'_>,
    start: &[u8],
    end: Option<&[u8]>,
) -> Result<Child> {
    let position = |key| node.search(key).unwrap_or_else(|i| i);
    let range = position(start)..end.map_or(node.count(), position);
    if range.is_empty() {
        return Ok(child);
    }
    for extent in leaf::extents(node, range.clone()) {
        pages.discard_extent(&extent);
    }
    if range.len() == node.count() {
        pages.discard(child.page_ref)?;
        return Ok(Child::NONE);
    }
    let page_ref = pages.make_private(child.page_ref)?;
    let mut page = SlottedPageMut(pages.page_mut(page_ref));
    page.remove(range);
    Ok(Child::of(page_ref, SlottedPage(page.0)))
}
