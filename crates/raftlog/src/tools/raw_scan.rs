//! A raw scan of a segment: every whole frame, in order, and the damage between and behind them.
//! For tools that read damaged logs.
//!
//! Behind a damaged frame the scan searches for the next whole one: header and body match their
//! checksums under the segment's salt and its number is higher than those before. A copy of older
//! frames, which a client may have stored as data, does not pass.

use crate::format::layout::{ALIGNMENT_BYTES, FrameHeader, SEGMENT_HEADER_BYTES, SegmentHeader};
use std::ops::Range;

/// Iterates over the parts of a segment's file.
#[derive(Debug)]
pub(crate) struct RawScan<'a> {
    bytes: &'a [u8],
    segment: SegmentHeader,
    offset: usize,
    last_lsn: u64,
}

/// A part of a segment.
#[derive(Debug, PartialEq)]
pub(crate) enum SegmentPart<'a> {
    Frame(ValidFrame<'a>),
    /// No frame is whole here. The header is given if that is whole.
    Damage {
        range: Range<usize>,
        header: Option<FrameHeader>,
        what: &'static str,
        /// No whole frame is behind it. The last part is always such a one, perhaps empty.
        is_last: bool,
    },
}

/// A frame that matches its checksums.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct ValidFrame<'a> {
    pub(crate) offset: usize,
    pub(crate) header: FrameHeader,
    /// The body without its padding.
    pub(crate) items: &'a [u8],
}

impl<'a> RawScan<'a> {
    /// `bytes` is the whole file, or all before its footer.
    pub(crate) fn new(bytes: &'a [u8], segment: SegmentHeader) -> RawScan<'a> {
        RawScan { bytes, segment, offset: SEGMENT_HEADER_BYTES, last_lsn: 0 }
    }

    fn header(&self, at: usize) -> Result<FrameHeader, &'static str> {
        let rest = self.bytes.get(at..).unwrap_or_default();
        FrameHeader::decode_batch(rest, self.segment, |lsn| lsn > self.last_lsn)
    }

    fn frame(&self, at: usize) -> Result<ValidFrame<'a>, &'static str> {
        let header = self.header(at)?;
        Ok(ValidFrame { offset: at, header, items: header.items(&self.bytes[at..])? })
    }
}

impl<'a> Iterator for RawScan<'a> {
    type Item = SegmentPart<'a>;

    fn next(&mut self) -> Option<SegmentPart<'a>> {
        let begin = self.offset;
        if begin > self.bytes.len() {
            return None;
        }
        let what = match self.frame(begin) {
            Ok(frame) => {
                self.offset += frame.header.frame_bytes();
                self.last_lsn = frame.header.lsn;
                return Some(SegmentPart::Frame(frame));
            }
            Err(what) => what,
        };
        // The body of a frame is data, and may hold bytes that look like a frame.
        let header = self.header(begin).ok();
        let from = begin + header.map_or(ALIGNMENT_BYTES, |header| header.frame_bytes());
        let next =
            (from..self.bytes.len()).step_by(ALIGNMENT_BYTES).find(|at| self.frame(*at).is_ok());
        self.offset = next.unwrap_or(self.bytes.len() + 1);
        let range = begin..next.unwrap_or(self.bytes.len());
        Some(SegmentPart::Damage { range, header, what, is_last: next.is_none() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::item;
    use crate::format::layout::{self, FrameKind};

    const SEGMENT: SegmentHeader =
        SegmentHeader { segment: 3, salt: 9, is_reused: false, reduced_at_lsn: 0 };

    /// A segment with frames of these numbers, and where each begins.
    fn segment(lsns: &[u64]) -> (Vec<u8>, Vec<usize>) {
        let (mut bytes, mut begins) = (SEGMENT.encode().to_vec(), Vec::new());
        for lsn in lsns {
            begins.push(bytes.len());
            bytes.extend(frame(*lsn, &[*lsn as u8; 100]));
        }
        begins.push(bytes.len());
        bytes.resize(bytes.len() + 96, 0);
        (bytes, begins)
    }

    fn frame(lsn: u64, value: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        item::put_plain_item(&mut body, item::BatchItem::Put { group: 1, key: b"k", value });
        layout::pad(&mut body);
        let header = FrameHeader {
            kind: FrameKind::Batch,
            body_bytes: body.len() as u32,
            segment: SEGMENT.segment,
            lsn,
            synced_lsn: lsn - 1,
            body_checksum: layout::body_checksum(&body),
        };
        [&header.encode(SEGMENT.salt)[..], &body].concat()
    }

    fn shape(bytes: &[u8]) -> Vec<(char, Range<usize>)> {
        let shape = |piece| match piece {
            SegmentPart::Frame(f) => ('f', f.offset..f.offset + f.header.frame_bytes()),
            SegmentPart::Damage { range, is_last, .. } => (if is_last { 'r' } else { 'd' }, range),
        };
        RawScan::new(bytes, SEGMENT).map(shape).collect()
    }

    #[test]
    fn every_byte_is_in_one_piece_whatever_is_damaged() {
        let (mut bytes, at) = segment(&[5, 6, 7]);
        let len = bytes.len();
        let whole =
            [('f', at[0]..at[1]), ('f', at[1]..at[2]), ('f', at[2]..at[3]), ('r', at[3]..len)];
        assert_eq!(shape(&bytes), whole);
        for offset in at[0]..at[3] {
            bytes[offset] ^= 0x10;
            let hit = at.iter().rposition(|begin| *begin <= offset).expect("in a frame");
            let mut damaged = whole.to_vec();
            if hit == 2 {
                damaged.pop();
                damaged[2] = ('r', at[2]..len);
            } else {
                damaged[hit].0 = 'd';
            }
            assert_eq!(shape(&bytes), damaged, "byte {offset}");
            bytes[offset] ^= 0x10;
        }
        for cut in [64, 70, at[1], at[1] + 5, at[2] - 8] {
            let pieces = shape(&bytes[..cut]);
            assert_eq!(pieces.last().expect("a rest").1.end, cut);
            assert_eq!(pieces[0].1.start, 64);
            assert!(pieces.windows(2).all(|pair| pair[0].1.end == pair[1].1.start));
        }
        assert!(shape(&bytes[..10]).is_empty());
    }

    #[test]
    fn frames_that_are_data_are_not_taken_for_frames() {
        let (bytes, at) = segment(&[5]);
        let mut copied = bytes[..at[1]].to_vec();
        // Older frames, stored as data; also where the header around them is damaged.
        copied.extend(frame(6, &[&[0; 4], &bytes[64..at[1]]].concat()));
        copied.extend(frame(7, b"x"));
        let outer = at[1]..copied.len() - frame(7, b"x").len();
        copied[outer.start + 1] ^= 1;
        assert_eq!(shape(&copied)[1], ('d', outer));
    }
}
