//! Reads on a snapshot. The region's descriptor is read from the same snapshot as its rows, so a
//! change of range between the grant and the read cannot be missed.

use std::fmt;
use std::ops::Bound;

use bytes::Bytes;
use flotilla_pagestore::{Snapshot, Tree};
use flotilla_region::{Descriptor, RegionId};

use crate::error::{Error, ReadError};
use crate::schema::{self, APPLY, ApplyState, REGION};

/// Everything on the store as it was at one moment. Cheap to take and to clone; while it lives,
/// the pages that it sees are not used again.
#[derive(Clone)]
pub struct View {
    snapshot: Snapshot,
}

impl fmt::Debug for View {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "View({})", self.snapshot.txid())
    }
}

impl View {
    pub(crate) fn new(snapshot: Snapshot) -> Self {
        Self { snapshot }
    }

    /// One region, if its range still has the version under which the read was admitted; `None`
    /// takes any.
    ///
    /// # Errors
    ///
    /// [`ReadError::RegionNotFound`] and [`ReadError::EpochNotMatch`], or the page store failed.
    pub fn region(&self, id: RegionId, version: Option<u64>) -> Result<RegionView, ReadError> {
        let row = match self.snapshot.tree(REGION)? {
            Some(regions) => regions.get(&schema::region_key(id))?,
            None => None,
        };
        let descriptor = schema::decode_descriptor(id, row.ok_or(ReadError::RegionNotFound)?)?;
        if version.is_some_and(|version| version != descriptor.epoch.version) {
            return Err(ReadError::EpochNotMatch(descriptor));
        }
        let rows = self.snapshot.tree(schema::data_tree(descriptor.space))?;
        Ok(RegionView { descriptor, rows })
    }

    pub(crate) fn txid(&self) -> u64 {
        self.snapshot.txid()
    }

    pub(crate) fn descriptors(&self) -> Result<Vec<Descriptor>, Error> {
        let Some(regions) = self.snapshot.tree(REGION)? else { return Ok(vec![]) };
        let mut descriptors = vec![];
        for row in regions.range(Bound::Unbounded, Bound::Unbounded) {
            let (key, row) = row?;
            descriptors.push(schema::decode_descriptor(schema::region_of_key(&key)?, row)?);
        }
        Ok(descriptors)
    }

    pub(crate) fn state(&self, region: RegionId) -> Result<ApplyState, Error> {
        let row = match self.snapshot.tree(APPLY)? {
            Some(states) => states.get(&schema::region_key(region))?,
            None => None,
        };
        Ok(ApplyState::decode(region, row)?)
    }

    pub(crate) fn states(&self) -> Result<Vec<(RegionId, ApplyState)>, Error> {
        let Some(tree) = self.snapshot.tree(APPLY)? else { return Ok(vec![]) };
        let mut states = vec![];
        for row in tree.range(Bound::Unbounded, Bound::Unbounded) {
            let (key, row) = row?;
            let region = schema::region_of_key(&key)?;
            states.push((region, ApplyState::decode(region, Some(row))?));
        }
        Ok(states)
    }
}

/// What to scan. The part of the range that lies outside of the region is left out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ScanRequest {
    /// The first key, in either direction.
    pub start: Bytes,
    /// The first key beyond, in either direction; empty means that there is no end.
    pub end: Bytes,
    /// The most rows to return. All rows of the range are returned if they are fewer.
    pub limit: u64,
    /// From the end of the range down to its start.
    pub reverse: bool,
    /// Leaves the values empty.
    pub key_only: bool,
    /// The most bytes of keys and values that the reader can take.
    pub bytes_max: u64,
}

/// The rows of a scan.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ScanResult {
    /// Keys and values, in the order that was asked for.
    pub rows: Vec<(Bytes, Bytes)>,
}

/// One region at one moment.
#[derive(Clone)]
pub struct RegionView {
    descriptor: Descriptor,
    /// None if nothing was ever written to the space.
    rows: Option<Tree>,
}

impl fmt::Debug for RegionView {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionView({:?})", self.descriptor)
    }
}

impl RegionView {
    /// The region, in the form that it had at this moment.
    #[must_use]
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The value of a key; `None` if it is not there.
    ///
    /// # Errors
    ///
    /// [`ReadError::KeyNotInRegion`], or the page store failed.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        if !self.descriptor.contains(key) {
            return Err(ReadError::KeyNotInRegion {
                key: Bytes::copy_from_slice(key),
                descriptor: Box::new(self.descriptor.clone()),
            });
        }
        let Some(rows) = &self.rows else { return Ok(None) };
        let row = rows.get(key)?;
        Ok(row.map(|row| schema::decode_value(&row)).transpose()?)
    }

    /// The rows of a range: `limit` of them, or all there are in this region. Never fewer, because
    /// clients take fewer for all and go on behind the region's end.
    ///
    /// # Errors
    ///
    /// [`ReadError::TooLarge`] if they exceed `bytes_max`, or the page store failed.
    pub fn scan(&self, request: &ScanRequest) -> Result<ScanResult, ReadError> {
        let Some((rows, range)) = self.clip(&request.start, &request.end) else {
            return Ok(ScanResult::default());
        };
        let rows = if request.key_only {
            let keys = rows.keys(range.start, range.end);
            take(keys.map(|key| Ok((key?, Bytes::new()))), request)?
        } else {
            let rows = rows.range(range.start, range.end);
            take(rows.map(|row| split_row(row?)), request)?
        };
        Ok(ScanResult { rows })
    }

    /// All rows of the region, in order.
    pub(crate) fn rows(&self) -> impl Iterator<Item = Result<(Bytes, Bytes), ReadError>> {
        let clipped = self.clip(b"", b"");
        let rows = clipped.map(|(rows, range)| rows.range(range.start, range.end));
        rows.into_iter().flatten().map(|row| split_row(row?))
    }

    /// The part of `[start, end)` that lies in the region; an empty `end` is none.
    fn clip<'a>(&'a self, start: &'a [u8], end: &'a [u8]) -> Option<(&'a Tree, Clipped<'a>)> {
        let start = start.max(&self.descriptor.start[..]);
        let ends = [end, &self.descriptor.end[..]];
        let end = ends.into_iter().filter(|end| !end.is_empty()).min();
        // An inverted range is an empty one; the tree need not see it.
        if end.is_some_and(|end| start >= end) {
            return None;
        }
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        Some((self.rows.as_ref()?, Clipped { start: Bound::Included(start), end }))
    }
}

/// Bounds of a scan that lie in the region.
struct Clipped<'a> {
    start: Bound<&'a [u8]>,
    end: Bound<&'a [u8]>,
}

/// As many rows as are asked for, or an error if they are too large. One by one: a limit may be
/// far beyond what there is.
fn take(
    mut rows: impl DoubleEndedIterator<Item = Result<(Bytes, Bytes), ReadError>>,
    request: &ScanRequest,
) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
    let mut taken = Vec::new();
    let mut bytes_left = request.bytes_max;
    while (taken.len() as u64) < request.limit {
        let row = if request.reverse { rows.next_back() } else { rows.next() };
        let Some(row) = row else { break };
        let (key, value) = row?;
        bytes_left = bytes_left
            .checked_sub((key.len() + value.len()) as u64)
            .ok_or(ReadError::TooLarge { bytes_max: request.bytes_max })?;
        taken.push((key, value));
    }
    Ok(taken)
}

fn split_row((key, row): (Bytes, Bytes)) -> Result<(Bytes, Bytes), ReadError> {
    Ok((key, schema::decode_value(&row)?))
}
