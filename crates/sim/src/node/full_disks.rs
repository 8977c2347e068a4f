//! Disks that become full, and have room again.

use flotilla_region::{DiskUsage, StoreId};

use super::SimNode;
use super::disk::DiskFill;
use super::running::RunningStore;
use crate::layout;

impl SimNode {
    /// The disk is so full from now on.
    pub(crate) fn fill_disk(&mut self, fill: DiskFill) {
        self.disk.fill = fill;
        self.fs.set_capacity(fill.is_hard.then_some(0));
        self.disk.has_fault |= fill.is_hard;
        // The second look is that behind what the first has done with the reserve.
        for _ in 0..2 {
            self.look_at_disk();
        }
    }

    /// Whether the engines find no room.
    pub(crate) fn has_hard_disk(&self) -> bool {
        self.disk.fill.is_hard
    }

    /// Looks at the disk, as the node's thread does now and then.
    pub(super) fn look_at_disk(&mut self) {
        let Some(running) = &mut self.running else { return };
        let usage = running.disks.look(&mut self.disk);
        running.note_disk(layout::id(self.place), usage);
    }

    /// The usage of a store's disk, as this one knows it.
    #[cfg(test)]
    pub(crate) fn known_usage(&self, store: usize) -> Option<DiskUsage> {
        Some(self.running.as_ref()?.disks.known(layout::id(store)))
    }
}

impl RunningStore {
    /// A store's disk is so full.
    pub(super) fn note_disk(&mut self, store: StoreId, usage: DiskUsage) {
        if let Some(disks) = self.disks.note(store, usage) {
            self.shard.note_disks(disks);
        }
    }
}
