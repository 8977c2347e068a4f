//! Branch pages: separators, children, and the size of the subtree below each child.
//!
//! ```text
//! | child u64 | keys u48 | units u32 | separator |
//! ```
//!
//! A branch with n separators has n + 1 children: child 0 stands in the header, child i + 1 in the
//! cell of separator i. Child i holds the keys from separator i - 1 on, up to, not including,
//! separator i. `keys` and `units` are the child's [`SubtreeSize`], itself included.

use std::ops::Range;

use crate::page::keys::{Key, joined, shared_len};
use crate::page::slotted::{CHILD_BYTES, Cell, SlottedPage, SlottedPageMut};
use crate::page::subtree_size::{SizeChange, SubtreeSize};
use crate::page::{PageRef, leaf, u16_at, u32_at, u64_at, units_for};

const KEYS: usize = 8;
const UNITS: usize = 14;

/// The most keys that a child's field can say; a file of 16 TiB has fewer.
const KEYS_MAX: u64 = (1 << 48) - 1;

/// A page and what lies below it, as its parent knows it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Child {
    /// The page, or none.
    pub(crate) page_ref: PageRef,
    /// The size of its subtree, itself included.
    pub(crate) size: SubtreeSize,
}

impl Child {
    /// No page, and nothing below it.
    pub(crate) const NONE: Child =
        Child { page_ref: PageRef::NONE, size: SubtreeSize { keys: 0, units: 0 } };

    /// The page at `page_ref`, whose bytes are `node`.
    pub(crate) fn of(page_ref: PageRef, node: SlottedPage<'_>) -> Child {
        Child { page_ref, size: size(node) }
    }

    pub(crate) fn is_none(self) -> bool {
        self.page_ref.is_none()
    }

    pub(crate) fn encode(self) -> [u8; CHILD_BYTES] {
        let mut bytes = [0; CHILD_BYTES];
        let units = u32::try_from(self.size.units).unwrap_or(u32::MAX);
        bytes[..KEYS].copy_from_slice(&self.page_ref.raw().to_le_bytes());
        bytes[KEYS..UNITS].copy_from_slice(&self.size.keys.min(KEYS_MAX).to_le_bytes()[..6]);
        bytes[UNITS..].copy_from_slice(&units.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Child {
        let low = u64::from(u32_at(bytes, KEYS));
        let high = u16_at(bytes, KEYS + 4) as u64;
        Child {
            page_ref: PageRef::from_raw(u64_at(bytes, 0)),
            size: SubtreeSize { keys: high << 32 | low, units: u64::from(u32_at(bytes, UNITS)) },
        }
    }
}

/// How many children.
pub(crate) fn child_count(node: SlottedPage<'_>) -> usize {
    node.count() + 1
}

/// The index of the child that holds `key`.
#[inline]
pub(crate) fn child_index(node: SlottedPage<'_>, key: &[u8]) -> usize {
    match node.search(key) {
        Ok(i) => i + 1,
        Err(i) => i,
    }
}

/// The reference to child `i`.
#[inline]
pub(crate) fn child(node: SlottedPage<'_>, i: usize) -> PageRef {
    PageRef::from_raw(u64_at(child_bytes(node, i), 0))
}

/// Child `i`, with what lies below it.
pub(crate) fn sized_child(node: SlottedPage<'_>, i: usize) -> Child {
    Child::decode(child_bytes(node, i))
}

/// Children in a row, with what lies below each.
pub(crate) fn sized_children(
    node: SlottedPage<'_>,
    range: Range<usize>,
) -> impl Iterator<Item = Child> {
    range.map(move |i| sized_child(node, i))
}

#[inline]
fn child_bytes(node: SlottedPage<'_>, i: usize) -> &[u8] {
    match i.checked_sub(1) {
        None => node.leftmost(),
        Some(cell) => node.payload(cell).0,
    }
}

/// The size of the subtree under a page, the page included.
pub(crate) fn size(node: SlottedPage<'_>) -> SubtreeSize {
    let own = SubtreeSize { keys: 0, units: u64::from(units_for(node.0.len())) };
    if node.is_leaf() {
        let units = leaf::extents(node, 0..node.count()).map(|e| u64::from(e.span().units)).sum();
        return own.plus(SubtreeSize { keys: node.count() as u64, units });
    }
    sized_children(node, 0..child_count(node)).map(|child| child.size).fold(own, SubtreeSize::plus)
}

/// Makes `child` the child `i`.
pub(crate) fn set_child(node: &mut SlottedPageMut<'_>, i: usize, child: Child) {
    debug_assert!(!child.is_none(), "child {i} of a branch is no page");
    *node.child_mut(i) = child.encode();
}

/// Notes that child `i` lies elsewhere now; what is below it is the same.
pub(crate) fn move_child(node: &mut SlottedPageMut<'_>, i: usize, page_ref: PageRef) {
    node.child_mut(i)[..KEYS].copy_from_slice(&page_ref.raw().to_le_bytes());
}

/// Notes a change below child `i`.
pub(crate) fn resize_child(node: &mut SlottedPageMut<'_>, i: usize, change: SizeChange) {
    let bytes = node.child_mut(i);
    let child = Child::decode(bytes);
    *bytes = Child { size: child.size.after(change), ..child }.encode();
}

/// Takes children `range` out of a branch that has others, each with a separator next to it.
pub(crate) fn remove_children(node: &mut SlottedPageMut<'_>, range: Range<usize>) {
    let count = child_count(SlottedPage(node.0));
    debug_assert!(range.end <= count && range.len() < count, "{range:?} of {count} children");
    match range.start.checked_sub(1) {
        _ if range.is_empty() => {}
        Some(first) => node.remove(first..range.end - 1),
        None => {
            let next = sized_child(SlottedPage(node.0), range.end);
            node.set_leftmost(&next.encode());
            node.remove(range);
        }
    }
}

/// The cell of a separator; `child` is the child behind it.
pub(crate) fn cell<'a>(separator: Key<'a>, child: &'a [u8; CHILD_BYTES]) -> Cell<'a> {
    Cell { key: separator, lead: child, tail: &[] }
}

/// The shortest key that is greater than `left` and not greater than `right`.
pub(crate) fn separator(left: Key<'_>, right: Key<'_>) -> Vec<u8> {
    let mut key = joined(right);
    key.truncate(shared_len(left, right) + 1);
    key
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Span;

    #[test]
    fn child_keeps_its_size() {
        let page_ref = PageRef::new(Span { start: 77, units: 3 }, 9);
        for (keys, units) in [(0, 1), (0x1234_5678_9abc, 0xfedc_ba98), (KEYS_MAX, 1 << 31)] {
            let child = Child { page_ref, size: SubtreeSize { keys, units } };
            assert_eq!(Child::decode(&child.encode()), child);
        }
        let too_much = Child { page_ref, size: SubtreeSize { keys: u64::MAX, units: u64::MAX } };
        let most = SubtreeSize { keys: KEYS_MAX, units: u64::from(u32::MAX) };
        assert_eq!(Child::decode(&too_much.encode()).size, most);
    }
}
