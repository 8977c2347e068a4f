//! Counters of the streams between stores.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts of frames and messages since the node started.
#[derive(Debug, Default)]
pub(crate) struct TransportCounters {
    frames_sent: AtomicU64,
    frames_received: AtomicU64,
    frame_bytes_sent: AtomicU64,
    frame_bytes_received: AtomicU64,
    messages_dropped: AtomicU64,
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

    /// The counts now.
    pub(crate) fn read(&self) -> TransportCounts {
        TransportCounts {
            frames_sent: self.frames_sent.load(Ordering::Relaxed),
            frames_received: self.frames_received.load(Ordering::Relaxed),
            frame_bytes_sent: self.frame_bytes_sent.load(Ordering::Relaxed),
            frame_bytes_received: self.frame_bytes_received.load(Ordering::Relaxed),
            messages_dropped: self.messages_dropped.load(Ordering::Relaxed),
        }
    }
}
