//! Reads on a snapshot. The region's descriptor is read from the same snapshot as its rows, so a
//! change of range between the grant and the read cannot be missed.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Bound;

use bytes::Bytes;
use flotilla_kv::ColumnFamily;
use flotilla_pagestore::{Snapshot, Tree};
use flotilla_region::{ConsistencyVerdict, Descriptor, Index, PeerId, RegionId};

use crate::error::{Error, ReadError};
use crate::read_time::ReadTime;
use crate::schema::{
    self, APPLY, ApplyState, DataRow, FamilyTrees, INCONSISTENT, REGION, TOMB, Tombstone,
    UNINITIALISED, UninitialisedRow,
};

/// Everything on the store as it was at one moment. Cheap to take and to clone; while it lives,
/// the pages that it sees are not used again.
#[derive(Clone)]
pub struct StoreSnapshot {
    snapshot: Snapshot,
    /// Whether a replica may be damaged: then each read of a region looks.
    may_be_damaged: bool,
}

impl fmt::Debug for StoreSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreSnapshot({})", self.snapshot.txid())
    }
}

impl StoreSnapshot {
    pub(crate) fn new(snapshot: Snapshot) -> Self {
        Self::with_damage(snapshot, true)
    }

    /// `may_be_damaged`: whether a replica may be.
    pub(crate) fn with_damage(snapshot: Snapshot, may_be_damaged: bool) -> Self {
        Self { snapshot, may_be_damaged }
    }

    /// One region, if its range still has the version under which the read was admitted; `None`
    /// takes any.
    ///
    /// # Errors
    ///
    /// [`ReadError::RegionNotFound`], [`ReadError::EpochNotMatch`] and [`ReadError::Damaged`], or
    /// the page store failed.
    pub fn region(&self, id: RegionId, version: Option<u64>) -> Result<RegionSnapshot, ReadError> {
        let regions = self.snapshot.tree(REGION)?.ok_or(ReadError::RegionNotFound)?;
        let row = regions.get(&schema::region_key(id))?.ok_or(ReadError::RegionNotFound)?;
        let descriptor = schema::decode_descriptor(id, &row)?;
        if version.is_some_and(|version| version != descriptor.epoch.version) {
            return Err(ReadError::EpochNotMatch(Box::new(descriptor)));
        }
        if self.may_be_damaged && self.state(id).map_err(unreadable)?.is_damaged {
            return Err(ReadError::Damaged);
        }
        let trees = &schema::trees_of(descriptor.space)[0];
        let rows = self.snapshot.tree(trees.rows)?;
        let (view, time) = (self.clone(), ReadTime::default());
        Ok(RegionSnapshot { descriptor, view, trees, rows, time })
    }

    /// How far the region is applied in this snapshot: what a read's grant asks for at least.
    ///
    /// # Errors
    ///
    /// The page store failed, or its row is damaged.
    pub fn applied(&self, region: RegionId) -> Result<Index, Error> {
        Ok(self.state(region)?.applied)
    }

    /// All regions with a replica in the view, in the order of their ids.
    ///
    /// # Errors
    ///
    /// The page store failed.
    pub fn descriptors(&self) -> Result<Vec<Descriptor>, Error> {
        let Some(regions) = self.snapshot.tree(REGION)? else { return Ok(vec![]) };
        let mut descriptors = vec![];
        let mut rows = regions.range(..);
        while let Some((key, row)) = rows.next()? {
            descriptors.push(schema::decode_descriptor(schema::region_of_key(key)?, row)?);
        }
        Ok(descriptors)
    }

    pub(crate) fn state(&self, region: RegionId) -> Result<ApplyState, Error> {
        let Some(states) = self.snapshot.tree(APPLY)? else {
            return Ok(ApplyState::decode(region, None)?);
        };
        Ok(ApplyState::decode(region, states.get(&schema::region_key(region))?.as_deref())?)
    }

    /// The replicas without data.
    pub(crate) fn uninitialised(&self) -> Result<BTreeMap<RegionId, UninitialisedRow>, Error> {
        let Some(tree) = self.snapshot.tree(UNINITIALISED)? else { return Ok(BTreeMap::new()) };
        let mut found = BTreeMap::new();
        let mut rows = tree.range(..);
        while let Some((key, row)) = rows.next()? {
            let region = schema::region_of_key(key)?;
            found.insert(region, UninitialisedRow::decode(region, row)?);
        }
        Ok(found)
    }

