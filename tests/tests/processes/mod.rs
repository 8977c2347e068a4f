//! A cluster of real processes: each store is this very test program, started anew with one test
//! chosen, the one that runs a store. They can be killed, and their memory can be looked at.

use std::ffi::OsString;
use std::fs;
use std::io::Read;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use flotilla_node::playground;
use flotilla_node::{Node, NodeConfig, Port};
use tempfile::TempDir;

/// Names the settings of the store that a process is to run.
const SETTINGS: &str = "FLOTILLA_TEST_STORE";
/// How long a cluster may take to be ready on a machine that has much else to do.
const PATIENCE: Duration = Duration::from_secs(60);

/// Stores, each in a process of its own. Dropping it kills them.
pub(crate) struct Processes {
    stores: Vec<Option<Child>>,
    endpoints: Vec<String>,
    /// Kept while no store listens there, for nobody else to get them.
    _ports: Vec<Port>,
    regions: u64,
    /// What each store's process finds in its environment.
    environment: Environment,
    dir: TempDir,
}

/// Variables of the environment, by name, for the store at a place.
pub(crate) type Environment = Box<dyn Fn(usize) -> Vec<(OsString, OsString)> + Send>;

impl Processes {
    /// Starts `count` stores and waits until every region serves.
    #[allow(dead_code, reason = "some test programs start stores with an environment only")]
    pub(crate) async fn start(count: usize, regions: u64) -> Self {
        Self::start_in(count, regions, Box::new(|_| vec![])).await
    }

    /// The same, with an environment for each store.
    pub(crate) async fn start_in(count: usize, regions: u64, environment: Environment) -> Self {
        let dir = TempDir::new().unwrap();
        let any = SocketAddr::from(([127, 0, 0, 1], 0));
        let ports: Vec<Port> = (0..count).map(|_| Port::keep(any).unwrap()).collect();
        let endpoints: Vec<String> = ports.iter().map(|port| port.addr().to_string()).collect();
        let members = endpoints.iter().enumerate();
        let members: Vec<_> = members.map(|(place, addr)| format!("s{place}={addr}")).collect();
        for place in 0..count {
            let settings = format!(
                "name = \"s{place}\"\ndata_dir = {:?}\ninitial_cluster = \"{}\"\nregions = {regions}\n",
                dir.path().join(format!("s{place}")),
                members.join(","),
            );
            fs::write(settings_path(dir.path(), place), settings).unwrap();
        }
        let stores = (0..count).map(|_| None).collect();
        let mut processes = Self { stores, endpoints, _ports: ports, regions, environment, dir };
        for place in 0..count {
            processes.restart(place);
        }
        processes.ready().await;
        processes
    }

    /// Where the stores listen, `host:port`.
    pub(crate) fn endpoints(&self) -> &[String] {
        &self.endpoints
    }

    /// Waits until every region has a leader and a put has worked.
    pub(crate) async fn ready(&self) {
        if let Err(error) = playground::ready(&self.endpoints, self.regions, PATIENCE).await {
            for place in 0..self.stores.len() {
                let said = fs::read_to_string(self.log_path(place)).unwrap_or_default();
                eprintln!("store {place} said:\n{said}");
            }
            panic!("{error}");
        }
    }

    /// Kills a store with SIGKILL.
    pub(crate) fn kill(&mut self, place: usize) {
        println!("killing store {place}, process {}", self.pid(place));
        let mut store = self.stores[place].take().expect("the store runs");
        store.kill().unwrap();
        store.wait().unwrap();
    }

    /// Starts a store that does not run, on the data that it has.
    pub(crate) fn restart(&mut self, place: usize) {
        let log = fs::File::options().create(true).append(true).open(self.log_path(place));
        let store = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", "processes::runs_a_store_if_told_to", "--nocapture"])
            .env(SETTINGS, settings_path(self.dir.path(), place))
            .envs((self.environment)(place))
            // Ends when this process does, however that happens.
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(log.unwrap())
            .spawn()
            .unwrap();
        self.stores[place] = Some(store);
    }

    /// The id of a store's process.
    pub(crate) fn pid(&self, place: usize) -> u32 {
        self.stores[place].as_ref().expect("the store runs").id()
    }

    fn log_path(&self, place: usize) -> PathBuf {
        self.dir.path().join(format!("s{place}.log"))
    }
}

impl Drop for Processes {
    fn drop(&mut self) {
        for place in 0..self.stores.len() {
            if self.stores[place].is_some() {
                self.kill(place);
            }
        }
    }
}

fn settings_path(dir: &Path, place: usize) -> PathBuf {
    dir.join(format!("s{place}.toml"))
}

/// Where a store's process begins. Among the other tests, without settings, there is nothing to do.
#[test]
fn runs_a_store_if_told_to() {
    let Some(settings) = std::env::var_os(SETTINGS) else { return };
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    let config = NodeConfig::read(Path::new(&settings)).unwrap();
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
    let reason = runtime.block_on(async {
        let node = Node::start(config).await.unwrap();
        node.failed().await
    });
    panic!("the store failed: {reason}");
}
