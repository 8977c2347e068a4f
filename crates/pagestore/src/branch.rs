//! Cells of a branch: separators and children.
//!
//! ```text
//! | child u64 | separator |
//! ```
//!
//! A branch with n separators has n + 1 children: child 0 stands in the header, child i + 1 in the
//! cell of separator i. Child i holds the keys from separator i - 1 on, up to, not including,
//! separator i.

use std::ops::Range;

use crate::keys::{Key, joined, shared_len};
use crate::node::{Cell, Node, NodeMut};
use crate::page::{PageRef, u64_at};

/// Units of a branch, unless a long separator wants more.
pub(crate) const BRANCH_UNITS: u32 = 1;

/// How many children.
pub(crate) fn child_count(node: Node<'_>) -> usize {
    node.count() + 1
}

/// Which child holds `key`.
pub(crate) fn child_index(node: Node<'_>, key: &[u8]) -> usize {
    match node.search(key) {
        Ok(i) => i + 1,
        Err(i) => i,
    }
}

/// Child `i`.
pub(crate) fn child(node: Node<'_>, i: usize) -> PageRef {
    match i.checked_sub(1) {
        None => node.leftmost(),
        Some(cell) => PageRef::from_raw(u64_at(node.payload(cell).0, 0)),
    }
}

/// Makes `child` the child `i`.
pub(crate) fn set_child(node: &mut NodeMut<'_>, i: usize, child: PageRef) {
    match i.checked_sub(1) {
        None => node.set_leftmost(child),
        Some(cell) => {
            let replaced = node.replace(cell, &child.raw().to_le_bytes(), &[]);
            assert!(replaced, "a child is always eight bytes");
        }
    }
}

/// Takes children `range` out of a branch that has others, each with a separator beside it.
pub(crate) fn remove_children(node: &mut NodeMut<'_>, range: Range<usize>) {
    match range.start.checked_sub(1) {
        _ if range.is_empty() => {}
        Some(first) => node.remove(first..range.end - 1),
        None => {
            let next = child(Node(node.0), range.end);
            node.set_leftmost(next);
            node.remove(range);
        }
    }
}

/// The cell of a separator; `child` are the eight bytes of the child behind it.
pub(crate) fn cell<'a>(separator: Key<'a>, child: &'a [u8; 8]) -> Cell<'a> {
    Cell { key: separator, lead: child, tail: &[] }
}

/// The shortest key that is greater than `left` and not greater than `right`.
pub(crate) fn separator(left: Key<'_>, right: Key<'_>) -> Vec<u8> {
    let mut key = joined(right);
    key.truncate(shared_len(left, right) + 1);
    key
}
