//! TLS handshakes of connections that come in, each in a task of its own.

use std::sync::Arc;
use std::time::Duration;

use flotilla_tls::{AcceptError, MaybeTlsStream, PeerIdentity, TlsAcceptor};
use parking_lot::Mutex;
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::net::connection::{ConnectionLimits, ServerConnection, TakenConnections};

/// Connections that were not taken are logged so often at most: anybody can make them.
const LOG_INTERVAL: Duration = Duration::from_secs(10);

/// Handshakes under way; dropped, they end. There are no more than connections may be open.
pub(crate) struct Handshakes {
    acceptor: TlsAcceptor,
    tasks: JoinSet<()>,
    log: Arc<Mutex<FailureLog>>,
}

/// Failed handshakes since the last line about one.
#[derive(Debug, Default)]
struct FailureLog {
    logged: Option<Instant>,
    left_out: u64,
}

impl Handshakes {
    pub(crate) fn new(acceptor: TlsAcceptor) -> Self {
        Self { acceptor, tasks: JoinSet::new(), log: Arc::default() }
    }

    /// Makes the handshake of `stream`, once it may begin, and hands the connection that `open`
    /// makes of it to `taken`.
    pub(crate) fn begin(
        &mut self,
        stream: TcpStream,
        (begins, limits): (Option<Instant>, ConnectionLimits),
        open: impl FnOnce(MaybeTlsStream, Option<Arc<PeerIdentity>>) -> ServerConnection
        + Send
        + 'static,
        taken: TakenConnections,
    ) {
        while self.tasks.try_join_next().is_some() {}
        let (acceptor, log) = (self.acceptor.clone(), Arc::clone(&self.log));
        self.tasks.spawn(async move {
            let peer = stream.peer_addr();
            if let Some(begins) = begins {
                sleep_until(begins).await;
            }
            let accepted = timeout(limits.preface, acceptor.accept(stream)).await;
            match accepted.unwrap_or(Err(AcceptError::TimedOut)) {
                Ok((stream, identity)) => {
                    // An error means that the server has ended.
                    let _ = taken.send(Ok(open(stream, identity))).await;
                }
                // Load balancers look in so.
                Err(AcceptError::Gone) => {}
                Err(error) => {
                    if let Some(left_out) = log.lock().note(Instant::now()) {
                        let peer = peer.map_or_else(|_| "a peer".to_owned(), |it| it.to_string());
                        tracing::warn!(left_out, "a connection of {peer} is not taken: {error}");
                    }
                }
            }
        });
    }
}

impl FailureLog {
    /// Counts a failure. If it is to be logged: how many were not since the last line.
    fn note(&mut self, now: Instant) -> Option<u64> {
        if self.logged.is_some_and(|logged| now < logged + LOG_INTERVAL) {
            self.left_out += 1;
            return None;
        }
        self.logged = Some(now);
        Some(std::mem::take(&mut self.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failures_are_logged_now_and_then_with_their_number() {
        let mut log = FailureLog::default();
        let began = Instant::now();
        assert_eq!(log.note(began), Some(0));
        assert_eq!(log.note(began), None);
        assert_eq!(log.note(began + LOG_INTERVAL / 2), None);
        assert_eq!(log.note(began + LOG_INTERVAL), Some(2));
        assert_eq!(log.note(began + LOG_INTERVAL * 3), Some(0));
    }
}
