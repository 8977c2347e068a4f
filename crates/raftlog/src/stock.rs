//! Segments before and after their time: the next one, made ahead; those that are full and not yet
//! sealed; and dead ones that are kept to be used again.
//!
//! Whoever appends takes from here and puts back here without touching the disk, as long as somebody
//! else makes and seals in time. If nobody does, it does so itself.
//!
//! Invariants:
//! - At most one segment is made ahead, its number follows the newest that has frames, and it has
//!   its name and its header durably.
//! - Full segments are sealed oldest first. A file gets no frames once it is here, so one sync that
//!   succeeds covers it; after one that failed no other is tried, whoever asks.
//! - No lock that an append needs is held over the disk, except to wait for the very segment or the
//!   very sync without which it cannot go on.

use crate::directory::{Directory, Source};
use crate::footer;
use crate::format::SEGMENT_HEADER_BYTES;
use crate::frame::Need;
use crate::limits::{self, Aside, Over};
use crate::segment::{Segment, Segments};
use crate::signal::Signal;
use crate::summary::Summary;
use crate::sync::Mutex;
use std::collections::{BTreeSet, VecDeque};
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

/// How many full segments may wait to be sealed. Over it an append seals the oldest itself, or what
/// is not on disk would grow without bounds.
const OUTGOING_MAX: usize = 2;

/// The next segment is filled with zeros if there was a sync for each so many bytes of the last one.
/// Syncs of bytes that only replace others are quicker; where one covers much, writing everything
/// twice costs more than that gains.
const ZEROS_BYTES_PER_SYNC: u64 = 16 << 10;

/// Zeros are given up once so much was written without a sync.
const UNSYNCED_BYTES_MAX: u64 = 64 * ZEROS_BYTES_PER_SYNC;

/// Segments that nobody appends to yet, or any more.
#[derive(Debug)]
pub(crate) struct Stock {
    directory: Directory,
    /// Those that have frames.
    segments: Arc<Segments>,
    state: Mutex<State>,
    /// Held while the next segment is made.
    one_makes: Mutex<()>,
    /// Held while a segment is sealed.
    one_seals: Mutex<()>,
    /// Syncs since a segment was last made ahead; before that as if there had been many.
    sync_count: AtomicU64,
    /// Bytes of writes since the last sync that want none; the newest may not be written yet.
    unsynced_bytes: AtomicU64,
    /// A write waits for the next segment.
    is_awaited: AtomicBool,
    /// All frames up to here are synced, as far as that was found out here. Each append looks at it.
    synced_lsn: AtomicU64,
    /// Raised when there may be something to make or to seal.
    pub(crate) signal: Arc<Signal>,
}

#[derive(Debug, Default)]
struct State {
    /// The newest segment that has, or is about to get, frames.
    newest: u64,
    prepared: Option<Prepared>,
    outgoing: VecDeque<Arc<Outgoing>>,
    spares: BTreeSet<u64>,
    /// There was no room for a segment when one was to be made last.
    is_short_of_room: bool,
    is_closed: bool,
}

/// A segment without frames.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) segment: Segment,
    pub(crate) file_bytes: u64,
}

/// A segment that gets no more frames.
#[derive(Debug)]
pub(crate) struct Outgoing {
    segment: Arc<Segment>,
    /// Where its last frame ends.
    end: u64,
    summary: Summary,
    synced: Mutex<Synced>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Synced {
    NotYet,
    Done,
    Failed,
}

/// Why frames could not be appended.
#[derive(Debug)]
pub(crate) enum Failure {
    /// There is no room for another segment; the log is as it was.
    NoSpace,
    /// There may not be another segment; the log is as it was.
    Full(Over),
    /// Something may have been written, and nobody knows what.
    Broken(io::Error),
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Failure {
        Failure::Broken(error)
    }
}

impl Failure {
    /// Why no segment was made.
    fn of_making(error: io::Error) -> Failure {
        if is_full(&error) { Failure::NoSpace } else { Failure::Broken(error) }
    }
}

impl Outgoing {
    pub(crate) fn new(
        segment: Arc<Segment>,
        end: u64,
        summary: Summary,
        is_synced: bool,
    ) -> Outgoing {
        let synced = Mutex::new(if is_synced { Synced::Done } else { Synced::NotYet });
        Outgoing { segment, end, summary, synced }
    }

