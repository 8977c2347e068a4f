//! Encodes items.

use super::decode::take_item;
use super::head::{APPEND_PREFIX_BYTES, AppendHead, HAS_BLOCKS, ROW_PREFIX_BYTES, WIDTH_SHIFT};
use super::{
    BatchItem, EntryRow, PlainItem, STALE_NUMBERS, TAG_APPEND, TAG_COMPACT, TAG_DELETE,
    TAG_DISCARD, TAG_MOVE, TAG_PUT, TAG_REMOVE, TAG_STALE, TAG_TRUNCATE, TermRun,
};
use crate::format::block::DataBlock;
use flotilla_base::varint::{put_slice, put_varint};

/// Writes an item that has no entries.
pub(crate) fn put_plain_item(out: &mut Vec<u8>, note: PlainItem<'_>) {
    let (tag, numbers, strings): (u8, &[u64], &[&[u8]]) = match note {
        BatchItem::Append(never) | BatchItem::Move(never) => match never {},
        BatchItem::Compact { group, first, term_before } => {
            (TAG_COMPACT, &[group, first, term_before], &[])
        }
        BatchItem::Put { group, key, value } => (TAG_PUT, &[group], &[key, value]),
        BatchItem::Delete { group, key } => (TAG_DELETE, &[group], &[key]),
        BatchItem::Remove { group } => (TAG_REMOVE, &[group], &[]),
        BatchItem::Discard { below_segment } => (TAG_DISCARD, &[below_segment], &[]),
        BatchItem::Truncate { group, from } => (TAG_TRUNCATE, &[group, from], &[]),
        // The numbers of the compaction that it would have been; no reader uses them.
        BatchItem::Stale => (TAG_STALE, &[0; STALE_NUMBERS], &[]),
    };
    out.push(tag);
    numbers.iter().for_each(|number| put_varint(out, *number));
    strings.iter().for_each(|string| put_slice(out, string));
}

/// Writes the head of an append with this many bytes of data. The caller adds the data of all
/// entries behind it.
pub(crate) fn put_append_head(
    out: &mut Vec<u8>,
    group: u64,
    first: u64,
    terms: impl ExactSizeIterator<Item = TermRun>,
    rows: impl ExactSizeIterator<Item = EntryRow>,
    raw_bytes: u64,
) {
    let begin = out.len();
    out.extend_from_slice(&[TAG_APPEND, 0, 0, 0, 0]);
    put_varint(out, group);
    put_varint(out, first);
    put_varint(out, rows.len() as u64);
    put_varint(out, terms.len() as u64);
    for (count, term) in terms {
        put_varint(out, count);
        put_varint(out, term);
    }
    let width = end_width(raw_bytes);
    out.push(((width - 1) as u8) << WIDTH_SHIFT);
    let mut end = 0;
    for row in rows {
        end += row.data_bytes;
        let mut bytes = [0; ROW_PREFIX_BYTES + 8];
        bytes[..4].copy_from_slice(&row.checksum.to_le_bytes());
        bytes[4] = row.kind;
        bytes[ROW_PREFIX_BYTES..].copy_from_slice(&end.to_le_bytes());
        out.extend_from_slice(&bytes[..ROW_PREFIX_BYTES + width]);
    }
    assert_eq!(end, raw_bytes, "the rows are of other data than their head");
    put_head_bytes(out, begin);
}

/// How many bytes an offset into this much data takes.
fn end_width(raw_bytes: u64) -> usize {
    match raw_bytes {
        0..=0xff => 1,
        0x100..=0xffff => 2,
        0x1_0000..=0xff_ffff => 3,
        _ => 4,
    }
}

/// Writes the head of an append that had no blocks again, with these blocks. The caller adds their
/// data.
pub(crate) fn put_head_with_blocks(
    out: &mut Vec<u8>,
    item: &[u8],
    head: &AppendHead<'_>,
    blocks: &[DataBlock],
) {
    let begin = out.len();
    let flags = head.head_bytes - head.rows.len() - 1;
    out.extend_from_slice(&item[..flags]);
    out.push(item[flags] | HAS_BLOCKS);
    out.extend_from_slice(head.rows);
    let (mut entries, mut stored) = (0, 0);
    for block in blocks {
        entries += block.entries;
        stored += block.stored_bytes;
        out.push(block.codec.number());
        out.extend_from_slice(&(entries as u32).to_le_bytes());
        out.extend_from_slice(&(stored as u32).to_le_bytes());
    }
    put_head_bytes(out, begin);
}

/// Fills in the length of the head that was written from `begin` on.
fn put_head_bytes(out: &mut [u8], begin: usize) {
    let head_bytes = (out.len() - begin) as u32;
    out[begin + 1..begin + APPEND_PREFIX_BYTES].copy_from_slice(&head_bytes.to_le_bytes());
}

/// Writes the prefix of a rewritten append. The caller adds the append verbatim.
pub(crate) fn put_move_head(out: &mut Vec<u8>, first: u64, count: u64) {
    out.push(TAG_MOVE);
    put_varint(out, first);
    put_varint(out, count);
}

/// Turns the `at`-th item of a body, which must be a compaction, into a stale one of the same
/// length.
pub(crate) fn make_stale(body: &mut [u8], at: usize) {
    let mut input = &*body;
    for _ in 0..at {
        take_item(&mut input).expect("the body was written here");
    }
    let offset = body.len() - input.len();
    assert_eq!(body[offset], TAG_COMPACT, "item {at} is no compaction");
    body[offset] = TAG_STALE;
}
