//! Putting one key, and cutting the pages that become too full.

use std::ops::Range;

use crate::branch;
use crate::draft::Draft;
use crate::error::Result;
use crate::keys::joined;
use crate::leaf::{self, Extent, LEAF_UNITS, Payload, Value};
use crate::node::{Cell, Node, NodeMut, units_of};
use crate::page::{Kind, PageRef, u64_at};
use crate::source::Source;
use crate::tree::path::Path;

/// After so many appends in a row a full page is taken to be filled in rising order: then it stays
/// full and the next key begins a new page.
const APPENDS_MIN: usize = 8;

/// How pages of one kind are cut when they are too full.
struct Shape {
    kind: Kind,
    /// Units of a page, unless a long key wants more.
    units: u32,
    /// With fewer cells a page grows instead.
    cut_cells_min: usize,
    /// Cells between two pages that move up instead of staying in one of them.
    lifted: usize,
}

const LEAF: Shape = Shape { kind: Kind::Leaf, units: LEAF_UNITS, cut_cells_min: 2, lifted: 0 };

/// With fewer than four separators a branch grows, so that both halves keep two children each and
/// the height of the tree stays bounded.
const BRANCH: Shape =
    Shape { kind: Kind::Branch, units: branch::BRANCH_UNITS, cut_cells_min: 4, lifted: 1 };

/// What became of a page that was changed: its place, and new neighbours to its right, each with
/// the separator before it. There is more than one only if the keys shared much until now.
struct Grown {
    place: PageRef,
    right: Vec<(Vec<u8>, PageRef)>,
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
        if grown.place != branch::child(Node(&draft.page(parent)?), i) {
            branch::set_child(&mut NodeMut(draft.page_mut(parent)), i, grown.place);
        }
        if grown.right.is_empty() {
            return Ok((path.root_or(parent), new));
        }
        grown = put_children(draft, parent, i, &grown.right)?;
    }
    while !grown.right.is_empty() {
        let level = Node(&draft.page(grown.place)?).level() + 1;
        let root = draft.create(Kind::Branch, level, branch::BRANCH_UNITS)?;
        NodeMut(draft.page_mut(root)).set_leftmost(grown.place);
        grown = put_children(draft, root, 0, &grown.right)?;
    }
    Ok((grown.place, new))
}

/// Puts new children behind child `i` of an own branch, each with the separator before it.
fn put_children(
    draft: &mut Draft,
    place: PageRef,
    i: usize,
    children: &[(Vec<u8>, PageRef)],
) -> Result<Grown> {
    let places: Vec<_> = children.iter().map(|(_, child)| child.raw().to_le_bytes()).collect();
    let separators = children.iter().zip(&places);
    let cells: Vec<_> =
        separators.map(|((separator, _), child)| branch::cell((&[], separator), child)).collect();
    put_cells(draft, place, i, &cells)
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
                return Ok((Grown { place, right: Vec::new() }, false));
            }
        }
    };
    let new = old.is_none();
    discard(draft, old.flatten());
    Ok((put_cells(draft, place, i, std::slice::from_ref(cell))?, new))
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

/// Puts cells before cell `i` of an own page, which may grow or be cut for them.
fn put_cells(draft: &mut Draft, place: PageRef, i: usize, new: &[Cell<'_>]) -> Result<Grown> {
    if let [cell] = new
        && NodeMut(draft.page_mut(place)).insert(i, cell)
    {
        return Ok(Grown { place, right: Vec::new() });
    }
    let old = draft.page(place)?;
    let node = Node(&old);
    let mut cells = Vec::with_capacity(node.count() + new.len());
    cells.extend(node.cells());
    let rising = i == cells.len()
        && new.len() == 1
        && usize::from(node.appends()) + 1 >= cells.len().min(APPENDS_MIN);
    cells.splice(i..i, new.iter().copied());
    let shape = if node.is_leaf() { &LEAF } else { &BRANCH };
    spread(draft, place, node, &cells, shape, rising)
}

/// Spreads cells over as many pages as they need. The first is the one at `place`, whose old
/// content the caller holds in `old`, for the cells borrow from it.
fn spread(
    draft: &mut Draft,
    place: PageRef,
    old: Node<'_>,
    cells: &[Cell<'_>],
    shape: &Shape,
    rising: bool,
) -> Result<Grown> {
    let ranges = shape.cut_all(cells, rising);
    let mut right = Vec::new();
    for pair in ranges.windows(2) {
        let part = &cells[pair[1].clone()];
        let units = units_of(part, shape.units);
        let child = draft.create(shape.kind, old.level(), units)?;
        let mut node = NodeMut(draft.page_mut(child));
        node.fill(part);
        let separator = if shape.lifted == 0 {
            branch::separator(cells[pair[0].end - 1].key, part[0].key)
        } else {
            let lifted = cells[pair[0].end];
            node.set_leftmost(PageRef::from_raw(u64_at(lifted.lead, 0)));
            joined(lifted.key)
        };
        right.push((separator, child));
    }
    let part = &cells[ranges[0].clone()];
    let place = lay_out(draft, place, old, part, shape)?;
    Ok(Grown { place, right })
}

impl Shape {
    /// Which cells go to which page; where cells are lifted there is a gap between two ranges.
    fn cut_all(&self, cells: &[Cell<'_>], rising: bool) -> Vec<Range<usize>> {
        let mut ranges = Vec::with_capacity(2);
        let fits = units_of(cells, self.units) == self.units;
        if rising && !fits && cells.len() >= self.cut_cells_min {
            let at = cells.len() - 1;
            self.cut(cells, 0..at - self.lifted, &mut ranges);
            ranges.push(at..cells.len());
        } else {
            self.cut(cells, 0..cells.len(), &mut ranges);
        }
        ranges
    }

    fn cut(&self, cells: &[Cell<'_>], range: Range<usize>, ranges: &mut Vec<Range<usize>>) {
        let part = &cells[range.clone()];
        if part.len() < self.cut_cells_min || units_of(part, self.units) == self.units {
            ranges.push(range);
            return;
        }
        let at = range.start + middle(part).clamp(1, part.len() - 1 - self.lifted);
        self.cut(cells, range.start..at, ranges);
        self.cut(cells, at + self.lifted..range.end, ranges);
    }
}

/// Where to cut so that both halves have about as many bytes.
fn middle(cells: &[Cell<'_>]) -> usize {
    let total: usize = cells.iter().map(Cell::bytes).sum();
    let mut sum = 0;
    let before = |cell: &&Cell<'_>| {
        let mine = sum + cell.bytes() / 2 < total / 2;
        sum += cell.bytes();
        mine
    };
    cells.iter().take_while(before).count()
}

/// Lays cells out in the page at `place`, or in another if it must be of another length.
fn lay_out(
    draft: &mut Draft,
    place: PageRef,
    old: Node<'_>,
    cells: &[Cell<'_>],
    shape: &Shape,
) -> Result<PageRef> {
    let units = units_of(cells, shape.units);
    let to = if units == place.units() {
        draft.wipe(place, shape.kind, old.level());
        place
    } else {
        let to = draft.create(shape.kind, old.level(), units)?;
        draft.discard(place)?;
        to
    };
    let mut node = NodeMut(draft.page_mut(to));
    node.fill(cells);
    if shape.kind == Kind::Branch {
        node.set_leftmost(old.leftmost());
    }
    Ok(to)
}
