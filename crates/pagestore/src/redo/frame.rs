//! Frames: the unit of append to the redo area, cut into self-describing sectors.
//!
//! ```text
//! | 0x52 | 0 u24 | crc32c u32 | position u64 | body bytes u64 | checkpoint u64 | last txid u64 |
//! | crc32c of the body u32 | 0 u32 | body ... to the end of the first sector
//! | 0x72 | body ...      the 511 bytes of each further sector; the last is filled with zeros
//! ```
//!
//! The first byte of a sector tells the beginning of a frame from its rest, so that no byte that a
//! caller puts into a store can look like a frame.

use crate::page::{u32_at, u64_at};

/// The unit that a disk writes whole or not at all; frames begin on its multiples.
pub(crate) const SECTOR_BYTES: usize = 512;

const BEGIN: u8 = 0x52;
const REST: u8 = 0x72;

const CRC_AT: usize = 4;
const POSITION_AT: usize = CRC_AT + 4;
const BODY_BYTES_AT: usize = POSITION_AT + 8;
const CHECKPOINT_AT: usize = BODY_BYTES_AT + 8;
const LAST_AT: usize = CHECKPOINT_AT + 8;
const BODY_CRC_AT: usize = LAST_AT + 8;
const HEAD_BYTES: usize = BODY_CRC_AT + 8;

const FIRST_BYTES: usize = SECTOR_BYTES - HEAD_BYTES;
const REST_BYTES: usize = SECTOR_BYTES - 1;

/// The header in the first sector of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct RedoFrameHeader {
    /// Where it stands: how many bytes were appended before it since there is a redo area.
    pub(crate) position: u64,
    /// The number of the last durable checkpoint when it was written.
    pub(crate) checkpoint: u64,
    /// The last transaction in it.
    pub(crate) last_txid: u64,
    body_bytes: u64,
    body_crc: u32,
}

/// Bytes of a frame with a body of `body_bytes`.
pub(crate) fn frame_bytes(body_bytes: u64) -> u64 {
    let rest = body_bytes.saturating_sub(FIRST_BYTES as u64).div_ceil(REST_BYTES as u64);
    // The length may have been read from a file.
    rest.saturating_add(1).saturating_mul(SECTOR_BYTES as u64)
}

/// Memory of a frame, aligned to a sector, so that it can be written with direct I/O.
#[derive(Debug, Default)]
pub(crate) struct SectorBuffer {
    memory: Vec<u8>,
    start: usize,
}

impl SectorBuffer {
    /// The frame.
    pub(crate) fn bytes(&self) -> &[u8] {
        &self.memory[self.start..]
    }

    /// Makes place for a frame of `frame_bytes`, and begins with zeros for its head.
    fn begin(&mut self, frame_bytes: usize) -> &mut Vec<u8> {
        self.memory.clear();
        self.memory.reserve(frame_bytes + SECTOR_BYTES);
        // Where the alignment cannot be found out it may lie anywhere.
        let aligned = self.memory.as_ptr().align_offset(SECTOR_BYTES);
        self.start = if aligned < SECTOR_BYTES { aligned } else { 0 };
        self.memory.resize(self.start + HEAD_BYTES, 0);
        &mut self.memory
    }
}

/// Encodes a frame into `out`, whatever that holds.
pub(crate) fn encode(
    out: &mut SectorBuffer,
    position: u64,
    checkpoint: u64,
    last_txid: u64,
    body: &[u8],
) {
    let frame_bytes = frame_bytes(body.len() as u64) as usize;
    let memory = out.begin(frame_bytes);
    let start = memory.len() - HEAD_BYTES;
    let head = &mut memory[start..];
    head[0] = BEGIN;
    let fields = [position, body.len() as u64, checkpoint, last_txid];
    for (field, at) in fields.into_iter().zip((POSITION_AT..).step_by(8)) {
        head[at..at + 8].copy_from_slice(&field.to_le_bytes());
    }
    head[BODY_CRC_AT..BODY_CRC_AT + 4].copy_from_slice(&crc32c::crc32c(body).to_le_bytes());
    let crc = crc32c::crc32c(&head[POSITION_AT..]);
    head[CRC_AT..POSITION_AT].copy_from_slice(&crc.to_le_bytes());
    let (first, rest) = body.split_at(body.len().min(FIRST_BYTES));
    memory.extend_from_slice(first);
    for piece in rest.chunks(REST_BYTES) {
        memory.push(REST);
        memory.extend_from_slice(piece);
    }
    memory.resize(start + frame_bytes, 0);
}

