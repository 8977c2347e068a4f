//! Bytes of the items in a frame's body: what one batch says, group by group.
//!
//! An item is a tag and its fields; small numbers are varints. The entries of one append stand
//! together: first a head with one row an entry, then the data of all of them. So an entry is found
//! by reading the head alone, and its row has a checksum over its identity and its data, so it is
//! proved without the rest of the frame.

use crate::block::{Block, Codec, PlacedBlock};
use crc32c::{crc32c, crc32c_append};
use smallvec::SmallVec;
use std::ops::Range;

const TAG_APPEND: u8 = 1;
const TAG_COMPACT: u8 = 2;
const TAG_PUT: u8 = 3;
const TAG_DELETE: u8 = 4;
const TAG_REMOVE: u8 = 5;
const TAG_DISCARD: u8 = 6;
const TAG_TRUNCATE: u8 = 7;
const TAG_MOVE: u8 = 8;
const TAG_STALE: u8 = 9;

/// Flag of an append: a block table follows its rows.
const HAS_BLOCKS: u8 = 1;
/// Two bits of the flags, from this one on: how long the end of an entry's data is in its row, less
/// one.
const WIDTH_SHIFT: u32 = 1;
const FLAGS: u8 = HAS_BLOCKS | 3 << WIDTH_SHIFT;

/// Tag and length of the head of an append: enough to know how much more to read.
const APPEND_PREFIX_BYTES: usize = 5;
/// What stands in a row before the end of the entry's data: checksum and kind.
const ROW_PREFIX_BYTES: usize = 5;
/// A row of the block table: codec, end of the entries, end of the stored bytes.
const BLOCK_ROW_BYTES: usize = 9;

/// Consecutive entries of one term: how many, and the term.
pub(crate) type TermRun = (u64, u64);
/// Those of one append: nearly always one.
pub(crate) type TermRuns = SmallVec<[TermRun; 1]>;

/// One item of a body, borrowed from it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Item<'a> {
    Append {
        head: AppendHead<'a>,
        item_bytes: usize,
    },
    Compact {
        group: u64,
        first: u64,
        term_before: u64,
    },
    Put {
        group: u64,
        key: &'a [u8],
        value: &'a [u8],
    },
    Delete {
        group: u64,
        key: &'a [u8],
    },
    Remove {
        group: u64,
    },
    Discard {
        below_segment: u64,
    },
    Truncate {
        group: u64,
        from: u64,
    },
    /// Entries `first .. first + count` of an append whose bytes begin `offset` bytes into the item.
    Move {
        first: u64,
        count: u64,
        offset: usize,
        head: AppendHead<'a>,
        item_bytes: usize,
    },
    /// A compaction that came too late and changes nothing.
    Stale,
}

/// What stands before the data of an append, borrowed.
///
/// Rows and blocks have a fixed length, so that one is found without a look at those before it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AppendHead<'a> {
    pub(crate) group: u64,
    pub(crate) first: u64,
    pub(crate) count: u64,
    /// Length of the head itself: the data begins there.
    pub(crate) head_bytes: usize,
    /// Length of the data as it is stored.
    pub(crate) stored_bytes: u64,
    terms: &'a [u8],
    rows: &'a [u8],
    row_bytes: usize,
    /// The block table; empty if the data is stored as it is.
    blocks: &'a [u8],
}

/// What the head of an append says of one entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Row {
    pub(crate) checksum: u32,
    pub(crate) kind: u8,
    pub(crate) data_bytes: u64,
}

/// The checksum of an entry: who it is, and what it holds.
pub(crate) fn entry_checksum(group: u64, index: u64, term: u64, kind: u8, data: &[u8]) -> u32 {
    let mut identity = [kind; 25];
    identity[..8].copy_from_slice(&group.to_le_bytes());
    identity[8..16].copy_from_slice(&index.to_le_bytes());
    identity[16..24].copy_from_slice(&term.to_le_bytes());
    crc32c_append(crc32c(&identity), data)
}

