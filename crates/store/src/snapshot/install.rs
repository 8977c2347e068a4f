//! Installing: a staged snapshot takes the place of a replica's rows, in one transaction.
//!
//! A crash leaves the replica from before or the one from after. The log is reset later, once a
//! durable root has the transaction; a start in between finds a log that does not connect, and
//! resets it.

use flotilla_pagestore::{PageStore, WriteTxn};
use flotilla_region::{Descriptor, Index, InstallTask, PeerId, RegionId, StoreId};

use super::stages::{BuiltTrees, CompleteStage};
use crate::damage::DamagedReplica;
use crate::data_range;
use crate::error::Error;
use crate::range_map::{self, RangeMap};
use crate::schema::{self, APPLY, ApplyState, REGION, UNINITIALISED, UninitialisedRow};
use crate::store_log::StoreLog;

/// A snapshot that was put in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Installed {
    /// The region.
    pub region: RegionId,
    /// The replica here.
    pub peer: PeerId,
    /// The last entry whose effects are in the rows.
    pub index: Index,
    /// How many rows there are.
    pub rows: u64,
    /// The bytes of their keys and values.
    pub bytes: u64,
    /// How many rows of the replica were removed.
    pub rows_removed: u64,
    /// Whether the replica had data before.
    pub had_data: bool,
    /// Replicas of other regions that were found to be damaged on the way.
    pub damaged: Vec<DamagedReplica>,
}

/// A transaction without the rows that a snapshot takes the place of.
pub(crate) struct ClearedRange<'a> {
    txn: WriteTxn<'a>,
    old: Option<Descriptor>,
    state: ApplyState,
    rows_removed: u64,
}

/// Removes the rows of the replica and of the snapshot's range. All pages that may be damaged are
/// read here, so that it can be tried again without them.
pub(crate) fn clear<'a>(
    pages: &'a PageStore,
    ranges: &RangeMap,
    store: StoreId,
    staged: &CompleteStage,
    task: &InstallTask,
) -> Result<ClearedRange<'a>, Error> {
    let descriptor = &task.head.descriptor;
    let (region, peer, index) = (descriptor.id, task.peer, task.head.index);
    assert!(
        staged.to == peer && staged.head == task.head,
        "region {region}: stage {} is of {:?} for {}, not {task:?}",
        task.stage,
        staged.head,
        staged.to
    );
    assert!(
        task.hard_state.commit == index && task.hard_state.term >= task.head.term,
        "region {region}: a snapshot at {index} beside {:?}",
        task.hard_state
    );
    let mut txn = pages.write()?;
    check_range(&mut txn, ranges, descriptor)?;
    let before = rows_before(&mut txn, store, region, peer)?;
    let before_state = before.as_ref().map(|(_, state)| state);
    let state = next_state(&mut txn, task, before_state, staged.watermark_ms)?;
    assert!(!state.is_damaged, "region {region}: new rows are said to be damaged");
    let mut rows_removed = 0;
    let old = before.map(|(old, _)| old);
    if let Some(old) = &old {
        rows_removed = remove_beyond(&mut txn, old, descriptor)?;
    }
    let end = Some(&descriptor.end[..]).filter(|end| !end.is_empty());
    rows_removed += data_range::delete(&mut txn, descriptor.space, &descriptor.start, end)?;
    data_range::touch_seam(&mut txn, descriptor.space, &descriptor.start)?;
    Ok(ClearedRange { txn, old, state, rows_removed })
}

/// Puts a snapshot in and publishes it.
pub(crate) fn fill(
    cleared: ClearedRange<'_>,
    log: &StoreLog,
    ranges: &RangeMap,
    staged: CompleteStage,
    task: &InstallTask,
) -> Result<Installed, Error> {
    let ClearedRange { mut txn, old, state, rows_removed } = cleared;
    let descriptor = &task.head.descriptor;
    let (region, peer, index) = (descriptor.id, task.peer, task.head.index);
    let rows = staged.trees.iter().map(|trees| trees.rows.len()).sum();
    for trees in staged.trees {
        ingest(&mut txn, descriptor, trees)?;
    }
    let key = schema::region_key(region);
    txn.tree(REGION)?.put(&key, &descriptor.encode())?;
    txn.tree(APPLY)?.put(&key, &state.encode())?;
    txn.tree(UNINITIALISED)?.delete(&key)?;
    // Before it is published: from then on a checkpoint may have it.
    log.note_install(region, peer, index, task.hard_state);
    ranges.install(old.as_ref(), descriptor);
    txn.publish()?;
    let (had_data, bytes) = (old.is_some(), staged.bytes);
    Ok(Installed { region, peer, index, rows, bytes, rows_removed, had_data, damaged: vec![] })
}

