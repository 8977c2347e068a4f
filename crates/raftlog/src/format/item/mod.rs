//! Items: the changes of a batch, and their bytes in a frame's body.
//!
//! An item is a tag and its fields; small numbers are varints. The entries of one append stand
//! together: first a head with one row an entry, then the data of all of them. So an entry is found
//! by reading the head alone, and its row has a checksum over its identity and its data, so it is
//! checked without the rest of the frame.

mod decode;
mod encode;
mod head;

pub(crate) use decode::{items_of, take_item};
pub(crate) use encode::{
    make_stale, put_append_head, put_head_with_blocks, put_move_head, put_plain_item,
};
pub(crate) use head::AppendHead;

use crc32c::{crc32c, crc32c_append};
use smallvec::SmallVec;
use std::convert::Infallible;

const TAG_APPEND: u8 = 1;
const TAG_COMPACT: u8 = 2;
const TAG_PUT: u8 = 3;
const TAG_DELETE: u8 = 4;
const TAG_REMOVE: u8 = 5;
const TAG_DISCARD: u8 = 6;
const TAG_TRUNCATE: u8 = 7;
const TAG_MOVE: u8 = 8;
const TAG_STALE: u8 = 9;

/// How many numbers follow the tag of a compaction that became stale.
const STALE_NUMBERS: usize = 3;

/// Consecutive entries of one term: how many, and the term.
pub(crate) type TermRun = (u64, u64);
/// Those of one append: nearly always one.
pub(crate) type TermRuns = SmallVec<[TermRun; 1]>;

/// One item: `A` locates the entries of an append, `B` holds a key or a value.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum BatchItem<A, B> {
    Append(A),
    /// A rewritten append: at this place in the log exactly these of its entries are live, and its
    /// bytes are here, verbatim.
    Move(A),
    /// The entries from `from` on are gone.
    Truncate {
        group: u64,
        from: u64,
    },
    Compact {
        group: u64,
        first: u64,
        term_before: u64,
    },
    Put {
        group: u64,
        key: B,
        value: B,
    },
    Delete {
        group: u64,
        key: B,
    },
    Remove {
        group: u64,
    },
    Discard {
        below_segment: u64,
    },
    /// A compaction that came too late, below the first index, and changes nothing.
    Stale,
}

/// An item borrowed from the body of a frame.
pub(crate) type DecodedItem<'a> = BatchItem<StoredAppend<'a>, &'a [u8]>;
/// An item that has no entries.
pub(crate) type PlainItem<'a> = BatchItem<Infallible, &'a [u8]>;

/// An append as it is stored, and the entries of it that an item is about: all, or the live ones of
/// a rewrite.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct StoredAppend<'a> {
    pub(crate) first: u64,
    pub(crate) count: u64,
    /// From the beginning of the item to the append.
    pub(crate) offset: usize,
    pub(crate) head: AppendHead<'a>,
    /// The append: its head and its data.
    pub(crate) bytes: &'a [u8],
}

/// The row of one entry in the head of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryRow {
    pub(crate) checksum: u32,
    pub(crate) kind: u8,
    pub(crate) data_bytes: u64,
}

/// The checksum of an entry: over its identity and its data.
pub(crate) fn entry_checksum(group: u64, index: u64, term: u64, kind: u8, data: &[u8]) -> u32 {
    let mut identity = [kind; 25];
    identity[..8].copy_from_slice(&group.to_le_bytes());
    identity[8..16].copy_from_slice(&index.to_le_bytes());
    identity[16..24].copy_from_slice(&term.to_le_bytes());
    crc32c_append(crc32c(&identity), data)
}

impl<A, B> BatchItem<A, B> {
    /// The same with its entries and its key and value in another form.
    pub(crate) fn map<C, D>(
        self,
        append: impl FnOnce(A) -> C,
        bytes: impl Fn(B) -> D,
    ) -> BatchItem<C, D> {
        match self {
            BatchItem::Append(entries) => BatchItem::Append(append(entries)),
            BatchItem::Move(entries) => BatchItem::Move(append(entries)),
            BatchItem::Truncate { group, from } => BatchItem::Truncate { group, from },
            BatchItem::Compact { group, first, term_before } => {
                BatchItem::Compact { group, first, term_before }
            }
            BatchItem::Put { group, key, value } => {
                BatchItem::Put { group, key: bytes(key), value: bytes(value) }
            }
            BatchItem::Delete { group, key } => BatchItem::Delete { group, key: bytes(key) },
            BatchItem::Remove { group } => BatchItem::Remove { group },
            BatchItem::Discard { below_segment } => BatchItem::Discard { below_segment },
            BatchItem::Stale => BatchItem::Stale,
        }
    }

    /// The entries that it brings, new or rewritten.
    pub(crate) fn entries(&self) -> Option<&A> {
        match self {
            BatchItem::Append(entries) | BatchItem::Move(entries) => Some(entries),
            _ => None,
        }
    }
}

#[cfg(test)]
mod tests;
