//! Operations on a region's rows. A proposal is checked whole before its first row changes.

use bytes::Bytes;
use flotilla_kv::raw::RawOp;
use flotilla_pagestore::{KEY_BYTES_MAX, TreeMut, VALUE_BYTES_MAX};
use flotilla_region::Descriptor;

use super::outcome::{ApplyOutcome, ApplyReject};
use crate::error::Error;
use crate::schema;

/// A value takes a byte more in its row.
const USER_VALUE_BYTES_MAX: usize = VALUE_BYTES_MAX - 1;

/// The rows of one region.
pub(super) struct RegionRows<'a> {
    tree: TreeMut<'a>,
    descriptor: &'a Descriptor,
    /// Memory for the row that is being put.
    row: Vec<u8>,
    /// Bytes of keys and values that were put.
    written_bytes: u64,
}

impl<'a> RegionRows<'a> {
    pub(super) fn new(tree: TreeMut<'a>, descriptor: &'a Descriptor) -> Self {
        Self { tree, descriptor, row: Vec::new(), written_bytes: 0 }
    }

    /// Bytes of keys and values that were put so far.
    pub(super) fn written_bytes(&self) -> u64 {
        self.written_bytes
    }

    /// Carries out a proposal that was admitted under `version` of the range, or none of it.
    pub(super) fn execute(&mut self, version: u64, ops: &[RawOp]) -> Result<ApplyOutcome, Error> {
        // Looked at again, although admission did: the range may have changed between there and
        // here, and at this place of the log each replica sees the same version.
        if version != self.descriptor.epoch.version {
            let current = vec![self.descriptor.clone()];
            return Ok(ApplyOutcome::Rejected(ApplyReject::EpochNotMatch { current }));
        }
        // All before the first row changes: the transaction is shared with other proposals, and not
        // rolled back for one.
        if let Err(reject) = ops.iter().try_for_each(|op| self.check(op)) {
            return Ok(ApplyOutcome::Rejected(reject));
        }
        let mut outcome = ApplyOutcome::Done;
        for op in ops {
            match op {
                RawOp::Put { key, value } => self.put(key, value)?,
                RawOp::Delete { key } => {
                    self.tree.delete(key)?;
                }
                RawOp::DeleteRange { start, end } => self.delete_range(start, end.as_ref())?,
                RawOp::CompareAndSwap { key, expected, value } => {
                    outcome = self.compare_and_swap(key, expected.as_ref(), value.as_ref())?;
                }
            }
        }
        Ok(outcome)
    }

    fn check(&self, op: &RawOp) -> Result<(), ApplyReject> {
        match op {
            RawOp::Put { key, value } => {
                self.check_key(key)?;
                check_size("a value", value, USER_VALUE_BYTES_MAX)
            }
            RawOp::Delete { key } => self.check_key(key),
            // Clipped to the region when it is carried out: its end may lie beyond.
            RawOp::DeleteRange { .. } => Ok(()),
            RawOp::CompareAndSwap { key, value, .. } => {
                self.check_key(key)?;
                value.as_ref().map_or(Ok(()), |v| check_size("a value", v, USER_VALUE_BYTES_MAX))
            }
        }
    }

    fn check_key(&self, key: &Bytes) -> Result<(), ApplyReject> {
        if !self.descriptor.contains(key) {
            return Err(ApplyReject::KeyNotInRegion { key: key.clone() });
        }
        check_size("a key", key, KEY_BYTES_MAX)
    }

    fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), Error> {
        schema::encode_value(value, &mut self.row);
        self.written_bytes += (key.len() + value.len()) as u64;
        Ok(self.tree.put(key, &self.row)?)
    }

    fn delete_range(&mut self, start: &Bytes, end: Option<&Bytes>) -> Result<(), Error> {
        let start = start.max(&self.descriptor.start);
        let region_end = Some(&self.descriptor.end).filter(|end| !end.is_empty());
        let end = match (end, region_end) {
            (Some(one), Some(other)) => Some(one.min(other)),
            (one, other) => one.or(other),
        };
        // An inverted range is an empty one.
        if end.is_none_or(|end| start < end) {
            assert!(
                self.descriptor.contains(start)
                    && region_end.is_none_or(|last| end.is_some_and(|end| end <= last)),
                "region {}: rows of another region would be deleted",
                self.descriptor.id
            );
            self.tree.delete_range(start, end.map(|end| &end[..]))?;
        }
        Ok(())
    }

    fn compare_and_swap(
        &mut self,
        key: &Bytes,
        expected: Option<&Bytes>,
        value: Option<&Bytes>,
    ) -> Result<ApplyOutcome, Error> {
        let row = self.tree.get(key)?;
        let value_of = |row| schema::decode_value(row).map(Bytes::copy_from_slice);
        let previous = row.as_deref().map(value_of).transpose()?;
        drop(row);
        let succeeded = previous.as_ref() == expected;
        match value {
            _ if !succeeded => {}
            Some(value) => self.put(key, value)?,
            None => {
                self.tree.delete(key)?;
            }
        }
        Ok(ApplyOutcome::Swapped { succeeded, previous })
    }
}

fn check_size(what: &'static str, bytes: &[u8], limit: usize) -> Result<(), ApplyReject> {
    if bytes.len() > limit {
        let (size, limit) = (bytes.len() as u64, limit as u64);
        return Err(ApplyReject::TooLarge { what, size, limit });
    }
    Ok(())
}