/// Writes the head of an append. The caller adds the data of all entries behind it.
pub(crate) fn put_append_head(
    out: &mut Vec<u8>,
    group: u64,
    first: u64,
    terms: impl ExactSizeIterator<Item = TermRun>,
    rows: impl ExactSizeIterator<Item = Row>,
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
    let rows: SmallVec<[Row; 4]> = rows.collect();
    let raw_bytes = rows.iter().map(|row| row.data_bytes).sum::<u64>();
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
    put_head_bytes(out, begin);
}

/// How many bytes it takes to say where data ends that is so long.
fn end_width(raw_bytes: u64) -> usize {
    match raw_bytes {
        0..=0xff => 1,
        0x100..=0xffff => 2,
        0x1_0000..=0xff_ffff => 3,
        _ => 4,
    }
}

/// Writes the head of an append again, which had no blocks, with these. The caller adds their data.
pub(crate) fn put_head_with_blocks(
    out: &mut Vec<u8>,
    item: &[u8],
    head: &AppendHead<'_>,
    blocks: &[Block],
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

/// Fills in how long the head is that was written from `begin` on.
fn put_head_bytes(out: &mut [u8], begin: usize) {
    let head_bytes = (out.len() - begin) as u32;
    out[begin + 1..begin + APPEND_PREFIX_BYTES].copy_from_slice(&head_bytes.to_le_bytes());
}

pub(crate) fn put_compact(out: &mut Vec<u8>, group: u64, first: u64, term_before: u64) {
    out.push(TAG_COMPACT);
    put_varint(out, group);
    put_varint(out, first);
    put_varint(out, term_before);
}

pub(crate) fn put_put(out: &mut Vec<u8>, group: u64, key: &[u8], value: &[u8]) {
    out.push(TAG_PUT);
    put_varint(out, group);
    put_slice(out, key);
    put_slice(out, value);
}

pub(crate) fn put_delete(out: &mut Vec<u8>, group: u64, key: &[u8]) {
    out.push(TAG_DELETE);
    put_varint(out, group);
    put_slice(out, key);
}

pub(crate) fn put_remove(out: &mut Vec<u8>, group: u64) {
    out.push(TAG_REMOVE);
    put_varint(out, group);
}

pub(crate) fn put_discard(out: &mut Vec<u8>, below_segment: u64) {
    out.push(TAG_DISCARD);
    put_varint(out, below_segment);
}

pub(crate) fn put_truncate(out: &mut Vec<u8>, group: u64, from: u64) {
    out.push(TAG_TRUNCATE);
    put_varint(out, group);
    put_varint(out, from);
}

/// Writes what stands before an append that is moved. The caller adds the append as it is.
pub(crate) fn put_move_head(out: &mut Vec<u8>, first: u64, count: u64) {
    out.push(TAG_MOVE);
    put_varint(out, first);
    put_varint(out, count);
}

/// Makes the `at`-th item of a body, which must be a compaction, one that changes nothing.
pub(crate) fn make_stale(body: &mut [u8], at: usize) {
    let mut input = &*body;
    for _ in 0..at {
        take_item(&mut input).expect("the body was written here");
    }
    let offset = body.len() - input.len();
    assert_eq!(body[offset], TAG_COMPACT, "item {at} is no compaction");
    body[offset] = TAG_STALE;
}

/// Reads the next item and moves `input` behind it.
pub(crate) fn take_item<'a>(input: &mut &'a [u8]) -> Result<Item<'a>, &'static str> {
    let item = *input;
    let tag = take_u8(input)?;
    Ok(match tag {
        TAG_APPEND => {
            *input = item;
            let (head, item_bytes) = take_append(input)?;
            Item::Append { head, item_bytes }
        }
        TAG_COMPACT => Item::Compact {
            group: take_varint(input)?,
            first: take_varint(input)?,
            term_before: take_varint(input)?,
        },
        TAG_PUT => Item::Put {
            group: take_varint(input)?,
            key: take_slice(input)?,
            value: take_slice(input)?,
        },
        TAG_DELETE => Item::Delete { group: take_varint(input)?, key: take_slice(input)? },
        TAG_REMOVE => Item::Remove { group: take_varint(input)? },
        TAG_DISCARD => Item::Discard { below_segment: take_varint(input)? },
        TAG_TRUNCATE => Item::Truncate { group: take_varint(input)?, from: take_varint(input)? },
        TAG_MOVE => {
            let (first, count) = (take_varint(input)?, take_varint(input)?);
            let offset = item.len() - input.len();
            let (head, item_bytes) = take_append(input)?;
            if !head.holds(first, count) {
                return Err("a move is of entries that its append does not hold");
            }
            Item::Move { first, count, offset, head, item_bytes }
        }
        TAG_STALE => {
            for _ in 0..3 {
                take_varint(input)?;
            }
            Item::Stale
        }
        _ => return Err("an item has a tag that this version does not know"),
    })
}

