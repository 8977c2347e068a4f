//! A cluster of several nodes in one process, for tests, benches and `flotilla playground`.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use flotilla_client::{Client, Config, Observer, RequestApi};
use flotilla_node::config::DiskConfig;
use flotilla_node::{EndKind, FirstStart, Node, NodeConfig, StartError, bind};
use flotilla_proto::peers;
use flotilla_tls::TlsDialer;
use tokio::net::TcpListener;
use tokio::time::{Instant, sleep};

use crate::cert;
use crate::reserved_port::ReservedPort;
use crate::tool::api_of;

/// The interval at which readiness is polled.
const LOOK_PAUSE: Duration = Duration::from_millis(20);

/// The shape of the cluster.
#[derive(Clone, Debug)]
pub struct PlaygroundConfig {
    /// Stores, 1 to 9.
    pub stores: usize,
    /// The directory below which each store has its own.
    pub dir: PathBuf,
    /// The first store's port on 127.0.0.1; the others have the next ones. 0: any that are free.
    pub base_port: u16,
    /// The settings that all nodes have in common: regions, times, limits. Names, addresses and
    /// directories are put in.
    pub common: NodeConfig,
    /// A directory of certificates, as `flotilla cert` fills it, with one for an operator by the
    /// name of `playground`; connections have TLS then.
    pub certificates: Option<PathBuf>,
}

/// The space that the stores of a playground keep free: they share a disk with all else on it.
pub(crate) const DISK: DiskConfig = DiskConfig {
    almost_full_free_ratio: 0.0,
    full_free_bytes: 256 << 20,
    full_free_ratio: 0.0,
    reserve_bytes: 0,
};

impl PlaygroundConfig {
    /// Three stores on free ports below `dir`, everything else by default.
    #[must_use]
    pub fn new(dir: impl Into<PathBuf>) -> Self {
        let common = NodeConfig { disk: DISK, ..NodeConfig::default() };
        let (dir, certificates) = (dir.into(), None);
        Self { stores: 3, dir, base_port: 0, common, certificates }
    }

    /// The names of the stores.
    pub(crate) fn names(&self) -> Vec<String> {
        (1..=self.stores).map(|number| format!("s{number}")).collect()
    }

    /// The way to the stores with TLS, as an operator.
    ///
    /// # Errors
    ///
    /// The certificates cannot be read.
    pub(crate) fn dialer(&self) -> Result<Option<TlsDialer>, StartError> {
        let Some(dir) = &self.certificates else { return Ok(None) };
        let dialer = cert::operator_args(dir).dialer();
        dialer.map_err(StartError::Refused)
    }
}

/// Why a cluster is not ready.
#[derive(Debug, thiserror::Error)]
#[error("the cluster was not ready after {waited:?}: {why}")]
pub struct NotReady {
    /// How long it was waited for.
    pub waited: Duration,
    /// The reason of the last poll.
    pub why: String,
}

/// A node that has come to an end by itself.
#[derive(Clone, Debug)]
pub struct EndedNode {
    /// Its place among the stores, counted from 0.
    pub place: usize,
    /// The name of its store.
    pub name: String,
    /// The kind of its end.
    pub kind: EndKind,
    /// Why it has ended, in words.
    pub reason: String,
}

/// Running nodes.
pub struct Playground {
    configs: Vec<NodeConfig>,
    nodes: Vec<Option<Node>>,
    /// Where each listens; kept, for those that are stopped and started again.
    ports: Vec<ReservedPort>,
    /// The way to them.
    tls: Option<TlsDialer>,
}

impl Playground {
    /// Starts all nodes. They serve at once; [`Playground::ready`] waits for leaders.
    ///
    /// # Errors
    ///
    /// The error of the first node that does not start.
    pub async fn start(settings: &PlaygroundConfig) -> Result<Self, StartError> {
        assert!((1..=9).contains(&settings.stores), "a playground has 1 to 9 stores");
        let ports = ports(settings)?;
        let configs = configs(settings, &ports);
        let nodes = configs.iter().map(|_| None).collect();
        let tls = settings.dialer()?;
        let mut playground = Self { configs, nodes, ports, tls };
        playground.start_all().await?;
        Ok(playground)
    }

