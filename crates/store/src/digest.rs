//! A hash over a region's rows, of all column families, to compare replicas.

use flotilla_region::{Index, RegionId};

use crate::error::{Error, ReadError};
use crate::schema::DataRow;
use crate::snapshot_read::StoreSnapshot;

/// The applied index of a region, and a hash over its rows in order.
pub(crate) fn digest(view: &StoreSnapshot, region: RegionId) -> Result<(Index, u64), Error> {
    let replica = view.region(region, None).map_err(|error| read_failed(region, error))?;
    let state = view.state(region)?;
    let mut digest = RowDigest::new();
    for family in replica.families() {
        let family = family.map_err(|error| read_failed(region, error))?;
        let number = family.family().number();
        let add = |key: &[u8], data: DataRow<'_>| {
            digest.add(key);
            digest.add(data.value);
            // Rows that do not expire, and those of the default family, count as they did before
            // there were others.
            if data.expires_ms > 0 {
                digest.add(&data.expires_ms.to_le_bytes());
            }
            if number > 0 {
                digest.add(&[number]);
            }
        };
        family.for_each_row(add).map_err(|error| read_failed(region, error))?;
    }
    Ok((state.applied, digest.0))
}

pub(crate) fn read_failed(region: RegionId, error: ReadError) -> Error {
    match error {
        ReadError::RegionNotFound => Error::NoRegion(region),
        ReadError::Pages(error) => Error::Pages(error),
        error => Error::Corrupt(error.to_string()),
    }
}

/// FNV-1a with 64 bits: the same on every machine, and simple. It guards against mistakes, not
/// against an attacker that wants two replicas to look alike.
struct RowDigest(u64);

impl RowDigest {
    fn new() -> Self {
        Self(0xCBF2_9CE4_8422_2325)
    }

    /// Adds the length first, so that the border between key and value counts.
    fn add(&mut self, bytes: &[u8]) {
        let len = (bytes.len() as u64).to_le_bytes();
        for byte in len.iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01B3);
        }
    }
}
