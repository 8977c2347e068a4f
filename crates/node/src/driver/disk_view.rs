//! The usages of the stores' disks, as far as this one has heard, and the space of its own.
//!
//! Each change goes to all shards, in the order of the changes.

use std::sync::atomic::{AtomicU8, Ordering};
use std::time::Duration;

use flotilla_dispatch::{DiskLimits, DiskSpace};
use flotilla_region::{DiskUsage, StoreDisks, StoreId};
use parking_lot::{Condvar, Mutex};

use crate::driver::shard_message::Mailboxes;

flotilla_base::metrics! { "disk",
    /// The disk of the data directory.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct DiskStats {
        /// The usage of the disk: 0 normal, 1 almost full, 2 full, 3 exhausted.
        pub usage: u64 => Gauge(None),
        /// Free bytes below which the disk is full.
        pub full_below_bytes: u64 => Gauge(Bytes),
        /// Bytes of the reserve, if it is there now.
        pub reserve_bytes: u64 => Gauge(Bytes),
        /// Whether a write to the log waits for room: 1.
        pub log_waits: u64 => Gauge(None),
    }
}

/// The disks of all stores.
pub(crate) struct DiskView {
    here: StoreId,
    mailboxes: Mailboxes,
    stores: Mutex<StoreDisks>,
    /// The own usage, for those that ask for each message.
    usage: AtomicU8,
    own: Mutex<OwnDisk>,
    changed: Condvar,
}

/// The own disk.
struct OwnDisk {
    limits: DiskLimits,
    space: DiskSpace,
    /// It should be looked at now.
    is_woken: bool,
    is_stopped: bool,
}

impl DiskView {
    /// All disks have room, until they are looked at.
    pub(crate) fn new(here: StoreId, mailboxes: Mailboxes, limits: DiskLimits) -> Self {
        let own =
            OwnDisk { limits, space: DiskSpace::default(), is_woken: false, is_stopped: false };
        Self {
            here,
            mailboxes,
            stores: Mutex::default(),
            usage: AtomicU8::new(DiskUsage::Normal.number()),
            own: Mutex::new(own),
            changed: Condvar::new(),
        }
    }

    /// Notes what a store says of its disk.
    pub(crate) fn note(&self, store: StoreId, usage: DiskUsage) {
        let mut stores = self.stores.lock();
        if !stores.note(store, usage) {
            return;
        }
        if store == self.here {
            self.usage.store(usage.number(), Ordering::Relaxed);
        }
        // Under the lock: the shards hear of changes in their order.
        self.mailboxes.post_disks(&stores);
    }

    /// Notes whether all stores know of transfers of leaders.
    pub(crate) fn note_transfers(&self, may_transfer: bool) {
        let mut stores = self.stores.lock();
        if stores.note_leaders_stay(!may_transfer) {
            self.mailboxes.post_disks(&stores);
        }
    }

    /// Notes the space that a look has found.
    pub(crate) fn note_space(&self, space: DiskSpace) {
        self.own.lock().space = space;
    }

    /// The usage of the disk here.
    pub(crate) fn usage(&self) -> DiskUsage {
        DiskUsage::from_number(self.usage.load(Ordering::Relaxed).into())
    }

    /// The space of the disk here, by the last look.
    pub(crate) fn space(&self) -> DiskSpace {
        self.own.lock().space
    }

    /// The bounds by which it is judged.
    pub(crate) fn limits(&self) -> DiskLimits {
        self.own.lock().limits
    }

    /// Judges it by other bounds from now on.
    pub(crate) fn set_limits(&self, limits: DiskLimits) {
        let mut own = self.own.lock();
        (own.limits, own.is_woken) = (limits, true);
        self.changed.notify_all();
    }

    /// Ends the looks.
    pub(crate) fn stop(&self) {
        self.own.lock().is_stopped = true;
        self.changed.notify_all();
    }

    /// Waits for the next look; false at the end.
    pub(crate) fn wait(&self, interval: Duration) -> bool {
        let mut own = self.own.lock();
        if !(own.is_woken || own.is_stopped) {
            self.changed.wait_for(&mut own, interval);
        }
        own.is_woken = false;
        !own.is_stopped
    }

    /// The figures of the disk here.
    pub(crate) fn stats(&self) -> DiskStats {
        let OwnDisk { limits, space, .. } = *self.own.lock();
        DiskStats {
            usage: self.usage().number().into(),
            full_below_bytes: limits.full_below(space.total_bytes),
            reserve_bytes: if space.is_reserve_held { limits.reserve_bytes } else { 0 },
            log_waits: space.is_write_waiting.into(),
        }
    }
}
