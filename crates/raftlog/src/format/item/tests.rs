//! Items there and back, golden bytes, and bytes that are none.

use super::head::{WRONG_BLOCKS, WRONG_ROWS};
use super::*;
use crate::format::block::{BlockCodec, DataBlock, PlacedBlock};
use flotilla_base::varint::{CUT_SHORT, put_varint};
use std::ops::Range;

fn append(group: u64, first: u64, terms: &[TermRun], data: &[&[u8]]) -> Vec<u8> {
    let rows = data.iter().map(|d| EntryRow { checksum: 7, kind: 2, data_bytes: d.len() as u64 });
    let mut out = Vec::new();
    let raw_bytes = data.iter().map(|d| d.len() as u64).sum();
    put_append_head(&mut out, group, first, terms.iter().copied(), rows, raw_bytes);
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
    let (group, key, value) = (1, &b"k"[..], &b"vw"[..]);
    let notes: [(PlainItem<'_>, &[u8]); 7] = [
        (BatchItem::Compact { group, first: 128, term_before: 3 }, &[2, 1, 0x80, 1, 3]),
        (BatchItem::Put { group, key, value }, &[3, 1, 1, b'k', 2, b'v', b'w']),
        (BatchItem::Delete { group, key }, &[4, 1, 1, b'k']),
        (BatchItem::Remove { group }, &[5, 1]),
        (BatchItem::Discard { below_segment: 6 }, &[6, 6]),
        (BatchItem::Truncate { group, from: 128 }, &[7, 1, 0x80, 1]),
        (BatchItem::Stale, &[9, 0, 0, 0]),
    ];
    for (note, golden) in notes {
        let mut out = Vec::new();
        put_plain_item(&mut out, note);
        assert_eq!(out, golden);
    }
    let mut out = Vec::new();
    put_move_head(&mut out, 128, 3);
    assert_eq!(out, [8, 0x80, 1, 3]);
}

#[test]
fn golden_checksum_of_an_entry() {
    assert_eq!(entry_checksum(1, 2, 3, 4, b"data"), 0xf1bd_22ce);
    assert_ne!(entry_checksum(1, 2, 3, 4, b"data"), entry_checksum(1, 2, 4, 4, b"data"));
}

#[test]
fn items_come_back_as_written() {
    let mut out = append(1, 10, &[(2, 3), (1, 4)], &[b"x", b"yy", b"zzz"]);
    let notes: [PlainItem<'_>; 8] = [
        BatchItem::Compact { group: u64::MAX, first: 11, term_before: 3 },
        BatchItem::Put { group: 2, key: b"", value: &[9; 300] },
        BatchItem::Delete { group: 2, key: b"key" },
        BatchItem::Remove { group: 3 },
        BatchItem::Discard { below_segment: 4 },
        BatchItem::Truncate { group: 5, from: 6 },
        BatchItem::Stale,
        BatchItem::Compact { group: 1, first: 2, term_before: 3 },
    ];
    notes.iter().for_each(|note| put_plain_item(&mut out, *note));
    make_stale(&mut out, 8);
    let mut input = &out[..];
    let Ok(BatchItem::Append(StoredAppend { first: 10, count: 3, offset: 0, head, bytes })) =
        take_item(&mut input)
    else {
        panic!("no append")
    };
    assert_eq!((head.group, head.first, head.count, head.stored_bytes), (1, 10, 3, 6));
    assert!(head.terms().eq([(2, 3), (1, 4)]));
    assert!(head.rows().map(|row| row.data_bytes).eq([1, 2, 3]));
    let stored = head.head_bytes..head.head_bytes + 6;
    let whole = PlacedBlock { number: 0, codec: BlockCodec::Raw, entries: 0..3, raw: 0..6, stored };
    assert!(head.blocks().eq([whole]));
    assert_eq!(bytes, &out[..head.head_bytes + 6]);
    for note in notes[..7].iter().chain([&BatchItem::Stale]) {
        let item = take_item(&mut input).expect("it was written so");
        let found: PlainItem<'_> = item.map(|_| panic!("there is one append"), |bytes| bytes);
        assert_eq!(found, *note);
    }
    assert!(input.is_empty());
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
        let blocks = [0..1, 1..3, 3..5].map(|range: Range<usize>| DataBlock {
            entries: range.len() as u64,
            codec: BlockCodec::Raw,
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
            let codec = BlockCodec::Raw;
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
    let block = |entries, stored_bytes| DataBlock { entries, codec: BlockCodec::Raw, stored_bytes };
    let with = |blocks: &[DataBlock]| {
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
            let BatchItem::Move(moved) = item else { panic!("no move") };
            assert_eq!((&out[moved.offset..], moved.bytes), (&inner[..], &inner[..]));
            assert_eq!((moved.first, moved.count), (first, count));
            moved.head.terms_of(first, count).into_vec()
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
    let blocks = [(2, BlockCodec::Raw, 3), (1, BlockCodec::Lz4, 3)]
        .map(|(entries, codec, stored_bytes)| DataBlock { entries, codec, stored_bytes });
    let mut packed = Vec::new();
    put_head_with_blocks(&mut packed, &whole, &head, &blocks);
    packed.extend_from_slice(b"xyyzzz");
    let mut whole = packed;
    put_plain_item(&mut whole, BatchItem::Put { group: 2, key: b"key", value: &[9; 30] });
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
}
