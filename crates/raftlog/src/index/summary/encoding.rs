//! The encoding of a group's net change: `docs/log-format.md` has the drawing.
//!
//! Most items are appends of one entry that follow each other at a short distance, so an item is
//! its distance from the one before and its length: three bytes or four.

use super::bounds::{distance, length};
use super::changes::{CompactionPoint, GroupChanges, THIS_SEGMENT};
use crate::format::item::TermRun;
use crate::index::extents::Extents;
use crate::index::item_chunk::ItemLocation;
use crate::index::key_map::KeyMap;
use flotilla_base::varint::{CUT_SHORT, put_slice, put_varint, take_slice, take_u8, take_varint};

const REMOVED: u8 = 1;
const CUT: u8 = 2;
/// Cut off at the first entry that lies in the segment, as a first append does.
const CUT_AT_FIRST: u8 = 4;
const COMPACTION: u8 = 8;
const ENTRIES: u8 = 16;
const KEYS: u8 = 32;

pub(super) const WRONG: &str = "a summary contradicts itself";
const TOO_FAR: &str = "a summary names a place beyond 4 GiB";

/// Adds the changes of a group, but for its id, and calls `spill` after every few bytes.
pub(super) fn put_group<E>(
    out: &mut Vec<u8>,
    changes: &GroupChanges,
    spill: &mut impl FnMut(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    let begins_at_cut = changes.extents.first() == Some(changes.cut_from);
    let cut = match changes.cut_from() {
        None => 0,
        Some(_) if begins_at_cut => CUT_AT_FIRST,
        Some(_) => CUT,
    };
    let flag = |is_set, flag| if is_set { flag } else { 0 };
    out.push(
        flag(changes.is_removed, REMOVED)
            | cut
            | flag(changes.compaction.is_some(), COMPACTION)
            | flag(!changes.extents.is_empty(), ENTRIES)
            | flag(!changes.keys.is_empty(), KEYS),
    );
    if cut == CUT {
        put_varint(out, changes.cut_from);
    }
    if let Some(compaction) = changes.compaction {
        put_varint(out, compaction.first);
        put_varint(out, compaction.term_before);
    }
    if !changes.extents.is_empty() {
        put_extents(out, &changes.extents, spill)?;
    }
    if !changes.keys.is_empty() {
        put_varint(out, changes.keys.len() as u64);
        for (key, value) in changes.keys.iter() {
            put_slice(out, key);
            put_varint(out, value.as_ref().map_or(0, |value| value.len() as u64 + 1));
            out.extend_from_slice(value.as_deref().unwrap_or_default());
            spill(out)?;
        }
    }
    spill(out)
}

fn put_extents<E>(
    out: &mut Vec<u8>,
    extents: &Extents,
    spill: &mut impl FnMut(&mut Vec<u8>) -> Result<(), E>,
) -> Result<(), E> {
    put_varint(out, extents.stretch_count() as u64);
    let mut runs = extents.runs_from(0).peekable();
    let (mut end, mut before) = (0, None);
    while let Some(front) = runs.peek().copied() {
        put_varint(out, front.first - end);
        end = front.first;
        let mut ahead = extents.runs_from(front.first);
        let mut count = 0_u64;
        while let Some(run) = ahead.next().filter(|run| run.first == end) {
            (end, count) = (run.end, count + 1);
        }
        put_terms(out, &extents.terms_of(front.first, end));
        put_varint(out, count);
        while let Some(run) = runs.next_if(|run| run.first < end) {
            put_varint(out, distance(run.offset, before));
            put_varint(out, length(&run));
            if run.end - run.first > 1 {
                put_varint(out, run.end - run.first);
            }
            before = Some(ItemLocation { offset: run.offset, bytes: run.item_bytes });
            spill(out)?;
        }
    }
    Ok(())
}

fn put_terms(out: &mut Vec<u8>, terms: &[TermRun]) {
    put_varint(out, terms.len() as u64);
    for (count, term) in terms {
        put_varint(out, *count);
        put_varint(out, *term);
    }
}

/// Decodes the bytes of [`put_group`].
pub(super) fn take_group(
    input: &mut &[u8],
    group: u64,
    items_end: u64,
) -> Result<GroupChanges, &'static str> {
    let flags = take_u8(input)?;
    let has = |flag| flags & flag != 0;
    let is_twice = has(CUT) && has(CUT_AT_FIRST);
    if flags >= KEYS << 1 || is_twice || (has(CUT_AT_FIRST) && !has(ENTRIES)) {
        return Err(WRONG);
    }
    let mut changes = GroupChanges { is_removed: has(REMOVED), ..GroupChanges::new(group) };
    if has(CUT) {
        changes.cut_from = take(input)?;
    }
    if has(COMPACTION) {
        let compaction = CompactionPoint { first: take(input)?, term_before: take(input)? };
        if compaction.first == 0 || compaction.first == u64::MAX {
            return Err(WRONG);
        }
        changes.compaction = Some(compaction);
    }
    if has(ENTRIES) {
        changes.extents = take_extents(input, items_end)?;
        let first = changes.extents.first().ok_or(WRONG)?;
        if has(CUT_AT_FIRST) {
            changes.cut_from = first;
        }
        if changes.compaction.is_some_and(|compaction| first < compaction.first) {
            return Err(WRONG);
        }
    }
    if has(KEYS) {
        changes.keys = take_keys(input)?;
    }
    Ok(changes)
}

