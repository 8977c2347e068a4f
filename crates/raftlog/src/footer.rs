//! The footer of a sealed segment: a frame that reaches to the end of the file and holds the
//! segment's summary.
//!
//! Its body is the summary, zeros, and a trailer of 32 bytes, by which it is found from the end of the
//! file. It is written only after the frames before it were synced, so a whole footer proves that they
//! are on disk. It is not synced itself: without it, or with part of it, the segment is scanned.

use crate::format::{
    self, ALIGNMENT_BYTES, FRAME_HEADER_BYTES, FrameHeader, FrameKind, SEGMENT_HEADER_BYTES,
    SegmentHeader, TRAILER_BYTES, Trailer,
};
use crate::segment::Segment;
use crate::summary::Summary;
use std::io;

/// A file with more room than this behind its footer is cut.
const FILLER_BYTES_MAX: u64 = 1 << 20;

/// What a footer says.
#[derive(Debug)]
pub(crate) struct Footer {
    pub(crate) summary: Summary,
    /// Where the frames end and the footer begins.
    pub(crate) end: u64,
}

/// A footer that is not written yet.
#[derive(Debug)]
pub(crate) struct Draft {
    /// The header, still empty, and the summary.
    frame: Vec<u8>,
    last_lsn: u64,
}

impl Draft {
    pub(crate) fn new(summary: &Summary) -> Draft {
        let mut frame = vec![0; FRAME_HEADER_BYTES];
        summary.encode(&mut frame);
        Draft { frame, last_lsn: summary.last_lsn() }
    }
}

/// Writes the footer of a segment whose frames end at `end` and are synced, and gives the file the
/// length that it then has. If the disk has no room for it, the file ends with its last frame.
pub(crate) fn write(segment: &Segment, draft: Draft, end: u64) -> io::Result<()> {
    let file_bytes = segment.file.len()?;
    let frame = encode(segment, draft, end, file_bytes);
    let footer_end = end + frame.len() as u64;
    match segment.file.write_at(&frame, end) {
        Err(error) if error.kind() == io::ErrorKind::StorageFull => segment.file.set_len(end),
        Ok(()) if footer_end < file_bytes => segment.file.set_len(footer_end),
        other => other,
    }
}

fn encode(segment: &Segment, draft: Draft, end: u64, file_bytes: u64) -> Vec<u8> {
    let Draft { mut frame, last_lsn } = draft;
    let summary_bytes = (frame.len() - FRAME_HEADER_BYTES) as u32;
    let least_bytes = (frame.len() + TRAILER_BYTES).next_multiple_of(ALIGNMENT_BYTES);
    // A little room is filled rather than given back: the file may be used again.
    let room = file_bytes.saturating_sub(end);
    let spare = room.saturating_sub(least_bytes as u64);
    let is_little = spare <= FILLER_BYTES_MAX.min(file_bytes / 16);
    let is_aligned = room.is_multiple_of(ALIGNMENT_BYTES as u64);
    let frame_bytes = least_bytes + if is_little && is_aligned { spare as usize } else { 0 };
    frame.resize(frame_bytes - TRAILER_BYTES, 0);
    let (number, salt) = (segment.number(), segment.header.salt);
    let trailer = Trailer { segment: number, footer_offset: end, summary_bytes };
    frame.extend_from_slice(&trailer.encode(salt));
    let header = FrameHeader {
        kind: FrameKind::Footer,
        body_bytes: (frame.len() - FRAME_HEADER_BYTES) as u32,
        segment: number,
        lsn: last_lsn + 1,
        synced_lsn: last_lsn,
        body_checksum: format::body_checksum(&frame[FRAME_HEADER_BYTES..]),
    };
    frame[..FRAME_HEADER_BYTES].copy_from_slice(&header.encode(salt));
    frame
}

/// The footer of a segment, if it has one that is whole.
pub(crate) fn read(segment: &Segment) -> io::Result<Option<Footer>> {
    let file_bytes = segment.file.len()?;
    let least = SEGMENT_HEADER_BYTES + FRAME_HEADER_BYTES + TRAILER_BYTES;
    if file_bytes < least as u64 {
        return Ok(None);
    }
    let (number, salt) = (segment.number(), segment.header.salt);
    let trailer = segment.read(file_bytes - TRAILER_BYTES as u64, TRAILER_BYTES)?;
    let Some(trailer) = Trailer::decode(&trailer, salt).filter(|trailer| {
        trailer.segment == number && trailer.footer_offset >= SEGMENT_HEADER_BYTES as u64
    }) else {
        return Ok(None);
    };
    let Some(frame_bytes) = file_bytes.checked_sub(trailer.footer_offset) else { return Ok(None) };
    let frame = segment.read(trailer.footer_offset, frame_bytes as usize)?;
    Ok(decode(&frame, salt, trailer))
}

/// The footer of the segment whose file has these bytes, if it has one that is whole.
pub(crate) fn of_file(bytes: &[u8], segment: SegmentHeader) -> Option<Footer> {
    let trailer = trailer_of(bytes, segment)?;
    let frame = bytes.get(usize::try_from(trailer.footer_offset).ok()?..)?;
    decode(frame, segment.salt, trailer)
}

