//! Operations on a region's rows. A proposal is checked whole before its first row changes.
//!
//! A row that expires has its time in the expiry tree as well, from the put that makes it to the
//! change that ends it: each operation here keeps the two trees alike (decision 44,
//! `docs/decisions/0044-rows-that-expire.md`).

use std::ops::Bound;

use bytes::Bytes;
use flotilla_base::redact::LogKey;
use flotilla_kv::raw::{RawCommand, RawOp};
use flotilla_pagestore::{KEY_BYTES_MAX, TreeMut, VALUE_BYTES_MAX, WriteTxn};
use flotilla_region::Descriptor;

use super::outcome::{ApplyOutcome, ApplyReject};
use crate::error::Error;
use crate::schema::{self, DATA_HEAD_BYTES_MAX, DataRow, FamilyTrees};

/// Values of this length fit into any row.
const USER_VALUE_BYTES_MAX: usize = VALUE_BYTES_MAX - DATA_HEAD_BYTES_MAX;

/// The rows of one region.
pub(super) struct RegionRows<'a, 'txn> {
    txn: &'a mut WriteTxn<'txn>,
    descriptor: &'a Descriptor,
    /// Those of the command that is being carried out.
    trees: &'static FamilyTrees,
    /// The latest time that an entry has named for what expires.
    watermark_ms: u64,
    /// Memory for the row that is being put.
    row: Vec<u8>,
    /// Bytes of keys and values that were put.
    written_bytes: u64,
}

impl<'a, 'txn> RegionRows<'a, 'txn> {
    pub(super) fn new(
        txn: &'a mut WriteTxn<'txn>,
        descriptor: &'a Descriptor,
        watermark_ms: u64,
    ) -> Self {
        let trees = &schema::trees_of(descriptor.space)[0];
        Self { txn, descriptor, trees, watermark_ms, row: Vec::new(), written_bytes: 0 }
    }

    /// Bytes of keys and values that were put so far.
    pub(super) fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// The region's watermark behind the operations so far.
    pub(super) fn watermark_ms(&self) -> u64 {
        self.watermark_ms
    }

    /// Carries out a proposal that was admitted under `version` of the range, or none of it.
    pub(super) fn execute(
        &mut self,
        version: u64,
        command: &RawCommand,
    ) -> Result<ApplyOutcome, Error> {
        // Looked at again, although admission did: the range may have changed between there and
        // here, and at this place of the log each replica sees the same version.
        if version != self.descriptor.epoch.version {
            let current = vec![self.descriptor.clone()];
            return Ok(ApplyOutcome::Rejected(ApplyReject::EpochNotMatch { current }));
        }
        // All before the first row changes: the transaction is shared with other proposals, and not
        // rolled back for one.
        if let Err(reject) = command.ops.iter().try_for_each(|op| self.check(op)) {
            return Ok(ApplyOutcome::Rejected(reject));
        }
        self.trees = self.trees_for(command)?;
        // A leader whose clock is behind must not bring back what has expired.
        let now_ms = self.watermark_ms.max(command.time_ms);
        let mut outcome = ApplyOutcome::Done;
        for op in &command.ops {
            match op {
                RawOp::Put { key, value, ttl_s } => {
                    self.put(key, DataRow { expires_ms: expiry(now_ms, *ttl_s), value })?;
                }
                RawOp::Delete { key } => self.delete(key)?,
                RawOp::DeleteRange { start, end } => self.delete_range(start, end.as_ref())?,
                RawOp::CompareAndSwap { key, expected, value, ttl_s } => {
                    let expires_ms = expiry(now_ms, *ttl_s);
                    let row = value.as_ref().map(|value| DataRow { expires_ms, value });
                    outcome = self.compare_and_swap(now_ms, key, expected.as_ref(), row)?;
                }
                RawOp::RaiseWatermark => self.watermark_ms = now_ms,
                RawOp::RemoveExpired { start, end } => {
                    self.watermark_ms = now_ms;
                    let rows = self.remove_expired(start, end.as_ref())?;
                    outcome = ApplyOutcome::RemovedExpired { rows };
                }
            }
        }
        Ok(outcome)
    }

