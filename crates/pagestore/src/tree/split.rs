//! Split of a subtree in two at a key, along one path.

use std::ops::Range;

use crate::error::Result;
use crate::page::branch::{self, Child};
use crate::page::slotted::{Cell, SlottedPage, SlottedPageMut, units_of};
use crate::page::{PageKind, PageSize};
use crate::tree::get::child_page;
use crate::tree::path::TreePath;
use crate::tree::rebalance::rebalance_all;
use crate::tree::txn_pages::TxnPages;

/// Splits a tree: the keys before `key`, and those from `key` on, each a tree of its own.
pub(crate) fn split_off(
    pages: &mut TxnPages,
    size: PageSize,
    tree: Child,
    key: &[u8],
) -> Result<(Child, Child)> {
    if tree.is_none() {
        return Ok((tree, tree));
    }
    let (left, right) = split(pages, size, tree, key)?;
    if left.is_none() || right.is_none() {
        return Ok((left, right));
    }
    // The cut runs along the last keys of the one and the first keys of the other.
    Ok((rebalance_edge(pages, size, left, true)?, rebalance_edge(pages, size, right, false)?))
}

/// Rebalances along the right edge of a tree, or along its left one.
fn rebalance_edge(
    pages: &mut TxnPages,
    size: PageSize,
    tree: Child,
    is_right: bool,
) -> Result<Child> {
    let (path, leaf) = TreePath::edge(pages, tree.page_ref, 0, is_right)?;
    let (page_ref, change) = rebalance_all(pages, size, path, leaf)?;
    Ok(Child { page_ref, size: tree.size.after(change) })
}

/// Splits a subtree: the keys before `key`, and those from `key` on. Both are as high as it was, so
/// branches with a single child may be left; either may be none. If one is, the other is the
/// subtree itself, untouched.
pub(crate) fn split(
    pages: &mut TxnPages,
    size: PageSize,
    child: Child,
    key: &[u8],
) -> Result<(Child, Child)> {
    let frame = pages.owned_frame(child.page_ref)?;
    let node = SlottedPage(&frame);
    if node.is_leaf() {
        split_leaf(pages, size, child, node, key)
    } else {
        split_branch(pages, size, child, node, key)
    }
}

fn split_leaf(
    pages: &mut TxnPages,
    size: PageSize,
    child: Child,
    node: SlottedPage<'_>,
    key: &[u8],
) -> Result<(Child, Child)> {
    let i = node.search(key).unwrap_or_else(|i| i);
    if i == 0 {
        return Ok((Child::NONE, child));
    }
    if i == node.count() {
        return Ok((child, Child::NONE));
    }
    let cells: Vec<Cell<'_>> = (i..node.count()).map(|i| node.cell(i)).collect();
    let page_ref = pages.create(PageKind::Leaf, 0, units_of(&cells, size))?;
    let mut right = SlottedPageMut(pages.page_mut(page_ref));
    right.fill(&cells);
    let right = Child::of(page_ref, SlottedPage(right.0));
    let page_ref = pages.make_private(child.page_ref)?;
    let mut left = SlottedPageMut(pages.page_mut(page_ref));
    left.remove(i..node.count());
    debug_assert_eq!(SlottedPage(left.0).count() + cells.len(), node.count(), "a split loses keys");
    Ok((Child::of(page_ref, SlottedPage(left.0)), right))
}

fn split_branch(
    pages: &mut TxnPages,
    size: PageSize,
    child: Child,
    node: SlottedPage<'_>,
    key: &[u8],
) -> Result<(Child, Child)> {
    let count = branch::child_count(node);
    let i = branch::child_index(node, key);
    let part = branch::sized_child(node, i);
    child_page(pages, node, part.page_ref)?;
    let (left, right) = split(pages, size, part, key)?;
    if left.is_none() && i == 0 {
        return Ok((Child::NONE, child));
    }
    if right.is_none() && i + 1 == count {
        return Ok((child, Child::NONE));
    }
    let right = gather(pages, size, node, right, i + 1..count, Child::NONE)?;
    let page_ref = pages.make_private(child.page_ref)?;
    let mut page = SlottedPageMut(pages.page_mut(page_ref));
    let kept = if left.is_none() { i } else { i + 1 };
    if !left.is_none() {
        branch::set_child(&mut page, i, left);
    }
    branch::remove_children(&mut page, kept..count);
    Ok((Child::of(page_ref, SlottedPage(page.0)), right))
}

/// Puts children of one branch into a new one next to it: `first`, which is the right part of the
/// child before the range, the range, and `last`, which is the left part of the child behind it.
/// Each part may be none; if all are, there is no new branch.
pub(crate) fn gather(
    pages: &mut TxnPages,
    size: PageSize,
    node: SlottedPage<'_>,
    first: Child,
    range: Range<usize>,
    last: Child,
) -> Result<Child> {
    let before = (!first.is_none()).then(|| (range.start - 1, first.encode()));
    let behind = (!last.is_none()).then(|| (range.end, last.encode()));
    let between = range.map(|i| (i, branch::sized_child(node, i).encode()));
    let children: Vec<_> = before.into_iter().chain(between).chain(behind).collect();
    let Some(((_, leftmost), others)) = children.split_first() else { return Ok(Child::NONE) };
    // The separator before child i is key i - 1.
    let cells: Vec<Cell<'_>> =
        others.iter().map(|(i, child)| branch::cell(node.key(i - 1), child)).collect();
    let units = units_of(&cells, size);
    let page_ref = pages.create(PageKind::Branch, node.level(), units)?;
    let mut page = SlottedPageMut(pages.page_mut(page_ref));
    page.fill(&cells);
    page.set_leftmost(leftmost);
    Ok(Child::of(page_ref, SlottedPage(page.0)))
}
