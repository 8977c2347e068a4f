//! The end of a replica (R12): in one transaction its rows go and its region's tombstone rises.
//!
//! Until a durable root has that, a crash brings the replica back whole, and it ends again. So its
//! group in the log stays until then, the slot has no successor, and no other store hears of it.

use std::ops::Bound;

use flotilla_pagestore::{PageStore, WriteTxn};
use flotilla_region::{Descriptor, EndTask, PeerId, RegionId, StoreId};

use crate::damage::DamagedReplica;
use crate::data_range;
use crate::error::Error;
use crate::inconsistent_regions;
use crate::range_map::RangeMap;
use crate::schema::{self, APPLY, REGION, TOMB, Tombstone, UNINITIALISED, UninitialisedRow};
use crate::snapshot::SnapshotStages;
use crate::store_log::StoreLog;

/// The outcome of a task to end a replica.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ended {
    /// The region, if it was here with data and is not any more.
    pub region: Option<Descriptor>,
    /// Rows of data that were removed.
    pub rows_removed: u64,
    /// About how many bytes they took.
    pub bytes_removed: u64,
    /// Replicas that have ended: that of the task, or earlier ones of its region.
    pub replicas: Vec<PeerId>,
    /// Replicas of other regions that were found to be damaged on the way.
    pub damaged: Vec<DamagedReplica>,
}

/// Ends a replica and publishes that. Nothing happens if it has ended before.
pub(crate) fn end(
    pages: &PageStore,
    log: &StoreLog,
    (ranges, stages): (&RangeMap, &SnapshotStages),
    store: StoreId,
    task: &EndTask,
) -> Result<Ended, Error> {
    let EndTask { region, peer } = *task;
    let key = schema::region_key(region);
    let mut txn = pages.write()?;
    let mut tombstone = tombstone(&mut txn, region)?;
    let mut ended = Ended::default();
    if let Some((descriptor, own)) = replica_here(&mut txn, store, region)?
        && own <= peer
    {
        let end = Some(&descriptor.end[..]).filter(|end| !end.is_empty());
        let upper = end.map_or(Bound::Unbounded, Bound::Excluded);
        for trees in schema::trees_of(descriptor.space) {
            let rows = txn.tree(trees.rows)?;
            ended.bytes_removed += rows.bytes(Bound::Included(&descriptor.start), upper)?;
        }
        ended.rows_removed =
            data_range::delete(&mut txn, descriptor.space, &descriptor.start, end)?;
        txn.tree(REGION)?.delete(&key)?;
        txn.tree(APPLY)?.delete(&key)?;
        inconsistent_regions::remove(&mut txn, region)?;
        ended.replicas.push(own);
        ended.region = Some(descriptor);
    }
    ended.replicas.extend(remove_uninitialised(&mut txn, task)?);
    // Those that no checkpoint has met have no row.
    ended.replicas.extend(log.uninitialised_of(region).into_iter().filter(|own| *own <= peer));
    ended.replicas.sort_unstable();
    ended.replicas.dedup();
    ended.replicas.retain(|own| !log.is_removal_due(*own));
    if ended.replicas.is_empty() && peer <= tombstone.peer {
        return Ok(ended);
    }
    // A tombstone would have kept them from being made.
    let least = ended.replicas.first().copied();
    assert!(
        least.is_none_or(|least| least > tombstone.peer),
        "region {region}: {least:?} ends, and {} has ended",
        tombstone.peer
    );
    tombstone.peer = tombstone.peer.max(peer);
    // Those that a durable log has lost by now are not looked for again.
    tombstone.groups.retain(|group| log.engine().group(group.0).is_some());
    tombstone.groups.extend_from_slice(&ended.replicas);
    txn.tree(TOMB)?.put(&key, &tombstone.encode())?;
    // Before it is published: from then on a checkpoint may have it.
    log.note_ended(region, peer, &ended.replicas);
    if let Some(descriptor) = &ended.region {
        ranges.end(descriptor);
    }
    stages.end(ranges, task);
    txn.publish()?;
    Ok(ended)
}

fn tombstone(txn: &mut WriteTxn<'_>, region: RegionId) -> Result<Tombstone, Error> {
    let row = txn.tree(TOMB)?.get(&schema::region_key(region))?.map(|row| row.to_vec());
    let tombstone = row.map(|row| Tombstone::decode(region, &row)).transpose()?;
    Ok(tombstone.unwrap_or_default())
}

/// The replica of the region that has rows.
fn replica_here(
    txn: &mut WriteTxn<'_>,
    store: StoreId,
    region: RegionId,
) -> Result<Option<(Descriptor, PeerId)>, Error> {
    let row = txn.tree(REGION)?.get(&schema::region_key(region))?.map(|row| row.to_vec());
    let Some(row) = row else { return Ok(None) };
    let descriptor = schema::decode_descriptor(region, &row)?;
    let own = schema::replica_here(&descriptor, store).ok_or(Error::NoRegion(region))?;
    Ok(Some((descriptor, own)))
}

/// Removes the row of the region's replica without data, if that ends.
fn remove_uninitialised(txn: &mut WriteTxn<'_>, task: &EndTask) -> Result<Option<PeerId>, Error> {
    let key = schema::region_key(task.region);
    let mut rows = txn.tree(UNINITIALISED)?;
    let Some(row) = rows.get(&key)?.map(|row| row.to_vec()) else { return Ok(None) };
    let own = UninitialisedRow::decode(task.region, &row)?.peer;
    if own > task.peer {
        return Ok(None);
    }
    rows.delete(&key)?;
    Ok(Some(own))
}
