//! The layout of a segment: its header, and the header and padding of each frame.
//!
//! `docs/log-format.md` has the drawings and the argument for each crash. In short: a segment is a
//! header of 64 bytes and frames one after the other; a frame is a header of 40 bytes and a body;
//! all numbers are little-endian; every frame begins at a multiple of eight. The bytes of a header
//! are counted in `docs/decisions/0030-small-entries-stay-as-they-are.md`.
//!
//! Invariants:
//! - A frame's length is believed only after the header's own checksum matched.
//! - The last byte of a frame is never zero, and neither is its first: where zeros were before, a
//!   torn frame can be distinguished from a whole one.
//! - A segment's number is never given to another file that holds frames of it, so a frame that
//!   names its segment, under that segment's salt, was written in this life of the file.

use crc32c::{crc32c, crc32c_append};

/// The offset of the first frame of a segment.
pub(crate) const SEGMENT_HEADER_BYTES: usize = 64;
/// The length of a frame's header.
pub(crate) const FRAME_HEADER_BYTES: usize = 40;
/// The alignment of frames: they begin and end at multiples of it.
pub(crate) const ALIGNMENT_BYTES: usize = 8;
/// The unit in which a disk keeps or loses unsynced bytes.
pub(crate) const SECTOR_BYTES: usize = 512;

const SEGMENT_MAGIC: [u8; 8] = *b"flotilog";
const FORMAT_VERSION: u32 = 2;
/// The file is recycled: behind the frames any bytes may stand.
const FLAG_REUSED: u32 = 1;
/// The frames are gone: the file is this header and a footer with their tombstones.
const FLAG_REDUCED: u32 = 2;
const SEGMENT_CHECKSUM_AT: usize = SEGMENT_HEADER_BYTES - 4;

const FRAME_MAGIC: u16 = 0xf10e;
const KIND_BATCH: u8 = 1;
const KIND_FOOTER: u8 = 2;
const FRAME_CHECKSUM_AT: usize = FRAME_HEADER_BYTES - 4;

/// High half of each byte of padding; the low half is their number. More than one bit is set, so a
/// single flipped bit never makes a frame look torn.
const PADDING: u8 = 0xa0;

const _: () = assert!(SEGMENT_HEADER_BYTES.is_multiple_of(ALIGNMENT_BYTES));
const _: () = assert!(FRAME_HEADER_BYTES.is_multiple_of(ALIGNMENT_BYTES));
const _: () = assert!(SECTOR_BYTES.is_multiple_of(ALIGNMENT_BYTES));
const _: () = assert!(ALIGNMENT_BYTES < 16, "the count of padding bytes has four bits");

/// The header of a segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SegmentHeader {
    /// The segment's number, which is also its name.
    pub(crate) segment: u64,
    /// Goes into the checksums of the segment's frames.
    pub(crate) salt: u64,
    /// Whether the file is recycled. Behind the frames are then the bytes of an earlier segment;
    /// otherwise zeros.
    pub(crate) is_reused: bool,
    /// The last frame of the whole log when the segment was reduced to its tombstones; it was on
    /// disk by then. Zero: the segment has its frames.
    pub(crate) reduced_at_lsn: u64,
}

