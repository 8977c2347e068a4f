//! What a node needs before it runs: a listener, the store, and the replicas in it.

use std::io;
use std::net::SocketAddr;
use std::sync::Arc;

use flotilla_region::{Descriptor, Shard, Term, Unfit};
use flotilla_store::Store;
use flotilla_vfs::FileSystem;
use tokio::net::TcpListener;

use crate::clock::Clock;
use crate::cluster;
use crate::config::{ConfigError, Settled};
use crate::port::Port;

/// Why a node did not start.
#[derive(Debug, thiserror::Error)]
pub enum StartError {
    /// The settings are wrong.
    #[error(transparent)]
    Config(#[from] ConfigError),
    /// The address cannot be listened on.
    #[error("cannot listen on {addr}: {source}")]
    Listen {
        /// The address.
        addr: String,
        /// What the system said.
        source: io::Error,
    },
    /// The data directory cannot be used.
    #[error("{dir}: {source}")]
    Store {
        /// The directory.
        dir: String,
        /// Why.
        source: flotilla_store::Error,
    },
    /// A replica on disk cannot be run.
    #[error("{dir}: {source}")]
    Replica {
        /// The directory.
        dir: String,
        /// Why.
        source: Unfit,
    },
    /// The system refused a thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// Opens a listener.
pub(crate) async fn bind(addr: String) -> Result<TcpListener, StartError> {
    TcpListener::bind(&addr).await.map_err(|source| StartError::Listen { addr, source })
}

/// Keeps a port.
pub(crate) fn keep(addr: SocketAddr) -> Result<Port, StartError> {
    Port::keep(addr).map_err(|source| StartError::Listen { addr: addr.to_string(), source })
}

/// A store that was opened, and the replicas in it, ready to run.
pub(crate) struct Opened {
    pub(crate) store: Store,
    pub(crate) descriptors: Vec<Descriptor>,
    pub(crate) shards: Vec<Shard>,
}

/// Opens the store and makes its shards. Blocks.
pub(crate) fn open(
    settled: &Settled,
    disk: Arc<dyn FileSystem>,
    clock: Clock,
) -> Result<Opened, StartError> {
    let config = &settled.config;
    let dir = || config.data_dir.display().to_string();
    let bootstrap = cluster::first_regions(&settled.members, config.regions, config.replicas);
    let (store, recovered) =
        Store::open(disk, &config.data_dir, config.storage.store(), settled.identity(), &bootstrap)
            .map_err(|source| StartError::Store { dir: dir(), source })?;
    let descriptors = recovered.iter().map(|replica| replica.descriptor.clone()).collect();
    let region_config = config.raft.shard(fastrand::u64(..));
    let count = config.threads.shard_count();
    let mut shards: Vec<Shard> =
        std::iter::repeat_with(|| Shard::new(region_config.clone())).take(count).collect();
    for replica in recovered {
        let place = replica.descriptor.id.0 as usize % count;
        let fresh = replica.hard_state.term == Term(0);
        let first = cluster::first_leader(&replica.descriptor) == Some(settled.store());
        shards[place]
            .create(clock.now(), replica, fresh && first)
            .map_err(|source| StartError::Replica { dir: dir(), source })?;
    }
    Ok(Opened { store, descriptors, shards })
}