    /// The greatest replica of a region that has ended here; 0 if none has. A root need not have
    /// its end yet, unless this is the state that a start has found.
    ///
    /// # Errors
    ///
    /// The page store failed.
    pub fn tombstone(&self, region: RegionId) -> Result<PeerId, Error> {
        let Some(tombstones) = self.snapshot.tree(TOMB)? else { return Ok(PeerId(0)) };
        let row = tombstones.get(&schema::region_key(region))?;
        let tombstone = row.map(|row| Tombstone::decode(region, &row)).transpose()?;
        Ok(tombstone.unwrap_or_default().peer)
    }

    /// All tombstones.
    pub(crate) fn tombstones(&self) -> Result<BTreeMap<RegionId, Tombstone>, Error> {
        let Some(tree) = self.snapshot.tree(TOMB)? else { return Ok(BTreeMap::new()) };
        let mut found = BTreeMap::new();
        let mut rows = tree.range(..);
        while let Some((key, row)) = rows.next()? {
            let region = schema::region_of_key(key)?;
            found.insert(region, Tombstone::decode(region, row)?);
        }
        Ok(found)
    }

    /// The regions whose replicas were found to differ.
    pub(crate) fn inconsistent(&self) -> Result<BTreeMap<RegionId, ConsistencyVerdict>, Error> {
        let Some(tree) = self.snapshot.tree(INCONSISTENT)? else { return Ok(BTreeMap::new()) };
        let mut found = BTreeMap::new();
        let mut rows = tree.range(..);
        while let Some((key, row)) = rows.next()? {
            let region = schema::region_of_key(key)?;
            found.insert(region, schema::decode_verdict(region, row)?);
        }
        Ok(found)
    }

    pub(crate) fn states(&self) -> Result<Vec<(RegionId, ApplyState)>, Error> {
        let Some(tree) = self.snapshot.tree(APPLY)? else { return Ok(vec![]) };
        let mut states = vec![];
        let mut rows = tree.range(..);
        while let Some((key, row)) = rows.next()? {
            let region = schema::region_of_key(key)?;
            states.push((region, ApplyState::decode(region, Some(row))?));
        }
        Ok(states)
    }
}

/// The error of a reader whose row could not be read.
fn unreadable(error: Error) -> ReadError {
    match error {
        Error::Pages(error) => error.into(),
        error => ReadError::Corrupt(error.to_string()),
    }
}

/// The range and the limits of a scan. Keys outside of the region are left out.
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

/// The result of a get that takes values up to some length.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SizedValue {
    /// The value; `None` if there is none.
    Value(Option<Bytes>),
    /// There is a longer one, of so many bytes.
    Longer(usize),
}

/// A column family of one region at one moment.
#[derive(Clone)]
pub struct RegionSnapshot {
    descriptor: Descriptor,
    view: StoreSnapshot,
    trees: &'static FamilyTrees,
    /// None if nothing was ever written to the family.
    rows: Option<Tree>,
    time: ReadTime,
}

impl fmt::Debug for RegionSnapshot {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RegionSnapshot({:?})", self.descriptor)
    }
}

impl RegionSnapshot {
    /// The same rows as a client sees them at `now_ms`, in milliseconds since 1970 by the clock of
    /// the caller: without those that have expired by then, or by the region's watermark if that is
    /// later. Other reads see all rows.
    #[must_use]
    pub fn at(self, now_ms: u64) -> Self {
        Self { time: ReadTime::at(now_ms), ..self }
    }

    /// Another column family of the region at the same moment; [`StoreSnapshot::region`] gives the
    /// default one.
    ///
    /// # Errors
    ///
    /// [`ReadError::NoFamily`] if the region's space has no such family, or the page store failed.
    pub fn in_family(mut self, family: ColumnFamily) -> Result<Self, ReadError> {
        if family != self.trees.family {
            let trees = schema::family_trees(self.descriptor.space, family);
            self.trees = trees.ok_or(ReadError::NoFamily { family })?;
            self.rows = self.view.snapshot.tree(self.trees.rows)?;
        }
        Ok(self)
    }

