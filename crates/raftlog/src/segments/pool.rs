//! The segment pool: the preallocated next segment, full segments that wait to be sealed, and
//! recycled ones.
//!
//! An append takes from here and puts back here without touching the disk, as long as a background
//! thread preallocates and seals in time. If none does, the append does so itself.
//!
//! Invariants:
//! - At most one segment is preallocated, its number follows the newest that has frames, and it has
//!   its name and its header durably.
//! - Full segments are sealed oldest first. A file gets no frames once it is here, so one sync that
//!   succeeds covers it; after one that failed no other is tried, whichever thread asks.
//! - No lock that an append needs is held over the disk, except to wait for the very segment or the
//!   very sync without which it cannot go on.

use crate::batch::frame::WritePriority;
use crate::format::layout::SEGMENT_HEADER_BYTES;
use crate::segments::directory::{LogDirectory, PreallocatedSegment};
use crate::segments::disk_quota::{self, QuotaExceeded, ReservedFiles};
use crate::segments::room_wait::RoomWait;
use crate::segments::segment::{Segment, Segments};
use crate::segments::surplus::SurplusTrim;
use crate::segments::unsealed::UnsealedSegment;
use crate::segments::zero_fill::{FillPace, FillStep, ZEROS};
use flotilla_base::event_count::EventCount;
use flotilla_base::sync::Mutex;
use flotilla_vfs::File;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How many full segments may wait to be sealed. Above it an append seals the oldest itself, which
/// bounds the bytes that are not on disk.
const UNSEALED_MAX: usize = 2;

/// The first segment after opening has this part of the configured length. Each later one is as
/// long as all before it together, until they have the full length: an idle log takes little room.
/// `docs/decisions/0027-segments-grow-and-zeros-are-paced.md`
const FIRST_PART: u64 = 64;

/// The first segment is not shorter than this, unless the configured length is.
const FIRST_BYTES_MIN: u64 = 4 << 10;

/// The files of a log that are not appended to: preallocated, unsealed and recycled segments.
#[derive(Debug)]
pub(crate) struct SegmentPool {
    directory: LogDirectory,
    /// The segments that have frames.
    segments: Arc<Segments>,
    state: Mutex<PoolState>,
    /// Held while the next segment is made.
    make_lock: Mutex<()>,
    /// Held while a segment is sealed.
    seal_lock: Mutex<()>,
    /// The pace at which the preallocated segment is filled with zeros.
    pace: FillPace,
    surplus: SurplusTrim,
    /// Whether a thread calls [`SegmentPool::trim_surplus`] again and again.
    is_trimmed: AtomicBool,
    /// Whether writes wait for room.
    pub(crate) room: RoomWait,
    /// All frames up to here are synced, as far as sealing has found out. Each append looks at it.
    synced_lsn: AtomicU64,
    /// Notified when there may be something to preallocate or to seal.
    pub(crate) event_count: Arc<EventCount>,
}

#[derive(Debug, Default)]
struct PoolState {
    /// The newest segment that has, or is about to get, frames.
    newest: u64,
    preallocated: Option<PreallocatedSegment>,
    /// The length of all segments that were taken since the log was opened.
    taken_bytes: u64,
    unsealed: VecDeque<Arc<UnsealedSegment>>,
    recycled: BTreeSet<u64>,
    /// The last attempt to make a segment found no room.
    is_short_of_room: bool,
    is_closed: bool,
}

/// The reason why frames could not be appended.
#[derive(Debug)]
pub(crate) enum AppendFailure {
    /// There is no room for another segment; the log is as it was.
    NoSpace,
    /// The quota allows no other segment; the log is as it was.
    Full(QuotaExceeded),
    /// Something may have been written: the content of the file is unknown.
    Broken(io::Error),
}

impl From<io::Error> for AppendFailure {
    fn from(error: io::Error) -> AppendFailure {
        AppendFailure::Broken(error)
    }
}

impl AppendFailure {
    /// The reason why no segment was made.
    fn of_making(error: io::Error) -> AppendFailure {
        if is_full(&error) { AppendFailure::NoSpace } else { AppendFailure::Broken(error) }
    }
}

