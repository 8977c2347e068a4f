//! Changes of the region itself: one region becomes several.
//!
//! No row of data is touched: the regions share a tree, and a region is the range that its row in
//! [`REGION`] names. So a split costs the same whatever the region holds.

use flotilla_pagestore::WriteTxn;
use flotilla_region::{
    AdminCommand, Committed, Descriptor, HardState, RecoveredReplica, RegionChange, SPLIT_INDEX,
    SPLIT_TERM, SplitCommand, SplitError, SplitRegions, StoreId, Ticket,
};

use super::ReplicaState;
use super::outcome::{ApplyOutcome, ApplyReject};
use crate::error::Error;
use crate::schema::{self, APPLY, ApplyState, REGION, UNINITIALISED, UninitialisedRow};

impl ReplicaState {
    /// Carries out the command of an entry, or none of it.
    pub(super) fn apply_admin(
        &mut self,
        txn: &mut WriteTxn<'_>,
        store: StoreId,
        committed: &Committed,
        outcomes: &mut Vec<(Ticket, ApplyOutcome)>,
    ) -> Result<(), Error> {
        let (region, index) = (self.descriptor.id, committed.entry.index);
        let malformed = |source| Error::MalformedEntry { region, index, source };
        let command = AdminCommand::decode(&committed.entry).map_err(malformed)?;
        let split = match command {
            Some(AdminCommand::Split(split)) => split,
            Some(AdminCommand::Membership(_) | AdminCommand::Forget(_)) => {
                unreachable!("no replica proposes a change of members yet")
            }
            None => unreachable!("the caller has seen that the entry holds one"),
        };
        assert!(
            committed.tickets.len() <= 1,
            "region {region}: entry {index} has more tickets than commands"
        );
        let outcome = self.split(txn, store, &split)?;
        outcomes.extend(committed.tickets.first().map(|ticket| (*ticket, outcome)));
        Ok(())
    }

    fn split(
        &mut self,
        txn: &mut WriteTxn<'_>,
        store: StoreId,
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
        write_regions(txn, store, &regions)?;
        self.descriptor = regions.parent.clone();
        self.changes.push(RegionChange::Split {
            index: self.state.applied,
            regions,
            ended: vec![],
        });
        Ok(ApplyOutcome::Done)
    }
}

/// Writes the rows of the regions. That of the parent's progress follows with the transaction's.
fn write_regions(
    txn: &mut WriteTxn<'_>,
    store: StoreId,
    regions: &SplitRegions,
) -> Result<(), Error> {
    let mut rows = txn.tree(REGION)?;
    for region in regions.children.iter().chain([&regions.parent]) {
        // The parent is here, and each child's replicas are on the stores of its parent's.
        assert!(region.peer_on(store).is_some(), "region {} is not on {store}", region.id);
        let key = schema::region_key(region.id);
        // Ids are never used twice. A row that is there would be lost, and its log with it.
        if region.id != regions.parent.id && rows.get(&key)?.is_some() {
            let (parent, id) = (regions.parent.id, region.id);
            return Err(Error::Corrupt(format!("region {parent} splits off {id}, which is here")));
        }
        rows.put(&key, &region.encode())?;
    }
    for child in &regions.children {
        let hard_state = RecoveredReplica::hard_state_of_split();
        let hard_state = take_uninitialised(txn, store, child)?
            .map_or(hard_state, |voted| hard_state.merge(voted));
        let state = ApplyState { applied: SPLIT_INDEX, term: SPLIT_TERM, hard_state };
        txn.tree(APPLY)?.put(&schema::region_key(child.id), &state.encode())?;
    }
    Ok(())
}

/// Removes the row of a replica that voted before the split was applied here, and returns its hard
/// state: it has its rows now, and its votes go on counting. Those of a replica that is no member
/// never counted.
fn take_uninitialised(
    txn: &mut WriteTxn<'_>,
    store: StoreId,
    child: &Descriptor,
) -> Result<Option<HardState>, Error> {
    let key = schema::region_key(child.id);
    let mut rows = txn.tree(UNINITIALISED)?;
    let Some(row) = rows.get(&key)?.map(|row| row.to_vec()) else { return Ok(None) };
    let row = UninitialisedRow::decode(child.id, &row)?;
    rows.delete(&key)?;
    let is_member = child.peer_on(store).is_some_and(|peer| peer.id == row.peer);
    Ok(is_member.then_some(row.hard_state))
}
