//! The size of a region, and the keys that cut it into parts. Both are read off the branches of the
//! tree, along a few paths: no leaf is scanned, however large the region is.

use std::collections::BTreeMap;
use std::ops::Bound;

use bytes::Bytes;
use flotilla_pagestore::{Error as PagesError, RangeSize, Tree};
use flotilla_region::{Descriptor, RegionChange, RegionId, RegionSize};
use parking_lot::Mutex;

use crate::apply::AppliedReplica;
use crate::data_range::end_bound;
use crate::error::{Error, ReadError, read_failed};
use crate::snapshot_read::{RegionSnapshot, StoreSnapshot};

/// When the sizes of regions are looked at: with the first bytes that are put into one since the
/// start, since it was split or since its rows were replaced, and each time that so many were put
/// into it. Not with the split itself: entries of other regions wait behind that, and a region that
/// is split many times in a row would be looked at for each.
#[derive(Debug, Default)]
pub(crate) struct SizeChecks {
    /// Bytes since the last look, by region.
    written: Mutex<BTreeMap<RegionId, u64>>,
}

impl SizeChecks {
    /// Adds the size to each replica for which it is time.
    pub(crate) fn note_applied(
        &self,
        replicas: &mut [AppliedReplica],
        check_bytes: u64,
        view: impl FnOnce() -> StoreSnapshot,
    ) -> Result<(), Error> {
        let mut written = self.written.lock();
        let is_due = |replica: &&mut AppliedReplica| {
            if replica.changes.iter().any(|change| matches!(change, RegionChange::Split { .. })) {
                written.remove(&replica.region);
                return false;
            }
            if replica.written_bytes == 0 {
                return false;
            }
            // An unknown region is due at once.
            let bytes = written.entry(replica.region).or_insert(check_bytes);
            *bytes = bytes.saturating_add(replica.written_bytes);
            let is_due = *bytes >= check_bytes;
            if is_due {
                *bytes = 0;
            }
            is_due
        };
        let due: Vec<_> = replicas.iter_mut().filter(is_due).collect();
        if due.is_empty() {
            return Ok(());
        }
        let view = view();
        for replica in due {
            let region = view.region(replica.region, None);
            replica.size = match region.and_then(|region| region.size()) {
                Ok(size) => Some(size),
                // The entries are applied: a page that the disk cannot read now, or that is
                // damaged, must not end the store for a size. It is looked at again later.
                Err(
                    ReadError::Pages(PagesError::Io(_) | PagesError::Corrupt { .. })
                    | ReadError::Damaged,
                ) => None,
                Err(error) => return Err(read_failed(replica.region, error)),
            };
        }
        Ok(())
    }

    /// The rows of the region were replaced by a snapshot's, or are gone.
    pub(crate) fn forget(&self, region: RegionId) {
        self.written.lock().remove(&region);
    }
}

impl RegionSnapshot {
    /// How large the region is, all column families together: bytes of the page file, as the rows'
    /// share of whole pages. Takes the time of two gets for each family that has rows.
    ///
    /// # Errors
    ///
    /// The page store failed.
    pub fn size(&self) -> Result<RegionSize, ReadError> {
        let mut size = RegionSize::default();
        for family in self.families() {
            let RegionSize { bytes, keys } = family?.family_size()?;
            size.bytes += bytes;
            size.keys += keys;
        }
        Ok(size)
    }

    fn family_size(&self) -> Result<RegionSize, ReadError> {
        let Some(rows) = self.rows() else { return Ok(RegionSize::default()) };
        let (start, end) = bounds(self.descriptor());
        let RangeSize { keys, bytes } = rows.size(start, end)?;
        Ok(RegionSize { bytes, keys })
    }

    /// Keys that cut the largest column family of the region into `parts` of about as many bytes:
    /// fewer than that if it has too few rows. They rise, and lie inside of the region behind its
    /// start: each is where a new region ends. Each is the shortest key that parts its neighbours,
    /// for it is kept in descriptors and in clients' caches, but has `bytes_min` if the keys have
    /// as many. Takes the time of some gets for each key.
    ///
    /// # Errors
    ///
    /// The page store failed.
    pub fn split_keys(&self, parts: usize, bytes_min: usize) -> Result<Vec<Bytes>, ReadError> {
        let mut keys = vec![];
        // Few rows may have no bytes of their own.
        let mut largest = ((0, 0), None);
        for family in self.families() {
            let family = family?;
            let RegionSize { bytes, keys } = family.family_size()?;
            if (bytes, keys) > largest.0 {
                largest = ((bytes, keys), Some(family));
            }
        }
        let (_, largest) = largest;
        if let Some(rows) = largest.as_ref().and_then(Self::rows) {
            let (start, end) = (self.descriptor().start.clone(), self.descriptor().end.clone());
            halve(rows, (&start, &end), parts, bytes_min, &mut keys)?;
        }
        Ok(keys)
    }
}

/// Cuts `[start, end)` into `parts` and adds the borders, in order.
fn halve(
    rows: &Tree,
    (start, end): (&Bytes, &Bytes),
    parts: usize,
    bytes_min: usize,
    keys: &mut Vec<Bytes>,
) -> Result<(), ReadError> {
    if parts < 2 {
        return Ok(());
    }
    let (low, high) = (Bound::Included(&start[..]), end_bound(end));
    let Some(middle) = rows.split_key(low, high)? else { return Ok(()) };
    let mut below = rows.keys((low, Bound::Excluded(&middle[..])));
    let before = below.next_back()?.map(<[u8]>::to_vec);
    // A range of two rows or more has one before its middle.
    let Some(before) = before else { return Ok(()) };
    let border = shortest_between(&before, &middle, bytes_min);
    // Halves of an odd count: the greater one is where the region's own id stays.
    let left = parts / 2;
    halve(rows, (start, &border), left, bytes_min, keys)?;
    keys.push(border.clone());
    halve(rows, (&border, end), parts - left, bytes_min, keys)
}

/// The shortest key above `before` and at most `key` that has `bytes_min`, if `key` has as many.
fn shortest_between(before: &[u8], key: &[u8], bytes_min: usize) -> Bytes {
    let common = before.iter().zip(key).take_while(|(one, other)| one == other).count();
    let bytes = (common + 1).max(bytes_min.min(key.len()));
    Bytes::copy_from_slice(&key[..bytes])
}

fn bounds(descriptor: &Descriptor) -> (Bound<&[u8]>, Bound<&[u8]>) {
    (Bound::Included(&descriptor.start[..]), end_bound(&descriptor.end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_border_is_no_longer_than_it_has_to_be() {
        let border =
            |before: &str, key: &str| shortest_between(before.as_bytes(), key.as_bytes(), 1);
        assert_eq!(border("apple", "banana"), "b");
        assert_eq!(border("user1000", "user1001"), "user1001");
        assert_eq!(border("user1", "user1000"), "user10");
        assert_eq!(border("", "a"), "a");
        assert_eq!(shortest_between(b"apple", b"banana", 4), "bana");
        assert_eq!(shortest_between(b"user1", b"user1000", 4), "user10");
        assert_eq!(shortest_between(b"a", b"b", 4), "b");
    }
}