    /// Makes its frames durable. Of several threads one does it, and all learn how it went: the
    /// system tells of a failed write only once.
    fn sync(&self) -> io::Result<()> {
        let mut synced = self.synced.lock();
        match *synced {
            Synced::Done => return Ok(()),
            Synced::Failed => {
                return Err(io::Error::other("an earlier sync of the segment failed"));
            }
            Synced::NotYet => {}
        }
        *synced = Synced::Failed;
        self.segment.file.sync()?;
        *synced = Synced::Done;
        Ok(())
    }

    fn seal(&self) -> io::Result<()> {
        self.sync()?;
        footer::write(&self.segment, &self.summary, self.end)
    }
}

impl Stock {
    /// The stock of a log of which `newest` is the last segment with frames, zero if there is none,
    /// and all frames up to `synced_lsn` are durable.
    pub(crate) fn new(
        directory: Directory,
        segments: Arc<Segments>,
        newest: u64,
        prepared: Option<Prepared>,
        spares: impl IntoIterator<Item = u64>,
        synced_lsn: u64,
    ) -> Stock {
        let spares = spares.into_iter().collect();
        let state = State { newest, prepared, spares, ..State::default() };
        let (one_makes, one_seals) = (Mutex::default(), Mutex::default());
        let (sync_count, signal) = (AtomicU64::new(u64::from(u32::MAX)), Arc::default());
        let state = Mutex::new(state);
        let (unsynced_bytes, is_awaited) = (AtomicU64::new(0), AtomicBool::new(false));
        Stock {
            directory,
            segments,
            state,
            one_makes,
            one_seals,
            sync_count,
            unsynced_bytes,
            is_awaited,
            synced_lsn: AtomicU64::new(synced_lsn),
            signal,
        }
    }

    pub(crate) fn directory(&self) -> &Directory {
        &self.directory
    }

    /// The newest segment that has frames. Only whoever appends may rely on it for longer.
    pub(crate) fn newest(&self) -> u64 {
        self.state.lock().newest
    }

    pub(crate) fn synced_lsn(&self) -> u64 {
        self.synced_lsn.load(Ordering::Acquire)
    }

    /// How many bytes the next segment has, if it is made.
    pub(crate) fn prepared_bytes(&self) -> Option<u64> {
        self.state.lock().prepared.as_ref().map(|prepared| prepared.file_bytes)
    }

    /// The oldest full segment that is not sealed.
    pub(crate) fn unsealed_from(&self) -> Option<u64> {
        self.state.lock().outgoing.front().map(|outgoing| outgoing.segment.number())
    }

    /// How many full segments are not sealed, and how many spares there are.
    pub(crate) fn counts(&self) -> (u64, u64) {
        let state = self.state.lock();
        (state.outgoing.len() as u64, state.spares.len() as u64)
    }

    /// The numbers of full segments that are not sealed.
    pub(crate) fn outgoing(&self) -> Vec<u64> {
        self.state.lock().outgoing.iter().map(|outgoing| outgoing.segment.number()).collect()
    }

    /// Whether purge should free room at any price: there was none for a segment, or there soon may
    /// not be.
    pub(crate) fn is_short_of_room(&self) -> bool {
        let (is_short, aside) = {
            let state = self.state.lock();
            (state.is_short_of_room, state.aside())
        };
        is_short || limits::is_near(&self.directory.config, self.segments.file_bytes(), aside)
    }

