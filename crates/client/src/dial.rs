//! Connections: how an address becomes a channel.

use std::time::Duration;

use tonic::transport::{Channel, Endpoint};

use crate::config::Config;
use crate::error::Error;

/// A silent peer is asked for a sign of life, or a cable that was pulled would look like patience.
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(10);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// HTTP/2 windows: enough that a scan's page need not wait for the reader's acknowledgement.
const STREAM_WINDOW_BYTES: u32 = 4 << 20;
const CONNECTION_WINDOW_BYTES: u32 = 16 << 20;

/// An address without the scheme.
pub(crate) fn bare(url: &str) -> &str {
    let bare = url.strip_prefix("http://").or_else(|| url.strip_prefix("https://"));
    bare.unwrap_or(url).trim_end_matches('/')
}

/// A channel to `address`, with or without a scheme, that connects when it is first used and again
/// after it broke. With TLS if `config` has certificates, whatever the scheme.
pub(crate) fn channel(address: &str, config: &Config) -> Result<Channel, Error> {
    let address = bare(address);
    let scheme = if config.tls.is_some() { "https" } else { "http" };
    let endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
        .map_err(|error| Error::Config(format!("{address:?} is no host:port: {error}")))?;
    if endpoint.uri().port().is_none() {
        return Err(Error::Config(format!("{address:?} lacks a port")));
    }
    let endpoint = endpoint
        .connect_timeout(config.connect_timeout)
        // A request is small: Nagle's algorithm would hold it back until the one before is
        // acknowledged.
        .tcp_nodelay(true)
        .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
        .keep_alive_timeout(KEEPALIVE_TIMEOUT)
        // Without calls as well, or the first one after a pause would have to find out that the
        // peer is gone.
        .keep_alive_while_idle(true)
        .initial_stream_window_size(STREAM_WINDOW_BYTES)
        .initial_connection_window_size(CONNECTION_WINDOW_BYTES);
    Ok(match &config.tls {
        Some(tls) => tls.connect_lazy(&endpoint),
        None => endpoint.connect_lazy(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn addresses_that_cannot_be_are_refused_by_name() {
        let config = Config::default();
        assert!(channel("127.0.0.1:20160", &config).is_ok());
        assert!(channel("http://127.0.0.1:20160/", &config).is_ok());
        for bad in ["", "no port", "localhost", "a b:1"] {
            let error = channel(bad, &config).unwrap_err().to_string();
            assert!(error.contains(&format!("{bad:?}")), "{error}");
        }
    }
}
