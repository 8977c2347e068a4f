//! Putting one key, and cutting the pages that become too full.

use std::ops::Range;

use crate::branch::{self, Child};
use crate::draft::Draft;
use crate::error::Result;
use crate::keys::joined;
use crate::leaf::{self, Extent, Payload, Value};
use crate::node::{Cell, Node, NodeMut, Spot, units_of};
use crate::page::{Kind, PageRef, PageSize};
use crate::size::Change;
use crate::source::Source;
use crate::tree::path::Path;

/// After so many appends in a row a full page is taken to be filled in rising order: then it stays
/// full and the next key begins a new page.
const APPENDS_MIN: usize = 8;

/// How pages of one kind are cut when they are too full.
struct Shape {
    kind: Kind,
    size: PageSize,
    /// With fewer cells a page grows instead.
    cut_cells_min: usize,
    /// Cells between two pages that move up instead of staying in one of them.
    lifted: usize,
}

/// What became of a page that was changed: its place, and new neighbours to its right, each with
/// the separator before it. There is more than one only if the keys shared much until now.
struct Grown {
    place: PageRef,
    right: Vec<(Vec<u8>, Child)>,
    /// Units of these pages beyond those of the one page before.
    more_units: i64,
}

impl Grown {
    /// The page as it was, but for its cells.
    fn not(place: PageRef) -> Grown {
        Grown { place, right: Vec::new(), more_units: 0 }
    }
}

/// Puts `value` under `key`. Returns the new root and what has changed below it.
pub(crate) fn put(
    draft: &mut Draft,
    size: PageSize,
    root: PageRef,
    key: &[u8],
    value: Value<'_>,
) -> Result<(PageRef, Change)> {
    let payload = Payload::new(value);
    let cell = Cell { key: (&[], key), lead: payload.lead(), tail: payload.tail() };
    let mut change = Change::default();
    if let Value::Extent(extent) = value {
        change.add(extent.span());
    }
    if root.is_none() {
        let place = draft.create(Kind::Leaf, 0, units_of(&[cell], size))?;
        NodeMut(draft.page_mut(place)).fill(&[cell]);
        change.keys = 1;
        change.add(place.span());
        return Ok((place, change));
    }
    let look = |node: Node<'_>| Seen::of(node, key);
    let (mut path, leaf, seen) = Path::down_looking(draft, root, key, look)?;
    let grown = put_in_leaf(draft, size, leaf, &seen, &cell, &mut change)?;
    change.units += grown.more_units;
    rise(draft, size, &mut path, leaf, grown, change)
}

/// Puts children behind child `i` of the own branch `parent`, which lies at the end of `path`, each
/// with the separator before it. `change` is what they and other changes of the branch's children
/// add. Returns the new root and what has changed below it.
pub(crate) fn put_below(
    draft: &mut Draft,
    size: PageSize,
    mut path: Path,
    parent: (PageRef, usize),
    children: &[(Vec<u8>, Child)],
    mut change: Change,
) -> Result<(PageRef, Change)> {
    let grown = put_children(draft, size, parent.0, parent.1, children)?;
    change.units += grown.more_units;
    rise(draft, size, &mut path, parent.0, grown, change)
}

/// Carries what became of a page to its parents. `old` is where the page was.
fn rise(
    draft: &mut Draft,
    size: PageSize,
    path: &mut Path,
    old: PageRef,
    mut grown: Grown,
    mut change: Change,
) -> Result<(PageRef, Change)> {
    let mut old = old;
    while let Some((parent, i)) = path.pop() {
        if grown.right.is_empty() && grown.place == old {
            if change.is_none() {
                return Ok((path.root_or(parent), change));
            }
            branch::resize_child(&mut NodeMut(draft.page_mut(parent)), i, change);
            grown = Grown::not(parent);
        } else {
            let left = Child::of(grown.place, Node(&draft.page(grown.place)?));
            branch::set_child(&mut NodeMut(draft.page_mut(parent)), i, left);
            grown = put_children(draft, size, parent, i, &grown.right)?;
            change.units += grown.more_units;
        }
        old = parent;
    }
    while !grown.right.is_empty() {
        let frame = draft.page(grown.place)?;
        let left = Child::of(grown.place, Node(&frame));
        let root = draft.create(Kind::Branch, Node(&frame).level() + 1, size.units())?;
        change.add(root.span());
        NodeMut(draft.page_mut(root)).set_leftmost(&left.encode());
        grown = put_children(draft, size, root, 0, &grown.right)?;
        change.units += grown.more_units;
    }
    Ok((grown.place, change))
}

