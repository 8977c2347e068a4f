//! The server of a store that is no member yet, on the socket that the node listens on later.

use std::sync::Arc;

use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::service::Routes;

use crate::access;
use crate::config::ResolvedConfig;
use crate::net::listen::{self, ServerLimits};
use crate::net::security::NodeSecurity;
use crate::net::server_stop::ServerStop;
use crate::start::StartError;

/// A running server. Dropping it ends it, without an answer to the calls under way.
pub(super) struct WaitingServer {
    stop: watch::Sender<ServerStop>,
    tasks: JoinSet<()>,
}

impl WaitingServer {
    /// Serves `routes` on `listener`.
    ///
    /// # Errors
    ///
    /// [`StartError::Listen`] if the socket cannot be shared.
    pub(super) fn start(
        listener: &TcpListener,
        routes: Routes,
        resolved: &ResolvedConfig,
        security: &NodeSecurity,
    ) -> Result<Self, StartError> {
        let (stop, stopped) = watch::channel(ServerStop::Not);
        let limits = ServerLimits {
            connections_max: resolved.config.limits.connections_max,
            streams_per_connection_max: resolved.config.limits.streams_per_connection_max,
            unfinished_bytes_max: resolved.config.limits.unfinished_bytes_max,
            http2: resolved.config.http2,
            tls: security.acceptor().cloned(),
            counts: Arc::clone(security.counts()),
        };
        let routes = access::guard(routes, security);
        let served = listen::serve(bind_again(listener)?, routes, limits, stopped);
        let mut tasks = JoinSet::new();
        tasks.spawn(async move {
            // A socket that fails here fails for the node as well, which reports it.
            let _ = served.await;
        });
        Ok(Self { stop, tasks })
    }

    /// Ends all connections.
    pub(super) async fn stop(mut self) {
        self.stop.send_replace(ServerStop::Connections);
        while self.tasks.join_next().await.is_some() {}
    }
}

/// Another handle on the listening socket: the node's own server goes on with it, and connections
/// in its backlog are not lost.
fn bind_again(listener: &TcpListener) -> Result<TcpListener, StartError> {
    use std::os::fd::AsFd as _;
    let again = || {
        let socket = listener.as_fd().try_clone_to_owned()?;
        TcpListener::from_std(std::net::TcpListener::from(socket))
    };
    again().map_err(|source| {
        let addr = listener.local_addr().map_or_else(|_| String::new(), |addr| addr.to_string());
        StartError::Listen { addr, source }
    })
}
