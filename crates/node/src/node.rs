//! One node, assembled: store, shards, workers, streams to other stores, and the server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flotilla_proto::peers::peers_server::PeersServer;
use flotilla_proto::peers::status_server::StatusServer as StatusGrpc;
use flotilla_vfs::FileSystem;
use flotilla_vfs::os::OsFs;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::service::Routes as GrpcRoutes;
use tonic_health::server::HealthReporter;

use crate::accept::Stop;
use crate::clock::Clock;
use crate::commons::{Commons, Works};
use crate::config::{NodeConfig, Settled};
use crate::failure::Failure;
use crate::letters::Mailboxes;
use crate::metrics::Gauges;
use crate::pd::{self, Placement};
use crate::router::Router;
use crate::routes::Routes;
use crate::server::{self, ServerLimits};
use crate::service::RawKv;
use crate::shared::{Gone, share};
use crate::start::{Opened, StartError, bind, open};
use crate::status::StatusServer;
use crate::threads::{Pace, Threads};
use crate::tickets::Tickets;
use crate::transport::{FRAME_BYTES_MAX, Receiver, Transport, TransportCounters};

/// How long requests that are under way may take to finish when the node is told to stop.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// How long connections may take to send their last answers after that.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_millis(300);

/// How long the last reader may take to let go of the store after that.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A running node. Ended by [`Node::shutdown`]; dropping it ends it as [`Node::abandon`] does, but
/// without waiting.
pub struct Node {
    settled: Arc<Settled>,
    addr: SocketAddr,
    router: Router,
    failure: Failure,
    /// Nobody has the store open any more.
    closed: Gone,
    threads: Threads,
    placement: Placement,
    services: GrpcRoutes,
    health: HealthReporter,
    stop: watch::Sender<Stop>,
    /// Streams to other stores.
    streams: JoinSet<()>,
    /// Listeners.
    servers: JoinSet<()>,
}

impl Node {
    /// Starts a node that listens on the address of its settings. Returns when it is serving;
    /// regions have their leaders a little later.
    ///
    /// # Errors
    ///
    /// [`StartError`] says what to change. Nothing runs then.
    pub async fn start(config: NodeConfig) -> Result<Self, StartError> {
        let settled = config.settle()?;
        let listener = bind(settled.config.addr.clone()).await?;
        Self::run(listener, settled, Arc::new(OsFs::new())).await
    }

    /// Starts a node on a listener that is open already; for many nodes in one process, whose
    /// ports must be known before the first of them starts.
    ///
    /// # Errors
    ///
    /// As [`Node::start`].
    pub async fn start_on(listener: TcpListener, config: NodeConfig) -> Result<Self, StartError> {
        Self::run(listener, config.settle()?, Arc::new(OsFs::new())).await
    }

    /// As [`Node::start_on`], with another disk than the system's.
    ///
    /// # Errors
    ///
    /// As [`Node::start`].
    pub async fn start_on_disk(
        listener: TcpListener,
        config: NodeConfig,
        disk: Arc<dyn FileSystem>,
    ) -> Result<Self, StartError> {
        Self::run(listener, config.settle()?, disk).await
    }

    async fn run(
        listener: TcpListener,
        settled: Settled,
        disk: Arc<dyn FileSystem>,
    ) -> Result<Self, StartError> {
        let settled = Arc::new(settled);
        let addr = listener
            .local_addr()
            .map_err(|source| StartError::Listen { addr: settled.config.addr.clone(), source })?;
        let clock = Clock::start();
        let Opened { store, descriptors, shards } = {
            let settled = Arc::clone(&settled);
            let opened = tokio::task::spawn_blocking(move || open(&settled, disk, clock)).await;
            opened.expect("opening a store does not panic")?
        };
        let limits = &settled.config.limits;
        let (store, closed) = share(store);
        let commons = Commons {
            tickets: Tickets::new(),
            routes: Arc::new(Routes::new(descriptors)),
            mailboxes: Mailboxes::new(shards.len(), limits.inbox_bytes_max),
            works: Works::new(),
            store,
            clock,
        };
        let failure = Failure::new({
            let commons = commons.clone();
            move || commons.halt()
        });
        let mut streams = JoinSet::new();
        let transport = Transport::start(&settled, &commons.mailboxes, &mut streams);
        let counters = Arc::clone(transport.counters());
        let pace = Pace {
            backlog_bytes_max: limits.backlog_bytes_max,
            checkpoint_interval: Duration::from_millis(
                settled.config.storage.checkpoint_interval_ms,
            ),
        };
        let threads = Threads::start(commons.clone(), shards, transport, pace, &failure)
            .map_err(StartError::Thread)?;
        let router =
            Router::new(settled.identity(), commons.clone(), limits.router(), failure.clone());
        let placement = place(&settled, &router);
        let (health, services) = services(&settled, &commons, &router, counters, &placement);
        let mut node = Self {
            settled,
            addr,
            router,
            failure,
            closed,
            threads,
            placement,
            services,
            health,
            stop: watch::Sender::new(Stop::Not),
            streams,
            servers: JoinSet::new(),
        };
        node.listen(listener);
        for addr in node.settled.config.also_listen.clone() {
            match bind(addr).await {
                Ok(listener) => node.listen(listener),
                Err(error) => tracing::warn!("{error}"),
            }
        }
        tracing::info!(
            name = node.settled.config.name, store = %node.settled.store(), addr = %node.addr,
            cluster = node.settled.config.cluster_id, "the node serves"
        );
        Ok(node)
    }

