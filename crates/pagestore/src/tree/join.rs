//! Join of two trees into one, along one path.

use crate::error::{Error, Result};
use crate::page::branch::{self, Child};
use crate::page::slotted::{SlottedPage, SlottedPageMut};
use crate::page::source::PageSource;
use crate::page::subtree_size::SizeChange;
use crate::page::{PageKind, PageSize};
use crate::tree::insert::put_below;
use crate::tree::path::TreePath;
use crate::tree::rank::{first_key, last};
use crate::tree::rebalance::rebalance_all;
use crate::tree::txn_pages::TxnPages;

/// Puts all of `right` behind all of `left`. Refuses it, with nothing changed, if not all of its
/// keys are greater.
pub(crate) fn join(
    pages: &mut TxnPages,
    size: PageSize,
    left: Child,
    right: Child,
) -> Result<Child> {
    if left.is_none() || right.is_none() {
        return Ok(if left.is_none() { right } else { left });
    }
    let (low, high) = match (last(pages, left.page_ref)?, first_key(pages, right.page_ref)?) {
        (Some((low, _)), Some(high)) => (low, high),
        _ => return Err(Error::Corrupt { page: left.page_ref.id(), what: "empty leaf" }),
    };
    if low >= high {
        return Err(Error::OutOfOrder { what: "the tree to append begins before this one ends" });
    }
    let separator = branch::separator((&[], &low), (&[], &high));
    let mut joined = graft(pages, size, left, right, separator)?;
    // Roots and edges may be emptier than pages inside a tree.
    for key in [&low, &high] {
        let (path, leaf) = TreePath::down(pages, joined.page_ref, key)?;
        let (page_ref, change) = rebalance_all(pages, size, path, leaf)?;
        joined = Child { page_ref, size: joined.size.after(change) };
    }
    Ok(joined)
}

/// Makes the lower tree a child on the edge of the higher one; two of one height get a new root.
fn graft(
    pages: &mut TxnPages,
    size: PageSize,
    left: Child,
    right: Child,
    separator: Vec<u8>,
) -> Result<Child> {
    let left_level = SlottedPage(&pages.page(left.page_ref)?).level();
    let right_level = SlottedPage(&pages.page(right.page_ref)?).level();
    if left_level > right_level {
        let (path, parent) = TreePath::edge(pages, left.page_ref, right_level + 1, true)?;
        let i = SlottedPage(&pages.page(parent)?).count();
        let children = [(separator, right)];
        let put = put_below(pages, size, path, (parent, i), &children, right.size.into())?;
        return Ok(Child { page_ref: put.0, size: left.size.after(put.1) });
    }
    if left_level < right_level {
        let (path, parent) = TreePath::edge(pages, right.page_ref, left_level + 1, false)?;
        let mut page = SlottedPageMut(pages.page_mut(parent));
        let first = branch::sized_child(SlottedPage(page.0), 0);
        branch::set_child(&mut page, 0, left);
        let children = [(separator, first)];
        let put = put_below(pages, size, path, (parent, 0), &children, left.size.into())?;
        return Ok(Child { page_ref: put.0, size: right.size.after(put.1) });
    }
    let root = pages.create(PageKind::Branch, left_level + 1, size.units())?;
    SlottedPageMut(pages.page_mut(root)).set_leftmost(&left.encode());
    let children = [(separator, right)];
    let put =
        put_below(pages, size, TreePath::empty(), (root, 0), &children, SizeChange::default())?;
    let page = pages.page(put.0)?;
    Ok(Child::of(put.0, SlottedPage(&page)))
}
