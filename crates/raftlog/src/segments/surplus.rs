//! Surplus files of a log, which are given back to the file system piece by piece.
//!
//! A file system that tells its device of each block that is freed (ext4 or XFS mounted with
//! `discard`) does so while it commits, and every sync waits for it: 50 ms for a segment of 64 MiB
//! on a virtual disk, and more than a second for the twenty that a purge may free at once. RocksDB
//! deletes its files slowly for the same reason.
//! `docs/decisions/0059-files-are-given-back-in-pieces.md`

use crate::segments::directory::LogDirectory;
use flotilla_base::sync::Mutex;
use std::io;

/// The least bytes that are given back at once: two milliseconds of such a device.
const PIECE_BYTES_MIN: u64 = 2 << 20;

/// The parts of all that is to be given back: a piece is one of them, if that is more. So the bytes
/// that wait are bounded by what is freed, and not written again, in the time of as many pieces.
const PIECE_PARTS: u64 = 512;

/// The file that is being shortened.
#[derive(Debug, Default)]
pub(super) struct SurplusTrim {
    file: Mutex<Option<ShortenedFile>>,
}

#[derive(Clone, Copy, Debug)]
struct ShortenedFile {
    recycled_number: u64,
    bytes: u64,
}

impl SurplusTrim {
    /// Gives back a piece of the file under way, or else of the recycled segment that `next` names;
    /// `waiting` are left after that one. False if there is none.
    pub(super) fn step(
        &self,
        directory: &LogDirectory,
        waiting: u64,
        next: impl FnOnce() -> Option<u64>,
    ) -> io::Result<bool> {
        let mut file = self.file.lock();
        let mut current = match *file {
            Some(current) => current,
            None => {
                let Some(recycled_number) = next() else { return Ok(false) };
                let bytes = directory.recycled_bytes(recycled_number)?;
                ShortenedFile { recycled_number, bytes }
            }
        };
        let all = current.bytes + waiting * directory.config.segment_bytes;
        current.bytes = current.bytes.saturating_sub(PIECE_BYTES_MIN.max(all / PIECE_PARTS));
        if current.bytes == 0 {
            *file = None;
            directory.remove_recycled(current.recycled_number)?;
        } else {
            *file = Some(current);
            directory.shorten_recycled(current.recycled_number, current.bytes)?;
        }
        Ok(true)
    }

    /// Removes the file under way.
    pub(super) fn finish(&self, directory: &LogDirectory) -> io::Result<()> {
        match self.file.lock().take() {
            Some(file) => directory.remove_recycled(file.recycled_number),
            None => Ok(()),
        }
    }
}
