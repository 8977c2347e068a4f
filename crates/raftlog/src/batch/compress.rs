//! Compresses the data of large appends, in the caller's thread, when a batch is complete.
//!
//! Incompressible data stays as it is; to find that out takes about a tenth of the time that
//! compressing takes.

use crate::batch::frame::{Append, Change};
use crate::batch::log_batch::LogBatch;
use crate::format::block::{BLOCK_BYTES, BlockCodec, DataBlock};
use crate::format::item::{self, AppendHead};
use lz4_flex::block::get_maximum_output_size as bytes_max;
use lz4_flex::block::{CompressTable, compress_into, compress_into_with_table};
use parking_lot::Mutex;
use std::fmt;

/// A compressed block must be smaller than its data by at least one part in this many.
const LEAST_SAVING: usize = 8;
/// Buffers that are larger are not kept.
const KEPT_BYTES_MAX: usize = 1 << 20;
/// How many sets of buffers are kept: more threads than that seldom compress at once.
const KEPT_COUNT_MAX: usize = 8;

/// Compresses batches, and keeps the buffers for it.
#[derive(Debug)]
pub(crate) struct Compressor {
    /// Appends with more data than this are compressed.
    above_bytes: u64,
    kept: Mutex<Vec<CompressBuffers>>,
}

/// The buffers to compress one batch.
struct CompressBuffers {
    table: CompressTable,
    blocks: Vec<DataBlock>,
    /// The data of all blocks of one append, as it will be stored.
    packed: Vec<u8>,
    /// The compressed batch.
    bytes: Vec<u8>,
}

impl Compressor {
    pub(crate) fn new(above_bytes: u64) -> Compressor {
        Compressor { above_bytes, kept: Mutex::default() }
    }

    /// Compresses the appends of the batch that are large enough and become smaller.
    pub(crate) fn compress(&self, batch: &mut LogBatch) {
        let is_large = |change: &Change| match change {
            Change::Append(append) => u64::from(append.item_bytes) > self.above_bytes,
            _ => false,
        };
        if !batch.changes.iter().any(is_large) {
            return;
        }
        let kept = self.kept.lock().pop();
        let mut buffers = kept.unwrap_or_default();
        buffers.compress(batch, self.above_bytes);
        if buffers.bytes.capacity().max(buffers.packed.capacity()) <= KEPT_BYTES_MAX {
            let mut kept = self.kept.lock();
            if kept.len() < KEPT_COUNT_MAX {
                kept.push(buffers);
            }
        }
    }
}

impl CompressBuffers {
    fn compress(&mut self, batch: &mut LogBatch, above_bytes: u64) {
        self.bytes.clear();
        let mut copied = 0;
        for change in &mut batch.changes {
            let append = match change {
                Change::Append(append) => append,
                Change::Move(moved) => {
                    moved.offset = (self.bytes.len() + moved.offset as usize - copied) as u32;
                    continue;
                }
                _ => continue,
            };
            let begin = append.offset as usize;
            let end = begin + append.item_bytes as usize;
            let before = &batch.bytes[copied..begin];
            if u64::from(append.item_bytes) <= above_bytes
                || !self.append(append, before, &batch.bytes[begin..end], above_bytes)
            {
                append.offset = (self.bytes.len() + begin - copied) as u32;
                continue;
            }
            copied = end;
        }
        if copied > 0 {
            self.bytes.extend_from_slice(&batch.bytes[copied..]);
            std::mem::swap(&mut self.bytes, &mut batch.bytes);
        }
    }

    /// Writes `before` and the append, if compression pays.
    fn append(
        &mut self,
        append: &mut Append,
        before: &[u8],
        item: &[u8],
        above_bytes: u64,
    ) -> bool {
        let head = AppendHead::decode(item).expect("the batch was encoded here");
        if head.stored_bytes <= above_bytes || !self.pack(&head, &item[head.head_bytes..]) {
            return false;
        }
        self.bytes.extend_from_slice(before);
        let begin = self.bytes.len();
        item::put_head_with_blocks(&mut self.bytes, item, &head, &self.blocks);
        self.bytes.extend_from_slice(&self.packed);
        append.offset = begin as u32;
        append.item_bytes = (self.bytes.len() - begin) as u32;
        true
    }

