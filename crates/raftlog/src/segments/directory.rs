//! The directory of a log: the names of its files, and how a file becomes a segment.
//!
//! A file is filled, given its header and synced under another name, and only then renamed to a
//! segment's; frames go to it only after the directory was synced as well. So a file that has a
//! segment's name has a whole header. A dead segment may be kept as a recycled segment: its name
//! says only that, and its content means nothing until it becomes a segment again.

use crate::config::Config;
use crate::error::Error;
use crate::format::layout::{self, SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::segments::read_only_fs::ReadOnlyFs;
use crate::segments::segment::Segment;
use flotilla_vfs::{File, FileSystem, LockGuard, OpenMode};
use std::io;
use std::ops::{Range, RangeInclusive};
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SUFFIX: &str = ".log";
const RECYCLED_PREFIX: &str = "spare-";
const UNFINISHED: &str = "next-segment.tmp";
/// The unit in which a file system maps and writes a file, mostly.
const BLOCK_BYTES: u64 = 4096;

/// The file that is locked while a process may write.
pub(crate) const LOCK_FILE: &str = "LOCK";

/// A file that says: all segments are damaged and have to go, since salvaged ones take their place.
pub(crate) const OUT_MARK: &str = "salvage-out.mark";

/// A file that says: the damaged segments are gone, and the salvaged ones are still to be renamed.
pub(crate) const IN_MARK: &str = "salvage-in.mark";

/// The directory, and the configuration of its segments.
#[derive(Clone, Debug)]
pub(crate) struct LogDirectory {
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) path: PathBuf,
    pub(crate) config: Config,
    /// Nothing may be changed, and another process may write.
    pub(crate) is_read_only: bool,
    /// Held as long as this process can write.
    pub(crate) _lock: Arc<dyn LockGuard>,
}

/// The files of a log, by number, in order.
#[derive(Debug, Default)]
pub(crate) struct SegmentListing {
    pub(crate) segments: Vec<u64>,
    pub(crate) recycled: Vec<u64>,
}

/// A segment without frames.
#[derive(Debug)]
pub(crate) struct PreallocatedSegment {
    pub(crate) segment: Segment,
    pub(crate) file_bytes: u64,
    /// The rest of the file, as far as it was never written: allocated blocks that read as zeros.
    pub(crate) unwritten: Range<u64>,
}

impl LogDirectory {
    /// The directory of a log, made if missing, which no other process may write as long as this
    /// lives.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`] if one may.
    pub(crate) fn writable(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        config: Config,
    ) -> Result<LogDirectory, Error> {
        fs.create_dir_all(dir)?;
        let (path, _lock) = (dir.to_owned(), lock(&*fs, dir)?.into());
        Ok(LogDirectory { fs, path, config, is_read_only: false, _lock })
    }

