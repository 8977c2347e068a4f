//! Opens what a node needs before it runs: a listener, the store, and the replicas in it.

use std::io;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flotilla_identity::{
    ClusterSettings, Handshake, PeerWrite, StoreRegistry, StoreUuid, first_campaigner,
};
use flotilla_region::{CreateReplicaError, Descriptor, Shard, Term};
use flotilla_store::{RecoveredReplicas, StartSeed, Store, StoreDirectory};
use flotilla_vfs::FileSystem;
use tokio::net::TcpListener;

use crate::clock::Clock;
use crate::config::{ConfigError, FirstStart, ResolvedConfig, shard_config};
use crate::disk_reserve::{DiskReserve, space_of};

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
        /// The error of the kernel.
        source: io::Error,
    },
    /// The data directory cannot be used.
    #[error("{dir}: {source}{}", remedy(source))]
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
        source: CreateReplicaError,
    },
    /// The directory is not one that this store may be started with, or its settings differ from
    /// those of the others. The text says what to do.
    #[error("{0}")]
    Refused(String),
    /// The system refused a thread.
    #[error("cannot start a thread: {0}")]
    Thread(io::Error),
}

/// The remedy for damage, in words. Raft must not run on a log without its end: this store could
/// vote again, and count for writes that it has lost.
fn remedy(error: &flotilla_store::Error) -> &'static str {
    match error.is_damage() {
        true => {
            "; writes that this store acknowledged may be lost here: while most stores are well, start \
             it with an empty directory, --replace and --join"
        }
        false => "",
    }
}

/// Opens a listener on `addr`, a `host:port`.
///
/// # Errors
///
/// [`StartError::Listen`] with the error of the kernel.
pub async fn bind(addr: String) -> Result<TcpListener, StartError> {
    TcpListener::bind(&addr).await.map_err(|source| StartError::Listen { addr, source })
}

/// A random number that no other start draws.
pub(crate) fn random_u64() -> u64 {
    let mut bytes = [0; 8];
    getrandom::fill(&mut bytes).expect("the system has random numbers");
    u64::from_le_bytes(bytes)
}

/// Opens the directory, and counts this start of it. Blocks.
pub(crate) fn open_directory(
    resolved: &ResolvedConfig,
    disk: Arc<dyn FileSystem>,
) -> Result<StoreDirectory, StartError> {
    let limits = resolved.config.disk.limits(&resolved.config.storage);
    let reserve = DiskReserve::new(Arc::clone(&disk), &resolved.config.data_dir);
    reserve.make_way(&limits, space_of(&resolved.config.data_dir));
    let uuid = u128::from(random_u64()) << 64 | u128::from(random_u64());
    let seed = StartSeed { uuid: StoreUuid(uuid), nonce: random_u64() };
    let config = &resolved.config;
    let mut store = config.storage.store();
    store.size_check_bytes = config.split.size_check_bytes();
    store.pages.scrub_interval = config.scrub.pages_interval();
    store.log_scrub_interval = config.scrub.log_interval();
    StoreDirectory::open(disk, &config.data_dir, store, seed)
        .map_err(|source| store_error(resolved, source))
}

/// Compares what is given with what a member's directory says; its copies.
pub(crate) fn check_given(
    resolved: &ResolvedConfig,
    directory: &StoreDirectory,
) -> Result<(StoreRegistry, ClusterSettings), StartError> {
    let (registry, settings) =
        directory.copies().map_err(|source| store_error(resolved, source))?;
    let identity = directory.identity();
    resolved.check_member(&identity.name, identity.cluster_id, &settings)?;
    if let Some(words) = registry.departure(identity.store) {
        let dir = resolved.config.data_dir.display();
        return Err(StartError::Refused(format!("{dir}: {words}")));
    }
    Ok((registry, settings))
}

/// A store that was opened, and the replicas in it, ready to run.
pub(crate) struct OpenedStore {
    pub(crate) store: Store,
    pub(crate) handshake: Handshake,
    pub(crate) descriptors: Vec<Descriptor>,
    pub(crate) shards: Vec<Shard>,
}

/// Compares what is given with a member's directory, opens the store, makes its shards. Blocks.
pub(crate) fn open_store(
    resolved: &ResolvedConfig,
    directory: StoreDirectory,
    address: &str,
    clock: Clock,
) -> Result<OpenedStore, StartError> {
    let (registry, settings) = check_given(resolved, &directory)?;
    resolved.warn_of_changed(&settings);
    let config = &resolved.config;
    let began = Instant::now();
    let (store, recovered) =
        Store::start(directory).map_err(|source| store_error(resolved, source))?;
    log_recovery(&store, &recovered, began.elapsed());
    let identity = store.identity();
    let run = (identity.uuid, identity.run);
    let greeting =
        Handshake::introduction(store.member_id(), &identity.name, address, run, settings);
    let known = store.peer_runs().map_err(|source| store_error(resolved, source))?;
    // A later start without an address in its settings goes on at this one, whether or not
    // placement has heard of it.
    let own = PeerWrite { store: identity.store, run: identity.run, address: address.to_owned() };
    store.remember_peer(&own).map_err(|source| store_error(resolved, source))?;
    let is_new = config.first_start == FirstStart::New;
    let handshake = Handshake::new(greeting, store.history().clone(), registry, known, is_new);
    let RecoveredReplicas { replicas: recovered, unborn, uninitialised } = recovered;
    let descriptors = recovered.iter().map(|replica| replica.descriptor.clone()).collect();
    let count = config.threads.shard_count();
    let kept_bytes_max = config.raft.kept_bytes_max(&config.storage) / count as u64;
    let region_config = shard_config(&settings, &config.split, kept_bytes_max, random_u64());
    let mut shards: Vec<Shard> =
        std::iter::repeat_with(|| Shard::new(region_config.clone())).take(count).collect();
    for replica in recovered {
        let place = replica.descriptor.id.0 as usize % count;
        // In a new region one replica campaigns at once. If all of them did, the votes would split.
        let fresh = replica.hard_state.term == Term(0);
        let first = first_campaigner(&replica.descriptor) == Some(identity.store);
        shards[place].create(clock.now(), replica, fresh && first).map_err(|source| {
            StartError::Replica { dir: config.data_dir.display().to_string(), source }
        })?;
    }
    for replica in unborn {
        let place = replica.region.0 as usize % count;
        shards[place].keep_unborn(replica).map_err(|source| StartError::Replica {
            dir: config.data_dir.display().to_string(),
            source,
        })?;
    }
    for replica in uninitialised {
        let place = replica.region.0 as usize % count;
        shards[place].keep_uninitialised(replica).map_err(|source| StartError::Replica {
            dir: config.data_dir.display().to_string(),
            source,
        })?;
    }
    Ok(OpenedStore { store, handshake, descriptors, shards })
}

/// One line for what a start has found on the disk.
fn log_recovery(store: &Store, recovered: &RecoveredReplicas, took: Duration) {
    let log = store.log_recovery();
    tracing::info!(
        replicas = recovered.replicas.len(),
        unborn = recovered.unborn.len(),
        without_data = recovered.uninitialised.len(),
        log_segments = log.segments,
        log_entries = log.entries,
        log_torn_bytes = log.torn_bytes,
        ms = took.as_millis(),
        "the store is open"
    );
}

fn store_error(resolved: &ResolvedConfig, source: flotilla_store::Error) -> StartError {
    StartError::Store { dir: resolved.config.data_dir.display().to_string(), source }
}
