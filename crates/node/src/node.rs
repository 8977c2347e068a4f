//! Assembles one node: store, shards, workers, streams to other stores, and the server.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use flotilla_region::Descriptor;
use flotilla_store::Store;
use flotilla_vfs::FileSystem;
use flotilla_vfs::os::OsFs;
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tonic::service::Routes as GrpcRoutes;
use tonic_health::ServingStatus;
use tonic_health::server::HealthReporter;

use crate::clock::Clock;
use crate::config::{ConfigError, NodeConfig, ResolvedConfig};
use crate::consistency_checker;
use crate::data_access;
use crate::disk_reserve::DiskReserve;
use crate::driver::comparisons::Comparisons;
use crate::driver::context::{NodeContext, WorkQueues};
use crate::driver::disk_view::DiskView;
use crate::driver::joint_changes::JointChanges;
use crate::driver::latencies::Latencies;
use crate::driver::router::Router;
use crate::driver::routes::RoutingTable;
use crate::driver::shard_message::Mailboxes;
use crate::driver::splitter;
use crate::driver::threads::{NodeThreads, WatchedDisk};
use crate::driver::tickets::Tickets;
use crate::drop_notify::{DropNotify, DropWaiter, drop_notify};
use crate::expiry_sweeper;
use crate::failure::{EndKind, NodeFailure};
use crate::leader_log;
use crate::membership::{GivenPlace, Membership, become_member, check_contacts, join_cluster};
use crate::net::listen::{self, ServerLimits};
use crate::net::security::NodeSecurity;
use crate::net::server_stop::ServerStop;
use crate::online_settings::{OnlineSettings, ReloadedSettings};
use crate::pd::{self, PlacementDriver};
use crate::services::{ServedParts, services};
use crate::settings_follower;
use crate::start::{OpenedStore, StartError, bind, check_given, open_directory, open_store};
use crate::status::health::{HealthWatch, tell_clients};
use crate::transport::{ByteRate, PeerConnections, PeerTransport, TransportLimits};
use crate::wall_clock::WallClock;

/// How long a store that has handed its leaders over goes on to answer: its clients hear where
/// their regions are led now, and need not ask placement, whose leader may be as new.
const REDIRECT_TIME: Duration = Duration::from_millis(100);

/// How long requests that are under way may take to finish at a shutdown.
const FINISH_TIMEOUT: Duration = Duration::from_secs(5);

/// How long connections may take to send their last answers after that.
const LAST_ANSWERS_TIMEOUT: Duration = Duration::from_millis(300);

/// How long the last reader may take to drop the store after that.
const CLOSE_TIMEOUT: Duration = Duration::from_secs(2);

/// A running node. Ended by [`Node::shutdown`]; dropping it ends it as [`Node::abandon`] does, but
/// without waiting.
pub struct Node {
    resolved: Arc<ResolvedConfig>,
    settings: Arc<OnlineSettings>,
    membership: Membership,
    addr: SocketAddr,
    router: Router,
    failure: NodeFailure,
    security: NodeSecurity,
    /// Wakes when the last holder has dropped the store.
    closed: DropWaiter,
    threads: NodeThreads,
    placement: PlacementDriver,
    services: GrpcRoutes,
    health: HealthReporter,
    stop: watch::Sender<ServerStop>,
    /// Streams to other stores.
    streams: JoinSet<()>,
    /// Listeners.
    servers: JoinSet<()>,
}

impl Node {
    /// Starts a node that listens on the address of its settings. Returns when it is serving;
    /// regions have their leaders a little later. A store with an empty directory first waits until
    /// all listed stores have begun the cluster with it, or until it has joined a running one,
    /// however long that takes.
    ///
    /// # Errors
    ///
    /// [`StartError`] says what to change. Nothing runs then.
    pub async fn start(config: NodeConfig) -> Result<Self, StartError> {
        Self::run(None, config.resolve()?, Arc::new(OsFs::new())).await
    }

    /// Starts a node on a listener that is open already; for many nodes in one process, whose
    /// ports must be known before the first of them starts.
    ///
    /// # Errors
    ///
    /// As [`Node::start`].
    pub async fn start_on(listener: TcpListener, config: NodeConfig) -> Result<Self, StartError> {
        Self::run(Some(listener), config.resolve()?, Arc::new(OsFs::new())).await
    }

    /// As [`Node::start_on`], with another file system than the machine's.
    ///
    /// # Errors
    ///
    /// As [`Node::start`].
    pub async fn start_on_disk(
        listener: TcpListener,
        config: NodeConfig,
        disk: Arc<dyn FileSystem>,
    ) -> Result<Self, StartError> {
        Self::run(Some(listener), config.resolve()?, disk).await
    }

