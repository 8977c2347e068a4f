//! The end of the log, where frames are appended: to the active segment and, when it is full, to
//! the next one.
//!
//! Invariants:
//! - Frames are written one behind the other, never twice to the same place.
//! - A sync covers all segments that hold frames which are not synced, oldest first.

use crate::batch::frame::{Frame, WritePriority};
use crate::format::layout::{
    ALIGNMENT_BYTES, FRAME_HEADER_BYTES, FrameHeader, FrameKind, SEGMENT_HEADER_BYTES,
    SegmentHeader,
};
use crate::index::groups::FrameLocation;
use crate::index::summary::SegmentSummary;
use crate::segments::directory::PreallocatedSegment;
use crate::segments::disk_quota;
use crate::segments::pool::{AppendFailure, SegmentPool};
use crate::segments::segment::{Segment, Segments};
use crate::segments::unsealed::UnsealedSegment;
use smallvec::SmallVec;
use std::io::{self, IoSlice};
use std::sync::Arc;

/// Where frames were written. Often one thread writes one frame.
type Places = SmallVec<[FrameLocation; 8]>;

/// The end of the log, where frames are appended.
#[derive(Debug)]
pub(crate) struct LogAppender {
    pool: Arc<SegmentPool>,
    segments: Arc<Segments>,
    /// None until the first frame is written: what was there before is never written to.
    active: Option<ActiveSegment>,
    next_lsn: u64,
    synced_lsn: u64,
    /// The last sync marker.
    sync_marker_lsn: u64,
    /// The last frame when it was last asked whether the log is idle.
    idle_lsn: u64,
    /// A write or a sync has failed: the content of the file is unknown.
    is_broken: bool,
}

/// The segment that frames are appended to.
#[derive(Debug)]
struct ActiveSegment {
    segment: Arc<Segment>,
    /// Where the next frame begins.
    end: u64,
    /// The length of the file.
    file_bytes: u64,
    /// The net change of its frames, for its footer.
    summary: SegmentSummary,
}

impl LogAppender {
    /// Goes on behind the frame `last_lsn`. All up to `synced_lsn` is known to be synced.
    pub(crate) fn new(
        pool: Arc<SegmentPool>,
        segments: Arc<Segments>,
        last_lsn: u64,
        synced_lsn: u64,
    ) -> LogAppender {
        assert!(synced_lsn <= last_lsn, "frame {synced_lsn} is synced, the last is {last_lsn}");
        LogAppender {
            pool,
            segments,
            active: None,
            next_lsn: last_lsn + 1,
            synced_lsn,
            sync_marker_lsn: last_lsn,
            idle_lsn: last_lsn,
            is_broken: false,
        }
    }

    /// Writes frames in order and returns the location of each. Not synced.
    ///
    /// Returns the places of the frames that were written, and why there are fewer than frames.
    pub(crate) fn append(&mut self, frames: &mut [&mut Frame]) -> (Places, Option<AppendFailure>) {
        if let Err(failure) = self.check() {
            return (Places::new(), Some(failure));
        }
        let (places, failure) = self.append_frames(frames);
        debug_assert!(failure.is_some() || places.len() == frames.len(), "a frame was left out");
        self.is_broken = matches!(failure, Some(AppendFailure::Broken(_)));
        (places, failure)
    }

    /// Makes everything durable that was appended.
    pub(crate) fn sync(&mut self) -> Result<(), AppendFailure> {
        self.check()?;
        // Cleared once it has gone well.
        self.is_broken = true;
        self.pool.sync()?;
        if let Some(active) = &self.active {
            active.segment.file.sync()?;
        }
        self.is_broken = false;
        assert!(self.synced_lsn < self.next_lsn, "a frame was synced before it was written");
        self.synced_lsn = self.next_lsn - 1;
        Ok(())
    }