    /// Packs the data of all entries. False if no block becomes smaller.
    fn pack(&mut self, head: &AppendHead<'_>, mut data: &[u8]) -> bool {
        self.packed.clear();
        self.blocks.clear();
        let mut rows = head.rows().peekable();
        while let Some(row) = rows.next() {
            let (mut entries, mut raw_bytes) = (1, row.data_bytes);
            while let Some(row) = rows.next_if(|row| raw_bytes + row.data_bytes <= BLOCK_BYTES) {
                entries += 1;
                raw_bytes += row.data_bytes;
            }
            let (raw, rest) = data.split_at(raw_bytes as usize);
            data = rest;
            let begin = self.packed.len();
            let codec = self.pack_block(raw);
            let stored_bytes = (self.packed.len() - begin) as u64;
            self.blocks.push(DataBlock { entries, codec, stored_bytes });
        }
        assert!(data.is_empty(), "{} bytes are in no block", data.len());
        debug_assert_eq!(self.blocks.iter().map(|b| b.entries).sum::<u64>(), head.count);
        debug_assert_eq!(
            self.blocks.iter().map(|block| block.stored_bytes).sum::<u64>(),
            self.packed.len() as u64,
            "the block table says less or more than is stored"
        );
        self.blocks.iter().any(|block| block.codec != BlockCodec::Raw)
    }

    fn pack_block(&mut self, raw: &[u8]) -> BlockCodec {
        let begin = self.packed.len();
        self.packed.resize(begin + bytes_max(raw.len()), 0);
        let out = &mut self.packed[begin..];
        // The kept table is for offsets of 16 bits. It would be replaced by one that is larger and
        // slower to clear, and the bytes made would depend on earlier batches.
        let compressed = if raw.len() < usize::from(u16::MAX) {
            compress_into_with_table(raw, out, &mut self.table)
        } else {
            compress_into(raw, out)
        };
        let stored_bytes = compressed.expect("there is room for the worst case");
        if stored_bytes + raw.len() / LEAST_SAVING < raw.len() {
            self.packed.truncate(begin + stored_bytes);
            return BlockCodec::Lz4;
        }
        self.packed.truncate(begin);
        self.packed.extend_from_slice(raw);
        BlockCodec::Raw
    }
}

impl Default for CompressBuffers {
    fn default() -> CompressBuffers {
        let (blocks, packed, bytes) = (Vec::new(), Vec::new(), Vec::new());
        CompressBuffers { table: CompressTable::small(), blocks, packed, bytes }
    }
}

