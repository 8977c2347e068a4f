//! TLS handshakes of connections that come in, each in a task of its own.

use std::sync::Arc;
use std::time::Duration;

use flotilla_tls::{AcceptError, MaybeTlsStream, PeerIdentity, TlsAcceptor};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until, timeout};

use crate::net::connection::{ServerConnection, TakenConnections};
use crate::net::log_limit::LogLimit;

/// Handshakes under way; dropped, they end. There are no more than connections may be open.
pub(crate) struct Handshakes {
    acceptor: TlsAcceptor,
    tasks: JoinSet<()>,
    /// Of connections that were not taken.
    log: Arc<LogLimit>,
}

impl Handshakes {
    pub(crate) fn new(acceptor: TlsAcceptor) -> Self {
        Self { acceptor, tasks: JoinSet::new(), log: Arc::default() }
    }

    /// Makes the handshake of `stream`, once it may begin and in this time, and hands the
    /// connection that `open` makes of it to `taken`.
    pub(crate) fn begin(
        &mut self,
        stream: TcpStream,
        (begins, within): (Option<Instant>, Duration),
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
            let accepted = timeout(within, acceptor.accept(stream)).await;
            match accepted.unwrap_or(Err(AcceptError::TimedOut)) {
                Ok((stream, identity)) => {
                    // An error means that the server has ended.
                    let _ = taken.send(Ok(open(stream, identity))).await;
                }
                // Load balancers look in so.
                Err(AcceptError::Gone) => {}
                Err(error) => {
                    if let Some(left_out) = log.note(Instant::now()) {
                        let peer = peer.map_or_else(|_| "a peer".to_owned(), |it| it.to_string());
                        tracing::warn!(left_out, "a connection of {peer} is not taken: {error}");
                    }
                }
            }
        });
    }
}