    async fn run(
        listener: Option<TcpListener>,
        resolved: ResolvedConfig,
        disk: Arc<dyn FileSystem>,
    ) -> Result<Self, StartError> {
        tracing::info!(
            version = crate::VERSION, data_dir = %resolved.config.data_dir.display(),
            "a node starts"
        );
        resolved.log();
        let resolved = Arc::new(resolved);
        let clock = Clock::start();
        let reserve = DiskReserve::new(Arc::clone(&disk), &resolved.config.data_dir);
        let directory = {
            let resolved = Arc::clone(&resolved);
            blocking(move || {
                // Before it is opened: that makes a missing directory, for its owner alone.
                if let Some(words) = data_access::warning(&resolved.config.data_dir) {
                    tracing::warn!("{words}");
                }
                open_directory(&resolved, disk)
            })
            .await?
        };
        if directory.identity().is_member() {
            // Before it listens: with another store's name it would find that one's port taken.
            check_given(&resolved, &directory)?;
        }
        let security = {
            let identity = directory.identity();
            let name = if identity.is_member() { &identity.name } else { &resolved.own().name };
            let (name, resolved) = (name.clone(), Arc::clone(&resolved));
            blocking(move || NodeSecurity::open(&resolved.config.tls, &name)).await
        };
        let security = security.map_err(|error| StartError::Refused(error.to_string()))?;
        let known = directory.own_address().map_err(|source| StartError::Store {
            dir: resolved.config.data_dir.display().to_string(),
            source,
        })?;
        let listener = match listener {
            Some(listener) => listener,
            None => bind(resolved.listen_addr(known.as_deref())).await?,
        };
        let addr = listener.local_addr().map_err(|source| {
            let addr = resolved.listen_addr(known.as_deref());
            StartError::Listen { addr, source }
        })?;
        let address = resolved.advertised(&addr.to_string(), known.as_deref());
        let directory = match directory.identity().is_member() {
            true => directory,
            false if !resolved.contacts.is_empty() => {
                join_cluster(directory, &resolved, &address, &listener, &security, clock).await?
            }
            false => become_member(directory, &resolved, &listener, &security, clock).await?,
        };
        let opened = {
            let (resolved, address) = (Arc::clone(&resolved), address.clone());
            blocking(move || open_store(&resolved, directory, &address, clock)).await?
        };
        Self::assemble(resolved, security, listener, address, (opened, reserve), clock).await
    }

    /// Starts what an opened store needs to run.
    async fn assemble(
        resolved: Arc<ResolvedConfig>,
        security: NodeSecurity,
        listener: TcpListener,
        address: String,
        (opened, reserve): (OpenedStore, DiskReserve),
        clock: Clock,
    ) -> Result<Self, StartError> {
        let OpenedStore { store, handshake, descriptors, shards } = opened;
        let addr = listener
            .local_addr()
            .map_err(|source| StartError::Listen { addr: address.clone(), source })?;
        let limits = &resolved.config.limits;
        let (store, closed) = drop_notify(store);
        let context = node_context(&resolved.config, store, descriptors, shards.len(), clock);
        let (latencies, disks) = (&context.latencies, &context.disks);
        let settings = Arc::new(OnlineSettings::new(&resolved, latencies, disks));
        let failure = NodeFailure::new({
            let context = context.clone();
            move || context.halt()
        });
        let given = given_place(&resolved, &security);
        let membership =
            Membership::new(Arc::clone(&context.store), handshake, address, given, failure.clone());
        let mut streams = JoinSet::new();
        let (cluster_id, dialer) = (membership.id().cluster_id, security.dialer().clone());
        streams.spawn(check_contacts(Arc::clone(&resolved), dialer, cluster_id, failure.clone()));
        streams.spawn(security.clone().follow_files());
        let snapshot_rate = ByteRate::new(settings.snapshot_rates(), context.served_count());
        let transport =
            TransportLimits { queue_bytes_max: limits.peer_queue_bytes_max, snapshot_rate };
        let (mailboxes, damage) = (&context.mailboxes, context.page_damage(&failure));
        let transport =
            PeerTransport::start(&membership, damage, transport, mailboxes, disks, &mut streams);
        let (counters, connections) = (Arc::clone(transport.counters()), transport.connections());
        let backlog = limits.backlog_bytes_max;
        let watched = watched_disk(&resolved, reserve, &membership);
        let threads =
            NodeThreads::start(context.clone(), shards, transport, backlog, watched, &failure);
        let threads = threads.map_err(StartError::Thread)?;
        let (id, wall_clock) = (membership.id(), wall_clock(&membership));
        let routing = limits.router(membership.settings().api);
        let router = Router::new(id, context.clone(), routing, failure.clone(), wall_clock);
        begin_upkeep(&resolved, &router, &membership, &context, &mut streams);
        let placement = place(&resolved, &membership, &router, &connections);
        let watch = HealthWatch { membership, connections, router, clock };
        let parts = ServedParts {
            security: &security,
            watch: &watch,
            context: &context,
            counters,
            settings: &settings,
            placement: &placement,
        };
        let (health, services) = services(&resolved, parts, &mut streams);
        let HealthWatch { membership, router, .. } = watch.clone();
        tell_clients(&health, ServingStatus::Serving).await;
        streams.spawn(watch.run(health.clone()));
        let node = Self {
            resolved,
            settings,
            membership,
            addr,
            router,
            failure,
            security,
            closed,
            threads,
            placement,
            services,
            health,
            stop: watch::Sender::new(ServerStop::Not),
            streams,
            servers: JoinSet::new(),
        };
        Ok(node.serve(listener).await)
    }

