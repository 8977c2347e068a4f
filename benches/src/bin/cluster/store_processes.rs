//! A cluster: its stores' processes, and what they and the command line say about it.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{ExitStatus, Stdio};
use std::time::{Duration, Instant};

use flotilla_cli::playground;
use flotilla_cli::tool::Error;
use flotilla_client::{Client, Config, Observer};
use flotilla_proto::metapb::{Peer, PeerRole};
use flotilla_proto::peers::{RegionStatus, Role, Space, StatsResponse};
use serde_json::Value;
use tokio::process::Command;

use super::store_process::StoreProcess;
use super::test_bench::TestBench;

/// How long a change of the cluster may take: repair rests for ten seconds after each change of
/// the leader of placement, and one snapshot may follow the other.
const PATIENCE: Duration = Duration::from_secs(600);
/// Between two looks at something that only a look tells.
const LOOK_PAUSE: Duration = Duration::from_millis(100);

/// The settings of all stores of a cluster.
#[derive(Clone, Debug)]
pub(crate) struct ClusterPlan {
    /// Regions of the clients' keys at the bootstrap.
    pub(crate) regions: u64,
    /// The tables of the settings, as TOML.
    pub(crate) tables: String,
}

/// The stores of a cluster. Dropping it kills them.
pub(crate) struct StoreProcesses {
    pub(crate) stores: Vec<StoreProcess>,
    binary: PathBuf,
    dir: PathBuf,
    plan: ClusterPlan,
    /// Where the stores that begin the cluster listen.
    initial_cluster: String,
}

/// A region as the leader with the highest term has it.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct LedRegion {
    pub(crate) term: u64,
    pub(crate) committed: u64,
    pub(crate) leader_store: u64,
    pub(crate) is_system: bool,
    pub(crate) peers: Vec<Peer>,
}

impl StoreProcesses {
    /// Starts `count` stores in a directory called `name`, and waits until every region serves.
    pub(crate) async fn start(
        bench: &TestBench,
        name: &str,
        count: usize,
        plan: &ClusterPlan,
    ) -> Result<StoreProcesses, Error> {
        let dir = bench.cluster_dir(name)?;
        let planned = (1..=count).map(|number| StoreProcess::plan(&dir, &format!("s{number}")));
        let stores = planned.collect::<Result<Vec<_>, Error>>()?;
        let members = stores.iter().map(|store| format!("{}={}", store.name, store.address()));
        let initial_cluster = members.collect::<Vec<_>>().join(",");
        let binary = bench.binary.clone();
        let plan = plan.clone();
        let mut cluster = StoreProcesses { stores, binary, dir, plan, initial_cluster };
        // A store alone would listen for seconds whether its address is known.
        let flags: &[&str] = if count == 1 { &["--new"] } else { &[] };
        for place in 0..count {
            cluster.spawn(place, flags)?;
        }
        cluster.ready().await?;
        // It would wait for snapshots that no store takes.
        if let Some(line) = cluster.lines_with("full: ").first() {
            let at = bench.dir().display();
            return Err(Error::Refused(format!("{at} is on a disk without enough room: {line}")));
        }
        Ok(cluster)
    }

    fn spawn(&mut self, place: usize, flags: &[&str]) -> Result<(), Error> {
        let store = &self.stores[place];
        let mut settings = format!(
            "name = \"{}\"\naddr = \"{}\"\ndata_dir = {:?}\n",
            store.name,
            store.address(),
            store.data_dir()
        );
        let is_initial = self.initial_cluster.contains(&store.address());
        settings += &match is_initial {
            true => format!(
                "initial_cluster = \"{}\"\nregions = {}\n",
                self.initial_cluster, self.plan.regions
            ),
            false => format!("join = \"{}\"\n", self.endpoints().join(",")),
        };
        settings += &self.plan.tables;
        self.stores[place].start(&self.binary, &settings, flags)
    }

    /// Starts one more store, which joins; waits until it has. Its place.
    pub(crate) async fn join(&mut self, name: &str) -> Result<usize, Error> {
        let (place, dir) = (self.stores.len(), self.dir.clone());
        self.stores.push(StoreProcess::plan(&dir, name)?);
        self.spawn(place, &[])?;
        let store = &mut self.stores[place];
        until(&format!("{name} was to join"), async || {
            if let Some(end) = store.take_end() {
                return Err(Error::Refused(format!("{name} ended, {end}: {}", store.said(true))));
            }
            Ok(store.said(true).contains("the node serves"))
        })
        .await?;
        Ok(place)
    }

    /// Starts a store that does not run, on the data that it has.
    pub(crate) fn restart(&mut self, place: usize) -> Result<(), Error> {
        self.spawn(place, &[])
    }

