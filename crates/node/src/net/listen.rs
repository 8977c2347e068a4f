//! The gRPC server on one listener, with limits on connections, streams, windows and resets.
//!
//! The library's own defaults leave the number of streams and of resets open; a client that opens
//! streams and forgets them would cost memory that never comes back. There is no limit on how long
//! a request may take here: streams between stores and batch streams live for ever, and single
//! requests have their deadline in the router.

use std::io;
use std::time::Duration;

use flotilla_tls::TlsAcceptor;
use tokio::net::TcpListener;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::service::Routes;
use tonic::transport::Server;

use crate::net::accept::accept;
use crate::net::connection::{OpeningLimits, ServerStop};
use crate::net::handshakes::Handshakes;

/// Bytes of the header lines of one request at most.
const HEADER_LIST_BYTES_MAX: u32 = 16 << 10;

/// A client that is silent for this long is pinged, and given up if it does not answer. Clients of
/// TiKV ping as often themselves.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);

/// Bytes under way on one stream and on one connection before their sender must wait: enough for
/// an append of the usual size, and a bound on what a connection can make the node hold.
const STREAM_WINDOW_BYTES: u32 = 1 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 4 << 20;

/// Streams that a client may reset before it is cut off: those not looked at yet, and those that
/// the server had to reset for a mistake of the client.
const PENDING_RESETS_MAX: usize = 20;
const ERROR_RESETS_MAX: usize = 256;

/// Limits of one listener, and its TLS if it has some.
#[derive(Clone, Debug)]
pub(crate) struct ServerLimits {
    pub(crate) connections_max: usize,
    pub(crate) streams_per_connection_max: u32,
    pub(crate) tls: Option<TlsAcceptor>,
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
    let opening = OpeningLimits::default();
    let handshakes = limits.tls.map(Handshakes::new);
    let (count_max, stopped) = (limits.connections_max, stop.clone());
    let accepting = tokio::spawn(accept(listener, count_max, opening, taken, stopped, handshakes));
    let mut until = stop;
    let served = Server::builder()
        // For the few answers that clients and tools read by plain HTTP.
        .accept_http1(true)
        .max_concurrent_streams(limits.streams_per_connection_max)
        .concurrency_limit_per_connection(limits.streams_per_connection_max as usize)
        // A request above the limit is refused at once. Queued, it would hold memory that nothing
        // bounds.
        .load_shed(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES)
        .http2_max_header_list_size(HEADER_LIST_BYTES_MAX)
        .http2_keepalive_interval(Some(KEEPALIVE_INTERVAL))
        .http2_keepalive_timeout(Some(KEEPALIVE_TIMEOUT))
        .http2_max_pending_accept_reset_streams(Some(PENDING_RESETS_MAX))
        .http2_max_local_error_reset_streams(Some(ERROR_RESETS_MAX))
        .add_routes(routes)
        .serve_with_incoming_shutdown(ReceiverStream::new(connections), async move {
            // An error means that the server's owner is gone: stop.
            let _ = until.wait_for(|stop| *stop >= ServerStop::Listening).await;
        })
        .await;
    accepting.abort();
    served
}