    /// Serves on one more listener.
    pub fn listen(&mut self, listener: TcpListener) {
        let limits = ServerLimits {
            connections_max: self.settled.config.limits.connections_max,
            streams_per_connection_max: self.settled.config.limits.streams_per_connection_max,
        };
        let served = server::serve(listener, self.services.clone(), limits, self.stop.subscribe());
        let failure = self.failure.clone();
        self.servers.spawn(async move {
            if let Err(error) = served.await {
                failure.report(&format!("the server failed: {error}"));
            }
        });
    }

    /// Where the node listens.
    #[must_use]
    pub fn addr(&self) -> SocketAddr {
        self.addr
    }

    /// The way to the node's regions, without a network between.
    #[must_use]
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// Where to hear of the node's failure without holding on to the node.
    pub(crate) fn failure(&self) -> Failure {
        self.failure.clone()
    }

    /// Waits until the node has failed, and says why. From then on nothing is acknowledged; the
    /// owner ends the process, or [`Node::abandon`]s the node.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again.
    pub async fn failed(&self) -> String {
        self.failure.wait().await
    }

    /// Takes no more requests, finishes those under way, writes what waits, makes a checkpoint.
    ///
    /// # Errors
    ///
    /// Why the last checkpoint failed, or why the node had failed before. Nothing acknowledged is
    /// lost by either.
    pub async fn shutdown(self) -> Result<(), String> {
        tracing::info!(name = self.settled.config.name, "the node stops");
        self.health.set_service_status("", tonic_health::ServingStatus::NotServing).await;
        self.stop.send_replace(Stop::Listening);
        self.router.finish(FINISH_TIMEOUT).await;
        self.end(Threads::finish).await
    }

    /// Ends at once, as a crash of the process would: nothing that waits is finished. What had
    /// been acknowledged is on disk.
    pub async fn abandon(self) {
        self.router.finish(Duration::ZERO).await;
        let ended = self.end(|threads| {
            threads.abandon();
            Ok(())
        });
        // Nothing can go wrong, for nothing is done.
        let _ = ended.await;
    }

    async fn end(
        self,
        end: impl FnOnce(Threads) -> Result<(), flotilla_store::Error> + Send + 'static,
    ) -> Result<(), String> {
        let Self {
            mut streams,
            mut servers,
            stop,
            threads,
            mut closed,
            failure,
            router,
            services,
            placement,
            ..
        } = self;
        streams.shutdown().await;
        let last_answers = async { while servers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_ANSWERS_TIMEOUT, last_answers).await;
        stop.send_replace(Stop::Connections);
        while servers.join_next().await.is_some() {}
        drop((router, services, placement));
        let reason = failure.reason();
        drop(failure);
        let ended = tokio::task::spawn_blocking(move || end(threads)).await;
        // Whoever opens the directory next finds its lock free.
        if !closed.wait(CLOSE_TIMEOUT).await {
            tracing::warn!(
                "a task still holds the store; its directory stays locked until that ends"
            );
        }
        let ended = ended.expect("ending threads does not panic");
        match reason {
            Some(reason) => Err(reason),
            None => ended.map_err(|error| format!("the last checkpoint failed: {error}")),
        }
    }
}

/// Starts the node's part of placement.
fn place(settled: &Settled, router: &Router) -> Placement {
    let limits = &settled.config.limits;
    let settings = pd::Settings {
        hold: Duration::from_millis(limits.hold_ms),
        held_count_max: limits.held_count_max,
        replica_count: u32::try_from(settled.config.replicas).expect("at most 7"),
    };
    Placement::start(router.clone(), settled.members.clone(), settings)
}

/// Everything that the node serves, on one port.
fn services(
    settled: &Arc<Settled>,
    commons: &Commons,
    router: &Router,
    counters: Arc<TransportCounters>,
    placement: &Placement,
) -> (HealthReporter, GrpcRoutes) {
    let receiver = Receiver::new(settled, commons.mailboxes.clone(), Arc::clone(&counters));
    let peers = PeersServer::new(receiver).max_decoding_message_size(FRAME_BYTES_MAX);
    let status = StatusServer {
        settled: Arc::clone(settled),
        mailboxes: commons.mailboxes.clone(),
        router: router.clone(),
        gauges: Gauges { commons: commons.clone(), router: router.clone(), counters },
        started: Instant::now(),
    };
    let (health, health_server) = tonic_health::server::health_reporter();
    let reflection = tonic_reflection::server::Builder::configure()
        .register_encoded_file_descriptor_set(flotilla_proto::FILE_DESCRIPTOR_SET)
        .build_v1()
        .expect("the descriptors were made by the compiler of the protocol");
    let routes = GrpcRoutes::new(RawKv::new(router.clone(), Default::default()).into_server())
        .add_service(placement.pd_server())
        .add_service(placement.report_server())
        .add_service(placement.meta_storage_server())
        .add_service(placement.keyspace_server())
        .add_service(peers)
        .add_service(StatusGrpc::new(status))
        .add_service(health_server)
        .add_service(reflection)
        .prepare();
    (health, routes)
}