    /// The column family that is read.
    #[must_use]
    pub fn family(&self) -> ColumnFamily {
        self.trees.family
    }

    /// Each column family of the region.
    pub(crate) fn families(&self) -> impl Iterator<Item = Result<Self, ReadError>> {
        let families = schema::trees_of(self.descriptor.space).iter();
        families.map(|trees| self.clone().in_family(trees.family))
    }

    /// The time that the region's log must name before an answer may be given that rests on the
    /// reads so far, [`WATERMARK_AHEAD_MS`](crate::WATERMARK_AHEAD_MS) ahead of the
    /// caller's clock; `None` if it has named it. They have left out a row that has expired by this
    /// time, and later leaders, whose clocks may be behind, must not bring it back.
    #[must_use]
    pub fn unlogged_ms(&self) -> Option<u64> {
        self.time.unlogged_ms()
    }

    /// The region, in the form that it had at this moment.
    #[must_use]
    pub fn descriptor(&self) -> &Descriptor {
        &self.descriptor
    }

    /// The tree of the column family; `None` if nothing was ever written to it.
    pub(crate) fn rows(&self) -> Option<&Tree> {
        self.rows.as_ref()
    }

    /// The value of a key; `None` if it is not there.
    ///
    /// # Errors
    ///
    /// [`ReadError::KeyNotInRegion`], or the page store failed.
    pub fn get(&self, key: &[u8]) -> Result<Option<Bytes>, ReadError> {
        match self.get_up_to(key, usize::MAX)? {
            SizedValue::Value(value) => Ok(value),
            SizedValue::Longer(_) => unreachable!("no value is longer"),
        }
    }

    /// The value of a key if it has up to `bytes_max` bytes. A longer one is not copied.
    ///
    /// # Errors
    ///
    /// As [`RegionSnapshot::get`].
    pub fn get_up_to(&self, key: &[u8], bytes_max: usize) -> Result<SizedValue, ReadError> {
        self.check_key(key)?;
        let Some(rows) = &self.rows else { return Ok(SizedValue::Value(None)) };
        let Some(row) = rows.get(key)? else { return Ok(SizedValue::Value(None)) };
        let Some(data) = self.visible(&row)? else { return Ok(SizedValue::Value(None)) };
        if data.value.len() > bytes_max {
            return Ok(SizedValue::Longer(data.value.len()));
        }
        Ok(SizedValue::Value(Some(Bytes::copy_from_slice(data.value))))
    }

    /// How long the value of a key has left, in seconds, rounded up; 0 if it does not expire, and
    /// `None` if the key is not there.
    ///
    /// # Errors
    ///
    /// [`ReadError::KeyNotInRegion`], or the page store failed.
    pub fn ttl_s(&self, key: &[u8]) -> Result<Option<u64>, ReadError> {
        self.check_key(key)?;
        let Some(rows) = &self.rows else { return Ok(None) };
        let Some(row) = rows.get(key)? else { return Ok(None) };
        let Some(data) = self.visible(&row)? else { return Ok(None) };
        if data.expires_ms == 0 {
            return Ok(Some(0));
        }
        let (now_ms, _) = self.time.now(|| self.watermark_ms())?;
        Ok(Some(data.expires_ms.saturating_sub(now_ms).div_ceil(1000)))
    }

