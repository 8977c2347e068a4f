//! Counts one snapshot that is offered, once, whatever becomes of it.

use std::sync::Arc;

use crate::transport::counters::TransportCounters;

/// One snapshot that comes. If it is dropped before it was counted, it counts as refused.
pub(super) struct SnapshotReceipt {
    counts: Arc<TransportCounters>,
    is_counted: bool,
}

impl SnapshotReceipt {
    pub(super) fn new(counts: &Arc<TransportCounters>) -> Self {
        Self { counts: Arc::clone(counts), is_counted: false }
    }

    /// It has come whole, with so many bytes.
    pub(super) fn count_received(&mut self, bytes: u64) {
        assert!(!self.is_counted, "a snapshot is counted twice");
        self.counts.count_snapshot_received(bytes);
        self.is_counted = true;
    }

    /// It does not come, or not whole.
    pub(super) fn count_refused(&mut self) {
        assert!(!self.is_counted, "a snapshot is counted twice");
        self.counts.count_snapshot_refused();
        self.is_counted = true;
    }
}

impl Drop for SnapshotReceipt {
    fn drop(&mut self) {
        if !self.is_counted {
            self.count_refused();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_receipt_counts_once() {
        let counts = Arc::new(TransportCounters::default());
        SnapshotReceipt::new(&counts).count_received(7);
        SnapshotReceipt::new(&counts).count_refused();
        drop(SnapshotReceipt::new(&counts));
        let counted = counts.read();
        assert_eq!((counted.snapshots_received, counted.snapshot_bytes_received), (1, 7));
        assert_eq!(counted.snapshots_refused, 2);
    }
}
