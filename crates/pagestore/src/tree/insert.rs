//! Putting one key, and splitting the pages that become too full.

use crate::branch;
use crate::draft::Draft;
use crate::error::Result;
use crate::leaf::{self, Extent, LEAF_UNITS, Payload, Value};
use crate::node::{Cell, Node, NodeMut, units_of};
use crate::page::{Frame, Kind, PageRef, u64_at};
use crate::source::Source;
use crate::tree::path::Path;

/// After so many appends in a row a full page is taken to be filled in rising order: then it stays
/// full and the next key begins a new page.
const APPENDS_MIN: usize = 8;

/// What became of a page that was changed: its place, and a new right neighbour.
struct Grown {
    place: PageRef,
    right: Option<(Vec<u8>, PageRef)>,
}

/// Puts `value` under `key`. Returns the new root and whether the key is new.
pub(crate) fn put(
    draft: &mut Draft,
    root: PageRef,
    key: &[u8],
    value: Value<'_>,
) -> Result<(PageRef, bool)> {
    let payload = Payload::new(value);
    let cell = Cell { key: (&[], key), lead: payload.lead(), tail: payload.tail() };
    if root.is_none() {
        let place = draft.create(Kind::Leaf, 0, units_of(&[cell], LEAF_UNITS))?;
        NodeMut(draft.page_mut(place)).fill(&[cell]);
        return Ok((place, true));
    }
    let (mut path, leaf) = Path::down(draft, root, key)?;
    let (mut grown, new) = put_in_leaf(draft, leaf, &cell)?;
    while let Some((parent, i)) = path.pop() {
        if grown.place != branch::child(Node(&*draft.page(parent)?), i) {
            branch::set_child(&mut NodeMut(draft.page_mut(parent)), i, grown.place);
        }
        let Some((separator, right)) = grown.right else {
            return Ok((path.root_or(parent), new));
        };
        let child = right.raw().to_le_bytes();
        grown = put_cell(draft, parent, i, &branch::cell((&[], &separator), &child))?;
    }
    match grown.right {
        None => Ok((grown.place, new)),
        Some((separator, right)) => Ok((new_root(draft, grown.place, &separator, right)?, new)),
    }
}

fn new_root(
    draft: &mut Draft,
    left: PageRef,
    separator: &[u8],
    right: PageRef,
) -> Result<PageRef> {
    let level = Node(&*draft.page(left)?).level() + 1;
    let child = right.raw().to_le_bytes();
    let cells = [branch::cell((&[], separator), &child)];
    let root = draft.create(Kind::Branch, level, units_of(&cells, branch::BRANCH_UNITS))?;
    let mut node = NodeMut(draft.page_mut(root));
    node.fill(&cells);
    node.set_leftmost(left);
    Ok(root)
}

fn put_in_leaf(draft: &mut Draft, place: PageRef, cell: &Cell<'_>) -> Result<(Grown, bool)> {
    let bytes = draft.page_mut(place);
    let (i, old) = match Node(bytes).search(cell.key.1) {
        Err(i) => (i, None),
        Ok(i) => {
            let old = extent_of(Node(bytes), i);
            let mut node = NodeMut(bytes);
            if !node.replace(i, cell.lead, cell.tail) {
                node.remove(i..i + 1);
                (i, Some(old))
            } else {
                discard(draft, old);
                return Ok((Grown { place, right: None }, false));
            }
        }
    };
    let new = old.is_none();
    discard(draft, old.flatten());
    Ok((put_cell(draft, place, i, cell)?, new))
}

fn extent_of(node: Node<'_>, i: usize) -> Option<Extent> {
    match leaf::value(node, i) {
        Value::Extent(extent) => Some(extent),
        Value::Inline(_) => None,
    }
}

fn discard(draft: &mut Draft, extent: Option<Extent>) {
    if let Some(extent) = extent {
        draft.discard_extent(&extent);
    }
}