    /// Serves on all of its listeners.
    async fn serve(mut self, listener: TcpListener) -> Self {
        self.listen(listener);
        for addr in self.resolved.config.also_listen.clone() {
            match bind(addr).await {
                Ok(listener) => self.listen(listener),
                Err(error) => tracing::warn!("{error}"),
            }
        }
        let id = self.membership.id();
        tracing::info!(
            name = self.membership.name(), store = %id.store, addr = %self.addr,
            cluster = id.cluster_id, "the node serves"
        );
        self
    }

    /// Serves on one more listener.
    pub fn listen(&mut self, listener: TcpListener) {
        let limits = ServerLimits {
            connections_max: self.resolved.config.limits.connections_max,
            streams_per_connection_max: self.resolved.config.limits.streams_per_connection_max,
            unfinished_bytes_max: self.resolved.config.limits.unfinished_bytes_max,
            http2: self.resolved.config.http2,
            tls: self.security.acceptor().cloned(),
            counts: Arc::clone(self.security.counts()),
        };
        let served = listen::serve(listener, self.services.clone(), limits, self.stop.subscribe());
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

    /// Puts into effect what may change while the node runs of settings that are given again as a
    /// whole. The filter of the log is left to the owner of the process.
    ///
    /// # Errors
    ///
    /// As [`NodeConfig::resolve`]; nothing is changed then.
    pub fn reload(&self, config: NodeConfig) -> Result<ReloadedSettings, ConfigError> {
        Ok(self.settings.reload(&config.resolve()?))
    }

    /// The router to the node's regions, without a network between.
    #[must_use]
    pub fn router(&self) -> &Router {
        &self.router
    }

    /// The node's certificates.
    #[must_use]
    pub fn security(&self) -> NodeSecurity {
        self.security.clone()
    }

    /// A handle that reports the node's failure without holding on to the node.
    #[must_use]
    pub fn failure(&self) -> NodeFailure {
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

    /// The kind of the end whose reason is that of [`Node::failed`]; `None` before there is one.
    #[must_use]
    pub fn end_kind(&self) -> Option<EndKind> {
        self.failure.kind()
    }

    /// Hands the regions that it leads over to stores that can take them, takes no more requests,
    /// finishes those under way, drains the queues, makes a checkpoint.
    ///
    /// # Errors
    ///
    /// Why the last checkpoint failed, or why the node had failed before. Nothing acknowledged is
    /// lost by either. That its store has left meanwhile is no failure.
    pub async fn shutdown(self) -> Result<(), String> {
        tracing::info!(name = self.membership.name(), "the node stops");
        self.hand_over().await;
        tell_clients(&self.health, ServingStatus::NotServing).await;
        self.stop.send_replace(ServerStop::Listening);
        self.router.finish(FINISH_TIMEOUT).await;
        self.end(NodeThreads::finish).await
    }

    /// Has other stores lead what this one leads: else each of its regions would have no leader for
    /// an election timeout.
    async fn hand_over(&self) {
        let time_limit = Duration::from_millis(self.resolved.config.limits.hand_over_ms);
        if time_limit.is_zero() {
            return;
        }
        self.placement.announce_stop();
        if let Err(why) = self.membership.check_transfers() {
            tracing::info!("leaders are not handed over: {why}");
            return;
        }
        let began = Instant::now();
        let leaders = self.router.hand_over_leaders(time_limit).await;
        if leaders > 0 {
            tracing::info!(leaders, ms = %began.elapsed().as_millis(), "leaders are handed over");
            tokio::time::sleep(REDIRECT_TIME).await;
        }
    }

    /// Ends at once, as a crash of the process would: nothing that is queued is finished.
    /// Acknowledged writes are on disk.
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
        end: impl FnOnce(NodeThreads) -> Result<(), flotilla_store::Error> + Send + 'static,
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
            membership,
            ..
        } = self;
        // Their tasks hold the membership, and with it the store.
        streams.shutdown().await;
        let last_answers = async { while servers.join_next().await.is_some() {} };
        let _ = tokio::time::timeout(LAST_ANSWERS_TIMEOUT, last_answers).await;
        stop.send_replace(ServerStop::Connections);
        while servers.join_next().await.is_some() {}
        // Each of them holds the store, which must be closed when this returns.
        drop((router, services, placement, membership));
        let reason = failure.reason().filter(|_| failure.kind() != Some(EndKind::Left));
        // Its closure holds the store as well.
        drop(failure);
        let ended = tokio::task::spawn_blocking(move || end(threads)).await;
        // Once the store is dropped, the next process that opens the directory finds its lock free.
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

/// The places that this start gives to stores, and the way to them.
fn given_place(resolved: &ResolvedConfig, security: &NodeSecurity) -> GivenPlace {
    GivenPlace {
        listed: resolved.listed_addresses(),
        labels: resolved.labels.clone(),
        dialer: security.dialer().clone(),
    }
}

/// The handles that all parts of a node share.
fn node_context(
    config: &NodeConfig,
    store: Arc<DropNotify<Store>>,
    descriptors: Vec<Descriptor>,
    shards: usize,
    clock: Clock,
) -> NodeContext {
    let limits = &config.limits;
    let mailboxes = Mailboxes::new(shards, limits.mailbox_bytes_max);
    let (here, bounds) = (store.identity().store, config.disk.limits(&config.storage));
    NodeContext {
        disks: Arc::new(DiskView::new(here, mailboxes.clone(), bounds)),
        store,
        tickets: Tickets::new(),
        joint_changes: Arc::new(JointChanges::new(&descriptors, Instant::now().into())),
        routes: Arc::new(RoutingTable::new(descriptors)),
        comparisons: Arc::new(Comparisons::new()),
        mailboxes,
        queues: WorkQueues::new(),
        clock,
        latencies: Arc::new(Latencies::new(limits.slow_request())),
        damaged_pages: Arc::default(),
    }
}

/// Runs `act` on a thread that may block.
async fn blocking<T: Send + 'static>(act: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(act).await.expect("opening a store does not panic")
}

/// The clock by which rows expire, once all stores know of that.
fn wall_clock(membership: &Membership) -> WallClock {
    let membership = membership.clone();
    WallClock::new(move || membership.check_expiry())
}

/// The disk, for the thread that watches it.
fn watched_disk(
    resolved: &ResolvedConfig,
    reserve: DiskReserve,
    membership: &Membership,
) -> WatchedDisk {
    let (data_dir, membership) = (resolved.config.data_dir.clone(), membership.clone());
    let may_transfer = Box::new(move || membership.check_transfers().is_ok());
    WatchedDisk { reserve, data_dir, may_transfer }
}

/// Starts the tasks that look after regions: settings, splits, expired rows, comparisons of
/// replicas.
fn begin_upkeep(
    resolved: &ResolvedConfig,
    router: &Router,
    membership: &Membership,
    context: &NodeContext,
    tasks: &mut JoinSet<()>,
) {
    let expiry_sweep = resolved.config.limits.expiry_sweep();
    tasks.spawn(settings_follower::run(membership.clone(), context.mailboxes.clone()));
    tasks.spawn(splitter::run(router.clone(), Arc::clone(&context.queues.split_wishes)));
    tasks.spawn(leader_log::run(router.clone(), membership.id().store));
    tasks.spawn(expiry_sweeper::run(router.clone(), expiry_sweep));
    let (config, mailboxes) = (resolved.config.verify, context.mailboxes.clone());
    tasks.spawn(consistency_checker::compute_digests(router.clone(), mailboxes, config));
    let (membership, seed) = (membership.clone(), membership.run_report().run.nonce);
    tasks.spawn(consistency_checker::compare_in_turn(router.clone(), membership, config, seed));
}

/// Starts the node's part of placement.
fn place(
    resolved: &ResolvedConfig,
    membership: &Membership,
    router: &Router,
    connections: &PeerConnections,
) -> PlacementDriver {
    let limits = &resolved.config.limits;
    let settings = pd::PdConfig {
        leader_wait: Duration::from_millis(limits.leader_wait_ms),
        leader_wait_count_max: limits.leader_wait_count_max,
    };
    PlacementDriver::start(router.clone(), membership.clone(), connections.clone(), settings)
}
