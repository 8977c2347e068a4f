//! Damaged pages: taken out as the node does, and told to the core.

use flotilla_region::RegionId;
use flotilla_store::{DamagedReplica, Error};

use super::Executor;
use super::damaged_reads::found;
use crate::task::{Outbox, Task};

impl Executor {
    /// Takes out a page that was found damaged.
    pub(crate) fn take_out(
        &mut self,
        page: u64,
        of: Option<RegionId>,
        out: &mut Outbox,
    ) -> Result<(), Error> {
        let taken = self.store.quarantine(page, of)?;
        self.coverage.driver.disks.pages_taken_out += 1;
        self.tell_damaged(taken.replicas, out);
        Ok(())
    }

    /// Tells the core which replicas have lost rows.
    pub(super) fn tell_damaged(&mut self, damaged: Vec<DamagedReplica>, out: &mut Outbox) {
        if !damaged.is_empty() {
            let events = damaged.into_iter().map(found).collect();
            out.tasks.push((self.notify_delay_us(), Task::Post(events)));
        }
    }
}
