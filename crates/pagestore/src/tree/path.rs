//! The way down to a key, made the transaction's own.

use crate::branch;
use crate::draft::Draft;
use crate::error::{Error, Result};
use crate::node::{Node, NodeMut};
use crate::page::PageRef;
use crate::source::Source;

/// Branches from the root down, each with the child that was taken.
pub(crate) struct Path {
    steps: Vec<(PageRef, usize)>,
}

impl Path {
    /// Goes down to the leaf for `key` and makes every page on the way own. The first step is the
    /// new root; the leaf is returned beside the path.
    pub(crate) fn down(draft: &mut Draft, root: PageRef, key: &[u8]) -> Result<(Path, PageRef)> {
        Path::choose(draft, root, 0, |node| branch::child_index(node, key))
    }

    /// Goes down along the tree's left edge, or its right one, to the page of `level`, and makes every
    /// page on the way own. The page is returned beside the path.
    pub(crate) fn edge(
        draft: &mut Draft,
        root: PageRef,
        level: u8,
        is_right: bool,
    ) -> Result<(Path, PageRef)> {
        Path::choose(draft, root, level, |node| if is_right { node.count() } else { 0 })
    }

    fn choose(
        draft: &mut Draft,
        root: PageRef,
        to: u8,
        child_index: impl Fn(Node<'_>) -> usize,
    ) -> Result<(Path, PageRef)> {
        let mut at = draft.own(root)?;
        let mut steps = Vec::with_capacity(8);
        loop {
            let frame = draft.page(at)?;
            let node = Node(&frame);
            let level = node.level();
            if level <= to {
                return Ok((Path { steps }, at));
            }
            let i = child_index(node);
            let child = branch::child(node, i);
            drop(frame);
            let owned = draft.own(child)?;
            if Node(&draft.page(owned)?).level() + 1 != level {
                return Err(Error::Corrupt { page: child.id(), what: "level" });
            }
            if owned != child {
                branch::move_child(&mut NodeMut(draft.page_mut(at)), i, owned);
            }
            steps.push((at, i));
            at = owned;
        }
    }

    /// The way to a root.
    pub(crate) fn empty() -> Path {
        Path { steps: Vec::new() }
    }

    /// The lowest branch that is left, and which child was taken from it.
    pub(crate) fn pop(&mut self) -> Option<(PageRef, usize)> {
        self.steps.pop()
    }

    /// The root of this path, or `last` if it was popped.
    pub(crate) fn root_or(&self, last: PageRef) -> PageRef {
        self.steps.first().map_or(last, |step| step.0)
    }
}