    /// Takes note of bytes that are about to be written and need not be synced. To be called by one
    /// thread at a time.
    pub(crate) fn expect_unsynced(&self, bytes: u64) {
        let before = self.unsynced_bytes.load(Ordering::Relaxed);
        self.unsynced_bytes.store(before.saturating_add(bytes), Ordering::Relaxed);
    }

    /// Whether a segment that is being filled with zeros should be filled further: not if writes
    /// turn out to want no syncs, and least of all if such a one waits for the segment.
    fn are_zeros_wanted(&self) -> bool {
        let most = if self.is_awaited.load(Ordering::Relaxed) { 0 } else { UNSYNCED_BYTES_MAX };
        self.unsynced_bytes.load(Ordering::Relaxed) <= most
    }

    /// Makes the next segment ahead of its time, if it is not made.
    ///
    /// # Errors
    ///
    /// [`Failure::NoSpace`] and [`Failure::Full`] if there is no room for it now; after any other
    /// nobody knows what is there.
    pub(crate) fn prepare(&self) -> Result<bool, Failure> {
        let _one = self.one_makes.lock();
        {
            let state = self.state.lock();
            if state.prepared.is_some() || state.is_closed {
                return Ok(false);
            }
        }
        let bytes = self.directory.config.segment_bytes;
        let syncs = self.sync_count.swap(0, Ordering::Relaxed);
        let is_synced_often = syncs.saturating_mul(ZEROS_BYTES_PER_SYNC) >= bytes;
        let source = if is_synced_often { Source::Zeros } else { Source::Room };
        let made = self
            .check(bytes, Need::Adds)
            .and_then(|()| self.make(bytes, source).map_err(Failure::of_making));
        let mut state = self.state.lock();
        state.is_short_of_room = made.is_err();
        state.prepared = Some(made?);
        Ok(true)
    }

    /// The next segment, with room for `bytes` in all. It is made, or made longer, if it has to be;
    /// and if the disk is full and what is to be written helps that, it may be a short one.
    pub(crate) fn take(&self, bytes: u64, need: Need) -> Result<Prepared, Failure> {
        self.is_awaited.store(true, Ordering::Relaxed);
        let _one = self.one_makes.lock();
        self.is_awaited.store(false, Ordering::Relaxed);
        let full_bytes = self.directory.config.segment_bytes.max(bytes);
        let taken = self.take_sized(bytes, full_bytes, need);
        let is_short_of_room = taken.is_err();
        let taken = match taken {
            Err(Failure::NoSpace | Failure::Full(_))
                if matches!(need, Need::Moves | Need::Frees) =>
            {
                let short_bytes = bytes + self.directory.config.reserve_bytes();
                self.take_sized(bytes, short_bytes.min(full_bytes), need)
            }
            other => other,
        };
        let mut state = self.state.lock();
        state.is_short_of_room = is_short_of_room;
        if let Ok(prepared) = &taken {
            state.newest = prepared.segment.number();
            drop(state);
            self.signal.raise();
        }
        taken
    }

    /// The segment that was made ahead, with room for `bytes`, or a new one of `new_bytes`.
    fn take_sized(&self, bytes: u64, new_bytes: u64, need: Need) -> Result<Prepared, Failure> {
        let prepared_bytes = self.prepared_bytes();
        self.check(prepared_bytes.map_or(new_bytes, |prepared| prepared.max(bytes)), need)?;
        let prepared = self.state.lock().prepared.take();
        let made = match prepared {
            Some(prepared) => self.grow(prepared, bytes),
            None => self.make(new_bytes, Source::Room),
        };
        made.map_err(Failure::of_making)
    }

    /// Whether the limit of the configuration lets the log have a next segment of so many bytes.
    fn check(&self, bytes: u64, need: Need) -> Result<(), Failure> {
        let config = &self.directory.config;
        if config.disk_bytes_max.is_none() {
            return Ok(());
        }
        let aside = self.state.lock().aside();
        let checked = limits::check(config, self.segments.file_bytes(), aside, bytes, need);
        checked.map_err(Failure::Full)
    }

