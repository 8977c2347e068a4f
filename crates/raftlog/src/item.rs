//! Bytes of the items in a frame's body: what one batch says, group by group.
//!
//! An item is a tag and its fields; small numbers are varints. The entries of one append stand
//! together: first a head with one row an entry, then the data of all of them. So an entry is found
//! by reading the head alone, and its row has a checksum over its identity and its data, so it is
//! proved without the rest of the frame.

use crate::block::{Block, Codec};
use crc32c::{crc32c, crc32c_append};
use smallvec::SmallVec;

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

/// Tag and length of the head of an append: enough to know how much more to read.
const APPEND_PREFIX_BYTES: usize = 5;

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

/// What stands before the data of an append, borrowed and found to be well formed.
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
    out.push(0);
    for row in rows {
        out.extend_from_slice(&row.checksum.to_le_bytes());
        out.push(row.kind);
        put_varint(out, row.data_bytes);
    }
    put_head_bytes(out, begin);
}

/// Writes the head of an append again, which had no blocks, with these. The caller adds their data.
pub(crate) fn put_head_with_blocks(
    out: &mut Vec<u8>,
    item: &[u8],
    head: &AppendHead<'_>,
    blocks: &[Block],
) {
    let begin = out.len();
    out.extend_from_slice(&item[..head.head_bytes - head.rows.len() - 1]);
    out.push(HAS_BLOCKS);
    out.extend_from_slice(head.rows);
    for block in blocks {
        out.push(block.codec.number());
        put_varint(out, block.entries);
        put_varint(out, block.stored_bytes);
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
    /// Reads the head that `bytes` begin with. Allocates nothing.
    pub(crate) fn decode(bytes: &'a [u8]) -> Result<AppendHead<'a>, &'static str> {
        let prefix = bytes.get(..APPEND_PREFIX_BYTES).ok_or(CUT_SHORT)?;
        if prefix[0] != TAG_APPEND {
            return Err("no append begins here");
        }
        let head_bytes = u32::from_le_bytes([prefix[1], prefix[2], prefix[3], prefix[4]]) as usize;
        let mut input = bytes.get(APPEND_PREFIX_BYTES..head_bytes).ok_or(CUT_SHORT)?;
        let input = &mut input;
        let (group, first) = (take_varint(input)?, take_varint(input)?);
        let (count, runs) = (take_varint(input)?, take_varint(input)?);
        let mut covered = 0_u64;
        let terms = take_part(input, runs, |input| {
            let (count, _) = take_term_run(input)?;
            covered = covered.checked_add(count).filter(|_| count > 0).ok_or(WRONG_TERMS)?;
            Ok(())
        })?;
        if covered != count || count == 0 {
            return Err(WRONG_TERMS);
        }
        let flags = take_u8(input)?;
        if flags & !HAS_BLOCKS != 0 {
            return Err("an append has flags that this version does not know");
        }
        let mut stored_bytes = 0_u64;
        let rows = take_part(input, count, |input| {
            let row = take_row(input)?;
            stored_bytes = stored_bytes.checked_add(row.data_bytes).ok_or(CUT_SHORT)?;
            Ok(())
        })?;
        let blocks = *input;
        if blocks.is_empty() != (flags & HAS_BLOCKS == 0) {
            return Err("an append has blocks against what its flags say");
        }
        if first == 0 || first.checked_add(count).is_none() {
            return Err("the entries of an append have indexes that cannot be");
        }
        let head =
            AppendHead { group, first, count, head_bytes, stored_bytes, terms, rows, blocks };
        if blocks.is_empty() { Ok(head) } else { head.with_blocks() }
    }

    /// Checks the block table against the rows, and counts what is stored.
    fn with_blocks(self) -> Result<AppendHead<'a>, &'static str> {
        let (mut rows, mut blocks) = (self.rows(), self.blocks);
        let mut stored_bytes = 0_u64;
        while !blocks.is_empty() {
            let block = take_block(&mut blocks)?;
            let mut raw_bytes = 0;
            for _ in 0..block.entries {
                raw_bytes += rows.next().ok_or(WRONG_BLOCKS)?.data_bytes;
            }
            if block.entries == 0 || !block.can_hold(raw_bytes) {
                return Err(WRONG_BLOCKS);
            }
            stored_bytes = stored_bytes.checked_add(block.stored_bytes).ok_or(WRONG_BLOCKS)?;
        }
        if rows.next().is_some() {
            Err(WRONG_BLOCKS)
        } else {
            Ok(AppendHead { stored_bytes, ..self })
        }
    }

    /// Consecutive entries of one term, from the first on.
    pub(crate) fn terms(&self) -> impl Iterator<Item = TermRun> + Clone + use<'a> {
        let mut terms = self.terms;
        std::iter::from_fn(move || take_term_run(&mut terms).ok())
    }

    /// What is said of each entry.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Row> + Clone + use<'a> {
        let mut rows = self.rows;
        std::iter::from_fn(move || take_row(&mut rows).ok())
    }

    /// The blocks of the data; if it is stored as it is, one.
    pub(crate) fn blocks(&self) -> impl Iterator<Item = Block> + use<'a> {
        let AppendHead { count, stored_bytes, mut blocks, .. } = *self;
        let whole = Block { entries: count, codec: Codec::Raw, stored_bytes };
        let mut whole = blocks.is_empty().then_some(whole);
        std::iter::from_fn(move || whole.take().or_else(|| take_block(&mut blocks).ok()))
    }

    /// Whether `count` entries from `first` on, at least one, are all among its entries.
    fn holds(&self, first: u64, count: u64) -> bool {
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
const WRONG_BLOCKS: &str = "the blocks of an append do not hold its entries";

/// Takes `count` things and returns the bytes of them.
fn take_part<'a>(
    input: &mut &'a [u8],
    count: u64,
    mut take: impl FnMut(&mut &'a [u8]) -> Result<(), &'static str>,
) -> Result<&'a [u8], &'static str> {
    let begin = *input;
    for _ in 0..count {
        take(input)?;
    }
    Ok(&begin[..begin.len() - input.len()])
}

fn take_term_run(input: &mut &[u8]) -> Result<TermRun, &'static str> {
    Ok((take_varint(input)?, take_varint(input)?))
}

fn take_row(input: &mut &[u8]) -> Result<Row, &'static str> {
    let checksum = u32::from_le_bytes(take_array(input)?);
    Ok(Row { checksum, kind: take_u8(input)?, data_bytes: take_varint(input)? })
}

fn take_block(input: &mut &[u8]) -> Result<Block, &'static str> {
    let codec = Codec::of(take_u8(input)?)?;
    Ok(Block { codec, entries: take_varint(input)?, stored_bytes: take_varint(input)? })
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
            7, 0, 0, 0, 2, 2, 7, 0, 0, 0, 2, 0, // rows: checksum, kind, length
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
        let whole = Block { entries: 3, codec: Codec::Raw, stored_bytes: 6 };
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
        let mut whole = append(1, 10, &[(2, 3), (1, 4)], &[b"x", b"yy", b"zzz"]);
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