    /// The tables of the settings from the next starts on.
    pub(crate) fn configure(&mut self, tables: &str) {
        tables.clone_into(&mut self.plan.tables);
    }

    /// Ends a store in good order.
    pub(crate) async fn stop(&mut self, place: usize) -> Result<(), Error> {
        self.stores[place].terminate()?;
        self.ended(place).await
    }

    /// Waits until a store has ended, in good order.
    async fn ended(&mut self, place: usize) -> Result<(), Error> {
        let end = self.end(place).await?;
        let (name, said) = (&self.stores[place].name, || self.stores[place].said(true));
        match end.success() {
            true => Ok(()),
            false => {
                Err(Error::Refused(format!("{name} was to end in good order, {end}: {}", said())))
            }
        }
    }

    /// Waits until a store has left the cluster, and has ended.
    pub(crate) async fn left(&mut self, place: usize) -> Result<(), Error> {
        let end = self.end(place).await?;
        let (name, said) = (&self.stores[place].name, self.stores[place].said(true));
        match end.success() && said.contains("has left the cluster") {
            true => Ok(()),
            false => Err(Error::Refused(format!("{name} was to leave, {end}: {said}"))),
        }
    }

    async fn end(&mut self, place: usize) -> Result<ExitStatus, Error> {
        let store = &mut self.stores[place];
        let mut end = None;
        until(&format!("{} was to end", store.name), async || {
            end = store.take_end();
            Ok(end.is_some())
        })
        .await?;
        Ok(end.expect("it has ended"))
    }

    /// Where the stores that run listen.
    pub(crate) fn endpoints(&self) -> Vec<String> {
        let running = self.stores.iter().filter(|store| store.pid().is_some());
        running.map(StoreProcess::address).collect()
    }

    /// Waits until every region has a leader and a put works.
    pub(crate) async fn ready(&mut self) -> Result<(), Error> {
        let waited = playground::ready(&self.endpoints(), self.plan.regions, PATIENCE).await;
        match waited {
            Ok(_) => Ok(()),
            Err(error) => {
                let said: String = self.stores.iter().map(|store| store.said(true)).collect();
                Err(Error::Refused(format!("{error}\n{said}")))
            }
        }
    }

    /// A client that knows all stores that run.
    pub(crate) async fn client(&self) -> Result<Client, Error> {
        let config = Config { in_flight_max: 10_000, ..Config::default() };
        Ok(Client::connect(&self.endpoints(), config).await?)
    }

    /// Runs `flotilla` with arguments that are parted by spaces, against the cluster; its answer.
    pub(crate) async fn flotilla(&self, args: &str) -> Result<Value, Error> {
        run_flotilla(&self.binary, &self.endpoints(), args).await
    }

    /// The counters of a store.
    pub(crate) async fn stats(&self, place: usize) -> Result<StatsResponse, Error> {
        let observer = Observer::new(&self.stores[place].address(), Config::default())?;
        Ok(observer.stats().await?)
    }

    /// Everything that the stores that run say about their replicas, with the stores' places. Those
    /// that do not answer are left out.
    pub(crate) async fn replicas(&self) -> Vec<(usize, RegionStatus)> {
        let mut replicas = vec![];
        for (place, store) in self.stores.iter().enumerate() {
            if store.pid().is_none() {
                continue;
            }
            let Ok(observer) = Observer::new(&store.address(), Config::default()) else { continue };
            let answer = observer.regions().await.unwrap_or_default();
            replicas.extend(answer.into_iter().map(|status| (place, status)));
        }
        replicas
    }

    /// All regions that have a leader.
    pub(crate) async fn regions(&self) -> BTreeMap<u64, LedRegion> {
        let mut regions = BTreeMap::<u64, LedRegion>::new();
        for (_, status) in self.replicas().await {
            let leads = status.role() == Role::Leader;
            let is_system = status.space() == Space::System;
            let RegionStatus { region, leader, term, committed, .. } = status;
            let region = region.unwrap_or_default();
            let known = regions.entry(region.id).or_default();
            if leads && term >= known.term {
                let (peers, leader_store) = (region.peers, leader.map_or(0, |it| it.store_id));
                *known = LedRegion { term, committed, leader_store, is_system, peers };
            }
        }
        regions.retain(|_, region| region.leader_store != 0);
        regions
    }