    /// Leaves a full segment to be sealed. If too many wait, the oldest is sealed at once.
    pub(crate) fn put(&self, outgoing: Outgoing) -> io::Result<()> {
        let waiting = {
            let mut state = self.state.lock();
            state.outgoing.push_back(Arc::new(outgoing));
            state.outgoing.len()
        };
        self.signal.raise();
        if waiting > OUTGOING_MAX {
            self.seal_oldest()?;
        }
        Ok(())
    }

    /// Makes the frames of all full segments durable, oldest first.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.sync_count.fetch_add(1, Ordering::Relaxed);
        self.unsynced_bytes.store(0, Ordering::Relaxed);
        let outgoing: Vec<_> = self.state.lock().outgoing.iter().cloned().collect();
        outgoing.iter().try_for_each(|outgoing| outgoing.sync())
    }

    /// Seals the oldest full segment. False if there is none.
    pub(crate) fn seal_oldest(&self) -> io::Result<bool> {
        self.seal_next().map(|sealed| sealed.is_some())
    }

    fn seal_next(&self) -> io::Result<Option<Arc<Outgoing>>> {
        let _one = self.one_seals.lock();
        let Some(oldest) = self.state.lock().outgoing.front().cloned() else { return Ok(None) };
        oldest.seal()?;
        self.synced_lsn.fetch_max(oldest.summary.last_lsn(), Ordering::AcqRel);
        self.state.lock().outgoing.pop_front();
        Ok(Some(oldest))
    }

    /// Takes dead segments out of the log: keeps as spares as many as are wanted, of those that
    /// nobody reads, and removes the others. They must be durably discarded.
    ///
    /// # Errors
    ///
    /// What the system refused. Those that are left are removed when the log is opened.
    pub(crate) fn discard(&self, dead: Vec<(u64, Option<Arc<Segment>>)>) -> io::Result<()> {
        let _one = self.one_seals.lock();
        let (config, segment_bytes) = (&self.directory.config, self.segments.file_bytes());
        let room = {
            let mut state = self.state.lock();
            state.outgoing.retain(|o| dead.iter().all(|(number, _)| *number != o.segment.number()));
            state.is_short_of_room = false;
            let Aside { prepared_bytes, spare_count } = state.aside();
            let wanted = limits::spare_count_max(config, segment_bytes, prepared_bytes);
            if state.is_closed { 0 } else { wanted.saturating_sub(spare_count) as usize }
        };
        let mut spares = Vec::new();
        for (number, segment) in dead {
            // Who reads goes on reading what was there, so such a file cannot be used again.
            let is_free = segment.is_some_and(|segment| Arc::into_inner(segment).is_some());
            if is_free && spares.len() < room {
                self.directory.retire(number)?;
                spares.push(number);
            } else {
                self.directory.remove(number)?;
            }
        }
        self.directory.sync()?;
        self.state.lock().spares.extend(spares);
        Ok(())
    }

    /// Seals all that is left, and puts the segment that was made ahead among the spares, so that
    /// the last segment of the log is one that is sealed. From now on nothing is made.
    pub(crate) fn close(&self) -> io::Result<()> {
        let prepared = {
            let _one = self.one_makes.lock();
            let mut state = self.state.lock();
            state.is_closed = true;
            state.prepared.take()
        };
        while let Some(sealed) = self.seal_next()? {
            // So that the next start finds the footer, whatever happens until then.
            sealed.segment.file.sync()?;
        }
        if let Some(prepared) = prepared {
            let is_wanted = self.state.lock().spares.len() < self.directory.config.spare_segments;
            let number = prepared.segment.number();
            if is_wanted {
                self.directory.retire(number)?
            } else {
                self.directory.remove(number)?
            }
        }
        self.directory.sync()
    }

