//! Page maintenance, one small step at a time: deferred frees of dropped subtrees, hole punching
//! and truncation of the file, and defragmentation, which moves pages from the end of a file that
//! is mostly free to free places before it.
//!
//! Where a step changes pages it is a transaction like any other, so a crash takes back what no
//! checkpoint has, and nothing of it has to be replayed from the log.
//!
//! Moved pages are memory until a checkpoint writes them, so a budget holds between two
//! checkpoints. The file can be truncated after the next two checkpoints; only then the result of a
//! round is known, and another round begins when the free space has grown by as much as one
//! truncation would return.

use flotilla_pagestore::{Error as PagesError, PageStore, Stats};
use parking_lot::Mutex;

use crate::config::Config;
use crate::error::Error;
use crate::stats::Counter;

/// Bytes of deferred frees in one step.
const RECLAIM_BYTES: u64 = 1 << 20;
/// Bytes that are moved in one step.
const MOVE_BYTES: u64 = 1 << 20;
/// Checkpoints behind a round until its file is cut off.
const REST_CHECKPOINTS: u32 = 3;

/// The result of one step.
#[derive(Debug)]
pub enum MaintenanceStep {
    /// Something was done, and there may be more.
    More,
    /// As [`MaintenanceStep::More`], and the step may have kept the disk busy: a caller that does
    /// many steps pauses between two of them for some times as long as this one took.
    SpaceReturned,
    /// There is nothing to do before the next checkpoint.
    Done,
    /// A deferred free found an unreadable page: the subtree is not freed, and its space is lost
    /// until the store is made anew. No row is affected. Reported once.
    DeferredFreeUnreadable(PagesError),
}

/// How far the upkeep has come.
#[derive(Debug, Default)]
pub(crate) struct PageMaintenance {
    state: Mutex<MaintenanceState>,
    /// Bytes of pages moved.
    pub(crate) moved_bytes: Counter,
    /// Bytes that deferred frees have returned.
    pub(crate) reclaimed_bytes: Counter,
}

#[derive(Debug, Default)]
struct MaintenanceState {
    is_deferred_free_unreadable: bool,
    /// A round of moving has begun.
    is_moving: bool,
    /// Since the last checkpoint.
    moved_bytes: u64,
    /// Checkpoints to wait for before another round begins.
    rest_checkpoints: u32,
    /// Free space below which no round begins.
    free_bytes_min: u64,
}

impl MaintenanceState {
    fn may_begin(&self, pages: &Stats, config: &Config) -> bool {
        let free = pages.free_bytes;
        self.rest_checkpoints == 0
            && free >= self.free_bytes_min.max(config.pages.trim_bytes)
            && free as f64 >= config.pages_move_free_ratio_min * pages.span_bytes as f64
    }
}

impl PageMaintenance {
    /// Does one step.
    pub(crate) fn step(
        &self,
        pages: &PageStore,
        config: &Config,
    ) -> Result<MaintenanceStep, Error> {
        let mut state = self.state.lock();
        let stats = pages.stats();
        if stats.deferred_free_bytes > 0 && !state.is_deferred_free_unreadable {
            match pages.reclaim(RECLAIM_BYTES) {
                Ok(0) => {}
                Ok(bytes) => {
                    self.reclaimed_bytes.add(bytes);
                    return Ok(MaintenanceStep::More);
                }
                Err(error @ PagesError::Corrupt { .. }) => {
                    state.is_deferred_free_unreadable = true;
                    return Ok(MaintenanceStep::DeferredFreeUnreadable(error));
                }
                Err(error) => return Err(error.into()),
            }
        }
        if pages.trim_punch()? {
            return Ok(MaintenanceStep::SpaceReturned);
        }
        let left = config.pages_move_bytes_max.saturating_sub(state.moved_bytes);
        if left == 0 || !(state.is_moving || state.may_begin(&stats, config)) {
            return Ok(MaintenanceStep::Done);
        }
        let done = pages.defragment(left.min(MOVE_BYTES))?;
        state.moved_bytes += done.moved_bytes;
        self.moved_bytes.add(done.moved_bytes);
        state.is_moving = !done.is_done;
        if done.is_done {
            state.rest_checkpoints = REST_CHECKPOINTS;
        }
        Ok(MaintenanceStep::More)
    }

    /// A checkpoint was made: what was moved is in the file.
    pub(crate) fn on_checkpoint(&self, pages: &PageStore, config: &Config) {
        let mut state = self.state.lock();
        state.moved_bytes = 0;
        if state.rest_checkpoints > 0 {
            state.rest_checkpoints -= 1;
            state.free_bytes_min = pages.stats().free_bytes + config.pages.trim_bytes;
        }
    }
}
