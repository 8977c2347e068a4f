//! The frames of one segment, in order, and the rule for torn tails.
//!
//! A frame is accepted if its header and body hold their checksums, it names this segment and its
//! number is the next. Where one is not accepted the log ends, was torn, or is corrupt:
//!
//! - Only zeros are left: it ends.
//! - A frame further on says that this one was known to be synced: corrupt. Frames of one flush may
//!   reach the disk in any order, so a later frame alone proves nothing; what it says does.
//! - The damage is not of the kind that a power loss leaves: corrupt. Where a frame is written there
//!   were zeros, and a disk writes a sector whole or not at all. So a torn frame has a sector of
//!   zeros in it, or breaks off and is zero from there on.
//! - Otherwise it was torn. It was never acknowledged as synced, and what comes after it neither.

use crate::format::{
    self, ALIGNMENT_BYTES, FRAME_HEADER_BYTES, FrameHeader, SECTOR_BYTES, SEGMENT_HEADER_BYTES,
    SegmentHeader,
};
use std::ops::Range;

/// Walks over the frames of a segment.
#[derive(Debug)]
pub(crate) struct Scan<'a> {
    bytes: &'a [u8],
    header: SegmentHeader,
    offset: usize,
    next_lsn: u64,
}

/// A frame that was accepted.
#[derive(Debug, PartialEq)]
pub(crate) struct ScannedFrame<'a> {
    pub(crate) lsn: u64,
    pub(crate) offset: usize,
    pub(crate) items: &'a [u8],
}

/// What comes next.
#[derive(Debug, PartialEq)]
pub(crate) enum Step<'a> {
    Frame(ScannedFrame<'a>),
    /// Nothing but zeros, or nothing at all.
    End,
    /// Something that is not a frame.
    Bad(&'static str),
}

impl<'a> Scan<'a> {
    /// `bytes` is the whole file.
    pub(crate) fn new(bytes: &'a [u8], header: SegmentHeader) -> Scan<'a> {
        Scan { bytes, header, offset: SEGMENT_HEADER_BYTES, next_lsn: header.first_lsn }
    }

    /// Where the next frame begins or, after the last one, the log ends.
    pub(crate) fn offset(&self) -> usize {
        self.offset
    }

    /// The number of the next frame.
    pub(crate) fn next_lsn(&self) -> u64 {
        self.next_lsn
    }

    /// How many bytes behind the last frame are not zero, up to the last that is not.
    pub(crate) fn rest_bytes(&self) -> usize {
        let rest = &self.bytes[self.offset..];
        rest.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1)
    }

    pub(crate) fn step(&mut self) -> Step<'a> {
        let rest = &self.bytes[self.offset..];
        // All of the rest is looked at only where no frame begins, so only once.
        if is_zero(&rest[..rest.len().min(FRAME_HEADER_BYTES)]) && is_zero(rest) {
            return Step::End;
        }
        match self.frame(rest) {
            Ok((header, items)) => {
                let (offset, lsn) = (self.offset, self.next_lsn);
                self.offset += header.frame_bytes();
                self.next_lsn += 1;
                Step::Frame(ScannedFrame { lsn, offset, items })
            }
            Err(what) => Step::Bad(what),
        }
    }

    /// After [`Step::Bad`], in the last segment: whether it is what an unsynced flush can leave
    /// behind when the power goes. If not, says why.
    pub(crate) fn judge_tail(&self) -> Result<(), &'static str> {
        let rest = &self.bytes[self.offset..];
        let header = FrameHeader::decode(rest, self.header.salt).ok();
        if header.is_some_and(|h| h.segment != self.header.segment || h.lsn != self.next_lsn) {
            // Whole, and yet not what was written here.
            return Err("a frame is not the one that belongs here");
        }
        // Inside a frame's body there is only data, which may look like anything.
        let frame_bytes = header.map_or(ALIGNMENT_BYTES, |h| h.frame_bytes());
        if self.is_known_synced(self.offset.saturating_add(frame_bytes)) {
            return Err("a frame that was synced is damaged");
        }
        let is_torn = match header {
            Some(header) => is_cut_short(self.bytes, self.offset, header.frame_bytes()),
            None => {
                let behind = rest.get(FRAME_HEADER_BYTES..).unwrap_or_default();
                has_zero_sector(self.bytes, self.offset..self.offset + FRAME_HEADER_BYTES)
                    || is_zero(behind)
            }
        };
        if is_torn { Ok(()) } else { Err("a frame is damaged in a way that no power loss causes") }
    }

    /// Whether a frame from `from` on says that the next one was synced before.
    fn is_known_synced(&self, from: usize) -> bool {
        (from..self.bytes.len()).step_by(ALIGNMENT_BYTES).any(|at| {
            FrameHeader::decode(&self.bytes[at..], self.header.salt).is_ok_and(|header| {
                header.segment == self.header.segment && header.synced_lsn >= self.next_lsn
            })
        })
    }

    fn frame(&self, rest: &'a [u8]) -> Result<(FrameHeader, &'a [u8]), &'static str> {
        let header = FrameHeader::decode(rest, self.header.salt)?;
        if header.segment != self.header.segment {
            return Err("a frame belongs to another segment");
        }
        if header.lsn != self.next_lsn || header.synced_lsn >= header.lsn {
            return Err("a frame's sequence number is not the next");
        }
        let body = rest
            .get(FRAME_HEADER_BYTES..header.frame_bytes())
            .ok_or("a frame goes beyond the end of the file")?;
        if format::body_checksum(body) != header.body_checksum {
            return Err("a frame's body fails its checksum");
        }
        Ok((header, format::unpad(body)?))
    }
}

