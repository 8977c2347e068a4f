//! The head of an append: the terms of its entries, a row for each, and the block table.

use super::{EntryRow, TAG_APPEND, TermRun, TermRuns};
use crate::format::block::{BlockCodec, DataBlock, PlacedBlock};
use flotilla_base::varint::{CUT_SHORT, take_u8, take_varint};
use std::ops::Range;

/// Flag of an append: a block table follows its rows.
pub(super) const HAS_BLOCKS: u8 = 1;
/// Two bits of the flags, from this one on: the width of an end in a row, less one.
pub(super) const WIDTH_SHIFT: u32 = 1;
const FLAGS: u8 = HAS_BLOCKS | 3 << WIDTH_SHIFT;

/// Tag and length of the head of an append: enough to know how much more to read.
pub(super) const APPEND_PREFIX_BYTES: usize = 5;
/// A row before the end of the entry's data: checksum and kind.
pub(super) const ROW_PREFIX_BYTES: usize = 5;
/// A row of the block table: codec, end of the entries, end of the stored bytes.
const BLOCK_ROW_BYTES: usize = 9;

/// The decoded head of an append, borrowed.
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
    pub(super) rows: &'a [u8],
    row_bytes: usize,
    /// The block table; empty if the data is stored as it is.
    blocks: &'a [u8],
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

    /// As [`AppendHead::decode`], without a check of each row and block: those that are asked for
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

    /// The row of the `at`-th entry, which it must have, and the range of its data in all raw data.
    ///
    /// # Errors
    ///
    /// It would end before it begins.
    pub(crate) fn row(&self, at: u64) -> Result<(EntryRow, Range<u64>), &'static str> {
        debug_assert!(at < self.count, "entry {at} of {}", self.count);
        let begin = at as usize * self.row_bytes;
        let row = &self.rows[begin..begin + self.row_bytes];
        let raw = self.raw_begin(at)..row_end(row);
        let data_bytes = raw.end.checked_sub(raw.start).ok_or(WRONG_ROWS)?;
        let checksum = u32::from_le_bytes([row[0], row[1], row[2], row[3]]);
        Ok((EntryRow { checksum, kind: row[4], data_bytes }, raw))
    }

    /// The rows of all entries; those of a head that was not checked may end early.
    pub(crate) fn rows(&self) -> impl Iterator<Item = EntryRow> + Clone + use<'a> {
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

    /// The ends of the entries and of the stored bytes of a block.
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
    /// The row of the block contradicts the head.
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
            return Ok(PlacedBlock { number: 0, codec: BlockCodec::Raw, entries, raw, stored });
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
        let (entries, codec) = (end_entry - first, BlockCodec::of(codec)?);
        if !(DataBlock { entries, codec, stored_bytes: end - begin }).can_hold(raw_bytes) {
            return Err(WRONG_BLOCKS);
        }
        let stored = self.place(begin)..self.place(end);
        Ok(PlacedBlock { number: number as u32, codec, entries: first..end_entry, raw, stored })
    }

    /// The offset of stored data in the item; beyond all bytes if it overflows.
    fn place(&self, stored: u64) -> usize {
        usize::try_from(stored).map_or(usize::MAX, |stored| self.head_bytes.saturating_add(stored))
    }

    /// The blocks of the data; one if it is stored as it is. Those of a head that was not checked
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
        debug_assert!(self.holds(first, count), "{count} entries from {first} in {self:?}");
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

const WRONG_TERMS: &str = "the terms of an append do not cover its entries";
pub(super) const WRONG_ROWS: &str = "the data of an entry would end before it begins";
pub(super) const WRONG_BLOCKS: &str = "the blocks of an append do not hold its entries";

/// Takes `runs` term runs, which must cover `entries` entries, and returns their bytes.
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

/// The end of the entry's data, from its row.
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
