//! Insertion of one key, with page splits.

use std::ops::Range;

use crate::error::Result;
use crate::page::branch::{self, Child};
use crate::page::keys::joined;
use crate::page::leaf::{self, LeafValue, Payload, ValueExtent};
use crate::page::slotted::{Cell, CellOffsets, SlottedPage, SlottedPageMut, units_of};
use crate::page::source::PageSource;
use crate::page::subtree_size::SizeChange;
use crate::page::{PageKind, PageRef, PageSize};
use crate::tree::path::TreePath;
use crate::tree::txn_pages::TxnPages;

/// A page is taken to be filled in rising order if a run of so many cells, or of a quarter of its
/// cells, ends right before the new one. Then it is cut behind the run, and so stays full: by the
/// middle, pages that no key comes to any more would be left half full.
/// `docs/decisions/0026-pages-are-cut-behind-a-run.md`
const RUN_MIN: usize = 4;

/// How pages of one kind are split when they are too full.
struct SplitShape {
    kind: PageKind,
    size: PageSize,
    /// With fewer cells a page grows instead.
    cut_cells_min: usize,
    /// Cells between two pages that move up instead of staying in one of them.
    lifted: usize,
}

/// The outcome of a change: the page's place, and new neighbours to its right, each with the
/// separator before it. There is more than one only if the keys shared much until now.
struct SplitResult {
    page_ref: PageRef,
    right: Vec<(Vec<u8>, Child)>,
    /// Units of these pages beyond those of the one page before.
    more_units: i64,
}

impl SplitResult {
    /// The page as it was, but for its cells.
    fn not(page_ref: PageRef) -> SplitResult {
        SplitResult { page_ref, right: Vec::new(), more_units: 0 }
    }
}

/// Puts `value` under `key`. Returns the new root and what has changed below it.
pub(crate) fn put(
    pages: &mut TxnPages,
    size: PageSize,
    root: PageRef,
    key: &[u8],
    value: LeafValue<'_>,
) -> Result<(PageRef, SizeChange)> {
    let payload = Payload::new(value);
    let cell = Cell { key: (&[], key), lead: payload.lead(), tail: payload.tail() };
    let mut change = SizeChange::default();
    if let LeafValue::Extent(extent) = value {
        change.add(extent.span());
    }
    if root.is_none() {
        let page_ref = pages.create(PageKind::Leaf, 0, units_of(&[cell], size))?;
        SlottedPageMut(pages.page_mut(page_ref)).fill(&[cell]);
        change.keys = 1;
        change.add(page_ref.span());
        return Ok((page_ref, change));
    }
    let look = |node: SlottedPage<'_>| LeafSlot::of(node, key);
    let (mut path, leaf, seen) = TreePath::down_looking(pages, root, key, look)?;
    let grown = put_in_leaf(pages, size, leaf, &seen, &cell, &mut change)?;
    change.units += grown.more_units;
    rise(pages, size, &mut path, leaf, grown, change)
}

/// Puts children behind child `i` of the own branch `parent`, which lies at the end of `path`, each
/// with the separator before it. `change` is what they and other changes of the branch's children
/// add. Returns the new root and what has changed below it.
pub(crate) fn put_below(
    pages: &mut TxnPages,
    size: PageSize,
    mut path: TreePath,
    parent: (PageRef, usize),
    children: &[(Vec<u8>, Child)],
    mut change: SizeChange,
) -> Result<(PageRef, SizeChange)> {
    let grown = put_children(pages, size, parent.0, parent.1, children)?;
    change.units += grown.more_units;
    rise(pages, size, &mut path, parent.0, grown, change)
}

/// Carries the outcome of a change to the parents. `old` is where the page was.
fn rise(
    pages: &mut TxnPages,
    size: PageSize,
    path: &mut TreePath,
    old: PageRef,
    mut grown: SplitResult,
    mut change: SizeChange,
) -> Result<(PageRef, SizeChange)> {
    let mut old = old;
    while let Some((parent, i)) = path.pop() {
        if grown.right.is_empty() && grown.page_ref == old {
            if change.is_none() {
                return Ok((path.root_or(parent), change));
            }
            branch::resize_child(&mut SlottedPageMut(pages.page_mut(parent)), i, change);
            grown = SplitResult::not(parent);
        } else {
            let left = Child::of(grown.page_ref, SlottedPage(&pages.page(grown.page_ref)?));
            branch::set_child(&mut SlottedPageMut(pages.page_mut(parent)), i, left);
            grown = put_children(pages, size, parent, i, &grown.right)?;
            change.units += grown.more_units;
        }
        old = parent;
    }
    while !grown.right.is_empty() {
        let frame = pages.page(grown.page_ref)?;
        let left = Child::of(grown.page_ref, SlottedPage(&frame));
        let root = pages.create(PageKind::Branch, SlottedPage(&frame).level() + 1, size.units())?;
        change.add(root.span());
        SlottedPageMut(pages.page_mut(root)).set_leftmost(&left.encode());
        grown = put_children(pages, size, root, 0, &grown.right)?;
        change.units += grown.more_units;
    }
    Ok((grown.page_ref, change))
}

