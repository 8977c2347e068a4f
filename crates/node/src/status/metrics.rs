//! The counters of a node in one snapshot, read from the parts that keep them.

use std::sync::{Arc, OnceLock};

use flotilla_proto::peers;

use crate::driver::context::NodeContext;
use crate::driver::router::{Router, RouterStats};
use crate::transport::{TransportCounters, TransportCounts};

/// Returns the lines that the process's logger had to drop.
static LOG_LINES_LOST: OnceLock<fn() -> u64> = OnceLock::new();

/// Lets the nodes of this process report the lines that its logger had to drop: `count` returns how
/// many since the process began. Counts once; a process has one logger.
pub fn report_log_lines_lost(count: fn() -> u64) {
    // Set before: the first logger stays, as `tracing` keeps the first subscriber.
    let _ = LOG_LINES_LOST.set(count);
}

/// Lines that the process's logger had to drop. 0 without a logger that counts.
pub(crate) fn log_lines_lost() -> u64 {
    LOG_LINES_LOST.get().map_or(0, |count| count())
}

/// Handles on all parts that keep counters.
#[derive(Clone)]
pub(crate) struct NodeStatsReader {
    pub(crate) context: NodeContext,
    pub(crate) router: Router,
    pub(crate) counters: Arc<TransportCounters>,
}

impl NodeStatsReader {
    /// The counts now.
    pub(crate) fn read(&self) -> NodeStats {
        NodeStats {
            requests: self.router.counts(),
            transport: self.counters.read(),
            store: self.context.store.stats(),
            log_backlog_bytes: self.context.queues.log.bytes() as u64,
            apply_backlog_bytes: self.context.queues.applies.bytes() as u64,
        }
    }
}

/// The counts of one node at one moment.
#[derive(Clone, Debug)]
pub struct NodeStats {
    /// Requests of clients.
    pub requests: RouterStats,
    /// Messages between stores.
    pub transport: TransportCounts,
    /// The disk.
    pub store: flotilla_store::Stats,
    /// Bytes that wait to be written to the log.
    pub log_backlog_bytes: u64,
    /// Bytes that wait to be applied.
    pub apply_backlog_bytes: u64,
}

impl NodeStats {
    /// The part that other stores and operators see. The caller adds the identity of the store.
    #[must_use]
    pub fn to_wire(&self) -> peers::StatsResponse {
        let Self { requests, transport, store, .. } = self;
        peers::StatsResponse {
            requests: Some(peers::RequestStats {
                writes_acknowledged: requests.writes_acknowledged,
                writes_rejected: requests.writes_rejected,
                reads_granted: requests.reads_granted,
                reads_rejected: requests.reads_rejected,
                reads_failed: requests.reads_failed,
                waiting: requests.waiting,
            }),
            raft: Some(peers::RaftStats {
                entries_applied: store.entries_applied,
                frames_sent: transport.frames_sent,
                frames_received: transport.frames_received,
                frame_bytes_sent: transport.frame_bytes_sent,
                frame_bytes_received: transport.frame_bytes_received,
                messages_dropped: transport.messages_dropped,
            }),
            log: Some(peers::LogStats {
                syncs: store.log.syncs,
                writes: store.log.flushes,
                batches: store.log.batches,
                bytes_written: store.log.bytes_written,
                segments: store.log.segments,
                live_bytes: store.log.live_bytes,
                reads_failed: store.log_reads_failed,
            }),
            pages: Some(peers::PageStats {
                transactions: store.applies,
                checkpoints: store.checkpoints,
                file_bytes: store.pages.file_bytes,
                dirty_bytes: store.pages.dirty_bytes,
                written_bytes: store.pages.written_bytes,
                free_bytes: store.pages.free_bytes,
                pending_bytes: store.pages.pending_bytes,
                trash_bytes: store.pages.deferred_free_bytes,
                retired_bytes: store.pages.reads.retired_bytes,
                cached_bytes: store.pages.reads.cached_bytes,
                roots: store.pages.root_count as u64,
                oldest_root_age: store.pages.txid.saturating_sub(store.pages.oldest_txid),
                trimmed_bytes: store.pages.trim_punch.trimmed_bytes,
                punched_bytes: store.pages.trim_punch.punched_bytes,
                moved_bytes: store.pages_moved_bytes,
                reclaimed_bytes: store.pages_reclaimed_bytes,
            }),
            ..peers::StatsResponse::default()
        }
    }
}
