//! Dialling another store: its URL, the endpoint that a connection is made from, and TLS over it.

use std::time::Duration;

use flotilla_tls::TlsDialer;
use tonic::transport::{Channel, Endpoint, Error};

/// Bytes of one gRPC message between stores at most: one entry of the largest size, with room.
pub(crate) const PEER_MESSAGE_BYTES_MAX: usize = 16 << 20;

/// The way to other stores, with TLS or without. Cheap to clone.
#[derive(Clone, Debug, Default)]
pub(crate) struct Dialer {
    tls: Option<TlsDialer>,
    is_tls_required: bool,
}

impl Dialer {
    /// A dialer with TLS. `is_tls_required` says whether clients are told URLs with it: while some
    /// still come without, none are.
    pub(crate) fn with_tls(tls: TlsDialer, is_tls_required: bool) -> Self {
        Self { tls: Some(tls), is_tls_required }
    }

    /// The URL of the gRPC services at `address`, a `host:port`, for clients.
    pub(crate) fn url(&self, address: &str) -> String {
        let scheme = if self.is_tls_required { "https" } else { "http" };
        format!("{scheme}://{address}")
    }

    /// The endpoint of the store at `address`. Callers add their keepalive.
    ///
    /// # Errors
    ///
    /// The address makes no URL.
    pub(crate) fn endpoint(
        &self,
        address: &str,
        connect_timeout: Duration,
    ) -> Result<Endpoint, Error> {
        let endpoint = Endpoint::from_shared(self.url(address))?;
        // Nagle's algorithm would hold a small frame back until the one before it is acknowledged.
        Ok(endpoint.connect_timeout(connect_timeout).tcp_nodelay(true))
    }

    /// Connects.
    ///
    /// # Errors
    ///
    /// There is no connection; the deepest cause says why.
    pub(crate) async fn connect(&self, endpoint: &Endpoint) -> Result<Channel, Error> {
        match &self.tls {
            Some(tls) => tls.connect(endpoint).await,
            None => endpoint.connect().await,
        }
    }

    /// A channel that connects when it is first used.
    pub(crate) fn connect_lazy(&self, endpoint: &Endpoint) -> Channel {
        match &self.tls {
            Some(tls) => tls.connect_lazy(endpoint),
            None => endpoint.connect_lazy(),
        }
    }
}
