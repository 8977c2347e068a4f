//! A replica beside full disks: what it refuses, and how its leader leaves.

use super::Replica;
use crate::error::Reject;
use crate::event::RequestPrecondition;
use crate::step_context::StepContext;

impl Replica {
    /// Whether a request that adds data finds room.
    pub(super) fn check_room(
        &self,
        precondition: &RequestPrecondition,
        step: &mut StepContext<'_>,
    ) -> Result<(), Reject> {
        if !precondition.needs_room {
            return Ok(());
        }
        step.disks.stores.check_put(&self.descriptor, self.me.store).map_err(|stores| {
            step.stats.puts_refused += 1;
            Reject::DiskFull { stores }
        })
    }

    /// Whether the disk has room for entries of another leader.
    pub(super) fn takes_entries(&self, step: &StepContext<'_>) -> bool {
        step.disks.stores.takes_entries(&self.descriptor, self.me.store)
    }

    /// Hands the lead over to a voter with room, if the disk here is full: that one takes puts. If
    /// none has room it stays, for deletions are as good here.
    pub(super) fn leave_full_disk(&mut self, step: &mut StepContext<'_>) {
        if !step.disks.stores.wants_leaders_away(self.me.store)
            || !self.consensus.is_leader()
            || self.transfer.is_pending()
            || self.proposals.has_queued_admin()
        {
            return;
        }
        if let Ok(to) = self.choose_with_room(None, step)
            && step.disks.take_transfer(step.now)
        {
            assert!(to != self.me.id, "region {}: a leader leaves for itself", self.descriptor.id);
            step.stats.disk_full_transfers += 1;
            self.begin_transfer(to, None, step);
        }
    }
}
