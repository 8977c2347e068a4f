//! Moving what lies at the end of the file to free places before it, a part of a tree at a time.
//!
//! Branches are read to find children that lie beyond a line; a leaf is read only if it lies there,
//! or if its parent says that it has long values. What is moved becomes the transaction's own like
//! anything that it changes, and with it the branches on the way to it.

use crate::branch;
use crate::draft::Draft;
use crate::error::{Error, Result};
use crate::keys::joined;
use crate::leaf::{self, Extent, Payload, Value};
use crate::node::{Node, NodeMut};
use crate::page::{PageRef, Span};
use crate::source::Source;

/// How much may be moved and looked at, and how much was.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Budget {
    /// Units from here on are to be emptied.
    pub(crate) line: u64,
    /// Bytes to move.
    pub(crate) bytes: u64,
    /// Pages to look at.
    pub(crate) pages: u64,
    /// Bytes that were moved.
    pub(crate) moved_bytes: u64,
}

impl Budget {
    pub(crate) fn is_spent(&self) -> bool {
        self.bytes == 0 || self.pages == 0
    }

    /// Counts something that is looked at.
    pub(crate) fn look(&mut self) {
        self.pages = self.pages.saturating_sub(1);
    }

    fn is_beyond(&self, span: Span) -> bool {
        span.end() > self.line
    }

    fn moved(&mut self, span: Span) {
        self.bytes = self.bytes.saturating_sub(span.bytes());
        self.moved_bytes += span.bytes();
    }
}

/// One way through a tree.
struct Way<'a> {
    draft: &'a mut Draft,
    budget: &'a mut Budget,
    /// Where the way before has stopped.
    from: &'a [u8],
    /// Where this one has stopped.
    stopped: Option<Vec<u8>>,
}

/// A part of the tree to look into.
struct Part {
    i: usize,
    place: PageRef,
    /// The way goes on in it from where the last one stopped.
    on_path: bool,
}

/// Moves what lies beyond the line in the tree under `root`, from key `from` on, until the budget is
/// spent. Returns the new root, and the key to go on from if there is more.
pub(crate) fn relocate(
    draft: &mut Draft,
    root: PageRef,
    from: &[u8],
    budget: &mut Budget,
) -> Result<(PageRef, Option<Vec<u8>>)> {
    if root.is_none() {
        return Ok((root, None));
    }
    let mut way = Way { draft, budget, from, stopped: None };
    let root = way.page(root, None, true, &[])?;
    Ok((root, way.stopped))
}

impl Way<'_> {
    /// Looks into a page, which holds keys from `low` on. Returns where it lies then.
    fn page(
        &mut self,
        place: PageRef,
        level: Option<u8>,
        on_path: bool,
        low: &[u8],
    ) -> Result<PageRef> {
        self.budget.look();
        let mut at = place;
        if self.budget.is_beyond(place.span())
            && let Some(to) = self.draft.relocate(place)?
        {
            self.budget.moved(place.span());
            at = to;
        }
        let found = {
            let page = self.draft.page(at)?;
            Node(&page).level()
        };
        if level.is_some_and(|level| level != found) {
            return Err(Error::Corrupt { page: place.id(), what: "level" });
        }
        match found {
            0 => self.values(at, on_path),
            level => self.children(at, level, on_path, low),
        }
    }

    fn children(
        &mut self,
        place: PageRef,
        level: u8,
        on_path: bool,
        low: &[u8],
    ) -> Result<PageRef> {
        let mut at = place;
        for Part { i, place, on_path } in self.parts(at, level, on_path)? {
            let low = match i.checked_sub(1) {
                None => low.to_vec(),
                Some(cell) => joined(Node(&self.draft.page(at)?).key(cell)),
            };
            if self.budget.is_spent() {
                // What the last way stopped at is more precise.
                self.stopped = Some(if on_path { self.from.to_vec() } else { low });
                break;
            }
            let to = self.page(place, Some(level - 1), on_path, &low)?;
            if to != place {
                at = self.draft.own(at)?;
                branch::move_child(&mut NodeMut(self.draft.page_mut(at)), i, to);
            }
            if self.stopped.is_some() {
                break;
            }
        }
        Ok(at)
    }

    /// The children of a branch that may have something to be moved.
    fn parts(&self, place: PageRef, level: u8, on_path: bool) -> Result<Vec<Part>> {
        let page = self.draft.page(place)?;
        let node = Node(&page);
        let first = if on_path { branch::child_index(node, self.from) } else { 0 };
        let part = |i| {
            let child = branch::sized_child(node, i);
            let has_long_values = child.size.units > u64::from(child.place.units());
            let wanted = level > 1 || has_long_values || self.budget.is_beyond(child.place.span());
            wanted.then_some(Part { i, place: child.place, on_path: on_path && i == first })
        };
        Ok((first..branch::child_count(node)).filter_map(part).collect())
    }

    /// Moves the long values of a leaf.
    fn values(&mut self, place: PageRef, on_path: bool) -> Result<PageRef> {
        let mut at = place;
        for (i, extent) in self.extents(place, on_path)? {
            if self.budget.is_spent() {
                self.stopped = Some(joined(Node(&self.draft.page(at)?).key(i)));
                break;
            }
            if let Some(to) = self.draft.relocate_extent(&extent)? {
                self.budget.moved(extent.span());
                at = self.draft.own(at)?;
                let payload = Payload::new(Value::Extent(to));
                let mut node = NodeMut(self.draft.page_mut(at));
                let replaced = node.replace(i, payload.lead(), payload.tail());
                assert!(replaced, "addresses of long values have the same length");
            }
        }
        Ok(at)
    }

    fn extents(&self, place: PageRef, on_path: bool) -> Result<Vec<(usize, Extent)>> {
        let page = self.draft.page(place)?;
        let node = Node(&page);
        let first = if on_path { node.search(self.from).unwrap_or_else(|i| i) } else { 0 };
        let beyond = |i| match leaf::value(node, i) {
            Value::Extent(extent) if self.budget.is_beyond(extent.span()) => Some((i, extent)),
            _ => None,
        };
        Ok((first..node.count()).filter_map(beyond).collect())
    }
}
