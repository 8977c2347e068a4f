//! Finding one key.

use crate::branch;
use crate::error::{Error, Result};
use crate::leaf;
use crate::node::Node;
use crate::page::PageRef;
use crate::prefetch;
use crate::source::Source;
use crate::view::{PageBytes, Value};

/// The value of `key`.
#[inline]
pub(crate) fn get<'a>(
    source: &'a impl Source,
    root: PageRef,
    key: &[u8],
) -> Result<Option<Value<'a>>> {
    let Some(page) = leaf_for(source, root, key)? else { return Ok(None) };
    let Ok(i) = Node(&page).search(key) else { return Ok(None) };
    value(source, page, i).map(Some)
}

/// The value of entry `i` of a leaf.
#[inline]
pub(crate) fn value<'a>(
    source: &'a impl Source,
    page: PageBytes<'a>,
    i: usize,
) -> Result<Value<'a>> {
    match leaf::value(Node(&page), i) {
        leaf::Value::Extent(extent) => source.extent(&extent),
        leaf::Value::Inline(_) => {
            let range = Node(&page).tail(i);
            Ok(page.into_value(range))
        }
    }
}

/// Whether there is `key`.
pub(crate) fn contains(source: &impl Source, root: PageRef, key: &[u8]) -> Result<bool> {
    Ok(leaf_for(source, root, key)?.is_some_and(|page| Node(&page).search(key).is_ok()))
}

#[inline]
fn leaf_for<'a>(
    source: &'a impl Source,
    root: PageRef,
    key: &[u8],
) -> Result<Option<PageBytes<'a>>> {
    if root.is_none() {
        return Ok(None);
    }
    let mut page = source.page(root)?;
    while !Node(&page).is_leaf() {
        let node = Node(&page);
        let child = branch::child(node, branch::child_index(node, key));
        page = child_page(source, node, child)?;
    }
    Ok(Some(page))
}

/// The page of a child. Its level is one below its parent's, so every descent ends.
#[inline]
pub(crate) fn child_page<'a, S: Source + ?Sized>(
    source: &'a S,
    parent: Node<'_>,
    place: PageRef,
) -> Result<PageBytes<'a>> {
    let page = source.page(place)?;
    if parent.level() > 1 {
        prefetch::search_in_branch(&page);
    }
    check_level(parent, place, Node(&page))?;
    Ok(page)
}

/// Proves that a child is one level below its parent.
#[inline]
fn check_level(parent: Node<'_>, place: PageRef, child: Node<'_>) -> Result<()> {
    if child.level() + 1 != parent.level() || child.is_leaf() != (parent.level() == 1) {
        return Err(Error::Corrupt { page: place.id(), what: "level" });
    }
    Ok(())
}