impl SegmentHeader {
    pub(crate) fn encode(&self) -> [u8; SEGMENT_HEADER_BYTES] {
        assert!(self.segment > 0, "segments are counted from 1");
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        bytes[..8].copy_from_slice(&SEGMENT_MAGIC);
        bytes[8..12].copy_from_slice(&FORMAT_VERSION.to_le_bytes());
        let reused = if self.is_reused { FLAG_REUSED } else { 0 };
        let reduced = if self.is_reduced() { FLAG_REDUCED } else { 0 };
        bytes[12..16].copy_from_slice(&(reused | reduced).to_le_bytes());
        bytes[16..24].copy_from_slice(&self.segment.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.reduced_at_lsn.to_le_bytes());
        bytes[32..40].copy_from_slice(&self.salt.to_le_bytes());
        let checksum = crc32c(&bytes[..SEGMENT_CHECKSUM_AT]);
        bytes[SEGMENT_CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<SegmentHeader, &'static str> {
        let bytes = bytes.get(..SEGMENT_HEADER_BYTES).ok_or("the segment's header is cut short")?;
        if u32_at(bytes, SEGMENT_CHECKSUM_AT) != crc32c(&bytes[..SEGMENT_CHECKSUM_AT]) {
            return Err("the segment's header fails its checksum");
        }
        if bytes[..8] != SEGMENT_MAGIC {
            return Err("the file is no segment");
        }
        if u32_at(bytes, 8) != FORMAT_VERSION {
            return Err("the segment has a format that this version does not know");
        }
        let flags = u32_at(bytes, 12);
        if flags & !(FLAG_REUSED | FLAG_REDUCED) != 0 {
            return Err("the segment has a flag that this version does not know");
        }
        let header = SegmentHeader {
            segment: u64_at(bytes, 16),
            salt: u64_at(bytes, 32),
            is_reused: flags & FLAG_REUSED != 0,
            reduced_at_lsn: u64_at(bytes, 24),
        };
        if header.is_reduced() != (flags & FLAG_REDUCED != 0) {
            return Err("the segment's header contradicts its flags");
        }
        Ok(header)
    }

    /// Whether the frames are gone, and the footer holds only tombstones.
    pub(crate) fn is_reduced(&self) -> bool {
        self.reduced_at_lsn > 0
    }

    /// As [`SegmentHeader::decode`], of the file with this segment's name.
    pub(crate) fn decode_named(bytes: &[u8], segment: u64) -> Result<SegmentHeader, &'static str> {
        match SegmentHeader::decode(bytes)? {
            header if header.segment == segment => Ok(header),
            _ => Err("the segment has another segment's name"),
        }
    }
}

/// The kind of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FrameKind {
    Batch,
    /// The end of a sealed segment. It has the number that the next batch gets.
    Footer,
}

impl SegmentHeader {
    /// The fields of a header that fails its checksum. Frames that match theirs confirm the salt.
    pub(crate) fn guess(segment: u64, bytes: &[u8]) -> Option<SegmentHeader> {
        let salt = u64_at(bytes.get(..SEGMENT_HEADER_BYTES)?, 32);
        Some(SegmentHeader { segment, salt, is_reused: true, reduced_at_lsn: 0 })
    }
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FrameHeader {
    pub(crate) kind: FrameKind,
    /// Length of the body with its padding.
    pub(crate) body_bytes: u32,
    /// The segment that the frame was written to.
    pub(crate) segment: u64,
    /// The frame's sequence number; one more than that of the frame before.
    pub(crate) lsn: u64,
    /// Every frame up to this one was known to be synced when this one was written.
    pub(crate) synced_lsn: u64,
    /// Checksum of the body with its padding.
    pub(crate) body_checksum: u32,
}

impl FrameHeader {
    pub(crate) fn encode(&self, salt: u64) -> [u8; FRAME_HEADER_BYTES] {
        // A reader refuses such headers, and would take the log for corrupt.
        let is_aligned = (self.body_bytes as usize).is_multiple_of(ALIGNMENT_BYTES);
        debug_assert!(self.body_bytes > 0 && is_aligned, "{self:?}");
        debug_assert!(self.synced_lsn < self.lsn, "{self:?}");
        let mut bytes = [0; FRAME_HEADER_BYTES];
        bytes[..2].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
        bytes[2] = match self.kind {
            FrameKind::Batch => KIND_BATCH,
            FrameKind::Footer => KIND_FOOTER,
        };
        bytes[4..8].copy_from_slice(&self.body_bytes.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.segment.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.lsn.to_le_bytes());
        bytes[24..32].copy_from_slice(&self.synced_lsn.to_le_bytes());
        bytes[32..36].copy_from_slice(&self.body_checksum.to_le_bytes());
        let checksum = salted(salt, &bytes[..FRAME_CHECKSUM_AT]);
        bytes[FRAME_CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8], salt: u64) -> Result<FrameHeader, &'static str> {
        let bytes = bytes.get(..FRAME_HEADER_BYTES).ok_or("a frame's header is cut short")?;
        // The magic is compared first because that is cheap: a search tries many offsets.
        if bytes[..2] != FRAME_MAGIC.to_le_bytes() {
            return Err("no frame begins here");
        }
        if u32_at(bytes, FRAME_CHECKSUM_AT) != salted(salt, &bytes[..FRAME_CHECKSUM_AT]) {
            return Err("a frame's header fails its checksum");
        }
        let kind = match (bytes[2], bytes[3]) {
            (KIND_BATCH, 0) => FrameKind::Batch,
            (KIND_FOOTER, 0) => FrameKind::Footer,
            _ => return Err("a frame has a kind that this version does not know"),
        };
        let body_bytes = u32_at(bytes, 4);
        if body_bytes == 0 || !(body_bytes as usize).is_multiple_of(ALIGNMENT_BYTES) {
            return Err("a frame's length is not a multiple of eight");
        }
        Ok(FrameHeader {
            kind,
            body_bytes,
            segment: u64_at(bytes, 8),
            lsn: u64_at(bytes, 16),
            synced_lsn: u64_at(bytes, 24),
            body_checksum: u32_at(bytes, 32),
        })
    }

