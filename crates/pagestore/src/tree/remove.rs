//! Removal of one key.

use crate::error::Result;
use crate::page::slotted::{SlottedPage, SlottedPageMut};
use crate::page::subtree_size::SizeChange;
use crate::page::{PageRef, PageSize, leaf};
use crate::tree::get::contains;
use crate::tree::path::TreePath;
use crate::tree::rebalance::rebalance;
use crate::tree::txn_pages::TxnPages;

/// Removes `key`. Returns the new root and what has changed below it, or nothing if there is no
/// such key; then no page was touched.
pub(crate) fn remove(
    pages: &mut TxnPages,
    size: PageSize,
    root: PageRef,
    key: &[u8],
) -> Result<Option<(PageRef, SizeChange)>> {
    if !contains(pages, root, key)? {
        return Ok(None);
    }
    let (path, page_ref) = TreePath::down(pages, root, key)?;
    let bytes = pages.page_mut(page_ref);
    let i = SlottedPage(bytes).search(key).expect("seen just now");
    let extent = leaf::extents(SlottedPage(bytes), i..i + 1).next();
    SlottedPageMut(bytes).remove(i..i + 1);
    let mut change = SizeChange { keys: -1, units: 0 };
    if let Some(extent) = extent {
        change.subtract(extent.span());
        pages.discard_extent(&extent);
    }
    rebalance(pages, size, path, page_ref, change).map(Some)
}
