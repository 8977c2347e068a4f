//! The sender's side: the rows of a region in a view, family by family, chunk by chunk.

use std::fmt;
use std::ops::Bound;

use flotilla_pagestore::Error as PagesError;
use flotilla_region::{Index, RegionId, RegionSize, SnapshotHead};

use super::chunk::{ChunkBuilder, ROWS_BYTES_MAX, SnapshotChunk};
use super::end::SnapshotEnd;
use crate::data_range::end_bound;
use crate::error::{Error, ReadError};
use crate::schema::{self, DataRow, FamilyTrees};
use crate::snapshot_read::{RegionSnapshot, StoreSnapshot};

/// Reads a region as it is at one index, from the first row to the last. While it lives, the pages
/// that it sees are not used again, unless the page store ends its view.
pub struct SnapshotReader {
    /// The column family that is being read.
    region: RegionSnapshot,
    /// Those behind it.
    families: &'static [FamilyTrees],
    head: SnapshotHead,
    total: RegionSize,
    next_number: u64,
    last_key: Option<Vec<u8>>,
    read: SnapshotEnd,
}

impl fmt::Debug for SnapshotReader {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "SnapshotReader({:?}, {:?})", self.head, self.read)
    }
}

impl SnapshotReader {
    pub(crate) fn open(view: &StoreSnapshot, region: RegionId) -> Result<Self, ReadError> {
        let region = view.region(region, None).map_err(named)?;
        let descriptor = region.descriptor().clone();
        let state = view.state(descriptor.id).map_err(|error| match error {
            Error::Pages(error) => named(error.into()),
            error => ReadError::Corrupt(error.to_string()),
        })?;
        if state.applied == Index(0) {
            return Err(ReadError::NothingApplied);
        }
        let total = region.size().map_err(named)?;
        let space = descriptor.space;
        let head = SnapshotHead { index: state.applied, term: state.term, descriptor };
        let read = SnapshotEnd { watermark_ms: state.watermark_ms, ..SnapshotEnd::default() };
        let families = &schema::trees_of(space)[1..];
        Ok(Self { region, families, head, total, next_number: 0, last_key: None, read })
    }

    /// The state of the region in the view.
    #[must_use]
    pub fn head(&self) -> &SnapshotHead {
        &self.head
    }

    /// How many rows there are, and about how many bytes.
    #[must_use]
    pub fn total(&self) -> RegionSize {
        self.total
    }

    /// The next rows of a column family, in the order of their keys: as many as take `bytes_max`
    /// bytes, and 4 MiB at most, but at least one; `None` behind the last of all.
    ///
    /// # Errors
    ///
    /// [`ReadError::SnapshotTooOld`] if the page store has ended the view; else it failed. The
    /// reader stays where it was.
    pub fn next_chunk(&mut self, bytes_max: usize) -> Result<Option<SnapshotChunk>, ReadError> {
        loop {
            if let Some(chunk) = self.next_of_family(bytes_max.min(ROWS_BYTES_MAX))? {
                return Ok(Some(chunk));
            }
            let Some((next, behind)) = self.families.split_first() else { return Ok(None) };
            self.region = self.region.clone().in_family(next.family).map_err(named)?;
            (self.families, self.last_key) = (behind, None);
        }
    }

    fn next_of_family(&mut self, bytes_max: usize) -> Result<Option<SnapshotChunk>, ReadError> {
        let Some(tree) = self.region.rows() else { return Ok(None) };
        let descriptor = &self.head.descriptor;
        let low = match &self.last_key {
            Some(last) => Bound::Excluded(&last[..]),
            None => Bound::Included(&descriptor.start[..]),
        };
        let mut rows = tree.range((low, end_bound(&descriptor.end)));
        let mut chunk = ChunkBuilder::new(self.next_number, self.region.family(), bytes_max);
        let mut last_key = vec![];
        while let Some((key, row)) = rows.next().map_err(|error| named(error.into()))? {
            // A row that this version does not know would be refused there; better here.
            DataRow::decode(row)?;
            if chunk.rows > 0 && chunk.bytes_with(key, row) > bytes_max {
                break;
            }
            chunk.push(key, row);
            last_key.clear();
            last_key.extend_from_slice(key);
        }
        if chunk.rows == 0 {
            return Ok(None);
        }
        self.read.add(chunk.rows, chunk.rows());
        self.last_key = Some(last_key);
        self.next_number += 1;
        Ok(Some(chunk.finish()))
    }

    /// All that was read so far: behind the last chunk, the end of the snapshot.
    #[must_use]
    pub fn end(&self) -> SnapshotEnd {
        self.read
    }
}

/// A view that was ended is no failure of the disk: the caller has to tell them apart.
fn named(error: ReadError) -> ReadError {
    match error {
        ReadError::Pages(PagesError::SnapshotTooOld { .. }) => ReadError::SnapshotTooOld,
        error => error,
    }
}