impl SegmentPool {
    /// The pool of a log of which `newest` is the last segment with frames, zero if there is none,
    /// and all frames up to `synced_lsn` are durable.
    pub(crate) fn new(
        directory: LogDirectory,
        segments: Arc<Segments>,
        newest: u64,
        preallocated: Option<PreallocatedSegment>,
        recycled: impl IntoIterator<Item = u64>,
        synced_lsn: u64,
    ) -> SegmentPool {
        let recycled = recycled.into_iter().collect();
        let state = PoolState { newest, preallocated, recycled, ..PoolState::default() };
        let event_count = Arc::<EventCount>::default();
        SegmentPool {
            directory,
            segments,
            state: Mutex::new(state),
            make_lock: Mutex::default(),
            seal_lock: Mutex::default(),
            pace: FillPace::new(event_count.clone()),
            surplus: SurplusTrim::default(),
            is_trimmed: AtomicBool::new(false),
            room: RoomWait::default(),
            synced_lsn: AtomicU64::new(synced_lsn),
            event_count,
        }
    }

    pub(crate) fn directory(&self) -> &LogDirectory {
        &self.directory
    }

    /// The newest segment that has frames. Only the thread that appends may rely on it for longer.
    pub(crate) fn newest(&self) -> u64 {
        self.state.lock().newest
    }

    pub(crate) fn synced_lsn(&self) -> u64 {
        self.synced_lsn.load(Ordering::Acquire)
    }

    /// The length of the preallocated segment, if there is one.
    pub(crate) fn preallocated_bytes(&self) -> Option<u64> {
        self.state.lock().preallocated.as_ref().map(|preallocated| preallocated.file_bytes)
    }

    /// The oldest full segment that is not sealed.
    pub(crate) fn unsealed_from(&self) -> Option<u64> {
        self.state.lock().unsealed.front().map(|unsealed| unsealed.segment.number())
    }

