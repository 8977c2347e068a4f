//! Making one tree of two, along one path.

use crate::branch::{self, Child};
use crate::draft::Draft;
use crate::error::{Error, Result};
use crate::node::{Node, NodeMut};
use crate::page::{Kind, PageSize};
use crate::size::Change;
use crate::source::Source;
use crate::tree::insert::put_below;
use crate::tree::path::Path;
use crate::tree::rank::{first_key, last};
use crate::tree::settle::settle_all;

/// Puts all of `right` behind all of `left`. Refuses it, with nothing changed, if not all of its keys
/// are greater.
pub(crate) fn join(draft: &mut Draft, size: PageSize, left: Child, right: Child) -> Result<Child> {
    if left.is_none() || right.is_none() {
        return Ok(if left.is_none() { right } else { left });
    }
    let (low, high) = match (last(draft, left.place)?, first_key(draft, right.place)?) {
        (Some((low, _)), Some(high)) => (low, high),
        _ => return Err(Error::Corrupt { page: left.place.id(), what: "empty leaf" }),
    };
    if low >= high {
        return Err(Error::OutOfOrder { what: "the tree to append begins before this one ends" });
    }
    let separator = branch::separator((&[], &low), (&[], &high));
    let mut joined = graft(draft, size, left, right, separator)?;
    // Roots and edges may be emptier than pages inside a tree.
    for key in [&low, &high] {
        let (path, leaf) = Path::down(draft, joined.place, key)?;
        let (place, change) = settle_all(draft, size, path, leaf)?;
        joined = Child { place, size: joined.size.after(change) };
    }
    Ok(joined)
}

/// Makes the lower tree a child on the edge of the higher one; two of one height get a new root.
fn graft(
    draft: &mut Draft,
    size: PageSize,
    left: Child,
    right: Child,
    separator: Vec<u8>,
) -> Result<Child> {
    let left_level = Node(&draft.page(left.place)?).level();
    let right_level = Node(&draft.page(right.place)?).level();
    if left_level > right_level {
        let (path, parent) = Path::edge(draft, left.place, right_level + 1, true)?;
        let i = Node(&draft.page(parent)?).count();
        let children = [(separator, right)];
        let put = put_below(draft, size, path, (parent, i), &children, right.size.into())?;
        return Ok(Child { place: put.0, size: left.size.after(put.1) });
    }
    if left_level < right_level {
        let (path, parent) = Path::edge(draft, right.place, left_level + 1, false)?;
        let mut page = NodeMut(draft.page_mut(parent));
        let first = branch::sized_child(Node(page.0), 0);
        branch::set_child(&mut page, 0, left);
        let children = [(separator, first)];
        let put = put_below(draft, size, path, (parent, 0), &children, left.size.into())?;
        return Ok(Child { place: put.0, size: right.size.after(put.1) });
    }
    let root = draft.create(Kind::Branch, left_level + 1, size.units())?;
    NodeMut(draft.page_mut(root)).set_leftmost(&left.encode());
    let children = [(separator, right)];
    let put = put_below(draft, size, Path::empty(), (root, 0), &children, Change::default())?;
    let page = draft.page(put.0)?;
    Ok(Child::of(put.0, Node(&page)))
}
