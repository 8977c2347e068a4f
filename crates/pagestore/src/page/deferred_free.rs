//! Deferred frees: subtrees that were cut off and are freed later, as a root names them.
//!
//! They stand in a tree of their own, from a number of 8 bytes, big-endian, to the child as a
//! branch would name it; so they are part of the published state, and a checkpoint makes them
//! durable like any other.

use crate::page::catalogue::TreeEntry;
use crate::page::subtree_size::SubtreeSize;
use crate::page::{PageRef, u32_at, u64_at};

/// Bytes that a meta page has of it.
pub(crate) const DEFERRED_FREE_BYTES: usize = 24;

/// The subtrees whose free is deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DeferredFree {
    /// The tree of them.
    pub(crate) list: TreeEntry,
    /// Units of all subtrees in the list; those of the list itself come on top.
    pub(crate) units: u64,
}

impl DeferredFree {
    /// No subtree waits.
    pub(crate) const EMPTY: DeferredFree = DeferredFree { list: TreeEntry::EMPTY, units: 0 };

    pub(crate) fn encode(self) -> [u8; DEFERRED_FREE_BYTES] {
        let mut bytes = [0; DEFERRED_FREE_BYTES];
        let low = |units: u64| u32::try_from(units).unwrap_or(u32::MAX).to_le_bytes();
        bytes[..8].copy_from_slice(&self.list.root.raw().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.list.size.keys.to_le_bytes());
        bytes[16..20].copy_from_slice(&low(self.list.size.units));
        bytes[20..].copy_from_slice(&low(self.units));
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> DeferredFree {
        let size = SubtreeSize { keys: u64_at(bytes, 8), units: u64::from(u32_at(bytes, 16)) };
        let list =
            TreeEntry { root: PageRef::from_raw(u64_at(bytes, 0)), size, ..TreeEntry::EMPTY };
        DeferredFree { list, units: u64::from(u32_at(bytes, 20)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Span;

    #[test]
    fn keeps_its_parts() {
        let root = PageRef::new(Span { start: 9, units: 1 }, 3);
        let list = TreeEntry { root, size: SubtreeSize { keys: 5, units: 2 }, ..TreeEntry::EMPTY };
        let deferred = DeferredFree { list, units: 70_000 };
        assert_eq!(DeferredFree::decode(&deferred.encode()), deferred);
        assert_eq!(DeferredFree::decode(&[0; DEFERRED_FREE_BYTES]), DeferredFree::EMPTY);
    }
}
