//! The verifier: checks every byte of a log, its headers, frames and items, the order of its frames
//! over all segments, and the unused space.
//!
//! Unlike a start, which stops at the first damage, it goes on behind it, one segment in memory at
//! a time. Where a frame is missing or damaged the rules of a start decide whether a power loss may
//! have done that; see `docs/log-format.md`. Frames that an open engine has written must be there.

use crate::batch::frame::Change;
use crate::format::item::{self, BatchItem, DecodedItem, StoredAppend};
use crate::format::layout::{FRAME_HEADER_BYTES, FrameHeader, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::index::summary::SegmentSummary;
use crate::read::append_entries;
use crate::recovery::frame_scanner::{self, FrameScanner};
use crate::recovery::report::VerifyProblem;
use crate::segments::footer::{self, Footer};
use crate::tools::raw_scan::{RawScan, SegmentPart, ValidFrame};
use std::ops::Range;

/// The most problems that are listed; the others are only counted.
const PROBLEMS_MAX: usize = 1000;

/// The depth of a verification.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum VerifyLevel {
    /// Every byte by the checksums of headers and frames, and the order of the frames.
    Frames,
    /// Also the items: each block decompressed, each entry by its own checksum; and of a log that
    /// can be opened the index, by reading each entry and by comparing the usage of segments.
    Entries,
}

/// The result of a verification. The log is sound if there is no problem.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct VerifyReport {
    /// Segments that were read.
    pub segments: u64,
    /// Bytes of their files.
    pub bytes: u64,
    /// Whole batches.
    pub frames: u64,
    /// Entries in them, live or not. Zero if only frames were checked.
    pub entries: u64,
    /// The last batch.
    pub last_lsn: u64,
    /// Bytes of batches that were being written when the power or the process went, or are right
    /// now. They are no problem: opening the log cuts them off.
    pub torn_bytes: u64,
    /// The damage, in the order of the log; the first thousand problems.
    pub problems: Vec<VerifyProblem>,
    /// How many more there are.
    pub problems_left_out: u64,
}

/// The progress of a tool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ToolProgress {
    /// Bytes done.
    pub bytes_done: u64,
    /// Bytes in all, as far as that is known.
    pub bytes: u64,
}

/// Takes segments, oldest first, and returns a report in the end.
#[derive(Debug)]
pub(crate) struct Verifier {
    level: VerifyLevel,
    /// Frames beyond this one do not matter, and all up to it must be there.
    end_lsn: Option<u64>,
    /// The next frame. None: whatever the next segment begins with.
    next_lsn: Option<u64>,
    /// Every frame up to this one is known to have been on disk.
    proven_synced_lsn: u64,
    /// The end of the log, if it does not go on in the next segment.
    tail: Option<MissingFrame>,
    /// A missing frame that a power loss may explain.
    pending: Option<MissingFrame>,
    discarded_below: u64,
    /// Segments that are missing.
    gaps: Vec<u64>,
    /// The net change of the segment's frames. None: one of them is missing.
    summary: Option<SegmentSummary>,
    report: VerifyReport,
}

/// A place at which a frame was expected.
#[derive(Debug)]
struct MissingFrame {
    segment: u64,
    offset: usize,
    lsn: u64,
    what: &'static str,
    /// How many bytes of a torn flush are left there; or why that cannot be.
    torn_bytes: Result<usize, &'static str>,
    /// Entries that are damaged, by group.
    named: Vec<(u64, Range<u64>)>,
}

impl Verifier {
    /// For a log of which all frames up to `end_lsn` are known to have been written; or for files
    /// of which nothing is known.
    pub(crate) fn new(level: VerifyLevel, end_lsn: Option<u64>) -> Verifier {
        Verifier {
            level,
            end_lsn,
            next_lsn: None,
            proven_synced_lsn: end_lsn.unwrap_or(0),
            tail: None,
            pending: None,
            discarded_below: 0,
            gaps: Vec::new(),
            summary: None,
            report: VerifyReport::default(),
        }
    }

    /// A segment that cannot be read.
    pub(crate) fn unreadable(&mut self, segment: u64, offset: u64, what: &'static str) {
        self.resolve_tail();
        self.report.segments += 1;
        self.problem(VerifyProblem::of_segment(segment, offset, what));
        // Its frames are not known.
        self.next_lsn = None;
        self.pending = None;
    }

