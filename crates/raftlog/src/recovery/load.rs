//! Loads segments in parallel: the summary of a footer, or a scan of the frames.

use crate::batch::frame::Change;
use crate::error::Error;
use crate::format::item;
use crate::format::layout::{FRAME_HEADER_BYTES, SEGMENT_HEADER_BYTES};
use crate::index::summary::SegmentSummary;
use crate::recovery::background_io::BackgroundIo;
use crate::recovery::frame_scanner::{self, FrameScanner, ScannedFrame};
use crate::segments::directory::LogDirectory;
use crate::segments::footer;
use crate::segments::segment::Segment;
use flotilla_vfs::View;
use parking_lot::Mutex;
use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

/// How many bytes are checked behind the last byte that was written, as the file system reports it.
const LOOK_BYTES: usize = 4096;

/// A segment on disk, and its summary.
#[derive(Debug)]
pub(crate) struct LoadedSegment {
    pub(crate) segment: Segment,
    /// The number of its first frame, if at least the header of that is whole.
    pub(crate) first_lsn: Option<u64>,
    /// The end of its last frame, and the number of the next one.
    pub(crate) end: u64,
    pub(crate) next_lsn: u64,
    /// All frames up to here are synced, by the evidence of the segment itself.
    pub(crate) synced_lsn: u64,
    pub(crate) has_footer: bool,
    /// The torn bytes behind the last frame, if no other process can write: see
    /// [`LoadedSegment::torn_bytes`].
    torn: Option<Result<usize, &'static str>>,
    /// If it has no frames: see [`LoadedSegment::touched_bytes`].
    touched_bytes: Option<usize>,
    /// A sync of frames that are not known to be synced.
    syncing: Option<BackgroundIo>,
    summary: Option<SegmentSummary>,
    /// The offset of a whole frame with wrong items, and the reason.
    fault: Option<(usize, &'static str)>,
}

impl LoadedSegment {
    pub(crate) fn number(&self) -> u64 {
        self.segment.number()
    }

    pub(crate) fn has_frames(&self) -> bool {
        self.first_lsn.is_some_and(|first| self.next_lsn > first)
    }

    /// Whether it has a footer, which proves that all its frames are there and synced.
    pub(crate) fn is_sealed(&self) -> bool {
        self.has_frames() && self.has_footer
    }

    /// Its net change. Without a footer the summary is needed once more, to write one; with a
    /// footer this is to be called once.
    pub(crate) fn take_summary(&mut self) -> Result<SegmentSummary, Error> {
        if let Some((offset, what)) = self.fault {
            return Err(self.corrupt(offset, what));
        }
        let summary = if self.has_footer { self.summary.take() } else { self.summary.clone() };
        Ok(summary.unwrap_or_default())
    }

    /// The segment and, if it has no footer, the summary for one.
    pub(crate) fn into_parts(self) -> (Segment, SegmentSummary) {
        (self.segment, self.summary.unwrap_or_default())
    }

    /// How many bytes of frames that were being written are left behind the last one. To be asked
    /// of the last segment of the log only.
    ///
    /// # Errors
    ///
    /// The bytes there cannot be the rest of an unsynced flush: offset and reason.
    pub(crate) fn torn_bytes(&self) -> Result<usize, Error> {
        if let Some(torn) = self.torn {
            return torn.map_err(|what| self.corrupt(self.end as usize, what));
        }
        let bytes = self.view()?;
        let scan = FrameScanner::new(&bytes, self.segment.header, self.next_lsn);
        let mut scan = scan.resume(self.end as usize);
        // Another process may have written to it meanwhile.
        while scan.step().is_some() {}
        scan.torn_bytes().map_err(|what| self.corrupt(scan.offset(), what))
    }

    /// How many bytes behind the segment's header are known to be of frames, whole or not.
    pub(crate) fn touched_bytes(&self) -> Result<usize, Error> {
        match self.touched_bytes {
            Some(bytes) => Ok(bytes),
            None => Ok(frame_scanner::touched_bytes(&self.view()?, self.segment.header)),
        }
    }

    /// Makes its frames durable; those up to `synced_lsn` are so already.
    pub(crate) fn sync(&mut self, synced_lsn: u64) -> io::Result<()> {
        match self.syncing.take() {
            Some(syncing) => syncing.wait(),
            None if self.next_lsn - 1 > synced_lsn => self.segment.file.sync(),
            None => Ok(()),
        }
    }

    /// Cuts off what is behind the last frame, durably.
    pub(crate) fn cut(&mut self) -> io::Result<()> {
        // The kernel may report a failed sync only once.
        self.syncing.take().map_or(Ok(()), BackgroundIo::wait)?;
        self.segment.cut(self.end)
    }

