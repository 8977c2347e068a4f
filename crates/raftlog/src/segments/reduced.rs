//! Reduces a dead segment to its tombstones, so that its bytes are free while older segments are
//! still live.
//!
//! A tombstone (a compaction, a cut, a deletion, the removal of a group) must outlive all that it
//! hides, which may lie in any older segment. All other records of a dead segment are hidden or
//! replaced further on in the log. So a new file with the segment's header and a footer takes the
//! place of the old file: in that footer stand the tombstones alone.
//!
//! Invariants:
//! - The records that have replaced or hidden those of the segment are on disk before the old file
//!   goes. The new header says up to which frame of the log that was checked, so a log that ends
//!   before is known to be damaged.
//! - The new file is whole and synced before it gets the segment's name. A reader that holds the
//!   old file goes on reading it.

use crate::format::layout::{SEGMENT_HEADER_BYTES, SegmentHeader};
use crate::segments::directory::LogDirectory;
use crate::segments::footer;
use crate::segments::segment::Segment;
use flotilla_vfs::{FileSystem, OpenMode};
use std::io;
use std::path::Path;

const UNFINISHED: &str = "reduced-segment.tmp";

/// Reduces a sealed segment without live records. All frames of the log up to `synced_lsn` are on
/// disk. The names are made durable by the next sync of the directory; either name is right.
///
/// Returns `None`, and leaves the segment as it was, if it has no footer or the disk has no room.
pub(crate) fn write(
    directory: &LogDirectory,
    segment: &Segment,
    synced_lsn: u64,
) -> io::Result<Option<Segment>> {
    let Some(footer) = footer::read(segment, &mut Vec::new())? else { return Ok(None) };
    assert!(footer.summary.last_lsn() <= synced_lsn, "frames of {segment:?} may be lost");
    let tombstones = footer.summary.into_tombstones();
    let number = segment.number();
    let salt = directory.config.draw_salt();
    let header =
        SegmentHeader { segment: number, salt, is_reused: false, reduced_at_lsn: synced_lsn };
    remove_unfinished(&*directory.fs, &directory.path)?;
    let path = directory.path.join(UNFINISHED);
    let made = || -> io::Result<Segment> {
        let file = directory.fs.open(&path, OpenMode::CreateNew)?;
        file.write_at(&header.encode(), 0)?;
        let reduced = Segment { header, file };
        footer::write(&reduced, &tombstones, SEGMENT_HEADER_BYTES as u64)?;
        if reduced.file.len()? <= SEGMENT_HEADER_BYTES as u64 {
            return Err(io::ErrorKind::StorageFull.into());
        }
        reduced.file.sync()?;
        Ok(reduced)
    };
    match made() {
        Ok(reduced) => {
            directory.fs.rename(&path, &directory.segment_path(number))?;
            Ok(Some(reduced))
        }
        Err(error) if error.kind() == io::ErrorKind::StorageFull => {
            remove_unfinished(&*directory.fs, &directory.path)?;
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

/// Removes what is left in `dir` of a reduction that was cut short.
pub(crate) fn remove_unfinished(fs: &dyn FileSystem, dir: &Path) -> io::Result<()> {
    match fs.remove(&dir.join(UNFINISHED)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}