    /// As [`FrameHeader::decode`], of a batch of this segment whose sequence number may be next.
    pub(crate) fn decode_batch(
        bytes: &[u8],
        segment: SegmentHeader,
        is_next: impl Fn(u64) -> bool,
    ) -> Result<FrameHeader, &'static str> {
        let header = FrameHeader::decode(bytes, segment.salt)?;
        if header.segment != segment.segment || header.kind != FrameKind::Batch {
            return Err("no batch of this segment begins here");
        }
        let is_next = is_next(header.lsn) && header.lsn < u64::MAX;
        if !is_next || header.synced_lsn >= header.lsn {
            return Err("a frame's sequence number is not the next");
        }
        Ok(header)
    }

    /// The body of the whole frame that `bytes` begin with, without its padding.
    pub(crate) fn items<'a>(&self, bytes: &'a [u8]) -> Result<&'a [u8], &'static str> {
        let body = bytes.get(FRAME_HEADER_BYTES..self.frame_bytes());
        let body = body.ok_or("a frame goes beyond the end of the file")?;
        if body_checksum(body) != self.body_checksum {
            return Err("a frame's body fails its checksum");
        }
        unpad(body)
    }

    /// The length of the whole frame.
    pub(crate) fn frame_bytes(&self) -> usize {
        FRAME_HEADER_BYTES + self.body_bytes as usize
    }
}

/// Whether a frame may begin at any multiple of eight of the bytes, judging by the magic alone.
pub(crate) fn may_begin_frame(bytes: &[u8]) -> bool {
    let (words, _) = bytes.as_chunks::<ALIGNMENT_BYTES>();
    // Without branches, so that the compiler can vectorize the loop: the difference is zero where
    // the magic is, and only zero less one has its highest bit set.
    let found = words.iter().fold(0, |found, word| {
        let differs = (u64::from_le_bytes(*word) ^ u64::from(FRAME_MAGIC)) & 0xffff;
        found | differs.wrapping_sub(1)
    });
    found >> 63 == 1
}

/// The version of a whole segment header of another format version. Magic, version and checksum
/// have the same offsets in all versions.
pub(crate) fn other_version(bytes: &[u8]) -> Option<u32> {
    let bytes = bytes.get(..SEGMENT_HEADER_BYTES)?;
    let is_whole = u32_at(bytes, SEGMENT_CHECKSUM_AT) == crc32c(&bytes[..SEGMENT_CHECKSUM_AT]);
    let version = u32_at(bytes, 8);
    (is_whole && bytes[..8] == SEGMENT_MAGIC && version != FORMAT_VERSION).then_some(version)
}

/// The length of the trailer, which ends a footer and the file.
pub(crate) const TRAILER_BYTES: usize = 32;
const TRAILER_MAGIC: [u8; 8] = *b"flotfoot";
const TRAILER_CHECKSUM_AT: usize = TRAILER_BYTES - 4;

/// The trailer of a sealed segment: its last bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) segment: u64,
    /// The offset of the footer's frame.
    pub(crate) footer_offset: u64,
    /// The length of the summary, at the beginning of the footer's body.
    pub(crate) summary_bytes: u32,
}

impl Trailer {
    pub(crate) fn encode(&self, salt: u64) -> [u8; TRAILER_BYTES] {
        let mut bytes = [0; TRAILER_BYTES];
        bytes[..8].copy_from_slice(&TRAILER_MAGIC);
        bytes[8..16].copy_from_slice(&self.segment.to_le_bytes());
        bytes[16..24].copy_from_slice(&self.footer_offset.to_le_bytes());
        bytes[24..28].copy_from_slice(&self.summary_bytes.to_le_bytes());
        let checksum = salted(salt, &bytes[..TRAILER_CHECKSUM_AT]);
        bytes[TRAILER_CHECKSUM_AT..].copy_from_slice(&checksum.to_le_bytes());
        bytes
    }

