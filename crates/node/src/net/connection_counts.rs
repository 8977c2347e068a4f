//! Counts of the connections that a node takes, and lines about clients that it slows down or
//! refuses.
//!
//! A client that is throttled cannot be told: HTTP/2 has no word for it. So the operator is, by a
//! count of each case and now and then a line that names an address.

use std::net::IpAddr;
use std::sync::atomic::{AtomicU64, Ordering};

use tokio::time::Instant;

use crate::net::log_limit::LogLimit;

flotilla_base::metrics! { "connections",
    /// Connections of clients and of other stores, with TLS and without.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct ConnectionStats {
        /// Connections that were taken.
        pub taken: u64 => Counter(None),
        /// Those read later, since their address opens more than 50 a second or some were ended.
        pub delayed: u64 => Counter(None),
        /// Those throttled, since frames without a request came faster than the setting allows.
        pub throttled: u64 => Counter(None),
        /// Those that the server ended: floods, silent clients, mistakes, but not its own stop.
        pub ended_by_server: u64 => Counter(None),
        /// Messages refused, since too many have come in part, or since the rest did not come.
        pub messages_refused: u64 => Counter(None),
    }
}

/// The counts of one node.
#[derive(Debug, Default)]
pub(crate) struct ConnectionCounts {
    taken: AtomicU64,
    delayed: CountedCase,
    throttled: CountedCase,
    ended_by_server: CountedCase,
    messages_refused: CountedCase,
}

/// One case, and how often its lines come.
#[derive(Debug, Default)]
struct CountedCase {
    count: AtomicU64,
    log: LogLimit,
}

impl CountedCase {
    /// Counts it. If it is to be logged: how many were not since the last line.
    fn note(&self) -> Option<u64> {
        self.count.fetch_add(1, Ordering::Relaxed);
        self.log.note(Instant::now())
    }

    fn read(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }
}

impl ConnectionCounts {
    /// The counts now.
    pub(crate) fn read(&self) -> ConnectionStats {
        ConnectionStats {
            taken: self.taken.load(Ordering::Relaxed),
            delayed: self.delayed.read(),
            throttled: self.throttled.read(),
            ended_by_server: self.ended_by_server.read(),
            messages_refused: self.messages_refused.read(),
        }
    }

    /// A connection was taken, to be read at once or later.
    pub(crate) fn note_taken(&self, addr: IpAddr, is_delayed: bool) {
        self.taken.fetch_add(1, Ordering::Relaxed);
        if is_delayed && let Some(left_out) = self.delayed.note() {
            tracing::info!(
                left_out,
                "a connection of {addr} is read later: more than 50 were opened in a second, or \
                 some were ended"
            );
        }
    }

    /// The first time that a connection is throttled.
    pub(crate) fn note_throttled(&self, addr: IpAddr) {
        if let Some(left_out) = self.throttled.note() {
            tracing::info!(
                left_out,
                "a connection of {addr} is throttled: frames without a request come faster than \
                 http2.control_frames_per_s"
            );
        }
    }

    /// The server has ended a connection, because of a flood or for a reason of its library.
    pub(crate) fn note_ended(&self, addr: IpAddr, is_flood: bool) {
        let why = if is_flood {
            "frames without a request went on for seconds above http2.control_frames_per_s"
        } else {
            "the client is silent, or breaks the rules of HTTP/2"
        };
        if let Some(left_out) = self.ended_by_server.note() {
            tracing::warn!(left_out, "a connection of {addr} was ended: {why}");
        }
    }

    /// A message that came in parts was refused with these words.
    pub(crate) fn note_refused_message(&self, words: &str) {
        if let Some(left_out) = self.messages_refused.note() {
            tracing::warn!(left_out, "a request was refused: {words}");
        }
    }
}
