//! The way down to a key, made the transaction's own.

use crate::branch;
use crate::draft::Draft;
use crate::error::{Error, Result};
use crate::node::{Node, NodeMut};
use crate::page::PageRef;
use crate::source::{Source, Wanted};

/// Branches from the root down, each with the child that was taken.
pub(crate) struct Path {
    steps: Vec<(PageRef, usize)>,
}

impl Path {
    /// Goes down to the leaf for `key` and makes every page on the way own. The first step is the
    /// new root; the leaf is returned beside the path.
    pub(crate) fn down(draft: &mut Draft, root: PageRef, key: &[u8]) -> Result<(Path, PageRef)> {
        let (path, leaf, ()) =
            Path::choose(draft, root, 0, |node| branch::child_index(node, key), |_| ())?;
        Ok((path, leaf))
    }

    /// As [`Path::down`], and what `look` sees in the leaf before it is copied: to look at the copy would
    /// wait until it is written.
    pub(crate) fn down_looking<T>(
        draft: &mut Draft,
        root: PageRef,
        key: &[u8],
        look: impl Fn(Node<'_>) -> T,
    ) -> Result<(Path, PageRef, T)> {
        Path::choose(draft, root, 0, |node| branch::child_index(node, key), look)
    }

    /// Goes down along the tree's left edge, or its right one, to the page of `level`, and makes every
    /// page on the way own. The page is returned beside the path.
    pub(crate) fn edge(
        draft: &mut Draft,
        root: PageRef,
        level: u8,
        is_right: bool,
    ) -> Result<(Path, PageRef)> {
        let child_index = |node: Node<'_>| if is_right { node.count() } else { 0 };
        let (path, page, ()) = Path::choose(draft, root, level, child_index, |_| ())?;
        Ok((path, page))
    }

    fn choose<T>(
        draft: &mut Draft,
        root: PageRef,
        to: u8,
        child_index: impl Fn(Node<'_>) -> usize,
        look: impl Fn(Node<'_>) -> T,
    ) -> Result<(Path, PageRef, T)> {
        let mut at = root;
        let mut steps: Vec<(PageRef, usize)> = Vec::with_capacity(8);
        let mut level_above = None;
        loop {
            let page = draft.page(at)?;
            let node = Node(&page);
            let level = node.level();
            if level_above.is_some_and(|above| level + 1 != above) {
                return Err(Error::Corrupt { page: at.id(), what: "level" });
            }
            let (child, i) = if level > to {
                let i = child_index(node);
                (branch::child(node, i), i)
            } else {
                let seen = look(node);
                drop(page);
                let owned = own_below(draft, &steps, at)?;
                return Ok((Path { steps }, owned, seen));
            };
            drop(page);
            // It comes while its parent is copied.
            draft.prefetch(child, Wanted::Search);
            let owned = own_below(draft, &steps, at)?;
            steps.push((owned, i));
            level_above = Some(level);
            at = child;
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

/// Makes the page at `at`, which the last of `steps` leads to, the transaction's own.
fn own_below(draft: &mut Draft, steps: &[(PageRef, usize)], at: PageRef) -> Result<PageRef> {
    let owned = draft.own(at)?;
    if let Some(&(parent, i)) = steps.last()
        && owned != at
    {
        branch::move_child(&mut NodeMut(draft.page_mut(parent)), i, owned);
    }
    Ok(owned)
}
