//! Sparse file content: bytes with holes, and the space that they take.

use std::ops::Range;
use std::sync::Arc;

/// The unit in which the disk gives out space.
pub(super) const BLOCK_BYTES: u64 = 4096;

/// One block of a file.
#[derive(Clone, Debug)]
enum SparseBlock {
    /// Takes no space and reads as zero.
    Hole,
    /// Takes space and reads as zero.
    Reserved,
    /// Written. Copies of a disk share it until one of them writes it again.
    Data(Arc<[u8; BLOCK_BYTES as usize]>),
}

/// Bytes from 0 to `len`; what was never written reads as zero.
#[derive(Clone, Debug, Default)]
pub(super) struct SparseBytes {
    blocks: Vec<SparseBlock>,
    len: u64,
}

impl SparseBytes {
    pub(super) fn len(&self) -> u64 {
        self.len
    }

    /// Where the last block ends that was written; zero if there is none.
    pub(super) fn data_end(&self) -> u64 {
        let last = self.blocks.iter().rposition(|block| matches!(block, SparseBlock::Data(_)));
        last.map_or(0, |last| ((last as u64 + 1) * BLOCK_BYTES).min(self.len))
    }

    /// The space that the blocks take, in bytes.
    pub(super) fn space(&self) -> u64 {
        let taken = self.blocks.iter().filter(|block| !matches!(block, SparseBlock::Hole)).count();
        taken as u64 * BLOCK_BYTES
    }

    /// How much more space a write or a reservation of `range` would take, in bytes.
    pub(super) fn space_wanted(&self, range: &Range<u64>) -> u64 {
        let wanted = blocks_of(range)
            .filter(|&i| matches!(self.blocks.get(i), None | Some(SparseBlock::Hole)))
            .count();
        wanted as u64 * BLOCK_BYTES
    }

    /// Fills `buf` from `offset` on; beyond the end with zeros.
    pub(super) fn read(&self, buf: &mut [u8], offset: u64) {
        let mut done = 0;
        while done < buf.len() {
            let (block, from, count) = piece(offset + done as u64, buf.len() - done);
            let part = &mut buf[done..done + count];
            match self.blocks.get(block) {
                Some(SparseBlock::Data(bytes)) => part.copy_from_slice(&bytes[from..from + count]),
                _ => part.fill(0),
            }
            done += count;
        }
    }

    /// Writes `data` at `offset` and grows to its end.
    pub(super) fn write(&mut self, data: &[u8], offset: u64) {
        self.grow(offset + data.len() as u64);
        let mut done = 0;
        while done < data.len() {
            let (block, from, count) = piece(offset + done as u64, data.len() - done);
            let part = &data[done..done + count];
            match &mut self.blocks[block] {
                SparseBlock::Data(bytes) => {
                    Arc::make_mut(bytes)[from..from + count].copy_from_slice(part);
                }
                empty => {
                    let mut bytes = [0; BLOCK_BYTES as usize];
                    bytes[from..from + count].copy_from_slice(part);
                    *empty = SparseBlock::Data(Arc::new(bytes));
                }
            }
            done += count;
        }
    }

    /// Takes space for `range` and grows to its end.
    pub(super) fn reserve(&mut self, range: &Range<u64>) {
        self.grow(range.end);
        for i in blocks_of(range) {
            if matches!(self.blocks[i], SparseBlock::Hole) {
                self.blocks[i] = SparseBlock::Reserved;
            }
        }
    }

    /// Gives up the space of `range`, which begins and ends with a block.
    pub(super) fn punch(&mut self, range: &Range<u64>) {
        for i in blocks_of(range) {
            if let Some(block) = self.blocks.get_mut(i) {
                *block = SparseBlock::Hole;
            }
        }
    }

    /// Cuts or grows to `len`. Bytes that are cut off are gone: growing again reads zeros.
    pub(super) fn set_len(&mut self, len: u64) {
        if len < self.len {
            self.blocks.truncate(len.div_ceil(BLOCK_BYTES) as usize);
            let (last, from, _) = piece(len, 0);
            if let Some(SparseBlock::Data(bytes)) = self.blocks.get_mut(last) {
                Arc::make_mut(bytes)[from..].fill(0);
            }
            self.len = len;
        } else {
            self.grow(len);
        }
    }

    fn grow(&mut self, len: u64) {
        let count = len.div_ceil(BLOCK_BYTES) as usize;
        if count > self.blocks.len() {
            self.blocks.resize(count, SparseBlock::Hole);
        }
        self.len = self.len.max(len);
    }
}

/// The blocks that `range` touches.
fn blocks_of(range: &Range<u64>) -> Range<usize> {
    if range.is_empty() {
        return 0..0;
    }
    (range.start / BLOCK_BYTES) as usize..range.end.div_ceil(BLOCK_BYTES) as usize
}

/// The block at `offset`, the place in it, and how many of `wanted` bytes it holds.
fn piece(offset: u64, wanted: usize) -> (usize, usize, usize) {
    let from = (offset % BLOCK_BYTES) as usize;
    ((offset / BLOCK_BYTES) as usize, from, wanted.min(BLOCK_BYTES as usize - from))
}