    /// The row, unless it has expired.
    fn visible<'r>(&self, row: &'r [u8]) -> Result<Option<DataRow<'r>>, ReadError> {
        let data = DataRow::decode(row)?;
        if data.expires_ms == 0 {
            return Ok(Some(data));
        }
        let is_hidden = self.has_expired(data.expires_ms)?;
        Ok((!is_hidden).then_some(data))
    }

    /// Whether a row that expires at `expires_ms` has, at the time of the view.
    pub(crate) fn has_expired(&self, expires_ms: u64) -> Result<bool, ReadError> {
        self.time.hides(expires_ms, || self.watermark_ms())
    }

    fn watermark_ms(&self) -> Result<u64, ReadError> {
        Ok(self.view.state(self.descriptor.id).map_err(unreadable)?.watermark_ms)
    }

    fn check_key(&self, key: &[u8]) -> Result<(), ReadError> {
        if self.descriptor.contains(key) {
            return Ok(());
        }
        Err(ReadError::KeyNotInRegion {
            key: Bytes::copy_from_slice(key),
            descriptor: Box::new(self.descriptor.clone()),
        })
    }

    /// Calls `each` with the number of every key in `keys` that has a value, and the value where it
    /// lies in the pages; in the order of the keys' bytes, not of `keys`. Takes less time than a
    /// get for each, because the keys share their way down the tree and their cache misses overlap.
    ///
    /// # Errors
    ///
    /// [`ReadError::KeyNotInRegion`], before `each` is called; or the page store failed.
    pub fn multi_get(
        &self,
        keys: &[Bytes],
        mut each: impl FnMut(usize, &[u8]),
    ) -> Result<(), ReadError> {
        keys.iter().try_for_each(|key| self.check_key(key))?;
        let Some(rows) = &self.rows else { return Ok(()) };
        // The walk through the tree cannot be ended from within its callback.
        let mut failed = None;
        rows.multi_get(keys, |at, row| match row.map(|row| self.visible(row)) {
            None | Some(Ok(None)) => {}
            Some(Ok(Some(data))) => each(at, data.value),
            Some(Err(error)) => failed = Some(error),
        })?;
        failed.map_or(Ok(()), Err)
    }

    /// The rows of a range: `limit` of them, or all there are in this region. Never fewer, because
    /// clients take fewer for all and go on behind the region's end.
    ///
    /// # Errors
    ///
    /// [`ReadError::TooLarge`] if they exceed `bytes_max`, or the page store failed.
    pub fn scan(&self, request: &ScanRequest) -> Result<ScanResult, ReadError> {
        let mut rows = vec![];
        let copy = |key: &[u8], value: &[u8]| {
            rows.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
        };
        self.scan_part(request, u64::MAX, copy)?;
        Ok(ScanResult { rows })
    }

    /// Calls `each` with the key and the value of the first rows of [`RegionSnapshot::scan`]'s
    /// result, about `part_bytes` of them, and returns the request for the others; `None` if there
    /// are none. The rest may turn out to be empty, too. All parts together are all rows, so that a
    /// long scan can yield between two of them.
    ///
    /// `each` gets the bytes where they lie in the pages, and copies what it wants to keep. A row
    /// counts for 64 bytes and its own, so that the time of a part is bounded as well.
    ///
    /// # Errors
    ///
    /// As [`RegionSnapshot::scan`], if this part exceeds the `bytes_max` that is left. `each` may
    /// have been called for some of its rows then.
    pub fn scan_part(
        &self,
        request: &ScanRequest,
        part_bytes: u64,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> Result<Option<ScanRequest>, ReadError> {
        let Some((rows, range)) = self.clip(&request.start, &request.end) else {
            return Ok(None);
        };
        let mut budget = ScanBudget::new(request, part_bytes);
        if request.key_only {
            // Not `range`, which reads the pages of long values.
            let mut keys = rows.keys(range);
            let expiries = self.expiries()?;
            while budget.wants_more() {
                let key = if request.reverse { keys.next_back()? } else { keys.next()? };
                let Some(key) = key else { return Ok(None) };
                let expiry = expiries.as_ref().map(|expiries| expiries.get(key)).transpose()?;
                if let Some(expiry) = expiry.flatten()
                    && self.has_expired(schema::decode_expiry(&expiry)?)?
                {
                    budget.skip(key);
                    continue;
                }
                budget.count(key, b"")?;
                each(key, b"");
            }
        } else {
            let mut range = rows.range(range);
            while budget.wants_more() {
                let row = if request.reverse { range.next_back()? } else { range.next()? };
                let Some((key, row)) = row else { return Ok(None) };
                let Some(data) = self.visible(row)? else {
                    budget.skip(key);
                    continue;
                };
                budget.count(key, data.value)?;
                each(key, data.value);
            }
        }
        Ok(budget.rest(request))
    }

    /// The tree of the rows that expire, if there are any in the column family.
    pub(crate) fn expiries(&self) -> Result<Option<Tree>, ReadError> {
        let Some(name) = self.trees.expiries else { return Ok(None) };
        Ok(self.view.snapshot.tree(name)?.filter(|tree| !tree.is_empty()))
    }

    /// Calls `each` with every row of the column family, in order.
    #[cfg(test)]
    pub(crate) fn for_each_row(
        &self,
        mut each: impl FnMut(&[u8], DataRow<'_>),
    ) -> Result<(), ReadError> {
        let Some((rows, range)) = self.clip(b"", b"") else { return Ok(()) };
        let mut rows = rows.range(range);
        while let Some((key, row)) = rows.next()? {
            each(key, DataRow::decode(row)?);
        }
        Ok(())
    }

    /// The part of `[start, end)` that lies in the region; an empty `end` is none.
    pub(crate) fn clip<'a>(
        &'a self,
        start: &'a [u8],
        end: &'a [u8],
    ) -> Option<(&'a Tree, ScanBounds<'a>)> {
        let start = start.max(&self.descriptor.start[..]);
        let ends = [end, &self.descriptor.end[..]];
        let end = ends.into_iter().filter(|end| !end.is_empty()).min();
        // An inverted range is an empty one; the tree need not see it.
        if end.is_some_and(|end| start >= end) {
            return None;
        }
        let region_end = &self.descriptor.end[..];
        assert!(
            self.descriptor.contains(start)
                && (region_end.is_empty() || end.is_some_and(|end| end <= region_end)),
            "region {}: rows of another region would be read",
            self.descriptor.id
        );
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        Some((self.rows.as_ref()?, (Bound::Included(start), end)))
    }
}

