//! Giving back all pages of a subtree.

use crate::branch;
use crate::draft::Draft;
use crate::error::Result;
use crate::leaf;
use crate::node::Node;
use crate::page::{Frame, PageRef};
use crate::tree::get::held_child;

/// Gives back all pages and long values of a subtree. Memory is bounded by its height, time by the
/// number of its pages.
pub(crate) fn discard_subtree(draft: &mut Draft, place: PageRef) -> Result<()> {
    let frame = draft.held(place)?;
    discard_page(draft, place, &frame)
}

fn discard_page(draft: &mut Draft, place: PageRef, frame: &Frame) -> Result<()> {
    let node = Node(frame);
    if node.is_leaf() {
        for extent in leaf::extents(node, 0..node.count()) {
            draft.discard_extent(&extent);
        }
    } else {
        for i in 0..branch::child_count(node) {
            let child = branch::child(node, i);
            let frame = held_child(draft, node, child)?;
            discard_page(draft, child, &frame)?;
        }
    }
    draft.discard(place)
}
