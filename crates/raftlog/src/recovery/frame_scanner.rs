//! The frame scanner: the frames of one segment, in order, and the rule that tells a torn tail from
//! corruption.
//!
//! A frame is accepted if its header and body match their checksums, it names this segment and its
//! number is the next. Behind the last accepted frame the log goes on in the next segment, ends,
//! was torn, or is corrupt. If it does not go on:
//!
//! - A frame further on, in this segment or a later one, has a `synced_lsn` that covers the missing
//!   one: corrupt. Frames of one flush may reach the disk in any order, so the presence of a later
//!   frame proves nothing; its `synced_lsn` does.
//! - The damage is not of the kind that a power loss leaves: corrupt. In a file that is used for
//!   the first time there were zeros before, and a disk writes a sector whole or not at all. So a
//!   torn frame has a sector of zeros in it, or breaks off and is zero from there on.
//! - Otherwise the log ends or was torn. A torn frame was never acknowledged as synced, and no
//!   frame behind it either. In a recycled file these two look alike unless a header of the file's
//!   present life is left.

use crate::format::layout::{
    self, ALIGNMENT_BYTES, FRAME_HEADER_BYTES, FrameHeader, FrameKind, SECTOR_BYTES,
    SEGMENT_HEADER_BYTES, SegmentHeader,
};
use std::ops::Range;

/// How many bytes are searched at once for the beginning of a frame.
const SEARCH_BYTES: usize = 256;

/// Iterates over the frames of a segment.
#[derive(Debug)]
pub(crate) struct FrameScanner<'a> {
    bytes: &'a [u8],
    header: SegmentHeader,
    offset: usize,
    next_lsn: u64,
    /// The highest `synced_lsn` of the accepted frames.
    synced_lsn: u64,
}

/// A frame that was accepted.
#[derive(Debug, PartialEq)]
pub(crate) struct ScannedFrame<'a> {
    pub(crate) lsn: u64,
    pub(crate) offset: usize,
    pub(crate) items: &'a [u8],
}

impl<'a> FrameScanner<'a> {
    /// `bytes` is the whole file, and `next_lsn` the number that its first frame must have.
    pub(crate) fn new(bytes: &'a [u8], header: SegmentHeader, next_lsn: u64) -> FrameScanner<'a> {
        FrameScanner { bytes, header, offset: SEGMENT_HEADER_BYTES, next_lsn, synced_lsn: 0 }
    }

    /// Goes on at `offset`, behind frames that were accepted before.
    pub(crate) fn resume(self, offset: usize) -> FrameScanner<'a> {
        debug_assert!(offset >= self.offset, "back to {offset} from {}", self.offset);
        FrameScanner { offset, ..self }
    }

    /// The offset of the next frame or, after the last one, of the end.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// The number of the next frame.
    pub(crate) fn next_lsn(&self) -> u64 {
        self.next_lsn
    }

    /// Every frame up to this one was known to be synced when one of the accepted frames was
    /// written.
    pub(crate) fn synced_lsn(&self) -> u64 {
        self.synced_lsn
    }

    /// The next frame, if one that belongs here is whole.
    pub(crate) fn step(&mut self) -> Option<ScannedFrame<'a>> {
        let rest = &self.bytes[self.offset..];
        let is_next = |lsn| lsn == self.next_lsn;
        let header = FrameHeader::decode_batch(rest, self.header, is_next).ok()?;
        let items = header.items(rest).ok()?;
        let (offset, lsn) = (self.offset, self.next_lsn);
        self.offset += header.frame_bytes();
        self.next_lsn += 1;
        self.synced_lsn = self.synced_lsn.max(header.synced_lsn);
        Some(ScannedFrame { lsn, offset, items })
    }

    /// How many bytes of frames that were being written are left behind the last accepted frame. To
    /// be asked only if the log does not go on in the next segment.
    ///
    /// # Errors
    ///
    /// The bytes there cannot be the rest of an unsynced flush after a power loss; why.
    pub(crate) fn torn_bytes(&self) -> Result<usize, &'static str> {
        let rest = &self.bytes[self.offset..];
        // The whole rest is read only where no frame begins.
        if is_zero(&rest[..rest.len().min(FRAME_HEADER_BYTES)]) && is_zero(rest) {
            return Ok(0);
        }
        let header = FrameHeader::decode(rest, self.header.salt).ok().filter(|h| self.is_ours(h));
        let belongs_here =
            |h: FrameHeader| h.segment == self.header.segment && h.lsn == self.next_lsn;
        if header.is_some_and(|header| !belongs_here(header)) {
            // A whole frame, and yet not one that was written here.
            return Err("a frame is not the one that belongs here");
        }
        if header.is_some_and(|header| header.kind == FrameKind::Footer) {
            // The segment was being sealed, so all its frames are there.
            return Ok(0);
        }
        // Inside a frame's body there is only data, which may look like anything.
        let from = self.offset + header.map_or(0, |h| h.frame_bytes());
        let behind = FrameEvidence::find(self.bytes, self.header, from);
        if behind.proves_synced(self.next_lsn) {
            return Err("a frame that was synced is damaged");
        }
        if self.header.is_reused {
            let end = behind.end.max(from).min(self.bytes.len());
            return Ok(end - self.offset);
        }
        let is_torn = match header {
            Some(header) => is_cut_short(self.bytes, self.offset, header.frame_bytes()),
            None => {
                let behind = rest.get(FRAME_HEADER_BYTES..).unwrap_or_default();
                has_zero_sector(self.bytes, self.offset..self.offset + FRAME_HEADER_BYTES)
                    || is_zero(behind)
            }
        };
        if !is_torn {
            return Err("a frame is damaged in a way that no power loss causes");
        }
        Ok(rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1))
    }

    fn is_ours(&self, header: &FrameHeader) -> bool {
        // In its first life a file holds no frames of another segment.
        header.segment == self.header.segment || !self.header.is_reused
    }
}