    /// The next segment: the whole file. If it may be sealed just now, an unfinished footer is no
    /// damage.
    pub(crate) fn segment(&mut self, header: SegmentHeader, bytes: &[u8], may_change: bool) {
        self.report.segments += 1;
        self.report.bytes += bytes.len() as u64;
        let is_first = self.report.segments == 1;
        if is_first && header.segment == 1 {
            self.next_lsn = Some(1);
        }
        self.note_later_proof(header, bytes);
        let footer = footer::of_file(bytes, header);
        if header.is_reduced() {
            return self.reduced(header, footer);
        }
        if let Some(footer) = &footer {
            // A footer is written when all frames are on disk.
            self.proven_synced_lsn = self.proven_synced_lsn.max(footer.summary.last_lsn());
        }
        let end = footer.as_ref().map_or(bytes.len(), |footer| footer.end as usize);
        let frames = &bytes[..end];
        self.summary = Some(SegmentSummary::default());
        for piece in RawScan::new(frames, header) {
            match piece {
                SegmentPart::Frame(frame)
                    if self.end_lsn.is_some_and(|end| frame.header.lsn > end) =>
                {
                    return self.resolve_tail();
                }
                SegmentPart::Frame(frame) => self.frame(header.segment, &frame),
                // The footer begins here.
                SegmentPart::Damage { range, .. } if range.is_empty() && footer.is_some() => {}
                SegmentPart::Damage { range, header: damaged, what, is_last } => {
                    self.resolve_tail();
                    let mut at = self.break_at(header, frames, range.start, what, damaged);
                    if !is_last {
                        self.report_missing(at);
                        continue;
                    }
                    if !may_change && footer::is_damaged(bytes, header, range.start) {
                        at.torn_bytes = Ok(self.damaged_footer(header, bytes, range.start));
                    }
                    self.tail = Some(at);
                }
            }
        }
        if let Some(footer) = footer {
            self.resolve_tail();
            self.footer(header.segment, &footer);
        }
    }

    /// Compares a footer with the frames that it sums up.
    fn footer(&mut self, segment: u64, footer: &Footer) {
        let (mut said, mut found) = (Vec::new(), Vec::new());
        footer.summary.encode(&mut said);
        self.next_lsn = Some(footer.summary.last_lsn() + 1);
        // A damaged frame was reported already.
        let Some(summary) = self.summary.take() else { return };
        summary.encode(&mut found);
        if said != found {
            let what = "the footer does not say what the frames do";
            self.report_damage(segment, footer.end as usize, what, Vec::new());
        }
    }

    /// A segment of which only the tombstones are left.
    fn reduced(&mut self, header: SegmentHeader, footer: Option<Footer>) {
        self.proven_synced_lsn = self.proven_synced_lsn.max(header.reduced_at_lsn);
        let segment = header.segment;
        let Some(Footer { summary, .. }) = footer else {
            let what = "the footer is damaged";
            self.resolve_tail();
            self.problem(VerifyProblem::of_segment(segment, SEGMENT_HEADER_BYTES as u64, what));
            (self.next_lsn, self.pending) = (None, None);
            return;
        };
        let (first_lsn, last_lsn) = (summary.first_lsn(), summary.last_lsn());
        let expected = self.next_lsn.unwrap_or(first_lsn);
        if first_lsn == expected {
            self.tail = None;
        } else {
            self.resolve_tail();
            self.out_of_order(segment, SEGMENT_HEADER_BYTES, first_lsn, expected);
        }
        self.resolve_pending();
        self.next_lsn = Some(last_lsn + 1);
        self.report.last_lsn = last_lsn;
        self.discarded_below = self.discarded_below.max(summary.discarded_below());
    }

    /// A footer is not synced when it is written, so a power loss may leave part of it. Returns how
    /// many bytes, or reports a problem.
    fn damaged_footer(&mut self, header: SegmentHeader, bytes: &[u8], offset: usize) -> usize {
        let is_torn =
            !header.is_reused && frame_scanner::has_zero_sector(bytes, offset..bytes.len());
        if is_torn {
            return bytes.len() - offset;
        }
        let what = "the footer is damaged, or part of it was never written";
        self.report_damage(header.segment, offset, what, Vec::new());
        0
    }

    /// The next segment does not follow: `missing` is not there.
    pub(crate) fn gap(&mut self, missing: u64) {
        // The end of the segment before proves nothing then.
        self.tail = None;
        self.next_lsn = None;
        self.gaps.push(missing);
    }

    /// Whether segments are missing before the first that was there, or behind the last.
    pub(crate) fn check_ends(&mut self, first: u64, last: u64) {
        let needed_from = self.discarded_below.max(1);
        if first > needed_from {
            self.gaps.push(first - 1);
        }
        if last < needed_from {
            self.gaps.push(last + 1);
        }
    }

