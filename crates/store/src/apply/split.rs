//! Splits: one region becomes several.
//!
//! No row of data is touched: the regions share a tree, and a region is the range that its row in
//! [`REGION`] names. So a split costs the same whatever the region holds. It is not known which of
//! the regions has the rows that a damaged parent has lost: all of them are damaged.
//!
//! A child is not made here if its replica has ended, if a later one is here already (R17), or if
//! it has none here: then the rows of its range go, in the same transaction.

use flotilla_pagestore::WriteTxn;
use flotilla_region::{
    Descriptor, HardState, PeerId, RecoveredReplica, RegionChange, RegionId, SPLIT_INDEX,
    SPLIT_TERM, SplitCommand, SplitError, SplitRegions,
};

use super::outcome::{ApplyOutcome, ApplyReject};
use super::{ApplyPlace, ReplicaState};
use crate::data_range;
use crate::error::Error;
use crate::schema::{
    self, APPLY, ApplyState, REGION, TOMB, Tombstone, UNINITIALISED, UninitialisedRow,
};

impl ReplicaState {
    pub(super) fn split(
        &mut self,
        txn: &mut WriteTxn<'_>,
        place: ApplyPlace<'_>,
        split: &SplitCommand,
    ) -> Result<ApplyOutcome, Error> {
        let regions = match split.divide(&self.descriptor) {
            Ok(regions) => regions,
            Err(SplitError::Version) => {
                let current = vec![self.descriptor.clone()];
                return Ok(ApplyOutcome::Rejected(ApplyReject::EpochNotMatch { current }));
            }
            Err(error) => return Ok(ApplyOutcome::Rejected(ApplyReject::InvalidSplit(error))),
        };
        let made = write_regions(txn, place, regions, &self.state)?;
        // Proposals of before the split must be told from those behind it.
        let (version, risen) = (self.descriptor.epoch.version, made.parent.epoch.version);
        assert!(risen > version, "{}: a split from version {version} to {risen}", made.parent.id);
        let before = std::mem::replace(&mut self.descriptor, made.parent.clone());
        self.splits.push((before, made.clone()));
        let index = self.state.applied;
        // Those that are not made here are not named.
        self.changes.push(RegionChange::Split { index, regions: made });
        Ok(ApplyOutcome::Done)
    }
}

/// Writes the rows of the regions, and returns those that are here now. The row of the parent's
/// progress follows with the transaction's.
fn write_regions(
    txn: &mut WriteTxn<'_>,
    place: ApplyPlace<'_>,
    mut regions: SplitRegions,
    of_parent: &ApplyState,
) -> Result<SplitRegions, Error> {
    let parent = &regions.parent;
    txn.tree(REGION)?.put(&schema::region_key(parent.id), &parent.encode())?;
    let mut made = vec![];
    for child in regions.children {
        // Ids are never used twice. A row that is there would be lost, and its log with it.
        if txn.tree(REGION)?.get(&schema::region_key(child.id))?.is_some() {
            let (parent, id) = (parent.id, child.id);
            return Err(Error::Corrupt(format!("region {parent} splits off {id}, which is here")));
        }
        match child.peer_on(place.store) {
            Some(peer) if may_be_made(txn, place, child.id, peer.id)? => {
                make(txn, &child, peer.id, of_parent)?;
                made.push(child);
            }
            _ => remove_rows(txn, &child)?,
        }
    }
    regions.children = made;
    Ok(regions)
}

/// R17: no replica comes back that was said to be gone, and none takes the slot of a later one.
fn may_be_made(
    txn: &mut WriteTxn<'_>,
    place: ApplyPlace<'_>,
    child: RegionId,
    peer: PeerId,
) -> Result<bool, Error> {
    let key = schema::region_key(child);
    let tombstone = txn.tree(TOMB)?.get(&key)?.map(|row| Tombstone::decode(child, &row));
    if tombstone.transpose()?.is_some_and(|tombstone| peer <= tombstone.peer) {
        return Ok(false);
    }
    let row = txn.tree(UNINITIALISED)?.get(&key)?.map(|row| UninitialisedRow::decode(child, &row));
    let in_row = row.transpose()?.map(|row| row.peer);
    // The log alone may have it: no checkpoint has come since its birth.
    let in_log = place.log.uninitialised_of(child).into_iter().max();
    Ok(in_row.max(in_log).is_none_or(|later| later <= peer))
}

/// Makes the rows of a new region. It goes on from its parent's watermark, for it has its rows.
fn make(
    txn: &mut WriteTxn<'_>,
    child: &Descriptor,
    peer: PeerId,
    of_parent: &ApplyState,
) -> Result<(), Error> {
    let &ApplyState { watermark_ms, is_damaged, .. } = of_parent;
    let hard_state = RecoveredReplica::hard_state_of_split();
    let hard_state = take_uninitialised(txn, child.id, peer)?
        .map_or(hard_state, |voted| hard_state.merge(voted));
    let (applied, term) = (SPLIT_INDEX, SPLIT_TERM);
    let state = ApplyState { applied, term, watermark_ms, is_damaged, hard_state };
    let key = schema::region_key(child.id);
    txn.tree(REGION)?.put(&key, &child.encode())?;
    txn.tree(APPLY)?.put(&key, &state.encode())?;
    Ok(())
}

fn remove_rows(txn: &mut WriteTxn<'_>, child: &Descriptor) -> Result<(), Error> {
    // A child is never the last part of a space: a border of the split is its end.
    data_range::delete(txn, child.space, &child.start, Some(&child.end))?;
    Ok(())
}

/// Removes the row of a replica that voted before the split was applied here, and returns its hard
/// state: it has its rows now, and its votes go on counting. Those of a replica that is no member
/// never counted.
fn take_uninitialised(
    txn: &mut WriteTxn<'_>,
    child: RegionId,
    peer: PeerId,
) -> Result<Option<HardState>, Error> {
    let key = schema::region_key(child);
    let mut rows = txn.tree(UNINITIALISED)?;
    let Some(row) = rows.get(&key)?.map(|row| row.to_vec()) else { return Ok(None) };
    let row = UninitialisedRow::decode(child, &row)?;
    rows.delete(&key)?;
    Ok((row.peer == peer).then_some(row.hard_state))
}
