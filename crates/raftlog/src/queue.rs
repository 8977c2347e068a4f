//! Segments in order: frames go to the last one, and when it is full a new one is begun.
//!
//! Invariants:
//! - Only the last segment may hold frames that are not synced. Each other one was cut behind its
//!   last frame and synced before the next got its name.
//! - In the last segment every byte behind the last frame is zero, on the medium as well.

use crate::batch::Frame;
use crate::config::Config;
use crate::format::{FRAME_HEADER_BYTES, FrameHeader, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::groups::Place;
use crate::segment::{self, Segment};
use flotilla_vfs::{FileSystem, LockGuard};
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::io::{self, IoSlice};
use std::path::PathBuf;
use std::sync::Arc;

/// The open segments by number, shared with those who read.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    open: RwLock<BTreeMap<u64, Arc<Segment>>>,
}

impl Segments {
    /// The segment, unless it was purged.
    pub(crate) fn get(&self, segment: u64) -> Option<Arc<Segment>> {
        self.open.read().get(&segment).cloned()
    }

    /// The numbers of all segments, in order.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.open.read().keys().copied().collect()
    }

    pub(crate) fn insert(&self, segment: Arc<Segment>) {
        self.open.write().insert(segment.header.segment, segment);
    }

    pub(crate) fn remove(&self, segment: u64) -> Option<Arc<Segment>> {
        self.open.write().remove(&segment)
    }
}

/// The way to the directory, and what segments are to be like.
#[derive(Debug)]
pub(crate) struct Directory {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) path: PathBuf,
    pub(crate) config: Config,
    /// Held as long as anybody can write.
    pub(crate) _lock: Box<dyn LockGuard>,
}

/// The end of the log, where frames are appended.
#[derive(Debug)]
pub(crate) struct AppendQueue {
    directory: Directory,
    segments: Arc<Segments>,
    active: Arc<Segment>,
    /// Where the next frame of the active segment begins.
    end: u64,
    /// The length of the active segment's file.
    file_bytes: u64,
    next_lsn: u64,
    synced_lsn: u64,
}

/// Why frames could not be appended.
#[derive(Debug)]
pub(crate) enum Failure {
    /// There is no room for another segment; the log is as it was.
    NoSpace,
    /// Something may have been written, and nobody knows what.
    Broken(io::Error),
}

impl AppendQueue {
    /// Makes the first segment of a new log.
    pub(crate) fn create(directory: Directory, segments: Arc<Segments>) -> io::Result<AppendQueue> {
        let header = SegmentHeader { segment: 1, first_lsn: 1, salt: directory.config.draw_salt() };
        let file_bytes = directory.config.segment_bytes;
        let Directory { fs, path, .. } = &directory;
        let active = Arc::new(Segment::prepare(&**fs, path, header, file_bytes)?);
        active.publish(&**fs, path)?;
        segments.insert(active.clone());
        let end = SEGMENT_HEADER_BYTES as u64;
        Ok(AppendQueue { directory, segments, active, end, file_bytes, next_lsn: 1, synced_lsn: 0 })
    }