    /// The first segment that is still needed, as far as is known.
    pub(crate) fn discarded_below(&self) -> u64 {
        self.discarded_below
    }

    /// The report.
    pub(crate) fn finish(mut self) -> VerifyReport {
        self.resolve_tail();
        if let Some(pending) = self.pending.take() {
            self.report.torn_bytes += pending.torn_bytes.unwrap_or(0) as u64;
        }
        // Segments below the discard of a purge that was cut short are leftovers.
        let discarded_below = self.discarded_below;
        for segment in std::mem::take(&mut self.gaps) {
            let what = "the segment is missing";
            self.problem(VerifyProblem::of_segment(segment, 0, what));
        }
        self.report.problems.retain(|problem| problem.segment >= discarded_below);
        self.report.problems.sort_by_key(|problem| (problem.segment, problem.offset));
        self.report
    }

    pub(crate) fn problem(&mut self, problem: VerifyProblem) {
        add_problem(&mut self.report, problem);
    }

    /// Checks whether the segment proves that the missing frame before it was on disk once.
    fn note_later_proof(&mut self, header: SegmentHeader, bytes: &[u8]) {
        let missing = self.pending.as_ref().or(self.tail.as_ref()).map(|at| at.lsn);
        let Some(lsn) = missing else { return };
        let goes_on =
            self.pending.is_none() && frame_scanner::first_lsn(bytes, header) == Some(lsn);
        if goes_on {
            // The log goes on: the bytes behind its last frame in the segment before do not count,
            // as for a start.
            self.tail = None;
        } else if frame_scanner::proves_synced(bytes, header, lsn) {
            self.proven_synced_lsn = self.proven_synced_lsn.max(lsn);
            self.resolve_pending();
        }
    }

    fn resolve_pending(&mut self) {
        if let Some(pending) = self.pending.take_if(|pending| pending.lsn <= self.proven_synced_lsn)
        {
            let what = "a frame that was synced is damaged";
            self.report_damage(pending.segment, pending.offset, what, pending.named);
            self.summary = None;
        }
    }

    /// The missing frame at `offset`. `damaged` is its header, if that is whole.
    fn break_at(
        &self,
        header: SegmentHeader,
        bytes: &[u8],
        offset: usize,
        what: &'static str,
        damaged: Option<FrameHeader>,
    ) -> MissingFrame {
        let lsn = self.next_lsn.unwrap_or(0);
        debug_assert!(offset >= SEGMENT_HEADER_BYTES, "a frame at {offset} is in the header");
        let torn_bytes = if self.next_lsn.is_none() {
            // The segments before were purged, by a synced batch further on: so this frame was
            // synced.
            Err("the first frame is damaged")
        } else {
            FrameScanner::new(bytes, header, lsn).resume(offset).torn_bytes()
        };
        let end = damaged.map_or(offset, |damaged| offset + damaged.frame_bytes());
        let body = bytes.get(offset + FRAME_HEADER_BYTES..end.min(bytes.len()));
        let named = body.map(damaged_entries).unwrap_or_default();
        MissingFrame { segment: header.segment, offset, lsn, what, torn_bytes, named }
    }

    /// The log did not go on in the next segment, or there is none.
    fn resolve_tail(&mut self) {
        let Some(tail) = self.tail.take() else { return };
        // Only zeros behind the last frame are an end without damage, as far as this place goes.
        let is_end = tail.torn_bytes == Ok(0) && tail.lsn > self.proven_synced_lsn;
        let is_beyond = self.end_lsn.is_some_and(|end| tail.lsn > end);
        if !is_end && !is_beyond {
            self.report_missing(tail);
        }
    }

    /// A frame is not there, or not whole.
    fn report_missing(&mut self, at: MissingFrame) {
        if self.pending.is_some() {
            // Behind a torn flush no frame counts.
            return;
        }
        let what = match at.torn_bytes {
            Err(what) => what,
            Ok(_) if at.lsn <= self.proven_synced_lsn => at.what,
            Ok(_) => {
                self.pending = Some(at);
                return;
            }
        };
        self.report_damage(at.segment, at.offset, what, at.named);
        self.next_lsn = None;
        self.summary = None;
    }

