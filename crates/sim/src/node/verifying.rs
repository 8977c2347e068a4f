//! Comparisons of the replicas of regions, as the node's checker has them made.

use flotilla_region::Role;

use super::VERIFY_US;
use super::running::RunningStore;
use crate::event_queue::SimTime;
use crate::executor::Executor;
use crate::task::{Outbox, Task};

impl RunningStore {
    /// Looks for a region whose turn has come, and that the store leads.
    pub(super) fn verify(&mut self, now: SimTime, out: &mut Outbox) {
        out.tasks.push((VERIFY_US, Task::Verify));
        if self.executor.store().digesting().is_some() {
            return;
        }
        let (shard, time) = (&self.shard, Executor::comparison_time(now));
        let leads = |region| shard.status(region).is_some_and(|status| status.role == Role::Leader);
        let Some(region) = self.executor.comparisons.next(time, shard.regions(), leads) else {
            return;
        };
        // A verdict says otherwise, if there is one.
        self.executor.comparisons.compared(time, region, false);
        out.comparisons.extend(shard.descriptor(region).cloned());
    }
}

#[cfg(test)]
mod altering {
    use std::collections::BTreeMap;
    use std::path::Path;
    use std::sync::Arc;

    use flotilla_pagestore::{Options, PageStore};
    use flotilla_region::{ConsistencyVerdict, RegionId};

    use crate::node::{DIRECTORY, SimNode};

    impl SimNode {
        /// Puts another row in the place of a key's on the disk of a store that is down, with
        /// checksums that are right. From then on its rows are not compared with the reference
        /// model.
        pub(crate) fn alter_row(&mut self, key: &[u8], row: &[u8]) {
            assert!(!self.is_up(), "store {} is up", self.place);
            let path = Path::new(DIRECTORY).join("pages");
            let pages = PageStore::open_with(Arc::new(self.fs.clone()), &path, Options::default());
            let pages = pages.expect("the disk is sound");
            let mut txn = pages.write().expect("the disk is sound");
            txn.tree("raw").and_then(|mut rows| rows.put(key, row)).expect("the disk is sound");
            txn.publish().expect("the disk is sound");
            pages.checkpoint().expect("the disk is sound");
            self.spare_disks.is_altered = true;
        }

        /// The regions whose replicas differ, as the store knows.
        pub(crate) fn inconsistent(&self) -> BTreeMap<RegionId, ConsistencyVerdict> {
            let running = self.running.as_ref();
            running.map(|it| it.executor.store().inconsistent_regions()).unwrap_or_default()
        }
    }
}