/// Puts new children behind child `i` of an own branch, each with the separator before it.
fn put_children(
    draft: &mut Draft,
    size: PageSize,
    place: PageRef,
    i: usize,
    children: &[(Vec<u8>, Child)],
) -> Result<Grown> {
    if children.is_empty() {
        return Ok(Grown::not(place));
    }
    let bytes: Vec<_> = children.iter().map(|(_, child)| child.encode()).collect();
    let separators = children.iter().zip(&bytes);
    let cells: Vec<_> =
        separators.map(|((separator, _), child)| branch::cell((&[], separator), child)).collect();
    put_cells(draft, size, place, i, &cells)
}

/// What a leaf has of a key.
enum Seen {
    /// Nothing; it would have to be put before this cell.
    Nothing(usize),
    /// A cell, and the long value that it names.
    Cell(usize, Spot, Option<Extent>),
}

impl Seen {
    fn of(node: Node<'_>, key: &[u8]) -> Seen {
        match node.search(key) {
            Err(i) => Seen::Nothing(i),
            Ok(i) => Seen::Cell(i, node.spot(i), leaf::extents(node, i..i + 1).next()),
        }
    }
}

fn put_in_leaf(
    draft: &mut Draft,
    size: PageSize,
    place: PageRef,
    seen: &Seen,
    cell: &Cell<'_>,
    change: &mut Change,
) -> Result<Grown> {
    let i = match *seen {
        Seen::Nothing(i) => {
            change.keys = 1;
            i
        }
        Seen::Cell(i, spot, old) => {
            let mut node = NodeMut(draft.page_mut(place));
            let replaced = node.replace_at(spot, cell.lead, cell.tail);
            if !replaced {
                node.remove(i..i + 1);
            }
            if let Some(extent) = old {
                change.subtract(extent.span());
                draft.discard_extent(&extent);
            }
            if replaced {
                return Ok(Grown::not(place));
            }
            i
        }
    };
    put_cells(draft, size, place, i, std::slice::from_ref(cell))
}

/// Puts cells before cell `i` of an own page, which may grow or be cut for them.
fn put_cells(
    draft: &mut Draft,
    size: PageSize,
    place: PageRef,
    i: usize,
    new: &[Cell<'_>],
) -> Result<Grown> {
    if let [cell] = new
        && NodeMut(draft.page_mut(place)).insert(i, cell)
    {
        return Ok(Grown::not(place));
    }
    let old = draft.held(place)?;
    let node = Node(&old);
    let mut cells = Vec::with_capacity(node.count() + new.len());
    cells.extend(node.cells());
    let rising = i == cells.len()
        && new.len() == 1
        && usize::from(node.appends()) + 1 >= cells.len().min(APPENDS_MIN);
    cells.splice(i..i, new.iter().copied());
    let shape = if node.is_leaf() { Shape::leaf(size) } else { Shape::branch(size) };
    spread(draft, place, node, &cells, &shape, rising)
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
    let mut more_units = 0;
    for pair in ranges.windows(2) {
        let part = &cells[pair[1].clone()];
        let units = units_of(part, shape.size);
        let child = draft.create(shape.kind, old.level(), units)?;
        more_units += i64::from(units);
        let mut node = NodeMut(draft.page_mut(child));
        node.fill(part);
        let separator = if shape.lifted == 0 {
            branch::separator(cells[pair[0].end - 1].key, part[0].key)
        } else {
            let lifted = cells[pair[0].end];
            node.set_leftmost(lifted.lead.try_into().expect("the lead of a branch is a child"));
            joined(lifted.key)
        };
        right.push((separator, Child::of(child, Node(node.0))));
    }
    let part = &cells[ranges[0].clone()];
    let laid_out = lay_out(draft, place, old, part, shape)?;
    more_units += i64::from(laid_out.units()) - i64::from(place.units());
    Ok(Grown { place: laid_out, right, more_units })
}

impl Shape {
    fn leaf(size: PageSize) -> Shape {
        Shape { kind: Kind::Leaf, size, cut_cells_min: 2, lifted: 0 }
    }

    /// With fewer than four separators a branch grows, so that both halves keep two children each
    /// and the height of the tree stays bounded.
    fn branch(size: PageSize) -> Shape {
        Shape { kind: Kind::Branch, size, cut_cells_min: 4, lifted: 1 }
    }

    /// Which cells go to which page; where cells are lifted there is a gap between two ranges.
    fn cut_all(&self, cells: &[Cell<'_>], rising: bool) -> Vec<Range<usize>> {
        let mut ranges = Vec::with_capacity(2);
        let fits = units_of(cells, self.size) == self.size.units();
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
        if part.len() < self.cut_cells_min || units_of(part, self.size) == self.size.units() {
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
    let units = units_of(cells, shape.size);
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
