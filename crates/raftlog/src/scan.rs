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
    let (chunks, rest) = bytes.as_chunks::<64>();
    chunks.iter().all(|chunk| *chunk == [0; 64]) && rest.iter().all(|byte| *byte == 0)
}
