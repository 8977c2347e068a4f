//! Blocks: the data of a large append, cut at entry boundaries and compressed block by block.
//!
//! One entry is read by decompressing one block. The lengths in a block's row are believed only as
//! far as its stored bytes can hold them, and the decompressed data is checked by the entries'
//! checksums.

use crate::config::BATCH_BYTES_CEILING;
use std::ops::Range;

/// The raw data of a block, about. A larger entry is a block by itself. Longer blocks compress
/// better, and make the read of one entry slower:
/// `docs/decisions/0010-small-blocks-read-in-part.md`.
pub(crate) const BLOCK_BYTES: u64 = 4 << 10;

/// The highest compression ratio of lz4.
const RATIO_MAX: u64 = 255;

/// How the bytes of a block are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum BlockCodec {
    Raw,
    Lz4,
}

/// The data of some consecutive entries of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DataBlock {
    pub(crate) entries: u64,
    pub(crate) codec: BlockCodec,
    pub(crate) stored_bytes: u64,
}

/// A block, and its location.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PlacedBlock {
    /// Its index among the blocks of the append.
    pub(crate) number: u32,
    pub(crate) codec: BlockCodec,
    /// Its entries, the first of the append being 0.
    pub(crate) entries: Range<u64>,
    /// Its range of all raw data.
    pub(crate) raw: Range<u64>,
    /// Its bytes, from the beginning of the item.
    pub(crate) stored: Range<usize>,
}

impl PlacedBlock {
    pub(crate) fn raw_bytes(&self) -> usize {
        (self.raw.end - self.raw.start) as usize
    }
}

impl BlockCodec {
    pub(crate) fn number(self) -> u8 {
        match self {
            BlockCodec::Raw => 0,
            BlockCodec::Lz4 => 1,
        }
    }

    pub(crate) fn of(number: u8) -> Result<BlockCodec, &'static str> {
        match number {
            0 => Ok(BlockCodec::Raw),
            1 => Ok(BlockCodec::Lz4),
            _ => Err("a block has a codec that this version does not know"),
        }
    }
}

impl DataBlock {
    /// Whether its entries can have this many bytes of data. Only then may they be allocated for
    /// it.
    pub(crate) fn can_hold(&self, raw_bytes: u64) -> bool {
        match self.codec {
            BlockCodec::Raw => raw_bytes == self.stored_bytes,
            BlockCodec::Lz4 => {
                let most = self.stored_bytes.saturating_mul(RATIO_MAX);
                raw_bytes <= most.min(BATCH_BYTES_CEILING)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::lz4;

    #[test]
    fn nothing_is_believed_that_cannot_be() {
        let block = |codec, stored_bytes| DataBlock { entries: 1, codec, stored_bytes };
        assert!(
            block(BlockCodec::Raw, 10).can_hold(10) && !block(BlockCodec::Raw, 10).can_hold(11)
        );
        assert!(
            block(BlockCodec::Lz4, 10).can_hold(2550) && !block(BlockCodec::Lz4, 10).can_hold(2551)
        );
        assert!(!block(BlockCodec::Lz4, u64::MAX).can_hold(BATCH_BYTES_CEILING + 1));
        // The most that lz4 makes of anything: one byte over and over.
        let zeros = vec![0; 1 << 20];
        let stored = lz4_flex::block::compress(&zeros);
        assert!(block(BlockCodec::Lz4, stored.len() as u64).can_hold(zeros.len() as u64));
        assert!(zeros.len() > stored.len() * 250, "{} bytes", stored.len());
        assert_eq!(lz4::decompress(&stored, zeros.len(), zeros.len(), 0), Ok(zeros));
    }
}