    /// Starts all nodes that do not run, at the same time: a new cluster begins only once all of
    /// its stores are there.
    ///
    /// # Errors
    ///
    /// As [`Node::start`].
    pub async fn start_all(&mut self) -> Result<(), StartError> {
        let mut starting = tokio::task::JoinSet::new();
        for place in (0..self.nodes.len()).filter(|place| self.nodes[*place].is_none()) {
            let listener = bind(self.ports[place].addr().to_string()).await?;
            let config = self.configs[place].clone();
            starting.spawn(async move { (place, Node::start_on(listener, config).await) });
        }
        while let Some(started) = starting.join_next().await {
            let (place, node) = started.expect("starting a node does not panic");
            self.nodes[place] = Some(node?);
        }
        Ok(())
    }

    /// The addresses of the stores, where placement answers too.
    #[must_use]
    pub fn endpoints(&self) -> Vec<String> {
        self.ports.iter().map(|port| port.addr().to_string()).collect()
    }

    /// The node of the store at `place`, counted from 0. `None` while it is stopped.
    #[must_use]
    pub fn node(&self, place: usize) -> Option<&Node> {
        self.nodes[place].as_ref()
    }

    /// Lets the node of the first store that runs listen on one more address.
    pub fn listen(&mut self, listener: TcpListener) {
        if let Some(node) = self.nodes.iter_mut().flatten().next() {
            node.listen(listener);
        }
    }

    /// Waits until every region has a leader and a put has worked.
    ///
    /// # Errors
    ///
    /// [`NotReady`] if that takes longer than `time_limit`.
    pub async fn ready(&self, time_limit: Duration) -> Result<Duration, NotReady> {
        let config = Config { tls: self.tls.clone(), ..Config::default() };
        ready_by(&self.endpoints(), self.configs[0].regions, time_limit, config).await
    }

    /// Ends a node at once, as a crash of its process would.
    pub async fn abandon(&mut self, place: usize) {
        if let Some(node) = self.nodes[place].take() {
            node.abandon().await;
        }
    }

    /// Ends a node in good order.
    ///
    /// # Errors
    ///
    /// As [`Node::shutdown`].
    pub async fn stop(&mut self, place: usize) -> Result<(), String> {
        match self.nodes[place].take() {
            Some(node) => node.shutdown().await,
            None => Ok(()),
        }
    }

    /// Starts a node again that was ended, from its directory.
    ///
    /// # Errors
    ///
    /// As [`Node::start`].
    pub async fn restart(&mut self, place: usize) -> Result<(), StartError> {
        if self.nodes[place].is_none() {
            let listener = bind(self.ports[place].addr().to_string()).await?;
            let node = Node::start_on(listener, self.configs[place].clone()).await?;
            self.nodes[place] = Some(node);
        }
        Ok(())
    }

    /// Waits until a node comes to an end by itself. It is still to be taken out, by
    /// [`Playground::abandon`] or [`Playground::stop`]: else it is found again.
    ///
    /// # Cancel safety
    ///
    /// May be dropped and called again.
    pub async fn ended(&self) -> EndedNode {
        let mut waiting = tokio::task::JoinSet::new();
        for (place, node) in self.nodes.iter().enumerate() {
            let Some(node) = node else { continue };
            let (failure, name) = (node.failure(), self.configs[place].name.clone());
            waiting.spawn(async move {
                let reason = failure.wait().await;
                let kind = failure.kind().expect("a node that has ended has a kind of end");
                EndedNode { place, name, kind, reason }
            });
        }
        match waiting.join_next().await {
            Some(Ok(ended)) => ended,
            _ => std::future::pending().await,
        }
    }

    /// Ends all nodes in good order.
    ///
    /// # Errors
    ///
    /// The first thing that went wrong; all nodes have ended nevertheless.
    pub async fn shutdown(self) -> Result<(), String> {
        let mut ending = tokio::task::JoinSet::new();
        for node in self.nodes.into_iter().flatten() {
            ending.spawn(node.shutdown());
        }
        let mut result = Ok(());
        while let Some(ended) = ending.join_next().await {
            let ended = ended.expect("ending a node does not panic");
            result = result.and(ended);
        }
        result
    }
}