impl RedoFrameHeader {
    /// The header in a sector, if it is the first of a frame, whole.
    pub(crate) fn decode(sector: &[u8]) -> Option<RedoFrameHeader> {
        let head = sector.get(..HEAD_BYTES)?;
        let crc = crc32c::crc32c(&head[POSITION_AT..]);
        if head[0] != BEGIN || u32_at(head, CRC_AT) != crc {
            return None;
        }
        Some(RedoFrameHeader {
            position: u64_at(head, POSITION_AT),
            checkpoint: u64_at(head, CHECKPOINT_AT),
            last_txid: u64_at(head, LAST_AT),
            body_bytes: u64_at(head, BODY_BYTES_AT),
            body_crc: u32_at(head, BODY_CRC_AT),
        })
    }

    /// Bytes of the whole frame.
    pub(crate) fn frame_bytes(&self) -> u64 {
        frame_bytes(self.body_bytes)
    }

    /// The body of the frame, if all of its sectors are whole.
    pub(crate) fn body(&self, frame: &[u8]) -> Option<Vec<u8>> {
        let mut body = Vec::with_capacity(frame.len());
        let (first, rest) = frame.split_at_checked(SECTOR_BYTES)?;
        body.extend_from_slice(&first[HEAD_BYTES..]);
        for sector in rest.chunks(SECTOR_BYTES) {
            if sector[0] != REST {
                return None;
            }
            body.extend_from_slice(&sector[1..]);
        }
        let len = usize::try_from(self.body_bytes).ok()?;
        if body.len() < len {
            return None;
        }
        body.truncate(len);
        (crc32c::crc32c(&body) == self.body_crc).then_some(body)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn frame(body: &[u8]) -> Vec<u8> {
        let mut out = SectorBuffer { memory: vec![3; 700], start: 7 };
        encode(&mut out, 1024, 5, 99, body);
        assert!(cfg!(miri) || out.bytes().as_ptr().addr().is_multiple_of(SECTOR_BYTES));
        out.bytes().to_vec()
    }

    #[test]
    fn every_length_comes_back() {
        for len in [0, 1, FIRST_BYTES, FIRST_BYTES + 1, FIRST_BYTES + REST_BYTES, 5000] {
            let body: Vec<u8> = (0..len).map(|i| i as u8).collect();
            let frame = frame(&body);
            let head = RedoFrameHeader::decode(&frame).unwrap();
            assert_eq!((head.position, head.checkpoint, head.last_txid), (1024, 5, 99));
            assert_eq!(head.frame_bytes(), frame.len() as u64);
            assert_eq!(frame.len() % SECTOR_BYTES, 0);
            assert_eq!(head.body(&frame), Some(body));
        }
    }

    #[test]
    fn each_flipped_bit_of_head_and_body_is_seen() {
        let body = [5; 1000];
        let good = frame(&body);
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 4;
            let found = RedoFrameHeader::decode(&bad).and_then(|head| head.body(&bad));
            // Bytes 1 to 3 and the padding say nothing.
            let padding = good.len() - (2 * SECTOR_BYTES - HEAD_BYTES - 1 + REST_BYTES - 1000);
            let is_silent = (1..4).contains(&at) || at >= padding;
            assert_eq!(found.is_some(), is_silent, "byte {at}");
        }
    }

    #[test]
    fn a_body_cannot_look_like_a_frame() {
        let inner = frame(b"forged").repeat(8);
        for shift in 0..SECTOR_BYTES {
            let frame = frame(&inner[shift..]);
            let heads = frame.chunks(SECTOR_BYTES).filter(|s| RedoFrameHeader::decode(s).is_some());
            assert_eq!(heads.count(), 1);
        }
    }

    #[test]
    fn a_length_that_cannot_be_is_longer_than_any_frame() {
        let mut sector = frame(b"body");
        for len in [u64::MAX, u64::MAX - 600, u64::MAX / 512 * 511] {
            sector[BODY_BYTES_AT..CHECKPOINT_AT].copy_from_slice(&len.to_le_bytes());
            let crc = crc32c::crc32c(&sector[POSITION_AT..HEAD_BYTES]);
            sector[CRC_AT..POSITION_AT].copy_from_slice(&crc.to_le_bytes());
            let head = RedoFrameHeader::decode(&sector).unwrap();
            assert!(head.frame_bytes() > 1 << 60, "{len}");
            assert_eq!(head.body(&sector), None);
        }
    }
}