impl fmt::Debug for CompressBuffers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Buffers").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::log_batch::Entry;
    use crate::format::layout::FRAME_HEADER_BYTES;
    use crate::format::lz4;

    fn entry(index: u64, len: usize, seed: Option<u64>) -> Entry {
        let mut data = b"some words, ".repeat(len / 12 + 1)[..len].to_vec();
        if let Some(seed) = seed {
            fastrand::Rng::with_seed(seed).fill(&mut data);
        }
        Entry { index, term: 1 + index / 3, kind: 0, data: data.into() }
    }

    /// The data of all entries of an append, as it was before.
    fn unpack(item: &[u8]) -> Vec<u8> {
        let head = AppendHead::decode(item).expect("a head");
        let (mut at, mut data) = (head.head_bytes, Vec::new());
        for block in head.blocks() {
            let stored = &item[block.stored.clone()];
            at += stored.len();
            match block.codec {
                BlockCodec::Raw => data.extend_from_slice(stored),
                BlockCodec::Lz4 => data.extend(
                    lz4::decompress(stored, block.raw_bytes(), block.raw_bytes(), 0)
                        .expect("whole"),
                ),
            }
        }
        assert_eq!(at, item.len());
        data
    }

    fn append(batch: &LogBatch, at: usize) -> (&Append, &[u8]) {
        let (Change::Append(append) | Change::Move(append)) = &batch.changes[at] else {
            panic!("no append")
        };
        (append, &batch.bytes[append.offset as usize..][..append.item_bytes as usize])
    }

    #[test]
    fn all_sizes_come_back_whether_or_not_they_become_smaller() {
        let compressor = Compressor::new(100);
        let mut rng = fastrand::Rng::with_seed(1);
        let sizes =
            [0, 1, 90, 99, 101, 300, 5_000, 16_383, 16_384, 16_385, 65_534, 65_535, 200_000];
        for round in 0..200 {
            let entries: Vec<Entry> = (5..5 + rng.u64(1..6))
                .map(|index| {
                    entry(index, rng.choice(sizes).expect("one"), rng.bool().then_some(round))
                })
                .collect();
            let mut batch = LogBatch::new();
            batch.append(1, &entries);
            let plain = append(&batch, 0).1.to_vec();
            compressor.compress(&mut batch);
            let (change, item) = append(&batch, 0);
            assert_eq!((change.offset, batch.bytes.len()), (40, 40 + item.len()));
            let (before, after) = (AppendHead::decode(&plain), AppendHead::decode(item));
            let (before, after) = (before.expect("a head"), after.expect("a head"));
            assert!(before.rows().eq(after.rows()) && before.terms().eq(after.terms()));
            assert_eq!(
                (before.group, before.first, before.count),
                (after.group, after.first, after.count)
            );
            assert_eq!(unpack(item), plain[before.head_bytes..]);
            assert!(item.len() <= plain.len());
        }
    }

    #[test]
    fn golden_bytes_of_a_compressed_append() {
        let mut batch = LogBatch::new();
        let entry =
            |index, data: &[u8]| Entry { index, term: 2, kind: 3, data: data.to_vec().into() };
        batch.append(7, &[entry(1, &[b'a'; 40])]);
        Compressor::new(30).compress(&mut batch);
        let golden = [
            1, 27, 0, 0, 0, 7, 1, 1, 1, 1, 2, 1, // tag, length of the head, .. , terms, flags
            0xbe, 0x94, 0x12, 0x44, 3, 40, // row: checksum, kind, end of the data
            1, 1, 0, 0, 0, 12, 0, 0,
            0, // block: codec, end of its entries, of its stored bytes
            0x1f, b'a', 1, 0, 14, // one literal, then 33 bytes from one byte before
            0x60, b'a', b'a', b'a', b'a', b'a', b'a', // six literals
        ];
        assert_eq!(append(&batch, 0).1, golden);
        assert_eq!(unpack(&golden), [b'a'; 40]);
    }

    #[test]
    fn a_block_has_whole_entries_and_is_about_so_large() {
        let compressor = Compressor::new(0);
        let mut batch = LogBatch::new();
        let sizes = [2_000, 2_000, 1_000, 50_000, 3_900, 90, 300];
        let entries: Vec<_> =
            sizes.iter().zip(1..).map(|(len, index)| entry(index, *len, None)).collect();
        batch.append(1, &entries);
        compressor.compress(&mut batch);
        let head = AppendHead::decode(append(&batch, 0).1).expect("a head");
        assert!(head.blocks().all(|block| block.codec == BlockCodec::Lz4));
        assert!(head.blocks().map(|block| block.entries).eq([0..2, 2..3, 3..4, 4..6, 6..7]));
    }

    #[test]
    fn only_large_appends_change_and_all_are_where_the_batch_says() {
        let mut batch = LogBatch::new();
        batch.append(9, &[entry(1, 3_000, None)]);
        let moved = batch.bytes[FRAME_HEADER_BYTES..].to_vec();
        let build = |batch: &mut LogBatch| {
            batch.put(1, b"k", b"v");
            batch.append(1, &[entry(1, 500, None)]);
            batch.append(2, &[entry(1, 2_000, None), entry(2, 2_000, None)]);
            batch.append(3, &[entry(1, 2_000, Some(1))]);
            batch.put(1, b"l", b"w");
            batch.move_entries(1, 1, &moved).expect("an append");
            batch.append(4, &[entry(1, 4_000, None)]);
            batch.remove_group(7);
        };
        let (mut plain, mut batch) = (LogBatch::new(), LogBatch::new());
        build(&mut plain);
        build(&mut batch);
        Compressor::new(1_000).compress(&mut batch);
        for (at, is_smaller) in [(1, false), (2, true), (3, false), (5, false), (6, true)] {
            let (was, is) = (append(&plain, at).1, append(&batch, at).1);
            assert_eq!(is != was, is_smaller, "change {at}");
            assert!(unpack(is) == unpack(was), "change {at}");
        }
        let mut input = &batch.bytes[FRAME_HEADER_BYTES..];
        for change in &batch.changes {
            let offset = (batch.bytes.len() - input.len()) as u32;
            let found = Change::of(item::take_item(&mut input).expect("an item"), offset);
            assert_eq!(format!("{found:?}"), format!("{change:?}"));
        }
        assert!(input.is_empty());
        let (mut off, bytes) = (LogBatch::new(), plain.bytes.clone());
        build(&mut off);
        Compressor::new(u64::MAX).compress(&mut off);
        assert_eq!(off.bytes, bytes);
    }
}