/// Puts the rows of a column family into their range.
fn ingest(txn: &mut WriteTxn<'_>, descriptor: &Descriptor, built: BuiltTrees) -> Result<(), Error> {
    let Descriptor { space, ref start, ref end, .. } = *descriptor;
    let end = Some(&end[..]).filter(|end| !end.is_empty());
    let trees = schema::family_trees(space, built.family).expect("a stage has those of its space");
    match trees.expiries {
        Some(name) => drop(txn.tree(name)?.ingest(start, end, built.expiries)?),
        None if built.expiries.is_empty() => {}
        None => {
            let region = descriptor.id;
            return Err(Error::Corrupt(format!("region {region}: its rows would expire")));
        }
    }
    let removed = txn.tree(trees.rows)?.ingest(start, end, built.rows)?;
    assert_eq!(removed, 0, "the range of region {} was not cleared", descriptor.id);
    Ok(())
}

/// R16, against the rows as this transaction has them.
fn check_range(
    txn: &mut WriteTxn<'_>,
    ranges: &RangeMap,
    descriptor: &Descriptor,
) -> Result<(), Error> {
    let region = descriptor.id;
    let range = descriptor.range();
    let held = |holder| Err(Error::RangeHeld { region, holder });
    if let Some(holder) = ranges.holder(&range, Some(region)) {
        return held(holder);
    }
    let regions = txn.tree(REGION)?;
    for other in ranges.neighbours(&range, region) {
        let row = regions.get(&schema::region_key(other))?.ok_or(Error::NoRegion(other))?;
        if range_map::meet(&range, &schema::decode_descriptor(other, &row)?.range()) {
            return held(other);
        }
    }
    Ok(())
}

/// The rows of the replica itself, if it has data.
fn rows_before(
    txn: &mut WriteTxn<'_>,
    store: StoreId,
    region: RegionId,
    peer: PeerId,
) -> Result<Option<(Descriptor, ApplyState)>, Error> {
    let key = schema::region_key(region);
    let regions = txn.tree(REGION)?;
    let Some(row) = regions.get(&key)? else { return Ok(None) };
    let descriptor = schema::decode_descriptor(region, &row)?;
    drop(row);
    if schema::replica_here(&descriptor, store) != Some(peer) {
        return Err(Error::Corrupt(format!(
            "region {region}: a snapshot for replica {peer}, but another one is here"
        )));
    }
    let state = ApplyState::decode(region, txn.tree(APPLY)?.get(&key)?.as_deref())?;
    Ok(Some((descriptor, state)))
}

/// The apply row: the snapshot's index and watermark, and the newest of the hard states.
fn next_state(
    txn: &mut WriteTxn<'_>,
    task: &InstallTask,
    before: Option<&ApplyState>,
    watermark_ms: u64,
) -> Result<ApplyState, Error> {
    let (region, index, term) = (task.head.descriptor.id, task.head.index, task.head.term);
    let mut hard_state = task.hard_state;
    if let Some(before) = before {
        // A damaged replica may have applied as much, and has lost some of it. So may one that
        // heard of the damage only behind the snapshot that has mended it.
        assert!(
            before.applied <= index,
            "region {region}: a snapshot at {index} where {} is applied",
            before.applied
        );
        assert!(
            before.watermark_ms <= watermark_ms,
            "region {region}: a watermark of {watermark_ms} where {} is",
            before.watermark_ms
        );
        hard_state = hard_state.merge(before.hard_state);
    }
    let row = txn.tree(UNINITIALISED)?.get(&schema::region_key(region))?.map(|row| row.to_vec());
    if let Some(row) = row {
        let row = UninitialisedRow::decode(region, &row)?;
        if row.peer != task.peer {
            return Err(Error::Corrupt(format!(
                "region {region}: a snapshot for replica {}, but {} is here without data",
                task.peer, row.peer
            )));
        }
        hard_state = hard_state.merge(row.hard_state);
    }
    // The log will begin behind the snapshot, and a commit index above its end is no start.
    assert!(
        hard_state.commit == index,
        "region {region}: entry {} is committed, above a snapshot at {index}",
        hard_state.commit
    );
    Ok(ApplyState { applied: index, term, watermark_ms, is_damaged: false, hard_state })
}

/// Removes the rows of the old range that the new one does not have: those parts were split off,
/// and come as regions of their own. Returns how many there were.
fn remove_beyond(txn: &mut WriteTxn<'_>, old: &Descriptor, new: &Descriptor) -> Result<u64, Error> {
    assert_eq!(old.space, new.space, "region {} has moved to another space", old.id);
    let space = old.space;
    let mut removed = 0;
    if old.start < new.start {
        let ends = [&old.end, &new.start].into_iter().filter(|end| !end.is_empty());
        let end = ends.min().map(|end| &end[..]);
        removed += data_range::delete(txn, space, &old.start, end)?;
    }
    if !new.end.is_empty() && (old.end.is_empty() || new.end < old.end) {
        let old_end = Some(&old.end[..]).filter(|end| !end.is_empty());
        let start = (&old.start).max(&new.end);
        removed += data_range::delete(txn, space, start, old_end)?;
    }
    Ok(removed)
}
