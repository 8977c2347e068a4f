//! Looks at the space of the disk, and does what follows from it: the shards hear of it, the
//! reserve is given up or made, a purge comes at once, and the log has a line for each change.
//!
//! The judgement is [`DiskMonitor`]'s; here are only the looks.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flotilla_dispatch::{DiskLimits, DiskLook, DiskMonitor, DiskSpace, ReserveAction};
use flotilla_region::{DiskUsage, StoreId};
use flotilla_store::Store;

use super::checkpointer::CheckpointSignal;
use crate::disk_reserve::{DiskReserve, space_of};
use crate::driver::disk_view::DiskView;
use crate::drop_notify::DropNotify;

/// From one look to the next: what a fast disk takes in that time is a part of what is kept free.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);
/// From one purge that is asked for to the next.
const PURGE_INTERVAL: Duration = Duration::from_secs(1);
/// After a reserve that could not be made it is tried again.
const RESERVE_INTERVAL: Duration = Duration::from_secs(60);

/// The watcher's thread, before it runs.
pub(crate) struct DiskWatcher {
    pub(crate) store: Arc<DropNotify<Store>>,
    pub(crate) view: Arc<DiskView>,
    pub(crate) signal: Arc<CheckpointSignal>,
    pub(crate) reserve: DiskReserve,
    pub(crate) data_dir: PathBuf,
    /// Whether all stores know of transfers of leaders.
    pub(crate) may_transfer: Box<dyn Fn() -> bool + Send>,
}

/// When things were done last.
#[derive(Default)]
struct LastTimes {
    purge: Option<Instant>,
    failed_reserve: Option<Instant>,
}

impl DiskWatcher {
    /// Runs until the view is stopped.
    pub(crate) fn run(self) {
        let (mut monitor, mut last) = (DiskMonitor::default(), LastTimes::default());
        loop {
            self.look(&mut monitor, &mut last);
            if !self.view.wait(LOOK_INTERVAL) {
                return;
            }
        }
    }

    fn look(&self, monitor: &mut DiskMonitor, last: &mut LastTimes) {
        // A file system that does not say how full it is has none of this; other alarms tell of a
        // directory that cannot be looked at.
        let Some(space) = space_of(&self.data_dir) else { return };
        let limits = self.view.limits();
        let space = DiskSpace {
            log_bytes: self.store.log_disk_bytes(),
            is_write_waiting: self.store.is_log_waiting_for_room(),
            is_reserve_held: self.reserve.is_held(limits.reserve_bytes),
            ..space
        };
        let look = monitor.look(&limits, space);
        self.view.note_space(space);
        self.view.note_transfers((self.may_transfer)());
        // Before the line: who reads it finds the store as it says.
        self.view.note(self.here(), look.usage);
        tell(&look, &limits, space);
        if let Some(action) = look.reserve {
            self.act(action, limits.reserve_bytes, last);
        }
        let now = Instant::now();
        let is_due = |last: Option<Instant>, interval| last.is_none_or(|at| now >= at + interval);
        let wants_purge = look.usage.is_full() || limits.is_log_near_limit(space.log_bytes);
        if wants_purge && is_due(last.purge, PURGE_INTERVAL) {
            last.purge = Some(now);
            self.signal.demand();
        }
    }

    fn act(&self, action: ReserveAction, bytes: u64, last: &mut LastTimes) {
        let done = match action {
            ReserveAction::Release => self.reserve.release(),
            ReserveAction::Make => {
                if last.failed_reserve.is_some_and(|at| at.elapsed() < RESERVE_INTERVAL) {
                    return;
                }
                self.reserve.make(bytes)
            }
        };
        match (action, done) {
            (ReserveAction::Release, Ok(())) => {
                tracing::warn!(bytes, "the reserve is given up: the store needs its room");
            }
            (ReserveAction::Make, Ok(())) => tracing::debug!(bytes, "the reserve is made"),
            (_, Err(error)) => {
                last.failed_reserve = Some(Instant::now());
                tracing::warn!(bytes, "the reserve cannot be made or removed: {error}");
            }
        }
    }

    fn here(&self) -> StoreId {
        self.store.identity().store
    }
}

/// One line for each change.
fn tell(look: &DiskLook, limits: &DiskLimits, space: DiskSpace) {
    let Some(before) = look.changed_from else { return };
    let free_bytes = space.free_bytes;
    let full_below_bytes = limits.full_below(space.total_bytes);
    let log_bytes = space.log_bytes;
    let cause = if look.is_by_log { "the limit of the log" } else { "the space of the disk" };
    let is_fuller = look.usage > before;
    match look.usage {
        DiskUsage::Exhausted => tracing::warn!(
            free_bytes,
            full_below_bytes,
            log_bytes,
            cause,
            "the disk is exhausted: no entries are taken where others go on without this store"
        ),
        DiskUsage::Full if is_fuller => tracing::warn!(
            free_bytes,
            full_below_bytes,
            log_bytes,
            cause,
            "the disk is full: puts are refused, and leaders leave this store"
        ),
        DiskUsage::Full => tracing::info!(free_bytes, log_bytes, "entries are taken again"),
        DiskUsage::AlmostFull if is_fuller => tracing::warn!(
            free_bytes,
            full_below_bytes,
            "the disk is almost full: no snapshots are taken, and nothing is split by itself"
        ),
        DiskUsage::AlmostFull | DiskUsage::Normal => {
            tracing::info!(free_bytes, log_bytes, "the disk has room again");
        }
    }
}
