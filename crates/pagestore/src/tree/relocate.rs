//! Relocation for defragmentation: pages and long values beyond a limit move before it, a part of a
//! tree at a time.
//!
//! Branches are read to find children that lie beyond the limit; a leaf is read only if it lies
//! there, or if its parent says that it has long values. A moved page becomes private to the
//! transaction like any that it changes, and with it the branches on the path to it.

use crate::error::{Error, Result};
use crate::page::keys::joined;
use crate::page::leaf::{self, LeafValue, Payload, ValueExtent};
use crate::page::slotted::{SlottedPage, SlottedPageMut};
use crate::page::source::PageSource;
use crate::page::{PageRef, Span, branch};
use crate::tree::txn_pages::TxnPages;

/// The budget of a step: how much may be moved and looked at, and how much was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RelocateBudget {
    /// Units from here on are to be emptied.
    pub(crate) limit: u64,
    /// Bytes to move.
    pub(crate) bytes: u64,
    /// Pages to look at.
    pub(crate) pages: u64,
    /// Bytes that were moved.
    pub(crate) moved_bytes: u64,
}

impl RelocateBudget {
    pub(crate) fn is_spent(&self) -> bool {
        self.bytes == 0 || self.pages == 0
    }

    /// Counts something that is looked at.
    pub(crate) fn look(&mut self) {
        self.pages = self.pages.saturating_sub(1);
    }

    fn is_beyond(&self, span: Span) -> bool {
        span.end() > self.limit
    }

    fn moved(&mut self, span: Span) {
        self.bytes = self.bytes.saturating_sub(span.bytes());
        self.moved_bytes += span.bytes();
    }
}

/// One walk through a tree.
struct Relocation<'a> {
    pages: &'a mut TxnPages,
    budget: &'a mut RelocateBudget,
    /// Where the walk before has stopped.
    from: &'a [u8],
    /// Where this one has stopped.
    stopped: Option<Vec<u8>>,
}

/// A child to look into.
struct RelocateChild {
    i: usize,
    page_ref: PageRef,
    /// The walk goes on in it from where the last one stopped.
    on_path: bool,
}

/// Moves what lies beyond the line in the tree under `root`, from key `from` on, until the budget
/// is spent. Returns the new root, and the key to go on from if there is more.
pub(crate) fn relocate(
    pages: &mut TxnPages,
    root: PageRef,
    from: &[u8],
    budget: &mut RelocateBudget,
) -> Result<(PageRef, Option<Vec<u8>>)> {
    if root.is_none() {
        return Ok((root, None));
    }
    let mut walk = Relocation { pages, budget, from, stopped: None };
    let root = walk.page(root, None, true, &[])?;
    Ok((root, walk.stopped))
}

impl Relocation<'_> {
    /// Looks into a page, which holds keys from `low` on. Returns where it lies then.
    fn page(
        &mut self,
        page_ref: PageRef,
        level: Option<u8>,
        on_path: bool,
        low: &[u8],
    ) -> Result<PageRef> {
        self.budget.look();
        let mut at = page_ref;
        if self.budget.is_beyond(page_ref.span())
            && let Some(to) = self.pages.relocate(page_ref)?
        {
            self.budget.moved(page_ref.span());
            at = to;
        }
        let found = {
            let page = self.pages.page(at)?;
            SlottedPage(&page).level()
        };
        if level.is_some_and(|level| level != found) {
            return Err(Error::Corrupt { page: page_ref.id(), what: "level" });
        }
        match found {
            0 => self.values(at, on_path),
            level => self.children(at, level, on_path, low),
        }
    }

    fn children(
        &mut self,
        page_ref: PageRef,
        level: u8,
        on_path: bool,
        low: &[u8],
    ) -> Result<PageRef> {
        let mut at = page_ref;
        for RelocateChild { i, page_ref, on_path } in self.parts(at, level, on_path)? {
            let low = match i.checked_sub(1) {
                None => low.to_vec(),
                Some(cell) => joined(SlottedPage(&self.pages.page(at)?).key(cell)),
            };
            if self.budget.is_spent() {
                // The key at which the last walk stopped is more precise.
                self.stopped = Some(if on_path { self.from.to_vec() } else { low });
                break;
            }
            let to = self.page(page_ref, Some(level - 1), on_path, &low)?;
            if to != page_ref {
                at = self.pages.make_private(at)?;
                branch::move_child(&mut SlottedPageMut(self.pages.page_mut(at)), i, to);
            }
            if self.stopped.is_some() {
                break;
            }
        }
        Ok(at)
    }

    /// The children of a branch that may have something to be moved.
    fn parts(&self, page_ref: PageRef, level: u8, on_path: bool) -> Result<Vec<RelocateChild>> {
        let page = self.pages.page(page_ref)?;
        let node = SlottedPage(&page);
        let first = if on_path { branch::child_index(node, self.from) } else { 0 };
        let part = |i| {
            let child = branch::sized_child(node, i);
            let has_long_values = child.size.units > u64::from(child.page_ref.units());
            let wanted =
                level > 1 || has_long_values || self.budget.is_beyond(child.page_ref.span());
            wanted.then_some(RelocateChild {
                i,
                page_ref: child.page_ref,
                on_path: on_path && i == first,
            })
        };
        Ok((first..branch::child_count(node)).filter_map(part).collect())
    }

    /// Moves the long values of a leaf.
    fn values(&mut self, page_ref: PageRef, on_path: bool) -> Result<PageRef> {
        let mut at = page_ref;
        for (i, extent) in self.extents(page_ref, on_path)? {
            if self.budget.is_spent() {
                self.stopped = Some(joined(SlottedPage(&self.pages.page(at)?).key(i)));
                break;
            }
            if let Some(to) = self.pages.relocate_extent(&extent)? {
                self.budget.moved(extent.span());
                at = self.pages.make_private(at)?;
                let payload = Payload::new(LeafValue::Extent(to));
                let mut node = SlottedPageMut(self.pages.page_mut(at));
                let replaced = node.replace(i, payload.lead(), payload.tail());
                assert!(replaced, "addresses of long values have the same length");
            }
        }
        Ok(at)
    }

    fn extents(&self, page_ref: PageRef, on_path: bool) -> Result<Vec<(usize, ValueExtent)>> {
        let page = self.pages.page(page_ref)?;
        let node = SlottedPage(&page);
        let first = if on_path { node.search(self.from).unwrap_or_else(|i| i) } else { 0 };
        let beyond = |i| match leaf::value(node, i) {
            LeafValue::Extent(extent) if self.budget.is_beyond(extent.span()) => Some((i, extent)),
            _ => None,
        };
        Ok((first..node.count()).filter_map(beyond).collect())
    }
}
