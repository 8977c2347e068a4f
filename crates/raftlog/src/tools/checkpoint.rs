//! A checkpoint: copies the segments of a log that goes on being written.
//!
//! The bytes are verified on the way: a copy of damaged bytes is worse than none. The oldest
//! segment gets its name last, when all others are durable under theirs. Until then the directory
//! does not open: a log without its oldest segment is refused.

use crate::error::Error;
use crate::format::layout::SegmentHeader;
use crate::segments::directory::{self, LOCK_FILE};
use crate::segments::footer;
use crate::tools::inspect::{self, LogSnapshot};
use crate::tools::raw_scan::{RawScan, SegmentPart};
use crate::tools::verify::{ToolProgress, Verifier, VerifyLevel};
use flotilla_vfs::{FileSystem, OpenMode};
use std::io;
use std::path::{Path, PathBuf};

const UNFINISHED: &str = "oldest-segment.tmp";

/// A copy of a log.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LogCheckpoint {
    /// Segments copied.
    pub segments: u64,
    /// Bytes copied.
    pub bytes: u64,
    /// The last batch in the copy; all before it are there as well.
    pub last_lsn: u64,
}

/// Copies the segments of the snapshot to a directory that is empty or missing.
pub(crate) fn copy(
    snapshot: &LogSnapshot,
    fs: &dyn FileSystem,
    dir: &Path,
    on_progress: &mut dyn FnMut(ToolProgress),
) -> Result<LogCheckpoint, Error> {
    make_empty(fs, dir)?;
    let mut made = Vec::new();
    let copied = copy_into(snapshot, fs, dir, on_progress, &mut made);
    if copied.is_err() {
        for path in made {
            // A file that cannot be removed makes the next attempt fail, with an error that names
            // the directory.
            let _ = fs.remove(&path);
        }
    }
    copied
}

/// Makes a directory for a log that is written at once.
///
/// # Errors
///
/// [`Error::Invalid`] if it is not empty.
pub(crate) fn make_empty(fs: &dyn FileSystem, dir: &Path) -> Result<(), Error> {
    fs.create_dir_all(dir)?;
    if fs.list(dir)?.is_empty() {
        Ok(())
    } else {
        Err(Error::Invalid(format!("{}, the directory to write to, is not empty", dir.display())))
    }
}

fn copy_into(
    snapshot: &LogSnapshot,
    fs: &dyn FileSystem,
    dir: &Path,
    on_progress: &mut dyn FnMut(ToolProgress),
    made: &mut Vec<PathBuf>,
) -> Result<LogCheckpoint, Error> {
    let mut checkpoint = LogCheckpoint { last_lsn: snapshot.last_lsn, ..LogCheckpoint::default() };
    let mut progress = ToolProgress { bytes_done: 0, bytes: snapshot.bytes()? };
    let mut verifier = Verifier::new(VerifyLevel::Frames, Some(snapshot.last_lsn));
    let (mut bytes, mut oldest) = (Vec::new(), None);
    for segment in &snapshot.segments {
        on_progress(progress);
        inspect::read_file(&*segment.file, &mut bytes)?;
        let number = segment.number();
        let corrupt = |what| Error::Corrupt { segment: number, offset: 0, what };
        let header = inspect::header_of(number, &bytes).map_err(corrupt)?;
        verifier.segment(header, &bytes, true);
        progress.bytes_done += bytes.len() as u64;
        bytes.truncate(end_of(&bytes, header, snapshot.last_lsn));
        let path = directory::segment_path(dir, number);
        let path = match oldest {
            Some(_) => path,
            None => {
                oldest = Some(path);
                dir.join(UNFINISHED)
            }
        };
        let file = fs.open(&path, OpenMode::CreateNew)?;
        made.push(path);
        file.write_at(&bytes, 0)?;
        file.sync()?;
        checkpoint.segments += 1;
        checkpoint.bytes += bytes.len() as u64;
    }
    on_progress(progress);
    if let Some(problem) = verifier.finish().problems.first() {
        let (segment, offset, what) = (problem.segment, problem.offset, problem.what);
        return Err(Error::Corrupt { segment, offset, what });
    }
    finish(fs, dir, oldest, made)?;
    Ok(checkpoint)
}

/// Makes the copied files a log.
fn finish(
    fs: &dyn FileSystem,
    dir: &Path,
    oldest: Option<PathBuf>,
    made: &mut Vec<PathBuf>,
) -> io::Result<()> {
    fs.sync_dir(dir)?;
    if let Some(oldest) = oldest {
        fs.rename(&dir.join(UNFINISHED), &oldest)?;
        made.push(oldest);
    }
    // A log without a batch has nothing else.
    let lock = dir.join(LOCK_FILE);
    fs.open(&lock, OpenMode::CreateNew)?;
    made.push(lock);
    fs.sync_dir(dir)
}

/// The length of a segment's copy: all of a sealed one, or else its frames.
fn end_of(bytes: &[u8], header: SegmentHeader, last_lsn: u64) -> usize {
    if footer::of_file(bytes, header).is_some_and(|footer| footer.summary.last_lsn() <= last_lsn) {
        return bytes.len();
    }
    let mut end = crate::format::layout::SEGMENT_HEADER_BYTES;
    for piece in RawScan::new(bytes, header) {
        match piece {
            SegmentPart::Frame(frame) if frame.header.lsn <= last_lsn => {
                end = frame.offset + frame.header.frame_bytes();
            }
            _ => break,
        }
    }
    end
}