    /// How many full segments are not sealed, and how many recycled ones there are.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.unsealed.len() as u64, state.recycled.len() as u64)
    }

    /// The numbers of full segments that are not sealed.
    pub(crate) fn unsealed(&self) -> Vec<u64> {
        self.state.lock().unsealed.iter().map(|unsealed| unsealed.segment.number()).collect()
    }

    /// Whether purge should free space at any price: there was no room for a segment, or there soon
    /// may not be.
    pub(crate) fn is_short_of_room(&self) -> bool {
        let (is_short, reserved_files) = {
            let state = self.state.lock();
            (state.is_short_of_room, state.reserved_files())
        };
        is_short
            || disk_quota::is_near(
                &self.directory.config,
                self.segments.file_bytes(),
                reserved_files,
            )
    }

    /// Bytes of all files.
    pub(crate) fn disk_bytes(&self) -> u64 {
        let reserved_files = self.state.lock().reserved_files();
        disk_quota::disk_bytes(&self.directory.config, self.segments.file_bytes(), reserved_files)
    }

    /// Counts bytes that are about to be written and need not be synced. To be called by one thread
    /// at a time.
    pub(crate) fn expect_unsynced(&self, bytes: u64) {
        self.pace.expect_unsynced(bytes);
    }

    /// The frames of the active segment now end at `end`.
    pub(crate) fn advance(&self, end: u64) {
        self.pace.advance(end);
    }

    /// Preallocates the next segment, if there is none, or writes the next zeros to it, if they are
    /// due. False if there was nothing to do.
    ///
    /// # Errors
    ///
    /// [`AppendFailure::NoSpace`] and [`AppendFailure::Full`] if there is no room for it now; after
    /// any other the state on disk is unknown.
    pub(crate) fn preallocate(&self) -> Result<bool, AppendFailure> {
        let _one = self.make_lock.lock();
        {
            let state = self.state.lock();
            if state.is_closed {
                return Ok(false);
            }
            if let Some(preallocated) = &state.preallocated {
                let file = preallocated.segment.file.clone();
                let (unwritten, file_bytes) =
                    (preallocated.unwritten.clone(), preallocated.file_bytes);
                drop(state);
                return Ok(self.fill(&*file, unwritten, file_bytes)?);
            }
        }
        let bytes = self.next_bytes();
        let made = self
            .check(bytes, WritePriority::Normal)
            .and_then(|()| self.make(bytes).map_err(AppendFailure::of_making));
        let mut state = self.state.lock();
        state.is_short_of_room = made.is_err();
        assert!(state.preallocated.is_none(), "two segments are preallocated");
        state.preallocated = Some(made?);
        Ok(true)
    }

    /// Writes the next zeros to the preallocated segment. The caller holds the lock without which
    /// no append takes the segment: zeros that come late would overwrite frames.
    fn fill(&self, file: &dyn File, unwritten: Range<u64>, file_bytes: u64) -> io::Result<bool> {
        let end = match self.pace.next(&unwritten, file_bytes) {
            FillStep::Later => return Ok(false),
            FillStep::Skip(end) => end,
            FillStep::Write(piece) => {
                file.write_at(&ZEROS[..(piece.end - piece.start) as usize], piece.start)?;
                // No sync: one of the log at the same time would wait for its metadata.
                file.write_back(piece.clone())?;
                if piece.end == file_bytes {
                    // Else the first sync of frames would have to write the metadata of all.
                    file.sync()?;
                }
                piece.end
            }
        };
        let mut state = self.state.lock();
        let preallocated = state.preallocated.as_mut().expect("it is taken under the same lock");
        preallocated.unwritten.start = end;
        Ok(true)
    }

    /// The length of a segment that is made now.
    fn next_bytes(&self) -> u64 {
        let config = &self.directory.config;
        let full_bytes = config.segment_bytes;
        // Of a shorter one most would be the reserve.
        let least_bytes = FIRST_BYTES_MIN.max(2 * config.reserve_bytes());
        let first_bytes = (full_bytes / FIRST_PART).max(least_bytes).min(full_bytes);
        self.state.lock().taken_bytes.clamp(first_bytes, full_bytes)
    }

    /// The next segment, with room for `bytes` in all. It is made, or made longer, if it has to be;
    /// and if the disk is full and the write frees space, or would wait for room, it may be a short
    /// one.
    pub(crate) fn take(
        &self,
        bytes: u64,
        priority: WritePriority,
    ) -> Result<PreallocatedSegment, AppendFailure> {
        // Before the lock: the thread that holds it may be filling zeros, and may stop then.
        self.pace.is_write_waiting.store(true, Ordering::Relaxed);
        let _one = self.make_lock.lock();
        self.pace.is_write_waiting.store(false, Ordering::Relaxed);
        let full_bytes = self.next_bytes().max(bytes);
        let taken = self.take_sized(bytes, full_bytes, priority);
        let is_short_of_room = taken.is_err();
        let taken = match taken {
            Err(AppendFailure::NoSpace | AppendFailure::Full(_))
                if self.room.is_on()
                    || matches!(priority, WritePriority::Rewrite | WritePriority::Reclaim) =>
            {
                let short_bytes = bytes + self.directory.config.reserve_bytes();
                self.take_sized(bytes, short_bytes.min(full_bytes), priority)
            }
            other => other,
        };
        let mut state = self.state.lock();
        state.is_short_of_room = is_short_of_room;
        if let Ok(preallocated) = &taken {
            let number = preallocated.segment.number();
            assert_eq!(number, state.newest + 1, "segments have no gaps");
            assert!(preallocated.file_bytes >= bytes, "segment {number} has no {bytes} bytes");
            state.newest = number;
            state.taken_bytes += preallocated.file_bytes;
            drop(state);
            self.pace.begin_active(preallocated.file_bytes);
            self.event_count.notify();
        }
        taken
    }

    /// The preallocated segment, with room for `bytes`, or a new one of `new_bytes`.
    fn take_sized(
        &self,
        bytes: u64,
        new_bytes: u64,
        priority: WritePriority,
    ) -> Result<PreallocatedSegment, AppendFailure> {
        let preallocated_bytes = self.preallocated_bytes();
        self.check(
            preallocated_bytes.map_or(new_bytes, |preallocated| preallocated.max(bytes)),
            priority,
        )?;
        let preallocated = self.state.lock().preallocated.take();
        let made = match preallocated {
            Some(preallocated) => self.grow(preallocated, bytes),
            None => self.make(new_bytes),
        };
        made.map_err(AppendFailure::of_making)
    }

    /// Whether the quota allows a next segment of this many bytes.
    fn check(&self, bytes: u64, priority: WritePriority) -> Result<(), AppendFailure> {
        let config = &self.directory.config;
        if config.disk_bytes_max.is_none() {
            return Ok(());
        }
        let reserved_files = self.state.lock().reserved_files();
        let checked =
            disk_quota::check(config, self.segments.file_bytes(), reserved_files, bytes, priority);
        checked.map_err(AppendFailure::Full)
    }

    /// Queues a full segment to be sealed. If too many wait, the oldest is sealed at once.
    pub(crate) fn add_unsealed(&self, unsealed: UnsealedSegment) -> io::Result<()> {
        let waiting = {
            let mut state = self.state.lock();
            let (number, last) = (unsealed.segment.number(), state.unsealed.back());
            assert!(last.is_none_or(|last| last.segment.number() < number), "{number} is late");
            state.unsealed.push_back(Arc::new(unsealed));
            state.unsealed.len()
        };
        self.event_count.notify();
        if waiting > UNSEALED_MAX {
            self.seal_oldest()?;
        }
        Ok(())
    }

    /// Makes the frames of all full segments durable, oldest first.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.pace.count_sync();
        let unsealed: Vec<_> = self.state.lock().unsealed.iter().cloned().collect();
        unsealed.iter().try_for_each(|unsealed| unsealed.sync())
    }

    /// Seals the oldest full segment. False if there is none.
    pub(crate) fn seal_oldest(&self) -> io::Result<bool> {
        self.seal_next().map(|sealed| sealed.is_some())
    }

    fn seal_next(&self) -> io::Result<Option<Arc<UnsealedSegment>>> {
        let _one = self.seal_lock.lock();
        let Some(oldest) = self.state.lock().unsealed.front().cloned() else { return Ok(None) };
        // Without the lock of the state, so that appends go on meanwhile.
        oldest.seal()?;
        self.synced_lsn.fetch_max(oldest.summary.last_lsn(), Ordering::AcqRel);
        let sealed = self.state.lock().unsealed.pop_front();
        assert!(sealed.is_some_and(|s| Arc::ptr_eq(&s, &oldest)), "another thread has sealed");
        Ok(Some(oldest))
    }

    /// Takes dead segments out of the log: recycles as many as are wanted, of those that no reader
    /// holds, and removes the others. Where surplus files are trimmed, all of those are recycled
    /// for a while, since that frees nothing yet. A durable batch must have discarded them.
    ///
    /// # Errors
    ///
    /// The error of the file system. Dead segments that are left are removed when the log is
    /// opened.
    pub(crate) fn discard(&self, dead: Vec<(u64, Option<Arc<Segment>>)>) -> io::Result<()> {
        // No segment may be sealed while its file is renamed or removed.
        let _one = self.seal_lock.lock();
        let (config, segment_bytes) = (&self.directory.config, self.segments.file_bytes());
        let room = {
            let mut state = self.state.lock();
            let newest = state.newest;
            assert!(dead.iter().all(|(number, _)| *number < newest), "{newest} is appended to");
            state.unsealed.retain(|o| dead.iter().all(|(number, _)| *number != o.segment.number()));
            state.is_short_of_room = false;
            let ReservedFiles { preallocated_bytes, recycled_count } = state.reserved_files();
            let wanted = disk_quota::recycled_count_max(config, segment_bytes, preallocated_bytes);
            match state.is_closed {
                true => 0,
                // With a quota, files that wait would look like a log that is nearly full.
                false if self.is_trimmed() && config.disk_bytes_max.is_none() => usize::MAX,
                false => wanted.saturating_sub(recycled_count) as usize,
            }
        };
        let mut recycled = Vec::new();
        // A short one, from the time after opening, would have to grow first.
        let least_bytes = self.next_bytes() / 4 * 3;
        for (number, segment) in dead {
            // A reader goes on reading the dead segment, so that its file cannot be written to.
            let segment = segment.and_then(Arc::into_inner);
            let is_fit = segment.is_some_and(|s| s.file.len().is_ok_and(|len| len >= least_bytes));
            if is_fit && recycled.len() < room {
                self.directory.recycle(number)?;
                recycled.push(number);
            } else {
                self.directory.remove(number)?;
            }
        }
        self.directory.sync()?;
        // Only after the sync: a recycled file may be taken, and written to, from here on.
        self.state.lock().recycled.extend(recycled);
        match self.is_trimmed() {
            true => self.event_count.notify(),
            false => self.remove_surplus()?,
        }
        Ok(())
    }

    /// Says whether surplus files are trimmed from now on, by calls of
    /// [`SegmentPool::trim_surplus`]. If not, purge removes them at once.
    pub(crate) fn set_trimmed(&self, is_trimmed: bool) {
        self.is_trimmed.store(is_trimmed, Ordering::Relaxed);
    }

    fn is_trimmed(&self) -> bool {
        self.is_trimmed.load(Ordering::Relaxed)
    }

    /// Gives a piece of the surplus files back to the file system; false if there is none.
    ///
    /// # Errors
    ///
    /// The error of the file system. Files that are left are removed when the log is opened.
    pub(crate) fn trim_surplus(&self) -> io::Result<bool> {
        let spare = self.directory.config.spare_segments;
        let waiting = self.state.lock().recycled.len().saturating_sub(spare + 1) as u64;
        self.surplus.step(&self.directory, waiting, || self.state.lock().take_surplus(spare))
    }

    /// Removes all surplus files.
    fn remove_surplus(&self) -> io::Result<()> {
        self.surplus.finish(&self.directory)?;
        let spare = self.directory.config.spare_segments;
        while let Some(recycled_number) = self.state.lock().take_surplus(spare) {
            self.directory.remove_recycled(recycled_number)?;
        }
        Ok(())
    }

    /// Seals all full segments, and recycles the preallocated one, so that the last segment of the
    /// log is sealed. From now on no segment is made.
    pub(crate) fn close(&self) -> io::Result<()> {
        let preallocated = {
            let _one = self.make_lock.lock();
            let mut state = self.state.lock();
            state.is_closed = true;
            state.preallocated.take()
        };
        while let Some(sealed) = self.seal_next()? {
            // The next start finds the footer then, whatever happens until then.
            sealed.segment.file.sync()?;
        }
        if let Some(preallocated) = preallocated {
            let is_wanted = self.state.lock().recycled.len() < self.directory.config.spare_segments;
            let number = preallocated.segment.number();
            if is_wanted {
                self.directory.recycle(number)?
            } else {
                self.directory.remove(number)?
            }
        }
        self.remove_surplus()?;
        self.directory.sync()
    }

    /// Makes the next segment, of `file_bytes` unless it is a longer one that is recycled. To be
    /// called by one thread at a time.
    fn make(&self, file_bytes: u64) -> io::Result<PreallocatedSegment> {
        let (number, recycled_number) = {
            let mut state = self.state.lock();
            (state.newest + 1, state.recycled.pop_first())
        };
        let limits = file_bytes..=self.directory.config.segment_bytes.max(file_bytes);
        let made = self.directory.make(number, limits, recycled_number);
        if made.is_err() {
            self.state.lock().recycled.extend(recycled_number);
        }
        made
    }

    /// Gives a preallocated segment room for `bytes`; if there is none it stays as it was.
    fn grow(
        &self,
        mut preallocated: PreallocatedSegment,
        bytes: u64,
    ) -> io::Result<PreallocatedSegment> {
        debug_assert!(preallocated.file_bytes > SEGMENT_HEADER_BYTES as u64);
        if bytes > preallocated.file_bytes {
            if let Err(error) = preallocated.segment.file.allocate(preallocated.file_bytes..bytes) {
                self.state.lock().preallocated = Some(preallocated);
                return Err(error);
            }
            preallocated.file_bytes = bytes;
            preallocated.unwritten = bytes..bytes;
        }
        Ok(preallocated)
    }
}

