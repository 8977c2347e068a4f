//! Reads of clients on a snapshot, in each of the manners that a driver has.

use bytes::Bytes;
use flotilla_kv::ColumnFamily;
use flotilla_region::Ticket;
use flotilla_store::{ReadError, RegionSnapshot, ScanRequest};

use crate::reference_model::RowKey;

/// Bytes that a scan may return: more than there ever are.
const BYTES_MAX: u64 = 64 << 20;
/// Bytes of a part of a scan that is read in parts: one short row or two.
const PART_BYTES: u64 = 100;
/// Rows of a scan that asks for some at a time.
const ROWS_AT_A_TIME: u64 = 2;

/// Keys and values, in order.
type Rows = Vec<(Bytes, Bytes)>;

/// All rows of a region, family by family, in order.
pub(crate) fn rows(region: &RegionSnapshot) -> Result<Vec<(RowKey, Bytes)>, ReadError> {
    let mut all_rows = Vec::new();
    for family in ColumnFamily::ALL {
        let rows = match region.clone().in_family(family) {
            Ok(region) => region.scan(&all())?.rows,
            // There is one family of the rows of placement.
            Err(ReadError::NoFamily { .. }) => continue,
            Err(error) => return Err(error),
        };
        all_rows.extend(rows.into_iter().map(|(key, value)| ((family, key), value)));
    }
    Ok(all_rows)
}

/// The value of a key. Every other ticket asks as a batch of gets does.
pub(super) fn get(
    region: &RegionSnapshot,
    key: &Bytes,
    ticket: Ticket,
) -> Result<Option<Bytes>, ReadError> {
    if ticket.0.is_multiple_of(2) {
        return region.get(key);
    }
    let mut found = None;
    region.multi_get(std::slice::from_ref(key), |_, value| {
        found = Some(Bytes::copy_from_slice(value));
    })?;
    Ok(found)
}

/// All rows of a column family of a region, in order. The ticket says how they are read, so that
/// old seeds draw the rest as ever.
pub(super) fn scan(region: &RegionSnapshot, ticket: Ticket) -> Result<Rows, ReadError> {
    match ticket.0 % 5 {
        0 => Ok(region.scan(&all())?.rows),
        1 => in_parts(region, all()),
        2 => {
            let mut rows = in_parts(region, ScanRequest { reverse: true, ..all() })?;
            rows.reverse();
            Ok(rows)
        }
        3 => some_at_a_time(region),
        _ => keys_first(region),
    }
}

/// Asks for all rows of a region.
pub(super) fn all() -> ScanRequest {
    ScanRequest {
        start: Bytes::new(),
        end: Bytes::new(),
        limit: u64::MAX,
        reverse: false,
        key_only: false,
        bytes_max: BYTES_MAX,
    }
}

/// As the node answers a long scan, between whose parts it yields.
fn in_parts(region: &RegionSnapshot, request: ScanRequest) -> Result<Rows, ReadError> {
    let mut rows = Vec::new();
    let mut next = Some(request);
    while let Some(request) = next {
        next = region.scan_part(&request, PART_BYTES, |key, value| {
            rows.push((Bytes::copy_from_slice(key), Bytes::copy_from_slice(value)));
        })?;
    }
    Ok(rows)
}

/// As a client that goes on behind the last row.
fn some_at_a_time(region: &RegionSnapshot) -> Result<Rows, ReadError> {
    let mut rows: Rows = Vec::new();
    let mut request = ScanRequest { limit: ROWS_AT_A_TIME, ..all() };
    loop {
        let more = region.scan(&request)?.rows;
        let Some((last, _)) = more.last() else { return Ok(rows) };
        request.start = [&last[..], &[0]].concat().into();
        rows.extend(more);
    }
}

/// The keys alone, and then their values.
fn keys_first(region: &RegionSnapshot) -> Result<Rows, ReadError> {
    let keys = in_parts(region, ScanRequest { key_only: true, ..all() })?;
    let keys: Vec<_> = keys.into_iter().map(|(key, _)| key).collect();
    let mut rows = Vec::new();
    region.multi_get(&keys, |at, value| {
        rows.push((keys[at].clone(), Bytes::copy_from_slice(value)));
    })?;
    Ok(rows)
}