/// The sequence number in the header of a segment's first frame, if that is whole.
pub(crate) fn first_lsn(bytes: &[u8], header: SegmentHeader) -> Option<u64> {
    let first = own_header(bytes, header, SEGMENT_HEADER_BYTES)?;
    (first.kind == FrameKind::Batch).then_some(first.lsn)
}

/// Whether a frame of the segment proves that `lsn` was synced before it was written.
pub(crate) fn proves_synced(bytes: &[u8], header: SegmentHeader, lsn: u64) -> bool {
    FrameEvidence::find(bytes, header, SEGMENT_HEADER_BYTES).proves_synced(lsn)
}

/// How many bytes behind the segment's header are known to be of frames, whole or not, that were
/// written to it: none if it was only preallocated.
pub(crate) fn touched_bytes(bytes: &[u8], header: SegmentHeader) -> usize {
    let rest = &bytes[SEGMENT_HEADER_BYTES..];
    if header.is_reused {
        let end = FrameEvidence::find(bytes, header, SEGMENT_HEADER_BYTES).end.min(bytes.len());
        end.saturating_sub(SEGMENT_HEADER_BYTES)
    } else if is_zero(rest) {
        0
    } else {
        rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
    }
}

/// The header of a frame that was written to this segment, if there is a whole one at `at`.
fn own_header(bytes: &[u8], header: SegmentHeader, at: usize) -> Option<FrameHeader> {
    let frame = FrameHeader::decode(bytes.get(at..)?, header.salt).ok()?;
    (frame.segment == header.segment).then_some(frame)
}

/// Evidence from the whole frame headers of this segment, wherever they lie.
#[derive(Debug, Default, PartialEq)]
struct FrameEvidence {
    /// The highest `synced_lsn` of them.
    synced_lsn: Option<u64>,
    /// The end of the last one, which may be beyond the end of the file; zero if there is none.
    end: usize,
}

impl FrameEvidence {
    /// Tries every offset from `from` on at which a frame may begin.
    fn find(bytes: &[u8], header: SegmentHeader, from: usize) -> FrameEvidence {
        let mut evidence = FrameEvidence::default();
        let rest = bytes.get(from..).unwrap_or_default();
        for (at, part) in rest.chunks(SEARCH_BYTES).enumerate() {
            // Most parts hold no frame, and one test rules out all offsets of a part.
            if !layout::may_begin_frame(part) {
                continue;
            }
            let begin = from + at * SEARCH_BYTES;
            for at in (begin..begin + part.len()).step_by(ALIGNMENT_BYTES) {
                if let Some(frame) = own_header(bytes, header, at) {
                    evidence.synced_lsn = evidence.synced_lsn.max(Some(frame.synced_lsn));
                    evidence.end = evidence.end.max(at + frame.frame_bytes());
                }
            }
        }
        evidence
    }

    /// Whether one of them proves that `lsn` was synced before it was written.
    fn proves_synced(&self, lsn: u64) -> bool {
        self.synced_lsn.is_some_and(|synced| synced >= lsn)
    }
}

/// Whether part of the frame was never written, judging by zeros where a whole frame has none.
fn is_cut_short(bytes: &[u8], offset: usize, frame_bytes: usize) -> bool {
    let end = offset.saturating_add(frame_bytes);
    let last_byte = bytes.get(end - 1).copied().unwrap_or(0);
    last_byte == 0 || has_zero_sector(bytes, offset..end)
}