    /// Goes on behind the frame `last_lsn`, which ends at `end` of the last segment and is synced,
    /// as is all before it. The rest of the segment's file must be zero.
    pub(crate) fn resume(
        directory: Directory,
        segments: Arc<Segments>,
        active: Arc<Segment>,
        end: u64,
        last_lsn: u64,
    ) -> io::Result<AppendQueue> {
        let file_bytes = active.file.len()?.max(directory.config.segment_bytes);
        // Room for a full segment is a wish here: without it, the first full write makes another.
        match active.file.allocate(end..file_bytes) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {}
            other => other?,
        }
        let file_bytes = active.file.len()?;
        let (next_lsn, synced_lsn) = (last_lsn + 1, last_lsn);
        Ok(AppendQueue { directory, segments, active, end, file_bytes, next_lsn, synced_lsn })
    }

    /// Writes frames in order and says where each one lies. Not synced, except what a new segment
    /// leaves behind.
    ///
    /// Returns the places of the frames that were written, and why there are fewer than frames.
    pub(crate) fn append(&mut self, frames: &mut [&mut Frame]) -> (Vec<Place>, Option<Failure>) {
        let mut places = Vec::with_capacity(frames.len());
        let mut rest = frames;
        while !rest.is_empty() {
            let fitting = self.fitting(rest);
            if fitting == 0 {
                match self.begin_segment(rest[0].bytes.len() as u64) {
                    Ok(()) => continue,
                    Err(failure) => return (places, Some(failure)),
                }
            }
            let (now, later) = rest.split_at_mut(fitting);
            if let Err(error) = self.write(now, &mut places) {
                return (places, Some(Failure::Broken(error)));
            }
            rest = later;
        }
        (places, None)
    }

    /// Makes everything durable that was appended.
    pub(crate) fn sync(&mut self) -> io::Result<()> {
        self.active.file.sync()?;
        self.synced_lsn = self.next_lsn - 1;
        Ok(())
    }

    pub(crate) fn config(&self) -> &Config {
        &self.directory.config
    }

    pub(crate) fn synced_lsn(&self) -> u64 {
        self.synced_lsn
    }

    pub(crate) fn last_lsn(&self) -> u64 {
        self.next_lsn - 1
    }

    pub(crate) fn active_segment(&self) -> u64 {
        self.active.header.segment
    }

    /// How many of the frames go into what is left of the active segment.
    fn fitting(&self, frames: &[&mut Frame]) -> usize {
        let reserve = self.directory.config.reserve_bytes();
        let mut end = self.end;
        let fits = |frame: &&&mut Frame| {
            end += frame.bytes.len() as u64;
            // A segment that was made for one large frame has no reserve behind it.
            let is_first = end == SEGMENT_HEADER_BYTES as u64 + frame.bytes.len() as u64;
            let reserve = if is_first || frame.only_frees() { 0 } else { reserve };
            end + reserve <= self.file_bytes
        };
        frames.iter().take_while(fits).count()
    }

    fn write(&mut self, frames: &mut [&mut Frame], places: &mut Vec<Place>) -> io::Result<()> {
        let SegmentHeader { segment, salt, .. } = self.active.header;
        let (mut end, mut lsn) = (self.end, self.next_lsn);
        for frame in frames.iter_mut() {
            let header = FrameHeader {
                body_bytes: (frame.bytes.len() - FRAME_HEADER_BYTES) as u32,
                segment,
                lsn,
                synced_lsn: self.synced_lsn,
                body_checksum: frame.body_checksum,
            };
            frame.bytes[..FRAME_HEADER_BYTES].copy_from_slice(&header.encode(salt));
            let offset = u32::try_from(end).expect("a segment and a batch have at most 1 GiB each");
            places.push(Place { segment, offset, lsn });
            end += frame.bytes.len() as u64;
            lsn += 1;
        }
        let parts: Vec<IoSlice<'_>> = frames.iter().map(|f| IoSlice::new(&f.bytes)).collect();
        self.active.file.write_all_at(&parts, self.end)?;
        (self.end, self.next_lsn) = (end, lsn);
        Ok(())
    }

    /// Seals the active segment and begins one that has room for a frame of `frame_bytes`.
    fn begin_segment(&mut self, frame_bytes: u64) -> Result<(), Failure> {
        let Directory { fs, path, config, .. } = &self.directory;
        let header = SegmentHeader {
            segment: self.active.header.segment + 1,
            first_lsn: self.next_lsn,
            salt: config.draw_salt(),
        };
        let file_bytes = config.segment_bytes.max(SEGMENT_HEADER_BYTES as u64 + frame_bytes);
        // A full disk is found out here, before anything of the log has changed.
        let next = match Segment::prepare(&**fs, path, header, file_bytes) {
            Err(error) if error.kind() == io::ErrorKind::StorageFull => {
                Segment::remove_unfinished(&**fs, path).map_err(Failure::Broken)?;
                return Err(Failure::NoSpace);
            }
            other => Arc::new(other.map_err(Failure::Broken)?),
        };
        self.active.cut(self.end).map_err(Failure::Broken)?;
        self.synced_lsn = self.next_lsn - 1;
        next.publish(&**fs, path).map_err(Failure::Broken)?;
        self.segments.insert(next.clone());
        self.active = next;
        self.end = SEGMENT_HEADER_BYTES as u64;
        self.file_bytes = file_bytes;
        Ok(())
    }

    /// Removes the names of dead segments, none of them the active one.
    pub(crate) fn remove(&mut self, dead: &[u64]) -> io::Result<()> {
        let Directory { fs, path, .. } = &self.directory;
        for number in dead {
            assert_ne!(*number, self.active_segment(), "the active segment is never dead");
            segment::remove(&**fs, path, *number)?;
            self.segments.remove(*number);
        }
        fs.sync_dir(path)
    }
}