/// Puts a cell before cell `i` of an own page, which may grow or split for it.
fn put_cell(draft: &mut Draft, place: PageRef, i: usize, cell: &Cell<'_>) -> Result<Grown> {
    if NodeMut(draft.page_mut(place)).insert(i, cell) {
        return Ok(Grown { place, right: None });
    }
    let old = draft.page(place)?;
    let node = Node(&old);
    let mut cells = Vec::with_capacity(node.count() + 1);
    cells.extend(node.cells());
    let rising = i == cells.len() && usize::from(node.appends()) + 1 >= cells.len().min(APPENDS_MIN);
    cells.insert(i, *cell);
    if node.is_leaf() {
        put_leaf(draft, place, &cells, rising)
    } else {
        put_branch(draft, place, &old, &cells, rising)
    }
}

fn put_leaf(
    draft: &mut Draft,
    place: PageRef,
    cells: &[Cell<'_>],
    rising: bool,
) -> Result<Grown> {
    let units = units_of(cells, LEAF_UNITS);
    if units == LEAF_UNITS || cells.len() < 2 {
        return Ok(Grown { place: lay_out(draft, place, 0, cells, units, None)?, right: None });
    }
    let at = if rising { cells.len() - 1 } else { middle(cells, 1) };
    let (left, right) = cells.split_at(at);
    let separator = branch::separator(left[at - 1].key, right[0].key);
    let right_place = draft.create(Kind::Leaf, 0, units_of(right, LEAF_UNITS))?;
    NodeMut(draft.page_mut(right_place)).fill(right);
    let place = lay_out(draft, place, 0, left, units_of(left, LEAF_UNITS), None)?;
    Ok(Grown { place, right: Some((separator, right_place)) })
}

fn put_branch(
    draft: &mut Draft,
    place: PageRef,
    old: &Frame,
    cells: &[Cell<'_>],
    rising: bool,
) -> Result<Grown> {
    let (level, leftmost) = (Node(old).level(), Node(old).leftmost());
    let units = units_of(cells, branch::BRANCH_UNITS);
    if units == branch::BRANCH_UNITS || cells.len() < branch::SPLIT_SEPARATORS_MIN {
        let place = lay_out(draft, place, level, cells, units, Some(leftmost))?;
        return Ok(Grown { place, right: None });
    }
    // The separator at `at` moves up; its child becomes the leftmost of the right page.
    let at = if rising { cells.len() - 2 } else { middle(cells, 2) };
    let (left, right) = (&cells[..at], &cells[at + 1..]);
    let separator = crate::node::joined(cells[at].key);
    let right_place = draft.create(Kind::Branch, level, units_of(right, branch::BRANCH_UNITS))?;
    let mut node = NodeMut(draft.page_mut(right_place));
    node.fill(right);
    node.set_leftmost(PageRef::from_raw(u64_at(cells[at].lead, 0)));
    let left_units = units_of(left, branch::BRANCH_UNITS);
    let place = lay_out(draft, place, level, left, left_units, Some(leftmost))?;
    Ok(Grown { place, right: Some((separator, right_place)) })
}

/// Lays `cells` out in the page at `place`, or in another if it must be of another length. The
/// cells may borrow from the old content, which the caller holds.
fn lay_out(
    draft: &mut Draft,
    place: PageRef,
    level: u8,
    cells: &[Cell<'_>],
    units: u32,
    leftmost: Option<PageRef>,
) -> Result<PageRef> {
    let kind = if leftmost.is_some() { Kind::Branch } else { Kind::Leaf };
    let to = if units == place.units() {
        draft.wipe(place, kind, level);
        place
    } else {
        let to = draft.create(kind, level, units)?;
        draft.discard(place)?;
        to
    };
    let mut node = NodeMut(draft.page_mut(to));
    node.fill(cells);
    if let Some(leftmost) = leftmost {
        node.set_leftmost(leftmost);
    }
    Ok(to)
}

/// Where to cut so that both halves have about as many bytes, and the right one at least
/// `right_min` cells.
fn middle(cells: &[Cell<'_>], right_min: usize) -> usize {
    let total: usize = cells.iter().map(Cell::bytes).sum();
    let mut sum = 0;
    let mut at = 0;
    while at < cells.len() && sum + cells[at].bytes() / 2 < total / 2 {
        sum += cells[at].bytes();
        at += 1;
    }
    at.clamp(1, cells.len() - right_min)
}
