//! The footer of a sealed segment: a frame that reaches to the end of the file and holds the
//! segment's summary.
//!
//! Its body is the summary, zeros, and a trailer of 32 bytes, by which it is found from the end of
//! the file. It is written only after the frames before it were synced, so a whole footer proves
//! that they are on disk. It is not synced itself: without it, or with part of it, the segment is
//! scanned.

use crate::format::layout::{
    self, ALIGNMENT_BYTES, FRAME_HEADER_BYTES, FrameHeader, FrameKind, SEGMENT_HEADER_BYTES,
    SegmentHeader, TRAILER_BYTES, Trailer,
};
use crate::index::summary::SegmentSummary;
use crate::segments::segment::Segment;
use std::io;

/// A file with more room than this behind its footer is cut.
const FILLER_BYTES_MAX: u64 = 1 << 20;

/// Bytes of one write, about.
const PIECE_BYTES: usize = 16 << 10;

/// A decoded footer.
#[derive(Debug)]
pub(crate) struct Footer {
    pub(crate) summary: SegmentSummary,
    /// Where the frames end and the footer begins.
    pub(crate) end: u64,
}

/// Writes the body of a footer in pieces, so that a long one takes no more memory than a short one.
struct FooterWriter<'a> {
    segment: &'a Segment,
    /// Where the next piece goes.
    at: u64,
    checksum: u32,
}

impl FooterWriter<'_> {
    /// Writes the piece if it is long enough to be worth a call.
    fn spill(&mut self, piece: &mut Vec<u8>) -> io::Result<()> {
        if piece.len() < PIECE_BYTES { Ok(()) } else { self.write(piece) }
    }

    fn write(&mut self, piece: &mut Vec<u8>) -> io::Result<()> {
        self.checksum = layout::body_checksum_append(self.checksum, piece);
        self.segment.file.write_at(piece, self.at)?;
        self.at += piece.len() as u64;
        piece.clear();
        Ok(())
    }

    fn zeros(&mut self, piece: &mut Vec<u8>, mut count: u64) -> io::Result<()> {
        while count > 0 {
            let some = count.min(PIECE_BYTES as u64);
            piece.resize(piece.len() + some as usize, 0);
            self.spill(piece)?;
            count -= some;
        }
        Ok(())
    }
}

/// Writes the footer of a segment whose frames end at `end` and are synced, and gives the file the
/// length that it then has. If the disk has no room for it, the file ends with its last frame.
pub(crate) fn write(segment: &Segment, summary: &SegmentSummary, end: u64) -> io::Result<()> {
    let file_bytes = segment.file.len()?;
    match write_frame(segment, summary, end, file_bytes) {
        Err(error) if error.kind() == io::ErrorKind::StorageFull => segment.file.set_len(end),
        Ok(footer_end) if footer_end < file_bytes => segment.file.set_len(footer_end),
        other => other.map(drop),
    }
}

/// Writes the frame, its header last, and returns where it ends.
fn write_frame(
    segment: &Segment,
    summary: &SegmentSummary,
    end: u64,
    file_bytes: u64,
) -> io::Result<u64> {
    assert!(end >= summary.items_end(), "frames end at {end} before {}", summary.items_end());
    let begin = end + FRAME_HEADER_BYTES as u64;
    let mut body = FooterWriter { segment, at: begin, checksum: 0 };
    let mut piece = Vec::with_capacity(2 * PIECE_BYTES);
    summary.encode_in_pieces(&mut piece, &mut |piece| body.spill(piece))?;
    let summary_bytes = (body.at - begin) + piece.len() as u64;
    // The appender has kept this much room behind the frames.
    let bytes_max = summary.encoded_bytes_max();
    assert!(summary_bytes <= bytes_max, "a summary of {summary_bytes}, at most {bytes_max}");
    let frame_bytes = frame_bytes(summary_bytes, file_bytes.saturating_sub(end), file_bytes);
    let body_bytes = frame_bytes - FRAME_HEADER_BYTES as u64;
    body.zeros(&mut piece, body_bytes - summary_bytes - TRAILER_BYTES as u64)?;
    let (number, salt) = (segment.number(), segment.header.salt);
    let summary_bytes = summary_bytes as u32;
    let trailer = Trailer { segment: number, footer_offset: end, summary_bytes };
    piece.extend_from_slice(&trailer.encode(salt));
    body.write(&mut piece)?;
    assert_eq!(body.at, end + frame_bytes, "a footer is shorter or longer than its frame");
    // Last, since the checksum of the body is known only now; without it the body is no footer.
    let header = FrameHeader {
        kind: FrameKind::Footer,
        body_bytes: body_bytes as u32,
        segment: number,
        lsn: summary.last_lsn() + 1,
        synced_lsn: summary.last_lsn(),
        body_checksum: body.checksum,
    };
    segment.file.write_at(&header.encode(salt), end)?;
    Ok(end + frame_bytes)
}

/// The length of the frame, if the file has `room` for it.
fn frame_bytes(summary_bytes: u64, room: u64, file_bytes: u64) -> u64 {
    let least_bytes = FRAME_HEADER_BYTES as u64 + summary_bytes + TRAILER_BYTES as u64;
    let least_bytes = least_bytes.next_multiple_of(ALIGNMENT_BYTES as u64);
    // A little room is filled, not freed: the file may be recycled.
    let spare = room.saturating_sub(least_bytes);
    let is_little = spare <= FILLER_BYTES_MAX.min(file_bytes / 16);
    let is_aligned = room.is_multiple_of(ALIGNMENT_BYTES as u64);
    least_bytes + if is_little && is_aligned { spare } else { 0 }
}

