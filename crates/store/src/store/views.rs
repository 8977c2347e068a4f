//! The part of a store that operators and checks look at: figures, the use of space, digests.

use std::collections::BTreeMap;

use flotilla_pagestore::StoreSpaceMap;
use flotilla_region::{ConsistencyVerdict, Index, RegionId};

use super::Store;
use crate::check::{self, StoreCheckReport};
use crate::digest;
use crate::error::Error;
use crate::space_view::{self, LogSegments, TreeSize};
use crate::stats::Stats;

impl Store {
    /// The segments of the log, and the replicas that hold the oldest one. Waits for the write of
    /// the log that is under way, and looks at the log of every replica, so it is called on a
    /// thread that may block.
    ///
    /// # Errors
    ///
    /// The length of a file cannot be read.
    pub fn log_segments(&self) -> Result<LogSegments, Error> {
        space_view::log_segments(self.log.engine())
    }

    /// Bytes that were written to the log since the start. Cheap, unlike [`Store::stats`].
    #[must_use]
    pub fn log_written_bytes(&self) -> u64 {
        self.log.engine().bytes_written()
    }

    /// The use of each part of the page file, in `count_max` cells at most. Holds up no reader, and
    /// writers for moments.
    #[must_use]
    pub fn space_map(&self, count_max: usize) -> StoreSpaceMap {
        self.pages.space_map(count_max)
    }

    /// The trees of the page file, as last published. Reads a few pages.
    ///
    /// # Errors
    ///
    /// The page store failed.
    pub fn tree_sizes(&self) -> Result<Vec<TreeSize>, Error> {
        space_view::tree_sizes(&self.pages)
    }

    /// The regions here whose replicas were found to differ, with the last verdict that says so:
    /// until a later comparison of all their replicas finds none. Durable with the next checkpoint.
    #[must_use]
    pub fn inconsistent_regions(&self) -> BTreeMap<RegionId, ConsistencyVerdict> {
        self.inconsistent.all()
    }

    /// The applied index of a region and the digest of its state. Replicas that are applied up to
    /// the same index have the same one. Reads the whole region.
    ///
    /// # Errors
    ///
    /// [`Error::NoRegion`], or the page store failed.
    pub fn region_digest(&self, region: RegionId) -> Result<(Index, u64), Error> {
        digest::digest(&self.read(), region)
    }

    /// Proves that pages, rows and logs fit together. Reads everything.
    ///
    /// # Errors
    ///
    /// [`Error::Corrupt`] says what does not fit.
    pub fn check(&self) -> Result<StoreCheckReport, Error> {
        check::check(&self.pages, &self.log, &self.ranges, self.identity.store)
    }

    /// Entries that were applied since the start: [`Stats::entries_applied`], without the cost of
    /// the other figures.
    #[must_use]
    pub fn entries_applied(&self) -> u64 {
        self.counters.entries_applied.get()
    }

    /// The counters so far, and those of the engines.
    #[must_use]
    pub fn stats(&self) -> Stats {
        Stats {
            log: self.log.engine().stats(),
            pages: self.pages.stats(),
            entries_applied: self.entries_applied(),
            applies: self.counters.applies.get(),
            checkpoints: self.counters.checkpoints.get(),
            pages_moved_bytes: self.counters.maintenance.moved_bytes.get(),
            pages_reclaimed_bytes: self.counters.maintenance.reclaimed_bytes.get(),
            log_scrubbed_bytes: self.log_scrub.scrubbed_bytes.get(),
            log_bytes_since_checkpoint: self.log.bytes_ahead(),
            snapshots_installed: self.counters.snapshots_installed.get(),
            replicas_ended: self.counters.replicas_ended.get(),
            comparisons: self.counters.comparisons.complete.get(),
            comparisons_incomplete: self.counters.comparisons.incomplete.get(),
            comparisons_differing: self.counters.comparisons.differing.get(),
            inconsistent_regions: self.inconsistent.count() as u64,
            damaged_pages: self.counters.damaged_pages.get(),
            damaged_replicas: self.damaged.count() as u64,
            digested_bytes: self.counters.comparisons.bytes.get(),
            log_reads_failed: self.counters.log_reads_failed.get(),
        }
    }
}
