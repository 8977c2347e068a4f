//! One file of the log: made, appended to, sealed, read.

use crate::error::Error;
use crate::format::{SEGMENT_HEADER_BYTES, SegmentHeader};
use flotilla_vfs::{File, FileSystem, OpenMode};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

const SUFFIX: &str = ".log";
/// A segment gets its name only when it is whole, so a file with another name is no segment.
const UNFINISHED: &str = "next-segment.tmp";

/// An open segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) header: SegmentHeader,
    pub(crate) file: Arc<dyn File>,
}

impl Segment {
    /// Makes a segment of `file_bytes` zeros behind its header, durable but not yet named.
    pub(crate) fn prepare(
        fs: &dyn FileSystem,
        dir: &Path,
        header: SegmentHeader,
        file_bytes: u64,
    ) -> io::Result<Segment> {
        Segment::remove_unfinished(fs, dir)?;
        let file = fs.open(&dir.join(UNFINISHED), OpenMode::CreateNew)?;
        file.allocate(0..file_bytes)?;
        file.write_at(&header.encode(), 0)?;
        file.sync()?;
        Ok(Segment { header, file })
    }

    /// Makes a prepared segment part of the log, durably.
    pub(crate) fn publish(&self, fs: &dyn FileSystem, dir: &Path) -> io::Result<()> {
        fs.rename(&dir.join(UNFINISHED), &path(dir, self.header.segment))?;
        fs.sync_dir(dir)
    }

    /// Removes what is left of a segment whose making was cut short.
    pub(crate) fn remove_unfinished(fs: &dyn FileSystem, dir: &Path) -> io::Result<()> {
        match fs.remove(&dir.join(UNFINISHED)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Opens a segment that is part of the log.
    pub(crate) fn open(fs: &dyn FileSystem, dir: &Path, segment: u64) -> Result<Segment, Error> {
        let file = fs.open(&path(dir, segment), OpenMode::Write)?;
        let mut bytes = [0; SEGMENT_HEADER_BYTES];
        let corrupt = |what| Error::Corrupt { segment, offset: 0, what };
        if file.len()? < SEGMENT_HEADER_BYTES as u64 {
            return Err(corrupt("the segment's header is cut short"));
        }
        file.read_exact_at(&mut bytes, 0)?;
        let header = SegmentHeader::decode(&bytes).map_err(corrupt)?;
        if header.segment != segment {
            return Err(corrupt("the segment has another segment's name"));
        }
        Ok(Segment { header, file })
    }

    /// Cuts the file behind its last frame. What is cut off never comes back.
    pub(crate) fn cut(&self, end: u64) -> io::Result<()> {
        self.file.set_len(end)?;
        self.file.sync()
    }

    /// Reads `len` bytes at `offset`; both come from the index.
    pub(crate) fn read(&self, offset: u64, len: usize) -> io::Result<Vec<u8>> {
        let mut bytes = vec![0; len];
        self.file.read_exact_at(&mut bytes, offset)?;
        Ok(bytes)
    }
}

/// Removes a segment's name. Who has it open can go on reading.
pub(crate) fn remove(fs: &dyn FileSystem, dir: &Path, segment: u64) -> io::Result<()> {
    fs.remove(&path(dir, segment))
}

/// The numbers of all segments in the directory, in order.
pub(crate) fn list(fs: &dyn FileSystem, dir: &Path) -> io::Result<Vec<u64>> {
    let mut segments: Vec<u64> = fs.list(dir)?.iter().filter_map(|name| number(name)).collect();
    segments.sort_unstable();
    Ok(segments)
}

fn path(dir: &Path, segment: u64) -> PathBuf {
    dir.join(name(segment))
}

fn name(segment: u64) -> String {
    format!("{segment:020}{SUFFIX}")
}

fn number(name: &str) -> Option<u64> {
    let digits = name.strip_suffix(SUFFIX)?;
    let segment = digits.parse().ok()?;
    // Segments are counted from 1: the index takes 0 for nowhere.
    (segment > 0 && name == self::name(segment)).then_some(segment)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_sort_as_their_numbers_do() {
        assert_eq!(name(12), "00000000000000000012.log");
        assert!(name(9) < name(10) && name(99) < name(u64::MAX));
        assert_eq!(number(&name(u64::MAX)), Some(u64::MAX));
        for other in [
            "LOCK",
            "12.log",
            "00000000000000000012.tmp",
            UNFINISHED,
            "+0000000000000000012.log",
            "00000000000000000000.log",
        ] {
            assert_eq!(number(other), None, "{other}");
        }
    }
}