    /// Reads the frames and, if no other process can write, the bytes behind them.
    fn scan(&mut self, bytes: &[u8], first_lsn: u64, is_ours: bool) {
        let mut scan = FrameScanner::new(bytes, self.segment.header, first_lsn);
        let mut summary = SegmentSummary::default();
        while let Some(frame) = scan.step() {
            if let Err(what) = add_frame(&frame, &mut summary) {
                self.fault = Some((frame.offset, what));
                break;
            }
        }
        self.end = scan.offset() as u64;
        debug_assert!(scan.offset() <= bytes.len(), "frames to {} of {}", self.end, bytes.len());
        self.next_lsn = scan.next_lsn();
        self.synced_lsn = scan.synced_lsn();
        self.summary = Some(summary);
        self.torn = is_ours.then(|| scan.torn_bytes());
    }

    /// All bytes of the file, mapped from the page cache: a copy of a whole segment would cost more
    /// than the scan. To be dropped before the file is written to or cut.
    pub(crate) fn view(&self) -> Result<View, Error> {
        Ok(self.segment.file.view(0..self.segment.file.len()?)?)
    }

    /// The same without the zeros behind the last byte that was ever written: a scan of them would
    /// bring their pages into memory first.
    fn view_data(&self, file_bytes: usize, data_end: u64) -> Result<View, Error> {
        let end =
            usize::try_from(data_end).unwrap_or(file_bytes).clamp(SEGMENT_HEADER_BYTES, file_bytes);
        // A file system that misreports the end of its data is found out at the next byte.
        let next = self.segment.read(end as u64, LOOK_BYTES.min(file_bytes - end))?;
        if next.iter().any(|byte| *byte != 0) {
            return self.view();
        }
        Ok(self.segment.file.view(0..end as u64)?)
    }

