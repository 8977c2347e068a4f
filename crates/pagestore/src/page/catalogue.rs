//! Entries of the catalogue, the tree of trees: root, size and page length of one tree.

use crate::error::{Error, Result};
use crate::page::branch::Child;
use crate::page::subtree_size::{SizeChange, SubtreeSize};
use crate::page::{PageRef, PageSize, u32_at, u64_at};

/// Bytes of an entry.
const ENTRY_BYTES: usize = 24;

/// Reads the name of a tree, which is a key of the catalogue under `catalogue`.
pub(crate) fn name(key: &[u8], catalogue: PageRef) -> Result<String> {
    let corrupt = |_| Error::Corrupt { page: catalogue.id(), what: "name of a tree" };
    std::str::from_utf8(key).map(str::to_owned).map_err(corrupt)
}

/// The entry of one tree: the value under its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TreeEntry {
    /// Its root, or none if it is empty.
    pub(crate) root: PageRef,
    /// The size of the tree.
    pub(crate) size: SubtreeSize,
    /// How long its pages are. It has been so since the tree was made.
    pub(crate) page_size: PageSize,
}

impl TreeEntry {
    /// A tree without keys, with pages of one unit.
    pub(crate) const EMPTY: TreeEntry = TreeEntry {
        root: PageRef::NONE,
        size: SubtreeSize { keys: 0, units: 0 },
        page_size: PageSize::UNIT,
    };

    /// Its root with what lies below it.
    pub(crate) fn child(self) -> Child {
        Child { page_ref: self.root, size: self.size }
    }

    /// Takes over what an operation has made of the tree.
    pub(crate) fn change(&mut self, (root, change): (PageRef, SizeChange)) {
        *self = TreeEntry { root, size: self.size.after(change), ..*self };
    }

    pub(crate) fn encode(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let units = u32::try_from(self.size.units).unwrap_or(u32::MAX);
        bytes[..8].copy_from_slice(&self.root.raw().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.size.keys.to_le_bytes());
        bytes[16..20].copy_from_slice(&units.to_le_bytes());
        bytes[20..].copy_from_slice(&(self.page_size.units() - 1).to_le_bytes());
        bytes
    }

    /// Reads an entry of the catalogue under `catalogue`.
    pub(crate) fn decode(bytes: &[u8], catalogue: PageRef) -> Result<TreeEntry> {
        let corrupt = || Error::Corrupt { page: catalogue.id(), what: "entry of the catalogue" };
        if bytes.len() != ENTRY_BYTES {
            return Err(corrupt());
        }
        let size = SubtreeSize { keys: u64_at(bytes, 8), units: u64::from(u32_at(bytes, 16)) };
        let page_units = u32_at(bytes, 20).saturating_add(1);
        let page_size = PageSize::new(page_units).map_err(|_| corrupt())?;
        Ok(TreeEntry { root: PageRef::from_raw(u64_at(bytes, 0)), size, page_size })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Span;

    #[test]
    fn keeps_its_parts() {
        let catalogue = PageRef::new(Span { start: 4, units: 1 }, 1);
        for units in 1..=15 {
            let root = PageRef::new(Span { start: 9, units }, 3);
            let size = SubtreeSize { keys: 5, units: 70_000 };
            let entry = TreeEntry { root, size, page_size: PageSize::new(units).unwrap() };
            assert_eq!(TreeEntry::decode(&entry.encode(), catalogue).unwrap(), entry);
        }
        let empty = TreeEntry::EMPTY.encode();
        assert_eq!(empty, [0; ENTRY_BYTES]);
        for at in 20..ENTRY_BYTES {
            let mut wrong = empty;
            wrong[at] = 15;
            assert!(matches!(
                TreeEntry::decode(&wrong, catalogue),
                Err(Error::Corrupt { page: 4, .. })
            ));
        }
        assert!(TreeEntry::decode(&empty[1..], catalogue).is_err());
    }
}