/// Reads an append and moves `input` behind it.
fn take_append<'a>(input: &mut &'a [u8]) -> Result<(AppendHead<'a>, usize), &'static str> {
    let head = AppendHead::decode(input)?;
    let item_bytes = usize::try_from(head.stored_bytes)
        .ok()
        .and_then(|data| data.checked_add(head.head_bytes))
        .ok_or(CUT_SHORT)?;
    *input = input.get(item_bytes..).ok_or(CUT_SHORT)?;
    Ok((head, item_bytes))
}

impl<'a> AppendHead<'a> {
    /// Reads the head that `bytes` begin with, and checks all of it. Allocates nothing.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<AppendHead<'a>, &'static str> {
        let head = AppendHead::open(bytes)?;
        let mut begin = 0;
        for row in head.rows.chunks_exact(head.row_bytes) {
            let end = row_end(row);
            if end < begin {
                return Err(WRONG_ROWS);
            }
            begin = end;
        }
        let mut entry = 0;
        for number in 0..head.block_count() {
            let block = head.block(number)?;
            if block.entries.start != entry {
                return Err(WRONG_BLOCKS);
            }
            entry = block.entries.end;
        }
        Ok(head)
    }

    /// As [`AppendHead::decode`], but does not look at each row and block: those that are asked for
    /// are checked then.
    pub(crate) fn open(bytes: &'a [u8]) -> Result<AppendHead<'a>, &'static str> {
        let prefix = bytes.get(..APPEND_PREFIX_BYTES).ok_or(CUT_SHORT)?;
        if prefix[0] != TAG_APPEND {
            return Err("no append begins here");
        }
        let head_bytes = u32::from_le_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        let mut input = bytes.get(APPEND_PREFIX_BYTES..head_bytes).ok_or(CUT_SHORT)?;
        let input = &mut input;
        let (group, first) = (take_varint(input)?, take_varint(input)?);
        let (count, runs) = (take_varint(input)?, take_varint(input)?);
        let terms = take_terms(input, runs, count)?;
        let flags = take_u8(input)?;
        if flags & !FLAGS != 0 {
            return Err("an append has flags that this version does not know");
        }
        if first == 0 || first.checked_add(count).is_none() {
            return Err("the entries of an append have indexes that cannot be");
        }
        let row_bytes = ROW_PREFIX_BYTES + 1 + usize::from(flags >> WIDTH_SHIFT);
        let rows_bytes = usize::try_from(count).ok().and_then(|n| n.checked_mul(row_bytes));
        let split = input.split_at_checked(rows_bytes.ok_or(CUT_SHORT)?);
        let (rows, blocks) = split.ok_or(CUT_SHORT)?;
        if blocks.is_empty() != (flags & HAS_BLOCKS == 0) {
            return Err("an append has blocks against what its flags say");
        }
        let raw_bytes = row_end(&rows[rows.len() - row_bytes..]);
        let mut head = AppendHead {
            group,
            first,
            count,
            head_bytes,
            stored_bytes: raw_bytes,
            terms,
            rows,
            row_bytes,
            blocks,
        };
        if blocks.len() % BLOCK_ROW_BYTES != 0 {
            return Err(WRONG_BLOCKS);
        }
        if let Some(last) = head.block_count().checked_sub(1) {
            let (entries, stored) = head.block_ends(last);
            if entries != count {
                return Err(WRONG_BLOCKS);
            }
            head.stored_bytes = stored;
        }
        Ok(head)
    }

    /// Consecutive entries of one term, from the first on.
    pub(crate) fn terms(&self) -> impl Iterator<Item = TermRun> + Clone + use<'a> {
        let mut terms = self.terms;
        std::iter::from_fn(move || take_term_run(&mut terms).ok())
    }

    /// What is said of the `at`-th entry, which it must have, and which part of all raw data its
    /// data is.
    ///
    /// # Errors
    ///
    /// It would end before it begins.
    pub(crate) fn row(&self, at: u64) -> Result<(Row, Range<u64>), &'static str> {
        let begin = at as usize * self.row_bytes;
        let row = &self.rows[begin..begin + self.row_bytes];
        let raw = self.raw_begin(at)..row_end(row);
        let data_bytes = raw.end.checked_sub(raw.start).ok_or(WRONG_ROWS)?;
        let checksum = u32::from_le_bytes([row[0], row[1], row[2], row[3]]);
        Ok((Row { checksum, kind: row[4], data_bytes }, raw))
    }

    /// What is said of each entry; those of a head that was not checked may end early.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Row> + Clone + use<'a> {
        let head = *self;
        (0..head.count).map_while(move |at| head.row(at).ok().map(|(row, _)| row))
    }

    /// Where the raw data of the `at`-th entry begins.
    fn raw_begin(&self, at: u64) -> u64 {
        let end = at as usize * self.row_bytes;
        if end == 0 { 0 } else { row_end(&self.rows[end - self.row_bytes..end]) }
    }

    /// How many rows the block table has.
    fn block_count(&self) -> usize {
        self.blocks.len() / BLOCK_ROW_BYTES
    }

    /// Where the entries and the stored bytes of a block end.
    fn block_ends(&self, number: usize) -> (u64, u64) {
        let begin = number * BLOCK_ROW_BYTES;
        let Some([_, a, b, c, d, e, f, g, h]) = self.blocks.get(begin..begin + BLOCK_ROW_BYTES)
        else {
            return (0, 0);
        };
        let number = |bytes| u64::from(u32::from_le_bytes(bytes));
        (number([*a, *b, *c, *d]), number([*e, *f, *g, *h]))
    }

    /// The block of the `at`-th entry, which it must have; the whole data if it is stored as it is.
    ///
    /// # Errors
    ///
    /// What is said of the block cannot be.
    pub(crate) fn block_of(&self, at: u64) -> Result<PlacedBlock, &'static str> {
        let (mut low, mut high) = (0, self.block_count());
        while low < high {
            let middle = low + (high - low) / 2;
            if self.block_ends(middle).0 <= at { low = middle + 1 } else { high = middle }
        }
        let block = self.block(low)?;
        if block.entries.contains(&at) { Ok(block) } else { Err(WRONG_BLOCKS) }
    }

    /// A block; the whole data if that is stored as it is.
    fn block(&self, number: usize) -> Result<PlacedBlock, &'static str> {
        if self.blocks.is_empty() {
            let (entries, raw) = (0..self.count, 0..self.stored_bytes);
            let stored = self.place(0)..self.place(raw.end);
            return Ok(PlacedBlock { number: 0, codec: Codec::Raw, entries, raw, stored });
        }
        let codec = *self.blocks.get(number * BLOCK_ROW_BYTES).ok_or(WRONG_BLOCKS)?;
        let (first, begin) = match number.checked_sub(1) {
            Some(before) => self.block_ends(before),
            None => (0, 0),
        };
        let (end_entry, end) = self.block_ends(number);
        if first >= end_entry || end_entry > self.count || begin > end || end > self.stored_bytes {
            return Err(WRONG_BLOCKS);
        }
        let raw = self.raw_begin(first)..self.raw_begin(end_entry);
        let raw_bytes = raw.end.checked_sub(raw.start).ok_or(WRONG_ROWS)?;
        let (entries, codec) = (end_entry - first, Codec::of(codec)?);
        if !(Block { entries, codec, stored_bytes: end - begin }).can_hold(raw_bytes) {
            return Err(WRONG_BLOCKS);
        }
        let stored = self.place(begin)..self.place(end);
        Ok(PlacedBlock { number: number as u32, codec, entries: first..end_entry, raw, stored })
    }

    /// Where in the item stored data lies; beyond all bytes if that cannot be.
    fn place(&self, stored: u64) -> usize {
        usize::try_from(stored).map_or(usize::MAX, |stored| self.head_bytes.saturating_add(stored))
    }

    /// The blocks of the data; if it is stored as it is, one. Those of a head that was not checked
    /// may end early.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = PlacedBlock> + use<'a> {
        let head = *self;
        (0..head.block_count().max(1)).map_while(move |number| head.block(number).ok())
    }

    /// Whether `count` entries from `first` on, at least one, are all among its entries.
    pub(crate) fn holds(&self, first: u64, count: u64) -> bool {
        let past = first.checked_sub(self.first);
        let end = past.and_then(|past| past.checked_add(count));
        count > 0 && end.is_some_and(|end| end <= self.count)
    }

    /// The terms of `count` entries from `first` on, all of which it holds.
    pub(crate) fn terms_of(&self, first: u64, count: u64) -> TermRuns {
        let (mut from, wanted) = (self.first, first..first + count);
        let mut terms = TermRuns::new();
        for (run, term) in self.terms() {
            let (begin, end) = (from.max(wanted.start), (from + run).min(wanted.end));
            if begin < end {
                terms.push((end - begin, term));
            }
            from += run;
        }
        terms
    }
}