/// Whether part of the frame was never written, judging by zeros where there can be none.
fn is_cut_short(bytes: &[u8], offset: usize, frame_bytes: usize) -> bool {
    let end = offset.saturating_add(frame_bytes);
    let last_byte = bytes.get(end - 1).copied().unwrap_or(0);
    last_byte == 0 || has_zero_sector(bytes, offset..end)
}

/// Whether any sector has only zeros in its part of the range. What is beyond the end counts as
/// zero.
fn has_zero_sector(bytes: &[u8], range: Range<usize>) -> bool {
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
    // Whole pages at once: what is not used yet of a segment is most of it.
    bytes.chunks(ZEROS.len()).all(|chunk| chunk == &ZEROS[..chunk.len()])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::item;

    const HEADER: SegmentHeader = SegmentHeader { segment: 7, first_lsn: 20, salt: 5 };

    /// A segment of 4 KiB with frames of these synced lsns, and where each one begins.
    fn segment(synced_lsns: &[u64]) -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut begins) = (HEADER.encode().to_vec(), Vec::new());
        for (lsn, synced_lsn) in (HEADER.first_lsn..).zip(synced_lsns) {
            let mut body = Vec::new();
            item::put_put(&mut body, lsn, b"key", &[lsn as u8 | 1; 600]);
            format::pad(&mut body);
            let header = FrameHeader {
                body_bytes: body.len() as u32,
                segment: HEADER.segment,
                lsn,
                synced_lsn: *synced_lsn,
                body_checksum: format::body_checksum(&body),
            };
            begins.push(bytes.len());
            bytes.extend_from_slice(&header.encode(HEADER.salt));
            bytes.extend_from_slice(&body);
        }
        begins.push(bytes.len());
        bytes.resize(4096, 0);
        (bytes, begins)
    }

    /// How many frames are accepted, and the verdict on what follows.
    fn verdict(bytes: &[u8]) -> (usize, Result<bool, &'static str>) {
        let mut scan = Scan::new(bytes, HEADER);
        let mut count = 0;
        loop {
            match scan.step() {
                Step::Frame(_) => count += 1,
                Step::End => return (count, Ok(false)),
                Step::Bad(_) => return (count, scan.judge_tail().map(|()| true)),
            }
        }
    }

    #[test]
    fn frames_are_followed_to_the_end() {
        let (bytes, begins) = segment(&[19, 19, 20]);
        assert_eq!(verdict(&bytes), (3, Ok(false)));
        assert_eq!(verdict(&bytes[..begins[3]]), (3, Ok(false)), "a file without room behind");
        let mut scan = Scan::new(&bytes, HEADER);
        let Step::Frame(frame) = scan.step() else { panic!("no frame") };
        assert_eq!((frame.lsn, frame.offset, scan.next_lsn()), (20, 64, 21));
        assert_eq!((scan.offset(), scan.rest_bytes()), (begins[1], begins[3] - begins[1]));
    }

    #[test]
    fn any_sectors_of_an_unsynced_flush_may_be_lost() {
        // Three frames that nobody knew to be synced; each set of lost sectors leaves a prefix.
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
        let header =
            FrameHeader { body_bytes: 8, segment: 6, lsn: 21, synced_lsn: 19, body_checksum: 0 };
        bytes[begins[1]..][..FRAME_HEADER_BYTES].copy_from_slice(&header.encode(HEADER.salt));
        assert_eq!(verdict(&bytes).1, Err("a frame is not the one that belongs here"));
    }
}