fn take_extents(input: &mut &[u8], items_end: u64) -> Result<Extents, &'static str> {
    let mut extents = Extents::default();
    let mut before = None;
    // First entry, one row of terms, one item.
    for at in 0..take_count(input, 6)? {
        let skipped = take(input)?;
        let first = extents.end().unwrap_or(0).checked_add(skipped).ok_or(WRONG)?;
        if skipped == 0 || (at == 0 && first == 0) {
            return Err(WRONG);
        }
        let mut terms = Vec::new();
        let mut end = first;
        for _ in 0..take_count(input, 2)? {
            let (count, term) = (take(input)?, take(input)?);
            end = end.checked_add(count).filter(|_| count > 0).ok_or(WRONG)?;
            terms.push((count, term));
        }
        let item_count = take_count(input, 2)?;
        extents.push_items(first, THIS_SEGMENT, item_count, || {
            let (item, count) = take_item(input, before)?;
            if u64::from(item.offset) + u64::from(item.bytes) > items_end {
                return Err(WRONG);
            }
            before = Some(item);
            Ok((item, count))
        })?;
        if extents.end() != Some(end) {
            return Err("the terms of a summary do not cover its entries");
        }
        extents.push_terms(first, &terms);
    }
    Ok(extents)
}

#[inline]
fn take_item(
    input: &mut &[u8],
    before: Option<ItemLocation>,
) -> Result<(ItemLocation, u32), &'static str> {
    let (distance, length) = take_pair(input)?;
    let count = if length & 1 == 0 { 1 } else { u32::try_from(take(input)?).map_err(|_| WRONG)? };
    let distance = (distance >> 1) as i64 ^ -((distance & 1) as i64);
    let end = before.map_or(0, |before| i64::from(before.offset) + i64::from(before.bytes));
    let offset = end.checked_add(distance).and_then(|offset| u32::try_from(offset).ok());
    let (offset, bytes) =
        (offset.ok_or(TOO_FAR)?, u32::try_from(length >> 1).map_err(|_| TOO_FAR)?);
    if bytes == 0 || count == 0 {
        return Err(WRONG);
    }
    Ok((ItemLocation { offset, bytes }, count))
}

fn take_keys(input: &mut &[u8]) -> Result<KeyMap<Option<Box<[u8]>>>, &'static str> {
    let mut keys = KeyMap::default();
    let mut before: Option<&[u8]> = None;
    // Each has two lengths.
    for _ in 0..take_count(input, 2)? {
        let key = take_slice(input)?;
        if before.is_some_and(|before| before >= key) {
            return Err(WRONG);
        }
        let value = match take(input)?.checked_sub(1) {
            None => None,
            Some(length) => {
                let length = usize::try_from(length).map_err(|_| CUT_SHORT)?;
                let (value, rest) = input.split_at_checked(length).ok_or(CUT_SHORT)?;
                *input = rest;
                Some(value.into())
            }
        };
        keys.insert(key, value);
        before = Some(key);
    }
    Ok(keys)
}

