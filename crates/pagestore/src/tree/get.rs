//! Finding one key.

use bytes::Bytes;

use crate::branch;
use crate::error::{Error, Result};
use crate::leaf::{self, Value};
use crate::node::Node;
use crate::page::{Frame, PageRef};
use crate::source::Source;

/// The value of `key`.
pub(crate) fn get(source: &impl Source, root: PageRef, key: &[u8]) -> Result<Option<Bytes>> {
    let Some(frame) = leaf_for(source, root, key)? else { return Ok(None) };
    let node = Node(&frame);
    match node.search(key) {
        Ok(i) => value(source, node, i).map(Some),
        Err(_) => Ok(None),
    }
}

/// Whether there is `key`.
pub(crate) fn contains(source: &impl Source, root: PageRef, key: &[u8]) -> Result<bool> {
    Ok(leaf_for(source, root, key)?.is_some_and(|frame| Node(&frame).search(key).is_ok()))
}

fn leaf_for(source: &impl Source, root: PageRef, key: &[u8]) -> Result<Option<Frame>> {
    if root.is_none() {
        return Ok(None);
    }
    let mut frame = source.page(root)?;
    while !Node(&frame).is_leaf() {
        let node = Node(&frame);
        let child = branch::child(node, branch::child_index(node, key));
        frame = child_page(source, node, child)?;
    }
    Ok(Some(frame))
}

/// The page of a child. Its level is one below its parent's, so every descent ends.
pub(crate) fn child_page(source: &impl Source, parent: Node<'_>, place: PageRef) -> Result<Frame> {
    let frame = source.page(place)?;
    if Node(&frame).level() + 1 != parent.level() || Node(&frame).is_leaf() != (parent.level() == 1)
    {
        return Err(Error::Corrupt { page: place.id(), what: "level" });
    }
    Ok(frame)
}

/// The value of cell `i`, in memory of its own.
pub(crate) fn value(source: &impl Source, node: Node<'_>, i: usize) -> Result<Bytes> {
    match leaf::value(node, i) {
        Value::Inline(bytes) => Ok(Bytes::copy_from_slice(bytes)),
        Value::Extent(extent) => source.extent(&extent),
    }
}