    /// Waits until each region has so many voters and nothing else, and that of placement so many;
    /// and until the stores have as many replicas each, or one more or less.
    pub(crate) async fn settled(
        &self,
        replicas: usize,
        system_replicas: usize,
    ) -> Result<(), Error> {
        let what = format!("there were to be {replicas} replicas of each region, evenly");
        let count = self.endpoints().len();
        until(&what, async || {
            let regions = self.regions().await;
            let is_there = |region: &LedRegion| {
                let wanted = if region.is_system { system_replicas } else { replicas };
                region.peers.len() == wanted
                    && region.peers.iter().all(|peer| peer.role() == PeerRole::Voter)
            };
            let mut counts = BTreeMap::<u64, usize>::new();
            for peer in regions.values().flat_map(|region| &region.peers) {
                *counts.entry(peer.store_id).or_default() += 1;
            }
            let (least, most) = (counts.values().min(), counts.values().max());
            let is_even = least.zip(most).is_some_and(|(least, most)| most - least <= 1);
            let is_whole = regions.len() as u64 > self.plan.regions;
            Ok(is_whole && is_even && counts.len() == count && regions.values().all(is_there))
        })
        .await
    }

    /// Waits until the replicas of a store have all that is committed now.
    pub(crate) async fn caught_up(&self, place: usize) -> Result<(), Error> {
        let what = format!("{} was to have all entries", self.stores[place].name);
        let mut wanted = BTreeMap::new();
        until(&what, async || {
            if wanted.is_empty() {
                let regions = self.regions().await;
                wanted = regions.into_iter().map(|(id, it)| (id, it.committed)).collect();
            }
            let replicas = self.replicas().await;
            let here: BTreeMap<_, _> = replicas
                .into_iter()
                .filter(|(at, _)| *at == place)
                .map(|(_, status)| (status.region.unwrap_or_default().id, status.applied))
                .collect();
            let has =
                |(id, committed): (&u64, &u64)| here.get(id).is_some_and(|it| it >= committed);
            Ok(!wanted.is_empty() && wanted.iter().all(has))
        })
        .await
    }

    /// The lines of all stores with these words, since the first start.
    pub(crate) fn lines_with(&self, words: &str) -> Vec<String> {
        let said = self.stores.iter().map(|store| store.said(false));
        said.flat_map(|said| lines_of(&said, words)).collect()
    }
}

/// The lines of a text that have these words.
pub(crate) fn lines_of(text: &str, words: &str) -> Vec<String> {
    text.lines().filter(|line| line.contains(words)).map(str::to_owned).collect()
}

/// The number of a field of a log line.
pub(crate) fn field(line: &str, name: &str) -> Option<u64> {
    let fields = line.split_whitespace().filter_map(|word| word.split_once('='));
    fields.filter(|(key, _)| *key == name).find_map(|(_, value)| value.parse().ok())
}

/// A metric of a store; 0 if it does not report it.
pub(crate) fn metric(stats: &StatsResponse, group: &str, name: &str) -> u64 {
    let metric = stats.metrics.iter().find(|metric| metric.group == group && metric.name == name);
    metric.map_or(0, |metric| metric.value)
}

/// Runs `flotilla` with `--json`; its answer.
pub(crate) async fn run_flotilla(
    binary: &Path,
    endpoints: &[String],
    args: &str,
) -> Result<Value, Error> {
    let mut command = Command::new(binary);
    command.args(args.split_whitespace()).args(["--json", "--endpoints", &endpoints.join(",")]);
    let output = command.stdin(Stdio::null()).kill_on_drop(true).output().await?;
    let errors = String::from_utf8_lossy(&output.stderr);
    let refused = |why: &str| Error::Refused(format!("flotilla {args}: {why}: {errors}"));
    if !output.status.success() {
        return Err(refused(&output.status.to_string()));
    }
    serde_json::from_slice(&output.stdout).map_err(|error| refused(&error.to_string()))
}

/// Looks again and again until it is so.
///
/// # Errors
///
/// That of the look; [`Error::Refused`] with `what` if it takes too long.
pub(crate) async fn until(
    what: &str,
    mut look: impl AsyncFnMut() -> Result<bool, Error>,
) -> Result<(), Error> {
    let began = Instant::now();
    while !look().await? {
        if began.elapsed() > PATIENCE {
            return Err(Error::Refused(format!("{what}, and did not within {PATIENCE:?}")));
        }
        tokio::time::sleep(LOOK_PAUSE).await;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_read_from_log_lines() {
        let line = "2026-01-01T00:00:00Z  INFO a snapshot was sent: it lacks region=7 to=2 bytes=1048 ms=12";
        assert_eq!((field(line, "bytes"), field(line, "ms")), (Some(1048), Some(12)));
        assert_eq!(field(line, "rows"), None);
        assert_eq!(lines_of(&format!("a\n{line}\nb"), "a snapshot was sent"), [line]);
    }
}