/// Puts new children behind child `i` of an own branch, each with the separator before it.
fn put_children(
    pages: &mut TxnPages,
    size: PageSize,
    page_ref: PageRef,
    i: usize,
    children: &[(Vec<u8>, Child)],
) -> Result<SplitResult> {
    if children.is_empty() {
        return Ok(SplitResult::not(page_ref));
    }
    debug_assert!(i <= SlottedPage(pages.page_mut(page_ref)).count(), "child {i} of a branch");
    let bytes: Vec<_> = children.iter().map(|(_, child)| child.encode()).collect();
    let separators = children.iter().zip(&bytes);
    let cells: Vec<_> =
        separators.map(|((separator, _), child)| branch::cell((&[], separator), child)).collect();
    put_cells(pages, size, page_ref, i, &cells, children.len() == 1)
}

/// The slot of a key in a leaf.
enum LeafSlot {
    /// Nothing; it would have to be put before this cell.
    Nothing(usize),
    /// A cell, and the long value that it names.
    Cell(usize, CellOffsets, Option<ValueExtent>),
}

impl LeafSlot {
    fn of(node: SlottedPage<'_>, key: &[u8]) -> LeafSlot {
        match node.search(key) {
            Err(i) => LeafSlot::Nothing(i),
            Ok(i) => LeafSlot::Cell(i, node.spot(i), leaf::extents(node, i..i + 1).next()),
        }
    }
}

fn put_in_leaf(
    pages: &mut TxnPages,
    size: PageSize,
    page_ref: PageRef,
    seen: &LeafSlot,
    cell: &Cell<'_>,
    change: &mut SizeChange,
) -> Result<SplitResult> {
    // Rows that get longer one after the other are no run: those behind them are there already.
    let (i, is_new) = match *seen {
        LeafSlot::Nothing(i) => {
            change.keys = 1;
            (i, true)
        }
        LeafSlot::Cell(i, spot, old) => {
            let mut node = SlottedPageMut(pages.page_mut(page_ref));
            let replaced = node.replace_at(spot, cell.lead, cell.tail);
            if !replaced {
                node.remove(i..i + 1);
            }
            if let Some(extent) = old {
                change.subtract(extent.span());
                pages.discard_extent(&extent);
            }
            if replaced {
                return Ok(SplitResult::not(page_ref));
            }
            (i, false)
        }
    };
    put_cells(pages, size, page_ref, i, std::slice::from_ref(cell), is_new)
}