/// Whether any sector has only zeros in its part of the range. Bytes beyond the end count as zero.
pub(crate) fn has_zero_sector(bytes: &[u8], range: Range<usize>) -> bool {
    let mut at = range.start;
    while at < range.end {
        let next = (at / SECTOR_BYTES + 1) * SECTOR_BYTES;
        let part = bytes.get(at..next.min(range.end).min(bytes.len())).unwrap_or_default();
        if is_zero(part) {
            return true;
        }
        at = next;
    }
    false
}

fn is_zero(bytes: &[u8]) -> bool {
    static ZEROS: [u8; 4096] = [0; 4096];
    // In whole pages: most of an active segment is not written yet.
    bytes.chunks(ZEROS.len()).all(|chunk| chunk == &ZEROS[..chunk.len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::item;

    const HEADER: SegmentHeader =
        SegmentHeader { segment: 7, salt: 5, is_reused: false, reduced_at_lsn: 0 };
    const REUSED: SegmentHeader = SegmentHeader { is_reused: true, ..HEADER };
    const FIRST_LSN: u64 = 20;

    /// A segment of 4 KiB with frames of these synced lsns, and where each one begins.
    fn segment(synced_lsns: &[u64]) -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut begins) = (HEADER.encode().to_vec(), Vec::new());
        for (lsn, synced_lsn) in (FIRST_LSN..).zip(synced_lsns) {
            let mut body = Vec::new();
            let (key, value) = (&b"key"[..], &[lsn as u8 | 1; 600][..]);
            item::put_plain_item(&mut body, item::BatchItem::Put { group: lsn, key, value });
            layout::pad(&mut body);
            let header = FrameHeader {
                kind: FrameKind::Batch,
                body_bytes: body.len() as u32,
                segment: HEADER.segment,
                lsn,
                synced_lsn: *synced_lsn,
                body_checksum: layout::body_checksum(&body),
            };
            begins.push(bytes.len());
            bytes.extend_from_slice(&header.encode(HEADER.salt));
            bytes.extend_from_slice(&body);
        }
        begins.push(bytes.len());
        bytes.resize(4096, 0);
        (bytes, begins)
    }

    /// How many frames are accepted, and whether what follows is torn.
    fn verdict_of(bytes: &[u8], header: SegmentHeader) -> (usize, Result<bool, &'static str>) {
        let mut scan = FrameScanner::new(bytes, header, FIRST_LSN);
        let count = std::iter::from_fn(|| scan.step()).count();
        (count, scan.torn_bytes().map(|torn_bytes| torn_bytes > 0))
    }

    fn verdict(bytes: &[u8]) -> (usize, Result<bool, &'static str>) {
        verdict_of(bytes, HEADER)
    }

    #[test]
    fn frames_are_followed_to_the_end() {
        let (bytes, begins) = segment(&[19, 19, 20]);
        assert_eq!(verdict(&bytes), (3, Ok(false)));
        assert_eq!(verdict(&bytes[..begins[3]]), (3, Ok(false)), "a file without room behind");
        let mut scan = FrameScanner::new(&bytes, HEADER, FIRST_LSN);
        let frame = scan.step().expect("a frame");
        assert_eq!((frame.lsn, frame.offset, scan.next_lsn()), (20, 64, 21));
        assert_eq!((scan.offset(), scan.synced_lsn()), (begins[1], 19));
    }

    #[test]
    fn any_sectors_of_an_unsynced_flush_may_be_lost() {
        // Three frames of which no sync is known; each set of lost sectors leaves a prefix.
        let (whole, begins) = segment(&[19, 19, 19]);
        let sectors = begins[3].div_ceil(SECTOR_BYTES);
        for lost in 0..1_u32 << sectors {
            let mut bytes = whole.clone();
            for sector in (0..sectors).filter(|sector| lost >> sector & 1 == 1) {
                let range = sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES;
                bytes[range.start.max(SEGMENT_HEADER_BYTES)..range.end].fill(0);
            }
            let first_lost = lost.trailing_zeros() as usize * SECTOR_BYTES;
            let whole_frames = begins[1..].iter().filter(|end| **end <= first_lost).count();
            let (count, verdict) = verdict(&bytes);
            assert_eq!(count, whole_frames, "lost {lost:b}");
            assert!(verdict.is_ok(), "lost {lost:b}: {verdict:?}");
        }
    }

    #[test]
    fn a_write_that_broke_off_anywhere_is_torn() {
        let (whole, begins) = segment(&[19, 19]);
        for end in begins[0]..begins[2] {
            let mut bytes = whole.clone();
            bytes[end..].fill(0);
            let whole_frames = usize::from(end >= begins[1]);
            let is_torn = whole[begins[whole_frames]..end].iter().any(|byte| *byte != 0);
            assert_eq!(verdict(&bytes), (whole_frames, Ok(is_torn)), "broke off at {end}");
            // And if the file was cut there instead.
            assert_eq!(verdict(&whole[..end]), (whole_frames, Ok(is_torn)), "cut at {end}");
        }
    }

    #[test]
    fn a_lost_sector_of_a_synced_frame_is_corruption() {
        let (whole, begins) = segment(&[19, 20]);
        for sector in 1..begins[1] / SECTOR_BYTES {
            let mut bytes = whole.clone();
            bytes[sector * SECTOR_BYTES..(sector + 1) * SECTOR_BYTES].fill(0);
            let (count, verdict) = verdict(&bytes);
            assert_eq!((count, verdict), (0, Err("a frame that was synced is damaged")));
        }
    }

    #[test]
    fn any_flipped_bit_is_corruption_even_in_the_last_frame() {
        let (mut bytes, begins) = segment(&[19, 19]);
        for bit in begins[1] * 8..begins[2] * 8 {
            bytes[bit / 8] ^= 1 << (bit % 8);
            let (count, verdict) = verdict(&bytes);
            assert!(count == 1 && verdict.is_err(), "bit {bit}: {verdict:?}");
            bytes[bit / 8] ^= 1 << (bit % 8);
        }
    }

    #[test]
    fn a_frame_that_belongs_elsewhere_is_corruption() {
        let (mut bytes, begins) = segment(&[19, 19, 19]);
        let third = bytes[begins[2]..begins[3]].to_vec();
        bytes[begins[1]..][..third.len()].copy_from_slice(&third);
        assert_eq!(verdict(&bytes).1, Err("a frame is not the one that belongs here"));
        let (mut bytes, begins) = segment(&[19]);
        let header = FrameHeader {
            kind: FrameKind::Batch,
            body_bytes: 8,
            segment: 6,
            lsn: 21,
            synced_lsn: 19,
            body_checksum: 0,
        };
        bytes[begins[1]..][..FRAME_HEADER_BYTES].copy_from_slice(&header.encode(HEADER.salt));
        assert_eq!(verdict(&bytes).1, Err("a frame is not the one that belongs here"));
    }

    #[test]
    fn what_a_segment_was_before_is_no_frame_of_it() {
        // The file held a log of the same salt; its frames are whole, and of another segment.
        let (mut bytes, begins) = segment(&[19, 20, 21, 22]);
        let new = SegmentHeader { segment: 8, ..REUSED };
        assert_eq!(verdict_of(&bytes, new), (0, Ok(false)));
        assert_eq!((first_lsn(&bytes, new), touched_bytes(&bytes, new)), (None, 0));
        assert!(proves_synced(&bytes, HEADER, 22) && !proves_synced(&bytes, new, 1));
        // One frame of the new life, of another length, and then two, the first of which is torn.
        for (torn, wanted) in [(false, (2, Ok(false))), (true, (0, Ok(true)))] {
            let mut at = begins[0];
            for lsn in [20, 21] {
                let mut body = vec![7; 100];
                layout::pad(&mut body);
                let (body_checksum, body_bytes) = (layout::body_checksum(&body), body.len() as u32);
                let kind = FrameKind::Batch;
                let header = FrameHeader {
                    kind,
                    body_bytes,
                    segment: 8,
                    lsn,
                    synced_lsn: 19,
                    body_checksum,
                };
                bytes[at..][..FRAME_HEADER_BYTES].copy_from_slice(&header.encode(new.salt));
                bytes[at + FRAME_HEADER_BYTES..][..body.len()].copy_from_slice(&body);
                bytes[at + FRAME_HEADER_BYTES] ^= u8::from(torn && lsn == 20);
                at += header.frame_bytes();
            }
            assert_eq!(verdict_of(&bytes, new), wanted);
            assert_eq!(touched_bytes(&bytes, new), at - begins[0]);
        }
    }

    #[test]
    fn in_a_file_used_before_only_a_later_frame_tells_that_one_was_synced() {
        let (whole, begins) = segment(&[19, 20, 21]);
        for (frame, wanted) in [
            (0, Err("a frame that was synced is damaged")),
            (1, Err("a frame that was synced is damaged")),
            (2, Ok(true)),
        ] {
            let mut bytes = whole.clone();
            bytes[begins[frame] + 300] ^= 1;
            assert_eq!(verdict_of(&bytes, REUSED), (frame, wanted));
            bytes[begins[frame] + 300] ^= 1;
            bytes[begins[frame] + 9] ^= 1;
            // Without its header the last one cannot be told from what was there before.
            let wanted = if frame == 2 { Ok(false) } else { wanted };
            assert_eq!(verdict_of(&bytes, REUSED), (frame, wanted));
        }
    }
}