    /// The trailer, if it is one and whole.
    pub(crate) fn decode(bytes: &[u8], salt: u64) -> Option<Trailer> {
        let bytes = bytes.get(..TRAILER_BYTES)?;
        let is_whole = bytes[..8] == TRAILER_MAGIC
            && u32_at(bytes, TRAILER_CHECKSUM_AT) == salted(salt, &bytes[..TRAILER_CHECKSUM_AT]);
        is_whole.then(|| Trailer {
            segment: u64_at(bytes, 8),
            footer_offset: u64_at(bytes, 16),
            summary_bytes: u32_at(bytes, 24),
        })
    }
}

/// Pads a body to a multiple of eight. There is always padding, so that the last byte is never
/// zero.
pub(crate) fn pad(body: &mut Vec<u8>) {
    let count = ALIGNMENT_BYTES - body.len() % ALIGNMENT_BYTES;
    body.resize(body.len() + count, PADDING | count as u8);
    debug_assert!(body.len().is_multiple_of(ALIGNMENT_BYTES), "{count} bytes of padding");
}

/// The items of a body, without its padding.
pub(crate) fn unpad(body: &[u8]) -> Result<&[u8], &'static str> {
    const WRONG: &str = "a frame's padding is wrong";
    let last = *body.last().ok_or(WRONG)?;
    let count = (last ^ PADDING) as usize;
    if count == 0 || count > ALIGNMENT_BYTES || count > body.len() {
        return Err(WRONG);
    }
    let (items, padding) = body.split_at(body.len() - count);
    if padding.iter().any(|byte| *byte != last) { Err(WRONG) } else { Ok(items) }
}

/// The checksum of a frame's body.
pub(crate) fn body_checksum(body: &[u8]) -> u32 {
    crc32c(body)
}

/// The checksum of a body, continued: `checksum` is that of all bytes before `piece`; 0 if there
/// are none.
pub(crate) fn body_checksum_append(checksum: u32, piece: &[u8]) -> u32 {
    crc32c_append(checksum, piece)
}

fn salted(salt: u64, bytes: &[u8]) -> u32 {
    crc32c_append(crc32c(&salt.to_le_bytes()), bytes)
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes were taken"))
}

fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_le_bytes(bytes[at..at + 8].try_into().expect("eight bytes were taken"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SEGMENT: SegmentHeader = SegmentHeader {
        segment: 3,
        salt: 0x1122_3344_5566_7788,
        is_reused: true,
        reduced_at_lsn: 0,
    };
    const FRAME: FrameHeader = FrameHeader {
        kind: FrameKind::Batch,
        body_bytes: 16,
        segment: 3,
        lsn: 0x0102_0305,
        synced_lsn: 0x0102_0303,
        body_checksum: 0xdead_beef,
    };

    #[test]
    fn golden_bytes_of_a_segment_header() {
        let mut golden = [0; 64];
        golden[..8].copy_from_slice(b"flotilog");
        golden[8] = 2;
        golden[12] = 1;
        golden[16] = 3;
        golden[32..40].copy_from_slice(&[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        golden[60..].copy_from_slice(&[0x48, 0xda, 0x91, 0xcb]);
        assert_eq!(SEGMENT.encode(), golden);
        assert_eq!(SegmentHeader::decode(&golden), Ok(SEGMENT));
    }

    #[test]
    fn golden_bytes_of_the_header_of_a_reduced_segment() {
        let reduced = SegmentHeader { is_reused: false, reduced_at_lsn: 0x0908, ..SEGMENT };
        let mut golden = [0; 64];
        golden[..8].copy_from_slice(b"flotilog");
        golden[8] = 2;
        golden[12] = 2;
        golden[16] = 3;
        golden[24..26].copy_from_slice(&[8, 9]);
        golden[32..40].copy_from_slice(&[0x88, 0x77, 0x66, 0x55, 0x44, 0x33, 0x22, 0x11]);
        let checksum = crc32c(&golden[..60]);
        golden[60..].copy_from_slice(&checksum.to_le_bytes());
        assert_eq!(reduced.encode(), golden);
        assert_eq!(SegmentHeader::decode(&golden), Ok(reduced));
        // The flag without the number, and the number without the flag.
        for (at, byte) in [(24, 0), (12, 0)] {
            let mut wrong = golden;
            (wrong[at], wrong[25]) = (byte, if at == 24 { 0 } else { 9 });
            let checksum = crc32c(&wrong[..60]);
            wrong[60..].copy_from_slice(&checksum.to_le_bytes());
            let refused = SegmentHeader::decode(&wrong);
            assert_eq!(refused, Err("the segment's header contradicts its flags"));
        }
    }

    #[test]
    fn golden_bytes_of_a_frame_header() {
        let golden = [
            0x0e, 0xf1, 1, 0, 16, 0, 0, 0, // magic, kind, flags, length
            3, 0, 0, 0, 0, 0, 0, 0, // segment
            5, 3, 2, 1, 0, 0, 0, 0, // lsn
            3, 3, 2, 1, 0, 0, 0, 0, // synced lsn
            0xef, 0xbe, 0xad, 0xde, 0x24, 0xe7, 0xbf, 0x6b, // checksums of body and header
        ];
        assert_eq!(FRAME.encode(SEGMENT.salt), golden);
        assert_eq!(FrameHeader::decode(&golden, SEGMENT.salt), Ok(FRAME));
    }

    #[test]
    fn golden_bytes_of_a_trailer() {
        let trailer = Trailer { segment: 3, footer_offset: 0x0102_0304, summary_bytes: 0x99 };
        let mut golden = [0; 32];
        golden[..8].copy_from_slice(b"flotfoot");
        golden[8] = 3;
        golden[16..20].copy_from_slice(&[4, 3, 2, 1]);
        golden[24] = 0x99;
        golden[28..].copy_from_slice(&[0x7f, 0xea, 0xfa, 0x16]);
        assert_eq!(trailer.encode(SEGMENT.salt), golden);
        assert_eq!(Trailer::decode(&golden, SEGMENT.salt), Some(trailer));
        for bit in 0..golden.len() * 8 {
            golden[bit / 8] ^= 1 << (bit % 8);
            assert_eq!(Trailer::decode(&golden, SEGMENT.salt), None, "bit {bit}");
            golden[bit / 8] ^= 1 << (bit % 8);
        }
        assert_eq!(Trailer::decode(&golden, 1), None, "of another salt");
        let footer = FrameHeader { kind: FrameKind::Footer, ..FRAME };
        assert_eq!(footer.encode(1)[2], 2);
        assert_eq!(FrameHeader::decode(&footer.encode(1), 1), Ok(footer));
    }

    #[test]
    fn any_flipped_bit_of_a_header_is_seen() {
        for bit in 0..SEGMENT_HEADER_BYTES * 8 {
            let mut bytes = SEGMENT.encode();
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(SegmentHeader::decode(&bytes).is_err(), "bit {bit}");
        }
        for bit in 0..FRAME_HEADER_BYTES * 8 {
            let mut bytes = FRAME.encode(9);
            bytes[bit / 8] ^= 1 << (bit % 8);
            assert!(FrameHeader::decode(&bytes, 9).is_err(), "bit {bit}");
        }
    }

    #[test]
    fn a_frame_is_valid_only_under_its_segments_salt() {
        assert!(FrameHeader::decode(&FRAME.encode(1), 2).is_err());
        assert!(FrameHeader::decode(&FRAME.encode(1)[..39], 1).is_err());
        assert!(FrameHeader::decode(&[], 1).is_err());
        assert!(SegmentHeader::decode(&SEGMENT.encode()[..63]).is_err());
    }

    #[test]
    fn the_beginning_of_a_frame_is_seen_at_every_multiple_of_eight() {
        for len in [0, 7, 8, 100, 256] {
            let mut bytes = vec![0xf1; len];
            assert!(!may_begin_frame(&bytes), "{len}");
            for at in 0..len.saturating_sub(7) {
                bytes[at..at + 2].copy_from_slice(&FRAME_MAGIC.to_le_bytes());
                assert_eq!(may_begin_frame(&bytes), at % 8 == 0, "{at} of {len}");
                bytes.fill(0);
            }
        }
        assert!(may_begin_frame(&FRAME.encode(1)));
    }

    #[test]
    fn padding_goes_on_and_comes_off() {
        for len in 0..40_usize {
            let mut body = vec![0; len];
            pad(&mut body);
            assert_eq!(body.len() % ALIGNMENT_BYTES, 0);
            assert!(body.len() > len && *body.last().expect("padded") != 0);
            assert_eq!(unpad(&body), Ok(&vec![0; len][..]));
            for at in len..body.len() {
                let mut wrong = body.clone();
                wrong[at] ^= 1;
                assert!(unpad(&wrong).is_err(), "length {len}, byte {at}");
            }
        }
        assert!(unpad(&[]).is_err());
        assert!(unpad(&[0xa2]).is_err());
    }
}
