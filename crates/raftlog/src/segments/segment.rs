//! A segment: one file of the log, with its header; and the table of all of them.

use crate::format::layout::SegmentHeader;
use flotilla_vfs::File;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

/// An open segment.
#[derive(Debug)]
pub(crate) struct Segment {
    pub(crate) header: SegmentHeader,
    pub(crate) file: Arc<dyn File>,
}

impl Segment {
    pub(crate) fn number(&self) -> u64 {
        self.header.segment
    }

    /// Cuts the file behind its last frame, durably, with all that it holds.
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

/// Fills `bytes` with the beginning of a file, and cuts them where the file ends.
pub(crate) fn read_available(file: &dyn File, bytes: &mut Vec<u8>) -> io::Result<()> {
    let mut done = 0;
    while done < bytes.len() {
        match file.read_at(&mut bytes[done..], done as u64)? {
            0 => break,
            count => done += count,
        }
    }
    bytes.truncate(done);
    Ok(())
}

/// The segments that hold frames, by number, shared with readers.
#[derive(Debug, Default)]
pub(crate) struct Segments {
    open: RwLock<BTreeMap<u64, Arc<Segment>>>,
}

impl Segments {
    /// The segment for a reader of its records, unless it was purged or reduced to its tombstones.
    pub(crate) fn get(&self, segment: u64) -> Option<Arc<Segment>> {
        self.open.read().get(&segment).filter(|segment| !segment.header.is_reduced()).cloned()
    }

    /// All segments, oldest first, also those that are reduced to their tombstones.
    pub(crate) fn all(&self) -> Vec<Arc<Segment>> {
        self.open.read().values().cloned().collect()
    }

    /// The numbers of all segments, in order.
    pub(crate) fn numbers(&self) -> Vec<u64> {
        self.open.read().keys().copied().collect()
    }

    /// Bytes of all files. A length that cannot be read counts as nothing.
    pub(crate) fn file_bytes(&self) -> u64 {
        self.open.read().values().map(|segment| segment.file.len().unwrap_or(0)).sum()
    }

    pub(crate) fn insert(&self, segment: Arc<Segment>) {
        // Recovery has read it in order. From here on a reader names its pages.
        segment.file.advise_random();
        let number = segment.number();
        let before = self.open.write().insert(number, segment);
        assert!(before.is_none(), "two segments with the number {number}");
    }

    /// Puts a reduced segment in the place of the dead one. Readers that hold that one go on.
    pub(crate) fn replace(&self, reduced: Arc<Segment>) {
        let number = reduced.number();
        let before = self.open.write().insert(number, reduced);
        assert!(before.is_some(), "segment {number} was reduced and is not there");
    }

    pub(crate) fn remove(&self, segment: u64) -> Option<Arc<Segment>> {
        self.open.write().remove(&segment)
    }
}