/// A port for each store, kept before any store is started.
///
/// # Errors
///
/// The first that cannot be had.
pub(crate) fn ports(settings: &PlaygroundConfig) -> Result<Vec<ReservedPort>, StartError> {
    let of_store = |store| if settings.base_port == 0 { 0 } else { settings.base_port + store };
    (0..settings.stores as u16)
        .map(|store| keep(SocketAddr::from(([127, 0, 0, 1], of_store(store)))))
        .collect()
}

fn keep(addr: SocketAddr) -> Result<ReservedPort, StartError> {
    ReservedPort::reserve(addr)
        .map_err(|source| StartError::Listen { addr: addr.to_string(), source })
}

/// The settings of each node of a cluster at `ports`.
#[must_use]
pub(crate) fn configs(settings: &PlaygroundConfig, ports: &[ReservedPort]) -> Vec<NodeConfig> {
    let names = settings.names();
    let members = names.iter().zip(ports);
    let members: Vec<_> = members.map(|(name, port)| format!("{name}={}", port.addr())).collect();
    let of_store = |(name, port): (String, &ReservedPort)| NodeConfig {
        addr: port.addr().to_string(),
        data_dir: settings.dir.join(&name),
        initial_cluster: members.join(","),
        first_start: FirstStart::New,
        tls: match &settings.certificates {
            Some(dir) => cert::store_config(dir, &name),
            None => settings.common.tls.clone(),
        },
        name,
        ..settings.common.clone()
    };
    names.into_iter().zip(ports).map(of_store).collect()
}

/// Waits until the cluster at `endpoints` has a leader for each of its `regions` data regions and
/// for the system region, and a put through it has worked. Asks over the network, so it is true
/// for clients too.
///
/// # Errors
///
/// [`NotReady`] if that takes longer than `time_limit`.
pub async fn ready(
    endpoints: &[String],
    regions: u64,
    time_limit: Duration,
) -> Result<Duration, NotReady> {
    ready_by(endpoints, regions, time_limit, Config::default()).await
}

/// The same, by a client with this configuration.
///
/// # Errors
///
/// As [`ready`].
pub async fn ready_by(
    endpoints: &[String],
    regions: u64,
    time_limit: Duration,
    config: Config,
) -> Result<Duration, NotReady> {
    let config = Config { deadline: Duration::from_secs(2), ..config };
    let began = Instant::now();
    let mut why = "nobody was asked yet".to_owned();
    while began.elapsed() < time_limit {
        match look(endpoints, regions, &config).await {
            Ok(()) => return Ok(began.elapsed()),
            Err(missing) => why = missing,
        }
        sleep(LOOK_PAUSE).await;
    }
    Err(NotReady { waited: began.elapsed(), why })
}

async fn look(endpoints: &[String], regions: u64, config: &Config) -> Result<(), String> {
    let mut led = std::collections::BTreeSet::new();
    let mut api = RequestApi::default();
    for endpoint in endpoints {
        let seen = Observer::new(endpoint, config.clone()).map_err(|error| error.to_string())?;
        api = api_of(&seen.stores().await.map_err(|error| format!("{endpoint}: {error}"))?);
        let seen = seen.regions().await.map_err(|error| format!("{endpoint}: {error}"))?;
        let leads = seen.iter().filter(|status| status.role == i32::from(peers::Role::Leader));
        led.extend(leads.filter_map(|status| Some(status.region.as_ref()?.id)));
    }
    let wanted = regions + 1;
    if (led.len() as u64) < wanted {
        return Err(format!("{} of {wanted} regions have a leader", led.len()));
    }
    // The row is there for a moment only, under a name that no other client uses.
    let mode = if api == RequestApi::V2 { "r\0\0\0" } else { "" };
    let key = format!("{mode}flotilla/ready/{:016x}", fastrand::u64(..));
    let put = async {
        let client = Client::connect(endpoints, Config { api, ..config.clone() }).await?;
        client.put(key.clone(), "ready").await?;
        client.delete(key).await
    };
    put.await.map_err(|error: flotilla_client::Error| format!("a put does not work: {error}"))
}
