//! Blocks: the data of a large append, cut between entries and compressed piece by piece.
//!
//! One entry is read by decompressing one block. What a block says of itself is believed only as
//! far as its stored bytes can hold it, and what comes out is proved by the entries' checksums.

use crate::config::BATCH_BYTES_CEILING;

/// About how much raw data goes into a block. A larger entry is a block by itself.
pub(crate) const BLOCK_BYTES: u64 = 16 << 10;

/// No sequence of lz4 makes more of one byte than this.
const RATIO_MAX: u64 = 255;

/// How the bytes of a block are stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Codec {
    Raw,
    Lz4,
}

/// The data of some consecutive entries of an append.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Block {
    pub(crate) entries: u64,
    pub(crate) codec: Codec,
    pub(crate) stored_bytes: u64,
}

impl Codec {
    pub(crate) fn number(self) -> u8 {
        match self {
            Codec::Raw => 0,
            Codec::Lz4 => 1,
        }
    }

    pub(crate) fn of(number: u8) -> Result<Codec, &'static str> {
        match number {
            0 => Ok(Codec::Raw),
            1 => Ok(Codec::Lz4),
            _ => Err("a block has a codec that this version does not know"),
        }
    }
}

impl Block {
    /// Whether its entries can have so much data. Only then may so much be allocated for it.
    pub(crate) fn can_hold(&self, raw_bytes: u64) -> bool {
        match self.codec {
            Codec::Raw => raw_bytes == self.stored_bytes,
            Codec::Lz4 => {
                let most = self.stored_bytes.saturating_mul(RATIO_MAX);
                raw_bytes <= most.min(BATCH_BYTES_CEILING)
            }
        }
    }
}

/// The raw bytes of a block that is compressed.
pub(crate) fn decompress(stored: &[u8], raw_bytes: usize) -> Result<Vec<u8>, &'static str> {
    let mut raw = vec![0; raw_bytes];
    match lz4_flex::block::decompress_into(stored, &mut raw) {
        Ok(count) if count == raw_bytes => Ok(raw),
        _ => Err("a block cannot be decompressed"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_believed_that_cannot_be() {
        let block = |codec, stored_bytes| Block { entries: 1, codec, stored_bytes };
        assert!(block(Codec::Raw, 10).can_hold(10) && !block(Codec::Raw, 10).can_hold(11));
        assert!(block(Codec::Lz4, 10).can_hold(2550) && !block(Codec::Lz4, 10).can_hold(2551));
        assert!(!block(Codec::Lz4, u64::MAX).can_hold(BATCH_BYTES_CEILING + 1));
        // The most that lz4 makes of anything: one byte over and over.
        let zeros = vec![0; 1 << 20];
        let stored = lz4_flex::block::compress(&zeros);
        assert!(block(Codec::Lz4, stored.len() as u64).can_hold(zeros.len() as u64));
        assert!(zeros.len() > stored.len() * 250, "{} bytes", stored.len());
        assert_eq!(decompress(&stored, zeros.len()), Ok(zeros));
    }

    #[test]
    fn no_bytes_whatever_make_it_panic() {
        let stored = lz4_flex::block::compress(&b"some words, some more words, and some".repeat(9));
        let mut rng = fastrand::Rng::with_seed(1);
        for _ in 0..20_000 {
            let mut bytes = stored.clone();
            for _ in 0..rng.usize(1..4) {
                let at = rng.usize(..bytes.len());
                bytes[at] = rng.u8(..);
            }
            bytes.truncate(rng.usize(..=bytes.len()));
            let raw_bytes = rng.usize(..500);
            assert!(
                decompress(&bytes, raw_bytes).is_ok_and(|raw| raw.len() == raw_bytes)
                    || decompress(&bytes, raw_bytes).is_err()
            );
        }
        assert!(decompress(&stored, 332).is_err() && decompress(&stored, 334).is_err());
    }
}