/// Bounds of a scan that lie in the region.
pub(crate) type ScanBounds<'a> = (Bound<&'a [u8]>, Bound<&'a [u8]>);

/// The overhead that a row counts for in a part of a scan, in addition to its bytes.
const ROW_BYTES: u64 = 64;

/// Counts rows: as many as are asked for, or an error if they are too large.
struct ScanBudget {
    rows_left: u64,
    bytes_max: u64,
    bytes_left: u64,
    part_bytes_left: u64,
    /// The key of the last row of a part that its size has ended.
    last: Option<Bytes>,
}

impl ScanBudget {
    fn new(request: &ScanRequest, part_bytes: u64) -> Self {
        let ScanRequest { limit, bytes_max, .. } = *request;
        Self {
            rows_left: limit,
            bytes_max,
            bytes_left: bytes_max,
            part_bytes_left: part_bytes,
            last: None,
        }
    }

    fn wants_more(&self) -> bool {
        self.rows_left > 0 && self.part_bytes_left > 0
    }

    fn count(&mut self, key: &[u8], value: &[u8]) -> Result<(), ReadError> {
        let bytes = (key.len() + value.len()) as u64;
        let too_large = ReadError::TooLarge { bytes_max: self.bytes_max };
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or(too_large)?;
        self.part_bytes_left = self.part_bytes_left.saturating_sub(bytes + ROW_BYTES);
        self.rows_left -= 1;
        self.note(key);
        Ok(())
    }

    /// Counts a row that is left out: it takes time.
    fn skip(&mut self, key: &[u8]) {
        self.part_bytes_left = self.part_bytes_left.saturating_sub(ROW_BYTES);
        self.note(key);
    }

    fn note(&mut self, key: &[u8]) {
        // Only for the last row of a part: a copy of each key would cost an allocation a row.
        if self.part_bytes_left == 0 {
            self.last = Some(Bytes::copy_from_slice(key));
        }
    }

    /// The scan that goes on behind the last row, if only the size of a part has ended this one.
    fn rest(self, request: &ScanRequest) -> Option<ScanRequest> {
        let last = self.last.filter(|_| self.rows_left > 0)?;
        let (limit, bytes_max) = (self.rows_left, self.bytes_left);
        let mut rest = ScanRequest { limit, bytes_max, ..request.clone() };
        if !request.reverse {
            // The least key above the last one: with any other byte the keys between would be left
            // out.
            rest.start = [&last[..], &[0]].concat().into();
            return Some(rest);
        }
        // Nothing lies below the empty key, which as an end would mean that there is none.
        let is_lowest = last.is_empty();
        rest.end = last;
        (!is_lowest).then_some(rest)
    }
}