    fn trees_for(&self, command: &RawCommand) -> Result<&'static FamilyTrees, Error> {
        let Descriptor { id, space, .. } = *self.descriptor;
        schema::family_trees(space, command.family).ok_or_else(|| {
            let family = command.family;
            Error::Corrupt(format!("region {id}: a command for {family}, which {space:?} has not"))
        })
    }

    fn check(&self, op: &RawOp) -> Result<(), ApplyReject> {
        match op {
            RawOp::Put { key, value, .. } => {
                self.check_key(key)?;
                check_size("a value", value, USER_VALUE_BYTES_MAX)
            }
            RawOp::Delete { key } => self.check_key(key),
            RawOp::CompareAndSwap { key, value, .. } => {
                self.check_key(key)?;
                value.as_ref().map_or(Ok(()), |v| check_size("a value", v, USER_VALUE_BYTES_MAX))
            }
            // Clipped to the region when it is carried out: its end may lie beyond.
            RawOp::DeleteRange { .. } | RawOp::RemoveExpired { .. } | RawOp::RaiseWatermark => {
                Ok(())
            }
        }
    }

    fn check_key(&self, key: &Bytes) -> Result<(), ApplyReject> {
        if !self.descriptor.contains(key) {
            return Err(ApplyReject::KeyNotInRegion { key: key.clone() });
        }
        check_size("a key", key, KEY_BYTES_MAX)
    }

    fn rows(&mut self) -> Result<TreeMut<'_>, Error> {
        Ok(self.txn.tree(self.trees.rows)?)
    }

    /// The expiry tree, if rows of the region can expire.
    fn expiries(&mut self) -> Result<Option<TreeMut<'_>>, Error> {
        let name = self.trees.expiries;
        Ok(name.map(|name| self.txn.tree(name)).transpose()?)
    }

    fn put(&mut self, key: &[u8], data: DataRow<'_>) -> Result<(), Error> {
        let mut row = std::mem::take(&mut self.row);
        data.encode(&mut row);
        self.written_bytes += (key.len() + data.value.len()) as u64;
        self.rows()?.put(key, &row)?;
        self.row = row;
        match data.expires_ms {
            0 => self.forget_expiry(key),
            expires_ms => {
                let expiries = self.expiries()?;
                let mut expiries = expiries.expect("a row of placement never expires");
                Ok(expiries.put(key, &schema::encode_expiry(expires_ms))?)
            }
        }
    }

    fn delete(&mut self, key: &[u8]) -> Result<(), Error> {
        if self.rows()?.delete(key)? {
            self.forget_expiry(key)?;
        }
        Ok(())
    }

    /// Removes the key from the expiry tree, if it is there.
    fn forget_expiry(&mut self, key: &[u8]) -> Result<(), Error> {
        if let Some(mut expiries) = self.expiries()?
            && !expiries.is_empty()
            // A delete of nothing would copy the pages down to it.
            && expiries.get(key)?.is_some()
        {
            expiries.delete(key)?;
        }
        Ok(())
    }

    fn delete_range(&mut self, start: &Bytes, end: Option<&Bytes>) -> Result<(), Error> {
        let Some((start, end)) = clip(self.descriptor, start, end) else { return Ok(()) };
        self.rows()?.delete_range(start, end)?;
        if let Some(mut expiries) = self.expiries()?
            && !expiries.is_empty()
        {
            expiries.delete_range(start, end)?;
        }
        Ok(())
    }

    fn compare_and_swap(
        &mut self,
        now_ms: u64,
        key: &Bytes,
        expected: Option<&Bytes>,
        new: Option<DataRow<'_>>,
    ) -> Result<ApplyOutcome, Error> {
        let tree = self.rows()?;
        let row = tree.get(key)?;
        let data = row.as_deref().map(DataRow::decode).transpose()?;
        let has_expired = data.is_some_and(|data| data.has_expired(now_ms));
        let previous = data.filter(|_| !has_expired).map(|data| Bytes::copy_from_slice(data.value));
        drop(row);
        if has_expired {
            // The answer says that the value is gone: no later leader may say otherwise.
            self.watermark_ms = now_ms;
        }
        let succeeded = previous.as_ref() == expected;
        match new {
            _ if !succeeded => {}
            Some(data) => self.put(key, data)?,
            None => self.delete(key)?,
        }
        Ok(ApplyOutcome::Swapped { succeeded, previous })
    }

    /// Removes the rows of the range that have expired by the watermark, and returns how many.
    fn remove_expired(&mut self, start: &Bytes, end: Option<&Bytes>) -> Result<u64, Error> {
        let (region, watermark_ms) = (self.descriptor.id, self.watermark_ms);
        let Some((start, end)) = clip(self.descriptor, start, end) else { return Ok(0) };
        let Some(expiries) = self.expiries()? else { return Ok(0) };
        let mut expired = Vec::new();
        let end = end.map_or(Bound::Unbounded, Bound::Excluded);
        let mut range = expiries.range((Bound::Included(start), end));
        while let Some((key, row)) = range.next()? {
            if schema::decode_expiry(row)? <= watermark_ms {
                expired.push(key.to_vec());
            }
        }
        // Tree by tree, for their pages stay in the cache.
        let mut expiries = self.expiries()?.expect("it was there above");
        for key in &expired {
            expiries.delete(key)?;
        }
        let mut rows = self.rows()?;
        for key in &expired {
            if !rows.delete(key)? {
                let key = LogKey(key);
                return Err(Error::Corrupt(format!("region {region}: {key} has a time only")));
            }
        }
        Ok(expired.len() as u64)
    }
}

/// The time at which a value expires that is put at `now_ms`; 0 for never.
fn expiry(now_ms: u64, ttl_s: u64) -> u64 {
    match ttl_s {
        0 => 0,
        _ => now_ms.saturating_add(ttl_s.saturating_mul(1000)),
    }
}

/// The part of the range that lies in the region, if there is one. An inverted range is empty.
fn clip<'k>(
    descriptor: &'k Descriptor,
    start: &'k Bytes,
    end: Option<&'k Bytes>,
) -> Option<(&'k [u8], Option<&'k [u8]>)> {
    let start = start.max(&descriptor.start);
    let region_end = Some(&descriptor.end).filter(|end| !end.is_empty());
    let end = match (end, region_end) {
        (Some(one), Some(other)) => Some(one.min(other)),
        (one, other) => one.or(other),
    };
    if end.is_some_and(|end| start >= end) {
        return None;
    }
    assert!(
        descriptor.contains(start)
            && region_end.is_none_or(|last| end.is_some_and(|end| end <= last)),
        "region {}: rows of another region would be removed",
        descriptor.id
    );
    Some((start, end.map(|end| &end[..])))
}

fn check_size(what: &'static str, bytes: &[u8], limit: usize) -> Result<(), ApplyReject> {
    if bytes.len() > limit {
        let (size, limit) = (bytes.len() as u64, limit as u64);
        return Err(ApplyReject::TooLarge { what, size, limit });
    }
    Ok(())
}
