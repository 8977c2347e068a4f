//! Counters and figures of the engine.

use flotilla_base::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

flotilla_base::metrics! { "log",
    /// Figures of a running engine. Counts are since it was opened.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct Stats {
        /// Batches written.
        pub batches: u64 => Counter(None),
        /// Group commits, each one write (two if a segment became full).
        pub flushes: u64 => Counter(None),
        /// Group commits that were synced. Segments that became full are not in it.
        pub syncs: u64 => Counter(None),
        /// Bytes of frames written.
        pub bytes_written: u64 => Counter(Bytes, "written_bytes"),
        /// Bytes of batches that are queued or being written now.
        pub queued_bytes: u64 => Gauge(Bytes),
        /// The high-water mark of durability: the last batch that is known to be on disk.
        pub durable_lsn: u64 => Gauge(None),
        /// Segments on disk that hold batches.
        pub segments: u64 => Gauge(None),
        /// Full segments that wait to be sealed.
        ///
        /// They are the backlog of [`crate::LogEngine::maintain`]. Above two, writes seal by
        /// themselves.
        pub unsealed_segments: u64 => Gauge(None),
        /// Segments of which only the tombstones are left, because older ones are still live.
        pub reduced_segments: u64 => Gauge(None),
        /// Dead segments that are kept to be written to again.
        pub recycled_segments: u64 => Gauge(None),
        /// Bytes of the segments' files.
        pub segment_bytes: u64 => Gauge(Bytes),
        /// Live bytes in the segments; the rest is garbage, which can be purged once it is oldest.
        pub live_bytes: u64 => Gauge(Bytes),
        /// Groups that have entries or keys.
        pub groups: u64 => Gauge(None),
        /// Memory of the index: the capacity of its lists and tables.
        pub index_bytes: u64 => Gauge(Bytes),
        /// Memory of the block cache.
        pub cache_bytes: u64 => Gauge(Bytes),
        /// Time for which the group commit that is under way has been writing and syncing.
        ///
        /// `None` if there is none. A disk that hangs shows here: the other figures do not wait for
        /// it. Of one that wants no sync it is the time since figures were first asked for while it
        /// was under way.
        pub flush_running: Option<Duration> => Gauge(Milliseconds, "flush_running_milliseconds"),
        /// Counters of purge.
        pub purge: PurgeStats => Nested(),
    }
}

flotilla_base::metrics! { "log_purge",
    /// Counters of purge since the engine was opened.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    #[non_exhaustive]
    pub struct PurgeStats {
        /// Calls of purge that were carried out.
        pub calls: u64 => Counter(None),
        /// Segments that purge has removed.
        pub segments: u64 => Counter(None),
        /// Bytes that purge has freed: of files removed, and of segments reduced.
        pub bytes: u64 => Counter(Bytes, "removed_bytes"),
        /// Dead segments that purge has reduced to their tombstones, because older ones were live.
        pub reduced_segments: u64 => Counter(None),
        /// Bytes of frames with rewritten records.
        ///
        /// They are part of [`Stats::bytes_written`], and the rest of that was written by users:
        /// the whole divided by the rest is the write amplification of purge.
        pub rewritten_bytes: u64 => Counter(Bytes),
        /// Appends, keys and compactions that were rewritten.
        pub rewritten_records: u64 => Counter(None),
    }
}

/// One segment, see [`crate::LogEngine::segments`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct SegmentStats {
    /// Its number, which is the name of its file. Older ones have lower numbers.
    pub number: u64,
    /// The length of its file, in bytes.
    pub bytes: u64,
    /// Live bytes in it.
    pub live_bytes: u64,
    /// Its state between its first batch and its removal.
    pub state: SegmentState,
}

/// The state of a segment between its first batch and its removal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SegmentState {
    /// Batches are appended to it.
    Active,
    /// It is full, and waits to be sealed.
    Full,
    /// It is synced, and has a footer.
    Sealed,
}

/// No group commit is under way.
const NO_FLUSH: u64 = 0;

/// One is under way that wants no sync, and no figures were asked for meanwhile: to read the clock
/// would take a thirtieth of the whole commit.
const NOT_TIMED: u64 = u64::MAX;

/// Counters that threads change as they go.
#[derive(Debug)]
pub(crate) struct LogCounters {
    pub(crate) batches: AtomicU64,
    pub(crate) flushes: AtomicU64,
    pub(crate) syncs: AtomicU64,
    pub(crate) bytes_written: AtomicU64,
    pub(crate) durable_lsn: AtomicU64,
    pub(crate) live_bytes: AtomicU64,
    pub(crate) purge: PurgeCounters,
    opened: Instant,
    /// The start of the group commit that is under way, in nanoseconds since the log was opened; or
    /// [`NO_FLUSH`], or [`NOT_TIMED`].
    flush_began: AtomicU64,
}

impl Default for LogCounters {
    fn default() -> LogCounters {
        LogCounters {
            batches: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            syncs: AtomicU64::new(0),
            bytes_written: AtomicU64::new(0),
            durable_lsn: AtomicU64::new(0),
            live_bytes: AtomicU64::new(0),
            purge: PurgeCounters::default(),
            opened: Instant::now(),
            flush_began: AtomicU64::new(NO_FLUSH),
        }
    }
}

impl LogCounters {
    pub(crate) fn begin_flush(&self, is_synced: bool) {
        debug_assert_eq!(self.flush_began.load(Ordering::Relaxed), NO_FLUSH, "two leaders");
        let began = if is_synced { self.nanos() } else { NOT_TIMED };
        self.flush_began.store(began, Ordering::Relaxed);
    }

    pub(crate) fn end_flush(&self) {
        self.flush_began.store(NO_FLUSH, Ordering::Relaxed);
    }

    pub(crate) fn flush_running(&self) -> Option<Duration> {
        let now = self.nanos();
        // If it has ended meanwhile, and the next is not timed either, the time of that one begins
        // now.
        let set =
            self.flush_began.compare_exchange(NOT_TIMED, now, Ordering::Relaxed, Ordering::Relaxed);
        match set {
            Ok(_) => Some(Duration::ZERO),
            Err(NO_FLUSH) => None,
            Err(began) => Some(Duration::from_nanos(now.saturating_sub(began))),
        }
    }

    /// Nanoseconds since the log was opened; never one of the two special values.
    fn nanos(&self) -> u64 {
        (self.opened.elapsed().as_nanos() as u64).clamp(NO_FLUSH + 1, NOT_TIMED - 1)
    }
}

/// Counters of purge, which one thread at a time changes.
#[derive(Debug, Default)]
pub(crate) struct PurgeCounters {
    pub(crate) calls: AtomicU64,
    pub(crate) segments: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) reduced_segments: AtomicU64,
    pub(crate) rewritten_bytes: AtomicU64,
    pub(crate) rewritten_records: AtomicU64,
}

impl PurgeCounters {
    pub(crate) fn load(&self) -> PurgeStats {
        let load = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        PurgeStats {
            calls: load(&self.calls),
            segments: load(&self.segments),
            bytes: load(&self.bytes),
            reduced_segments: load(&self.reduced_segments),
            rewritten_bytes: load(&self.rewritten_bytes),
            rewritten_records: load(&self.rewritten_records),
        }
    }
}
