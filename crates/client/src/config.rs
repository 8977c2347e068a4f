//! Settings of a client: deadlines, connections, limits.

use std::ops::RangeInclusive;
use std::time::{Duration, Instant};

use flotilla_tls::TlsDialer;

use crate::error::Error;
use crate::request_api::RequestApi;

/// How requests travel to a store.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// One gRPC call for each request.
    Unary,
    /// All requests of a connection on one `BatchCommands` stream: requests that wait at the same
    /// moment leave in one message, which costs the server a tenth of separate calls.
    Stream,
}

/// Limits and habits of a [`Client`](crate::Client). The defaults suit a cluster in one building.
///
/// A client holds up to `stores * connections_per_store * in_flight_max` requests at once on
/// streams; callers beyond that wait their turn.
#[derive(Debug, Clone)]
pub struct Config {
    /// How long one call of the client may take, all attempts together. Default 20 s.
    pub deadline: Duration,
    /// No call goes on after this, whatever its deadline: for a caller whose own time ends. Default
    /// `None`.
    pub until: Option<Instant>,
    /// How long one attempt at one store may take. Default 5 s.
    pub attempt_timeout: Duration,
    /// How long making a connection may take. Default 1 s.
    pub connect_timeout: Duration,
    /// Waits between attempts: the first one is the least, doubled up to the greatest, each less up
    /// to a half of itself by chance. Default 5 ms to 500 ms.
    pub backoff: RangeInclusive<Duration>,
    /// How requests travel. Default [`Transport::Stream`].
    pub transport: Transport,
    /// TCP connections to each store, used in turn. Default 1.
    pub connections_per_store: usize,
    /// Requests that may wait for their answer on one stream. Default 1024.
    pub in_flight_max: usize,
    /// Requests in one message of a stream. Default 128.
    pub stream_batch_max: usize,
    /// Largest message that is accepted or sent. Default 64 MiB.
    pub message_bytes_max: usize,
    /// Rows asked for by one request of a scan. Default 1024.
    pub scan_rows_max: u32,
    /// Keys and values in one request of a batch. A single larger pair travels alone.
    /// Default 256 KiB.
    pub batch_bytes_max: usize,
    /// Requests of one batch that are on their way at once. Default 16.
    pub fan_out_max: usize,
    /// Whether a put or delete is sent again after an attempt that may have had an effect. Such a
    /// write may take effect twice, and the second time after a later write of another client;
    /// switch it off where that matters. Compare-and-swap is never sent again. Default true.
    pub resend_undetermined: bool,
    /// The API version of the cluster. Default [`RequestApi::V1`].
    pub api: RequestApi,
    /// The certificate to show, and the authority of the stores; without one connections have no
    /// TLS. Default `None`.
    pub tls: Option<TlsDialer>,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            deadline: Duration::from_secs(20),
            until: None,
            attempt_timeout: Duration::from_secs(5),
            connect_timeout: Duration::from_secs(1),
            backoff: Duration::from_millis(5)..=Duration::from_millis(500),
            transport: Transport::Stream,
            connections_per_store: 1,
            in_flight_max: 1024,
            stream_batch_max: 128,
            message_bytes_max: 64 << 20,
            scan_rows_max: 1024,
            batch_bytes_max: 256 << 10,
            fan_out_max: 16,
            resend_undetermined: true,
            api: RequestApi::V1,
            tls: None,
        }
    }
}

impl Config {
    /// Refuses values with which a client could not work at all.
    pub(crate) fn check(&self) -> Result<(), Error> {
        let counts = [
            ("connections_per_store", self.connections_per_store),
            ("in_flight_max", self.in_flight_max),
            ("stream_batch_max", self.stream_batch_max),
            ("message_bytes_max", self.message_bytes_max),
            ("scan_rows_max", self.scan_rows_max as usize),
            ("batch_bytes_max", self.batch_bytes_max),
            ("fan_out_max", self.fan_out_max),
        ];
        match counts.iter().find(|(_, value)| *value == 0) {
            Some((name, _)) => Err(Error::Config(format!("{name} must be at least 1"))),
            None => Ok(()),
        }
    }
}
