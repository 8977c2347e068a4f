//! Counters of the store since its start.

use std::sync::atomic::{AtomicU64, Ordering};

use flotilla_region::ConsistencyVerdict;

flotilla_base::metrics! { "store",
    /// The counters of the store since it was opened, and those of its engines.
    #[derive(Clone, Debug, Default)]
    pub struct Stats {
        /// The log engine's own.
        pub log: flotilla_raftlog::Stats => Nested(),
        /// The page store's own.
        pub pages: flotilla_pagestore::Stats => Nested(),
        /// Entries applied.
        pub entries_applied: u64 => Counter(None),
        /// Transactions in which entries were applied.
        pub applies: u64 => Counter(None),
        /// Checkpoints made.
        pub checkpoints: u64 => Counter(None),
        /// Snapshots that took the place of a replica's rows.
        pub snapshots_installed: u64 => Counter(None),
        /// Replicas that have ended.
        pub replicas_ended: u64 => Counter(None),
        /// Bytes of pages that upkeep has moved towards the beginning of the file.
        pub pages_moved_bytes: u64 => Counter(Bytes),
        /// Bytes of what was cut off from the trees that upkeep has given back.
        pub pages_reclaimed_bytes: u64 => Counter(Bytes),
        /// Bytes of log batches that came since the last checkpoint.
        pub log_bytes_since_checkpoint: u64 => Gauge(Bytes, "log_since_checkpoint_bytes"),
        /// Comparisons of the replicas of regions here of which all took part.
        pub comparisons: u64 => Counter(None),
        /// Comparisons in which replicas took no part.
        pub comparisons_incomplete: u64 => Counter(None),
        /// Comparisons that have found a difference between replicas.
        pub comparisons_differing: u64 => Counter(None),
        /// Regions here whose replicas differ, by the last comparison that could tell.
        pub inconsistent_regions: u64 => Gauge(None),
        /// Pages that were found damaged and were taken out of the trees.
        pub damaged_pages: u64 => Counter(None),
        /// Replicas that have lost rows by damaged pages, and wait for a snapshot.
        pub damaged_replicas: u64 => Gauge(None),
        /// Bytes of rows that were read for comparisons.
        pub digested_bytes: u64 => Counter(Bytes),
        /// Bytes of log entries that were read again to find damage.
        pub log_scrubbed_bytes: u64 => Counter(Bytes),
        /// Reads of log entries that the disk refused or that found damage.
        pub log_reads_failed: u64 => Counter(None),
    }
}

#[derive(Debug, Default)]
pub(crate) struct StoreCounters {
    pub(crate) entries_applied: Counter,
    pub(crate) applies: Counter,
    pub(crate) checkpoints: Counter,
    pub(crate) snapshots_installed: Counter,
    pub(crate) replicas_ended: Counter,
    pub(crate) comparisons: ComparisonCounters,
    pub(crate) log_reads_failed: Counter,
    pub(crate) damaged_pages: Counter,
    pub(crate) maintenance: MaintenanceCounters,
}

/// Counts of the work that maintenance has done.
#[derive(Debug, Default)]
pub(crate) struct MaintenanceCounters {
    /// Bytes of pages moved.
    pub(crate) moved_bytes: Counter,
    /// Bytes that deferred frees have returned.
    pub(crate) reclaimed_bytes: Counter,
}

/// Counts of comparisons of replicas.
#[derive(Debug, Default)]
pub(crate) struct ComparisonCounters {
    pub(crate) complete: Counter,
    pub(crate) incomplete: Counter,
    pub(crate) differing: Counter,
    pub(crate) bytes: Counter,
}

impl ComparisonCounters {
    /// Counts a verdict that was applied.
    pub(crate) fn note(&self, verdict: &ConsistencyVerdict) {
        let of = if verdict.is_complete() { &self.complete } else { &self.incomplete };
        of.add(1);
        self.differing.add(u64::from(verdict.has_difference()));
    }
}

/// A number that only grows.
#[derive(Debug, Default)]
pub(crate) struct Counter(AtomicU64);

impl Counter {
    pub(crate) fn add(&self, count: u64) {
        self.0.fetch_add(count, Ordering::Relaxed);
    }

    pub(crate) fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}
