//! All rows of a region.

use bytes::Bytes;
use flotilla_store::{ReadError, RegionSnapshot, ScanRequest};

/// Bytes that a scan may return: more than there ever are.
const SCAN_BYTES_MAX: u64 = 64 << 20;

/// All rows of a region, in order.
pub(crate) fn rows(region: &RegionSnapshot) -> Result<Vec<(Bytes, Bytes)>, ReadError> {
    Ok(region.scan(&all_rows())?.rows)
}

/// Asks for all rows of a region.
pub(super) fn all_rows() -> ScanRequest {
    ScanRequest {
        start: Bytes::new(),
        end: Bytes::new(),
        limit: u64::MAX,
        reverse: false,
        key_only: false,
        bytes_max: SCAN_BYTES_MAX,
    }
}
