//! Installing: a staged snapshot takes the place of a replica's rows, in one transaction.
//!
//! A crash leaves the replica from before or the one from after. The log is reset later, once a
//! durable root has the transaction; a start in between finds a log that does not connect, and
//! resets it.

use flotilla_pagestore::{PageStore, WriteTxn};
use flotilla_region::{Descriptor, Index, InstallTask, PeerId, RegionId, StoreId};

use super::stages::CompleteStage;
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
}

/// Puts a snapshot in and publishes it.
pub(crate) fn install(
    pages: &PageStore,
    log: &StoreLog,
    ranges: &RangeMap,
    store: StoreId,
    staged: CompleteStage,
    task: &InstallTask,
) -> Result<Installed, Error> {
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
    let state = next_state(&mut txn, task, before.as_ref().map(|(_, state)| state))?;
    let rows = staged.rows.len();
    let mut rows_removed = 0;
    let old_range = before.as_ref().map(|(old, _)| old);
    if let Some(old) = old_range {
        rows_removed = remove_beyond(&mut txn, old, descriptor)?;
    }
    let mut data = txn.tree(schema::data_tree(descriptor.space))?;
    let end = Some(&descriptor.end[..]).filter(|end| !end.is_empty());
    rows_removed += data.ingest(&descriptor.start, end, staged.rows)?;
    let key = schema::region_key(region);
    txn.tree(REGION)?.put(&key, &descriptor.encode())?;
    txn.tree(APPLY)?.put(&key, &state.encode())?;
    txn.tree(UNINITIALISED)?.delete(&key)?;
    // Before it is published: from then on a checkpoint may have it.
    log.note_install(region, peer, index, task.hard_state);
    ranges.install(old_range, descriptor);
    txn.publish()?;
    let had_data = before.is_some();
    Ok(Installed { region, peer, index, rows, bytes: staged.bytes, rows_removed, had_data })
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

/// The apply row: the snapshot's index, and the newest of the hard states.
fn next_state(
    txn: &mut WriteTxn<'_>,
    task: &InstallTask,
    before: Option<&ApplyState>,
) -> Result<ApplyState, Error> {
    let (region, index, term) = (task.head.descriptor.id, task.head.index, task.head.term);
    let mut hard_state = task.hard_state;
    if let Some(before) = before {
        assert!(
            before.applied < index,
            "region {region}: a snapshot at {index} where {} is applied",
            before.applied
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
    Ok(ApplyState { applied: index, term, hard_state })
}

/// Removes the rows of the old range that the new one does not have: those parts were split off,
/// and come as regions of their own. Returns how many there were.
fn remove_beyond(txn: &mut WriteTxn<'_>, old: &Descriptor, new: &Descriptor) -> Result<u64, Error> {
    assert_eq!(old.space, new.space, "region {} has moved to another space", old.id);
    let mut rows = txn.tree(schema::data_tree(old.space))?;
    let mut removed = 0;
    if old.start < new.start {
        let ends = [&old.end, &new.start].into_iter().filter(|end| !end.is_empty());
        removed += rows.delete_range(&old.start, ends.min().map(|end| &end[..]))?;
    }
    if !new.end.is_empty() && (old.end.is_empty() || new.end < old.end) {
        let old_end = Some(&old.end[..]).filter(|end| !end.is_empty());
        removed += rows.delete_range(old.start.clone().max(new.end.clone()).as_ref(), old_end)?;
    }
    Ok(removed)
}
