//! A cluster in this process that serves RawKV and placement from one map, and errs on request.
//!
//! It checks what a store checks (leader, epoch, key range), so a client that routes wrongly gets
//! an error. Each store has a runtime of its own: killing one cuts its connections at once.

mod pd;
mod store;
mod tikv;

use std::collections::{BTreeMap, VecDeque};
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard};

use bytes::Bytes;
use flotilla_proto::{metapb, pdpb};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Runtime};
use tokio::sync::watch;
use tokio_stream::wrappers::TcpListenerStream;
use tonic::transport::Server;

pub(crate) const CLUSTER_ID: u64 = 77;

/// The fault that a store has with the next request instead of serving it.
#[derive(Debug, Clone)]
pub(crate) enum Fault {
    /// Answers that it is busy for these milliseconds.
    Busy(u64),
    /// Answers that it does not lead and knows no leader.
    NoLeader,
    /// Answers that the proposal lost its place.
    Stale,
    /// Serves it and never answers.
    LoseAnswer,
    /// Answers with a refusal.
    Refuse(&'static str),
    /// Ends the stream, or the call, with an error; the request has no effect.
    Fail,
    /// Serves it, and then does the same.
    CutOff,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    /// By start key, each with the leader's store.
    pub(crate) regions: BTreeMap<Bytes, (metapb::Region, u64)>,
    pub(crate) rows: BTreeMap<Bytes, Bytes>,
    /// Seconds, of the keys that were put or swapped with a time to live.
    pub(crate) ttls: BTreeMap<Bytes, u64>,
    pub(crate) faults: VecDeque<Fault>,
    pub(crate) requests: u64,
    pub(crate) messages: u64,
    pub(crate) writes: u64,
}

/// All stores and what they share.
#[derive(Debug)]
pub(crate) struct World {
    pub(crate) state: Arc<Mutex<State>>,
    /// Requests on streams wait while this is true.
    pub(crate) held: watch::Sender<bool>,
    /// Requests on streams that wait now.
    pub(crate) waiting: watch::Sender<usize>,
    pub(crate) addresses: Arc<Mutex<Vec<SocketAddr>>>,
    stores: Mutex<Vec<Option<Runtime>>>,
}

impl World {
    /// Three stores; regions split at `splits`, led in turn.
    pub(crate) fn new(splits: &[&str]) -> Arc<World> {
        let mut state = State::default();
        let starts = [""].into_iter().chain(splits.iter().copied());
        let ends = splits.iter().copied().chain([""]);
        for (at, (start, end)) in starts.zip(ends).enumerate() {
            let id = at as u64 + 2;
            let region = region(id, start, end, 1);
            state.regions.insert(region.start_key.clone(), (region, at as u64 % 3 + 1));
        }
        let world = Arc::new(World {
            state: Arc::new(Mutex::new(state)),
            held: watch::Sender::new(false),
            waiting: watch::Sender::new(0),
            addresses: Arc::default(),
            stores: Mutex::default(),
        });
        for store in 1..=3 {
            let (runtime, address) = start(&world, store);
            world.addresses.lock().unwrap().push(address);
            world.stores.lock().unwrap().push(Some(runtime));
        }
        world
    }

