//! Going from leaf to leaf, in both directions.

use crate::branch;
use crate::error::Result;
use crate::node::Node;
use crate::page::PageRef;
use crate::source::{Source, Wanted};
use crate::tree::get::child_page;
use crate::view::PageBytes;

/// A leaf of a tree and the way down to it.
pub(crate) struct Walk<'a> {
    source: &'a dyn Source,
    root: PageRef,
    /// Branches from the root down, each with the child that was taken.
    branches: Vec<(PageBytes<'a>, usize)>,
    leaf: Option<(PageRef, PageBytes<'a>)>,
}

/// Which child to take on the way down.
enum Way<'k> {
    First,
    Last,
    To(&'k [u8]),
}

impl<'a> Walk<'a> {
    /// Nowhere yet, in the tree under `root`.
    pub(crate) fn new(source: &'a dyn Source, root: PageRef) -> Walk<'a> {
        Walk { source, root, branches: Vec::new(), leaf: None }
    }

    /// The leaf, if the walk is somewhere.
    #[inline]
    pub(crate) fn leaf(&self) -> Option<Node<'_>> {
        self.leaf.as_ref().map(|(_, page)| Node(page))
    }

    /// Where the leaf lies, if the walk is somewhere.
    pub(crate) fn place(&self) -> Option<PageRef> {
        self.leaf.as_ref().map(|(place, _)| *place)
    }

    /// Goes to the first leaf. False if the tree is empty.
    pub(crate) fn first(&mut self) -> Result<bool> {
        self.start(&Way::First)
    }

    /// Goes to the last leaf. False if the tree is empty.
    pub(crate) fn last(&mut self) -> Result<bool> {
        self.start(&Way::Last)
    }

    /// Goes to the leaf where `key` is or would be. False if the tree is empty.
    pub(crate) fn to(&mut self, key: &[u8]) -> Result<bool> {
        self.start(&Way::To(key))
    }

    /// Goes to the next leaf. False, and the walk stays, if there is none.
    pub(crate) fn forward(&mut self) -> Result<bool> {
        let turn =
            self.branches.iter().rposition(|(page, i)| i + 1 < branch::child_count(Node(page)));
        let moved = self.turn(turn, |i| i + 1, &Way::First)?;
        if let Some((page, i)) = self.branches.last()
            && i + 1 < branch::child_count(Node(page))
        {
            self.source.prefetch(branch::child(Node(page), i + 1), Wanted::Whole);
        }
        Ok(moved)
    }

    /// Goes to the leaf before. False, and the walk stays, if there is none.
    pub(crate) fn backward(&mut self) -> Result<bool> {
        let turn = self.branches.iter().rposition(|(_, i)| *i > 0);
        let moved = self.turn(turn, |i| i - 1, &Way::Last)?;
        if let Some((page, i)) = self.branches.last()
            && *i > 0
        {
            self.source.prefetch(branch::child(Node(page), i - 1), Wanted::Whole);
        }
        Ok(moved)
    }

    fn start(&mut self, way: &Way<'_>) -> Result<bool> {
        self.branches.clear();
        self.leaf = None;
        if self.root.is_none() {
            return Ok(false);
        }
        let root = self.source.page(self.root)?;
        self.descend(self.root, root, way)?;
        Ok(true)
    }

    fn turn(
        &mut self,
        at: Option<usize>,
        step: impl Fn(usize) -> usize,
        way: &Way<'_>,
    ) -> Result<bool> {
        let Some(at) = at else { return Ok(false) };
        self.branches.truncate(at + 1);
        let (page, i) = self.branches.last_mut().expect("one more than a position in it");
        *i = step(*i);
        let node = Node(page);
        let place = branch::child(node, *i);
        let page = child_page(self.source, node, place)?;
        self.descend(place, page, way)?;
        Ok(true)
    }

    fn descend(&mut self, place: PageRef, page: PageBytes<'a>, way: &Way<'_>) -> Result<()> {
        let (mut place, mut page) = (place, page);
        while !Node(&page).is_leaf() {
            let node = Node(&page);
            let i = match way {
                Way::First => 0,
                Way::Last => node.count(),
                Way::To(key) => branch::child_index(node, key),
            };
            place = branch::child(node, i);
            let child = child_page(self.source, node, place)?;
            self.branches.push((page, i));
            page = child;
        }
        self.leaf = Some((place, page));
        Ok(())
    }
}
