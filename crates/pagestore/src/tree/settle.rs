//! Tidying up on the way back from a removal.
//!
//! A page that has become empty is taken out of its parent; one that is less than a quarter full is
//! merged with a neighbour if both fit into one page. Pages are not refilled otherwise, so a page
//! may stay emptier than that between two full ones.

use crate::branch;
use crate::draft::Draft;
use crate::error::Result;
use crate::keys::joined;
use crate::leaf::LEAF_UNITS;
use crate::node::{Cell, Node, NodeMut, bytes_for};
use crate::page::{Kind, PageRef, UNIT_BYTES};
use crate::source::Source;
use crate::tree::path::Path;

/// Tidies up from the own leaf `at`, at the end of `path`, as far up as the removal of a key can
/// be felt. Returns the new root.
pub(crate) fn settle(draft: &mut Draft, path: Path, at: PageRef) -> Result<PageRef> {
    settle_up(draft, path, at, false)
}

/// Tidies up from the own leaf `at`, at the end of `path`, on every level. Returns the new root.
pub(crate) fn settle_all(draft: &mut Draft, path: Path, at: PageRef) -> Result<PageRef> {
    settle_up(draft, path, at, true)
}

fn settle_up(
    draft: &mut Draft,
    mut path: Path,
    mut at: PageRef,
    all_levels: bool,
) -> Result<PageRef> {
    let mut gone = is_bare(&draft.page(at)?);
    while let Some((parent, i)) = path.pop() {
        if gone {
            draft.discard(at)?;
            gone = branch::child_count(Node(&draft.page(parent)?)) == 1;
            if !gone {
                branch::remove_children(&mut NodeMut(draft.page_mut(parent)), i..i + 1);
            }
        } else {
            let merged = is_sparse(&draft.page(at)?) && merge(draft, parent, i)?;
            if !merged && !all_levels {
                return settle_root(draft, path.root_or(parent));
            }
        }
        at = parent;
    }
    if gone {
        draft.discard(at)?;
        return Ok(PageRef::NONE);
    }
    settle_root(draft, at)
}

/// A root with a single child gives way to it.
pub(crate) fn settle_root(draft: &mut Draft, root: PageRef) -> Result<PageRef> {
    let mut root = root;
    loop {
        let frame = draft.page(root)?;
        let node = Node(&frame);
        if node.is_leaf() || node.count() > 0 {
            return Ok(root);
        }
        let only = node.leftmost();
        drop(frame);
        draft.discard(root)?;
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

/// Merges child `i` of an own branch with a neighbour, if one page can hold both.
fn merge(draft: &mut Draft, parent: PageRef, i: usize) -> Result<bool> {
    let count = branch::child_count(Node(&draft.page(parent)?));
    let lefts = [i.checked_sub(1), (i + 1 < count).then_some(i)];
    for left in lefts.into_iter().flatten() {
        if merge_pair(draft, parent, left)? {
            return Ok(true);
        }
    }
    Ok(false)
}

/// Merges children `i` and `i + 1` of an own branch, if one page of common length can hold both.
fn merge_pair(draft: &mut Draft, parent: PageRef, i: usize) -> Result<bool> {
    let frame = draft.page(parent)?;
    let node = Node(&frame);
    let (left_place, right_place) = (branch::child(node, i), branch::child(node, i + 1));
    let separator = joined(node.key(i));
    drop(frame);
    let (left, right) = (draft.page(left_place)?, draft.page(right_place)?);
    let (left, right) = (Node(&left), Node(&right));
    let units = if left.is_leaf() { LEAF_UNITS } else { branch::BRANCH_UNITS };
    let leftmost_of_right = right.leftmost().raw().to_le_bytes();
    let mut cells: Vec<Cell<'_>> = left.cells().collect();
    if !left.is_leaf() {
        cells.push(branch::cell((&[], &separator), &leftmost_of_right));
    }
    cells.extend(right.cells());
    // An eighth stays free, or the next key would split the page again.
    let limit = units as usize * UNIT_BYTES;
    if bytes_for(&cells) > limit - limit / 8 {
        return Ok(false);
    }
    let kind = if left.is_leaf() { Kind::Leaf } else { Kind::Branch };
    let place = draft.create(kind, left.level(), units)?;
    let mut merged = NodeMut(draft.page_mut(place));
    merged.fill(&cells);
    if kind == Kind::Branch {
        merged.set_leftmost(left.leftmost());
    }
    draft.discard(left_place)?;
    draft.discard(right_place)?;
    let mut parent = NodeMut(draft.page_mut(parent));
    branch::set_child(&mut parent, i, place);
    branch::remove_children(&mut parent, i + 1..i + 2);
    Ok(true)
}
