//! A complete batch: a frame without its header, and the list of its changes for admission, index
//! and footer.

use crate::format::item::{self, BatchItem, DecodedItem, StoredAppend, TermRuns};
use crate::format::layout::{self, FRAME_HEADER_BYTES};
use bytes::Bytes;
use smallvec::SmallVec;

/// The changes of a batch: often there is one.
pub(crate) type Changes = SmallVec<[Change; 1]>;

/// An item for the index, with its bytes by offset.
pub(crate) type Change = BatchItem<Append, Bytes>;

/// Entries that were appended together, and their location in the frame.
#[derive(Debug)]
pub(crate) struct Append {
    pub(crate) group: u64,
    pub(crate) first: u64,
    pub(crate) count: u64,
    pub(crate) terms: TermRuns,
    /// From the beginning of the frame to the item.
    pub(crate) offset: u32,
    /// Length of the item: head and data.
    pub(crate) item_bytes: u32,
}

/// The live entries of one item: a run `first .. end` with one location.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct EntryRun {
    pub(crate) first: u64,
    pub(crate) end: u64,
    pub(crate) segment: u64,
    /// From the beginning of the segment to the item.
    pub(crate) offset: u32,
    pub(crate) item_bytes: u32,
}

impl EntryRun {
    /// Whether both are parts of the same append.
    pub(crate) fn is_same_item(&self, other: &EntryRun) -> bool {
        (self.segment, self.offset) == (other.segment, other.offset)
    }
}

impl Append {
    /// The run of the entries, if the frame begins at `frame_offset` of the segment.
    pub(crate) fn run(&self, segment: u64, frame_offset: u32) -> EntryRun {
        EntryRun {
            first: self.first,
            end: self.first + self.count,
            segment,
            offset: frame_offset + self.offset,
            item_bytes: self.item_bytes,
        }
    }
}

/// An encoded batch. Only its header is missing, which depends on its lsn and segment.
#[derive(Debug)]
pub(crate) struct Frame {
    /// Room for the header, then the padded body.
    pub(crate) bytes: Vec<u8>,
    pub(crate) body_checksum: u32,
    pub(crate) changes: Changes,
    /// Its claim on the disk quota.
    pub(crate) priority: WritePriority,
}

/// The priority of a write when space is short: its effect on the bytes that the log takes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum WritePriority {
    /// It adds data.
    Normal,
    /// A rewrite that costs about as many bytes as it will free.
    CostlyRewrite,
    /// A rewrite of a few live records of a segment, which frees most of that.
    Rewrite,
    /// It only frees space.
    Reclaim,
}

impl Change {
    /// The change of an item that begins `offset` bytes into its frame.
    pub(crate) fn of(item: DecodedItem<'_>, offset: u32) -> Change {
        let append = |appended: StoredAppend<'_>| Append {
            group: appended.head.group,
            first: appended.first,
            count: appended.count,
            terms: appended.head.terms_of(appended.first, appended.count),
            offset: offset + appended.offset as u32,
            item_bytes: appended.bytes.len() as u32,
        };
        item.map(append, Bytes::copy_from_slice)
    }
}

impl Frame {
    /// Makes the `at`-th change, a compaction, a stale one. A restart may no longer see the records
    /// that make it stale, so the log must not claim that it changed anything.
    pub(crate) fn make_stale(&mut self, at: usize) {
        let change = &self.changes[at];
        assert!(matches!(change, Change::Compact { .. }), "{change:?} cannot be stale");
        let body = &mut self.bytes[FRAME_HEADER_BYTES..];
        item::make_stale(body, at);
        self.body_checksum = layout::body_checksum(body);
        self.changes[at] = Change::Stale;
    }

    /// The groups that the batch changes; one may come more than once.
    pub(crate) fn groups(&self) -> impl Iterator<Item = u64> {
        self.changes.iter().filter_map(|change| match change {
            Change::Append(append) | Change::Move(append) => Some(append.group),
            Change::Compact { group, .. }
            | Change::Put { group, .. }
            | Change::Delete { group, .. }
            | Change::Remove { group }
            | Change::Truncate { group, .. } => Some(*group),
            Change::Discard { .. } | Change::Stale => None,
        })
    }

    pub(crate) fn has_stale(&self) -> bool {
        self.changes.iter().any(|change| matches!(change, Change::Stale))
    }

    /// Whether the batch only frees space, so that writing it helps a full disk.
    pub(crate) fn only_reclaims(&self) -> bool {
        self.priority == WritePriority::Reclaim
    }
}

/// The priority of a batch with these changes.
pub(crate) fn priority_of(changes: &[Change]) -> WritePriority {
    let adds = |c: &Change| matches!(c, Change::Append(_) | Change::Move(_) | Change::Put { .. });
    if changes.iter().any(adds) { WritePriority::Normal } else { WritePriority::Reclaim }
}
