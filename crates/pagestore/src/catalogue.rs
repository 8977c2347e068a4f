//! What the catalogue, the tree of trees, says of one tree.

use crate::branch::Child;
use crate::error::{Error, Result};
use crate::page::{PageRef, u32_at, u64_at};
use crate::size::{Change, Size};

/// Bytes of an entry.
const ENTRY_BYTES: usize = 24;

/// What is known of one tree: the value under its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its root, or none if it is empty.
    pub(crate) root: PageRef,
    /// What it holds.
    pub(crate) size: Size,
}

impl Entry {
    /// A tree without keys.
    pub(crate) const EMPTY: Entry = Entry { root: PageRef::NONE, size: Size { keys: 0, units: 0 } };

    /// Its root with what lies below it.
    pub(crate) fn child(self) -> Child {
        Child { place: self.root, size: self.size }
    }

    /// Takes over what an operation has made of the tree.
    pub(crate) fn change(&mut self, (root, change): (PageRef, Change)) {
        *self = Entry { root, size: self.size.after(change) };
    }

    pub(crate) fn encode(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        let units = u32::try_from(self.size.units).unwrap_or(u32::MAX);
        bytes[..8].copy_from_slice(&self.root.raw().to_le_bytes());
        bytes[8..16].copy_from_slice(&self.size.keys.to_le_bytes());
        bytes[16..20].copy_from_slice(&units.to_le_bytes());
        bytes
    }

    /// Reads an entry of the catalogue under `catalogue`.
    pub(crate) fn decode(bytes: &[u8], catalogue: PageRef) -> Result<Entry> {
        if bytes.len() != ENTRY_BYTES {
            return Err(Error::Corrupt { page: catalogue.id(), what: "entry of the catalogue" });
        }
        let size = Size { keys: u64_at(bytes, 8), units: u64::from(u32_at(bytes, 16)) };
        Ok(Entry { root: PageRef::from_raw(u64_at(bytes, 0)), size })
    }
}