/// Two varints. Nearly always eight bytes hold both, and then they are decoded without a loop.
#[inline]
fn take_pair(input: &mut &[u8]) -> Result<(u64, u64), &'static str> {
    const ENDS: u64 = 0x8080_8080_8080_8080;
    if let Some(bytes) = input.first_chunk::<8>() {
        let word = u64::from_le_bytes(*bytes);
        // A byte whose highest bit is not set is the last of its number.
        let ends = !word & ENDS;
        let later = ends & ends.wrapping_sub(1);
        if later != 0 {
            let (first_bits, both_bits) = (ends.trailing_zeros() + 1, later.trailing_zeros() + 1);
            let first = word & (u64::MAX >> (64 - first_bits));
            let second = (word & (u64::MAX >> (64 - both_bits))) >> first_bits;
            *input = &input[both_bits as usize / 8..];
            return Ok((squeeze(first), squeeze(second)));
        }
    }
    Ok((take(input)?, take(input)?))
}

/// The number of a varint's bytes: seven bits of each, the lowest first.
#[inline]
fn squeeze(bytes: u64) -> u64 {
    let bytes = bytes & 0x7f7f_7f7f_7f7f_7f7f;
    let pairs = (bytes & 0x007f_007f_007f_007f) | (bytes & 0x7f00_7f00_7f00_7f00) >> 1;
    let fours = (pairs & 0x0000_3fff_0000_3fff) | (pairs & 0x3fff_0000_3fff_0000) >> 2;
    (fours & 0x0fff_ffff) | (fours & 0x0fff_ffff_0000_0000) >> 4
}

/// A count of elements of at least `least_bytes` each. There is at least one where this is asked
/// for groups' contents; none only of groups.
pub(super) fn take_count(input: &mut &[u8], least_bytes: usize) -> Result<usize, &'static str> {
    let count = usize::try_from(take(input)?).map_err(|_| CUT_SHORT)?;
    if count > input.len() / least_bytes { Err(CUT_SHORT) } else { Ok(count) }
}

/// A varint. Most have one byte or two.
#[inline]
pub(super) fn take(input: &mut &[u8]) -> Result<u64, &'static str> {
    match **input {
        [low @ ..0x80, ref rest @ ..] => {
            *input = rest;
            Ok(u64::from(low))
        }
        [low, high @ ..0x80, ref rest @ ..] => {
            *input = rest;
            Ok(u64::from(low & 0x7f) | u64::from(high) << 7)
        }
        _ => take_varint(input),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn two_numbers_are_read_as_one_after_the_other() {
        let numbers = (0..64).flat_map(|bit| [(1 << bit) - 1, 1 << bit]).chain([u64::MAX]);
        let numbers: Vec<u64> = numbers.collect();
        for first in &numbers {
            for second in &numbers {
                let mut bytes = Vec::new();
                put_varint(&mut bytes, *first);
                put_varint(&mut bytes, *second);
                let whole = bytes.len();
                // The rest belongs to other groups, and may be empty.
                for behind in [0, 1, 9] {
                    bytes.resize(whole + behind, 0xff);
                    let input = &mut &bytes[..];
                    assert_eq!(take_pair(input), Ok((*first, *second)));
                    assert_eq!(input.len(), behind);
                }
                for cut in 0..whole {
                    assert!(take_pair(&mut &bytes[..cut]).is_err(), "{first} {second} {cut}");
                }
            }
        }
        // A number may be written longer than it has to be, here as anywhere.
        let long = [0x81, 0x80, 0x00, 0x85, 0x00, 0xff, 0xff, 0xff];
        assert_eq!(take_pair(&mut &long[..]), Ok((1, 5)));
        assert!(take_pair(&mut &[0xff; 30][..]).is_err());
    }
}
