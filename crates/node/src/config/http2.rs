//! `[http2]`: limits of one connection.

use std::time::Duration;

use super::key::{HOUR, KIB, MIB, MINUTE, SECOND, bytes, count, milliseconds, settings};

/// The largest window of HTTP/2 (RFC 9113, section 6.9.1).
const WINDOW_BYTES_MAX: u64 = (1 << 31) - 1;

settings! {
    /// Limits of one connection. A client that exceeds a number of resets or the size of headers is
    /// cut off; beyond the others it waits.
    #[derive(Copy, Eq)]
    pub struct Http2Config: "http2" {
        /// Bytes of the header lines of one request.
        #[key(bytes(4 * KIB, MIB))]
        pub header_list_bytes_max: u32,
        /// Bytes under way on one stream before its sender waits: enough for an append of the
        /// usual size.
        #[key(bytes(64 * KIB, WINDOW_BYTES_MAX))]
        pub stream_window_bytes: u32,
        /// Bytes under way on one connection before their sender waits: what a connection can make
        /// the store hold.
        #[key(bytes(64 * KIB, WINDOW_BYTES_MAX))]
        pub connection_window_bytes: u32,
        /// Streams that a client may reset before the store has looked at them.
        #[key(count(1, 1 << 20))]
        pub pending_resets_max: usize,
        /// Streams that the store may have to reset for mistakes of the client.
        #[key(count(1, 1 << 20))]
        pub error_resets_max: usize,
        /// Frames without a request in a second: pings, settings, windows, resets, empty data.
        /// Settings, resets and empty data count as eight, pings as four, for they cost as much
        /// more. A tenth of it may come at once, and each 4 KiB that the client fetches allow for
        /// one more. Frames that come faster are read later; a connection with more of them for 2
        /// s without a moment in which all are read is ended.
        #[key(count(100, 10_000_000))]
        pub control_frames_per_s: u32,
        /// A client that is silent for this long is pinged. Clients of TiKV ping as often
        /// themselves.
        #[key(milliseconds(SECOND, HOUR))]
        pub keepalive_ms: u64,
        /// The time for its answer, before its connection is ended.
        #[key(milliseconds(SECOND, 10 * MINUTE))]
        pub keepalive_timeout_ms: u64,
    }
}

impl Default for Http2Config {
    fn default() -> Self {
        Self {
            header_list_bytes_max: 16 << 10,
            stream_window_bytes: 1 << 20,
            connection_window_bytes: 4 << 20,
            pending_resets_max: 20,
            error_resets_max: 256,
            control_frames_per_s: 10_000,
            keepalive_ms: 10_000,
            keepalive_timeout_ms: 3_000,
        }
    }
}

impl Http2Config {
    pub(crate) fn keepalive(self) -> Duration {
        Duration::from_millis(self.keepalive_ms)
    }

    pub(crate) fn keepalive_timeout(self) -> Duration {
        Duration::from_millis(self.keepalive_timeout_ms)
    }
}