    /// Makes the next segment. To be called by one thread at a time.
    fn make(&self, file_bytes: u64, source: Source) -> io::Result<Prepared> {
        let (number, spare) = {
            let mut state = self.state.lock();
            (state.newest + 1, state.spares.pop_first())
        };
        let source = spare.map_or(source, Source::Spare);
        match self.directory.make(number, file_bytes, source, &|| self.are_zeros_wanted()) {
            Ok(segment) => Ok(Prepared { segment, file_bytes }),
            Err(error) => {
                self.state.lock().spares.extend(spare);
                Err(error)
            }
        }
    }

    /// Gives a prepared segment room for `bytes`; if there is none it stays as it was.
    fn grow(&self, mut prepared: Prepared, bytes: u64) -> io::Result<Prepared> {
        debug_assert!(prepared.file_bytes > SEGMENT_HEADER_BYTES as u64);
        if bytes > prepared.file_bytes {
            if let Err(error) = prepared.segment.file.allocate(prepared.file_bytes..bytes) {
                self.state.lock().prepared = Some(prepared);
                return Err(error);
            }
            prepared.file_bytes = bytes;
        }
        Ok(prepared)
    }
}

impl State {
    fn aside(&self) -> Aside {
        let prepared_bytes = self.prepared.as_ref().map_or(0, |prepared| prepared.file_bytes);
        Aside { prepared_bytes, spare_count: self.spares.len() as u64 }
    }
}

fn is_full(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::StorageFull
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Config;
    use crate::format::SegmentHeader;
    use flotilla_vfs::fault::FaultFs;
    use flotilla_vfs::{FileSystem, OpenMode};
    use std::path::Path;

    #[test]
    fn zeros_are_given_up_for_who_does_not_sync() {
        const SEGMENT_BYTES: u64 = 1 << 20;
        let data_end = |unsynced_bytes: &[u64], is_awaited, is_synced| {
            let fs = Arc::new(FaultFs::new(1));
            let config = Config { segment_bytes: SEGMENT_BYTES, ..Config::default() };
            let directory = Directory::writable(fs, Path::new("/"), config).expect("nobody has it");
            let stock = Stock::new(directory, Arc::default(), 0, None, [], 0);
            unsynced_bytes.iter().for_each(|bytes| stock.expect_unsynced(*bytes));
            stock.is_awaited.store(is_awaited, Ordering::Relaxed);
            if is_synced {
                stock.sync().expect("nothing to sync");
            }
            assert!(stock.prepare().expect("there is room"));
            let prepared = stock.state.lock().prepared.take().expect("it was made");
            assert_eq!(prepared.segment.file.len().expect("known"), SEGMENT_BYTES);
            prepared.segment.file.data_end().expect("known")
        };
        const HEADER_END: u64 = 4096;
        assert_eq!(data_end(&[], true, false), SEGMENT_BYTES);
        assert_eq!(data_end(&[500_000; 2], false, false), SEGMENT_BYTES);
        assert_eq!(data_end(&[500_000; 3], false, false), HEADER_END);
        assert_eq!(data_end(&[500_000; 3], true, true), SEGMENT_BYTES);
        assert_eq!(data_end(&[1], true, false), HEADER_END);
        assert_eq!(data_end(&[1], false, false), SEGMENT_BYTES);
    }

    #[test]
    fn a_sync_that_failed_for_one_has_failed_for_all() {
        let disk = FaultFs::new(1);
        let file = disk.open(Path::new("/7"), OpenMode::CreateNew).expect("made");
        let header = SegmentHeader { segment: 7, salt: 5, is_reused: false };
        let segment = Arc::new(Segment { header, file });
        let outgoing = Outgoing::new(segment.clone(), 64, Summary::default(), false);
        disk.fail_syncs(true);
        assert!(outgoing.sync().is_err());
        disk.fail_syncs(false);
        // The disk says that all is well, to whoever asks after the one who was told.
        assert!(segment.file.sync().is_ok() && outgoing.sync().is_err());
        let outgoing = Outgoing::new(segment, 64, Summary::default(), true);
        disk.fail_syncs(true);
        assert!(outgoing.sync().is_ok(), "it was synced before it came here");
    }
}
