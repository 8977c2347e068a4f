//! Removing one key.

use crate::draft::Draft;
use crate::error::Result;
use crate::leaf::{self, Value};
use crate::node::{Node, NodeMut};
use crate::page::PageRef;
use crate::tree::get::contains;
use crate::tree::path::Path;
use crate::tree::settle::settle;

/// Removes `key`. Returns the new root, or nothing if there is no such key; then no page was
/// touched.
pub(crate) fn remove(draft: &mut Draft, root: PageRef, key: &[u8]) -> Result<Option<PageRef>> {
    if !contains(draft, root, key)? {
        return Ok(None);
    }
    let (path, place) = Path::down(draft, root, key)?;
    let bytes = draft.page_mut(place);
    let i = Node(bytes).search(key).expect("seen just now");
    let value = leaf::value(Node(bytes), i);
    let extent = if let Value::Extent(extent) = value { Some(extent) } else { None };
    NodeMut(bytes).remove(i..i + 1);
    if let Some(extent) = extent {
        draft.discard_extent(&extent);
    }
    settle(draft, path, place).map(Some)
}
