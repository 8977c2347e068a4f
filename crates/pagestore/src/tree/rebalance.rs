//! Rebalancing on the way up from a removal: merges of sparse pages.
//!
//! A page that has become empty is taken out of its parent; one that is less than a quarter full is
//! merged with a neighbour if both fit into one page. Pages are not refilled otherwise, so a page
//! may stay emptier than that between two full ones.

use crate::error::Result;
use crate::page::branch::{self, Child};
use crate::page::keys::joined;
use crate::page::slotted::{Cell, SlottedPage, SlottedPageMut, bytes_for};
use crate::page::source::PageSource;
use crate::page::subtree_size::SizeChange;
use crate::page::{PageKind, PageRef, PageSize};
use crate::tree::path::TreePath;
use crate::tree::txn_pages::TxnPages;

/// Rebalances from the private leaf `at`, at the end of `path`, as far up as the removal of a key
/// can be felt, and carries `change`, which happened in the leaf, all the way up. Returns the new
/// root and what has changed below it.
pub(crate) fn rebalance(
    pages: &mut TxnPages,
    size: PageSize,
    path: TreePath,
    at: PageRef,
    change: SizeChange,
) -> Result<(PageRef, SizeChange)> {
    rebalance_up(pages, size, path, at, change, false)
}

/// Rebalances from the private leaf `at`, at the end of `path`, on every level. Returns the new
/// root and what has changed below it.
pub(crate) fn rebalance_all(
    pages: &mut TxnPages,
    size: PageSize,
    path: TreePath,
    at: PageRef,
) -> Result<(PageRef, SizeChange)> {
    rebalance_up(pages, size, path, at, SizeChange::default(), true)
}

fn rebalance_up(
    pages: &mut TxnPages,
    size: PageSize,
    mut path: TreePath,
    mut at: PageRef,
    mut change: SizeChange,
    all_levels: bool,
) -> Result<(PageRef, SizeChange)> {
    let mut gone = is_bare(&pages.page(at)?);
    let mut merging = true;
    while let Some((parent, i)) = path.pop() {
        if gone {
            discard(pages, at, &mut change)?;
            gone = branch::child_count(SlottedPage(&pages.page(parent)?)) == 1;
            if !gone {
                branch::remove_children(&mut SlottedPageMut(pages.page_mut(parent)), i..i + 1);
            }
        } else {
            if !change.is_none() {
                branch::resize_child(&mut SlottedPageMut(pages.page_mut(parent)), i, change);
            }
            if merging && is_sparse(&pages.page(at)?) {
                let merged = merge(pages, size, parent, i)?;
                change.units += merged.unwrap_or(0);
                merging = merged.is_some() || all_levels;
            } else {
                merging = all_levels;
            }
            if !merging && change.is_none() {
                let root = collapse_root(pages, path.root_or(parent), &mut change)?;
                return Ok((root, change));
            }
        }
        at = parent;
    }
    if gone {
        discard(pages, at, &mut change)?;
        return Ok((PageRef::NONE, change));
    }
    let root = collapse_root(pages, at, &mut change)?;
    Ok((root, change))
}

fn discard(pages: &mut TxnPages, page_ref: PageRef, change: &mut SizeChange) -> Result<()> {
    change.subtract(page_ref.span());
    pages.discard(page_ref)
}

/// A root with a single child gives way to it.
fn collapse_root(pages: &mut TxnPages, root: PageRef, change: &mut SizeChange) -> Result<PageRef> {
    let mut root = root;
    loop {
        let frame = pages.page(root)?;
        let node = SlottedPage(&frame);
        if node.is_leaf() || node.count() > 0 {
            return Ok(root);
        }
        let only = branch::child(node, 0);
        drop(frame);
        discard(pages, root, change)?;
        root = only;
    }
}

/// A leaf without keys. A branch always has a child.
fn is_bare(page: &[u8]) -> bool {
    SlottedPage(page).is_leaf() && SlottedPage(page).count() == 0
}

fn is_sparse(page: &[u8]) -> bool {
    SlottedPage(page).used() < page.len() / 4
}

/// Merges child `i` of an own branch with a neighbour, if one page can hold both. Returns by how
/// many units there is more then.
fn merge(pages: &mut TxnPages, size: PageSize, parent: PageRef, i: usize) -> Result<Option<i64>> {
    let count = branch::child_count(SlottedPage(&pages.page(parent)?));
    let lefts = [i.checked_sub(1), (i + 1 < count).then_some(i)];
    for left in lefts.into_iter().flatten() {
        if let Some(more_units) = merge_pair(pages, size, parent, left)? {
            return Ok(Some(more_units));
        }
    }
    Ok(None)
}

/// Merges children `i` and `i + 1` of an own branch, if one page of common length can hold both.
/// Returns by how many units there is more then.
fn merge_pair(
    pages: &mut TxnPages,
    size: PageSize,
    parent: PageRef,
    i: usize,
) -> Result<Option<i64>> {
    let frame = pages.page(parent)?;
    let node = SlottedPage(&frame);
    let (left_child, right_child) =
        (branch::sized_child(node, i), branch::sized_child(node, i + 1));
    let (left_ref, right_ref) = (left_child.page_ref, right_child.page_ref);
    let separator = joined(node.key(i));
    drop(frame);
    let (left, right) = (pages.owned_frame(left_ref)?, pages.owned_frame(right_ref)?);
    let (left, right) = (SlottedPage(&left), SlottedPage(&right));
    let mut cells: Vec<Cell<'_>> = left.cells().collect();
    if !left.is_leaf() {
        cells.push(branch::cell((&[], &separator), right.leftmost()));
    }
    cells.extend(right.cells());
    // An eighth stays free, or the next key would split the page again.
    let limit = size.bytes();
    if bytes_for(&cells) > limit - limit / 8 {
        return Ok(None);
    }
    let kind = if left.is_leaf() { PageKind::Leaf } else { PageKind::Branch };
    let page_ref = pages.create(kind, left.level(), size.units())?;
    let mut merged = SlottedPageMut(pages.page_mut(page_ref));
    merged.fill(&cells);
    if kind == PageKind::Branch {
        merged.set_leftmost(left.leftmost());
    }
    let mut change = SizeChange::default();
    change.add(page_ref.span());
    discard(pages, left_ref, &mut change)?;
    discard(pages, right_ref, &mut change)?;
    let size = left_child.size.plus(right_child.size).after(change);
    let mut parent = SlottedPageMut(pages.page_mut(parent));
    branch::set_child(&mut parent, i, Child { page_ref, size });
    branch::remove_children(&mut parent, i + 1..i + 2);
    Ok(Some(change.units))
}
