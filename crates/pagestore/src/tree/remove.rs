//! Removing one key.

use crate::draft::Draft;
use crate::error::Result;
use crate::leaf;
use crate::node::{Node, NodeMut};
use crate::page::{PageRef, PageSize};
use crate::size::Change;
use crate::tree::get::contains;
use crate::tree::path::Path;
use crate::tree::settle::settle;

/// Removes `key`. Returns the new root and what has changed below it, or nothing if there is no such
/// key; then no page was touched.
pub(crate) fn remove(
    draft: &mut Draft,
    size: PageSize,
    root: PageRef,
    key: &[u8],
) -> Result<Option<(PageRef, Change)>> {
    if !contains(draft, root, key)? {
        return Ok(None);
    }
    let (path, place) = Path::down(draft, root, key)?;
    let bytes = draft.page_mut(place);
    let i = Node(bytes).search(key).expect("seen just now");
    let extent = leaf::extents(Node(bytes), i..i + 1).next();
    NodeMut(bytes).remove(i..i + 1);
    let mut change = Change { keys: -1, units: 0 };
    if let Some(extent) = extent {
        change.subtract(extent.span());
        draft.discard_extent(&extent);
    }
    settle(draft, size, path, place, change).map(Some)
}
