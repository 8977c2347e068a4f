//! Going from leaf to leaf, in both directions.

use crate::branch;
use crate::error::Result;
use crate::node::Node;
use crate::page::{Frame, PageRef};
use crate::source::Source;
use crate::tree::get::child_page;

/// A leaf of a tree and the way down to it.
pub(crate) struct Walk<S> {
    source: S,
    root: PageRef,
    /// Branches from the root down, each with the child that was taken.
    branches: Vec<(Frame, usize)>,
    leaf: Option<Frame>,
}

/// Which child to take on the way down.
enum Way<'a> {
    First,
    Last,
    To(&'a [u8]),
}

impl<S: Source> Walk<S> {
    /// Nowhere yet, in the tree under `root`.
    pub(crate) fn new(source: S, root: PageRef) -> Walk<S> {
        Walk { source, root, branches: Vec::new(), leaf: None }
    }

    pub(crate) fn source(&self) -> &S {
        &self.source
    }

    /// The leaf, if the walk is somewhere.
    pub(crate) fn leaf(&self) -> Option<&Frame> {
        self.leaf.as_ref()
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
            self.branches.iter().rposition(|(frame, i)| i + 1 < branch::child_count(Node(frame)));
        self.turn(turn, |i| i + 1, &Way::First)
    }

    /// Goes to the leaf before. False, and the walk stays, if there is none.
    pub(crate) fn backward(&mut self) -> Result<bool> {
        let turn = self.branches.iter().rposition(|(_, i)| *i > 0);
        self.turn(turn, |i| i - 1, &Way::Last)
    }

    fn start(&mut self, way: &Way<'_>) -> Result<bool> {
        self.branches.clear();
        self.leaf = None;
        if self.root.is_none() {
            return Ok(false);
        }
        let root = self.source.page(self.root)?;
        self.descend(root, way)?;
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
        let (frame, i) = self.branches.last_mut().expect("one more than a position in it");
        *i = step(*i);
        let node = Node(frame);
        let page = child_page(&self.source, node, branch::child(node, *i))?;
        self.descend(page, way)?;
        Ok(true)
    }

    fn descend(&mut self, page: Frame, way: &Way<'_>) -> Result<()> {
        let mut frame = page;
        while !Node(&frame).is_leaf() {
            let node = Node(&frame);
            let i = match way {
                Way::First => 0,
                Way::Last => node.count(),
                Way::To(key) => branch::child_index(node, key),
            };
            let child = child_page(&self.source, node, branch::child(node, i))?;
            self.branches.push((frame, i));
            frame = child;
        }
        self.leaf = Some(frame);
        Ok(())
    }
}
