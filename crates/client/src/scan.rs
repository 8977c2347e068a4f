//! Ranges over all regions: scans in both directions, and range deletes.

use bytes::{BufMut, Bytes, BytesMut};
use flotilla_proto::{kvrpcpb, metapb};

use crate::error::Error;
use crate::request_router::RequestRouter;
use crate::retry_budget::RetryBudget;

/// The range and the limits of a scan: rows of `[start, end)`, ascending, or descending if
/// `reverse`.
#[derive(Debug, Clone, Default)]
pub struct Scan {
    /// Lowest key.
    pub start: Bytes,
    /// The scan ends below this key; empty means no end.
    pub end: Bytes,
    /// Most rows that are returned.
    pub limit: usize,
    /// Begin with the highest key.
    pub reverse: bool,
    /// Leave the values empty.
    pub key_only: bool,
}

pub(crate) async fn scan(
    router: &RequestRouter,
    cf: &str,
    mut scan: Scan,
) -> Result<Vec<kvrpcpb::KvPair>, Error> {
    (scan.start, scan.end) = router.config.api.clip(scan.start, scan.end);
    if !scan.end.is_empty() && scan.start >= scan.end {
        return Ok(Vec::new());
    }
    let mut rows = Vec::new();
    // The least key that is left; in reverse, the end of what is left.
    let mut position = if scan.reverse { scan.end.clone() } else { scan.start.clone() };
    let mut budget = RetryBudget::new(&router.config);
    while rows.len() < scan.limit {
        let route = if scan.reverse {
            router.route_below(&position, &mut budget).await?
        } else {
            router.route(&position, &mut budget).await?
        };
        let limit = rows_to_ask(router, scan.limit - rows.len());
        let request = kvrpcpb::RawScanRequest {
            start_key: position.clone(),
            end_key: if scan.reverse { scan.start.clone() } else { scan.end.clone() },
            limit,
            key_only: scan.key_only,
            cf: cf.to_owned(),
            reverse: scan.reverse,
            ..Default::default()
        };
        let page = match router.attempt(&route, request, &mut budget).await {
            Ok(response) => response.kvs,
            Err(failure) => {
                budget.pause(failure).await?;
                continue;
            }
        };
        // Each page has the whole deadline: a long scan makes progress, or it fails.
        budget = RetryBudget::new(&router.config);
        if !is_in_order(&page, &position, scan.reverse, limit) {
            let (region, store) = (route.region.id, route.leader.store_id);
            return Err(Error::Protocol(format!(
                "region {region} on store {store}: a page of a scan is out of order, or larger \
                 than asked for"
            )));
        }
        let is_full = page.len() >= limit as usize;
        rows.extend(page);
        match next(&scan, &route.region, rows.last().filter(|_| is_full)) {
            Some(next) => position = next,
            None => break,
        }
    }
    Ok(rows)
}

/// Where a scan goes on: behind the last row of a page that was full, else behind the region.
/// `None` if nothing is left.
fn next(scan: &Scan, region: &metapb::Region, last: Option<&kvrpcpb::KvPair>) -> Option<Bytes> {
    match last {
        Some(last) if !scan.reverse => Some(successor(&last.key)),
        // The empty key is the lowest; as an upper bound it would mean the opposite.
        Some(last) => Some(last.key.clone()).filter(|key| !key.is_empty()),
        None if scan.reverse => Some(&region.start_key).filter(|key| **key > scan.start).cloned(),
        None => Some(&region.end_key).filter(|key| !ends(key, &scan.end)).cloned(),
    }
}

/// Deletes `[start, end)`, region by region; an empty `end` means no end.
pub(crate) async fn delete_range(
    router: &RequestRouter,
    cf: &str,
    start: Bytes,
    end: Bytes,
) -> Result<(), Error> {
    let (start, end) = router.config.api.clip(start, end);
    if !end.is_empty() && start >= end {
        return Ok(());
    }
    let mut position = start;
    let mut budget = RetryBudget::new(&router.config);
    loop {
        let route = router.route(&position, &mut budget).await?;
        let is_last = ends(&route.region.end_key, &end);
        // One region a request: a store refuses a range that reaches beyond its region.
        let request = kvrpcpb::RawDeleteRangeRequest {
            start_key: position.clone(),
            end_key: if is_last { end.clone() } else { route.region.end_key.clone() },
            cf: cf.to_owned(),
            ..Default::default()
        };
        match router.attempt(&route, request, &mut budget).await {
            Ok(_) if is_last => return Ok(()),
            Ok(_) => {
                position = route.region.end_key.clone();
                // Each region has the whole deadline, as each page of a scan has.
                budget = RetryBudget::new(&router.config);
            }
            Err(failure) => budget.pause(failure).await?,
        }
    }
}

/// Whether a region that ends at `region_end` is the last one of a range that ends at `end`.
fn ends(region_end: &Bytes, end: &Bytes) -> bool {
    region_end.is_empty() || (!end.is_empty() && end <= region_end)
}

fn rows_to_ask(router: &RequestRouter, missing: usize) -> u32 {
    u32::try_from(missing)
        .map_or(router.config.scan_rows_max, |missing| missing.min(router.config.scan_rows_max))
}

/// A page that is out of order could make the scan go round for ever.
fn is_in_order(page: &[kvrpcpb::KvPair], position: &Bytes, reverse: bool, limit: u32) -> bool {
    let first = page.first().map(|row| &row.key);
    let in_order = if reverse {
        page.is_sorted_by(|a, b| a.key > b.key)
            && first.is_none_or(|first| position.is_empty() || first < position)
    } else {
        page.is_sorted_by(|a, b| a.key < b.key) && first.is_none_or(|first| first >= position)
    };
    in_order && page.len() <= limit as usize
}

/// The least key above `key`.
fn successor(key: &[u8]) -> Bytes {
    let mut next = BytesMut::with_capacity(key.len() + 1);
    next.put_slice(key);
    next.put_u8(0);
    next.freeze()
}
