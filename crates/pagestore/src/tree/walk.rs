//! Walk from leaf to leaf, in both directions, with prefetch of the next leaf and read-ahead of
//! those behind it.

use crate::error::Result;
use crate::page::slotted::SlottedPage;
use crate::page::source::{PageSource, PrefetchHint};
use crate::page::view::PageBytes;
use crate::page::{PageRef, branch};
use crate::tree::get::child_page;
use crate::tree::read_ahead::{ReadAhead, WalkDirection};

/// A leaf of a tree and the way down to it.
pub(crate) struct LeafWalk<'a> {
    source: &'a dyn PageSource,
    root: PageRef,
    /// Branches from the root down, each with the child that was taken.
    branches: Vec<(PageBytes<'a>, usize)>,
    leaf: Option<(PageRef, PageBytes<'a>)>,
    read_ahead: ReadAhead,
}

/// The child to take on the way down.
enum Descent<'k> {
    First,
    Last,
    To(&'k [u8]),
}

impl<'a> LeafWalk<'a> {
    /// Nowhere yet, in the tree under `root`.
    pub(crate) fn new(source: &'a dyn PageSource, root: PageRef) -> LeafWalk<'a> {
        let (branches, read_ahead) = (Vec::new(), ReadAhead::new());
        LeafWalk { source, root, branches, leaf: None, read_ahead }
    }

    /// The leaf, if the walk is somewhere.
    #[inline]
    pub(crate) fn leaf(&self) -> Option<SlottedPage<'_>> {
        self.leaf.as_ref().map(|(_, page)| SlottedPage(page))
    }

    /// Where the leaf lies, if the walk is somewhere.
    pub(crate) fn page_ref(&self) -> Option<PageRef> {
        self.leaf.as_ref().map(|(page_ref, _)| *page_ref)
    }

    /// Goes to the first leaf. False if the tree is empty.
    pub(crate) fn first(&mut self) -> Result<bool> {
        self.start(&Descent::First)
    }

    /// Goes to the last leaf. False if the tree is empty.
    pub(crate) fn last(&mut self) -> Result<bool> {
        self.start(&Descent::Last)
    }

    /// Goes to the leaf where `key` is or would be. False if the tree is empty.
    pub(crate) fn to(&mut self, key: &[u8]) -> Result<bool> {
        self.start(&Descent::To(key))
    }

    /// Goes to the next leaf. False, and the walk stays, if there is none.
    pub(crate) fn forward(&mut self) -> Result<bool> {
        let turn = self
            .branches
            .iter()
            .rposition(|(page, i)| i + 1 < branch::child_count(SlottedPage(page)));
        let look = self.read_ahead.step();
        let moved = self.turn(turn, |i| i + 1, &Descent::First)?;
        if let Some(look) = look {
            self.read_ahead.look(look, self.source, &self.branches, WalkDirection::Forward);
        }
        if let Some((page, i)) = self.branches.last()
            && i + 1 < branch::child_count(SlottedPage(page))
        {
            self.source.prefetch(branch::child(SlottedPage(page), i + 1), PrefetchHint::Whole);
        }
        Ok(moved)
    }

    /// Goes to the leaf before. False, and the walk stays, if there is none.
    pub(crate) fn backward(&mut self) -> Result<bool> {
        let turn = self.branches.iter().rposition(|(_, i)| *i > 0);
        let look = self.read_ahead.step();
        let moved = self.turn(turn, |i| i - 1, &Descent::Last)?;
        if let Some(look) = look {
            self.read_ahead.look(look, self.source, &self.branches, WalkDirection::Backward);
        }
        if let Some((page, i)) = self.branches.last()
            && *i > 0
        {
            self.source.prefetch(branch::child(SlottedPage(page), i - 1), PrefetchHint::Whole);
        }
        Ok(moved)
    }

    fn start(&mut self, descent: &Descent<'_>) -> Result<bool> {
        self.branches.clear();
        self.leaf = None;
        self.read_ahead = ReadAhead::new();
        if self.root.is_none() {
            return Ok(false);
        }
        let root = self.source.page(self.root)?;
        self.descend(self.root, root, descent)?;
        Ok(true)
    }

    fn turn(
        &mut self,
        at: Option<usize>,
        step: impl Fn(usize) -> usize,
        descent: &Descent<'_>,
    ) -> Result<bool> {
        let Some(at) = at else { return Ok(false) };
        self.branches.truncate(at + 1);
        let (page, i) = self.branches.last_mut().expect("one more than a position in it");
        *i = step(*i);
        let node = SlottedPage(page);
        debug_assert!(*i < branch::child_count(node), "child {i} of a branch");
        let page_ref = branch::child(node, *i);
        let page = child_page(self.source, node, page_ref)?;
        self.descend(page_ref, page, descent)?;
        Ok(true)
    }

    fn descend(
        &mut self,
        page_ref: PageRef,
        page: PageBytes<'a>,
        descent: &Descent<'_>,
    ) -> Result<()> {
        let (mut page_ref, mut page) = (page_ref, page);
        while !SlottedPage(&page).is_leaf() {
            let node = SlottedPage(&page);
            let i = match descent {
                Descent::First => 0,
                Descent::Last => node.count(),
                Descent::To(key) => branch::child_index(node, key),
            };
            page_ref = branch::child(node, i);
            let child = child_page(self.source, node, page_ref)?;
            self.branches.push((page, i));
            page = child;
        }
        self.leaf = Some((page_ref, page));
        Ok(())
    }
}