    /// Refuses work on a broken log: a thread may come here before it has heard of the failure.
    fn check(&self) -> Result<(), AppendFailure> {
        if self.is_broken {
            return Err(AppendFailure::Broken(io::Error::other("an earlier write or sync failed")));
        }
        Ok(())
    }

    fn append_frames(&mut self, frames: &mut [&mut Frame]) -> (Places, Option<AppendFailure>) {
        let mut places = Places::new();
        let mut rest = frames;
        while !rest.is_empty() {
            let fitting = self.fitting(rest);
            if fitting == 0 || (fitting < rest.len() && self.should_stay_together(rest)) {
                match self.begin_segment(rest[0]) {
                    Ok(()) => continue,
                    Err(failure) => return (places, Some(failure)),
                }
            }
            let (now, later) = rest.split_at_mut(fitting);
            if let Err(error) = self.write(now, &mut places) {
                return (places, Some(AppendFailure::Broken(error)));
            }
            rest = later;
        }
        (places, None)
    }

    /// Makes everything durable and seals it, so that the next start reads footers only.
    pub(crate) fn close(&mut self) -> Result<(), AppendFailure> {
        self.sync()?;
        if let Some(active) = self.active.take() {
            self.seal_later(active)?;
        }
        Ok(self.pool.close()?)
    }

    /// The oldest segment that has frames and is not sealed.
    pub(crate) fn unsealed_from(&self) -> Option<u64> {
        let active = self.active.as_ref().map(|active| active.segment.number());
        self.pool.unsealed_from().or(active)
    }

    pub(crate) fn synced_lsn(&self) -> u64 {
        self.synced_lsn
    }

    pub(crate) fn last_lsn(&self) -> u64 {
        self.next_lsn - 1
    }

    pub(crate) fn active_segment(&self) -> Option<u64> {
        self.active.as_ref().map(|active| active.segment.number())
    }

    /// Whether nothing was written since this was asked before.
    pub(crate) fn is_idle(&mut self) -> bool {
        std::mem::replace(&mut self.idle_lsn, self.next_lsn - 1) == self.next_lsn - 1
    }

    /// Whether a sync marker is due: everything is synced, no frame says so of the last one, and
    /// the last one is no marker itself. Only while the active segment has room for it.
    pub(crate) fn wants_sync_marker(&self, frame_bytes: u64) -> bool {
        let last_lsn = self.last_lsn();
        let has_room = |active: &ActiveSegment| {
            active.end + frame_bytes + self.reserve_bytes() <= active.file_bytes
        };
        last_lsn == self.synced_lsn
            && last_lsn != self.sync_marker_lsn
            && self.active.as_ref().is_some_and(has_room)
    }

    fn reserve_bytes(&self) -> u64 {
        self.pool.directory().config.reserve_bytes()
    }

    /// How many of the frames go into what is left of the active segment.
    fn fitting(&self, frames: &[&mut Frame]) -> usize {
        let Some(active) = &self.active else { return 0 };
        let config = &self.pool.directory().config;
        // A footer may make the file longer, but not by much.
        let footer_over = active.summary.encoded_bytes_max().saturating_sub(active.file_bytes / 16);
        let mut end = active.end;
        let fits = |frame: &&&mut Frame| {
            end += frame.bytes.len() as u64;
            // A segment that was made for one large frame has no reserve behind it.
            let is_first = end == SEGMENT_HEADER_BYTES as u64 + frame.bytes.len() as u64;
            let reserve = match frame.priority {
                _ if is_first => 0,
                WritePriority::Reclaim => 0,
                priority => disk_quota::reserve_bytes(config, priority) + footer_over,
            };
            end + reserve <= active.file_bytes
        };
        frames.iter().take_while(fits).count()
    }

    /// Whether frames that do not all fit into the active segment should all go to the next one:
    /// one write and one sync instead of two each, for a little room that stays empty.
    fn should_stay_together(&self, frames: &[&mut Frame]) -> bool {
        let bytes: u64 = frames.iter().map(|frame| frame.bytes.len() as u64).sum();
        self.pool.preallocated_bytes().is_some_and(|room| bytes <= room / 16)
    }