/// Whether the bytes, behind frames that end at `end`, are part of a footer that is not whole.
pub(crate) fn is_damaged(bytes: &[u8], segment: SegmentHeader, end: usize) -> bool {
    let header = FrameHeader::decode(bytes.get(end..).unwrap_or_default(), segment.salt);
    let is_begun = header
        .is_ok_and(|header| header.kind == FrameKind::Footer && header.segment == segment.segment);
    let is_ended = trailer_of(bytes, segment).is_some();
    (is_begun || is_ended) && of_file(bytes, segment).is_none()
}

fn trailer_of(bytes: &[u8], segment: SegmentHeader) -> Option<Trailer> {
    let trailer = bytes.get(bytes.len().checked_sub(TRAILER_BYTES)?..)?;
    Trailer::decode(trailer, segment.salt).filter(|trailer| {
        trailer.segment == segment.segment && trailer.footer_offset >= SEGMENT_HEADER_BYTES as u64
    })
}

fn decode(frame: &[u8], salt: u64, trailer: Trailer) -> Option<Footer> {
    let header = FrameHeader::decode(frame, salt).ok()?;
    let body = frame.get(FRAME_HEADER_BYTES..)?;
    let is_whole = header.kind == FrameKind::Footer
        && header.segment == trailer.segment
        && header.frame_bytes() == frame.len()
        && format::body_checksum(body) == header.body_checksum;
    let summary = body.get(..trailer.summary_bytes as usize).filter(|_| is_whole)?;
    let summary = Summary::decode(summary).ok()?;
    let fits = summary.frames() > 0
        && summary.first_lsn() > 0
        && header.lsn < u64::MAX
        && summary.last_lsn() + 1 == header.lsn
        && summary.last_lsn() == header.synced_lsn
        && summary.items_end() <= trailer.footer_offset;
    fits.then_some(Footer { summary, end: trailer.footer_offset })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::batch::Change;
    use flotilla_vfs::fault::FaultFs;
    use flotilla_vfs::{FileSystem, OpenMode};
    use std::path::Path;

    fn segment(disk: &FaultFs, file_bytes: u64) -> Segment {
        let file = disk.open(Path::new("/7"), OpenMode::CreateNew).expect("made");
        file.allocate(0..file_bytes).expect("there is room");
        Segment { header: SegmentHeader { segment: 7, salt: 5, is_reused: false }, file }
    }

    fn summary() -> Summary {
        let mut summary = Summary::default();
        for lsn in 20..23 {
            summary.begin_frame(lsn);
            let (key, value) = (vec![b'k'; 20].into(), vec![lsn as u8; 30].into());
            let put = Change::Put { group: lsn, key, value };
            summary.apply(&put, 64).expect("it fits");
        }
        summary
    }

    #[test]
    fn a_footer_ends_with_the_file_whatever_room_there_is() {
        // No room, little, and much; and a length that no frame can end at.
        for (file_bytes, end, wanted) in [
            (1000, 1000, 1248),
            (1200, 1000, 1248),
            (16_000, 15_000, 16_000),
            (16_000, 8000, 8248),
            (16_001, 15_000, 15_248),
        ] {
            let disk = FaultFs::new(1);
            let segment = segment(&disk, file_bytes);
            write(&segment, Draft::new(&summary()), end).expect("written");
            assert_eq!(segment.file.len().expect("known"), wanted, "{file_bytes} {end}");
            let footer = read(&segment).expect("read").expect("it is there");
            assert_eq!((footer.end, footer.summary.last_lsn()), (end, 22));
        }
    }

    #[test]
    fn a_footer_of_which_any_bit_is_wrong_is_none() {
        let disk = FaultFs::new(1);
        let segment = segment(&disk, 4096);
        assert!(read(&segment).expect("read").is_none());
        write(&segment, Draft::new(&summary()), 3704).expect("written");
        for offset in 3704..4096 {
            let bit = (offset % 8) as u8;
            disk.flip_bit(Path::new("/7"), offset, bit);
            assert!(read(&segment).expect("read").is_none(), "byte {offset}");
            let bytes = segment.read(0, 4096).expect("read");
            assert!(is_damaged(&bytes, segment.header, 3704), "byte {offset}");
            disk.flip_bit(Path::new("/7"), offset, bit);
        }
        let bytes = segment.read(0, 4096).expect("read");
        assert!(of_file(&bytes, segment.header).is_some_and(|footer| footer.end == 3704));
        assert!(read(&segment).expect("read").is_some());
        let other = SegmentHeader { segment: 8, ..segment.header };
        let other = Segment { header: other, file: segment.file.clone() };
        assert!(read(&other).expect("read").is_none(), "it is another segment's");
        segment.file.set_len(4088).expect("cut");
        assert!(read(&segment).expect("read").is_none());
        for len in [0, 64, 100] {
            segment.file.set_len(len).expect("cut");
            assert!(read(&segment).expect("read").is_none());
        }
    }

    #[test]
    fn without_room_for_a_footer_the_file_ends_with_its_frames() {
        let disk = FaultFs::new(1);
        let segment = segment(&disk, 4096);
        disk.set_capacity(Some(4096));
        write(&segment, Draft::new(&summary()), 4096 - 40).expect("no failure");
        assert_eq!(segment.file.len().expect("known"), 4096 - 40);
    }
}