    pub(crate) fn endpoints(&self) -> Vec<String> {
        self.addresses.lock().unwrap().iter().map(ToString::to_string).collect()
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    pub(crate) fn inject(&self, faults: impl IntoIterator<Item = Fault>) {
        self.state().faults.extend(faults);
    }

    /// Cuts the store's connections; its regions are led by the next store from now on.
    pub(crate) fn kill(&self, store: u64) {
        let next = store % 3 + 1;
        for (_, leader) in self.state().regions.values_mut() {
            if *leader == store {
                *leader = next;
            }
        }
        let runtime = self.stores.lock().unwrap()[store as usize - 1].take();
        runtime.expect("killed once").shutdown_background();
    }

    /// Splits the region that holds `key` there; the new region is led by the same store.
    pub(crate) fn split(&self, key: &'static str) {
        let mut state = self.state();
        let (left, leader) = state.holder(key.as_bytes());
        let version = left.region_epoch.unwrap_or_default().version + 1;
        let id = 100 + state.regions.len() as u64;
        let mut right = region(id, key, "", version);
        right.end_key = left.end_key.clone();
        let mut left = left;
        left.end_key = Bytes::from_static(key.as_bytes());
        left.region_epoch = Some(metapb::RegionEpoch { conf_ver: 1, version });
        state.regions.insert(left.start_key.clone(), (left, leader));
        state.regions.insert(right.start_key.clone(), (right, leader));
    }

    /// Region `start`'s leader is `store` from now on.
    pub(crate) fn lead(&self, start: &str, store: u64) {
        self.state().regions.get_mut(start.as_bytes()).expect("a region starts there").1 = store;
    }
}

impl State {
    pub(crate) fn region(&self, id: u64) -> Option<(metapb::Region, u64)> {
        self.regions.values().find(|(region, _)| region.id == id).cloned()
    }

    /// Splits a region at keys that rise. The last part keeps the id.
    pub(crate) fn split_region(&mut self, id: u64, keys: &[Bytes]) -> Vec<metapb::Region> {
        let (mut last, leader) = self.region(id).expect("a region of this id");
        let version = last.region_epoch.unwrap_or_default().version + keys.len() as u64;
        last.region_epoch = Some(metapb::RegionEpoch { conf_ver: 1, version });
        let mut parts = vec![];
        for key in keys {
            let mut part = region(1_000 + version * 100 + parts.len() as u64, "", "", version);
            part.start_key = std::mem::replace(&mut last.start_key, key.clone());
            part.end_key = key.clone();
            parts.push(part);
        }
        parts.push(last);
        for part in &parts {
            self.regions.insert(part.start_key.clone(), (part.clone(), leader));
        }
        parts
    }

    pub(crate) fn holder(&self, key: &[u8]) -> (metapb::Region, u64) {
        let at_or_below = self
            .regions
            .range::<[u8], _>((std::ops::Bound::Unbounded, std::ops::Bound::Included(key)));
        at_or_below.last().expect("regions cover all keys").1.clone()
    }
}

fn region(id: u64, start: &str, end: &str, version: u64) -> metapb::Region {
    metapb::Region {
        id,
        start_key: Bytes::copy_from_slice(start.as_bytes()),
        end_key: Bytes::copy_from_slice(end.as_bytes()),
        region_epoch: Some(metapb::RegionEpoch { conf_ver: 1, version }),
        peers: (1..=3).map(|store| peer_of(id, store)).collect(),
    }
}

pub(crate) fn peer_of(region: u64, store: u64) -> metapb::Peer {
    metapb::Peer { id: region * 100 + store, store_id: store, ..Default::default() }
}

fn start(world: &Arc<World>, store: u64) -> (Runtime, SocketAddr) {
    let runtime = Builder::new_multi_thread().worker_threads(1).enable_all().build();
    let runtime = runtime.expect("a runtime");
    // The runtime of the test may not block, so the socket is bound outside of either.
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a free port");
    listener.set_nonblocking(true).expect("a socket that may be asked");
    let address = listener.local_addr().expect("a bound socket");
    let service = store::Store {
        store,
        state: Arc::clone(&world.state),
        addresses: Arc::clone(&world.addresses),
        held: world.held.subscribe(),
        waiting: world.waiting.clone(),
    };
    runtime.spawn(async move {
        let incoming = TcpListenerStream::new(TcpListener::from_std(listener).expect("bound"));
        let server = Server::builder()
            .add_service(flotilla_proto::tikvpb::tikv_server::TikvServer::new(service.clone()))
            .add_service(pdpb::pd_server::PdServer::new(service));
        server.serve_with_incoming(incoming).await
    });
    (runtime, address)
}

impl Drop for World {
    fn drop(&mut self) {
        for runtime in self.stores.lock().expect("nobody panicked").drain(..).flatten() {
            runtime.shutdown_background();
        }
    }
}
