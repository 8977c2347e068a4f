//! What the catalogue, the tree of trees, says of one tree.

use crate::error::{Error, Result};
use crate::page::{PageRef, u64_at};

/// Bytes of an entry.
const ENTRY_BYTES: usize = 16;

/// What is known of one tree: the value under its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    /// Its root, or none if it is empty.
    pub(crate) root: PageRef,
    /// How many keys it has.
    pub(crate) key_count: u64,
}

impl Entry {
    /// A tree without keys.
    pub(crate) const EMPTY: Entry = Entry { root: PageRef::NONE, key_count: 0 };

    pub(crate) fn encode(self) -> [u8; ENTRY_BYTES] {
        let mut bytes = [0; ENTRY_BYTES];
        bytes[..8].copy_from_slice(&self.root.raw().to_le_bytes());
        bytes[8..].copy_from_slice(&self.key_count.to_le_bytes());
        bytes
    }

    /// Reads an entry of the catalogue under `catalogue`.
    pub(crate) fn decode(bytes: &[u8], catalogue: PageRef) -> Result<Entry> {
        if bytes.len() != ENTRY_BYTES {
            return Err(Error::Corrupt { page: catalogue.id(), what: "entry of the catalogue" });
        }
        Ok(Entry { root: PageRef::from_raw(u64_at(bytes, 0)), key_count: u64_at(bytes, 8) })
    }
}
