//! Cells of a leaf: a key and a value, or a key and the address of the extent that holds it.
//!
//! ```text
//! | value length u16 | key | value |
//! | 0xffff           | key | first unit u64 | length u32 | crc32c u32 | created_txid u64 |
//! ```

use std::ops::Range;

use crate::page::slotted::{EXTENT_BYTES, EXTENT_TAG, SLOT_BYTES, SLOTS_AT, SlottedPage};
use crate::page::{PAGE_UNITS_MAX, PageSize, Span, UNIT_BYTES, u16_at, u32_at, u64_at, units_for};

/// Two values of this length share a page of one unit, if their keys have no more than 90 bytes. As
/// extents each would take a unit for itself, and its cell beside.
/// `docs/decisions/0039-two-long-values-share-a-page.md`
const PAIRED_VALUE_BYTES: usize = 1920;

/// Longer values go to an extent.
pub(crate) fn inline_bytes_max(size: PageSize) -> usize {
    PAIRED_VALUE_BYTES.max(size.bytes() / 4)
}

const _: () = assert!(2 * (SLOT_BYTES + 2 + 90 + PAIRED_VALUE_BYTES) + SLOTS_AT <= UNIT_BYTES);
const _: () = assert!(PAGE_UNITS_MAX * UNIT_BYTES / 4 < EXTENT_TAG);

/// A run of units that holds one long value and nothing else.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct ValueExtent {
    /// The first unit.
    pub(crate) start: u64,
    /// The value's length in bytes.
    pub(crate) len: u32,
    /// The value's checksum.
    pub(crate) crc: u32,
    /// The transaction that wrote it.
    pub(crate) created_txid: u64,
}

impl ValueExtent {
    pub(crate) fn span(&self) -> Span {
        Span { start: self.start, units: units_for(self.len as usize) }
    }

    /// Where the value lies in the file, in bytes.
    pub(crate) fn byte_range(&self) -> std::ops::Range<u64> {
        let start = self.start * UNIT_BYTES as u64;
        start..start + u64::from(self.len)
    }

    pub(crate) fn encode(&self) -> [u8; EXTENT_BYTES] {
        let mut bytes = [0; EXTENT_BYTES];
        bytes[..8].copy_from_slice(&self.start.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.len.to_le_bytes());
        bytes[12..16].copy_from_slice(&self.crc.to_le_bytes());
        bytes[16..].copy_from_slice(&self.created_txid.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> ValueExtent {
        ValueExtent {
            start: u64_at(bytes, 0),
            len: u32_at(bytes, 8),
            crc: u32_at(bytes, 12),
            created_txid: u64_at(bytes, 16),
        }
    }
}

/// A value as a leaf holds it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum LeafValue<'a> {
    /// The bytes themselves.
    Inline(&'a [u8]),
    /// Where the bytes lie.
    Extent(ValueExtent),
}

/// The value of cell `i`.
#[inline]
pub(crate) fn value(node: SlottedPage<'_>, i: usize) -> LeafValue<'_> {
    let (lead, tail) = node.payload(i);
    match u16_at(lead, 0) {
        EXTENT_TAG => LeafValue::Extent(ValueExtent::decode(tail)),
        _ => LeafValue::Inline(tail),
    }
}

/// The extents that entries `range` name.
pub(crate) fn extents(
    node: SlottedPage<'_>,
    range: Range<usize>,
) -> impl Iterator<Item = ValueExtent> {
    range.filter_map(move |i| match value(node, i) {
        LeafValue::Extent(extent) => Some(extent),
        LeafValue::Inline(_) => None,
    })
}

/// A value turned into what surrounds the key in its cell.
pub(crate) struct Payload<'a> {
    lead: [u8; 2],
    tail: PayloadTail<'a>,
}

enum PayloadTail<'a> {
    Inline(&'a [u8]),
    Extent([u8; EXTENT_BYTES]),
}

impl<'a> Payload<'a> {
    pub(crate) fn new(value: LeafValue<'a>) -> Payload<'a> {
        if let LeafValue::Inline(bytes) = value {
            assert!(bytes.len() < EXTENT_TAG, "a value of {} bytes in a leaf", bytes.len());
        }
        let (tag, tail) = match value {
            LeafValue::Inline(bytes) => (bytes.len(), PayloadTail::Inline(bytes)),
            LeafValue::Extent(extent) => (EXTENT_TAG, PayloadTail::Extent(extent.encode())),
        };
        let tag = u16::try_from(tag).expect("inline values are short");
        Payload { lead: tag.to_le_bytes(), tail }
    }

    pub(crate) fn lead(&self) -> &[u8] {
        &self.lead
    }

    pub(crate) fn tail(&self) -> &[u8] {
        match &self.tail {
            PayloadTail::Inline(bytes) => bytes,
            PayloadTail::Extent(bytes) => bytes,
        }
    }
}