const CUT_SHORT: &str = "an item is cut short";
const WRONG_TERMS: &str = "the terms of an append do not cover its entries";
const WRONG_ROWS: &str = "the data of an entry would end before it begins";
const WRONG_BLOCKS: &str = "the blocks of an append do not hold its entries";

/// Takes so many term runs, which must cover so many entries, and returns the bytes of them.
fn take_terms<'a>(input: &mut &'a [u8], runs: u64, entries: u64) -> Result<&'a [u8], &'static str> {
    let (begin, mut covered) = (*input, 0_u64);
    for _ in 0..runs {
        let (count, _) = take_term_run(input)?;
        covered = covered.checked_add(count).filter(|_| count > 0).ok_or(WRONG_TERMS)?;
    }
    if covered != entries || entries == 0 {
        return Err(WRONG_TERMS);
    }
    Ok(&begin[..begin.len() - input.len()])
}

fn take_term_run(input: &mut &[u8]) -> Result<TermRun, &'static str> {
    Ok((take_varint(input)?, take_varint(input)?))
}

/// Where the data of the entry ends whose row this is.
fn row_end(row: &[u8]) -> u64 {
    let end = |bytes| u64::from(u32::from_le_bytes(bytes));
    match row[ROW_PREFIX_BYTES..] {
        [a] => end([a, 0, 0, 0]),
        [a, b] => end([a, b, 0, 0]),
        [a, b, c] => end([a, b, c, 0]),
        [a, b, c, d] => end([a, b, c, d]),
        _ => unreachable!("a row has one to four bytes for the end"),
    }
}

