//! Point lookup of one key.

use crate::error::{Error, Result};
use crate::page::slotted::SlottedPage;
use crate::page::source::PageSource;
use crate::page::view::{PageBytes, ValueRef};
use crate::page::{PageRef, branch, leaf, prefetch};

/// The value of `key`.
#[inline]
pub(crate) fn get<'a>(
    source: &'a impl PageSource,
    root: PageRef,
    key: &[u8],
) -> Result<Option<ValueRef<'a>>> {
    let Some(page) = leaf_for(source, root, key)? else { return Ok(None) };
    let Ok(i) = SlottedPage(&page).search(key) else { return Ok(None) };
    value(source, page, i).map(Some)
}

/// The value of entry `i` of a leaf.
#[inline]
pub(crate) fn value<'a>(
    source: &'a impl PageSource,
    page: PageBytes<'a>,
    i: usize,
) -> Result<ValueRef<'a>> {
    match leaf::value(SlottedPage(&page), i) {
        leaf::LeafValue::Extent(extent) => source.extent(&extent),
        leaf::LeafValue::Inline(_) => {
            let range = SlottedPage(&page).tail(i);
            Ok(page.into_value(range))
        }
    }
}

/// Whether there is `key`.
pub(crate) fn contains(source: &impl PageSource, root: PageRef, key: &[u8]) -> Result<bool> {
    Ok(leaf_for(source, root, key)?.is_some_and(|page| SlottedPage(&page).search(key).is_ok()))
}

#[inline]
fn leaf_for<'a>(
    source: &'a impl PageSource,
    root: PageRef,
    key: &[u8],
) -> Result<Option<PageBytes<'a>>> {
    if root.is_none() {
        return Ok(None);
    }
    let mut page = source.page(root)?;
    while !SlottedPage(&page).is_leaf() {
        let node = SlottedPage(&page);
        let child = branch::child(node, branch::child_index(node, key));
        page = child_page(source, node, child)?;
    }
    Ok(Some(page))
}

/// The page of a child. Its level is one below its parent's, so every descent ends.
#[inline]
pub(crate) fn child_page<'a, S: PageSource + ?Sized>(
    source: &'a S,
    parent: SlottedPage<'_>,
    page_ref: PageRef,
) -> Result<PageBytes<'a>> {
    let page = source.page(page_ref)?;
    if parent.level() > 1 {
        prefetch::search_in_branch(&page);
    }
    check_level(parent, page_ref, SlottedPage(&page))?;
    Ok(page)
}

/// Proves that a child is one level below its parent.
#[inline]
fn check_level(parent: SlottedPage<'_>, page_ref: PageRef, child: SlottedPage<'_>) -> Result<()> {
    if child.level() + 1 != parent.level() || child.is_leaf() != (parent.level() == 1) {
        return Err(Error::Corrupt { page: page_ref.id(), what: "level" });
    }
    Ok(())
}
