//! Tidying up on the way back from a removal.
//!
//! A page that has become empty is taken out of its parent; one that is less than a quarter full is
//! merged with a neighbour if both fit into one page. Pages are not refilled otherwise, so a page
//! may stay emptier than that between two full ones.

use crate::branch::{self, Child};
use crate::draft::Draft;
use crate::error::Result;
use crate::keys::joined;
use crate::node::{Cell, Node, NodeMut, bytes_for};
use crate::page::{Kind, PageRef, PageSize};
use crate::size::Change;
use crate::source::Source;
use crate::tree::path::Path;

/// Tidies up from the own leaf `at`, at the end of `path`, as far up as the removal of a key can
/// be felt, and carries `change`, which happened in the leaf, all the way up. Returns the new root
/// and what has changed below it.
pub(crate) fn settle(
    draft: &mut Draft,
    size: PageSize,
    path: Path,
    at: PageRef,
    change: Change,
) -> Result<(PageRef, Change)> {
    settle_up(draft, size, path, at, change, false)
}

/// Tidies up from the own leaf `at`, at the end of `path`, on every level. Returns the new root and
/// what has changed below it.
pub(crate) fn settle_all(
    draft: &mut Draft,
    size: PageSize,
    path: Path,
    at: PageRef,
) -> Result<(PageRef, Change)> {
    settle_up(draft, size, path, at, Change::default(), true)
}

fn settle_up(
    draft: &mut Draft,
    size: PageSize,
    mut path: Path,
    mut at: PageRef,
    mut change: Change,
    all_levels: bool,
) -> Result<(PageRef, Change)> {
    let mut gone = is_bare(&draft.page(at)?);
    let mut merging = true;
    while let Some((parent, i)) = path.pop() {
        if gone {
            discard(draft, at, &mut change)?;
            gone = branch::child_count(Node(&draft.page(parent)?)) == 1;
            if !gone {
                branch::remove_children(&mut NodeMut(draft.page_mut(parent)), i..i + 1);
            }
        } else {
            if !change.is_none() {
                branch::resize_child(&mut NodeMut(draft.page_mut(parent)), i, change);
            }
            if merging && is_sparse(&draft.page(at)?) {
                let merged = merge(draft, size, parent, i)?;
                change.units += merged.unwrap_or(0);
                merging = merged.is_some() || all_levels;
            } else {
                merging = all_levels;
            }
            if !merging && change.is_none() {
                let root = settle_root(draft, path.root_or(parent), &mut change)?;
                return Ok((root, change));
            }
        }
        at = parent;
    }
    if gone {
        discard(draft, at, &mut change)?;
        return Ok((PageRef::NONE, change));
    }
    let root = settle_root(draft, at, &mut change)?;
    Ok((root, change))
}

fn discard(draft: &mut Draft, place: PageRef, change: &mut Change) -> Result<()> {
    change.subtract(place.span());
    draft.discard(place)
}

/// A root with a single child gives way to it.
fn settle_root(draft: &mut Draft, root: PageRef, change: &mut Change) -> Result<PageRef> {
    let mut root = root;
    loop {
        let frame = draft.page(root)?;
        let node = Node(&frame);
        if node.is_leaf() || node.count() > 0 {
            return Ok(root);
        }
        let only = branch::child(node, 0);
        drop(frame);
        discard(draft, root, change)?;
        root = only;
    }
}

/// A leaf without keys. A branch always has a child.
fn is_bare(page: &[u8]) -> bool {
    Node(page).is_leaf() && Node(page).count() == 0
}

fn is_sparse(page: &[u8]) -> bool {
    Node(page).used() < page.len() / 4
}

/// Merges child `i` of an own branch with a neighbour, if one page can hold both. Returns by how
/// many units there is more then.
fn merge(draft: &mut Draft, size: PageSize, parent: PageRef, i: usize) -> Result<Option<i64>> {
    let count = branch::child_count(Node(&draft.page(parent)?));
    let lefts = [i.checked_sub(1), (i + 1 < count).then_some(i)];
    for left in lefts.into_iter().flatten() {
        if let Some(more_units) = merge_pair(draft, size, parent, left)? {
            return Ok(Some(more_units));
        }
    }
    Ok(None)
}

/// Merges children `i` and `i + 1` of an own branch, if one page of common length can hold both.
/// Returns by how many units there is more then.
fn merge_pair(draft: &mut Draft, size: PageSize, parent: PageRef, i: usize) -> Result<Option<i64>> {
    let frame = draft.page(parent)?;
    let node = Node(&frame);
    let (left_child, right_child) =
        (branch::sized_child(node, i), branch::sized_child(node, i + 1));
    let (left_place, right_place) = (left_child.place, right_child.place);
    let separator = joined(node.key(i));
    drop(frame);
    let (left, right) = (draft.held(left_place)?, draft.held(right_place)?);
    let (left, right) = (Node(&left), Node(&right));
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
    let kind = if left.is_leaf() { Kind::Leaf } else { Kind::Branch };
    let place = draft.create(kind, left.level(), size.units())?;
    let mut merged = NodeMut(draft.page_mut(place));
    merged.fill(&cells);
    if kind == Kind::Branch {
        merged.set_leftmost(left.leftmost());
    }
    let mut change = Change::default();
    change.add(place.span());
    discard(draft, left_place, &mut change)?;
    discard(draft, right_place, &mut change)?;
    let size = left_child.size.plus(right_child.size).after(change);
    let mut parent = NodeMut(draft.page_mut(parent));
    branch::set_child(&mut parent, i, Child { place, size });
    branch::remove_children(&mut parent, i + 1..i + 2);
    Ok(Some(change.units))
}