    /// Reports damage, by entries if those are known.
    fn report_damage(
        &mut self,
        segment: u64,
        offset: usize,
        what: &'static str,
        named: Vec<(u64, Range<u64>)>,
    ) {
        let whole = VerifyProblem::of_segment(segment, offset as u64, what);
        if named.is_empty() {
            self.problem(whole.clone());
        }
        for (group, entries) in named {
            let (group, entries) = (Some(group), Some(entries));
            self.problem(VerifyProblem { group, entries, ..whole.clone() });
        }
    }

    fn frame(&mut self, segment: u64, frame: &ValidFrame<'_>) {
        let header = frame.header;
        self.proven_synced_lsn = self.proven_synced_lsn.max(header.synced_lsn);
        let expected = self.next_lsn.unwrap_or(header.lsn);
        if header.lsn == expected {
            self.tail = None;
        } else {
            self.resolve_tail();
            self.out_of_order(segment, frame.offset, header.lsn, expected);
        }
        self.resolve_pending();
        self.next_lsn = Some(header.lsn + 1);
        if self.pending.is_some() {
            self.report.torn_bytes += header.frame_bytes() as u64;
            return;
        }
        self.report.frames += 1;
        self.report.last_lsn = header.lsn;
        if let Some(summary) = &mut self.summary {
            summary.begin_frame(header.lsn);
        }
        self.items(segment, frame);
    }

    fn out_of_order(&mut self, segment: u64, offset: usize, lsn: u64, expected: u64) {
        let what = "a frame is not the one that belongs here";
        self.summary = None;
        // Right behind a whole frame of the same segment no other frame was ever written.
        let is_behind_whole = self.pending.is_none() && offset > SEGMENT_HEADER_BYTES;
        if lsn < expected || is_behind_whole {
            self.report_damage(segment, offset, what, Vec::new());
        } else if self.pending.is_none() {
            // The missing frames were at the end of the segment before, which looks as if they had
            // never been written.
            let (lsn, torn_bytes, named) = (expected, Ok(0), Vec::new());
            self.report_missing(MissingFrame { segment, offset, lsn, what, torn_bytes, named });
        }
    }

    fn add_to_summary(
        &mut self,
        frame_offset: usize,
        at: usize,
        item: DecodedItem<'_>,
    ) -> Result<(), &'static str> {
        let Some(summary) = &mut self.summary else { return Ok(()) };
        let place = u32::try_from(frame_offset).map_err(|_| "a frame begins beyond 4 GiB")?;
        summary.apply(&Change::of(item, at as u32), place)
    }

    fn items(&mut self, segment: u64, frame: &ValidFrame<'_>) {
        for (at, item) in item::items_of(frame.items) {
            let offset = frame.offset + at;
            let added = item.and_then(|item| self.add_to_summary(frame.offset, at, item));
            if let Err(what) = added {
                self.summary = None;
                self.report_damage(segment, offset, what, Vec::new());
            }
            let Ok(item) = item else { return };
            if let BatchItem::Discard { below_segment } = item {
                self.discarded_below = self.discarded_below.max(below_segment);
            }
            if self.level < VerifyLevel::Entries {
                continue;
            }
            if let Some(append) = item.entries() {
                self.report.entries += append.head.count;
                for (group, entries, what) in failing_entries(append) {
                    let (group, entries) = (Some(group), Some(entries));
                    let offset = offset as u64;
                    self.problem(VerifyProblem { segment, offset, what, group, entries });
                }
            }
        }
    }
}

/// Adds a problem to those that were found, or counts it.
pub(crate) fn add_problem(report: &mut VerifyReport, problem: VerifyProblem) {
    if report.problems.len() < PROBLEMS_MAX {
        report.problems.push(problem);
    } else {
        report.problems_left_out += 1;
    }
}