    /// Keeps writers out of the directory of a log without making anything there, as long as the
    /// guard lives. None is made where no writer can come: there is no lock file yet, or the file
    /// system is mounted for reading only.
    ///
    /// # Errors
    ///
    /// [`Error::Locked`] if the log is open for writing.
    pub(crate) fn keep_writers_out(
        fs: &dyn FileSystem,
        dir: &Path,
    ) -> Result<Option<Box<dyn LockGuard>>, Error> {
        let names = match fs.list(dir) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            names => names?,
        };
        if !names.iter().any(|name| name == LOCK_FILE) {
            return Ok(None);
        }
        match lock(fs, dir) {
            Err(Error::Io(error)) if error.kind() == io::ErrorKind::ReadOnlyFilesystem => Ok(None),
            locked => locked.map(Some),
        }
    }

    /// The directory of a log that is opened for reading only: nothing is changed.
    ///
    /// # Errors
    ///
    /// [`Error::NoLog`] if no file in it belongs to a log; [`Error::Corrupt`] if some of the
    /// segments in it are the damaged ones and others those that were salvaged.
    pub(crate) fn read_only(
        fs: Arc<dyn FileSystem>,
        dir: &Path,
        config: Config,
    ) -> Result<LogDirectory, Error> {
        let fs = Arc::new(ReadOnlyFs::new(fs));
        let (path, lock) = (dir.to_owned(), fs.lock(&dir.join(LOCK_FILE))?.into());
        let directory = LogDirectory { fs, path, config, is_read_only: true, _lock: lock };
        if !directory.is_log()? {
            return Err(Error::NoLog { dir: directory.path });
        }
        if directory.mark()?.is_some() {
            let segment = directory.list()?.segments.first().copied().unwrap_or(0);
            let what = "a salvage was cut short: opening the log for writing goes on with it";
            return Err(Error::Corrupt { segment, offset: 0, what });
        }
        Ok(directory)
    }

    pub(crate) fn list(&self) -> io::Result<SegmentListing> {
        let mut listing = SegmentListing::default();
        for name in self.fs.list(&self.path)? {
            if let Some(segment) = number(&name) {
                listing.segments.push(segment);
            } else if let Some(recycled_number) =
                name.strip_prefix(RECYCLED_PREFIX).and_then(number)
            {
                listing.recycled.push(recycled_number);
            }
        }
        listing.segments.sort_unstable();
        listing.recycled.sort_unstable();
        Ok(listing)
    }

    /// Whether any file in the directory belongs to a log.
    fn is_log(&self) -> io::Result<bool> {
        let is_ours = |name: &String| name == LOCK_FILE || number(name).is_some();
        match self.fs.list(&self.path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            names => Ok(names?.iter().any(is_ours)),
        }
    }

    /// The mark of a salvage that is under way, or was cut short.
    pub(crate) fn mark(&self) -> io::Result<Option<&'static str>> {
        let names = self.fs.list(&self.path)?;
        Ok([OUT_MARK, IN_MARK].into_iter().find(|mark| names.iter().any(|name| name == mark)))
    }

    /// Opens a segment that is part of the log.
    pub(crate) fn open(&self, segment: u64) -> Result<Segment, Error> {
        let file = self.open_file(segment, OpenMode::Write)?;
        let mut bytes = vec![0; file.len()?.min(SEGMENT_HEADER_BYTES as u64) as usize];
        file.read_exact_at(&mut bytes, 0)?;
        if let Some(version) = layout::other_version(&bytes) {
            return Err(Error::UnknownFormat { segment, version });
        }
        let header = SegmentHeader::decode_named(&bytes, segment);
        let header = header.map_err(|what| Error::Corrupt { segment, offset: 0, what })?;
        Ok(Segment { header, file })
    }

    /// Opens the file of a segment, whatever is in it.
    pub(crate) fn open_file(&self, segment: u64, mode: OpenMode) -> io::Result<Arc<dyn File>> {
        self.fs.open(&self.segment_path(segment), mode)
    }

    /// Makes a segment, durably, with its name: of the recycled segment with this number, or of a
    /// new file. A new one has the least length, a recycled one keeps its own if that lies between
    /// the limits.
    ///
    /// # Errors
    ///
    /// `StorageFull` if there is no room for it: then nothing is left of it but the recycled
    /// segment, if it was to be made of one. After any other error the state on disk is unknown.
    pub(crate) fn make(
        &self,
        segment: u64,
        file_bytes: RangeInclusive<u64>,
        recycled_number: Option<u64>,
    ) -> io::Result<PreallocatedSegment> {
        assert!(*file_bytes.start() > SEGMENT_HEADER_BYTES as u64, "segment {segment} has no room");
        let (from, mode) = match recycled_number {
            Some(number) => (self.recycled_path(number), OpenMode::Write),
            None => {
                self.remove_unfinished()?;
                (self.path.join(UNFINISHED), OpenMode::CreateNew)
            }
        };
        let is_reused = recycled_number.is_some();
        let file = self.fs.open(&from, mode)?;
        let unwritten = allocate(&*file, &file_bytes).or_else(|error| {
            if !is_reused && error.kind() == io::ErrorKind::StorageFull {
                self.remove_unfinished()?;
            }
            Err(error)
        })?;
        let salt = self.config.draw_salt();
        let header = SegmentHeader { segment, salt, is_reused, reduced_at_lsn: 0 };
        file.write_at(&header.encode(), 0)?;
        file.sync()?;
        // The name last: a file with a segment's name has a whole header, whatever crashes.
        self.fs.rename(&from, &self.segment_path(segment))?;
        self.sync()?;
        let (segment, file_bytes) = (Segment { header, file }, unwritten.end);
        Ok(PreallocatedSegment { segment, file_bytes, unwritten })
    }

    /// Removes a segment's name. A reader that has it open goes on reading.
    pub(crate) fn remove(&self, segment: u64) -> io::Result<()> {
        self.fs.remove(&self.segment_path(segment))
    }

    /// Makes a recycled segment of a dead one, which no reader may hold any more. It may be written
    /// to once the directory is synced: before, a power loss could undo the rename.
    pub(crate) fn recycle(&self, segment: u64) -> io::Result<()> {
        self.fs.rename(&self.segment_path(segment), &self.recycled_path(segment))
    }

    /// The length of a recycled segment.
    pub(crate) fn recycled_bytes(&self, recycled_number: u64) -> io::Result<u64> {
        self.fs.open(&self.recycled_path(recycled_number), OpenMode::Read)?.len()
    }

    /// Cuts the end of a recycled segment off. Not durable: nothing relies on its length.
    pub(crate) fn shorten_recycled(&self, recycled_number: u64, bytes: u64) -> io::Result<()> {
        self.fs.open(&self.recycled_path(recycled_number), OpenMode::Write)?.set_len(bytes)
    }

    pub(crate) fn remove_recycled(&self, recycled_number: u64) -> io::Result<()> {
        self.fs.remove(&self.recycled_path(recycled_number))
    }

    /// Removes what is left of a segment whose making was cut short.
    pub(crate) fn remove_unfinished(&self) -> io::Result<()> {
        remove_unfinished(&*self.fs, &self.path)
    }

    /// Makes the names durable.
    pub(crate) fn sync(&self) -> io::Result<()> {
        self.fs.sync_dir(&self.path)
    }

    pub(crate) fn segment_path(&self, segment: u64) -> PathBuf {
        segment_path(&self.path, segment)
    }

    fn recycled_path(&self, recycled_number: u64) -> PathBuf {
        self.path.join(format!("{RECYCLED_PREFIX}{}", name(recycled_number)))
    }
}