impl PoolState {
    /// A recycled segment above the number that is wanted.
    fn take_surplus(&mut self, wanted: usize) -> Option<u64> {
        if self.recycled.len() > wanted { self.recycled.pop_last() } else { None }
    }

    fn reserved_files(&self) -> ReservedFiles {
        let preallocated_bytes =
            self.preallocated.as_ref().map_or(0, |preallocated| preallocated.file_bytes);
        ReservedFiles { preallocated_bytes, recycled_count: self.recycled.len() as u64 }
    }
}

fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use flotilla_vfs::fault::FaultFs;
    use std::path::Path;

    fn pool(fs: Arc<FaultFs>, segment_bytes: u64) -> SegmentPool {
        let config = Config { segment_bytes, ..Config::default() };
        let directory = LogDirectory::writable(fs, Path::new("/"), config).expect("nobody has it");
        SegmentPool::new(directory, Arc::default(), 0, None, [], 0)
    }

    #[test]
    fn segments_grow_to_the_full_length_and_so_do_recycled_ones() {
        let fs = Arc::new(FaultFs::new(1));
        let pool = pool(fs, 64 << 20);
        let take = |recycled: Option<u64>| {
            pool.state.lock().recycled.extend(recycled);
            let taken = pool.take(5000, WritePriority::Normal).expect("there is room");
            (taken.file_bytes >> 20, taken.segment.header.is_reused)
        };
        let lengths: Vec<u64> = (0..9).map(|_| take(None).0).collect();
        assert_eq!(lengths, [1, 1, 2, 4, 8, 16, 32, 64, 64]);
        pool.directory.recycle(1).expect("renamed");
        assert_eq!(take(Some(1)), (64, true));
        // After opening, a recycled segment stays as long as it is.
        pool.state.lock().taken_bytes = 0;
        pool.directory.recycle(9).expect("renamed");
        assert_eq!(take(Some(9)), (64, true));
    }

    #[test]
    fn surplus_files_are_given_back_in_pieces_where_somebody_does() {
        let fs = Arc::new(FaultFs::new(1));
        let pool = pool(fs.clone(), 16 << 20);
        let spare = pool.directory.config.spare_segments;
        let recycled = || pool.directory.list().expect("listed").recycled.len();
        let recycle = |count: u64| {
            let dead = (0..count)
                .map(|_| pool.take(16 << 20, WritePriority::Normal).expect("there is room"))
                .map(|taken| (taken.segment.number(), Some(Arc::new(taken.segment))))
                .collect();
            // The newest is never dead.
            pool.take(16 << 20, WritePriority::Normal).expect("there is room");
            pool.discard(dead).expect("discarded");
        };
        recycle(10);
        assert_eq!(recycled(), spare);
        assert!(!pool.trim_surplus().expect("nothing to do"));
        pool.set_trimmed(true);
        recycle(10);
        assert_eq!(recycled(), 10);
        let mut pieces = 0;
        while pool.trim_surplus().expect("trimmed") {
            pieces += 1;
        }
        assert_eq!((recycled(), pieces), (spare, 8 * (10 - spare)));
        recycle(10);
        assert!(pool.trim_surplus().expect("trimmed"));
        pool.close().expect("closed");
        assert_eq!(recycled(), spare);
    }

    #[test]
    fn zeros_end_before_the_frames_of_a_segment_that_was_taken() {
        let pool = pool(Arc::new(FaultFs::new(1)), 64 << 20);
        while pool.preallocate().expect("there is room") {
            let state = pool.state.lock();
            if state.preallocated.as_ref().is_some_and(|next| next.unwritten.start > 4096) {
                break;
            }
        }
        let taken = pool.take(5000, WritePriority::Normal).expect("there is room");
        assert!(!taken.unwritten.is_empty(), "{taken:?}");
        let file = &taken.segment.file;
        file.write_at(&[7; 100_000], 64).expect("written");
        let data_end = file.data_end().expect("known");
        // All that follows goes to the next segment.
        pool.sync().expect("nothing to sync");
        while pool.preallocate().expect("there is room") {}
        assert_eq!(file.data_end().expect("known"), data_end);
        assert_eq!(taken.segment.read(64, 100_000).expect("read"), [7; 100_000]);
    }

    #[test]
    fn zeros_are_given_up_for_who_does_not_sync() {
        const SEGMENT_BYTES: u64 = 4 << 20;
        const FIRST_BYTES: u64 = 128 << 10;
        let data_end = |unsynced_bytes: &[u64], is_synced| {
            let pool = pool(Arc::new(FaultFs::new(1)), SEGMENT_BYTES);
            unsynced_bytes.iter().for_each(|bytes| pool.expect_unsynced(*bytes));
            if is_synced {
                pool.sync().expect("nothing to sync");
            }
            while pool.preallocate().expect("there is room") {}
            let preallocated = pool.state.lock().preallocated.take().expect("it was made");
            assert_eq!(preallocated.segment.file.len().expect("known"), FIRST_BYTES);
            preallocated.segment.file.data_end().expect("known")
        };
        const HEADER_END: u64 = 4096;
        assert_eq!(data_end(&[], false), FIRST_BYTES);
        assert_eq!(data_end(&[500_000; 2], false), FIRST_BYTES);
        assert_eq!(data_end(&[500_000; 3], false), HEADER_END);
        assert_eq!(data_end(&[500_000; 3], true), FIRST_BYTES);
    }
}
