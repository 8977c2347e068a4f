//! Upper bounds of the encoded length of a summary, kept as it grows.
//!
//! While a segment is written, room for its footer is kept; so the bound is asked for with each
//! frame, and must be close.

use crate::batch::frame::EntryRun;
use crate::format::item::TermRun;
use crate::index::extents::Extents;
use crate::index::item_chunk::ItemLocation;

/// Version, five numbers and the count of groups.
pub(super) const HEADER_BYTES_MAX: u64 = 1 + 6 * 10;

/// The most bytes that it grows by when the entries of `run` come behind `extents`.
pub(super) fn added_bytes_max(extents: &Extents, run: &EntryRun, terms: &[TermRun]) -> u64 {
    let last = extents.last_item();
    let is_next = extents.end() == Some(run.first);
    let is_known = |(_, term): &TermRun| {
        is_next && extents.end().is_some_and(|end| extents.term(end - 1) == *term)
    };
    let known = usize::from(terms.first().is_some_and(is_known));
    let stretch = if is_next { 0 } else { varint_bytes(run.first) + STRETCH_BYTES };
    let terms: u64 = terms[known..].iter().map(|(_, t)| varint_bytes(*t) + TERM_BYTES).sum();
    item_bytes(run, last) + terms + stretch
}

/// The most bytes that it grows by when entries are relocated to a place among `extents`.
pub(super) fn relocated_bytes_max(extents: &Extents, run: &EntryRun, terms: &[TermRun]) -> u64 {
    // The distance of the item behind it changes as well.
    let item = 4 * VARINT_BYTES_OF_U32;
    let before = extents.runs_from(run.first - 1).next().filter(|before| before.end == run.first);
    let follows =
        before.is_some() && matches!(terms, [(_, t)] if *t == extents.term(run.first - 1));
    if follows {
        return item;
    }
    // It may cut a stretch in two and a term as well, and the entries may no longer begin where
    // earlier ones are cut off.
    let terms = (terms.len() as u64 + 1) * (VARINT_BYTES + TERM_BYTES);
    item + terms + 2 * (VARINT_BYTES + STRETCH_BYTES) + VARINT_BYTES
}

pub(super) fn group_bytes_max(group: u64) -> u64 {
    varint_bytes(group) + 1
}

/// The bytes of a compaction, and of what it may change: the first entry and the distance of its
/// item, and that entries begin where earlier ones are cut off.
pub(super) const COMPACTION_BYTES_MAX: u64 = 5 * VARINT_BYTES;
/// An index from which on entries are cut off.
pub(super) const CUT_BYTES_MAX: u64 = VARINT_BYTES;

pub(super) fn value_bytes_max(key: &[u8], value: Option<&[u8]>) -> u64 {
    let length = |bytes: u64| bytes + varint_bytes(bytes + 1);
    // One more, since the count of keys may grow by a byte.
    1 + length(key.len() as u64) + value.map_or(1, |value| length(value.len() as u64))
}

const VARINT_BYTES: u64 = 10;
const VARINT_BYTES_OF_U32: u64 = 5;
/// The count of stretches may grow by a byte; then the counts of items and terms of this one.
const STRETCH_BYTES: u64 = 1 + 5 + 1;
/// The count of rows may grow by a byte; then the count of entries with the term.
const TERM_BYTES: u64 = 1 + 5;

fn varint_bytes(number: u64) -> u64 {
    u64::from((70 - (number | 1).leading_zeros()) / 7)
}

fn item_bytes(run: &EntryRun, before: Option<ItemLocation>) -> u64 {
    let count = run.end - run.first;
    let more = if count > 1 { varint_bytes(count) } else { 0 };
    varint_bytes(distance(run.offset, before)) + varint_bytes(length(run)) + more
}

/// The distance from the end of the item before, which may lie behind it: the lowest bit is the
/// sign.
pub(super) fn distance(offset: u32, before: Option<ItemLocation>) -> u64 {
    let end = before.map_or(0, |before| i64::from(before.offset) + i64::from(before.bytes));
    let distance = i64::from(offset) - end;
    ((distance << 1) ^ (distance >> 63)) as u64
}

/// The lowest bit says whether there is more than one entry.
pub(super) fn length(run: &EntryRun) -> u64 {
    u64::from(run.item_bytes) << 1 | u64::from(run.end - run.first > 1)
}