/// Takes the lock of the log's writer.
fn lock(fs: &dyn FileSystem, dir: &Path) -> Result<Box<dyn LockGuard>, Error> {
    fs.lock(&dir.join(LOCK_FILE)).map_err(|error| match error.kind() {
        io::ErrorKind::WouldBlock => Error::Locked { dir: dir.to_owned() },
        _ => error.into(),
    })
}

/// Gives the file its length, with allocated blocks behind all of it. Returns the part that was
/// never written; it ends with the file.
fn allocate(file: &dyn File, file_bytes: &RangeInclusive<u64>) -> io::Result<Range<u64>> {
    let before = file.len()?;
    let after = before.clamp(*file_bytes.start(), *file_bytes.end());
    if before > after {
        file.set_len(after)?;
    } else if before < after {
        file.allocate(before..after)?;
    }
    // The header, which is written next, takes the first block.
    Ok(before.max(BLOCK_BYTES).min(after)..after)
}

/// Removes what is left in `dir` of a segment whose making was cut short.
pub(crate) fn remove_unfinished(fs: &dyn FileSystem, dir: &Path) -> io::Result<()> {
    match fs.remove(&dir.join(UNFINISHED)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

/// The path of a segment of the log in `dir`.
pub(crate) fn segment_path(dir: &Path, segment: u64) -> PathBuf {
    dir.join(name(segment))
}

fn name(segment: u64) -> String {
    format!("{segment:020}{SUFFIX}")
}

pub(crate) fn number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    let segment = digits.parse().ok()?;
    // Segments are counted from 1, the index takes 0 for nowhere; and there is always a next one.
    ((1..u64::MAX).contains(&segment) && name == self::name(segment)).then_some(segment)
}

#[cfg(test)]
mod tests {
    use super::*;
    use flotilla_vfs::fault::FaultFs;

    fn directory(disk: &FaultFs) -> LogDirectory {
        let config = Config { salt: Some(1), ..Config::default() };
        LogDirectory::writable(Arc::new(disk.clone()), Path::new("/log"), config)
            .expect("nobody has it")
    }

    #[test]
    fn names_sort_as_their_numbers_do() {
        assert_eq!(name(12), "00000000000000000012.log");
        assert!(name(9) < name(10) && name(99) < name(u64::MAX));
        assert_eq!(number(&name(u64::MAX - 1)), Some(u64::MAX - 1));
        for other in [
            "LOCK",
            "12.log",
            "00000000000000000012.tmp",
            UNFINISHED,
            "+0000000000000000012.log",
            "00000000000000000000.log",
            "18446744073709551615.log",
        ] {
            assert_eq!(number(other), None, "{other}");
        }
    }

    #[test]
    fn files_become_segments_spares_and_segments_again() {
        let disk = FaultFs::new(1);
        let directory = directory(&disk);
        for number in [1, 2] {
            let made = directory.make(number, 9000..=9000, None).expect("made");
            assert_eq!((made.file_bytes, made.unwritten), (9000, 4096..9000));
            let segment = made.segment;
            assert_eq!((segment.number(), segment.file.len().expect("known")), (number, 9000));
            assert!(!segment.header.is_reused);
            assert!(segment.read(64, 9000 - 64).expect("read").iter().all(|byte| *byte == 0));
        }
        directory.recycle(1).expect("renamed");
        let listing = directory.list().expect("listed");
        assert_eq!((listing.segments, listing.recycled), (vec![2], vec![1]));
        // Cut to a shorter segment, grown to a longer one, and as long as it was.
        for (number, limits, file_bytes, unwritten) in [
            (3, 4500..=5000, 5000, 5000..5000),
            (4, 12_000..=13_000, 12_000, 9000..12_000),
            (5, 4500..=13_000, 12_000, 12_000..12_000),
        ] {
            let recycled = if number == 5 { 4 } else { number - 2 };
            let made = directory.make(number, limits, Some(recycled)).expect("made");
            assert_eq!((made.file_bytes, made.unwritten), (file_bytes, unwritten));
            let segment = made.segment;
            assert_eq!(segment.file.len().expect("known"), file_bytes);
            assert!(segment.header.is_reused && segment.number() == number);
            directory.open(number).expect("it is whole");
            directory.recycle(if number == 3 { 2 } else { number }).expect("renamed");
        }
        directory.make(6, 4500..=13_000, Some(5)).expect("made");
        disk.power_loss(1);
        let directory = self::directory(&disk);
        assert_eq!(directory.list().expect("listed").segments, [3, 6], "names are durable");
        assert_eq!(directory.open(6).expect("whole").file.len().expect("known"), 12_000);
    }

    #[test]
    fn a_full_disk_leaves_nothing_of_a_new_segment_and_a_spare_as_it_was() {
        let disk = FaultFs::new(1);
        let directory = directory(&disk);
        directory.make(1, 4096..=4096, None).expect("made");
        directory.recycle(1).expect("renamed");
        disk.set_capacity(Some(8192));
        for recycled in [None, Some(1)] {
            let full = directory.make(2, 20_000..=20_000, recycled).expect_err("there is no room");
            assert_eq!(full.kind(), io::ErrorKind::StorageFull);
            assert_eq!(disk.list(Path::new("/log")).expect("listed").len(), 2, "LOCK and a spare");
        }
        directory.make(2, 4096..=4096, Some(1)).expect("the room is there already");
    }
}
