//! Accepts connections: no more than may be open, each with its handshake if there is TLS.
//!
//! A listener that has run out of file descriptors pauses, and recovers.

use std::sync::Arc;
use std::time::Duration;

use socket2::SockRef;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};

use crate::net::caller::ListenerCallers;
use crate::net::connection::{ConnectionLimits, ServerConnection, TakenConnections};
use crate::net::connection_counts::ConnectionCounts;
use crate::net::handshakes::Handshakes;
use crate::net::server_stop::ServerStop;

/// How long to wait after the kernel has refused a connection, most likely for want of a file
/// descriptor: some other connection must end first.
const REFUSED_PAUSE: Duration = Duration::from_millis(50);

/// Bytes of a connection that the kernel takes beyond what its client has room for. Without a bound
/// it takes megabytes of answers that the client never reads. One turn of writes is as much, so
/// who reads does not wait for the next one.
const UNSENT_BYTES_MAX: u32 = 128 << 10;

/// Accepts connections from `listener`, has their handshakes made if there are any, and hands them
/// to `taken` until its receiver is dropped. While `connections_max` are open the next ones wait in
/// the kernel's backlog.
pub(crate) async fn accept(
    listener: TcpListener,
    connections_max: usize,
    limits: ConnectionLimits,
    taken: TakenConnections,
    (stop, counts): (watch::Receiver<ServerStop>, Arc<ConnectionCounts>),
    mut handshakes: Option<Handshakes>,
) {
    let callers = ListenerCallers::new(counts, stop.clone());
    let places = Arc::new(Semaphore::new(connections_max));
    let mut stopped = stop.clone();
    loop {
        // Before the accept: connections beyond the limit stay in the kernel's backlog.
        let place =
            Arc::clone(&places).acquire_owned().await.expect("the semaphore is never closed");
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            _ = stopped.wait_for(|stop| *stop >= ServerStop::Listening) => return,
        };
        match accepted {
            Ok((stream, from)) => {
                let caller = callers.connect(from.ip());
                let begins = caller.begins();
                // Without Nagle's algorithm small answers leave at once; an error of either only
                // costs latency, or memory.
                let _ = stream.set_nodelay(true);
                let _ = SockRef::from(&stream).set_tcp_notsent_lowat(UNSENT_BYTES_MAX);
                let (stop, limits) = (stop.clone(), limits.clone());
                let preface = limits.preface;
                let open = move |stream, peer| {
                    ServerConnection::new(stream, (peer, caller), place, limits, stop)
                };
                match &mut handshakes {
                    // In a task: a slow peer holds up no other.
                    Some(handshakes) => {
                        handshakes.begin(stream, (begins, preface), open, taken.clone());
                    }
                    None => {
                        if taken.send(Ok(open(stream.into(), None))).await.is_err() {
                            return;
                        }
                    }
                }
            }
            Err(error) => {
                tracing::warn!("cannot take a connection: {error}");
                tokio::time::sleep(REFUSED_PAUSE).await;
            }
        }
    }
}
