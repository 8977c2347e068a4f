//! The space on a store's disk: what it is told to have left, and what the store makes of it.
//!
//! The figures are a script's. Where the disk is hard, the engines find no room either, and the
//! store may end in the middle of something; else it goes on, and nothing may go wrong.

use flotilla_dispatch::{DiskLimits, DiskMonitor, DiskSpace, ReserveAction};
use flotilla_region::{DiskUsage, StoreDisks, StoreId};

use crate::coverage::DiskCoverage;

const GIB: u64 = 1 << 30;
/// The size of each disk.
const DISK_BYTES: u64 = 100 * GIB;
const RESERVE_BYTES: u64 = GIB / 4;

/// The bounds that the node has by default.
const LIMITS: DiskLimits = DiskLimits {
    almost_full_ratio: 0.1,
    full_bytes: 5 * GIB,
    full_ratio: 0.02,
    reserve_bytes: RESERVE_BYTES,
    log_bytes_max: None,
    log_segment_bytes: GIB / 16,
};

/// The usage that a disk is to have.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct DiskFill {
    /// Free bytes, of 100 GiB.
    pub(crate) free_bytes: u64,
    /// Whether the engines find no room either.
    pub(crate) is_hard: bool,
}

impl DiskFill {
    /// There is room.
    pub(crate) const NONE: Self = Self { free_bytes: 50 * GIB, is_hard: false };

    /// Free bytes with which a disk has this usage.
    pub(crate) fn soft(usage: DiskUsage) -> Self {
        let free_bytes = match usage {
            DiskUsage::Normal => 50 * GIB,
            DiskUsage::AlmostFull => 8 * GIB,
            DiskUsage::Full => 3 * GIB,
            DiskUsage::Exhausted => GIB / 8,
        };
        Self { free_bytes, is_hard: false }
    }
}

/// A store's disk, whatever runs on it.
#[derive(Debug)]
pub(super) struct SimDisk {
    pub(super) fill: DiskFill,
    is_reserve_held: bool,
    /// Whether a fault was injected: an error is then the death of the store, not a bug.
    pub(super) has_fault: bool,
    /// Whether a bit of its pages was flipped.
    pub(super) is_rotten: bool,
}

impl Default for SimDisk {
    fn default() -> Self {
        Self { fill: DiskFill::NONE, is_reserve_held: true, has_fault: false, is_rotten: false }
    }
}

/// The disks, as a running store knows them.
#[derive(Debug, Default)]
pub(super) struct DiskWatch {
    monitor: DiskMonitor,
    stores: StoreDisks,
    pub(super) coverage: DiskCoverage,
}

impl SimDisk {
    /// The space, as the file system tells it.
    fn space(&self) -> DiskSpace {
        let held = if self.is_reserve_held { RESERVE_BYTES } else { 0 };
        DiskSpace {
            total_bytes: DISK_BYTES,
            free_bytes: (self.fill.free_bytes + RESERVE_BYTES).saturating_sub(held),
            log_bytes: 0,
            is_write_waiting: false,
            is_reserve_held: self.is_reserve_held,
        }
    }
}

impl DiskWatch {
    /// The usage of the own disk.
    pub(super) fn usage(&self) -> DiskUsage {
        self.monitor.usage()
    }

    /// The usage of a store's disk, as this one knows it.
    #[cfg(test)]
    pub(super) fn known(&self, store: StoreId) -> DiskUsage {
        self.stores.of(store)
    }

    /// Looks at the own disk, and does what is to be done with the reserve. Returns how full it is.
    pub(super) fn look(&mut self, disk: &mut SimDisk) -> DiskUsage {
        let look = self.monitor.look(&LIMITS, disk.space());
        if look.changed_from.is_some() {
            self.coverage.full += u64::from(look.usage == DiskUsage::Full);
            self.coverage.exhausted += u64::from(look.usage == DiskUsage::Exhausted);
        }
        match look.reserve {
            Some(ReserveAction::Release) => {
                self.coverage.reserves_released += 1;
                disk.is_reserve_held = false;
            }
            Some(ReserveAction::Make) => disk.is_reserve_held = true,
            None => {}
        }
        look.usage
    }

    /// A store's disk is so full. Returns all of them, if that is new.
    pub(super) fn note(&mut self, store: StoreId, usage: DiskUsage) -> Option<StoreDisks> {
        self.stores.note(store, usage).then(|| self.stores.clone())
    }
}