/// Stretches of entries that fail for the same reason.
fn failing_entries(append: &StoredAppend<'_>) -> Vec<(u64, Range<u64>, &'static str)> {
    let mut failing: Vec<(u64, Range<u64>, &'static str)> = Vec::new();
    append_entries::each_entry(append.bytes, &append.head, |entry| {
        let Err(what) = entry.data else { return };
        match failing.last_mut() {
            Some((_, range, last)) if range.end == entry.index && *last == what => range.end += 1,
            _ => failing.push((append.head.group, entry.index..entry.index + 1, what)),
        }
    });
    failing
}

/// The failing entries of a damaged body, as far as it can be decoded. If none fails the damage is
/// somewhere else.
fn damaged_entries(body: &[u8]) -> Vec<(u64, Range<u64>)> {
    let items = item::items_of(body).filter_map(|(_, item)| item.ok());
    let appends = items.filter_map(|item| item.entries().map(failing_entries));
    appends.flatten().map(|(group, range, _)| (group, range)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::format::layout::{self, FrameKind};
    use crate::segments::segment::Segment;
    use flotilla_vfs::fault::FaultFs;
    use flotilla_vfs::{FileSystem, OpenMode};
    use std::path::Path;

    const HEADER: SegmentHeader =
        SegmentHeader { segment: 1, salt: 5, is_reused: false, reduced_at_lsn: 0 };

    fn frame(lsn: u64, key: &[u8]) -> Vec<u8> {
        frame_of(1, lsn, key)
    }

    /// A frame that sets a key.
    fn frame_of(segment: u64, lsn: u64, key: &[u8]) -> Vec<u8> {
        let mut body = Vec::new();
        item::put_plain_item(&mut body, BatchItem::Put { group: 1, key, value: b"value" });
        layout::pad(&mut body);
        let header = FrameHeader {
            kind: FrameKind::Batch,
            body_bytes: body.len() as u32,
            segment,
            lsn,
            synced_lsn: 0,
            body_checksum: layout::body_checksum(&body),
        };
        [&header.encode(HEADER.salt)[..], &body].concat()
    }

    /// A segment with one frame, which sets a key, and a footer that says that it sets another.
    fn sealed(key: &[u8], key_of_footer: &[u8]) -> Vec<u8> {
        let bytes = [&HEADER.encode()[..], &frame(1, key)].concat();
        let disk = FaultFs::new(1);
        let file = disk.open(Path::new("/1"), OpenMode::CreateNew).expect("made");
        file.write_at(&bytes, 0).expect("written");
        let segment = Segment { header: HEADER, file };
        let mut summary = SegmentSummary::default();
        summary.begin_frame(1);
        let (key, value) = (key_of_footer.to_vec().into(), b"value".to_vec().into());
        summary.apply(&Change::Put { group: 1, key, value }, 64).expect("it fits");
        footer::write(&segment, &summary, bytes.len() as u64).expect("written");
        let len = segment.file.len().expect("known");
        segment.read(0, len as usize).expect("read")
    }

    fn problems(bytes: &[u8]) -> Vec<VerifyProblem> {
        let mut verifier = Verifier::new(VerifyLevel::Frames, None);
        verifier.segment(HEADER, bytes, false);
        verifier.check_ends(1, 1);
        verifier.finish().problems
    }

    #[test]
    fn a_footer_must_say_what_the_frames_do() {
        assert_eq!(problems(&sealed(b"key", b"key")), []);
        let wrong = problems(&sealed(b"key", b"yek"));
        assert_eq!(wrong.len(), 1, "{wrong:?}");
        assert!(wrong[0].what.contains("footer") && wrong[0].offset > 64);
    }

    #[test]
    fn frames_of_a_segment_follow_one_another() {
        let segment = |lsns: &[u64]| {
            let frames: Vec<u8> = lsns.iter().flat_map(|lsn| frame(*lsn, b"key")).collect();
            [&HEADER.encode()[..], &frames].concat()
        };
        assert_eq!(problems(&segment(&[1, 2, 3])), []);
        let second = SEGMENT_HEADER_BYTES + frame(1, b"key").len();
        // A start does not take them either.
        for lsns in [[1, 3, 4], [1, u64::MAX - 9, u64::MAX - 8]] {
            let wrong = problems(&segment(&lsns));
            assert_eq!((wrong.len(), wrong[0].offset), (1, second as u64), "{wrong:?}");
            assert!(wrong[0].what.contains("not the one that belongs here"), "{wrong:?}");
        }
    }

    #[test]
    fn what_is_left_behind_the_last_frame_hides_no_damage_further_on() {
        // As of a footer that was being written.
        let first = [&HEADER.encode()[..], &frame(1, b"key"), &[0; 600], &[7; 4]].concat();
        let header = SegmentHeader { segment: 2, ..HEADER };
        let whole = frame_of(2, 2, &[b'k'; 3000]);
        let verify = |second: &[u8]| {
            let mut verifier = Verifier::new(VerifyLevel::Frames, None);
            verifier.segment(HEADER, &first, false);
            verifier.segment(header, &[&header.encode()[..], second].concat(), false);
            verifier.finish().problems
        };
        assert_eq!(verify(&whole), []);
        let mut rotten = whole;
        rotten[90] ^= 1;
        let wrong = verify(&rotten);
        assert!(matches!(&wrong[..], [VerifyProblem { segment: 2, offset: 64, .. }]), "{wrong:?}");
    }
}
