//! Counters of the streams between stores.

use std::sync::atomic::{AtomicU64, Ordering};

use flotilla_region::{RegionId, StoreId};

use crate::in_flight::InFlightList;

/// Counts of frames and messages since the node started, and the snapshots in flight.
#[derive(Default)]
pub(crate) struct TransportCounters {
    frames_sent: AtomicU64,
    frames_received: AtomicU64,
    frame_bytes_sent: AtomicU64,
    frame_bytes_received: AtomicU64,
    messages_dropped: AtomicU64,
    snapshots_sent: AtomicU64,
    snapshots_unsent: AtomicU64,
    snapshots_received: AtomicU64,
    snapshots_refused: AtomicU64,
    snapshot_bytes_sent: AtomicU64,
    snapshot_bytes_received: AtomicU64,
    snapshots_in_flight: InFlightList<SnapshotInFlight>,
}

/// A snapshot that is sent or received now.
#[derive(Clone, Copy, Debug)]
pub(crate) struct SnapshotInFlight {
    pub(crate) region: RegionId,
    pub(crate) from: StoreId,
    pub(crate) to: StoreId,
    /// Bytes that have been handed to the connection, or taken from it.
    pub(crate) bytes: u64,
    /// Bytes of all of it, as its sender has measured them.
    pub(crate) bytes_total: u64,
}

flotilla_base::metrics! { "transport",
    /// A reading of the counts.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct TransportCounts {
        /// Frames handed to connections.
        pub frames_sent: u64 => Counter(None),
        /// Frames taken from connections.
        pub frames_received: u64 => Counter(None),
        /// Bytes of entries and messages in frames sent, about.
        pub frame_bytes_sent: u64 => Counter(Bytes, "sent_bytes"),
        /// Bytes of entries and messages in frames received, about.
        pub frame_bytes_received: u64 => Counter(Bytes, "received_bytes"),
        /// Messages dropped because a queue was full or a store was away.
        pub messages_dropped: u64 => Counter(None),
        /// Snapshots that were sent and staged at the other store.
        pub snapshots_sent: u64 => Counter(None),
        /// Snapshots not sent: no place was free, the store refused, or the stream was lost.
        pub snapshots_unsent: u64 => Counter(None),
        /// Snapshots that came whole.
        pub snapshots_received: u64 => Counter(None),
        /// Snapshots that were offered and did not come whole.
        pub snapshots_refused: u64 => Counter(None),
        /// Bytes of snapshots that were sent whole.
        pub snapshot_bytes_sent: u64 => Counter(Bytes, "snapshot_sent_bytes"),
        /// Bytes of snapshots that came whole.
        pub snapshot_bytes_received: u64 => Counter(Bytes, "snapshot_received_bytes"),
    }
}

impl TransportCounters {
    /// A frame was handed to a connection.
    pub(super) fn count_frame_sent(&self, bytes: usize) {
        self.frames_sent.fetch_add(1, Ordering::Relaxed);
        self.frame_bytes_sent.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A frame was taken from a connection.
    pub(super) fn count_frame_received(&self, bytes: usize) {
        self.frames_received.fetch_add(1, Ordering::Relaxed);
        self.frame_bytes_received.fetch_add(bytes as u64, Ordering::Relaxed);
    }

    /// A message found no place.
    pub(super) fn count_message_dropped(&self) {
        self.messages_dropped.fetch_add(1, Ordering::Relaxed);
    }

    /// A snapshot was sent, with so many bytes, or it was not.
    pub(super) fn count_snapshot_sent(&self, bytes: Option<u64>) {
        let Some(bytes) = bytes else {
            self.snapshots_unsent.fetch_add(1, Ordering::Relaxed);
            return;
        };
        self.snapshots_sent.fetch_add(1, Ordering::Relaxed);
        self.snapshot_bytes_sent.fetch_add(bytes, Ordering::Relaxed);
    }

    /// A snapshot has come, with so many bytes.
    pub(super) fn count_snapshot_received(&self, bytes: u64) {
        self.snapshots_received.fetch_add(1, Ordering::Relaxed);
        self.snapshot_bytes_received.fetch_add(bytes, Ordering::Relaxed);
    }

    /// The snapshots that are sent and received now.
    pub(crate) fn snapshots_in_flight(&self) -> &InFlightList<SnapshotInFlight> {
        &self.snapshots_in_flight
    }

    /// A snapshot was offered, and has not come.
    pub(super) fn count_snapshot_refused(&self) {
        self.snapshots_refused.fetch_add(1, Ordering::Relaxed);
    }

    /// The counts now.
    pub(crate) fn read(&self) -> TransportCounts {
        TransportCounts {
            frames_sent: self.frames_sent.load(Ordering::Relaxed),
            frames_received: self.frames_received.load(Ordering::Relaxed),
            frame_bytes_sent: self.frame_bytes_sent.load(Ordering::Relaxed),
            frame_bytes_received: self.frame_bytes_received.load(Ordering::Relaxed),
            messages_dropped: self.messages_dropped.load(Ordering::Relaxed),
            snapshots_sent: self.snapshots_sent.load(Ordering::Relaxed),
            snapshots_unsent: self.snapshots_unsent.load(Ordering::Relaxed),
            snapshots_received: self.snapshots_received.load(Ordering::Relaxed),
            snapshots_refused: self.snapshots_refused.load(Ordering::Relaxed),
            snapshot_bytes_sent: self.snapshot_bytes_sent.load(Ordering::Relaxed),
            snapshot_bytes_received: self.snapshot_bytes_received.load(Ordering::Relaxed),
        }
    }
}