    fn write(&mut self, frames: &mut [&mut Frame], places: &mut Places) -> io::Result<()> {
        // The background thread may have sealed segments, and so synced them, since the last write.
        self.synced_lsn = self.synced_lsn.max(self.pool.synced_lsn());
        let active = self.active.as_mut().expect("frames fit only into an active segment");
        let SegmentHeader { segment, salt, .. } = active.segment.header;
        let (mut end, mut lsn) = (active.end, self.next_lsn);
        // A reader refuses a frame that claims to be synced itself.
        assert!(self.synced_lsn < lsn, "frame {} is synced, {lsn} is next", self.synced_lsn);
        for frame in frames.iter_mut() {
            debug_assert!(frame.bytes.len().is_multiple_of(ALIGNMENT_BYTES), "not padded");
            // Only here: segment, lsn and synced lsn are not known before.
            let header = FrameHeader {
                kind: FrameKind::Batch,
                body_bytes: (frame.bytes.len() - FRAME_HEADER_BYTES) as u32,
                segment,
                lsn,
                synced_lsn: self.synced_lsn,
                body_checksum: frame.body_checksum,
            };
            frame.bytes[..FRAME_HEADER_BYTES].copy_from_slice(&header.encode(salt));
            let offset = u32::try_from(end).expect("a segment and a batch have at most 1 GiB each");
            places.push(FrameLocation { segment, offset, lsn });
            if frame.changes.is_empty() {
                self.sync_marker_lsn = lsn;
            }
            end += frame.bytes.len() as u64;
            lsn += 1;
        }
        assert!(end <= active.file_bytes, "frames to {end} in {} bytes", active.file_bytes);
        let parts: SmallVec<[IoSlice<'_>; 8]> =
            frames.iter().map(|f| IoSlice::new(&f.bytes)).collect();
        active.segment.file.write_all_at(&parts, active.end)?;
        drop(parts);
        // After the write: the summary of a failed one would not be that of the file.
        for (frame, place) in frames.iter().zip(&places[places.len() - frames.len()..]) {
            active.summary.begin_frame(place.lsn);
            for change in &frame.changes {
                let applied = active.summary.apply(change, place.offset);
                applied.expect("the batch was checked against the group's tail");
            }
        }
        (active.end, self.next_lsn) = (end, lsn);
        self.pool.advance(end);
        Ok(())
    }

    /// Goes on in the next segment, which has room for the frame at least.
    fn begin_segment(&mut self, frame: &Frame) -> Result<(), AppendFailure> {
        let bytes = SEGMENT_HEADER_BYTES as u64 + frame.bytes.len() as u64;
        // A full disk is found out here, before anything of the log has changed.
        let PreallocatedSegment { segment, file_bytes, .. } =
            self.pool.take(bytes, frame.priority)?;
        assert!(file_bytes >= bytes, "a segment of {file_bytes} bytes, {bytes} are needed");
        if let Some(active) = self.active.take() {
            let number = segment.number();
            assert_eq!(number, active.segment.number() + 1, "segments have no gaps");
            self.seal_later(active)?;
        }
        let segment = Arc::new(segment);
        self.segments.insert(segment.clone());
        let (end, summary) = (SEGMENT_HEADER_BYTES as u64, SegmentSummary::default());
        self.active = Some(ActiveSegment { segment, end, file_bytes, summary });
        Ok(())
    }

    fn seal_later(&mut self, active: ActiveSegment) -> io::Result<()> {
        let is_synced = self.synced_lsn == self.last_lsn();
        let ActiveSegment { segment, end, summary, .. } = active;
        assert_eq!(summary.last_lsn(), self.last_lsn(), "the summary lacks a frame");
        self.pool.add_unsealed(UnsealedSegment::new(segment, end, summary, is_synced))
    }
}
