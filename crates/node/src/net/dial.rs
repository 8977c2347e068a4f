//! Dialling another store: its URL, and the endpoint that a connection is made from.

use std::time::Duration;

use tonic::transport::{Endpoint, Error};

/// Bytes of one gRPC message between stores at most: one entry of the largest size, with room.
pub(crate) const PEER_MESSAGE_BYTES_MAX: usize = 16 << 20;

/// The URL of the gRPC services at `address`, a `host:port`.
pub(crate) fn url(address: &str) -> String {
    format!("http://{address}")
}

/// The endpoint of the store at `address`. Callers add their keepalive.
///
/// # Errors
///
/// The address makes no URL.
pub(crate) fn endpoint(address: &str, connect_timeout: Duration) -> Result<Endpoint, Error> {
    let endpoint = Endpoint::from_shared(url(address))?;
    // Nagle's algorithm would hold a small frame back until the one before it is acknowledged.
    Ok(endpoint.connect_timeout(connect_timeout).tcp_nodelay(true))
}
