//! Finding rows that have expired, for their removal.

use std::ops::Bound;

use bytes::Bytes;

use crate::error::ReadError;
use crate::schema;
use crate::snapshot_read::RegionSnapshot;

/// A range of a region in which rows have expired, and where to look on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ExpiredRange {
    /// The first key that has expired.
    pub start: Bytes,
    /// The first key behind the last one that has.
    pub end: Bytes,
    /// How many rows have expired.
    pub rows: u64,
}

/// The result of a look at some of the rows that expire.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExpiredPart {
    /// The ones that have.
    pub range: Option<ExpiredRange>,
    /// Where to look on; `None` behind the last row of the region.
    pub next: Option<Bytes>,
}

impl RegionSnapshot {
    /// Looks at the next rows of the column family that expire, at `rows_max` of them and at most
    /// `expired_max` that have expired by the time of the view, from the key `from` on. Takes no
    /// time where no row expires.
    ///
    /// # Errors
    ///
    /// The page store failed.
    pub fn expired(
        &self,
        from: &[u8],
        rows_max: u64,
        expired_max: u64,
    ) -> Result<ExpiredPart, ReadError> {
        let mut part = ExpiredPart::default();
        let Some(expiries) = self.expiries()? else { return Ok(part) };
        let Some((_, (start, end))) = self.clip(from, b"") else { return Ok(part) };
        let mut range = expiries.range((start, end));
        let mut looked = 0;
        while let Some((key, row)) = range.next()? {
            looked += 1;
            if self.has_expired(schema::decode_expiry(row)?)? {
                let found = part.range.get_or_insert_with(|| ExpiredRange {
                    start: Bytes::copy_from_slice(key),
                    end: Bytes::new(),
                    rows: 0,
                });
                found.end = behind(key);
                found.rows += 1;
            }
            let expired = part.range.as_ref().map_or(0, |found| found.rows);
            if looked >= rows_max || expired >= expired_max {
                part.next = Some(behind(key));
                break;
            }
        }
        Ok(part)
    }

    /// How many rows of the column family expire.
    ///
    /// # Errors
    ///
    /// The page store failed.
    pub fn expiring_rows(&self) -> Result<u64, ReadError> {
        let Some(expiries) = self.expiries()? else { return Ok(0) };
        let start = Bound::Included(&self.descriptor().start[..]);
        Ok(expiries.count(start, crate::data_range::end_bound(&self.descriptor().end))?)
    }
}

/// The least key above this one.
fn behind(key: &[u8]) -> Bytes {
    [key, &[0]].concat().into()
}
