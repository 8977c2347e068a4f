//! Connections to stores, by store id.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, PoisonError};

use flotilla_proto::tikvpb::tikv_client::TikvClient;
use tonic::Status;
use tonic::transport::Channel;

use crate::batch_stream::BatchStream;
use crate::config::{Config, Transport};
use crate::dial;
use crate::error::Error;
use crate::raw_calls::Call;

/// The stores whose addresses are known.
#[derive(Debug, Default)]
pub(crate) struct StoreLinks {
    by_store: Mutex<BTreeMap<u64, Arc<StoreLink>>>,
}

impl StoreLinks {
    pub(crate) fn get(&self, store: u64) -> Option<Arc<StoreLink>> {
        self.lock().get(&store).cloned()
    }

    /// Opens connections to the store, or returns those that another task just opened.
    pub(crate) fn add(
        &self,
        store: u64,
        address: &str,
        config: &Config,
    ) -> Result<Arc<StoreLink>, Error> {
        let link = Arc::new(StoreLink::new(store, address, config)?);
        // The first one wins: its connections may be in use already.
        Ok(Arc::clone(self.lock().entry(store).or_insert(link)))
    }

    /// Forgets the store's address, unless another task has found another one already.
    pub(crate) fn forget(&self, link: &Arc<StoreLink>) {
        let mut links = self.lock();
        if links.get(&link.store).is_some_and(|known| Arc::ptr_eq(known, link)) {
            links.remove(&link.store);
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, BTreeMap<u64, Arc<StoreLink>>> {
        self.by_store.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The connections to one store, used in turn.
#[derive(Debug)]
pub(crate) struct StoreLink {
    store: u64,
    address: String,
    connections: Vec<StoreConnection>,
    turn: AtomicUsize,
}

impl StoreLink {
    fn new(store: u64, address: &str, config: &Config) -> Result<StoreLink, Error> {
        let connections = (0..config.connections_per_store)
            .map(|_| StoreConnection::new(address, config))
            .collect::<Result<_, _>>()?;
        Ok(StoreLink { store, address: address.to_owned(), connections, turn: AtomicUsize::new(0) })
    }

    /// For messages to people.
    pub(crate) fn name(&self) -> String {
        format!("store {} at {}", self.store, self.address)
    }

    pub(crate) async fn send<C: Call>(
        &self,
        call: C,
        config: &Config,
    ) -> Result<C::Response, Status> {
        // The turn only spreads the load: no order is needed.
        let turn = self.turn.fetch_add(1, Ordering::Relaxed);
        let connection = &self.connections[turn % self.connections.len()];
        let command = match config.transport {
            Transport::Stream => call.command(),
            Transport::Unary => None,
        };
        let Some(command) = command else {
            return call.unary(connection.client.clone()).await;
        };
        let reply = connection.stream(config).call(command).await?;
        C::reply(reply).ok_or_else(|| Status::internal("an answer to another kind of request"))
    }
}

/// One TCP connection, and its batch stream if one is open.
#[derive(Debug)]
struct StoreConnection {
    client: TikvClient<Channel>,
    stream: Mutex<Option<Arc<BatchStream>>>,
}

impl StoreConnection {
    fn new(address: &str, config: &Config) -> Result<StoreConnection, Error> {
        let client = TikvClient::new(dial::channel(address, config)?)
            .max_decoding_message_size(config.message_bytes_max)
            .max_encoding_message_size(config.message_bytes_max);
        Ok(StoreConnection { client, stream: Mutex::default() })
    }

    /// The open stream; opens another one if it is broken.
    fn stream(&self, config: &Config) -> Arc<BatchStream> {
        let mut stream = self.stream.lock().unwrap_or_else(PoisonError::into_inner);
        match &*stream {
            Some(open) if !open.is_broken() => Arc::clone(open),
            _ => {
                let open = Arc::new(BatchStream::open(self.client.clone(), config));
                Arc::clone(stream.insert(open))
            }
        }
    }
}
