//! The gRPC server on one listener, with limits on connections, streams, windows and resets.
//!
//! The library's own defaults leave the number of streams and of resets open; a client that opens
//! streams and forgets them would cost memory that never comes back. There is no limit on how long
//! a request may take here: streams between stores and batch streams live for ever, and single
//! requests have their deadline in the router.

use std::io;
use std::sync::Arc;

use flotilla_tls::TlsAcceptor;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::config::Http2Config;
use crate::net::accept::accept;
use crate::net::connection::ConnectionLimits;
use crate::net::connection_counts::ConnectionCounts;
use crate::net::handshakes::Handshakes;
use crate::net::server_stop::ServerStop;
use crate::net::unfinished_messages::ListenerUnfinished;

/// Limits of one listener, its TLS if it has some, and where it counts.
#[derive(Clone, Debug)]
pub(crate) struct ServerLimits {
    pub(crate) connections_max: usize,
    pub(crate) streams_per_connection_max: u32,
    /// Bytes of requests of clients of which only a part has come.
    pub(crate) unfinished_bytes_max: usize,
    pub(crate) http2: Http2Config,
    pub(crate) tls: Option<TlsAcceptor>,
    pub(crate) counts: Arc<ConnectionCounts>,
}

/// Serves `routes` until `stop` says so, then until the last connection has ended.
///
/// # Errors
///
/// As of the server library; none is expected once the listener is open.
pub(crate) async fn serve(
    listener: TcpListener,
    routes: Routes,
    limits: ServerLimits,
    stop: watch::Receiver<ServerStop>,
) -> Result<(), tonic::transport::Error> {
    let (taken, connections) = mpsc::channel::<io::Result<_>>(1);
    let http2 = limits.http2;
    let unfinished = ListenerUnfinished::new(limits.unfinished_bytes_max, &limits.counts);
    let each = ConnectionLimits::new(http2.control_frames_per_s, unfinished);
    let handshakes = limits.tls.map(Handshakes::new);
    let (count_max, stopped) = (limits.connections_max, stop.clone());
    let of_all = (stopped, limits.counts);
    let accepting = tokio::spawn(accept(listener, count_max, each, taken, of_all, handshakes));
    let mut until = stop;
    let served = Server::builder()
        // For the few answers that clients and tools read by plain HTTP.
        .accept_http1(true)
        .max_concurrent_streams(limits.streams_per_connection_max)
        .concurrency_limit_per_connection(limits.streams_per_connection_max as usize)
        // A request above the limit is refused at once. Queued, it would hold memory that nothing
        // bounds.
        .load_shed(true)
        .initial_stream_window_size(http2.stream_window_bytes)
        .initial_connection_window_size(http2.connection_window_bytes)
        .http2_max_header_list_size(http2.header_list_bytes_max)
        .http2_keepalive_interval(Some(http2.keepalive()))
        .http2_keepalive_timeout(Some(http2.keepalive_timeout()))
        .http2_max_pending_accept_reset_streams(Some(http2.pending_resets_max))
        .http2_max_local_error_reset_streams(Some(http2.error_resets_max))
        .add_routes(routes)
        .serve_with_incoming_shutdown(ReceiverStream::new(connections), async move {
            // An error means that the server's owner is gone: stop.
            let _ = until.wait_for(|stop| *stop >= ServerStop::Listening).await;
        })
        .await;
    accepting.abort();
    served
}
