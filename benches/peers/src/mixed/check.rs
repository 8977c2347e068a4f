//! The proof of a run: the three replicas of each region agree, and the rows of every acknowledged
//! transaction are on all three stores.

use super::cluster::{Cluster, STORES, VERSION, region_id};
use super::rows::{self, RowId, Table};
use crate::log::Result;
use bytes::Bytes;
use std::time::{Duration, Instant};

/// Followers have all that is committed after a heartbeat or two.
const CATCH_UP_MAX: Duration = Duration::from_secs(60);
const KEYS_AT_ONCE: usize = 1000;

/// Checks everything; returns how many rows were looked for on each store.
///
/// # Errors
///
/// What is missing or different, or errors of the stores.
pub fn check(cluster: &Cluster, regions: u64, proofs: &[RowId]) -> Result<u64> {
    let until = Instant::now() + CATCH_UP_MAX;
    for place in 0..regions as usize {
        while !is_even(cluster, place)? {
            cluster.check()?;
            if Instant::now() > until {
                return Err(format!("region {}: a replica lags behind", region_id(place)).into());
            }
            std::thread::park_timeout(Duration::from_millis(20));
        }
        let digests = cluster.stores.iter().map(|of| of.store.region_digest(region_id(place)));
        let digests = digests.collect::<std::result::Result<Vec<_>, _>>()?;
        if digests.iter().any(|digest| *digest != digests[0]) {
            let region = region_id(place);
            return Err(format!("region {region}: the replicas differ: {digests:?}").into());
        }
    }
    find(cluster, regions, proofs)
}

/// Whether all replicas of a region are applied up to the same index.
fn is_even(cluster: &Cluster, place: usize) -> Result<bool> {
    let applied = cluster.stores.iter().map(|of| of.store.read().applied(region_id(place)));
    let applied = applied.collect::<std::result::Result<Vec<_>, _>>()?;
    Ok(applied.len() == STORES && applied.iter().all(|index| *index == applied[0]))
}

/// Finds the rows of acknowledged transactions, with an order its lines.
fn find(cluster: &Cluster, regions: u64, proofs: &[RowId]) -> Result<u64> {
    let mut wanted: Vec<RowId> = Vec::with_capacity(proofs.len());
    for row in proofs {
        wanted.push(*row);
        if row.table == Table::Order {
            let line = |line| RowId { table: Table::OrderLine, line, ..*row };
            wanted.extend((0..rows::lines(row)).map(line));
        }
    }
    let place = |row: &RowId| u64::from(row.warehouse) % regions;
    wanted.sort_unstable_by_key(|row| (place(row), *row));
    for of_region in wanted.chunk_by(|one, next| place(one) == place(next)) {
        let region = region_id(place(&of_region[0]) as usize);
        for context in &cluster.stores {
            let snapshot = context.store.read();
            let snapshot = snapshot.region(region, Some(VERSION))?;
            for part in of_region.chunks(KEYS_AT_ONCE) {
                let keys: Vec<Bytes> = part.iter().map(|row| rows::key(regions, row)).collect();
                let mut found = 0;
                snapshot.multi_get(&keys, |at, value| {
                    found += usize::from(value.starts_with(&part[at].tag()));
                })?;
                if found < part.len() {
                    let missing = part.len() - found;
                    let what = format!("store {}: {missing} acknowledged rows of", context.at + 1);
                    return Err(format!("{what} region {region} are missing").into());
                }
            }
        }
    }
    Ok(wanted.len() as u64)
}