/// Puts cells before cell `i` of an own page, which may grow or be cut for them. They may be the
/// next of a run of rising keys only if `may_rise`.
fn put_cells(
    pages: &mut TxnPages,
    size: PageSize,
    page_ref: PageRef,
    i: usize,
    new: &[Cell<'_>],
    may_rise: bool,
) -> Result<SplitResult> {
    if let [cell] = new
        && SlottedPageMut(pages.page_mut(page_ref)).insert(i, cell)
    {
        return Ok(SplitResult::not(page_ref));
    }
    let old = pages.owned_frame(page_ref)?;
    let node = SlottedPage(&old);
    let mut cells = Vec::with_capacity(node.count() + new.len());
    cells.extend(node.cells());
    let is_rising = may_rise && goes_on_a_run(node, i);
    cells.splice(i..i, new.iter().copied());
    let shape = if node.is_leaf() { SplitShape::leaf(size) } else { SplitShape::branch(size) };
    spread(pages, page_ref, node, &cells, &shape, is_rising.then_some(i))
}

/// Whether a cell before cell `i` of a page that is too full for it is the next of a run of rising
/// keys. Between two long cells it is taken for that: the right one may have come first because it
/// begins the next run, and cut in the middle each cell of the left run would get a page.
/// `docs/decisions/0039-two-long-values-share-a-page.md`
fn goes_on_a_run(node: SlottedPage<'_>, i: usize) -> bool {
    let is_between_two = node.count() == 2 && i == 1;
    is_between_two || node.run_before(i) >= (node.count() / 4).clamp(1, RUN_MIN)
}

/// Spreads cells over as many pages as they need. The first is the one at `page_ref`, whose old
/// content the caller holds in `old`, for the cells borrow from it. A run of rising keys ends with
/// cell `run_end`.
fn spread(
    pages: &mut TxnPages,
    page_ref: PageRef,
    old: SlottedPage<'_>,
    cells: &[Cell<'_>],
    shape: &SplitShape,
    run_end: Option<usize>,
) -> Result<SplitResult> {
    let ranges = shape.cut_all(cells, run_end);
    let kept: usize = ranges.iter().map(Range::len).sum();
    let lifted = shape.lifted * (ranges.len() - 1);
    debug_assert_eq!(kept + lifted, cells.len(), "a split loses cells");
    let mut right = Vec::new();
    let mut more_units = 0;
    for pair in ranges.windows(2) {
        let part = &cells[pair[1].clone()];
        let units = units_of(part, shape.size);
        let child = pages.create(shape.kind, old.level(), units)?;
        more_units += i64::from(units);
        let mut node = SlottedPageMut(pages.page_mut(child));
        node.fill(part);
        let separator = if shape.lifted == 0 {
            branch::separator(cells[pair[0].end - 1].key, part[0].key)
        } else {
            let lifted = cells[pair[0].end];
            node.set_leftmost(lifted.lead.try_into().expect("the lead of a branch is a child"));
            joined(lifted.key)
        };
        right.push((separator, Child::of(child, SlottedPage(node.0))));
    }
    let part = &cells[ranges[0].clone()];
    let laid_out = lay_out(pages, page_ref, old, part, shape)?;
    more_units += i64::from(laid_out.units()) - i64::from(page_ref.units());
    Ok(SplitResult { page_ref: laid_out, right, more_units })
}

impl SplitShape {
    fn leaf(size: PageSize) -> SplitShape {
        SplitShape { kind: PageKind::Leaf, size, cut_cells_min: 2, lifted: 0 }
    }

    /// With fewer than four separators a branch grows, so that both halves keep two children each
    /// and the height of the tree stays bounded.
    fn branch(size: PageSize) -> SplitShape {
        SplitShape { kind: PageKind::Branch, size, cut_cells_min: 4, lifted: 1 }
    }

    /// The ranges of cells for each page; where cells are lifted there is a gap between two ranges.
    fn cut_all(&self, cells: &[Cell<'_>], run_end: Option<usize>) -> Vec<Range<usize>> {
        let mut ranges = Vec::with_capacity(2);
        let fits = units_of(cells, self.size) == self.size.units();
        match run_end {
            Some(run_end) if !fits && cells.len() >= self.cut_cells_min => {
                let at = self.behind_run(cells, run_end);
                self.cut(cells, 0..at - self.lifted, &mut ranges);
                self.cut(cells, at..cells.len(), &mut ranges);
            }
            _ => self.cut(cells, 0..cells.len(), &mut ranges),
        }
        ranges
    }

    /// Where the right page begins, so that the run goes on at the end of the left one; or in the
    /// right one, if the left one is full.
    fn behind_run(&self, cells: &[Cell<'_>], run_end: usize) -> usize {
        let behind = run_end + 1 + self.lifted;
        let has_room = || units_of(&cells[..=run_end], self.size) == self.size.units();
        if behind < cells.len() && has_room() {
            behind
        } else {
            (run_end + self.lifted).min(cells.len() - 1)
        }
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

/// Lays cells out in the page at `page_ref`, or in another if it must be of another length.
fn lay_out(
    pages: &mut TxnPages,
    page_ref: PageRef,
    old: SlottedPage<'_>,
    cells: &[Cell<'_>],
    shape: &SplitShape,
) -> Result<PageRef> {
    let units = units_of(cells, shape.size);
    let to = if units == page_ref.units() {
        pages.wipe(page_ref, shape.kind, old.level());
        page_ref
    } else {
        let to = pages.create(shape.kind, old.level(), units)?;
        pages.discard(page_ref)?;
        to
    };
    let mut node = SlottedPageMut(pages.page_mut(to));
    node.fill(cells);
    if shape.kind == PageKind::Branch {
        node.set_leftmost(old.leftmost());
    }
    Ok(to)
}
