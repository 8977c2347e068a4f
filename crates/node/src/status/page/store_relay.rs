//! Asks another store for one of its documents, by HTTP/2 on the port that all stores have.

use std::collections::BTreeMap;
use std::time::Duration;

use axum::body::{Body, to_bytes};
use axum::http::{Request, StatusCode};
use parking_lot::Mutex;
use serde_json::Value;
use tonic::body::Body as RequestBody;
use tonic::client::GrpcService;
use tonic::transport::Channel;

use crate::membership::KnownStore;
use crate::net::dial::Dialer;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(1);
const KEEPALIVE_INTERVAL: Duration = Duration::from_secs(2);
const KEEPALIVE_TIMEOUT: Duration = Duration::from_secs(3);
/// A store that has not answered by then is one that does not answer.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(1);
/// Bytes of an answer at most: as many regions as one may list, with long keys.
const ANSWER_BYTES_MAX: usize = 8 << 20;

/// Connections to the stores that are asked. They are kept, since a page asks each second.
pub(super) struct StoreRelay {
    dialer: Dialer,
    channels: Mutex<BTreeMap<String, Channel>>,
}

impl StoreRelay {
    /// A relay without connections yet.
    pub(super) fn new(dialer: Dialer) -> Self {
        Self { dialer, channels: Mutex::default() }
    }

    /// The document at `path` of the store at `address`. The reason in words if there is none.
    pub(super) async fn get(&self, address: &str, path: &str) -> Result<Value, String> {
        let channel = self.channel(address)?;
        match tokio::time::timeout(ANSWER_TIMEOUT, ask(channel, path)).await {
            Ok(answered) => answered,
            Err(_) => Err(format!("no answer within {} ms", ANSWER_TIMEOUT.as_millis())),
        }
    }

    /// Keeps connections to these stores only.
    pub(super) fn retain(&self, stores: &[KnownStore]) {
        let is_here = |address: &String| stores.iter().any(|store| store.address == *address);
        self.channels.lock().retain(|address, _| is_here(address));
    }

    fn channel(&self, address: &str) -> Result<Channel, String> {
        let mut channels = self.channels.lock();
        if let Some(channel) = channels.get(address) {
            return Ok(channel.clone());
        }
        let endpoint = self
            .dialer
            .endpoint(address, CONNECT_TIMEOUT)
            .map_err(|error| format!("{address:?} is no address: {error}"))?
            .http2_keep_alive_interval(KEEPALIVE_INTERVAL)
            .keep_alive_timeout(KEEPALIVE_TIMEOUT);
        let channel = self.dialer.connect_lazy(&endpoint);
        channels.insert(address.to_owned(), channel.clone());
        Ok(channel)
    }
}

async fn ask(mut channel: Channel, path: &str) -> Result<Value, String> {
    let unreachable = |error: tonic::transport::Error| {
        // The words of the innermost error: "connection refused", and not "transport error".
        let mut cause: &dyn std::error::Error = &error;
        while let Some(source) = cause.source() {
            cause = source;
        }
        format!("no connection: {cause}")
    };
    let ready = |context: &mut std::task::Context<'_>| {
        GrpcService::<RequestBody>::poll_ready(&mut channel, context)
    };
    std::future::poll_fn(ready).await.map_err(unreachable)?;
    let request = Request::get(path).body(RequestBody::empty());
    let request = request.map_err(|error| format!("{path:?} is no path: {error}"))?;
    let response =
        GrpcService::<RequestBody>::call(&mut channel, request).await.map_err(unreachable)?;
    let (head, body) = response.into_parts();
    let body = to_bytes(Body::new(body), ANSWER_BYTES_MAX).await;
    let body = body.map_err(|error| format!("its answer broke off: {error}"))?;
    match head.status {
        StatusCode::OK => {
            serde_json::from_slice(&body).map_err(|error| format!("no document: {error}"))
        }
        // As a store of an older version answers.
        StatusCode::NOT_FOUND => Err("it has no such document".to_owned()),
        status => Err(format!("it answered {status}")),
    }
}