    pub(crate) fn corrupt(&self, offset: usize, what: &'static str) -> Error {
        Error::Corrupt { segment: self.number(), offset: offset as u64, what }
    }
}

/// Loads segments, in this order, with as many threads as the configuration says. The newest come
/// first: they have no footer, so it takes longest to read them and to sync them, which is begun
/// here.
///
/// # Errors
///
/// A segment has no whole header, or cannot be read. Errors in its frames are reported later, by
/// [`LoadedSegment::take_summary`].
pub(crate) fn all(directory: &LogDirectory, numbers: &[u64]) -> Result<Vec<LoadedSegment>, Error> {
    let thread_count = directory.config.recovery_threads.min(numbers.len());
    if thread_count <= 1 {
        let mut buffer = Vec::new();
        return numbers.iter().map(|number| load(directory, *number, &mut buffer)).collect();
    }
    let next = AtomicUsize::new(1);
    let results = Mutex::new(Vec::with_capacity(numbers.len()));
    thread::scope(|scope| {
        let work = || {
            let mut buffer = Vec::new();
            while let before_end = next.fetch_add(1, Ordering::Relaxed)
                && let Some(at) = numbers.len().checked_sub(before_end)
            {
                let loaded = load(directory, numbers[at], &mut buffer);
                results.lock().push((at, loaded));
            }
        };
        // If the kernel refuses more threads, the present ones do the work.
        let spawn = |_| thread::Builder::new().spawn_scoped(scope, work).ok();
        let others: Vec<_> = (1..thread_count).map_while(spawn).collect();
        work();
        // The scope waits for the end of the closures, not for the exit of the threads.
        for other in others {
            other.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
        }
    });
    let mut results = results.into_inner();
    assert_eq!(results.len(), numbers.len(), "each segment is loaded once");
    results.sort_unstable_by_key(|(at, _)| *at);
    results.into_iter().map(|(_, loaded)| loaded).collect()
}

/// Loads one segment. The buffer is for footers, one after the other.
fn load(
    directory: &LogDirectory,
    number: u64,
    buffer: &mut Vec<u8>,
) -> Result<LoadedSegment, Error> {
    let segment = directory.open(number)?;
    let end = SEGMENT_HEADER_BYTES as u64;
    let mut loaded = LoadedSegment {
        segment,
        first_lsn: None,
        end,
        next_lsn: 0,
        synced_lsn: 0,
        has_footer: false,
        torn: None,
        touched_bytes: None,
        syncing: None,
        summary: None,
        fault: None,
    };
    let file_bytes = loaded.segment.file.len()?;
    // A footer ends with the file. To read where nothing was written would bring that page into
    // memory, and from then on the file system would count it as data.
    let data_end = loaded.segment.file.data_end()?;
    let may_be_sealed = data_end >= file_bytes;
    let footer = if may_be_sealed { footer::read(&loaded.segment, buffer)? } else { None };
    if let Some(footer) = footer {
        loaded.first_lsn = Some(footer.summary.first_lsn());
        loaded.next_lsn = footer.summary.last_lsn() + 1;
        loaded.synced_lsn = footer.summary.last_lsn();
        loaded.end = footer.end;
        loaded.has_footer = true;
        loaded.summary = Some(footer.summary);
        return Ok(loaded);
    }
    if loaded.segment.header.is_reduced() {
        return Err(loaded.corrupt(SEGMENT_HEADER_BYTES, "the footer is damaged"));
    }
    let file_bytes = file_bytes as usize;
    // This shows most of the empty segments.
    let beginning =
        loaded.segment.read(0, file_bytes.min(SEGMENT_HEADER_BYTES + FRAME_HEADER_BYTES))?;
    loaded.first_lsn = frame_scanner::first_lsn(&beginning, loaded.segment.header);
    // Bytes that another process may write to meanwhile are read when all else is read.
    let is_ours = !directory.is_read_only;
    let bytes = if is_ours { loaded.view_data(file_bytes, data_end)? } else { loaded.view()? };
    if let Some(first_lsn) = loaded.first_lsn {
        if is_ours && directory.config.recovery_threads > 1 {
            let file = loaded.segment.file.clone();
            loaded.syncing = BackgroundIo::start(move || file.sync());
        }
        loaded.scan(&bytes, first_lsn, is_ours);
    } else if is_ours {
        loaded.touched_bytes = Some(frame_scanner::touched_bytes(&bytes, loaded.segment.header));
    }
    Ok(loaded)
}

/// Adds the items of a frame to a summary.
fn add_frame(frame: &ScannedFrame<'_>, summary: &mut SegmentSummary) -> Result<(), &'static str> {
    let offset = u32::try_from(frame.offset).map_err(|_| "a frame begins beyond 4 GiB")?;
    summary.begin_frame(frame.lsn);
    for (at, item) in item::items_of(frame.items) {
        summary.apply(&Change::of(item?, at as u32), offset)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::format::layout::SegmentHeader;
    use flotilla_vfs::fault::FaultFs;
    use flotilla_vfs::os::OsFs;
    use flotilla_vfs::{FileSystem, OpenMode};
    use std::path::Path;
    use std::sync::Arc;

    fn loaded(disk: &FaultFs, syncing: Option<io::Result<()>>) -> LoadedSegment {
        let file = disk.open(Path::new("/7"), OpenMode::CreateNew).expect("made");
        let segment = Segment {
            header: SegmentHeader { segment: 7, salt: 5, is_reused: false, reduced_at_lsn: 0 },
            file,
        };
        LoadedSegment {
            segment,
            first_lsn: Some(1),
            end: 64,
            next_lsn: 4,
            synced_lsn: 0,
            has_footer: false,
            torn: None,
            touched_bytes: None,
            syncing: syncing.map(|result| BackgroundIo::start(|| result).expect("started")),
            summary: None,
            fault: None,
        }
    }

    #[test]
    fn what_was_never_written_is_not_looked_at_unless_something_is_there() {
        let disk = FaultFs::new(1);
        let loaded = loaded(&disk, None);
        let file = &loaded.segment.file;
        file.allocate(0..1 << 20).expect("there is room");
        file.write_at(&[7; 5000], 0).expect("written");
        let seen = |data_end| loaded.view_data(1 << 20, data_end).expect("seen").len();
        assert_eq!(seen(file.data_end().expect("known")), 8192);
        assert_eq!(seen(5000), 5000);
        // The file system is wrong, or knows nothing.
        for data_end in [0, 4999, 1 << 20, u64::MAX] {
            assert_eq!(seen(data_end), 1 << 20, "{data_end}");
        }
    }

    #[test]
    fn a_segment_made_ahead_stays_as_it_is_on_disk() {
        let dir = tempfile::tempdir().expect("made");
        let fs = Arc::new(OsFs::new());
        let directory =
            LogDirectory::writable(fs, dir.path(), Config::default()).expect("nobody has it");
        let made = directory.make(1, 8 << 20..=8 << 20, None).expect("there is room").segment;
        let data_end = || made.file.data_end().expect("known");
        let before = data_end();
        let loaded = load(&directory, 1, &mut Vec::new()).expect("it is whole");
        assert_eq!((loaded.first_lsn, loaded.touched_bytes), (None, Some(0)));
        // All of it, where the file system does not know what was written.
        let is_unread = data_end() < made.file.len().expect("known");
        assert!(is_unread || before == 8 << 20, "from {before} on all is in memory now");
    }

    #[test]
    fn a_sync_that_was_begun_is_the_one_that_counts() {
        let failed = || Some(Err(io::ErrorKind::Other.into()));
        // The disk itself would say that all is well.
        assert!(loaded(&FaultFs::new(1), failed()).sync(3).is_err());
        assert!(loaded(&FaultFs::new(1), failed()).cut().is_err());
        assert!(loaded(&FaultFs::new(1), Some(Ok(()))).sync(0).is_ok());
        assert!(loaded(&FaultFs::new(1), None).cut().is_ok());
    }

    #[test]
    fn what_is_not_known_to_be_synced_is_synced() {
        for (synced_lsn, is_ok) in [(2, false), (3, true)] {
            let disk = FaultFs::new(1);
            let mut loaded = loaded(&disk, None);
            disk.fail_syncs(true);
            assert_eq!(loaded.sync(synced_lsn).is_ok(), is_ok, "{synced_lsn}");
        }
    }
}