pub(crate) fn put_slice(out: &mut Vec<u8>, bytes: &[u8]) {
    put_varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

pub(crate) fn put_varint(out: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

pub(crate) fn take_u8(input: &mut &[u8]) -> Result<u8, &'static str> {
    take_array::<1>(input).map(|[byte]| byte)
}

fn take_array<const N: usize>(input: &mut &[u8]) -> Result<[u8; N], &'static str> {
    let (array, rest) = input.split_first_chunk::<N>().ok_or(CUT_SHORT)?;
    *input = rest;
    Ok(*array)
}

pub(crate) fn take_slice<'a>(input: &mut &'a [u8]) -> Result<&'a [u8], &'static str> {
    let len = usize::try_from(take_varint(input)?).map_err(|_| CUT_SHORT)?;
    let (slice, rest) = input.split_at_checked(len).ok_or(CUT_SHORT)?;
    *input = rest;
    Ok(slice)
}

pub(crate) fn take_varint(input: &mut &[u8]) -> Result<u64, &'static str> {
    if let [byte @ ..0x80, rest @ ..] = *input {
        *input = rest;
        return Ok(u64::from(*byte));
    }
    let mut number = 0_u64;
    for shift in (0..64).step_by(7) {
        let byte = take_u8(input)?;
        if shift == 63 && byte > 1 {
            break;
        }
        number |= u64::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Ok(number);
        }
    }
    Err("a number does not fit 64 bits")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn append(group: u64, first: u64, terms: &[TermRun], data: &[&[u8]]) -> Vec<u8> {
        let rows = data.iter().map(|d| Row { checksum: 7, kind: 2, data_bytes: d.len() as u64 });
        let mut out = Vec::new();
        put_append_head(&mut out, group, first, terms.iter().copied(), rows);
        data.iter().for_each(|d| out.extend_from_slice(d));
        out
    }

    #[test]
    fn golden_bytes_of_each_item() {
        let bytes = append(300, 5, &[(1, 8), (1, 9)], &[b"ab", b""]);
        let golden = [
            1, 27, 0, 0, 0, 0xac, 2, 5, 2, 2, // tag, length of the head, group, first, counts
            1, 8, 1, 9, 0, // terms, flags
            7, 0, 0, 0, 2, 2, 7, 0, 0, 0, 2, 2, // rows: checksum, kind, end of the data
            b'a', b'b',
        ];
        assert_eq!(bytes, golden);
        type Write = fn(&mut Vec<u8>);
        let others: [(Write, &[u8]); 7] = [
            (|out| put_compact(out, 1, 128, 3), &[2, 1, 0x80, 1, 3]),
            (|out| put_put(out, 1, b"k", b"vw"), &[3, 1, 1, b'k', 2, b'v', b'w']),
            (|out| put_delete(out, 1, b"k"), &[4, 1, 1, b'k']),
            (|out| put_remove(out, 1), &[5, 1]),
            (|out| put_discard(out, 6), &[6, 6]),
            (|out| put_truncate(out, 1, 128), &[7, 1, 0x80, 1]),
            (|out| put_move_head(out, 128, 3), &[8, 0x80, 1, 3]),
        ];
        for (write, golden) in others {
            let mut out = Vec::new();
            write(&mut out);
            assert_eq!(out, golden);
        }
    }

    #[test]
    fn golden_checksum_of_an_entry() {
        assert_eq!(entry_checksum(1, 2, 3, 4, b"data"), 0xf1bd_22ce);
        assert_ne!(entry_checksum(1, 2, 3, 4, b"data"), entry_checksum(1, 2, 4, 4, b"data"));
    }

    #[test]
    fn items_come_back_as_written() {
        let mut out = append(1, 10, &[(2, 3), (1, 4)], &[b"x", b"yy", b"zzz"]);
        put_compact(&mut out, u64::MAX, 11, 3);
        put_put(&mut out, 2, b"", &[9; 300]);
        put_delete(&mut out, 2, b"key");
        put_remove(&mut out, 3);
        put_discard(&mut out, 4);
        put_truncate(&mut out, 5, 6);
        put_compact(&mut out, 1, 2, 3);
        make_stale(&mut out, 7);
        let mut input = &out[..];
        let Ok(Item::Append { head, item_bytes }) = take_item(&mut input) else {
            panic!("no append")
        };
        assert_eq!((head.group, head.first, head.count, head.stored_bytes), (1, 10, 3, 6));
        assert!(head.terms().eq([(2, 3), (1, 4)]));
        assert!(head.rows().map(|row| row.data_bytes).eq([1, 2, 3]));
        let stored = head.head_bytes..head.head_bytes + 6;
        let whole = PlacedBlock { number: 0, codec: Codec::Raw, entries: 0..3, raw: 0..6, stored };
        assert!(head.blocks().eq([whole]));
        assert_eq!(item_bytes, head.head_bytes + 6);
        let rest: Vec<_> = std::iter::from_fn(|| {
            (!input.is_empty()).then(|| take_item(&mut input).expect("it was written so"))
        })
        .collect();
        assert_eq!(
            rest,
            [
                Item::Compact { group: u64::MAX, first: 11, term_before: 3 },
                Item::Put { group: 2, key: b"", value: &[9; 300] },
                Item::Delete { group: 2, key: b"key" },
                Item::Remove { group: 3 },
                Item::Discard { below_segment: 4 },
                Item::Truncate { group: 5, from: 6 },
                Item::Stale,
            ]
        );
    }

    #[test]
    fn an_entry_and_its_block_are_found_without_those_before() {
        for len in [0, 1, 90, 300, 70_000, 6_000_000] {
            let data: Vec<Vec<u8>> =
                [len, 0, len / 2, 7, len].iter().map(|len| vec![1; *len]).collect();
            let data: Vec<&[u8]> = data.iter().map(Vec::as_slice).collect();
            let plain = append(1, 10, &[(5, 3)], &data);
            let head = AppendHead::decode(&plain).expect("a head");
            let mut begin = 0;
            for (at, data) in (0..).zip(&data) {
                let (row, raw) = head.row(at).expect("a row");
                let len = data.len() as u64;
                assert_eq!(
                    (row.data_bytes, row.kind, row.checksum, raw),
                    (len, 2, 7, begin..begin + len)
                );
                begin += len;
            }
            let raw_bytes = |range: Range<usize>| data[range].iter().map(|d| d.len() as u64).sum();
            let blocks = [0..1, 1..3, 3..5].map(|range: Range<usize>| Block {
                entries: range.len() as u64,
                codec: Codec::Raw,
                stored_bytes: raw_bytes(range),
            });
            let mut packed = Vec::new();
            put_head_with_blocks(&mut packed, &plain, &head, &blocks);
            packed.extend_from_slice(&plain[head.head_bytes..]);
            let head = AppendHead::decode(&packed).expect("a head");
            assert!(head.rows().eq(AppendHead::decode(&plain).expect("a head").rows()));
            let mut at = head.head_bytes;
            for (number, range) in (0..).zip([0..1, 1..3, 3..5]) {
                let raw = raw_bytes(0..range.start)..raw_bytes(0..range.end);
                let stored = at..at + (raw.end - raw.start) as usize;
                at = stored.end;
                let entries = range.start as u64..range.end as u64;
                let codec = Codec::Raw;
                let block = PlacedBlock { number, codec, entries, raw, stored };
                for entry in range {
                    assert_eq!(head.block_of(entry as u64).as_ref(), Ok(&block));
                }
            }
            assert_eq!((at, head.stored_bytes), (packed.len(), begin));
        }
    }

    #[test]
    fn rows_and_blocks_that_cannot_be_are_refused() {
        let whole = append(1, 10, &[(3, 3)], &[b"x", b"yy", b"zzz"]);
        let head = AppendHead::decode(&whole).expect("a head");
        let block = |entries, stored_bytes| Block { entries, codec: Codec::Raw, stored_bytes };
        let with = |blocks: &[Block]| {
            let mut packed = Vec::new();
            put_head_with_blocks(&mut packed, &whole, &head, blocks);
            AppendHead::decode(&packed).map(drop)
        };
        assert_eq!(with(&[block(1, 1), block(2, 5)]), Ok(()));
        for wrong in [
            &[block(3, 5)][..],
            &[block(2, 3)],
            &[block(4, 6)],
            &[block(1, 2), block(2, 4)],
            &[block(1, 1), block(0, 0), block(2, 5)],
        ] {
            assert_eq!(with(wrong), Err(WRONG_BLOCKS));
        }
        let (mut back, end) = (whole.clone(), head.head_bytes - 7);
        back[end] = 0;
        assert_eq!(AppendHead::decode(&back), Err(WRONG_ROWS));
        let mut longer = Vec::new();
        put_head_with_blocks(&mut longer, &whole, &head, &[block(3, 6)]);
        longer.insert(head.head_bytes, 0);
        longer[1] += 1;
        assert!(AppendHead::decode(&longer).is_err() && AppendHead::open(&longer).is_err());
    }

    #[test]
    fn a_move_is_of_entries_that_its_append_holds() {
        let inner = append(1, 10, &[(2, 3), (1, 4), (2, 5)], &[b"x", b"yy", b"", b"z", b"w"]);
        let moved = |first, count| {
            let mut out = Vec::new();
            put_move_head(&mut out, first, count);
            out.extend_from_slice(&inner);
            let mut input = &out[..];
            take_item(&mut input).map(|item| {
                assert!(input.is_empty());
                let Item::Move { offset, head, item_bytes, .. } = item else { panic!("no move") };
                assert_eq!((&out[offset..], item_bytes), (&inner[..], inner.len()));
                head.terms_of(first, count).into_vec()
            })
        };
        assert_eq!(moved(10, 5), Ok(vec![(2, 3), (1, 4), (2, 5)]));
        assert_eq!(moved(11, 2), Ok(vec![(1, 3), (1, 4)]));
        assert_eq!(moved(14, 1), Ok(vec![(1, 5)]));
        for (first, count) in [(10, 0), (9, 2), (10, 6), (15, 1), (12, u64::MAX), (0, 1)] {
            assert!(moved(first, count).is_err(), "{count} from {first}");
        }
    }

    #[test]
    fn no_bytes_whatever_make_it_panic_or_allocate_much() {
        let whole = append(1, 10, &[(2, 3), (1, 4)], &[b"x", b"yy", b"zzz"]);
        let head = AppendHead::decode(&whole).expect("it was written so");
        let blocks = [(2, Codec::Raw, 3), (1, Codec::Lz4, 3)]
            .map(|(entries, codec, stored_bytes)| Block { entries, codec, stored_bytes });
        let mut packed = Vec::new();
        put_head_with_blocks(&mut packed, &whole, &head, &blocks);
        packed.extend_from_slice(b"xyyzzz");
        let mut whole = packed;
        put_put(&mut whole, 2, b"key", &[9; 30]);
        put_move_head(&mut whole, 11, 2);
        whole.extend_from_slice(&append(1, 10, &[(3, 4)], &[b"x", b"yy", b"zzz"]));
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let mut bytes = whole.clone();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..bytes.len());
                bytes[at] = rng.u8(..);
            }
            bytes.truncate(rng.usize(..=bytes.len()));
            let mut input = &bytes[..];
            while !input.is_empty() && take_item(&mut input).is_ok() {}
            if let Ok(head) = AppendHead::open(&bytes) {
                let at = rng.u64(..head.count);
                let (row, block) = (head.row(at), head.block_of(at));
                if let (Ok(whole), Ok((row, raw))) = (AppendHead::decode(&bytes), row) {
                    let block = block.expect("all of it was checked");
                    assert_eq!(whole.rows().nth(at as usize), Some(row));
                    assert!(block.raw.start <= raw.start && raw.end <= block.raw.end);
                }
            }
        }
        // Huge counts that the bytes have no room for.
        let mut lies = vec![TAG_APPEND, 0, 0, 0, 0, 1, 1];
        put_varint(&mut lies, u64::MAX / 2);
        put_varint(&mut lies, 1);
        put_varint(&mut lies, u64::MAX / 2);
        put_varint(&mut lies, 1);
        lies[1] = lies.len() as u8;
        assert_eq!(AppendHead::decode(&lies), Err(CUT_SHORT));
        assert!(take_varint(&mut &[0xff; 11][..]).is_err());
        assert_eq!(
            take_varint(&mut &[255, 255, 255, 255, 255, 255, 255, 255, 255, 1][..]),
            Ok(u64::MAX)
        );
    }
}
