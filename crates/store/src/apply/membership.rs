//! Changes of a region's replicas. The row changes in the entry's transaction, raft's configuration
//! when the region hears of it (R18).
//!
//! An entry that removes the replica here changes the row like any other. The replica ends later,
//! by a task of its own.

use flotilla_pagestore::WriteTxn;
use flotilla_region::{Descriptor, MembershipCommand, MembershipError, PeerId, RegionChange};

use super::ReplicaState;
use super::outcome::{ApplyOutcome, ApplyReject};
use crate::error::Error;
use crate::schema::{self, REGION};

impl ReplicaState {
    pub(super) fn change_members(
        &mut self,
        txn: &mut WriteTxn<'_>,
        command: &MembershipCommand,
    ) -> Result<ApplyOutcome, Error> {
        let descriptor = match command.apply(&self.descriptor) {
            Ok(descriptor) => descriptor,
            Err(MembershipError::Version) => {
                let current = vec![self.descriptor.clone()];
                return Ok(ApplyOutcome::Rejected(ApplyReject::EpochNotMatch { current }));
            }
            Err(error) => return Ok(ApplyOutcome::Rejected(ApplyReject::InvalidMembership(error))),
        };
        self.put_descriptor(txn, descriptor.clone())?;
        let (index, change) = (self.state.applied, command.change.clone());
        self.changes.push(RegionChange::Membership { index, change, descriptor });
        Ok(ApplyOutcome::Done)
    }

    /// Takes a removed replica off the list of those whose ends are not confirmed. One that is not
    /// there was confirmed before.
    pub(super) fn forget(
        &mut self,
        txn: &mut WriteTxn<'_>,
        peer: PeerId,
    ) -> Result<ApplyOutcome, Error> {
        let unconfirmed = &self.descriptor.removed.unconfirmed;
        let Some(at) = unconfirmed.iter().position(|removed| removed.id == peer) else {
            return Ok(ApplyOutcome::Done);
        };
        let mut descriptor = self.descriptor.clone();
        descriptor.removed.unconfirmed.remove(at);
        self.put_descriptor(txn, descriptor.clone())?;
        let index = self.state.applied;
        self.changes.push(RegionChange::Forgotten { index, peer, descriptor });
        Ok(ApplyOutcome::Done)
    }

    fn put_descriptor(
        &mut self,
        txn: &mut WriteTxn<'_>,
        descriptor: Descriptor,
    ) -> Result<(), Error> {
        // R13. Else an id that is gone for good could be a member again.
        let (floor, next) = (self.descriptor.floor(), descriptor.floor());
        assert!(next >= floor, "region {}: the floor {floor} becomes {next}", descriptor.id);
        let key = schema::region_key(descriptor.id);
        txn.tree(REGION)?.put(&key, &descriptor.encode())?;
        self.descriptor = descriptor;
        Ok(())
    }
}
