//! The path down to a key, made private to the transaction on the way.

use crate::error::{Error, Result};
use crate::page::slotted::{SlottedPage, SlottedPageMut};
use crate::page::source::{PageSource, PrefetchHint};
use crate::page::{PageRef, branch};
use crate::tree::txn_pages::TxnPages;

/// Branches from the root down, each with the child that was taken.
pub(crate) struct TreePath {
    steps: Vec<(PageRef, usize)>,
}

impl TreePath {
    /// Goes down to the leaf for `key` and makes every page on the way private. The first step is
    /// the new root; the leaf is returned with the path.
    pub(crate) fn down(
        pages: &mut TxnPages,
        root: PageRef,
        key: &[u8],
    ) -> Result<(TreePath, PageRef)> {
        let (path, leaf, ()) = TreePath::down_looking(pages, root, key, |_| ())?;
        Ok((path, leaf))
    }

    /// As [`TreePath::down`], with the result of `look` at the leaf before it is copied: a look at
    /// the copy would wait for its writes.
    pub(crate) fn down_looking<T>(
        pages: &mut TxnPages,
        root: PageRef,
        key: &[u8],
        look: impl Fn(SlottedPage<'_>) -> T,
    ) -> Result<(TreePath, PageRef, T)> {
        TreePath::choose(pages, root, 0, |node| branch::child_index(node, key), look)
    }

    /// Goes down along the tree's left edge, or its right one, to the page of `level`, and makes
    /// every page on the way private. The page is returned with the path.
    pub(crate) fn edge(
        pages: &mut TxnPages,
        root: PageRef,
        level: u8,
        is_right: bool,
    ) -> Result<(TreePath, PageRef)> {
        let child_index = |node: SlottedPage<'_>| if is_right { node.count() } else { 0 };
        let (path, page, ()) = TreePath::choose(pages, root, level, child_index, |_| ())?;
        Ok((path, page))
    }

    fn choose<T>(
        pages: &mut TxnPages,
        root: PageRef,
        to: u8,
        child_index: impl Fn(SlottedPage<'_>) -> usize,
        look: impl Fn(SlottedPage<'_>) -> T,
    ) -> Result<(TreePath, PageRef, T)> {
        let mut at = root;
        let mut steps: Vec<(PageRef, usize)> = Vec::with_capacity(8);
        let mut level_above = None;
        loop {
            let page = pages.page(at)?;
            let node = SlottedPage(&page);
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
                let private = make_private_below(pages, &steps, at)?;
                return Ok((TreePath { steps }, private, seen));
            };
            drop(page);
            // The prefetch overlaps with the copy of its parent.
            pages.prefetch(child, PrefetchHint::Search);
            let private = make_private_below(pages, &steps, at)?;
            steps.push((private, i));
            level_above = Some(level);
            at = child;
        }
    }

    /// The path to a root.
    pub(crate) fn empty() -> TreePath {
        TreePath { steps: Vec::new() }
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

/// Makes the page at `at`, which the last of `steps` leads to, private.
fn make_private_below(
    pages: &mut TxnPages,
    steps: &[(PageRef, usize)],
    at: PageRef,
) -> Result<PageRef> {
    let private = pages.make_private(at)?;
    if let Some(&(parent, i)) = steps.last()
        && private != at
    {
        branch::move_child(&mut SlottedPageMut(pages.page_mut(parent)), i, private);
    }
    Ok(private)
}