/// The footer of a segment, if it has one that is whole. It is read into the buffer, which grows as
/// needed: a caller that reads many keeps one, since new memory costs more than reading.
pub(crate) fn read(segment: &Segment, buffer: &mut Vec<u8>) -> io::Result<Option<Footer>> {
    let file_bytes = segment.file.len()?;
    let least = SEGMENT_HEADER_BYTES + FRAME_HEADER_BYTES + TRAILER_BYTES;
    if file_bytes < least as u64 {
        return Ok(None);
    }
    let trailer = segment.read(file_bytes - TRAILER_BYTES as u64, TRAILER_BYTES)?;
    let Some(trailer) = trailer_of(&trailer, segment.header) else { return Ok(None) };
    let Some(frame_bytes) = file_bytes.checked_sub(trailer.footer_offset) else { return Ok(None) };
    let frame_bytes = frame_bytes as usize;
    if buffer.len() < frame_bytes {
        buffer.resize(frame_bytes, 0);
    }
    let frame = &mut buffer[..frame_bytes];
    segment.file.read_exact_at(frame, trailer.footer_offset)?;
    Ok(decode(frame, segment.header.salt, trailer))
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
        && layout::body_checksum(body) == header.body_checksum;
    let summary = body.get(..trailer.summary_bytes as usize).filter(|_| is_whole)?;
    let summary = SegmentSummary::decode(summary).ok()?;
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
    use crate::batch::frame::Change;
    use flotilla_vfs::fault::FaultFs;
    use flotilla_vfs::{FileSystem, OpenMode};
    use std::path::Path;

    fn segment(disk: &FaultFs, file_bytes: u64) -> Segment {
        let file = disk.open(Path::new("/7"), OpenMode::CreateNew).expect("made");
        file.allocate(0..file_bytes).expect("there is room");
        Segment {
            header: SegmentHeader { segment: 7, salt: 5, is_reused: false, reduced_at_lsn: 0 },
            file,
        }
    }

    fn summary() -> SegmentSummary {
        let mut summary = SegmentSummary::default();
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
            write(&segment, &summary(), end).expect("written");
            assert_eq!(segment.file.len().expect("known"), wanted, "{file_bytes} {end}");
            let footer = read(&segment, &mut Vec::new()).expect("read").expect("it is there");
            assert_eq!((footer.end, footer.summary.last_lsn()), (end, 22));
        }
    }

    #[test]
    fn a_footer_of_many_pieces_is_whole() {
        let mut long = SegmentSummary::default();
        for lsn in 1..4000 {
            long.begin_frame(lsn);
            let key = format!("key {lsn}").into_bytes().into();
            let put = Change::Put { group: lsn % 3, key, value: vec![lsn as u8; 30].into() };
            long.apply(&put, 64).expect("it fits");
        }
        assert!(long.encoded_bytes_max() > 3 * PIECE_BYTES as u64);
        for (file_bytes, end) in [(20 << 20, 19 << 20), (1 << 20, 1 << 20)] {
            let disk = FaultFs::new(1);
            let segment = segment(&disk, file_bytes);
            write(&segment, &long, end).expect("written");
            let footer = read(&segment, &mut Vec::new()).expect("read").expect("it is there");
            assert_eq!((footer.end, footer.summary.last_lsn()), (end, 3999));
            let [mut groups, mut read] =
                [long.clone(), footer.summary].map(SegmentSummary::into_groups);
            groups.sort_by_key(|changes| changes.group);
            read.sort_by_key(|changes| changes.group);
            assert_eq!(format!("{groups:?}"), format!("{read:?}"));
        }
    }

    #[test]
    fn a_footer_of_which_any_bit_is_wrong_is_none() {
        let disk = FaultFs::new(1);
        let segment = segment(&disk, 4096);
        assert!(read(&segment, &mut Vec::new()).expect("read").is_none());
        write(&segment, &summary(), 3704).expect("written");
        for offset in 3704..4096 {
            let bit = (offset % 8) as u8;
            disk.flip_bit(Path::new("/7"), offset, bit);
            assert!(read(&segment, &mut Vec::new()).expect("read").is_none(), "byte {offset}");
            let bytes = segment.read(0, 4096).expect("read");
            assert!(is_damaged(&bytes, segment.header, 3704), "byte {offset}");
            disk.flip_bit(Path::new("/7"), offset, bit);
        }
        let bytes = segment.read(0, 4096).expect("read");
        assert!(of_file(&bytes, segment.header).is_some_and(|footer| footer.end == 3704));
        assert!(read(&segment, &mut Vec::new()).expect("read").is_some());
        let other = SegmentHeader { segment: 8, ..segment.header };
        let other = Segment { header: other, file: segment.file.clone() };
        assert!(read(&other, &mut Vec::new()).expect("read").is_none(), "it is another segment's");
        segment.file.set_len(4088).expect("cut");
        assert!(read(&segment, &mut Vec::new()).expect("read").is_none());
        for len in [0, 64, 100] {
            segment.file.set_len(len).expect("cut");
            assert!(read(&segment, &mut Vec::new()).expect("read").is_none());
        }
    }

    #[test]
    fn without_room_for_a_footer_the_file_ends_with_its_frames() {
        let disk = FaultFs::new(1);
        let segment = segment(&disk, 4096);
        disk.set_capacity(Some(4096));
        write(&segment, &summary(), 4096 - 40).expect("no failure");
        assert_eq!(segment.file.len().expect("known"), 4096 - 40);
    }
}
